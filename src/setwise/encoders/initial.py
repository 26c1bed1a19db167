"""Initial weights."""

from __future__ import annotations

import math

from torch import nn


def released_weights_(model: nn.Module) -> None:
    """Draw convolutions from N(0, √(2 / (k² · out_channels))), as the released code does (the paper says Xavier)."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.kernel_size[0] * module.kernel_size[1] * module.out_channels
            nn.init.normal_(module.weight, 0, math.sqrt(2 / fan_out))


def xavier_weights_(model: nn.Module) -> None:
    """Draw convolutions and linear layers as Glorot and Bengio do, uniformly, biases 0, as the paper says."""
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
