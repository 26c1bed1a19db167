"""SimCLR and SparseCLR, with or without a set-level term: two views of each image, a head, a loss."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

import setwise.register as register
from setwise.losses.combined import SetContrastive
from setwise.losses.parallel import Processes, distributed
from setwise.methods.crops import Crops
from setwise.methods.method import Batch, Method, Parts
from setwise.similarity import normalize


@register.method(
    "contrastive",
    about="Two or more views of each image, an encoder, a head, the objective's loss: SimCLR, SparseCLR.",
    takes=("objective",),
)
class Contrastive(Method):
    """Any ``loss(z_a, z_b)`` on the head's embeddings of the views; BatchNorm sees all of one size as one batch.

    Of more than two views, the mean over all pairs of them. ``small`` views of ``small_area`` of an image, in
    ``small_side`` of its pixels each way, are compared with each large one (multi-crop). With ``against="mean"`` each
    view is compared once, with the mean of its image's other large ones, all of unit length: for many views.
    """

    def __init__(
        self,
        parts: Parts,
        *,
        views: int = 2,
        small: int = 0,
        small_side: float = 0.5,
        small_area: tuple[float, float] = (0.05, 0.4),
        against: Literal["each", "mean"] = "each",
    ) -> None:
        super().__init__()
        self.against = against
        self.encoder, self.head, self.loss = parts.encoder, parts.head(), parts.loss()
        self.crops = Crops(parts, views=views, small=small, small_side=small_side, small_area=small_area)
        self.views = parts.views

    def encode(self, batch: Batch) -> tuple[Tensor, ...]:
        """The encoder's features of every view, [B, V, F]."""
        return self.crops.encode(self.encoder, self.crops.images(batch))

    def compare(self, encoded: tuple[Tensor, ...], batch: Batch) -> dict[str, Tensor]:
        """The loss, and its pairwise and set-level parts where it has them. The head sees the whole batch."""
        h = self.crops.joined(encoded)
        return self._compare(self.head(h), h)

    def _compare(self, z: Tensor, h: Tensor) -> dict[str, Tensor]:
        """The same, from embeddings and features of all views as one batch."""
        pairs = self._pairs(z)
        features = self._pairs(h) if self._on_features else pairs
        found = [self._terms(*pair, one) for pair, one in zip(pairs, features, strict=True)]
        if len(found) == 1:
            return found[0]
        return {name: torch.stack([one[name] for one in found]).mean() for name in found[0]}

    def _pairs(self, x: Tensor) -> list[tuple[Tensor, Tensor]]:
        """What is compared, of all views [V · B, E]: two of them, or one and the mean of others, [B, E] each."""
        large = self.crops.count
        if self.against == "each":
            views = x.chunk(self.crops.total)
            return [(a, b) for i, a in enumerate(views[:large]) for b in views[i + 1 :]]
        unit = torch.unflatten(normalize(x), 0, (self.crops.total, -1))
        whole = unit[:large].sum(0)
        means = [(whole - one) / (large - 1) if i < large else whole / large for i, one in enumerate(unit)]
        return list(zip(unit, means, strict=True))

    @property
    def _on_features(self) -> bool:
        return isinstance(self.loss, SetContrastive) and self.loss.on == "features"

    def _terms(self, z_a: Tensor, z_b: Tensor, features: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        if isinstance(self.loss, SetContrastive):
            return self.loss.terms(z_a, z_b, features=features if self._on_features else None)
        return {"loss": self.loss(z_a, z_b)}

    def share(self, processes: Processes) -> None:
        """The loss becomes that of all processes' embeddings."""
        self.loss = distributed(self.loss, group=processes.group, gradient=processes.gradient)
