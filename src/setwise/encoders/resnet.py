"""Residual networks of basic blocks (He et al. 2016): for small images (section 4.2), and ResNet-18 and -34."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal, cast

from torch import Tensor, nn

import setwise.register as register
from setwise.checks import check_option
from setwise.encoders.weights import Weights, draw_weights_
from setwise.kernels import Pool, conv_norm, conv_norm_through

Size = tuple[int, int]  # height and width
Stem = Literal["auto", "imagenet", "cifar"]
SMALL = 64  # pixels a side, up to which "auto" takes the stem for small images


def stem_for(image_size: Size | None) -> Literal["imagenet", "cifar"]:
    """The stem that "auto" stands for."""
    return "cifar" if image_size is not None and max(image_size) <= SMALL else "imagenet"


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

    def __init__(self, depth: int, channels: int = 3, *, weights: Weights = "released") -> None:
        super().__init__()
        if depth < 8 or (depth - 2) % 6:
            raise ValueError(f"expected depth 6n + 2 (8, 14, 20, 32, 44, 56, ...), got {depth}")
        self.stem = nn.Sequential(nn.Conv2d(channels, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.blocks = _stages(16, (16, 32, 64), 3 * [(depth - 2) // 6])
        self.project = nn.Linear(64, 64)
        draw_weights_(self, weights)

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

    ``width``: channels of the first stage; each other has twice as many as the one before. Half of them cost a quarter.

    ``stem``: "imagenet" is a 7×7 convolution of stride 2 and a max-pool; "cifar" a 3×3 convolution and no pool.
    "auto" takes "cifar" for images of at most 64 pixels a side, "imagenet" for larger ones or an unknown size.
    """

    def __init__(
        self,
        depth: Literal[18, 34],
        channels: int = 3,
        image_size: Size | None = None,
        *,
        stem: Stem = "auto",
        width: int = 64,
        weights: Weights = "released",
    ) -> None:
        super().__init__()
        if depth not in (18, 34):
            raise ValueError(f"expected depth 18 or 34, got {depth}")
        check_option(stem, ("auto", "imagenet", "cifar"), "stem")
        if not isinstance(width, int) or width < 1:
            raise ValueError(f"expected width to be a positive integer, got {width!r}")
        if stem == "auto":
            stem = stem_for(image_size)
        small = stem == "cifar"
        first = nn.Conv2d(channels, width, *((3, 1, 1) if small else (7, 2, 3)), bias=False)
        pool = nn.Identity() if small else nn.MaxPool2d(3, 2, 1)
        self.stem = nn.Sequential(first, nn.BatchNorm2d(width), nn.ReLU(), pool)
        widths = [width * 2**stage for stage in range(4)]
        self.blocks = _stages(width, widths, (2, 2, 2, 2) if depth == 18 else (3, 4, 6, 3))
        self.features = widths[-1]
        draw_weights_(self, weights)  # "released" is torchvision's own too: Kaiming's normal by fan-out

    def first(self, images: Tensor) -> Tensor:
        """The first layer's feature map [B, width, H', W'] of images [B, C, H, W], before its pool."""
        return _layer(self.stem, images)

    def rest(self, first: Tensor) -> Tensor:
        """Features [B, 8 · width] of the first layer's."""
        return _pooled(self.blocks, self.stem[3](first))

    def forward(self, images: Tensor) -> Tensor:
        """Features [B, 8 · width] of images [B, C, H, W]."""
        return self.rest(self.first(images))


for _depth, _about in {
    8: "The smallest residual network for small images, 64 features: for a CPU.",
    32: "The paper's residual network for small images, 64 features.",
    56: "A deeper one of the same kind, 64 features.",
}.items():
    register.encoder(f"resnet{_depth}", about=_about)(partial(CifarResNet, _depth))

_about = "512 features or 8 · width; its stem follows the images' size."
register.encoder("resnet18", about=f"ResNet-18, {_about}")(partial(ResNet, 18))
register.encoder("resnet34", about=f"ResNet-34, {_about}")(partial(ResNet, 34))
