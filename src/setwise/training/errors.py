"""What can go wrong in training, for a person to read."""

from __future__ import annotations

import torch


class TrainingError(RuntimeError):
    """A run cannot go on; the last good checkpoint is intact."""


class Interrupted(TrainingError):
    """The run stopped after a signal and wrote a checkpoint. ``signal`` is its number."""

    def __init__(self, signal: int, message: str) -> None:
        super().__init__(message)
        self.signal = signal


def out_of_memory(error: Exception) -> bool:
    """Whether torch found no memory, on a GPU or on the CPU."""
    found = isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
    return found and not isinstance(error, TrainingError)  # which says what to do
