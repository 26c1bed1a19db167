"""The options of the pairwise losses: which values there are, and which say nothing together."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from setwise.checks import DTYPES, LARGEST, check_count, check_number, check_option, is_number
from setwise.similarity import Similarity, check_similarity, is_distance

Temperature = float | Tensor  # a tensor [] may be learned
Reduction = Literal["mean", "sum"]
MININGS = ("batch-hard", "one-to-one")
REDUCTIONS = ("mean", "sum")


def check_row_options(
    similarity: Similarity,
    *,
    temperature: Temperature = 1.0,
    margin: float = 0.0,
    clamp: float | None = None,
    block_size: int | None = None,
) -> None:
    """Raise on options that no row-wise loss can take."""
    check_similarity(similarity)
    check_count(block_size, "block_size")
    if clamp is not None:
        check_number(clamp, "clamp")
        if clamp >= 0 and is_distance(similarity):
            raise ValueError(
                f"expected clamp below 0 with similarity {similarity!r}, whose scores are minus distances, got "
                f"{clamp!r}: all scores would be equal and nothing learnt; clamp=-d is for distances of at most d"
            )
    _check_units(temperature, margin, 0.0 if clamp is None else clamp)


def _check_units(temperature: Temperature, margin: float, clamp: float = 0.0) -> None:
    """Raise unless float32 can hold scores up to 1, the margin and the clamp in units of the temperature."""
    check_number(margin, "margin", least=0)
    if isinstance(temperature, Tensor):
        if temperature.ndim or temperature.dtype not in DTYPES:
            raise ValueError(
                f"expected temperature to be a number or a floating-point tensor of shape (), got {temperature.dtype} "
                f"of shape {tuple(temperature.shape)}; temperature.float().reshape(()) makes one of a single number"
            )
        if torch.compiler.is_compiling() or temperature.device.type != "cpu":
            return
        temperature = temperature.detach().item()
        if not (is_number(temperature) and temperature > 0):
            raise ValueError(
                f"expected temperature to stay finite and above 0, got a tensor of {temperature!r}; "
                "learn its logarithm and pass the exponential, or clamp it after each step"
            )
    check_number(temperature, "temperature", above=0)
    if max(1, margin, abs(clamp)) > LARGEST * float(temperature):
        raise ValueError(
            f"expected scores, margin and clamp that float32 can hold once they are divided by temperature, got "
            f"temperature {temperature!r}, margin {margin!r}, clamp {clamp!r}; raise the temperature"
        )


def check_assignment_options(
    mining: str, smoothing: str, margin: float, temperature: Temperature, reduction: str
) -> None:
    """Raise on options of the assignment losses that are unknown or say nothing together."""
    check_option(mining, MININGS, "mining")
    check_option(smoothing, ("none", "entropy", "sparse", "sinkhorn", "sparsemap"), "smoothing")
    if mining == "batch-hard" and smoothing in ("sinkhorn", "sparsemap"):
        same = {"sinkhorn": "entropy", "sparsemap": "sparse"}[smoothing]
        raise ValueError(f'expected smoothing {same!r} with mining="batch-hard", where it is the same as {smoothing!r}')
    _check_units(temperature, margin)
    if smoothing == "none" and (isinstance(temperature, Tensor) or temperature != 1.0):
        raise ValueError(f'expected temperature 1.0 with smoothing="none", got {temperature}; it would have no effect')
    check_option(reduction, REDUCTIONS, "reduction")
