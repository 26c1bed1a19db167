"""Initial weights of our encoders."""

from __future__ import annotations

import math
from typing import Literal

from torch import nn

Weights = Literal["released", "xavier"]  # as the released code draws them, or as the paper says


def draw_weights_(model: nn.Module, weights: Weights) -> None:
    """Draw convolutions from N(0, √(2 / (k² · out_channels))), as the released code does.

    "xavier" then draws convolutions and linear layers again, as Glorot and Bengio do: uniformly, with biases of 0.
    """
    layers = [module for module in model.modules() if isinstance(module, (nn.Conv2d, nn.Linear))]
    for layer in layers:
        if isinstance(layer, nn.Conv2d):
            fan_out = layer.kernel_size[0] * layer.kernel_size[1] * layer.out_channels
            nn.init.normal_(layer.weight, 0, math.sqrt(2 / fan_out))
    if weights == "xavier":
        for layer in layers:
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
