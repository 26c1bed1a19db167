"""Input checks of the evaluations. They look at values on every device: nothing here is captured in a graph."""

from __future__ import annotations

import torch
from torch import Tensor

from setwise.checks import check_count, check_same_kind

DTYPES = (torch.float32, torch.float64)  # less than float32 is for encoders, not for what is fitted to their features


def check_splits(train_x: Tensor, train_y: Tensor, test_x: Tensor, test_y: Tensor, classes: int) -> None:
    """Raise unless both splits are finite features [N, F] of one kind with labels [N] below ``classes``."""
    check_count(classes, "classes")
    for x, y, split in ((train_x, train_y, "train"), (test_x, test_y, "test")):
        _check_features(x, f"{split}_x")
        _check_labels(y, x, classes, split)
    if train_x.shape[1] != test_x.shape[1]:
        raise ValueError(
            f"expected test_x of shape (M, {train_x.shape[1]}) like train_x, got {tuple(test_x.shape)}; "
            "both come from one encoder"
        )
    check_same_kind(test_x, "test_x", train_x, "train_x")


def _check_features(x: Tensor, name: str) -> None:
    if not isinstance(x, Tensor) or x.dtype not in DTYPES:
        kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(f"expected {name} as a float32 or float64 tensor, got {kind}")
    if x.ndim != 2 or x.numel() == 0:
        raise ValueError(f"expected {name} of shape (N, F) with N and F of at least 1, got {tuple(x.shape)}")
    bad = int((~x.isfinite()).sum())
    if bad:
        raise ValueError(
            f"expected {name} to be finite, got {bad} NaN or infinite of {x.numel()} values; has the encoder diverged?"
        )


def _check_labels(y: Tensor, x: Tensor, classes: int, split: str) -> None:
    if not isinstance(y, Tensor) or y.dtype != torch.int64 or y.shape != x.shape[:1] or y.device != x.device:
        got = f"{y.dtype}, {tuple(y.shape)} on {y.device}" if isinstance(y, Tensor) else type(y).__name__
        raise ValueError(
            f"expected {split}_y as an int64 tensor of shape ({len(x)},) on {x.device}, a label for each row of "
            f"{split}_x, got {got}"
        )
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= classes:
        raise ValueError(f"expected {split}_y from 0 to {classes - 1} for {classes} classes, got {low} to {high}")
