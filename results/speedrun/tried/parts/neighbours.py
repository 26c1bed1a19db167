"""The nearest other image as a further positive: what the runs k04-near and m02-near registered."""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor
from torch.nn.functional import normalize

import setwise as sw
from setwise.methods.contrastive import Contrastive
from setwise.methods.method import Batch, Parts


@sw.register.method(
    "neighbours", about="Contrastive; later the nearest other image is a positive, too.", takes=("objective",)
)
class Neighbours(Contrastive):
    """From ``start`` of training on each view is also compared with its image's nearest neighbour."""

    def __init__(self, parts: Parts, *, views: int = 8, start: float = 0.5, weight: float = 1.0) -> None:
        super().__init__(parts, views=views, against="mean")
        self.start, self.weight = start, weight
        self.register_buffer("bank", torch.zeros(parts.samples, parts.recipe.head.out))
        self.bank: Tensor

    def phase(self, step: int, total: int) -> Hashable:
        """Whether neighbours take part."""
        return "near" if step >= self.start * total else "alone"

    def compare(self, encoded: tuple[Tensor, ...], batch: Batch) -> dict[str, Tensor]:
        """The mean over views of the loss against the others' mean and, later, against the neighbour."""
        joined, total = self.crops.joined(encoded), self.crops.total
        z = [normalize(x.float(), dim=1) for x in self.head(joined).chunk(total)]
        whole = torch.stack(z).sum(0)
        loss = torch.stack([self.loss(x, (whole - x) / (total - 1)) for x in z]).mean()
        mean = normalize(whole, dim=1).detach()
        if batch.phase == "near":
            scores = mean.bfloat16() @ self.bank.bfloat16().T
            scores.scatter_(1, batch.samples[:, None], -2.0)
            near = self.bank[scores.argmax(1)]
            extra = torch.stack([self.loss(near, x) for x in z]).mean()
            loss = (loss + self.weight * extra) / (1 + self.weight)
        self.bank.index_copy_(0, batch.samples, mean)
        return {"loss": loss}
