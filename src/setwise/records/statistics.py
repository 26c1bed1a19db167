"""Means over seeds, and differences between two ways of training, seed by seed."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

LARGEST = sys.float_info.max
EQUAL = 1e-9  # a spread below this share of the mean is rounding


@dataclass(frozen=True)
class MeanStd:
    """The mean of n values and their sample standard deviation, None where there is one value only."""

    mean: float
    std: float | None
    n: int


@dataclass(frozen=True)
class PairedDifference:
    """The mean of n differences, and its confidence interval, None where one difference is all there is."""

    mean: float
    low: float | None
    high: float | None
    n: int
    seeds: tuple[int, ...]
    p: float | None = None  # that of a two-sided t test against zero

    @property
    def side(self) -> Literal["above", "around", "below", "unknown"]:
        """Where the interval lies: above zero, around it (a bound at zero counts as around), below it."""
        if self.low is None or self.high is None:
            return "unknown"
        return "above" if self.low > 0 else "below" if self.high < 0 else "around"


def mean_std(values: Sequence[float]) -> MeanStd:
    """Mean and sample standard deviation, which divides by n - 1."""
    if not values:
        raise ValueError("expected at least one value for a mean, got none")
    return MeanStd(fmean(values), stdev(values) if len(values) > 1 else None, len(values))


def paired_difference(a: Mapping[int, float], b: Mapping[int, float]) -> PairedDifference | None:
    """Mean of a - b over the seeds that both have, with Student's t interval; None if they share none.

        mean ± t(n-1, 0.975) · s / √n, a 95 % interval

    s is the sample standard deviation of the n differences, which are taken as normal. Runs of one seed share their
    first weights and their batches, and a difference cancels what these do to both. Equal differences other than zero
    have an infinite interval: accuracies are counts, and two seeds agree to the digit by chance in about one of a
    hundred cases.
    """
    seeds = tuple(sorted(a.keys() & b.keys()))
    if not seeds:
        return None
    found = mean_std([a[seed] - b[seed] for seed in seeds])
    if found.std is None:
        return PairedDifference(found.mean, None, None, 1, seeds)
    if found.mean and found.std <= EQUAL * abs(found.mean):
        return PairedDifference(found.mean, -math.inf, math.inf, found.n, seeds, 1.0)
    from scipy.special import stdtr, stdtrit

    error = found.std / math.sqrt(found.n)
    half = float(stdtrit(found.n - 1, 0.975)) * error
    p = float(2 * stdtr(found.n - 1, -abs(found.mean) / error)) if error else 1.0
    return PairedDifference(found.mean, found.mean - half, found.mean + half, found.n, seeds, p)


def holm(values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values. The tests below α are all right with probability 1 - α."""
    found, largest = [0.0] * len(values), 0.0
    for place, i in enumerate(sorted(range(len(values)), key=lambda i: values[i])):
        largest = max(largest, min(1.0, (len(values) - place) * values[i]))
        found[i] = largest
    return found


def number(value: object) -> float | None:
    """What a record holds, if it is a finite number; None if not."""
    if isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST <= value <= LARGEST:
        return float(value)
    return None


def numbers(values: Sequence[object]) -> list[float | None]:
    """``number`` of each value; a plain column of floats or of integers is quick."""
    kinds = set(map(type, values))
    if kinds == {float} and math.isfinite(sum(values)):  # type: ignore[arg-type]
        return list(values)  # type: ignore[arg-type]
    return list(map(number, values))
