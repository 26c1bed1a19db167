"""The losses as modules: options checked once, ``loss(z_a, z_b)`` afterwards. The mathematics is in ``functional``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import combinations
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn

import setwise.register as register
from setwise.assignment.smoothing import Mining, Smoothing
from setwise.assignment.spectrum import Bound
from setwise.checks import (
    check_embeddings,
    check_loss,
    check_not_tensor,
    check_number,
    check_option,
    check_overflow,
    is_number,
    plain,
    see,
)
from setwise.losses import functional
from setwise.losses.options import Reduction, Temperature, check_options, check_temperature
from setwise.losses.set_level import Spectrum, qare
from setwise.similarity import SIMILARITIES, Similarity

Views = Tensor | Sequence[Tensor]  # [V, N, E], or V tensors [N, E]


def pairs_of(views: Views) -> list[tuple[Tensor, Tensor]]:
    """Every two of V >= 2 views, the earlier one first."""
    if isinstance(views, Tensor) and views.ndim != 3:
        raise ValueError(
            "expected z_b to be a torch.Tensor, got NoneType; give both views, loss(z_a, z_b), or all of them as a "
            "list or a tensor of shape (V, N, E)"
        )
    if not isinstance(views, (Tensor, list, tuple)) or len(views) < 2:
        got = len(views) if isinstance(views, (Tensor, list, tuple)) else type(views).__name__
        raise ValueError(f"expected at least two views, as a list or a tensor of shape (V, N, E), got {got}; add some")
    return [*combinations(views, 2)]


def mean_over_pairs(loss: Callable[..., Tensor], views: Views, *extra: Tensor | None) -> Tensor:
    """The mean of ``loss(z_a, z_b)`` over every two of V >= 2 views."""
    values = [loss(z_a, z_b, *extra) for z_a, z_b in pairs_of(views)]
    return values[0] if len(values) == 1 else torch.stack(values).mean()


class _Loss(nn.Module):
    """A function of embeddings with its options fixed; ``repr`` shows them.

    A temperature that is a tensor is a parameter or a buffer of the module. ``parallel.distributed`` sets ``peers``.
    """

    __call__: Callable[..., Tensor]  # to a type checker, for which torch's returns anything
    function: ClassVar[Any]  # of ``functional``; what lies behind its public door is its ``__wrapped__``

    def __init__(self, given: Mapping[str, Any]) -> None:
        """``given``: the options by name, among whatever else; a subclass gives its ``locals()``."""
        super().__init__()
        options = {name: given.get(name) for name in self.function.__wrapped__.__kwdefaults__}
        check_options(options, self.function.allowed)
        temperature = options.get("temperature")
        if isinstance(temperature, Tensor):
            options["temperature"] = None
            if isinstance(temperature, nn.Parameter):
                self.temperature = temperature
            else:
                self.register_buffer("temperature", temperature)
        self._options = {name: plain(value) for name, value in options.items()}

    @property
    def options(self) -> dict[str, Any]:
        """The options as they are now."""
        learned = self._options.get("temperature", 1.0) is None
        return {**self._options, "temperature": self.temperature} if learned else self._options

    @property
    def similarity(self) -> Similarity:
        """The measure the loss compares embeddings by."""
        name: Similarity = self._options["similarity"]
        return name

    def forward(self, z_a: Views, z_b: Tensor | None = None, extra_negatives: Tensor | None = None) -> Tensor:
        """Loss of two views [N, E] of the same items, with extra negatives [M, E] as further candidates.

        Of more views, ``loss([z_1, z_2, z_3])`` or a tensor [V, N, E]: the mean over every two of them.
        """
        if z_b is None:
            return mean_over_pairs(self, z_a, extra_negatives)
        z_a = cast(Tensor, z_a)
        check_embeddings(z_a, z_b, extra_negatives)
        options = self._options
        if options.get("temperature", 1.0) is None:
            options = self.options
            check_temperature(options, z_a)
        extra = () if extra_negatives is None else (extra_negatives,)
        return check_overflow(self.function.__wrapped__(z_a, z_b, *extra, **options), "a loss")

    def extra_repr(self) -> str:
        """The options, as they would be written."""
        return ", ".join(f"{name}={_shown(value)}" for name, value in self.options.items() if name != "peers" or value)


def _shown(value: object) -> str:
    """``value`` as it would be written; a parameter on one line."""
    return repr(value.detach().requires_grad_(value.requires_grad) if isinstance(value, Tensor) else value)


@register.loss(
    "assignment",
    about="Any cell of the grid: row-wise or one-to-one, hard, entropic or sparse. Use it for sets matched one-to-one.",
)
class AssignmentLoss(_Loss):
    """Any cell of the grid {row-wise, one-to-one} × {hard, entropic, sparse}; see ``functional.assignment_loss``.

    Use it where items are matched one-to-one, or to try a cell that has no name of its own.

    Examples:
        >>> loss = sw.AssignmentLoss(mining="one-to-one", smoothing="sinkhorn", temperature=0.5, similarity="cosine")
        >>> loss(torch.eye(4), torch.eye(4))
        tensor(0.3408)
    """

    function = staticmethod(functional.assignment_loss)

    def __init__(
        self,
        *,
        mining: Mining = "batch-hard",
        smoothing: Smoothing = "none",
        margin: float = 0.0,
        temperature: Temperature = 1.0,
        similarity: Similarity = "euclidean",
        reduction: Reduction = "mean",
        symmetric: bool = False,
    ) -> None:
        super().__init__(locals())


@register.loss(
    "info-nce", about="Each row picks its partner by a softmax over the other view's rows. Use it first; CLIP does."
)
class InfoNCE(_Loss):
    """Row-wise entropic assignment loss, Eq. (13) as mean cross-entropy; see ``functional.info_nce``.

    Use it first, above all where the two views are of different kinds, such as images and texts.

    Examples:
        >>> z_a, z_b = torch.eye(4), torch.eye(4)  # yours: embeddings [N, E], row i of both is the same item
        >>> sw.InfoNCE(temperature=0.5)(z_a, z_b)
        tensor(0.3408)
        >>> loss = sw.InfoNCE(torch.nn.Parameter(torch.tensor(0.07)))  # learned: loss.parameters() has it
        >>> _ = loss.temperature.data.clamp_(min=0.01)  # after each step, since nothing else keeps it above 0
    """

    function = staticmethod(functional.info_nce)

    def __init__(
        self,
        temperature: Temperature = 0.05,
        *,
        similarity: Similarity = "cosine",
        symmetric: bool = False,
        block_size: int | None = None,
    ) -> None:
        super().__init__(locals())


@register.loss(
    "nt-xent",
    about="SimCLR's: each view picks its partner among all other views of the batch. Use it for small batches.",
)
class NTXent(_Loss):
    """SimCLR's loss, every view among the 2N - 1 others; see ``functional.nt_xent``.

    Use it where both views are augmentations of one image: it has twice the negatives of ``InfoNCE``.

    Examples:
        >>> sw.NTXent(temperature=0.5)(torch.eye(4), torch.eye(4))
        tensor(0.5944)
        >>> sw.NTXent(block_size=256)  # for large batches: 256 rows of scores at a time
        NTXent(temperature=0.5, reduction='mean', similarity='cosine', clamp=None, block_size=256)
    """

    function = staticmethod(functional.nt_xent)

    def __init__(
        self,
        temperature: Temperature = 0.5,
        *,
        reduction: Literal["mean", "log-mean"] = "mean",
        similarity: Similarity = "cosine",
        clamp: float | None = None,
        block_size: int | None = None,
    ) -> None:
        super().__init__(locals())


@register.loss(
    "sparse-clr", about="By sparsemax: far negatives have no weight. Use it where many negatives are easy or false."
)
class SparseCLR(_Loss):
    """Row-wise sparse assignment loss, Eq. (14) with its sign mended; see ``functional.sparse_clr``.

    Use it where most negatives are easy: only those near the anchor have a gradient.

    Examples:
        >>> sw.SparseCLR(margin=1.0)(torch.eye(4), torch.eye(4))
        tensor(0.4286)
    """

    function = staticmethod(functional.sparse_clr)

    def __init__(
        self,
        margin: float = 1.0,
        *,
        candidates: Literal["all", "cross"] = "all",
        similarity: Similarity = "cosine",
        temperature: Temperature = 1.0,
        clamp: float | None = None,
        block_size: int | None = None,
    ) -> None:
        super().__init__(locals())


@register.loss("triplet", about="The hardest negative, by a margin. Use it for few items and clean pairs.")
class TripletMargin(_Loss):
    """Batch-hard margin triplet loss, Eq. (12); see ``functional.triplet_margin``.

    Use it for few items and clean pairs: one wrong pair is the hardest negative of others.

    Examples:
        >>> sw.TripletMargin(margin=2.0)(torch.eye(4), torch.eye(4))  # 2 - √2
        tensor(0.5858)
    """

    function = staticmethod(functional.triplet_margin)

    def __init__(self, margin: float = 0.5, *, similarity: Similarity = "euclidean", symmetric: bool = False) -> None:
        super().__init__(locals())


@register.loss(
    "nt-logistic", about="Every pair classified on its own as true or false. Use it where items have several partners."
)
class NTLogistic(_Loss):
    """Every pair classified on its own as true or false; see ``functional.nt_logistic``.

    Use it where a negative may be a true partner too: candidates do not compete with each other.

    Examples:
        >>> sw.NTLogistic(temperature=0.5, negatives="hardest")(torch.eye(4), torch.eye(4))
        tensor(0.8201)
    """

    function = staticmethod(functional.nt_logistic)

    def __init__(
        self,
        temperature: Temperature = 0.05,
        *,
        similarity: Similarity = "cosine",
        negatives: Literal["mean", "sum", "hardest"] = "mean",
        symmetric: bool = False,
    ) -> None:
        super().__init__(locals())


@register.term(
    "qare",
    about="The paper's regulariser, the spectral bound of the quadratic assignment. Use it to keep items apart.",
)
class QARe(_Loss):
    """Quadratic assignment regularisation, Eq. (7) and (17), to add to any loss; see ``functional.qare``.

    Use it to keep the items of each set apart, or with ``reference="truth"`` to give both sets one structure.

    Examples:
        >>> sw.QARe()(torch.eye(4), torch.eye(4))
        tensor(1.7500)
        >>> distances = sw.QARe(similarity="euclidean", spectrum="topk", k=8)  # for large batches of plain distances
        >>> gap = sw.QARe(reference="truth")  # zero where both sets have the same structure; not the paper's
    """

    function = staticmethod(qare)

    def __init__(
        self,
        *,
        similarity: Similarity = "cosine",
        bound: Bound = "eigenvalue",
        spectrum: Spectrum = "auto",
        k: int | None = None,
        reference: Literal["none", "truth"] = "none",
        normalization: Literal["n2", "n(n-1)", "none"] = "n2",
        shift: float | None = None,
        clamp: float | None = None,
        center: bool = False,
    ) -> None:
        super().__init__(locals())


@register.term(
    "gap", about="The alignment gap, zero for sets of equal structure. Use it to align sets; it is not the paper's."
)
def alignment_gap(
    *,
    similarity: Similarity = "cosine",
    bound: Bound = "eigenvalue",
    spectrum: Spectrum = "auto",
    normalization: Literal["n2", "n(n-1)", "none"] = "n2",
    shift: float | None = None,
    center: bool = False,
) -> QARe:
    """QARe with ``reference="truth"``."""
    return QARe(
        similarity=similarity,
        bound=bound,
        spectrum=spectrum,
        reference="truth",
        normalization=normalization,
        shift=shift,
        center=center,
    )


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _check_scalar(term: object, name: str) -> None:
    if isinstance(term, Tensor) and term.ndim:
        raise ValueError(f"expected {name} to return a scalar, got shape {tuple(term.shape)}; take its mean")


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
        self, z_a: Views, z_b: Tensor | None = None, features: Sequence[Tensor] | None = None
    ) -> dict[str, Tensor]:
        """The loss and its two parts before weighting, for logging: "loss", "pairwise", "regularizer".

        On a GPU the two parts run side by side: QARe's eigenvalues keep two of its many cores busy.
        """
        if features is not None or self.on == "features":
            self._check_features(features, 2 if z_b is not None else len(z_a))
        if z_b is None:
            pairs = pairs_of(z_a)
            seen = [None] * len(pairs) if features is None else pairs_of(features)
            parts = [self.terms(*pair, sets) for pair, sets in zip(pairs, seen, strict=True)]
            if len(parts) == 1:
                return parts[0]
            return {name: torch.stack([part[name] for part in parts]).mean() for name in parts[0]}
        z_a = cast(Tensor, z_a)
        sets = (z_a, z_b) if features is None else features
        if isinstance(z_a, Tensor) and z_a.is_cuda and not torch.compiler.is_compiling():
            here, side = torch.cuda.current_stream(z_a.device), _side_stream(z_a.device)
            # Views taken here, so that gradients come back to this stream also where these are leaves.
            views = [x.view_as(x) for x in sets]
            side.wait_stream(here)
            with torch.cuda.stream(side):
                regularizer = self.regularizer(*views)
            pairwise = self.pairwise(z_a, z_b)
            here.wait_stream(side)
            regularizer.record_stream(here)
        else:
            pairwise, regularizer = self.pairwise(z_a, z_b), self.regularizer(*sets)
        loss = self.alpha * pairwise + self.beta * regularizer
        if isinstance(loss, Tensor):
            if loss.ndim:
                _check_scalar(pairwise, "pairwise")
                _check_scalar(regularizer, "regularizer")
            check_overflow(loss, "a loss")
        return {"loss": loss, "pairwise": pairwise, "regularizer": regularizer}

    def _check_features(self, features: object, count: int) -> None:
        """Raise unless there are features of every view where the regulariser sees these, and only there."""
        if isinstance(features, Tensor) and self.on == "embeddings":
            raise ValueError(
                f"expected two views alone, got a third tensor of shape {tuple(features.shape)}; extra negatives go to "
                "the pairwise loss, as in pairwise(z_a, z_b, bank) + beta * setwise.QARe()(z_a, z_b), "
                + see("how-to/large-batches#bank")
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

    def forward(self, z_a: Views, z_b: Tensor | None = None, features: Sequence[Tensor] | None = None) -> Tensor:
        """The weighted sum for two views [N, E] of the same items, and their features [N, F] if it is on those.

        Of more views, ``loss([z_1, z_2, z_3])`` or a tensor [V, N, E]: the mean over every two of them.
        """
        return self.terms(z_a, z_b, features)["loss"]

    def extra_repr(self) -> str:
        """The two weights, and the parts that are functions, which no module shows as its."""
        parts = (("pairwise", self.pairwise), ("regularizer", self.regularizer))
        functions = [f"{name}={getattr(x, '__name__', x)}" for name, x in parts if not isinstance(x, nn.Module)]
        weights = [f"alpha={self.alpha!r}", f"beta={self.beta!r}"]
        return ", ".join(functions + weights + ([f"on={self.on!r}"] if self.on == "features" else []))
