"""A slowly moving copy of a network, which no gradient reaches: BYOL's target, MoCo's keys, DINO's teacher."""

from __future__ import annotations

import copy
import math
from typing import TypeVar

import torch
from torch import Tensor, nn

N = TypeVar("N", bound=nn.Module)


def frozen_copy(network: N) -> N:
    """A copy whose parameters are not trained. Its BatchNorms keep statistics of their own."""
    return copy.deepcopy(network).requires_grad_(False)


def follow(slow: nn.Module, fast: nn.Module, *, momentum: float, step: Tensor, total: int) -> None:
    """Move ``slow`` by 1 - m of the way to ``fast``; m rises from ``momentum`` to 1 along a cosine over all steps.

        m = 1 - (1 - momentum) · (1 + cos(π · (step - 1) / total)) / 2

    ``step`` [] counts the steps done, from 1 to ``total``, on the device, which nothing waits for.
    """
    rate = (1 - momentum) * (1 + torch.cos(math.pi * (step - 1) / total)) / 2
    mine: list[Tensor] = [*slow.parameters()]
    theirs: list[Tensor] = [*fast.parameters()]
    way = [*torch._foreach_sub(theirs, mine)]  # a few launches for all of them, instead of some for each
    torch._foreach_mul_(way, rate)
    torch._foreach_add_(mine, way)


def check_momentum(momentum: float) -> None:
    """Raise unless the copy can move by it."""
    if not 0 <= momentum <= 1:
        raise ValueError(
            f"expected momentum from 0 to 1, got {momentum:g}; BYOL's is 0.99, give --method.momentum 0.99"
        )
