"""The report of any runs: what differs between them, what they reached, and paired differences.

Runs that differ in the seed alone are one group. Groups differ in the fields of their recipes, all or those asked for.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
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
KINDS = ("method.name", "data.source", "encoder.name", "objective.loss")  # of fields, those that say most
# Of the fields of data, those that decide what is tested on: numbers on other items are not compared.
TESTED = ("source", "of", "first", "second", "test", "validation")
MANY = 6  # fields: where more than so many differ, as few as tell the runs apart are named
LED = 3  # data sets whose best is said first
PICTURED = 20  # groups in a picture, the best; the table has all


@dataclass(frozen=True)
class Group:
    """Runs that differ in the seed alone, and the values that tell them from other groups."""

    values: tuple[Any, ...]
    runs: tuple[Run, ...]

    def by_seed(self, measure: str) -> dict[int, float]:
        """A measure of each seed that has it."""
        return {run.seed: run.final[measure] for run in self.runs if measure in run.final}

    @property
    def tested_on(self) -> tuple[Any, ...]:
        """The values of the fields that decide what its runs were tested on."""
        return tuple(self.runs[0].fields.get(f"data.{name}") for name in TESTED)

    def mean(self, measure: str) -> MeanStd | None:
        """Over the seeds; None if there are none."""
        values = list(self.by_seed(measure).values())
        return mean_std(values) if values else None


def record_files(places: Iterable[Path]) -> list[Path]:
    """The files of all records at or below ``places``."""
    paths: list[Path] = []
    for place in places:
        if not place.exists():
            raise ValueError(f"expected runs at {place}, got no such file or folder; `setwise pretrain` makes some")
        below = (path for path in files_below(place) if path.name == records.FILE or path.match("seed-*.json"))
        paths += [place] if place.is_file() else below
    return paths


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
    term's weight stays. Where more than ``MANY`` differ, those that others go along with are left out too.
    """
    recipes = list({id(run.fields): run.fields for run in runs}.values())
    paths = dict.fromkeys(path for fields in recipes for path in fields if path not in LABELS)
    every = [path for path in paths if len({repr(fields.get(path)) for fields in recipes}) > 1]
    few = [path for path in every if _term_of(path) or len({repr(f[path]) for f in recipes if path in f}) > 1]
    found = few if len(group_by(runs, few)) == len(group_by(runs, every)) else every
    return found if len(found) <= MANY else _fewest(recipes, found)


def _fewest(recipes: Sequence[Mapping[str, Any]], paths: Sequence[str]) -> list[str]:
    """The fields that tell as many recipes apart as all do: kinds and terms first, then whatever divides them most."""
    values = {path: [repr(fields.get(path)) for fields in recipes] for path in paths}
    kept = [path for path in paths if path in KINDS or _term_of(path)]
    chosen = kept[:]

    def distinct(*some: str) -> int:
        return len(set(zip(*(values[path] for path in some), strict=True)))

    whole = distinct(*paths)
    while not chosen or distinct(*chosen) < whole:
        chosen.append(max((path for path in paths if path not in chosen), key=lambda path: distinct(*chosen, path)))
    for path in chosen[:]:
        rest = [other for other in chosen if other != path]
        chosen = rest if path not in kept and rest and distinct(*rest) == whole else chosen
    return [path for path in paths if path in chosen]


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


def groups_table(
    groups: Sequence[Group], paths: Sequence[str], measures: Sequence[str], names: Sequence[str] = ()
) -> Table:
    """A row for each group: its values, the seeds, what it reached, and its difference to the first on the same data.

    ``names`` of the groups stand in place of their values, where these are too many for a page.
    """
    rows: list[list[Cell]] = []
    for i, (group, first) in enumerate(zip(groups, firsts(groups), strict=True)):
        values: list[Cell] = [None if value is None else str(value) for value in group.values] or ["all"]
        values = [names[i]] if names else values
        cells: list[Cell] = [len(group.runs), group.mean(measures[0]), _difference(group, first, measures[0])]
        rows.append([*values, *cells, *(group.mean(name) for name in measures[1:])])
    short = [_name_of(p) if _unique(p, paths) else p for p in paths if not names] or ["runs"]
    main = measures[0].replace("_", " ")
    columns = [*short, "n", main, "difference to the first", *(name.replace("_", " ") for name in measures[1:])]
    return Table("runs", columns, rows, "What the runs reached", NOTE, wrap=True)


def _unique(path: str, paths: Sequence[str]) -> bool:
    name = _name_of(path)
    return sum(_name_of(other) == name for other in paths) == 1 and name != "weight"


def firsts(groups: Sequence[Group]) -> list[Group]:
    """What each group is compared with: the first that was tested on the same items."""
    found: dict[str, Group] = {}
    return [found.setdefault(repr(group.tested_on), group) for group in groups]


def _difference(group: Group, first: Group, measure: str) -> PairedDifference | None:
    return None if group is first else paired_difference(group.by_seed(measure), first.by_seed(measure))


def labels(groups: Sequence[Group], paths: Sequence[str]) -> list[str]:
    """Each group's values in words; where more than ``MANY`` fields differ, only its unusual ones.

    Then a field goes without saying where its part is not in the recipe, such as an option of another encoder.
    """
    usual = usual_values(groups, paths) if len(paths) > MANY else {}
    found = []
    for group in groups:
        fields = sorted(zip(paths, group.values, strict=True), key=lambda field: field[0] not in KINDS)
        unusual = [(path, value) for path, value in fields if path not in usual or repr(value) != repr(usual[path])]
        here = [(path, value) for path, value in unusual if not usual or path in group.runs[0].fields]
        found.append([", ".join(field_in_words(*field) for field in some) for some in (here, unusual)])
    short = [words for words, _ in found]
    different = short if len({*short}) == len(groups) else [words for _, words in found]
    return [words or ("the usual" if usual else "all") for words in different]


def usual_values(groups: Sequence[Group], paths: Sequence[str]) -> dict[str, Any]:
    """The value that most groups have, of each field. A group whose recipe has no such field does not count.

    But it counts for a term's weight: most groups may have no such term.
    """
    usual = {}
    for path, column in zip(paths, zip(*(group.values for group in groups), strict=True), strict=True):
        having = [v for v, group in zip(column, groups, strict=True) if path in group.runs[0].fields or _term_of(path)]
        (word, _), *_ = Counter(map(repr, having)).most_common(1)
        usual[path] = next(value for value in having if repr(value) == word)
    return usual


def field_in_words(path: str, value: Any) -> str:
    """A field and its value in words."""
    name = _name_of(path)
    return f"no {name}" if value is None else f"{name} {value:g}" if _is_number(value) else f"{name} {value}"


def _name_of(path: str) -> str:
    """A field in a word: "encoder" for encoder.name."""
    before, _, last = path.rpartition(".")
    return _term_of(path) or (before.rpartition(".")[2] if last == "name" and before else last)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


@pause_collection()
def report_runs(places: Sequence[Path], out: Path, *, where: Sequence[str] = (), by: Sequence[str] = ()) -> list[Path]:
    """Write the page and its table of any runs; the files written, the page first."""
    runs, aside = read_runs(record_files(places), Run)
    runs = chosen(runs, where)
    if not runs:
        also = f" ({len(aside)} set aside, the first: {aside[0]})" if aside else ""
        raise ValueError(
            f"expected runs with final numbers, got none{also}; `setwise pretrain` without --no-evaluate measures them"
        )
    paths = [path_of(name, runs) for name in by] or differing(runs)
    groups, measures = group_by(runs, paths), measures_of(runs)
    table, names = groups_table(groups, paths, measures), labels(groups, paths)
    page = Page(f"{len(runs)} runs", lead=_lead(groups, names, measures[0]))
    best = _best(groups, measures[0])
    alike = all(first is groups[0] for first in firsts(groups))
    short = [_unlike(group, groups[0], paths) for group in groups] if alike and len(paths) <= MANY else names
    if rows := _pictured(groups, short, best, measures[0]):
        note = f"Differences in {measures[0].replace('_', ' ')}, seed by seed, with 95 % intervals."
        note += f" The best {len(best)} of {len(groups)}; the table has all." if len(best) < len(groups) else ""
        title = f"Against {names[0]}" if alike else "Against the first on the same data"
        page.intervals(title, rows, other="", note=note)
    tables, many = [table, *speedrun_tables(runs), *own_tables(runs)], len(paths) > MANY
    few = groups_table(groups, paths, measures[:SHOWN], names if many else ())
    left = len(measures) - SHOWN
    more = f" runs.csv has {left} more {'number' if left == 1 else 'numbers'} of each." if left > 0 else ""
    if many:
        usual = ", ".join(
            field_in_words(path, value) for path, value in usual_values(groups, paths).items() if value is not None
        )
        more += f" The usual, unless a row says another: {usual}. runs.csv has a column for each."
    for one in (replace(few, note=few.note + more), *tables[1:]):
        one.onto(page)
    page.heading("Learning curves")
    series = {names[i]: mean_curve(run.curve("loss") for run in groups[i].runs) for i in best}
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


def _best(groups: Sequence[Group], measure: str) -> list[int]:
    """The first group, which others are compared to, and the best of the others, if they are too many to look at."""
    means = {i: mean.mean for i, group in enumerate(groups) if i and (mean := group.mean(measure))}
    best = range(len(groups)) if len(groups) <= PICTURED else sorted(means, key=lambda i: -means[i])[: PICTURED - 1]
    return list(dict.fromkeys([0, *best]))


def _unlike(group: Group, first: Group, paths: Sequence[str]) -> str:
    """Its values that the first does not have, in words."""
    triples = zip(paths, group.values, first.values, strict=True)
    return ", ".join(field_in_words(path, value) for path, value, other in triples if repr(value) != repr(other))


def _lead(groups: Sequence[Group], names: Sequence[str], measure: str) -> str:
    """Which group did best, of those that were tested on the same items, and whether the first may be as good."""
    best: dict[str, tuple[MeanStd, str, PairedDifference | None]] = {}
    for group, first, name in zip(groups, firsts(groups), names, strict=True):
        mean, on = group.mean(measure), repr(group.tested_on)
        if mean is not None and (on not in best or mean.mean > best[on][0].mean):
            best[on] = mean, name, _difference(group, first, measure)
    unclear = ", but these seeds cannot tell it from the first"
    reached = [
        f"{name}: {measure.replace('_', ' ')} {shown(mean)}{unclear if gain and gain.side == 'around' else ''}."
        for mean, name, gain in best.values()
    ]
    if len(groups) == 1:
        return "".join(f"What was reached? {words.removeprefix(f'{names[0]}: ')}" for words in reached)
    more = f" Other data sets ({len(reached) - LED}): see below." if len(reached) > LED else ""
    return f"Which did best? {' '.join(reached[:LED])}{more}" if reached else ""


def _pictured(groups: Sequence[Group], names: Sequence[str], some: Sequence[int], measure: str) -> list[Interval]:
    rows, compared = [], firsts(groups)
    for i in some[1:]:
        if (found := _difference(groups[i], compared[i], measure)) is not None:
            bounds = None if found.low is None or found.high is None else (found.low, found.high)
            rows.append(Interval(names[i], shown(found), found.mean, bounds))
    return rows
