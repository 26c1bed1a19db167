"""Residual networks for small images (He et al. 2016, section 4.2), as the paper's experiments use them."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import relu


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

    def forward(self, x: Tensor) -> Tensor:
        """[B, C_in, H, W] → [B, C, H/stride, W/stride]."""
        y = relu(self.norm1(self.conv1(x)))
        return relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class CifarResNet(nn.Module):
    """ResNet-8, -32, -56, ...: three stages of 16, 32, 64 channels, global average pool, Linear(64 → 64).

    Convolutions are drawn from N(0, √(2 / (k² · out_channels))), as the released code does (the paper says Xavier).
    """

    def __init__(self, depth: int) -> None:
        super().__init__()
        if depth < 8 or (depth - 2) % 6:
            raise ValueError(f"expected depth 6n + 2 (8, 14, 20, 32, 44, 56, ...), got {depth}")
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        blocks = []
        channels_in = 16
        for channels, stride in ((16, 1), (32, 2), (64, 2)):
            for first in [True] + [False] * ((depth - 2) // 6 - 1):
                blocks.append(BasicBlock(channels_in, channels, stride if first else 1))
                channels_in = channels
        self.blocks = nn.Sequential(*blocks)
        self.project = nn.Linear(64, 64)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                fan_out = module.kernel_size[0] * module.kernel_size[1] * module.out_channels
                nn.init.normal_(module.weight, 0, math.sqrt(2 / fan_out))

    def forward(self, images: Tensor) -> Tensor:
        """Features [B, 64] of images [B, 3, H, W]."""
        maps = self.blocks(self.stem(images))
        features: Tensor = self.project(torch.mean(maps, (2, 3)))
        return features


def projection_head(features: int = 64, hidden: int = 256, out: int = 64) -> nn.Sequential:
    """The paper's head between features and loss: Linear → BatchNorm → LeakyReLU → Linear."""
    return nn.Sequential(nn.Linear(features, hidden), nn.BatchNorm1d(hidden), nn.LeakyReLU(), nn.Linear(hidden, out))
