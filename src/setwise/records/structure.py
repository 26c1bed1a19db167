"""The structure of a set during training: a few numbers for each epoch that was looked at, spectra of the last one.

A look is a fixed batch's spectra and the weights of its negatives (``setwise.runs.structure``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from setwise.records.statistics import numbers

MOST = 1e9  # of anything counted or measured here; beyond are broken records, whose sums could leave float64's range


@dataclass(frozen=True)
class Structure:
    """One look at a batch; None, or an empty spectrum, for what a record does not soundly hold. Shares in per cent."""

    spectrum: tuple[float, ...] = ()  # eigenvalues, the largest first, means of both views; of the last look only
    effective_rank: float | None = None  # likewise the mean of both views
    largest: float | None = None
    feature_rank: float | None = None  # of the encoder's features about their mean
    support: float | None = None
    negatives: float | None = None
    same_class_weight: float | None = None
    same_class: float | None = None


def effective_rank(eigenvalues: Sequence[float]) -> float | None:
    """exp(-Σ p·log p) of the shares p = λ / Σλ: how many directions are filled, from 1 to their number.

    Eigenvalues below zero are rounding and count as zero; None where nothing is above it.
    """
    positive = [value for value in eigenvalues if value > 0]
    total = sum(positive)
    if not positive:
        return None
    shares = [value / total for value in positive]
    return math.exp(-sum(p * math.log(p) for p in shares if p))


def columns_of_looks(history: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What a record keeps of the looks in a run's history: numbers as columns, the last look's spectra."""
    looks = [{"epoch": row.get("epoch"), **row["structure"]} for row in history if _is_look(row.get("structure"))]
    for look in looks:
        spectra = _spectra(look.get("eigenvalues"))
        ranks = [rank for spectrum in spectra if (rank := effective_rank(spectrum)) is not None]
        look["effective_rank"] = fmean(ranks) if ranks else None
        look["largest"] = fmean(spectrum[0] for spectrum in spectra) if spectra else None
    lists = {name: value for name, value in looks[-1].items() if isinstance(value, list)} if looks else {}
    names = dict.fromkeys(name for look in looks for name, value in look.items() if not isinstance(value, list))
    return {name: [look.get(name) for look in looks] for name in names} | lists


def read_structures(columns: object) -> dict[float, Structure]:
    """The looks in a record by epoch; what is missing, is not finite or cannot be is left out."""
    if not isinstance(columns, dict) or not isinstance(columns.get("epoch"), list):
        return {}
    epochs = numbers(columns["epoch"])

    def column(name: str, most: float = MOST, scale: float = 1.0) -> list[float | None]:
        values = numbers(columns[name]) if isinstance(columns.get(name), list) else []
        sound = [scale * value if value is not None and 0 <= value <= most else None for value in values]
        return (sound + [None] * len(epochs))[: len(epochs)]

    shares = (column(name, 1.0, 100.0) for name in ("same_class_weight", "same_class"))
    others = map(column, ("effective_rank", "largest", "feature_rank", "support", "negatives"))
    looks = [Structure((), *values) for values in zip(*others, *shares, strict=True)]
    spectra = _spectra(columns.get("eigenvalues"))
    if looks:
        looks[-1] = replace(looks[-1], spectrum=tuple(map(fmean, zip(*spectra, strict=False))))
    more = [look.support is not None and look.negatives is not None and look.support > look.negatives for look in looks]
    looks = [replace(look, support=None) if wrong else look for look, wrong in zip(looks, more, strict=True)]
    pairs = zip(epochs, looks, strict=True)
    return {epoch: look for epoch, look in pairs if epoch is not None and look != Structure()}


def _is_look(value: object) -> bool:
    return isinstance(value, dict) and bool(value)


def _spectra(views: object) -> list[list[float]]:
    """Each view's eigenvalues, the largest first; not those of a view that has anything but numbers."""
    found = []
    for view in views if isinstance(views, list) else ():
        values = numbers(view) if isinstance(view, list) else []
        sound = [value for value in values if value is not None and abs(value) <= MOST]
        if sound and len(sound) == len(values):
            found.append(sorted(sound, reverse=True))
    return found
