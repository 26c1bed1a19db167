"""What can go wrong in training, for a person to read."""

from __future__ import annotations


class TrainingError(RuntimeError):
    """A run cannot go on; the last good checkpoint is intact."""


class Interrupted(TrainingError):
    """A signal asked the run to stop; it has, after a checkpoint. ``signal`` is its number."""

    def __init__(self, signal: int, message: str) -> None:
        super().__init__(message)
        self.signal = signal
