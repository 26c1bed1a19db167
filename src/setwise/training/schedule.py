"""Learning rates and the order of samples: functions of (recipe, seed, epoch) alone, so any epoch can be resumed."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from setwise.recipe import Recipe


def learning_rate(recipe: Recipe, progress: float) -> float:
    """The learning rate after ``progress`` epochs, a real number from 0 to ``recipe.epochs``."""
    if progress < recipe.warmup or recipe.warmup == recipe.epochs:  # it may end with the training
        return recipe.lr * progress / recipe.warmup
    share = progress / recipe.epochs
    if recipe.schedule == "steps":
        return recipe.lr * (1 if share < 0.5 else 0.1 if share < 0.75 else 0.01)
    if recipe.schedule == "cosine":
        start = recipe.warmup / recipe.epochs
        return recipe.lr * 0.5 * (1 + math.cos(math.pi * (share - start) / (1 - start)))
    return recipe.lr


def epoch_rates(recipe: Recipe, epoch: int, steps: int) -> Tensor:
    """The learning rate of every step of an epoch [steps], float64.

    Warm-up and cosine go on within the epoch. A warm-up's first step is at its first fraction, not at 0, and its last
    one at the peak.
    """
    starts = [epoch + step / steps for step in range(steps)]
    places = [start + 1 / steps if start < recipe.warmup else start for start in starts]
    return torch.tensor([learning_rate(recipe, place) for place in places], dtype=torch.float64)


def epoch_order(samples: int, *, seed: int, epoch: int) -> Tensor:
    """A permutation of the samples [N], int64, on the CPU."""
    word = int(np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)[0]) >> 1
    return torch.randperm(samples, generator=torch.Generator().manual_seed(word), device="cpu")


def batch_sizes(samples: int, batch: int, *, drop_last: bool, processes: int = 1) -> list[int]:
    """The sizes of an epoch's batches, over all processes.

    The last batch is what remains, cut to a multiple of the processes, which must hold equal parts. A single image is
    left out: it has nothing to be compared with.
    """
    full, rest = divmod(samples, batch)
    rest -= rest % processes
    sizes = [batch] * full
    if not drop_last and rest > 1:
        sizes.append(rest)
    return sizes
