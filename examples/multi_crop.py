"""Multi-crop (Caron et al. 2020): two views of whole images, and cheap small ones of their parts.

    setwise pretrain --use examples/multi_crop.py --method multi-crop --encoder resnet8 --method.small 2

It shows a method with any number of views, of different strengths and sizes. Its loss is the recipe's objective.
"""

from dataclasses import replace
from itertools import combinations

import torch
from torch import Tensor

import setwise as sw
from setwise.methods import Batch


@sw.register.method("multi-crop", about="Two large views and some small ones, each contrasted.", takes=("objective",))
class MultiCrop(sw.Method):
    """Every view is contrasted with both large ones; small ones show a part of the image in fewer pixels."""

    def __init__(
        self, parts: sw.Parts, *, small: int = 1, area: tuple[float, float] = (0.1, 0.4), size: tuple[int, int] = (4, 4)
    ) -> None:
        super().__init__()
        self.encoder, self.head, self.loss, self.small = parts.encoder, parts.head(), parts.loss(), small
        self.views, self.parts = parts.views, replace(parts.views, crop="resized", area=area, size=size)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """The mean over all pairs of views of which one is large."""
        z = [
            *self._embed(batch.view(self.views, count=2)).chunk(2),
            *self._embed(batch.view(self.parts, count=self.small, first=2)).chunk(self.small),
        ]
        pairs = [self.loss(z[i], z[j]) for i, j in combinations(range(len(z)), 2) if i < 2]
        return {"loss": torch.stack(pairs).mean(), "large": pairs[0]}

    def _embed(self, images: Tensor) -> Tensor:
        z: Tensor = self.head(self.encoder(images))
        return z

    def share(self, peers: sw.Processes) -> None:
        """Over many processes, the loss becomes that of all their embeddings."""
        self.loss = sw.distributed(self.loss, group=peers.group, gradient=peers.gradient)
