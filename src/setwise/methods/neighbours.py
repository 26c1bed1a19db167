"""The nearest other image is a positive, too: NNCLR (Dwibedi et al. 2021), with all training images in its memory."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Literal

import torch
from torch import Tensor

import setwise.register as register
from setwise.checks import check_number
from setwise.losses.combined import SetContrastive
from setwise.losses.parallel import Processes
from setwise.methods.contrastive import Contrastive
from setwise.methods.method import Batch, Parts
from setwise.similarity import normalize


@register.method(
    "neighbours",
    about="Contrastive; later in training the nearest other image is a positive, too: NNCLR.",
    takes=("objective",),
)
class Neighbours(Contrastive):
    """``contrastive``; when ``start`` of training is done, each view is also compared with its image's neighbour.

        L = (pairwise(views) + weight · mean over views of pairwise(neighbour, view)) / (1 + weight) + terms(views)

    ``table`` has a row for each training image: the mean of its large views' embeddings when it was last seen, of unit
    length. The neighbour is the row nearest to the image's mean of this step, its own left out. A step takes
    batch · images scores.
    """

    processes = Processes()
    table: Tensor  # [images, E], a buffer; an image that was not seen yet has zeros, which are near to nothing

    def __init__(
        self,
        parts: Parts,
        *,
        start: float = 0.5,
        weight: float = 1.0,
        views: int = 2,
        small: int = 0,
        small_side: float = 0.5,
        small_area: tuple[float, float] = (0.05, 0.4),
        against: Literal["each", "mean"] = "each",
    ) -> None:
        super().__init__(parts, views=views, small=small, small_side=small_side, small_area=small_area, against=against)
        if not 0 <= start <= 1:
            raise ValueError(f"expected start from 0 to 1, a share of training, got {start:g}; 0.5 is half of it")
        check_number(weight, "weight", least=0)
        self.start, self.weight = start, weight
        self.register_buffer("table", torch.zeros(parts.samples, parts.recipe.head.out))

    def phase(self, step: int, total: int) -> Hashable:
        """Whether neighbours take part."""
        return "neighbours" if step >= self.start * total else None

    def compare(self, encoded: tuple[Tensor, ...], batch: Batch) -> dict[str, Tensor]:
        """The loss, and its parts; "neighbours" is the one with them."""
        h = self.crops.joined(encoded)
        z = self.head(h)
        found = self._compare(z, h)
        views = torch.unflatten(normalize(z), 0, (self.crops.total, -1))
        mean = normalize(views.detach()[: self.crops.count].mean(0))
        if batch.phase is not None:
            nearest = self._nearest(mean, batch.samples)
            loss = self.loss
            pairwise, alpha = (loss.pairwise, loss.alpha) if isinstance(loss, SetContrastive) else (loss, 1.0)
            theirs = torch.stack([pairwise(nearest, one) for one in views]).mean()
            share = alpha * self.weight / (1 + self.weight)
            found["loss"] = found["loss"] + share * (theirs - found.get("pairwise", found["loss"]))
            found["neighbours"] = theirs
        self.table.index_copy_(0, self.processes.gather(batch.samples), self.processes.gather(mean))
        return found

    @torch.no_grad()
    def _nearest(self, mean: Tensor, samples: Tensor) -> Tensor:
        """The table's row nearest to each of ``mean`` [B, E] that is not its own."""
        scores = mean @ self.table.T  # on a GPU in bfloat16, as the step's other products
        scores.scatter_(1, samples[:, None], -2.0)
        return self.table[scores.argmax(1)]

    def share(self, processes: Processes) -> None:
        """The loss is that of all processes' embeddings, and each has the whole table."""
        super().share(processes)
        self.processes = processes
