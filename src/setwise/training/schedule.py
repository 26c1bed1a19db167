"""Learning rates and the order of samples: functions of (recipe, seed, epoch) alone, so any epoch can be resumed.

A schedule is a function of the peak rate ``lr``, of ``progress``, a real number of epochs from 0 to ``epochs``, and of
its options. It gives the learning rate there.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

import setwise.register as register
from setwise.recipe import Recipe


@register.schedule("constant", about="The same rate throughout, after a linear rise over the warm-up's epochs.")
def constant(lr: float, progress: float, epochs: int, *, warmup: float = 0.0) -> float:
    """The rate itself."""
    return _warmup_rate(lr, progress, warmup) if _warming(progress, epochs, warmup) else lr


@register.schedule("steps", about="A tenth after half of the epochs, and again after three quarters.")
def steps(lr: float, progress: float, epochs: int, *, warmup: float = 0.0) -> float:
    """The rate, a tenth or a hundredth of it."""
    if _warming(progress, epochs, warmup):
        return _warmup_rate(lr, progress, warmup)
    share = progress / epochs
    return lr * (1 if share < 0.5 else 0.1 if share < 0.75 else 0.01)


@register.schedule("cosine", about="Half a cosine down to zero, after the warm-up.")
def cosine(lr: float, progress: float, epochs: int, *, warmup: float = 0.0) -> float:
    """lr (1 + cos(π t)) / 2, t from 0 at the end of the warm-up to 1 at the end."""
    if _warming(progress, epochs, warmup):
        return _warmup_rate(lr, progress, warmup)
    start = warmup / epochs
    return lr * 0.5 * (1 + math.cos(math.pi * (progress / epochs - start) / (1 - start)))


def _warming(progress: float, epochs: int, warmup: float) -> bool:
    return progress < warmup or warmup == epochs  # it may end with the training


def _warmup_rate(lr: float, progress: float, warmup: float) -> float:
    return lr * progress / warmup


def epoch_rates(recipe: Recipe, epoch: int, steps: int) -> Tensor:
    """The learning rate of every step of an epoch [steps], float64.

    Warm-up and cosine go on within the epoch. A warm-up's first step is at its first fraction, not at 0, and its last
    one at the peak.
    """
    schedule, options, lr = register.schedule[recipe.schedule.name], recipe.schedule.options, recipe.optimizer["lr"]
    warmup = options.get("warmup", 0.0)
    starts = [epoch + step / steps for step in range(steps)]
    places = [start + 1 / steps if start < warmup else start for start in starts]
    return torch.tensor([schedule.make(lr, x, recipe.epochs, **options) for x in places], dtype=torch.float64)


def epoch_order(samples: int, *, seed: int, epoch: int) -> Tensor:
    """A permutation of the samples [N], int64, on the CPU."""
    word = int(np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)[0]) >> 1
    return torch.randperm(samples, generator=torch.Generator().manual_seed(word), device="cpu")


def view_start(recipe: Recipe, done: int, total: int) -> float:
    """The share of training at which the views got the size that they have after ``done`` of ``total`` steps."""
    ends: tuple[float, ...] = recipe.views.options.get("until", ())  # a preset of your own may have no such field
    return max((end for end in ends if end <= done / total), default=0.0)


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
