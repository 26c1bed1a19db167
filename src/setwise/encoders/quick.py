"""A network of wide convolutions for small images: few layers, little memory to move, so a GPU is quick with it."""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

import setwise.register as register
from setwise.encoders.weights import Weights, draw_weights_

Pool = Literal["mean", "max", "mean-then-max"]


class Stage(nn.Module):
    """3×3 convolutions, BatchNorm, GELU. The first one halves the image; the last one, of three or more, adds to it."""

    def __init__(self, channels_in: int, channels: int, depth: int) -> None:
        super().__init__()
        widths = [channels_in, *[channels] * depth]
        self.convs = nn.ModuleList(nn.Conv2d(a, channels, 3, 1, 1, bias=False) for a in widths[:-1])
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        """[B, C_in, H, W] → [B, C, H/2, W/2]."""
        x = F.gelu(self.norms[0](F.max_pool2d(self.convs[0](x), 2)))
        first, depth = x, len(self.convs)
        for i in range(1, depth):
            x = self.norms[i](self.convs[i](x))
            if i == depth - 1 and depth > 2:
                x = x + first
            x = F.gelu(x)
        return x


class Quick(nn.Module):
    """A 3×3 stem, three stages of ``widths`` channels and ``depth`` convolutions, the mean or maximum of each map.

    Its plan is that of airbench96 (Jordan 2024), a speed record with labels, less its whitened first layer. With
    ``pool="mean-then-max"`` it is trained by the mean, and its features in eval mode are the largest values: trained
    on small parts of images, whose maps are small, and asked about whole images, it knows more neighbours so.
    """

    least = 8  # pixels a side: each stage halves them

    def __init__(
        self,
        channels: int,
        *,
        widths: tuple[int, ...] = (128, 384, 512),
        depth: int = 3,
        pool: Pool = "mean",
        weights: Weights = "released",
    ) -> None:
        super().__init__()
        if len(widths) != 3 or not all(isinstance(n, int) and n > 0 for n in widths):
            raise ValueError(f"expected three positive integers as widths, such as 128,384,512, got {widths!r}")
        if not isinstance(depth, int) or depth < 1:
            raise ValueError(f"expected depth to be a positive integer, got {depth!r}")
        stem = 32
        self.stem = nn.Sequential(nn.Conv2d(channels, stem, 3, 1, 1, bias=False), nn.BatchNorm2d(stem), nn.GELU())
        self.stages = nn.Sequential(*(Stage(a, b, depth) for a, b in zip((stem, *widths[:-1]), widths, strict=True)))
        self.features, self.pool = widths[-1], pool
        draw_weights_(self, weights)

    def forward(self, images: Tensor) -> Tensor:
        """Features [B, widths[-1]] of images [B, C, H, W]."""
        x = self.stages(self.stem(images))
        largest = self.pool == "max" or (self.pool == "mean-then-max" and not self.training)
        # Not amax: compiled in bfloat16 its gradient was NaN, since the largest value, computed anew, was none of them.
        features: Tensor = x.flatten(2).max(2).values if largest else x.mean((2, 3))
        return features


@register.encoder("quick", about="Three stages of wide convolutions, for small images; on a GPU with --compile.")
def quick(
    channels: int,
    *,
    widths: tuple[int, ...] = (128, 384, 512),
    depth: int = 3,
    pool: Pool = "mean",
    weights: Weights = "released",
) -> nn.Module:
    """The last width is the number of features: of each map the mean or the largest value, as ``pool`` says."""
    return Quick(channels, widths=widths, depth=depth, pool=pool, weights=weights)
