"""The runs of benchmarks/sets_study.py: what each was trained on, in which way, and with numbers tuned or not."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from setwise.records.statistics import PairedDifference, paired_difference

DATA = {
    "en-de-few": "English–German",
    "en-fr-few": "English–French",
    "en-de": "English–German, 29,000 lines",
    "en-fr": "English–French, 29,000 lines",
    "halves-few": "halves of CIFAR-10",
    "halves": "halves of CIFAR-10, 50,000 images",
}
WAYS = {
    "same": '`"same"`',
    "hard": '`"hard"`',
    "one-to-one": '`"one-to-one"`',
    "hard-soft": '`"hard"`, soft',
    "one-to-one-soft": '`"one-to-one"`, soft',
    "quadratic": '`"quadratic"`',
    "sparse": "row-wise, sparse",
    "assignment-entropy": "one-to-one, entropic",
    "assignment-sparse": "one-to-one, sparse",
}
SCENES = {"cold": "from the first step", "weak": "weak encoders"}
STAGES = ("tuned", "untuned")
Way = tuple[str, bool]  # its name, and whether it has a price
Runs = list[dict[str, Any]]
Ways = dict[Way, Runs]
SAME, HARD, ONE, QUADRATIC = ((name, False) for name in ("same", "hard", "one-to-one", "quadratic"))
SOFT = ("one-to-one-soft", False)


class Row(NamedTuple):
    """What a run was trained on."""

    scene: str
    missing: float
    wrong: float
    data: str
    group: int

    @property
    def parts(self) -> list[str]:
        """For people, one thing after the other."""
        shares = ((self.missing, "of items without a partner"), (self.wrong, "of sets wrong"))
        said = [f"{100 * share:.0f} % {what}" for share, what in shares if share]
        return [DATA[self.data], f"sets of {self.group}", *said, *filter(None, [SCENES.get(self.scene)])]

    @property
    def place(self) -> tuple[Any, ...]:
        """Its place among others."""
        return self.scene, self.missing, self.wrong, list(DATA).index(self.data), self.group


class Study(NamedTuple):
    """The runs of each way in each row: of every stage, and the trials that tuned them."""

    stages: dict[str, dict[Row, Ways]]
    trials: dict[Row, Ways]

    def tries(self, row: Row, way: Way) -> int:
        """In how many trials the way was tuned."""
        return len(self.trials.get(row, {}).get(way, []))


def study(path: Path) -> Study:
    """What is in the study's file so far. Tuned runs count with the numbers that won all trials that are there."""
    every = list(json.loads(path.read_text()).values()) if path.exists() else []
    stages, trials = {stage: _by_row(stage, every) for stage in STAGES}, _by_row("trial", every)
    for row, ways in stages["tuned"].items():
        for way, runs in ways.items():
            tried = trials.get(row, {}).get(way, [])
            won = max(tried, key=lambda one: one["final"]["recall1"])["changes"] if tried else None
            ways[way] = [run for run in runs if won is None or run["changes"] == won]
        stages["tuned"][row] = {way: runs for way, runs in ways.items() if runs}
    return Study(stages, trials)


def _by_row(stage: str, runs: Iterable[dict[str, Any]]) -> dict[Row, Ways]:
    rows: dict[Row, Ways] = {}
    for run in runs:
        if run["stage"] == stage:
            missing, wrong = (run.get(share, 0.0) for share in ("missing", "wrong"))
            row = Row(run.get("scene", ""), missing, wrong, run["data"], run["group"])
            rows.setdefault(row, {}).setdefault((run["way"], run.get("priced", False)), []).append(run)
    return dict(sorted(rows.items(), key=lambda one: one[0].place))


def values(ways: Ways, way: Way, measure: str = "recall1") -> dict[int, float]:
    """A measure in per cent, by seed."""
    return {run["seed"]: 100 * run["final"][measure] for run in ways.get(way, []) if measure in run["final"]}


def gain(ways: Ways, way: Way, other: Way = SAME, measure: str = "recall1") -> PairedDifference | None:
    """What a way adds to another one, seed by seed; None where they share no seed."""
    return paired_difference(values(ways, way, measure), values(ways, other, measure))


def name(way: Way) -> str:
    """The way, for people."""
    return f"{WAYS[way[0]]}{' at a price' if way[1] else ''}"


def from_to(counts: Iterable[int]) -> str:
    """The least and the most of some counts: "3", or "3 to 10"."""
    some = sorted(set(counts)) or [0]
    return " to ".join(map(str, dict.fromkeys((some[0], some[-1]))))


def machines(runs: Iterable[dict[str, Any]]) -> str:
    """Where the runs ran."""
    devices = {run["device"] for run in runs}
    return ", ".join(sorted(device if "NVIDIA" in device else f"CPU, {device}" for device in devices))
