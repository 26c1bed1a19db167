"""Recorded runs: one run, many below a folder, and means over those that differ in the seed alone."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from setwise.recipe import Recipe
from setwise.records.record import check_final, fields_from, read, recipe_from, recipe_text
from setwise.records.statistics import MeanStd, mean_std, number, numbers
from setwise.records.structure import Structure, read_structures

R = TypeVar("R")
SHARES = re.compile(r".*accuracy|rank\d+|mean_average_precision")  # measures that are shown in per cent


@dataclass(frozen=True)
class Run:
    """A run as its record describes it."""

    path: str
    record: dict[str, Any] = field(repr=False)
    seed: int

    @cached_property
    def recipe_text(self) -> str:
        """Its recipe as JSON."""
        return recipe_text(self.record)

    @property
    def recipe(self) -> Recipe:
        """Its recipe; fields that are younger than the record have their defaults."""
        return recipe_from(self.recipe_text)

    @cached_property
    def fields(self) -> dict[str, Any]:
        """Every field of its recipe by its path, "encoder.name"; one dictionary for all seeds."""
        return fields_from(self.recipe_text)

    @cached_property
    def structures(self) -> dict[float, Structure]:
        """What its record holds of the structure of a batch, by epoch."""
        return read_structures(self.record.get("structure"))

    def measure(self, name: str) -> float | None:
        """A final number; accuracies and other shares in per cent."""
        value = number(self.record["final"].get(name))
        return value if value is None or not SHARES.fullmatch(name) else 100 * value

    def curve(self, *names: str) -> dict[float, float]:
        """By epoch, the first of these measures that the record has, where it is finite."""
        columns = self.record.get("epochs")
        if not isinstance(columns, dict):
            return {}
        column = next((columns[name] for name in names if name in columns), None)
        if not isinstance(column, list) or not isinstance(columns.get("epoch"), list):
            return {}
        pairs = zip(numbers(columns["epoch"]), numbers(column), strict=False)
        return {epoch: value for epoch, value in pairs if epoch is not None and value is not None}


def files_below(folder: Path) -> Iterator[Path]:
    """All files in a folder and its folders, sorted, but hidden ones."""
    try:
        entries = sorted((entry for entry in os.scandir(folder) if entry.name[0] != "."), key=lambda entry: entry.name)
    except OSError:  # not there, or another user's
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from files_below(folder / entry.name)
        elif entry.is_file():
            yield folder / entry.name


def read_runs(paths: Iterable[Path], make: Callable[[Run], R], top: Path | None = None) -> tuple[list[R], list[str]]:
    """What ``make`` makes of each run, and the files that are no record of one, or that it refuses, with the reason.

    Runs are named by their paths below ``top``.
    """
    found, aside = [], []
    collecting = gc.isenabled()
    gc.disable()  # it would look at all records again and again
    try:
        for path in paths:
            place = str(path) if top is None else path.relative_to(top).as_posix()
            try:
                found.append(make(read_run(path, place)))
            except (ValueError, RecursionError) as error:
                aside.append(f"{place}: {str(error).replace(str(path), path.name)}")  # pages are for other machines
    finally:
        if collecting:
            gc.enable()
    return found, aside


def read_run(path: Path, place: str) -> Run:
    """The run of a record; ValueError for a file that is none, or of a run that was not evaluated."""
    record = read(path)
    seed = record.get("seed")
    if not isinstance(record.get("recipe"), dict) or isinstance(seed, bool) or not isinstance(seed, int):
        raise ValueError("expected a record with its recipe and its seed, got neither or one of them")
    check_final(record)
    return Run(place, record, seed)


def by_seed(runs: Iterable[Run], measure: str) -> dict[int, float]:
    """A final measure of each seed that has it."""
    found = {run.seed: run.measure(measure) for run in runs}
    return {seed: value for seed, value in found.items() if value is not None}


def mean_of(values: Mapping[int, float]) -> MeanStd | None:
    """Mean and deviation over the seeds; None without any."""
    return mean_std(list(values.values())) if values else None


def mean_curve(curves: Iterable[Mapping[float, float]]) -> list[tuple[float, float]]:
    """(epoch, mean over the curves) where every curve has a value: a mean over changing seeds would jump."""
    found = list(curves)
    shared = sorted(set.intersection(*map(set, found))) if found else []
    # Not fmean, which raises where the sum of losses that went astray leaves float64's range.
    return [(epoch, sum(one[epoch] for one in found) / len(found)) for epoch in shared]
