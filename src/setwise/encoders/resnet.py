"""Residual networks of basic blocks (He et al. 2016): for small images (section 4.2), and ResNet-18 and -34."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast

from torch import Tensor, nn

from setwise.checks import check_option
from setwise.encoders.initial import released_weights_
from setwise.kernels import Pool, conv_norm, conv_norm_through


def _layer(modules: nn.Sequential, x: Tensor, *, relu: bool = True) -> Tensor:
    """What the convolution and the normalisation that ``modules`` start with make of ``x``."""
    # Over many processes the BatchNorm is of a class that inherits from its own.
    return conv_norm(x, cast(nn.Conv2d, modules[0]), cast(nn.BatchNorm2d, modules[1]), relu=relu)


def _pooled(blocks: nn.Sequential, x: Tensor) -> Tensor:
    """All blocks, and a mean over the image after the last, [B, C]."""
    *most, last = blocks
    for block in most:
        x = block(x)
    pooled: Tensor = last(x, pool="global")
    return pooled


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut, a 1×1 convolution where the shape changes."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: Tensor, pool: Pool = "none") -> Tensor:
        """[B, C_in, H, W] → [B, C, H/stride, W/stride], or [B, C] with a "global" pool."""
        y, x = conv_norm_through(x, self.conv1, self.norm1)
        if isinstance(self.shortcut, nn.Sequential):
            x = _layer(self.shortcut, x, relu=False)
        return conv_norm(y, self.conv2, self.norm2, residual=x, pool=pool)


def _stages(channels_in: int, widths: Sequence[int], depths: Sequence[int]) -> nn.Sequential:
    """Stages of basic blocks; all but the first halve the image."""
    blocks = []
    for stage, (width, depth) in enumerate(zip(widths, depths, strict=True)):
        for block in range(depth):
            blocks.append(BasicBlock(channels_in, width, 2 if stage and not block else 1))
            channels_in = width
    return nn.Sequential(*blocks)


class CifarResNet(nn.Module):
    """ResNet-8, -32, -56, ...: three stages of 16, 32, 64 channels, global average pool, Linear(64 → 64)."""

    features = 64

    def __init__(self, depth: int, channels: int = 3) -> None:
        super().__init__()
        if depth < 8 or (depth - 2) % 6:
            raise ValueError(f"expected depth 6n + 2 (8, 14, 20, 32, 44, 56, ...), got {depth}")
        self.stem = nn.Sequential(nn.Conv2d(channels, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.blocks = _stages(16, (16, 32, 64), 3 * [(depth - 2) // 6])
        self.project = nn.Linear(64, 64)
        released_weights_(self)

    def first(self, images: Tensor) -> Tensor:
        """The first layer's feature map [B, 16, H, W] of images [B, C, H, W]."""
        return _layer(self.stem, images)

    def rest(self, first: Tensor) -> Tensor:
        """Features [B, 64] of the first layer's."""
        features: Tensor = self.project(_pooled(self.blocks, first))
        return features

    def forward(self, images: Tensor) -> Tensor:
        """Features [B, 64] of images [B, C, H, W]."""
        return self.rest(self.first(images))


class ResNet(nn.Module):
    """ResNet-18 and -34: four stages of 64 to 512 channels, global average pool; torchvision's without its last layer.

    ``stem``: "imagenet" is a 7×7 convolution of stride 2 and a max-pool; "cifar" a 3×3 convolution and no pool, for
    images of about 32 pixels.
    """

    features = 512

    def __init__(
        self, depth: Literal[18, 34], channels: int = 3, *, stem: Literal["imagenet", "cifar"] = "imagenet"
    ) -> None:
        super().__init__()
        if depth not in (18, 34):
            raise ValueError(f"expected depth 18 or 34, got {depth}")
        check_option(stem, ("imagenet", "cifar"), "stem")
        first = nn.Conv2d(channels, 64, 7, 2, 3, bias=False) if stem == "imagenet" else None
        self.stem = nn.Sequential(
            first or nn.Conv2d(channels, 64, 3, 1, 1, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1) if first else nn.Identity(),
        )
        self.blocks = _stages(64, (64, 128, 256, 512), (2, 2, 2, 2) if depth == 18 else (3, 4, 6, 3))
        released_weights_(self)  # which is torchvision's own: Kaiming's normal by fan-out

    def first(self, images: Tensor) -> Tensor:
        """The first layer's feature map [B, 64, H', W'] of images [B, C, H, W], before its pool."""
        return _layer(self.stem, images)

    def rest(self, first: Tensor) -> Tensor:
        """Features [B, 512] of the first layer's."""
        return _pooled(self.blocks, self.stem[3](first))

    def forward(self, images: Tensor) -> Tensor:
        """Features [B, 512] of images [B, C, H, W]."""
        return self.rest(self.first(images))
