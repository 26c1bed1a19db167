"""Tables of benchmarks/sets_study.py's runs, which readme.py puts on the page of sets."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from setwise.records.statistics import mean_std, paired_difference
from setwise.report.tables import Cell, shown

DATA = {
    "en-de": "English–German, 29,000 lines",
    "en-fr": "English–French, 29,000 lines",
    "en-de-few": "English–German, 4,096 lines",
    "en-fr-few": "English–French, 4,096 lines",
    "halves": "halves of CIFAR-10",
}
WAYS = {
    "same": '`"same"`',
    "hard": '`"hard"`',
    "one-to-one": '`"one-to-one"`',
    "quadratic": '`"quadratic"`',
    "sparse": "row-wise, sparse",
    "assignment-entropy": "one-to-one, entropic",
    "assignment-sparse": "one-to-one, sparse",
}
SCENES = {"cold": "from the first step", "weak": "weak encoders"}
STAGES = {
    "tuned": "Temperature, epochs and price chosen for each way, in {trials} trials on validation data",
    "untuned": "With the recipe's own numbers, nothing tuned",
}
MEASURES = {"recall1": "recall@1, %", "aligned": "partners found inside sets, %"}
UNTUNED_PRICE = "-0.3"
Way = tuple[str, bool]  # its name, and whether it has a price


class Row(NamedTuple):
    """What a run of benchmarks/sets_study.py was trained on."""

    scene: str
    missing: float
    wrong: float
    data: str
    group: int

    @property
    def kind(self) -> str:
        """The table that it belongs to."""
        return "other" if self.scene else "missing" if self.missing else "wrong" if self.wrong else "plain"

    def __str__(self) -> str:
        """For people."""
        shares = ((self.missing, "of items without a partner"), (self.wrong, "of sets wrong"))
        parts = [
            DATA[self.data],
            f"sets of {self.group}",
            *(f"{share:.0%} {what}" for share, what in shares if share),
        ]
        return ", ".join(filter(None, [*parts, SCENES.get(self.scene, "")]))


Ways = dict[Way, list[dict[str, Any]]]


def runs_of(stage: str, runs: Iterable[dict[str, Any]]) -> dict[Row, Ways]:
    """The runs of each way in each row."""
    rows: dict[Row, Ways] = {}
    for run in runs:
        if run["stage"] == stage:
            shares = (run.get(name, 0.0) for name in ("missing", "wrong"))
            row = Row(run.get("scene", ""), *shares, run["data"], run["group"])
            rows.setdefault(row, {}).setdefault((run["way"], run.get("priced", False)), []).append(run)
    return dict(sorted(rows.items()))


def tables_of_sets(path: Path) -> str:
    """Which truth is best where only sets are known: what there is in the study's file."""
    every = json.loads(path.read_text()).values() if path.exists() else ()
    parts, trials = [], runs_of("trial", every)
    made = _from_to(len(runs) for ways in trials.values() for runs in ways.values())
    for stage, about in STAGES.items():
        rows = runs_of(stage, every)
        if not rows:
            continue
        names = {run["device"] for ways in rows.values() for runs in ways.values() for run in runs}
        where = ", ".join(sorted(name if "NVIDIA" in name else f"CPU, {name}" for name in names))
        parts.append(f"{about.format(trials=made)} ({where}):")
        for kind in ("plain", "missing", "wrong", "other"):
            some = {row: ways for row, ways in rows.items() if row.kind == kind}
            parts += [_sets_table(some, measure) for measure in MEASURES]
        parts.append(_alone_table(rows, trials))
    return "\n\n".join(filter(None, parts)) or "Not run yet: `python benchmarks/sets_study.py` makes the runs."


def _from_to(counts: Iterable[int]) -> str:
    """The least and the most of some counts: "3", or "3 to 10"."""
    some = sorted(set(counts)) or [0]
    return " to ".join(map(str, dict.fromkeys((some[0], some[-1]))))


def _name(way: Way) -> str:
    return f"{WAYS[way[0]]}{' at a price' if way[1] else ''}"


def _sets_table(rows: dict[Row, Ways], measure: str) -> str:
    """The measure of "same", and what the other ways add to it, seed by seed; "" where there is none."""
    table: list[list[Cell]] = []
    same, hard, one, quadratic = ((name, False) for name in ("same", "hard", "one-to-one", "quadratic"))
    present = {way for ways in rows.values() for way in ways}
    others = [(name, priced) for name in WAYS for priced in (False, True) if (name, priced) in present - {same}]
    compared = [(way, same) for way in others]
    compared += [pair for pair in ((one, hard), (quadratic, one)) if present.issuperset(pair)]
    for row, ways in rows.items():
        values = {
            way: {run["seed"]: 100 * run["final"][measure] for run in runs if measure in run["final"]}
            for way, runs in ways.items()
        }
        if not values.get(same):
            continue
        gains = [paired_difference(values.get(a, {}), values.get(b, {})) for a, b in compared]
        seeds = _from_to([len(values[same]), *(gain.n for gain in gains if gain is not None)])
        table.append([str(row), seeds, mean_std([*values[same].values()]), *gains])
    columns = [MEASURES[measure], "seeds", _name(same)]
    columns += [f"{_name(a)} adds" if b == same else f"{_name(a)} − {_name(b)}" for a, b in compared]
    return markdown(columns, table) if table else ""


def _alone_table(rows: dict[Row, Ways], trials: dict[Row, Ways]) -> str:
    """How well "no partner" is known, at the price of sw.align that was best for it in the trial that was chosen."""
    table: list[list[Cell]] = []
    for row, ways in rows.items():
        for way, runs in ways.items() if row.missing else ():
            tried = [one for one in trials.get(row, {}).get(way, []) if one["changes"] == runs[0]["changes"]]
            prices = tried[0]["final"]["alone"] if tried else {UNTUNED_PRICE: [1.0, 1.0]}
            price = max(prices, key=lambda price: _f1(*prices[price]))
            both = zip(*(run["final"]["alone"][price] for run in runs), strict=True)
            means = [mean_std([100 * x for x in values]) for values in both]
            table.append([str(row), _name(way), price, *means, str(len(runs))])
    columns = ("no partner", "truth in training", "price of `sw.align`", "precision, %", "recall, %", "seeds")
    return markdown(columns, table) if table else ""


def _f1(precision: float, recall: float) -> float:
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def markdown(columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """A table."""
    lines = [columns, ["---"] * len(columns), *([shown(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
