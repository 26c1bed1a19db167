"""Features in few bits or few dimensions: what an index of many images keeps of them."""

from __future__ import annotations

from torch import Tensor

LEVELS = 255  # of 8 bits, above 0
SHORT = 16  # dimensions


def compressed(train_x: Tensor, test_x: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Both splits' features [N, F] and [M, F] in 8 bits, in 1 bit, and cut to ``SHORT`` dimensions, by name."""
    return {
        "8bit": (eight_bits(train_x, like=train_x), eight_bits(test_x, like=train_x)),
        "1bit": (one_bit(train_x, like=train_x), one_bit(test_x, like=train_x)),
        f"first{SHORT}": (train_x[:, :SHORT], test_x[:, :SHORT]),
    }


def eight_bits(x: Tensor, *, like: Tensor) -> Tensor:
    """Each dimension at the nearest of 256 even steps from the least to the greatest value of ``like``; as floats."""
    low, high = like.amin(0), like.amax(0)
    width = high - low
    place = ((x - low) / width.where(width > 0, 1.0)).clamp(0, 1)  # a constant dimension has one value
    return low + (place * LEVELS).round() / LEVELS * width


def one_bit(x: Tensor, *, like: Tensor) -> Tensor:
    """1 where a value lies above the mean of its dimension in ``like``, else -1: cosines count equal bits."""
    above = x > like.mean(0)
    return above.to(x.dtype) * 2 - 1
