"""Conv-4, the paper's shallow encoder."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn
from torch.nn.functional import avg_pool2d

import setwise.register as register
from setwise.encoders.weights import Weights, draw_weights_
from setwise.kernels import Pool, conv_norm


@register.encoder(
    "conv4", about="Four small blocks, 64 features: the paper's shallow encoder; images of 8 x 8 and more."
)
class Conv4(nn.Module):
    """Blocks of 8, 16, 32, 64 channels: conv 3×3 → BatchNorm → ReLU → average pool 2×2, the last pools globally."""

    features = 64
    least = 8  # pixels a side: three pools halve them

    def __init__(self, channels: int = 3, *, weights: Weights = "released") -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        for i, (before, after) in enumerate(zip((channels, 8, 16, 32), (8, 16, 32, 64), strict=True)):
            pool: nn.Module = nn.AvgPool2d(2) if i < 3 else nn.AdaptiveAvgPool2d(1)
            blocks += [nn.Conv2d(before, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(), pool]
        self.blocks = nn.Sequential(*blocks, nn.Flatten())
        draw_weights_(self, weights)

    def _block(self, x: Tensor, i: int, pool: Pool) -> Tensor:
        # Over many processes the BatchNorm is of a class that inherits from its own.
        conv, norm = cast(nn.Conv2d, self.blocks[4 * i]), cast(nn.BatchNorm2d, self.blocks[4 * i + 1])
        return conv_norm(x, conv, norm, pool=pool)

    def _later(self, x: Tensor) -> Tensor:
        x = self._block(self._block(x, 1, "average"), 2, "average")
        return self._block(x, 3, "global")

    def first(self, images: Tensor) -> Tensor:
        """The first layer's feature map [B, 8, H, W] of images [B, C, H, W], before its pool."""
        return self._block(images, 0, "none")

    def rest(self, first: Tensor) -> Tensor:
        """Features [B, 64] of the first layer's."""
        return self._later(avg_pool2d(first, 2))

    def forward(self, images: Tensor) -> Tensor:
        """Features [B, 64] of images [B, C, H, W], H and W at least 8."""
        return self._later(self._block(images, 0, "average"))
