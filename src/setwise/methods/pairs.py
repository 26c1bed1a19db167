"""CLIP's way with pairs of any kind: an encoder and a head for each side, or one for both, and a loss on both."""

from __future__ import annotations

import math
from dataclasses import replace
from inspect import signature
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import setwise.register as register
from setwise.checks import see
from setwise.losses.combined import SetContrastive
from setwise.losses.controls import StructuralDifference
from setwise.losses.gram import CKA, BarlowTwins, NuclearNorm
from setwise.losses.modules import QARe
from setwise.losses.objective import Choice
from setwise.losses.options import KnownSets, Sets, Truth
from setwise.losses.parallel import Processes, distributed
from setwise.methods.method import Batch, Method, Parts

HeadKind = Literal["none", "linear", "mlp"]
# One-to-one on Multi30k in sets of 128, 4,096 pairs, validation lines, three seeds: 0.03, 0.1 and 0.25 gave 95.0, 94.8
# and 94.8 %, a single partner 94.4 %.
SOFTNESS = 0.1


class _Exponential(nn.Module):
    """What is learned is the logarithm: a step changes a small and a large temperature by the same share."""

    def forward(self, logarithm: Tensor) -> Tensor:
        return logarithm.exp()

    def right_inverse(self, temperature: Tensor) -> Tensor:
        return temperature.log()


@register.method(
    "pairs",
    about="Pairs of texts, vectors, images: an encoder for each side, or one for both. CLIP is one.",
    takes=("objective", "pairs"),
)
class Pairs(Method):
    """Any ``loss(z_a, z_b)`` on embeddings of both sides; with ``labels=`` or ``sets=`` where the pairs have them.

    ``shared``: one encoder and one head for both. ``head``: the recipe's with a hidden layer ("mlp"), one linear layer,
    or none. ``learn_temperature`` starts at the objective's and stays from ``least`` to ``most``.
    Where only sets are known, ``truth``, ``price`` and ``structure`` are those of ``Sets``, see
    ``setwise.losses.sets``. Until the share ``anneal`` of training is done, the truth is "same" and there is no price:
    with one from the first step, encoders that keep all items apart have no loss, and learn just that.
    ``softness``: the truths "hard" and "one-to-one" begin as soft as the loss. They harden step by step, at the end to
    this share of the loss's temperature. None means 0.1. At 0 each row has a single partner from the beginning.
    """

    def __init__(
        self,
        parts: Parts,
        *,
        shared: bool = False,
        head: HeadKind = "linear",
        learn_temperature: bool = False,
        least_temperature: float = 0.01,
        most_temperature: float = 1.0,
        truth: Truth = "same",
        anneal: float = 0.25,
        price: float | None = None,
        structure: float = 1.0,
        softness: float | None = None,
    ) -> None:
        super().__init__()
        if shared and (parts.recipe.second_encoder is not None or not parts.alike):
            raise ValueError(
                "expected two sides of one kind and no second_encoder for one shared encoder, got others; leave out "
                "--method.shared or --second-encoder"
            )
        self.encoder = parts.encoder
        self.second_encoder = None if shared else parts.second_encoder()
        widths = [cast(int, one.features) for one in (self.encoder, self.second_encoder or self.encoder)]
        if head == "none" and widths[0] != widths[1]:
            raise ValueError(
                f"expected as many features from both encoders without heads, got {widths[0]} and {widths[1]}; give "
                "--method.head linear"
            )
        self.head = _head(parts, head, widths[0])
        self.second_head = None if shared else _head(parts, head, widths[1])
        self.views = parts.views, parts.second_views
        self.bounds = (math.log(least_temperature), math.log(most_temperature)) if learn_temperature else None
        self.loss = _learning(parts, least_temperature, most_temperature) if learn_temperature else parts.loss()
        self.labelled, self.in_sets = parts.labelled, parts.in_sets
        if self.labelled:
            _check_takes(self.pairwise, "labels")
        if self.in_sets:
            _check_takes(self.pairwise, "sets")
            _check_needs_no_pairs(self.loss)
        elif truth != "same" or price is not None:
            raise ValueError(
                "expected sets for --method.truth and --method.price, got known pairs; leave these out, or give sets, "
                + see("how-to/your-pairs#sets")
            )
        may_doubt = truth in ("hard", "one-to-one")
        if softness is None:
            whole = getattr(self.pairwise, "options", {}).get("mining") == "one-to-one"
            softness = SOFTNESS if may_doubt and not whole else 0.0
        if not 0 <= softness <= 1:
            raise ValueError(f"expected softness from 0 to 1, got {softness}")
        if softness and not may_doubt:
            raise ValueError(f"expected --method.truth hard or one-to-one with a softness, got {truth}")
        self.truth, self.anneal, self.price, self.structure = truth, anneal, price, structure
        self.least_softness = softness
        self.softness: Tensor | None
        self.register_buffer("softness", torch.ones(()) if softness else None)  # of the next step

    @property
    def pairwise(self) -> Any:
        """The objective's pairwise loss."""
        return self.loss.pairwise if isinstance(self.loss, SetContrastive) else self.loss

    def _items(self, batch: Batch, side: int) -> Tensor:
        """What the encoder of a side takes: views of images, ids and vectors as they are."""
        values = batch.images if side == 0 else cast(Tensor, batch.second)
        if values.dtype == torch.uint8:
            return replace(batch, images=values).view(self.views[side], first=side)
        if values.is_floating_point():
            return values.to(torch.promote_types(values.dtype, batch.dtype))
        return values

    def encode(self, batch: Batch) -> tuple[Tensor, ...]:
        """The features of both sides."""
        second = self.encoder if self.second_encoder is None else self.second_encoder
        return self.encoder(self._items(batch, 0)), second(self._items(batch, 1))

    def embed(self, encoded: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """The heads' embeddings of both sides' features."""
        second = self.head if self.second_head is None else self.second_head
        return self.head(encoded[0]), second(encoded[1])

    def compare(self, encoded: tuple[Tensor, ...], batch: Batch) -> dict[str, Tensor]:
        """The loss, its parts where it has them, and the temperature where it is learned."""
        z_a, z_b = self.embed(encoded)
        known: dict[str, Any] = {"labels": batch.labels} if self.labelled else {}
        if self.in_sets:
            known["sets"] = self._known_sets(cast(Tensor, batch.sets), bool(batch.phase))
        if isinstance(self.loss, SetContrastive):
            terms = self.loss.terms(z_a, z_b, features=encoded if self.loss.on == "features" else None, **known)
        else:
            terms = {"loss": cast(Tensor, self.loss(z_a, z_b, **known))}
        if self.bounds is not None:
            terms["temperature"] = self.pairwise.temperature.detach()
        return terms

    def phase(self, step: int, total: int) -> bool:
        """Whether the next step has the truth and the price. Without these it knows the sets alone."""
        return (self.truth != "same" or self.price is not None) and step >= self.anneal * total

    def _known_sets(self, ids: Tensor, late: bool) -> KnownSets:
        """The sets of both sides, with truth and price where these have begun."""
        if not late:
            return ids, ids
        softness = 0.0 if self.softness is None else self.softness
        return Sets(ids, ids, self.truth, self.price, self.structure, softness)

    def groups(self) -> list[dict[str, Any]]:
        """All parameters; a learned temperature has no weight decay."""
        (group,) = super().groups()
        if self.bounds is None:
            return [group]
        own = self._logarithm()
        return [{"params": [p for p in group["params"] if p is not own]}, {"params": [own], "weight_decay": 0.0}]

    def after_step(self, step: Tensor, total: int) -> None:
        """Keep a learned temperature within its bounds; lower the softness, by the same factor at every step."""
        if self.bounds is not None:
            self._logarithm().clamp_(*self.bounds)
        if self.softness is not None:
            late = (step / total - self.anneal).clamp_min(0) / max(1 - self.anneal, 1 / total)
            self.softness.copy_((late * math.log(self.least_softness)).exp())

    def _logarithm(self) -> Tensor:
        return cast(Tensor, self.pairwise.parametrizations.temperature.original)

    def share(self, processes: Processes) -> None:
        """The loss becomes that of all processes' embeddings."""
        self.loss = distributed(self.loss, group=processes.group, gradient=processes.gradient)


def _head(parts: Parts, kind: HeadKind, features: int) -> nn.Module:
    if kind == "mlp":
        return parts.head(features)
    return nn.Linear(features, parts.recipe.head.out) if kind == "linear" else nn.Identity()


def _check_takes(loss: Any, name: Literal["labels", "sets"]) -> None:
    """Raise unless the pairwise loss takes labels, or sets."""
    taken = signature(loss.forward if isinstance(loss, nn.Module) else loss).parameters
    if name not in taken or not getattr(getattr(loss, "function", None), f"takes_{name}", True):
        shown = type(loss).__name__ if isinstance(loss, nn.Module) else getattr(loss, "__name__", repr(loss))
        advice = {
            "labels": "take info-nce, nt-xent or sparse-clr, or keep one pair of each label (one caption of an image), "
            + see("how-to/your-pairs#several"),
            "sets": "take info-nce, nt-xent, sparse-clr, triplet or assignment, " + see("how-to/your-pairs#sets"),
        }
        raise ValueError(f"expected a loss that takes {name} for pairs with {name}, got {shown}; {advice[name]}")


def _check_needs_no_pairs(loss: nn.Module) -> None:
    """Raise if a term of ours compares row i of one side with row i of the other; of your own terms you know."""
    for term in loss.modules():
        gap = isinstance(term, QARe) and term.options["reference"] == "truth"
        if gap or isinstance(term, (StructuralDifference, BarlowTwins, CKA, NuclearNorm)):
            raise ValueError(
                "expected terms that need no pairs, since only sets are known, got "
                f"{'the alignment gap' if gap else type(term).__name__}; leave it out, or take --term qare, "
                + see("how-to/your-pairs#sets")
            )


def _learning(parts: Parts, least: float, most: float) -> nn.Module:
    """The objective with a temperature that is learned."""
    objective = parts.recipe.objective
    start = objective.loss.options.get("temperature") if objective is not None else None
    if objective is None or start is None:
        raise ValueError("expected a loss with a temperature to learn, got one without; leave out learn_temperature")
    if not 0 < least <= start <= most:
        raise ValueError(f"expected a temperature from {least:g} to {most:g} to begin with, got {start:g}")
    options = objective.loss.options | {"temperature": nn.Parameter(torch.tensor(float(start)))}
    loss = parts.loss(replace(objective, loss=Choice(objective.loss.name, options)))
    pairwise = cast(nn.Module, loss.pairwise if isinstance(loss, SetContrastive) else loss)
    parametrize.register_parametrization(pairwise, "temperature", _Exponential())
    return loss
