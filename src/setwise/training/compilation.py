"""torch.compile for the encoder, in training alone."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import nn


def compile_encoder(encoder: nn.Module) -> Callable[[], None]:
    """Let the encoder's ``forward`` be compiled while it is in training mode; returns what undoes it.

    The module stays itself: its weights keep their names, and a copy of it computes with its own. In eval mode, where
    batches have other sizes and nothing is computed often, it is not compiled. Shapes are static: each size of batch
    is compiled for itself.
    """
    plain = type(encoder).forward
    quick = torch.compile(plain, dynamic=False)

    def forward(self: nn.Module, *inputs: Any) -> Any:
        return (quick if self.training else plain)(self, *inputs)

    encoder.forward = MethodType(forward, encoder)
    return lambda: delattr(encoder, "forward")
