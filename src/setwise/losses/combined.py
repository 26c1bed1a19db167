"""Losses made of losses: a pairwise loss beside weighted set-level terms, Algorithms 1 and 2."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from inspect import Parameter, signature
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from setwise.checks import (
    check_loss,
    check_not_tensor,
    check_number,
    check_option,
    check_overflow,
    is_number,
    plain,
    see,
)
from setwise.kernels.nvrtc import unchanged
from setwise.losses import set_level
from setwise.losses.modules import InfoNCE, NTXent, QARe, Views, mean_over_pairs, pairs_of
from setwise.losses.options import KnownSets
from setwise.similarity import SIMILARITIES

ALONE = (InfoNCE, NTXent)  # which give each view a gradient in memory of its own, where QARe can add its own


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _check_scalar(term: object, name: str) -> None:
    if isinstance(term, Tensor) and term.ndim:
        raise ValueError(f"expected {name} to return a scalar, got shape {tuple(term.shape)}; take its mean")


def _check_takes(loss: Callable[..., Tensor], names: Iterable[str]) -> None:
    """Raise unless ``loss`` takes tensors of these names."""
    taken = signature(loss.forward if isinstance(loss, nn.Module) else loss).parameters
    if any(one.kind is Parameter.VAR_KEYWORD for one in taken.values()):
        return
    for name in names:
        if name not in taken:
            shown = type(loss).__name__ if isinstance(loss, nn.Module) else getattr(loss, "__name__", repr(loss))
            raise ValueError(
                f"expected a pairwise loss that takes {name}, got {shown}, which does not; leave {name} out, or take "
                "InfoNCE, NTXent or SparseCLR"
            )


def check_share(beta: float) -> None:
    """Raise unless ``beta`` can weigh a convex combination."""
    check_not_tensor(beta, "beta")
    if not is_number(beta) or not 0 <= beta <= 1:
        raise ValueError(
            f"expected beta between 0 and 1 for a convex combination, got {beta!r}; " + see("how-to/choose-beta#convex")
        )


class Function(nn.Module):
    """A plain ``loss(z_a, z_b)`` as a module."""

    __call__: Callable[..., Tensor]

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, z_a: Views, z_b: Tensor | None = None) -> Tensor:
        """The function's value for two views; the mean over every two of more, as a list or a tensor [V, N, E]."""
        return mean_over_pairs(self.function, z_a) if z_b is None else self.function(z_a, z_b)

    def extra_repr(self) -> str:
        """The function."""
        return str(getattr(self.function, "func", self.function))


class WeightedTerms(nn.Module):
    """Several set-level terms by name, each with its weight: a regulariser of ``SetContrastive``."""

    __call__: Callable[..., Tensor]

    def __init__(self, terms: Mapping[str, tuple[float, Callable[..., Tensor]]]) -> None:
        super().__init__()
        self.weights = {name: plain(weight) for name, (weight, _) in terms.items()}
        for weight in self.weights.values():
            check_number(weight, "weight", least=0)
        made = {name: term if isinstance(term, nn.Module) else Function(term) for name, (_, term) in terms.items()}
        self.terms = nn.ModuleDict({name.replace(".", "·"): term for name, term in made.items()})  # torch allows no "."

    def forward(self, z_a: Views, z_b: Tensor | None = None) -> Tensor:
        """The weighted sum for two views [N, E]; the mean over every two of more, as a list or a tensor [V, N, E]."""
        if z_b is None:
            return mean_over_pairs(self, z_a)
        total = z_b.new_zeros(())
        for (name, weight), term in zip(self.weights.items(), self.terms.values(), strict=True):
            value = term(z_a, z_b)
            _check_scalar(value, f"the term {name!r}")
            total = total + weight * value
        return total

    def extra_repr(self) -> str:
        """The weights."""
        return f"weights={self.weights}"


class SetContrastive(nn.Module):
    """A pairwise loss and a set-level regulariser: alpha · pairwise + beta · regulariser, Algorithms 1 and 2.

    Use it to add a set-level term to any ``loss(z_a, z_b)`` that returns a scalar. The regulariser is by default the
    ``QARe`` of the pairwise loss's similarity, or of cosine. With ``on="features"`` the regulariser sees other vectors
    of the same items, such as an encoder's features before the head: ``loss(z_a, z_b, (h_a, h_b))``.

    Examples:
        >>> loss = sw.SetContrastive(sw.InfoNCE(temperature=0.5), beta=0.5)  # pairwise + 0.5 · QARe
        >>> loss(torch.eye(4), torch.eye(4))
        tensor(1.2158)
        >>> {name: round(value.item(), 3) for name, value in loss.terms(torch.eye(4), torch.eye(4)).items()}
        {'loss': 1.216, 'pairwise': 0.341, 'regularizer': 1.75}
    """

    __call__: Callable[..., Tensor]

    def __init__(
        self,
        pairwise: Callable[..., Tensor],
        beta: float = 0.5,
        regularizer: Callable[..., Tensor] | None = None,
        *,
        alpha: float = 1.0,
        on: Literal["embeddings", "features"] = "embeddings",
    ) -> None:
        super().__init__()
        check_number(alpha, "alpha", least=0)
        check_number(beta, "beta", least=0)
        check_option(on, ("embeddings", "features"), "on")
        check_loss(pairwise, "pairwise")
        if regularizer is not None:
            check_loss(regularizer, "regularizer")
        self.pairwise = pairwise
        if regularizer is None:
            measure: Any = getattr(pairwise, "similarity", None)  # of a loss that is not ours it may be anything
            ours = isinstance(measure, str) and measure in SIMILARITIES
            regularizer = QARe(similarity=measure if ours else "cosine")
        self.regularizer = regularizer
        self.alpha, self.beta, self.on = plain(alpha), plain(beta), on

    @classmethod
    def convex(
        cls, pairwise: Callable[..., Tensor], beta: float, regularizer: Callable[..., Tensor] | None = None
    ) -> SetContrastive:
        """(1 - beta) · pairwise + beta · regulariser, as in the paper's instance matching."""
        check_share(beta)
        return cls(pairwise, beta, regularizer, alpha=1 - beta)

    def terms(
        self,
        z_a: Views,
        z_b: Tensor | None = None,
        features: Sequence[Tensor] | None = None,
        labels: Tensor | None = None,
        extra_negatives: Tensor | None = None,
        sets: KnownSets | None = None,
    ) -> dict[str, Tensor]:
        """The loss and its two parts before weighting, for logging: "loss", "pairwise", "regularizer".

        ``labels``, ``extra_negatives`` and ``sets`` go to the pairwise loss.
        On a GPU the two parts run side by side: QARe's eigenvalues keep two of its many cores busy.
        """
        if features is not None or self.on == "features":
            self._check_features(features, 2 if z_b is not None else len(z_a))
        if z_b is None:
            if sets is not None:
                raise ValueError("expected two sides with sets, got several views at once; loss(z_a, z_b, sets=...)")
            pairs = pairs_of(z_a)
            seen = [None] * len(pairs) if features is None else pairs_of(features)
            parts = [self.terms(*pair, x, labels, extra_negatives) for pair, x in zip(pairs, seen, strict=True)]
            if len(parts) == 1:
                return parts[0]
            return {name: torch.stack([part[name] for part in parts]).mean() for name in parts[0]}
        z_a = cast(Tensor, z_a)
        seen_sets = (z_a, z_b) if features is None else features
        known: dict[str, Any] = {} if labels is None else {"labels": labels}
        if extra_negatives is not None:
            known["extra_negatives"] = extra_negatives
        if sets is not None:
            known["sets"] = sets
        if known and not torch.compiler.is_compiling():
            _check_takes(self.pairwise, known)
        if isinstance(z_a, Tensor) and z_a.ndim == 2 and z_a.shape[0] > set_level.MANY and self._in_one_place():
            regularizer, z_a, z_b = cast(QARe, self.regularizer).beside(z_a, z_b)
            pairwise = self.pairwise(z_a, z_b, **known)
        elif isinstance(z_a, Tensor) and z_a.is_cuda and not torch.compiler.is_compiling():
            here, side = torch.cuda.current_stream(z_a.device), _side_stream(z_a.device)
            # Views taken here, so that gradients come back to this stream also where these are leaves.
            views = [x.view_as(x) for x in seen_sets]
            side.wait_stream(here)
            with torch.cuda.stream(side):
                regularizer = self.regularizer(*views)
            pairwise = self.pairwise(z_a, z_b, **known)
            here.wait_stream(side)
            regularizer.record_stream(here)
        else:
            pairwise, regularizer = self.pairwise(z_a, z_b, **known), self.regularizer(*seen_sets)
        loss = self.alpha * pairwise + self.beta * regularizer
        if isinstance(loss, Tensor):
            if loss.ndim:
                _check_scalar(pairwise, "pairwise")
                _check_scalar(regularizer, "regularizer")
            check_overflow(loss, "a loss")
        return {"loss": loss, "pairwise": pairwise, "regularizer": regularizer}

    def _in_one_place(self) -> bool:
        """Whether the regulariser can add its gradient to the pairwise loss's."""
        ours = (
            type(self.pairwise) in ALONE
            and unchanged(QARe, cast(nn.Module, self.regularizer))
            and self.on == "embeddings"
        )
        return ours and not torch.compiler.is_compiling()

    def _check_features(self, features: object, count: int) -> None:
        """Raise unless there are features of every view where the regulariser sees these, and only there."""
        if isinstance(features, Tensor) and self.on == "embeddings":
            raise ValueError(
                f"expected two views alone, got a third tensor of shape {tuple(features.shape)}; give "
                "extra negatives by name, loss(z_a, z_b, extra_negatives=bank), " + see("how-to/large-batches#bank")
            )
        if (features is None) == (self.on == "features"):
            got = "none" if features is None else "some"
            raise ValueError(
                f'expected features (h_a, h_b) for on="features" and only there, got {got}, on={self.on!r}'
            )
        every = features if isinstance(features, (tuple, list)) else ()
        if [isinstance(x, Tensor) for x in every] != [True] * count:
            raise ValueError(
                f"expected features to be {'a pair' if count == 2 else count} of tensors (h_a, h_b), got "
                f"{type(features).__name__}; give those of every view"
            )

    def forward(
        self,
        z_a: Views,
        z_b: Tensor | None = None,
        features: Sequence[Tensor] | None = None,
        labels: Tensor | None = None,
        extra_negatives: Tensor | None = None,
        sets: KnownSets | None = None,
    ) -> Tensor:
        """The weighted sum for two views [N, E] of the same items, and their features [N, F] if it is on those.

        ``labels`` [N] go to the pairwise loss: items with one label are each other's partners. ``extra_negatives``
        [M, E] or [N, K, E] do too; the regulariser has none, since they have no second view. So do ``sets``, where only
        sets of rows are known to belong together.
        Of more views, ``loss([z_1, z_2, z_3])`` or a tensor [V, N, E]: the mean over every two of them.
        """
        return self.terms(z_a, z_b, features, labels, extra_negatives, sets)["loss"]

    def extra_repr(self) -> str:
        """The two weights, and the parts that are functions, which no module shows as its."""
        parts = (("pairwise", self.pairwise), ("regularizer", self.regularizer))
        functions = [f"{name}={getattr(x, '__name__', x)}" for name, x in parts if not isinstance(x, nn.Module)]
        weights = [f"alpha={self.alpha!r}", f"beta={self.beta!r}"]
        return ", ".join(functions + weights + ([f"on={self.on!r}"] if self.on == "features" else []))
