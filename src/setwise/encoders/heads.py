"""What stands between features and a loss."""

from __future__ import annotations

from torch import nn


def projection_head(features: int = 64, hidden: int = 256, out: int = 64) -> nn.Sequential:
    """The paper's head: Linear → BatchNorm → LeakyReLU → Linear.

    Examples:
        >>> sw.encoders.projection_head(64, 256, 32)(torch.zeros(2, 64)).shape
        torch.Size([2, 32])
    """
    return nn.Sequential(nn.Linear(features, hidden), nn.BatchNorm1d(hidden), nn.LeakyReLU(), nn.Linear(hidden, out))
