"""The report of any runs: what differs between them, what they reached, and paired differences.

Runs that differ in the seed alone are one group. Groups differ in the fields of their recipes, all or those asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import setwise.records as records
from setwise.records.run import Run, files_below, mean_curve, pause_collection, read_runs
from setwise.records.statistics import MeanStd, PairedDifference, mean_std, paired_difference
from setwise.registry import known
from setwise.report.chart import Interval
from setwise.report.page import Page
from setwise.report.speedrun import speedrun_tables
from setwise.report.tables import NOTE, Cell, Table, own_tables, shown

FIRST = ("probe_accuracy", "held_out_accuracy", "test_accuracy", "recall1")  # the first that is there answers
LABELS = ("about",)  # fields that decide nothing
SHOWN = 4  # final numbers on the page, which is no wider; the files have all


@dataclass(frozen=True)
class Group:
    """Runs that differ in the seed alone, and the values that tell them from other groups."""

    values: tuple[Any, ...]
    runs: tuple[Run, ...]

    def by_seed(self, measure: str) -> dict[int, float]:
        """A measure of each seed that has it."""
        return {run.seed: run.final[measure] for run in self.runs if measure in run.final}

    def mean(self, measure: str) -> MeanStd | None:
        """Over the seeds; None if there are none."""
        values = list(self.by_seed(measure).values())
        return mean_std(values) if values else None


def runs_at(places: Iterable[Path]) -> tuple[list[Run], list[str]]:
    """All runs whose records are at or below ``places``, and the files there that cannot be read, with reasons."""
    paths: list[Path] = []
    for place in places:
        if not place.exists():
            raise ValueError(f"expected runs at {place}, got no such file or folder; `setwise pretrain` makes some")
        below = (path for path in files_below(place) if path.name == records.FILE or path.match("seed-*.json"))
        paths += [place] if place.is_file() else below
    return read_runs(paths, Run)


def chosen(runs: Sequence[Run], where: Sequence[str]) -> list[Run]:
    """The runs whose fields have these values: "objective.temperature=0.2"."""
    for words in where:
        name, equals, value = words.partition("=")
        if not equals:
            raise ValueError(f"expected --where FIELD=VALUE, got {words!r}; encoder.name=conv4 is one")
        path = path_of(name, runs)
        runs = [run for run in runs if str(run.fields.get(path)).lower() == value.lower()]
    return list(runs)


def path_of(name: str, runs: Sequence[Run]) -> str:
    """The field that ``name``, its path or the last part of it, stands for."""
    paths = {path: None for run in runs for path in run.fields}
    near = sorted((path for path in paths if path == name or path.endswith(f".{name}")), key=lambda x: x.count("."))
    if not near:
        raise ValueError(f"expected a field of these runs' recipes{known(name, paths)}")
    return near[0]


def differing(runs: Sequence[Run]) -> list[str]:
    """The fields that do not have the same value in all runs, as few as tell the same runs apart.

    Where a part is not in all recipes, such as a term or an encoder's own option, its fields go without saying; but a
    term's weight stays.
    """
    recipes = list({id(run.fields): run.fields for run in runs}.values())
    paths = dict.fromkeys(path for fields in recipes for path in fields if path not in LABELS)
    every = [path for path in paths if len({repr(fields.get(path)) for fields in recipes}) > 1]
    few = [path for path in every if _term_of(path) or len({repr(f[path]) for f in recipes if path in f}) > 1]
    return few if len(group_by(runs, few)) == len(group_by(runs, every)) else every


def _term_of(path: str) -> str | None:
    """The set-level term whose weight this field is."""
    *_, before, name, last = ["", "", *path.split(".")]
    return name if (before, last) == ("terms", "weight") else None


def group_by(runs: Sequence[Run], paths: Sequence[str]) -> list[Group]:
    """The runs by the values of these fields, in the order in which they come."""
    keys: dict[int, str] = {}
    sorted_in: dict[str, list[Run]] = {}
    for run in runs:
        if id(run.fields) not in keys:
            keys[id(run.fields)] = repr([run.fields.get(path) for path in paths])
        sorted_in.setdefault(keys[id(run.fields)], []).append(run)
    return [Group(tuple(members[0].fields.get(p) for p in paths), tuple(members)) for members in sorted_in.values()]


def measures_of(runs: Sequence[Run]) -> list[str]:
    """The final numbers of any of the runs; the one that a report compares comes first."""
    names = dict.fromkeys(name for run in runs for name in run.final)
    return sorted(names, key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST))


def groups_table(groups: Sequence[Group], paths: Sequence[str], measures: Sequence[str]) -> Table:
    """A row for each group: its values, the seeds, what it reached, and its difference to the first group."""
    rows: list[list[Cell]] = []
    for group in groups:
        values: list[Cell] = [None if value is None else str(value) for value in group.values] or ["all"]
        cells: list[Cell] = [len(group.runs), group.mean(measures[0]), _difference(group, groups[0], measures[0])]
        rows.append([*values, *cells, *(group.mean(name) for name in measures[1:])])
    short = [_term_of(p) or (p.rpartition(".")[2] if _unique(p, paths) else p) for p in paths] or ["runs"]
    main = measures[0].replace("_", " ")
    columns = [*short, "n", main, "difference to the first", *(name.replace("_", " ") for name in measures[1:])]
    return Table("runs", columns, rows, "What the runs reached", NOTE, wrap=True)


def _unique(path: str, paths: Sequence[str]) -> bool:
    last = path.rpartition(".")[2]
    return sum(other.rpartition(".")[2] == last for other in paths) == 1 and last not in ("name", "weight")


def _difference(group: Group, first: Group, measure: str) -> PairedDifference | None:
    return None if group is first else paired_difference(group.by_seed(measure), first.by_seed(measure))


def label(group: Group, paths: Sequence[str]) -> str:
    """Its values in words."""
    words = []
    for path, value in zip(paths, group.values, strict=True):
        name = _term_of(path) or path.rpartition(".")[2]
        words.append(f"no {name}" if value is None else f"{name} {value:g}" if _is_number(value) else f"{name} {value}")
    return ", ".join(words) or "all"


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


@pause_collection()
def report_runs(places: Sequence[Path], out: Path, *, where: Sequence[str] = (), by: Sequence[str] = ()) -> list[Path]:
    """Write the page and its table of any runs; the files written, the page first."""
    runs, aside = runs_at(places)
    runs = chosen(runs, where)
    if not runs:
        also = f" ({len(aside)} set aside, the first: {aside[0]})" if aside else ""
        raise ValueError(
            f"expected runs with final numbers, got none{also}; `setwise pretrain` without --no-evaluate measures them"
        )
    paths = [path_of(name, runs) for name in by] or differing(runs)
    groups, measures = group_by(runs, paths), measures_of(runs)
    table = groups_table(groups, paths, measures)
    page = Page(f"{len(runs)} runs", lead=_lead(groups, paths, measures[0]))
    if len(groups) > 1:
        note = f"Differences in {measures[0].replace('_', ' ')}, seed by seed, with 95 % intervals."
        page.intervals(f"Against {label(groups[0], paths)}", _pictured(groups, paths, measures[0]), other="", note=note)
    tables = [table, *speedrun_tables(runs), *own_tables(runs)]
    few = groups_table(groups, paths, measures[:SHOWN])
    more = f" runs.csv has {len(measures) - SHOWN} more numbers of each." if len(measures) > SHOWN else ""
    for one in (replace(few, note=few.note + more), *tables[1:]):
        one.onto(page)
    page.heading("Learning curves")
    series = {label(group, paths): mean_curve(run.curve("loss") for run in group.runs) for group in groups}
    page.curves("loss", series, x="epoch", y="loss, mean over the seeds")
    page.heading("Where the numbers come from")
    page.details(f"{len(runs)} records", "\n".join(f"{run.path}: seed {run.seed}" for run in runs))
    if aside:
        page.details(f"{len(aside)} files set aside", "\n".join(aside))
        print(f"setwise: {len(aside)} files set aside, the end of the page says why", file=sys.stderr)
    files = [out / "index.html"]
    out.mkdir(parents=True, exist_ok=True)
    page.write(files[0])
    for one in tables:
        for end, text in (("md", one.markdown()), ("csv", one.csv())):
            files.append(out / f"{one.name}.{end}")
            files[-1].write_text(text, encoding="utf-8")
    return files


def _lead(groups: Sequence[Group], paths: Sequence[str], measure: str) -> str:
    means = [(mean.mean, group, mean) for group in groups if (mean := group.mean(measure))]
    if not means:
        return ""
    _, best, mean = max(means, key=lambda found: found[0])
    reached = f"{measure.replace('_', ' ')} {shown(mean)}."
    return f"Which did best? {label(best, paths)}: {reached}" if len(groups) > 1 else f"What was reached? {reached}"


def _pictured(groups: Sequence[Group], paths: Sequence[str], measure: str) -> list[Interval]:
    rows = []
    for group in groups[1:]:
        if (found := _difference(group, groups[0], measure)) is not None:
            bounds = None if found.low is None or found.high is None else (found.low, found.high)
            rows.append(Interval(label(group, paths), shown(found), found.mean, bounds))
    return rows
