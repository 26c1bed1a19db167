"""From a folder of run records to groups of runs that may be compared.

Runs of one group share all changes of their named recipes but those of the objective: a run of 4 epochs is never
compared with one of 50. All accuracies are per cent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import setwise.records as records
from setwise.losses.objective import Choice
from setwise.paper import factors
from setwise.paper.numbers import word
from setwise.paper.objectives import objective_words, preset_of, same_objective, weight_of
from setwise.paper.recipes import CELLS, MATCHING_LOSSES, Cell, recipe
from setwise.paper.tuning import PLACES
from setwise.recipe import CHOSEN, Recipe, flat
from setwise.records.record import recipe_from
from setwise.records.run import files_below, read_runs
from setwise.records.statistics import MeanStd, PairedDifference, mean_std, paired_difference

TERMS = {"": "", "qare": "QARe", "gap": "alignment gap", "control": "structural difference"}
OUR_TERMS = ("gap", "control")  # their weights are ours to choose; QARe's is the paper's
METHODS = ("supervised", "random", "deepcluster", "rotation", "deepinfomax", "simclr", "sparseclr")
FEWEST = 3  # weights that make a sweep
FORMS = ("paper", "released", "modern")
_PLACES = {(cell.kind, cell.form, cell.data, cell.encoder, cell.base, cell.term) for cell in CELLS.values()}


class Place(NamedTuple):
    """Where a run stands in the tables."""

    cell: Cell  # what its named recipe is made of
    weight: float | None
    loss: str  # another one than the named recipe's, or nothing
    usual: bool  # loss and weight are the named recipe's
    changed: str  # what else of the named recipe was changed, in words


class Run(records.Run):
    """A run that has a place in a table."""

    @cached_property
    def place(self) -> Place:
        """Where it stands; ValueError if that is nowhere."""
        name = self.record.get("name")
        if not isinstance(name, str) or name not in CELLS:
            raise ValueError(f"expected a run of a named recipe, got {name!r}")
        return _place(name, self.recipe_text)

    @cached_property
    def trial(self) -> tuple[str, int | None] | None:
        """The term and the number of a trial, by its place; no number for a test of the best. None for other runs."""
        return PLACES.get(self.variant)

    @cached_property
    def point(self) -> factors.Point | None:
        """Its place on the map of factors, by its place among records; None for other runs."""
        return factors.PLACES.get(self.variant)

    @property
    def variant(self) -> str:
        """Its place among the records of its recipe."""
        return self.path.removeprefix(f"{self.record['name']}/").removesuffix(f"/seed-{self.seed}.json")

    @property
    def data(self) -> str:
        """The data of its named recipe."""
        return self.place.cell.data

    @property
    def changed(self) -> str:
        """What was changed of its named recipe beside the objective, in words."""
        return self.place.changed

    def check(self) -> None:
        """Raise unless it has a place."""
        assert self.place


@dataclass(frozen=True)
class Row:
    """The runs of one loss or method with one set-level term and one weight, by seed."""

    base: str
    term: str
    runs: dict[int, Run] = field(default_factory=dict)
    suffix: str = ""  # of the label
    loss: str = ""  # another one than the named recipe's, or nothing
    weight: float | None = None

    @property
    def label(self) -> str:
        """In words: "InfoNCE + alignment gap, weight 30"."""
        return word(self.base) + (f" + {TERMS[self.term]}" if self.term else "") + self.suffix

    def values(self, measure: str) -> dict[int, float]:
        """A final measure by seed, shares in per cent; seeds without it are left out."""
        return {seed: run.final[measure] for seed, run in self.runs.items() if measure in run.final}

    def mean(self, measure: str) -> MeanStd | None:
        """Over its seeds; None if there are none."""
        values = [run.final[measure] for run in self.runs.values() if measure in run.final]
        return mean_std(values) if values else None


@dataclass(frozen=True)
class Group:
    """Rows that may be compared: one data set, one setting."""

    kind: str
    form: str
    data: str
    encoder: str
    changed: str
    name: str
    title: str
    rows: tuple[Row, ...]
    choices: tuple[tuple[str, str], ...]  # how weights were chosen: of what, and in words
    runs: tuple[Run, ...]  # all that were sorted into it, those of weights that were not chosen too

    @property
    def validation(self) -> int:
        """How many training images were tested on instead of the test split: such runs are for choosing."""
        return self.runs[0].recipe.data.validation if self.runs else 0

    @property
    def measure(self) -> tuple[str, str]:
        """The measure that answers, and its name: many held-out sets tell more than one test set of 220."""
        if self.kind != "matching":
            return "probe_accuracy", "probe accuracy"
        if any("held_out_accuracy" in run.final for run in self.runs):
            return "held_out_accuracy", "matching accuracy on held-out sets"
        return "test_accuracy", "matching accuracy on the test split"

    @property
    def setting(self) -> str:
        """Its title in few words, for a column; an asterisk where recipes were changed."""
        words = self.title.partition(" (")[0]
        return words.partition(", ")[2] + ("*" if self.changed else "")

    def is_main(self, row: Row) -> bool:
        """Whether a row has the recipe's weight, or the chosen one: the others are for tables and sweeps only."""
        return not row.suffix or (self.kind == "matching" and row.term in OUR_TERMS)

    def sweep(self, base: str) -> dict[float, Row]:
        """QARe with this loss by its weight, ascending, if enough weights were run to speak of a sweep."""
        rows = [row for row in self.rows if (row.base, row.term, row.loss) == (base, "qare", "") and row.runs]
        found = {row.weight: row for row in rows if row.weight is not None}
        enough = self.kind == "classification" and len(found) >= FEWEST
        return {weight: found[weight] for weight in sorted(found)} if enough else {}

    def plain(self, base: str) -> Row:
        """The row of this loss or method as it is, without a set-level term; without runs where there are none."""
        return next((r for r in self.rows if (r.base, r.term, r.suffix) == (base, "", "")), Row(base, ""))

    def difference(self, row: Row, measure: str) -> PairedDifference | None:
        """A row's paired difference to the same loss or method as it is, without a set-level term."""
        if not row.term and not row.suffix:
            return None
        return paired_difference(row.values(measure), self.plain(row.base).values(measure))


def collect(results: Path) -> tuple[list[Run], list[str]]:
    """The runs below ``results``/runs, and what is there but has no place in a table, in words."""
    top = results / "runs"
    paths = (path for path in files_below(top) if path.suffix != ".lock")
    runs, aside = read_runs(paths, Run, top)
    found: dict[tuple[object, ...], Run] = {}
    for run in runs:
        name = run.record["name"]
        key = (name, run.place, run.seed, run.recipe.data.instances, run.trial, run.point)
        taken, other = found.get(key, run), run
        if run.path == f"{name}/seed-{run.seed}.json":  # a table's own, before a sweep's of the same weight
            taken, other = run, taken
        found[key] = taken
        if other is not taken:
            aside.append(f"{other.path}: expected one record of a run, got a second one; {taken.path} is taken")
    return list(found.values()), sorted(aside)


@lru_cache(maxsize=1024)
def _place(name: str, text: str) -> Place:
    """The place of a run of the recipe ``name``, whose own recipe is ``text``, as JSON."""
    named, mine = recipe(name), recipe_from(text)
    weight = weight_of(mine)
    loss = "" if same_objective(mine, named) else preset_of(mine) or objective_words(mine, named)
    usual = not loss and weight == weight_of(named)
    return Place(CELLS[name], weight, loss, usual, ", ".join(_changes(mine, named)))


def _changes(mine: Recipe, named: Recipe) -> list[str]:
    """What differs from the named recipe beside the objective, in words; a part of another name, from its defaults."""
    words, usual = [], flat(named.tree())
    for part, (registry, key) in CHOSEN.items():
        name, theirs = (getattr(getattr(one, part), "name", None) for one in (mine, named))  # a second encoder is rare
        if name is not None and name != theirs:
            words.append(f"{part} {name}")
            usual |= flat({part: Choice.read(registry, name, key).tree(key)})
    for path, value in flat(mine.tree()).items():
        if value != usual.get(path) and path not in ("about", "data.instances") and not path.startswith("objective."):
            option = path.partition(".")[2].replace(".", "_") or path  # evaluation.probe.epochs: probe_epochs
            words.append(f"{option} {value}")
    return sorted(words)


def groups(runs: Iterable[Run]) -> list[Group]:
    """The runs, sorted into what may be compared: recipes as they are first, matching before classification.

    Trials and what follows from them are compared among themselves: see paper/tuned.py and paper/paying.py.
    """
    sorted_in: dict[tuple[Any, ...], list[Run]] = {}
    for run in (run for run in runs if run.trial is None and run.point is None):
        # Our own terms stand beside the paper's losses. Of classification, forms are never mixed.
        cell = run.place.cell
        form = "" if cell.kind == "matching" else cell.form
        key = (cell.kind, form, cell.data, cell.encoder, run.recipe.data.instances, run.changed)
        sorted_in.setdefault(key, []).append(run)

    def order(key: tuple[Any, ...]) -> tuple[Any, ...]:
        kind, form, data, encoder, instances, changed = key
        place = FORMS.index(form) if form in FORMS else -1
        return changed != "", kind != "matching", place, data, encoder, instances or 0, changed

    found = []
    for kind, form, data, encoder, instances, changed in sorted(sorted_in, key=order):
        members = sorted_in[kind, form, data, encoder, instances, changed]
        if kind == "matching":
            wanted = [(base, term) for base in MATCHING_LOSSES for term in TERMS]
        else:
            wanted = [(b, t) for b in METHODS for t in TERMS if (kind, form, data, encoder, b, t) in _PLACES]
        rows, choices = [], []
        for base, term in wanted:
            mine = [run for run in members if (run.place.cell.base, run.place.cell.term) == (base, term)]
            if kind == "matching" and term in OUR_TERMS:
                row, reason = _chosen(base, term, [run for run in mine if not run.place.loss])
                rows.append(row)
                choices += [(f"{word(base)} + {TERMS[term]}", reason)] if reason else []
                mine = [run for run in mine if run.place.loss]
            else:
                usual = {run.seed: run for run in mine if run.place.usual}
                rows.append(Row(base, term, usual, weight=next((run.place.weight for run in usual.values()), None)))
            others: dict[tuple[str, float | None], dict[int, Run]] = {}
            for run in mine:
                if not run.place.usual:
                    others.setdefault((run.place.loss, run.place.weight), {})[run.seed] = run
            for loss, weight in sorted(others, key=lambda key: (key[0], -1.0 if key[1] is None else key[1])):
                suffix = (" + " if loss and weight is not None else ", ") + word(loss) if loss else ""
                suffix += f", weight {weight:g}" if weight is not None else ""
                rows.append(Row(base, term, others[loss, weight], suffix, loss, weight))
        if changed and kind != "matching":  # it answers its own question, so rows without runs are not missing
            rows = [row for row in rows if row.runs]
        names = _names(kind, form, data, encoder, instances, changed, members[0].recipe.data.validation)
        found.append(Group(kind, form, data, encoder, changed, *names, tuple(rows), tuple(choices), tuple(members)))
    return found


def _names(
    kind: str, form: str, data: str, encoder: str, instances: int | None, changed: str, validation: int
) -> tuple[str, str]:
    """The name of a group, for files, and its title."""
    other = changed
    if kind == "matching":
        title = f"Matching, {word(data)}, {f'{instances:,}' if instances else 'all'} instances"
        name = f"matching-{data}-{instances or 'all'}"
    elif changed and validation:
        title = f"Ablation, {word(data)}, {word(encoder)}, {form} form, {validation:,} validation images"
        name = f"ablation-{form}-{data}-{encoder}"
        other = changed.replace(f"validation {validation}", "").strip(", ")
    else:
        title = f"Linear probe, {word(data)}, {word(encoder)}, {form} form"
        name = f"classification-{form}-{data}-{encoder}"
    if kind != "matching" and instances:
        title, name = f"{title}, {instances:,} training images", f"{name}-{instances}"
    title += f" ({other})" if other else ""
    name += f"-{changed}" if changed else ""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-"), title


def probed(found: Sequence[Group]) -> list[Group]:
    """Those of linear probes on the test split."""
    return [group for group in found if group.kind == "classification" and not group.validation]


def _chosen(base: str, term: str, runs: list[Run]) -> tuple[Row, str]:
    """The row of the weight that is best on validation, the least of equals, and how it was chosen, in words.

    Weights are compared by their mean accuracy over the seeds that all of them have.
    """
    weights = sorted({run.place.weight for run in runs if run.place.weight is not None})
    if not weights:
        return Row(base, term), ""
    seeds = {weight: {run.seed: run for run in runs if run.place.weight == weight} for weight in weights}
    found = {weight: Row(base, term, seeds[weight], f", weight {weight:g}", "", weight) for weight in weights}
    if len(weights) == 1:
        return found[weights[0]], f"weight {weights[0]:g} is the only one that was run, so not chosen here"
    val = {weight: row.values("val_accuracy") for weight, row in found.items()}
    shared = sorted(set.intersection(*(set(values) for values in val.values())))
    if not shared:
        return Row(base, term), f"none chosen, since no seed was run with all of {_list(val)}"
    means = {weight: mean_std([values[seed] for seed in shared]).mean for weight, values in val.items()}
    best = max(means, key=lambda weight: means[weight])  # the first of equals, so the least
    edge = f", at the edge of them: {best:g}" if best in (weights[0], weights[-1]) else ""
    return found[best], f"the best validation accuracy of {_list(val)}, mean of seeds {_list(shared)}{edge}"


def _list(values: Iterable[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def resumptions(run: Run) -> list[dict[str, Any]]:
    """The processes that made the run, in order; the last one evaluated it."""
    found = run.record.get("earlier")
    return [*(one for one in found if isinstance(one, dict)), run.record] if isinstance(found, list) else [run.record]


def machine(run: Run) -> str:
    """Hardware and precision, in words."""
    hardware = run.record.get("hardware")
    name = hardware.get("name") if isinstance(hardware, dict) else None
    return f"{name or 'an unknown machine'}, {run.record.get('precision') or 'unknown precision'}"
