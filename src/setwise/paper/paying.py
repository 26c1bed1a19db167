"""What a set-level term adds at every level of every factor, both sides tuned: paper/factors.py's map in numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from setwise.paper.claims import GOAL, LEVEL
from setwise.paper.collected import Run
from setwise.paper.factors import AGAIN, BASE, LATER, LEVELS, SEEDS, TEMPERATURE, TERMS, TRIED, Level, Point
from setwise.paper.figures import count
from setwise.paper.numbers import word
from setwise.paper.objectives import weight_of
from setwise.paper.tuned import LABELS, Setting
from setwise.records.statistics import MeanStd, PairedDifference, holm, mean_std, paired_difference
from setwise.report.chart import Interval
from setwise.report.tables import NOTE, Cell, Table, shown

EXPLAINED = (
    f"SimCLR with the term minus SimCLR, Conv-4. At each level both had {len(TRIED)} trials of one seed on validation "
    f"images (temperature; weight of the term); the best of each has {SEEDS} fresh seeds on the test images, paired. "
    f"A gain of {GOAL:g} point or more is tested again, with {AGAIN} other seeds; 200 epochs are those of the tuned "
    "objectives, five seeds and five others."
)
PICTURED = (
    f"{EXPLAINED} Mean and 95 % interval, coloured where the interval excludes zero. Hollow: the mean of the seeds "
    "that tested a gain again. At a temperature that is not tuned, only the weight of the term was chosen."
)
TABLED = (
    f"{EXPLAINED} Holm: the difference survives Holm's correction for all levels where the temperature was chosen. "
    "Changed of the released recipe everywhere: "
    + ", ".join(f"{path.rpartition('.')[2].replace('_', ' ')} {value:g}" for path, value in list(BASE.items())[:-1])
    + "."
)


@dataclass(frozen=True, eq=False)
class Gain:
    """What a term adds at a level, on the map's seeds; a gain of a point or more is measured on other seeds, too."""

    level: Level
    term: str
    plain: MeanStd | None  # SimCLR's accuracy
    chosen: tuple[Run, Run] | None  # the best trial of each, or a test of it where there was nothing to choose
    first: PairedDifference | None
    again: PairedDifference | None

    @property
    def where(self) -> str:
        """In words: "QARe, batch 16"."""
        return f"{LABELS[self.term]}, {self.level.factor} {self.level.label}"


class Map:
    """All that was run of the map on one data set."""

    def __init__(self, data: str, runs: Sequence[Run], tuned: Setting | None = None) -> None:
        """``tuned``: Conv-4's objectives, tuned for 200 epochs."""
        self.data, self._setting = data, tuned
        self.runs = [run for run in runs if run.point is not None and run.data == data]
        self._by_point: dict[Point, dict[int, Run]] = {}
        for run in self.runs:
            assert run.point is not None
            self._by_point.setdefault(run.point, {})[run.seed] = run

    def best(self, level: Level, term: str) -> int | None:
        """The trial with the best accuracy on validation images, the first of equals; None before all are made."""
        numbers = level.numbers(term)
        if len(numbers) == 1:
            return numbers[0]
        accuracies = []
        for number in numbers:
            run = self._trial(level, term, number)
            if run is None or level.measure not in run.final:
                return None
            accuracies.append(run.final[level.measure])
        return accuracies.index(max(accuracies)) + 1

    def _trial(self, level: Level, term: str, number: int) -> Run | None:
        found = self._by_point.get(Point(level.place, term, number, False), {})
        return next(iter(found.values()), None)

    def tests(self, level: Level, term: str) -> dict[int, Run]:
        """The tests of the best trial, by seed; none before it is known."""
        best = self.best(level, term)
        found = {} if best is None else self._by_point.get(Point(level.place, term, best, True), {})
        return {seed: run for seed, run in found.items() if level.measure in run.final}

    def gain(self, level: Level, term: str) -> Gain:
        """What a term adds at a level."""
        pair = [self.tests(level, name) for name in ("plain", term)]
        plain, ours = ({seed: run.final[level.measure] for seed, run in one.items()} for one in pair)
        first, again = (
            paired_difference({s: v for s, v in ours.items() if (s > LATER) == later}, plain) for later in (False, True)
        )
        chosen = [self._trial(level, n, best) for n in ("plain", term) if (best := self.best(level, n)) is not None]
        runs = [run or next(iter(one.values()), None) for run, one in zip(chosen, pair, strict=False)]
        both = (runs[0], runs[1]) if len(runs) == 2 and runs[0] and runs[1] else None
        mean = mean_std([v for s, v in plain.items() if s <= LATER]) if any(s <= LATER for s in plain) else None
        return Gain(level, term, mean, both, first, again)

    @cached_property
    def gains(self) -> list[Gain]:
        """What every term adds at every level, factor by factor; 200 epochs after the other numbers of epochs."""
        found = []
        for level in LEVELS.values():
            found += [self.gain(level, term) for term in TERMS[1:]]
            if level.key == "epochs-100" and self._setting is not None:
                found += self._long(self._setting)
        return found

    def _long(self, setting: Setting) -> list[Gain]:
        level = Level("epochs-200", "epochs", "200", {"epochs": 200})
        plain = next((one for one in setting.objectives if one.term == "plain"), None)
        found = []
        for one in setting.objectives:
            if plain is None or one is plain or one.term not in TERMS:
                continue
            values, base = one.tests.values(level.measure), plain.tests.values(level.measure)
            shared = sorted(values.keys() & base.keys())
            halves = [{s: values[s] for s in part} for part in (shared[:SEEDS], shared[SEEDS:])]
            first, again = (paired_difference(half, base) for half in halves)
            again = again if first is not None and first.mean >= GOAL else None
            mean = mean_std([base[s] for s in shared[:SEEDS]]) if shared else None
            found.append(Gain(level, one.term, mean, (plain.best, one.best), first, again))
        return found

    @property
    def tested(self) -> list[Gain]:
        """Those with an interval, of levels where the temperature was chosen."""
        return [one for one in self.gains if one.level.tuned and one.first is not None and one.first.p is not None]

    @property
    def surviving(self) -> list[Gain]:
        """Those whose difference survives Holm's correction for all that were tested."""
        return _survivors([(one, one.first) for one in self.tested])

    @property
    def promising(self) -> list[Gain]:
        """Gains of a point or more on the seeds of the map, all of which were run."""
        return [one for one in self.tested if one.first and one.first.n >= SEEDS and one.first.mean >= GOAL]

    @property
    def certain(self) -> list[Gain]:
        """The promising ones that gain a point again on other seeds, and survive Holm's correction for these tests."""
        again = [(one, one.again) for one in self.promising if one.again is not None]
        return [one for one in _survivors(again) if one.again is not None and one.again.mean >= GOAL]


def _survivors(pairs: Sequence[tuple[Gain, PairedDifference | None]]) -> list[Gain]:
    known = [(one, difference.p) for one, difference in pairs if difference is not None and difference.p is not None]
    adjusted = holm([p for _, p in known])
    return [one for (one, _), p in zip(known, adjusted, strict=True) if p < LEVEL]


def maps(runs: Sequence[Run], settings: Sequence[Setting]) -> list[Map]:
    """The maps of all data sets of which a point was run."""
    found = []
    for data in dict.fromkeys(run.data for run in runs if run.point is not None):
        tuned = next((one for one in settings if (one.data, one.encoder) == (data, "conv4")), None)
        found.append(Map(data, runs, tuned))
    return found


def map_answer(one: Map) -> str:
    """Whether a term gains a point for certain anywhere, then how many differences can be told from zero."""
    start = f"{word(one.data)}, Conv-4, both tuned at each of {len({g.level.key for g in one.tested})} levels: "
    if not one.tested:
        return f"{word(one.data)}, Conv-4: no level of the map has its tests yet."
    repeated = [gain for gain in one.promising if not _uses_tuned_runs(gain)]
    waiting = [gain for gain in repeated if gain.again is None or gain.again.n < AGAIN]
    if one.certain:
        words = [f"{gain.where} {shown(gain.again)}" for gain in one.certain]
        first = f"a set-level term gains a point or more for certain with {'; '.join(words)}."
    else:
        first = "no set-level term gains a point or more for certain."
    if waiting:
        names = ", ".join(gain.where for gain in waiting)
        first += f" {count(len(waiting), 'gain')} of a point on the first seeds waits for others: {names}."
    sides = {side: [g for g in one.tested if g.first and g.first.side == side] for side in ("above", "below")}
    counts = [
        f"{len(some)} {side} zero ({sum(gain in one.surviving for gain in some)} after Holm's correction)"
        for side, some in sides.items()
    ]
    return f"{start}{first} Intervals of {count(len(one.tested), 'difference')}: {', '.join(counts)}."


def _uses_tuned_runs(gain: Gain) -> bool:
    """Whether it takes its runs from the tuned objectives, which have ten seeds at most."""
    return gain.level.key not in LEVELS


def map_table(one: Map) -> Table:
    """Every difference of the map."""
    columns = (
        *("factor", "level", "term", "n", "SimCLR, tuned", "difference", "Holm", "again, other seeds"),
        *("temperature, SimCLR's", "with the term", "weight"),
    )
    rows: list[list[Cell]] = []
    survivors = one.surviving
    for gain in one.gains:
        if gain.first is None:
            continue
        holds = None if not gain.level.tuned else "yes" if gain in survivors else "no"
        cells: list[Cell] = [gain.level.factor, gain.level.label, LABELS[gain.term], gain.first.n, gain.plain]
        cells += [gain.first, holds, gain.again]
        if gain.chosen is not None:
            cells += [f"{run.fields[TEMPERATURE]:g}" for run in gain.chosen]
            weight = weight_of(gain.chosen[1].recipe)
            cells.append(None if weight is None else f"{weight:g}")
        rows.append([*cells, *[None] * (len(columns) - len(cells))])
    title = f"Where does a set-level term pay? {word(one.data)}, Conv-4"
    return Table(f"map-{one.data}", columns, rows, title, f"{NOTE} {TABLED}")


def map_rows(one: Map) -> list[Interval]:
    """The same for a picture."""
    rows = []
    for gain in one.gains:
        if (first := gain.first) is not None:
            bounds = None if first.low is None or first.high is None else (first.low, first.high)
            name = f"{gain.level.label}: {LABELS[gain.term]}"
            other = gain.again.mean if gain.again else None
            rows.append(Interval(name, shown(first), first.mean, bounds, other, gain.level.factor))
    return rows
