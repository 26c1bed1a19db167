"""Recorded runs: one run, all runs of many files, and mean curves."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self, TypeVar

from setwise.recipe import Recipe
from setwise.records.record import fields_from, read, recipe_from, recipe_text
from setwise.records.statistics import number, numbers
from setwise.records.structure import Structure, read_structures

R = TypeVar("R", bound="Run")
SHARES = re.compile(
    r".*accuracy|rank\d+|recall\d+.*|mean_average_precision"
)  # final numbers that reports show in per cent


@dataclass(frozen=True)
class Run:
    """A run as its record describes it."""

    path: str
    record: dict[str, Any] = field(repr=False)
    seed: int
    final: dict[str, float] = field(repr=False)  # its final numbers, accuracies and other shares in per cent

    @classmethod
    def of(cls, path: str, record: dict[str, Any]) -> Self:
        """The run of a record; ValueError if it was not evaluated, has no recipe or seed, or an impossible accuracy."""
        seed, final = record.get("seed"), record.get("final")
        if not isinstance(record.get("recipe"), dict) or isinstance(seed, bool) or not isinstance(seed, int):
            raise ValueError("expected a record with its recipe and its seed, got neither or one of them")
        if not isinstance(final, dict) or not final:
            raise ValueError("expected a run that was evaluated, got one without final numbers")
        found = {}
        for name, given in final.items():
            value = number(given)
            if name.endswith("accuracy") and given is not None and (value is None or not 0 <= value <= 1):
                raise ValueError(f"expected {name} to be a share, from 0 to 1, got {str(given)[:40]}")
            if value is not None:
                found[name] = 100 * value if SHARES.fullmatch(name) else value
        run = cls(path, record, seed, found)
        run.check()
        return run

    def check(self) -> None:
        """Raise unless its recipe can be read."""
        if not self.fields:
            raise ValueError("expected a record with its recipe, got an empty one")

    @cached_property
    def recipe_text(self) -> str:
        """Its recipe as JSON."""
        return recipe_text(self.record)

    @property
    def recipe(self) -> Recipe:
        """Its recipe. Fields that are younger than the record have their defaults."""
        return recipe_from(self.recipe_text)

    @cached_property
    def fields(self) -> dict[str, Any]:
        """Every field of its recipe by its path, "encoder.name"; one dictionary for all seeds."""
        return fields_from(self.recipe_text)

    @cached_property
    def structures(self) -> dict[float, Structure]:
        """The structure of a batch by epoch, where its record has it."""
        return read_structures(self.record.get("structure"))

    def measure(self, name: str) -> float | None:
        """A final number; accuracies and other shares in per cent."""
        return self.final.get(name)

    def curve(self, *names: str) -> dict[float, float]:
        """The first of these measures that the record has, by epoch, where it is finite."""
        columns = self.record.get("epochs")
        if not isinstance(columns, dict):
            return {}
        column = next((columns[name] for name in names if name in columns), None)
        if not isinstance(column, list) or not isinstance(columns.get("epoch"), list):
            return {}
        pairs = zip(numbers(columns["epoch"]), numbers(column), strict=False)
        return {epoch: value for epoch, value in pairs if epoch is not None and value is not None}


def files_below(folder: Path) -> Iterator[Path]:
    """All files in a folder and its subfolders, sorted, without hidden ones."""
    try:
        entries = sorted((entry for entry in os.scandir(folder) if entry.name[0] != "."), key=lambda entry: entry.name)
    except OSError:  # not there, or another user's
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from files_below(folder / entry.name)
        elif entry.is_file():
            yield folder / entry.name


def read_runs(paths: Iterable[Path], kind: type[R], top: Path | None = None) -> tuple[list[R], list[str]]:
    """The runs of these files, named by their paths below ``top``, and the files that are no such run, with reasons."""
    runs, aside = [], []
    for path in paths:
        place = str(path) if top is None else path.relative_to(top).as_posix()
        try:
            runs.append(kind.of(place, read(path)))
        except (ValueError, RecursionError) as error:
            aside.append(f"{place}: {str(error).replace(str(path), path.name)}")  # pages are for other machines
    return runs, aside


@contextmanager
def pause_collection() -> Iterator[None]:
    """Pause Python's garbage collector, which would walk through all records again and again. Also a decorator."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def mean_curve(curves: Iterable[Mapping[float, float]]) -> list[tuple[float, float]]:
    """(epoch, mean over the curves) where every curve has a value: a mean over changing seeds would jump."""
    found = list(curves)
    shared = sorted(set.intersection(*map(set, found))) if found else []
    # Not fmean, which raises where the sum of losses that went astray leaves float64's range.
    return [(epoch, sum(one[epoch] for one in found) / len(found)) for epoch in shared]
