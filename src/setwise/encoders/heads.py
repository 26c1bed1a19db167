"""What stands between features and a loss."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import nn


def projection_head(features: int = 64, hidden: int = 256, out: int = 64, *, layers: int = 2) -> nn.Sequential:
    """The paper's head: Linear → BatchNorm → LeakyReLU → Linear. With more ``layers`` the first three come again.

    Examples:
        >>> sw.encoders.projection_head(64, 256, 32)(torch.zeros(2, 64)).shape
        torch.Size([2, 32])
    """
    modules: list[nn.Module] = []
    for width in [features, *[hidden] * (layers - 2)][: layers - 1]:
        modules += [nn.Linear(width, hidden), nn.BatchNorm1d(hidden), nn.LeakyReLU()]
    return nn.Sequential(*modules, nn.Linear(hidden if modules else features, out))


def normed_head(widths: Sequence[int], *, norm_last: bool = False) -> nn.Sequential:
    """Linear layers between these widths, BatchNorm and ReLU behind each but the last: SimSiam's and MoCo v3's.

    ``norm_last``: behind the last one a BatchNorm without weights. Before a norm a layer has no bias.

    Examples:
        >>> sw.encoders.normed_head((64, 256, 256, 32))(torch.zeros(2, 64)).shape
        torch.Size([2, 32])
    """
    layers: list[nn.Module] = []
    for a, b in pairwise(widths[:-1]):
        layers += [nn.Linear(a, b, bias=False), nn.BatchNorm1d(b), nn.ReLU()]
    layers.append(nn.Linear(widths[-2], widths[-1], bias=not norm_last))
    return nn.Sequential(*layers, *([nn.BatchNorm1d(widths[-1], affine=False)] if norm_last else []))
