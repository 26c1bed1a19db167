"""Conv-4, the paper's shallow encoder."""

from __future__ import annotations

from torch import Tensor, nn

from setwise.encoders.initial import released_weights_


class Conv4(nn.Module):
    """Blocks of 8, 16, 32, 64 channels: conv 3×3 → BatchNorm → ReLU → average pool 2×2, the last pools globally."""

    features = 64

    def __init__(self, channels: int = 3) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        for i, (before, after) in enumerate(zip((channels, 8, 16, 32), (8, 16, 32, 64), strict=True)):
            pool: nn.Module = nn.AvgPool2d(2) if i < 3 else nn.AdaptiveAvgPool2d(1)
            blocks += [nn.Conv2d(before, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(), pool]
        self.blocks = nn.Sequential(*blocks, nn.Flatten())
        released_weights_(self)

    def forward(self, images: Tensor) -> Tensor:
        """Features [B, 64] of images [B, C, H, W], H and W at least 8."""
        features: Tensor = self.blocks(images)
        return features
