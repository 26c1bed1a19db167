"""Multi-crop (Caron et al. 2020): large views of each image, and cheap small ones of its parts."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from setwise.methods.method import Batch, Parts, by_item, by_view


class Crops:
    """``views`` large views, numbered from 0, and ``small`` small ones after them."""

    def __init__(
        self, parts: Parts, *, views: int, small: int, small_side: float, small_area: tuple[float, float]
    ) -> None:
        if views < 2 or small < 0:
            raise ValueError(
                f"expected at least two large views and no fewer than 0 small ones, got {views} and {small}; "
                "give --method.views 2 --method.small 4"
            )
        self.views, self.count, self.small = parts.views, views, small
        self.small_views = parts.small_views(side=small_side, area=small_area) if small else parts.views

    def images(self, batch: Batch) -> list[Tensor]:
        """The large views [V · B, C, H, W], and the small ones if there are any."""
        large = batch.view(self.views, count=self.count)
        return [large, batch.view(self.small_views, count=self.small, first=self.count)] if self.small else [large]

    def encode(self, encoder: nn.Module, images: list[Tensor]) -> tuple[Tensor, ...]:
        """The features [B, V, F] of views of each size. BatchNorm sees one size at a time, as in the published code."""
        counts = (self.count, self.small)
        return tuple(by_item(encoder(x), count) for x, count in zip(images, counts, strict=False))

    def joined(self, encoded: tuple[Tensor, ...]) -> Tensor:
        """All of these as one batch [(V + S) · B, F], for a head; ``chunk(total)`` gives the views again."""
        views = [by_view(h) for h in encoded]
        return views[0] if len(views) == 1 else torch.cat(views)

    @property
    def total(self) -> int:
        """How many views there are, large and small."""
        return self.count + self.small


def swapped_cross_entropy(targets: list[Tensor], log_probabilities: list[Tensor]) -> Tensor:
    """-Σ_k q_k · log p_k, the mean over rows and over all views q and p but a view with itself.

    ``targets`` q [N, K] are of the large views, ``log_probabilities`` [N, K] of the same views and the small ones.
    """
    pairs = [(q, p) for i, q in enumerate(targets) for j, p in enumerate(log_probabilities) if i != j]
    return torch.stack([-(q * p).sum(1).mean() for q, p in pairs]).mean()
