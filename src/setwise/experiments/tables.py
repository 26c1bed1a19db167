"""From a folder of run records to the paper's tables with our numbers: as text, as CSV, on a page.

Runs stand in one table only if nothing but the loss and the weight of its set-level term differs from their named
recipes in the same way: a run of 4 epochs is never compared with one of 50. All accuracies are per cent.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from setwise.experiments import paper_numbers, records
from setwise.experiments.page import Page
from setwise.experiments.paper_numbers import word
from setwise.experiments.recipes import MATCHING_LOSSES, RECIPES
from setwise.experiments.statistics import MeanStd, PairedDifference, mean_std, number, paired_difference
from setwise.recipe import Recipe

Cell = str | int | MeanStd | PairedDifference | None
NONE = "-"  # of a run that was not made
TERMS = {"": "", "qare": "QARe", "gap": "alignment gap", "control": "control"}
CHOSEN = ("gap", "control")  # their weights are ours to choose; QARe's is the paper's
METHODS = ("supervised", "random", "deepcluster", "rotation", "deepinfomax", "simclr", "sparseclr")
NOTE = (
    "Mean ± sample standard deviation over n seeds, per cent. Differences: mean over the seeds that both have, with "
    "the 95 % interval of Student's t."
)
FORMS = ("paper", "released", "modern")


@dataclass(frozen=True)
class Table:
    """Rows of cells under columns; the first column names the rows. ``name`` is for files."""

    name: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    caption: str
    note: str = ""

    def markdown(self) -> str:
        """A GitHub table under its caption; what Markdown would read as its own is escaped."""
        lines = [self.columns, ["---"] * len(self.columns), *([shown(cell) for cell in row] for row in self.rows)]
        table = ["| " + " | ".join(cells if i == 1 else map(_plain, cells)) + " |" for i, cells in enumerate(lines)]
        return "\n".join([f"**{_plain(self.caption)}**", "", *table, "", _plain(self.note)]).rstrip() + "\n"

    def csv(self) -> str:
        """The same numbers unrounded, one to a cell: a mean has columns for std and n, a difference for its bounds."""
        places = [(i, part) for i in range(len(self.columns)) for part in _parts([row[i] for row in self.rows])]
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([f"{self.columns[i]}{part}" for i, part in places])
        writer.writerows([_value(row[i], part) for i, part in places] for row in self.rows)
        return file.getvalue()

    def onto(self, page: Page) -> None:
        """Put it on a page."""
        rows = [[shown(cell) for cell in row] for row in self.rows]
        page.table(self.columns, rows, caption=self.caption, note=self.note)


@dataclass(frozen=True)
class Run:
    """A record that has a place in a table."""

    path: str  # below the folder of records
    record: dict[str, Any]
    kind: str  # "matching" or "classification"
    form: str  # what the recipe's name begins with
    data: str
    encoder: str
    instances: int | None
    base: str  # loss of matching, or method
    term: str  # one of TERMS
    weight: float | None
    loss: str  # another one than the named recipe's, or nothing
    usual: bool  # loss and weight are the named recipe's
    changed: str  # what else of the named recipe was changed, in words
    seed: int


@dataclass(frozen=True)
class Row:
    """The runs of one loss or method with one set-level term and one weight, by seed."""

    base: str
    term: str
    runs: dict[int, Run] = field(default_factory=dict)
    said: str = ""  # added to the label

    @property
    def label(self) -> str:
        """In words: "InfoNCE + alignment gap, weight 30"."""
        return word(self.base) + (f" + {TERMS[self.term]}" if self.term else "") + self.said

    def values(self, measure: str) -> dict[int, float]:
        """A final measure in per cent, by seed; seeds without a finite one are left out."""
        found = {seed: number(run.record["final"].get(measure)) for seed, run in self.runs.items()}
        return {seed: 100 * value for seed, value in found.items() if value is not None}

    def mean(self, measure: str) -> MeanStd | None:
        """Over its seeds; None if there are none."""
        values = self.values(measure)
        return mean_std(list(values.values())) if values else None


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

    def difference(self, row: Row, measure: str) -> PairedDifference | None:
        """A row's paired difference to the same loss or method as it is, without a set-level term."""
        if not row.term and not row.said:
            return None
        plain = next((r for r in self.rows if (r.base, r.term, r.said) == (row.base, "", "")), Row(row.base, ""))
        return paired_difference(row.values(measure), plain.values(measure))


def collect(results: Path) -> tuple[list[Run], list[str]]:
    """The runs below ``results``/runs, and what is there but has no place in a table, in words."""
    found: dict[tuple[object, ...], Run] = {}
    aside = []
    top = results / "runs"
    for path in sorted(top.rglob("*")):
        if not path.is_file() or path.suffix == ".lock" or path.name.startswith("."):
            continue
        place = path.relative_to(top).as_posix()
        try:
            run = _run(place, records.read(path))
        except ValueError as error:
            aside.append(f"{place}: {str(error).replace(str(path), path.name)}")  # the page is for other machines
            continue
        key = (run.record["name"], run.loss, run.weight, run.seed, run.instances, run.changed)
        if key in found:
            aside.append(f"{place}: expected one record of a run, got a second one; {found[key].path} is taken")
        else:
            found[key] = run
    return list(found.values()), aside


def _run(place: str, record: dict[str, Any]) -> Run:
    name, recipe, seed = record.get("name"), record.get("recipe"), record.get("seed")
    if not isinstance(name, str) or name not in RECIPES:
        raise ValueError(f"expected a run of a named recipe, got {name!r}")
    if not isinstance(recipe, dict) or isinstance(seed, bool) or not isinstance(seed, int):
        raise ValueError("expected a record with its recipe and its seed, got neither or one of them")
    if not isinstance(record.get("final"), dict) or not record["final"]:
        raise ValueError("expected a run that was evaluated, got one without final numbers")
    named = RECIPES[name]
    usual = named.as_json()
    matching = named.method == "matching"
    if matching:
        whole = (named.loss or "").split("/")[1].removeprefix("matching-")
    else:
        whole = name.split("/")[1].removeprefix(f"{named.data}-{named.encoder}-")
    base, _, term = whole.rpartition("-")
    if term not in TERMS or not base:
        base, term = whole, ""
    # A field that is younger than the record: its default is what was done before there was a choice.
    recipe = dict[str, Any]({one.name: one.default for one in fields(Recipe)}) | recipe
    changed = {key: value for key, value in sorted(recipe.items()) if key not in usual or value != usual[key]}
    loss, weight, instances = str(changed.pop("loss", "")), recipe["beta"], recipe["instances"]
    if number(weight) is None and (weight is not None or usual["beta"] is not None):
        raise ValueError(f"expected a number as the weight, got {weight!r}")
    if instances is not None and not isinstance(instances, int):
        raise ValueError(f"expected a number of instances, got {instances!r}")
    return Run(
        path=place,
        record=record,
        kind="matching" if matching else "classification",
        form=name.split("/")[0],
        data=named.data,
        encoder=named.encoder,
        instances=instances,
        base=base,
        term=term,
        weight=weight,
        loss=loss,
        usual=not loss and weight == usual["beta"],
        changed=", ".join(f"{key} {value}" for key, value in changed.items() if key not in ("beta", "instances")),
        seed=seed,
    )


def groups(runs: Iterable[Run]) -> list[Group]:
    """The runs, sorted into what may be compared: recipes as they are first, matching before classification."""
    sorted_in: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        # Our own terms stand beside the paper's losses. Of classification, forms are never mixed.
        form = "" if run.kind == "matching" else run.form
        key = (run.kind, form, run.data, run.encoder, run.instances, run.changed)
        sorted_in.setdefault(key, []).append(run)

    def order(key: tuple[Any, ...]) -> tuple[Any, ...]:
        kind, form, data, encoder, instances, changed = key
        place = FORMS.index(form) if form in FORMS else -1
        return changed != "", kind != "matching", place, data, encoder, instances or 0, changed

    return [_group(key, sorted_in[key]) for key in sorted(sorted_in, key=order)]


def _group(key: tuple[Any, ...], runs: list[Run]) -> Group:
    kind, form, data, encoder, instances, changed = key
    if kind == "matching":
        title = f"Matching, {word(data)}, {f'{instances:,}' if instances else 'all'} instances"
        name = f"matching-{data}-{instances or 'all'}"
        wanted = [(base, term) for base in MATCHING_LOSSES for term in TERMS]
    else:
        title = f"Linear probe, {word(data)}, {word(encoder)}, {form} form"
        name = f"classification-{form}-{data}-{encoder}"
        start = f"{form}/{data}-{encoder}"
        wanted = [(b, t) for b in METHODS for t in TERMS if "-".join(filter(None, (start, b, t))) in RECIPES]
    rows, choices = [], []
    for base, term in wanted:
        mine = [run for run in runs if (run.base, run.term) == (base, term)]
        if kind == "matching" and term in CHOSEN:
            row, said = _chosen(base, term, [run for run in mine if not run.loss])
            rows.append(row)
            choices += [(f"{word(base)} + {TERMS[term]}", said)] if said else []
            mine = [run for run in mine if run.loss]
        else:
            rows.append(Row(base, term, {run.seed: run for run in mine if run.usual}))
        others: dict[tuple[str, float], dict[int, Run]] = {}
        for run in mine:
            if not run.usual:
                others.setdefault((run.loss, -1.0 if run.weight is None else run.weight), {})[run.seed] = run
        for loss, weight in sorted(others):
            said = (f" with {loss}" if loss else "") + (f", weight {weight:g}" if weight >= 0 else "")
            rows.append(Row(base, term, others[loss, weight], said))
    if changed:
        if kind != "matching":  # made for a question of its own: not all of the paper's rows are missing from it
            rows = [row for row in rows if row.runs]
        title, name = f"{title} ({changed})", f"{name}-{changed}"
    name = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return Group(kind, form, data, encoder, changed, name, title, tuple(rows), tuple(choices), tuple(runs))


def _chosen(base: str, term: str, runs: list[Run]) -> tuple[Row, str]:
    """The weight with the best mean validation accuracy over the seeds that all weights have; the least of equals."""
    weights = sorted({run.weight for run in runs if run.weight is not None})
    found = {w: Row(base, term, {r.seed: r for r in runs if r.weight == w}, f", weight {w:g}") for w in weights}
    if not found:
        return Row(base, term), ""
    val = {weight: row.values("val_accuracy") for weight, row in found.items()}
    shared = sorted(set.intersection(*(set(values) for values in val.values())))
    if not shared:
        return Row(base, term), f"none chosen, since no seed was run with all of {_list(val)}"
    means = {weight: mean_std([values[seed] for seed in shared]).mean for weight, values in val.items()}
    best = max(means, key=lambda weight: means[weight])  # the first of equals, so the least
    return found[best], f"the best validation accuracy of {_list(val)}, mean of seeds {_list(shared)}"


def matching_table(group: Group) -> Table:
    """Table 1 for one data set and number of instances."""
    columns = (
        *("loss", "n", "test accuracy", "held-out accuracy", "test, difference to plain"),
        *("held-out, difference to plain", "paper (CUHK-03)", "quadratic test accuracy"),
        *("quadratic held-out accuracy", "rank-1", "mAP"),
    )
    first = ("test_accuracy", "held_out_accuracy")
    more = ("quadratic_test_accuracy", "quadratic_held_out_accuracy", "rank1", "mean_average_precision")
    rows = []
    for row in group.rows:
        cells: list[Cell] = [row.label, len(row.runs) or None, *map(row.mean, first)]
        cells += [*(group.difference(row, measure) for measure in first), paper_number(group, row)]
        rows.append([*cells, *map(row.mean, more)])
    note = f"{NOTE} Held-out: mean over sets of identities that no split has. {_machines(group)}"
    if group.choices:
        how: dict[str, list[str]] = {}
        for label, words in group.choices:
            how.setdefault(words, []).append(label)
        note += " Weights of our terms: " + "; ".join(f"{', '.join(who)}: {words}" for words, who in how.items()) + "."
    return Table(group.name, columns, rows, group.title, note)


def classification_table(group: Group) -> Table:
    """Tables 2 and 3 for one encoder, one data set and one form of the losses."""
    columns = ("method", "n", "probe accuracy", "difference to plain", "paper", "kNN-20 accuracy")
    rows = [
        (
            row.label,
            len(row.runs) or None,
            row.mean("probe_accuracy"),
            group.difference(row, "probe_accuracy"),
            paper_number(group, row),
            row.mean("knn20_accuracy"),
        )
        for row in group.rows
    ]
    note = f"{NOTE} Accuracies are of the last epoch. {_machines(group)}"
    return Table(group.name, columns, rows, group.title, note)


def overview(found: Sequence[Group]) -> list[Table]:
    """Probe accuracies of all encoders and data sets side by side, a table for each form that has several."""
    by_form: dict[tuple[str, str], list[Group]] = {}
    for group in found:
        if group.kind == "classification":
            by_form.setdefault((group.form, group.changed), []).append(group)
    tables = []
    for (form, changed), members in by_form.items():
        if len(members) < 2:
            continue  # it would say what the one table says
        keys = [(base, term) for base in METHODS for term in TERMS]
        keys = [key for key in keys if any((row.base, row.term) == key for group in members for row in group.rows)]
        columns = ["method"]
        rows: list[list[Cell]] = [[Row(*key).label] for key in keys]
        for group in members:
            column = f"{word(group.encoder)}, {word(group.data)}"
            columns += [column, f"{column}, paper"]
            for key, line in zip(keys, rows, strict=True):
                row = next((row for row in group.rows if (row.base, row.term) == key), Row(*key))
                line += [row.mean("probe_accuracy"), paper_number(group, row)]
        more = f" ({changed})" if changed else ""
        name = re.sub(r"[^a-z0-9]+", "-", f"classification-{form}-{changed}".lower()).strip("-")
        note = "Mean ± sample standard deviation over the seeds, per cent; each column has a table of its own below."
        tables.append(Table(name, columns, rows, f"Linear probe, {form} form{more}", note))
    return tables


def tables_of(found: Sequence[Group]) -> list[Table]:
    """All tables, in the order of a report."""
    matching = [matching_table(group) for group in found if group.kind == "matching"]
    return matching + overview(found) + [classification_table(g) for g in found if g.kind == "classification"]


def paper_number(group: Group, row: Row) -> MeanStd | None:
    """What the paper prints for this row; of matching, always on CUHK-03."""
    if row.said:  # another weight than the paper's
        return None
    if group.kind == "matching":
        return paper_numbers.MATCHING.get((row.base, row.term))
    method = "-".join(filter(None, (row.base, row.term)))
    return paper_numbers.CLASSIFICATION.get((group.encoder, group.data, method))


def shown(cell: Cell) -> str:
    """A cell for people: two decimals, "-" where there is nothing."""
    if cell is None:
        return NONE
    if isinstance(cell, MeanStd):
        return f"{cell.mean:.2f}" + (f" ± {cell.std:.2f}" if cell.std is not None else "")
    if isinstance(cell, PairedDifference):
        if cell.low is None or cell.high is None:
            return f"{cell.mean:+.2f} (one seed)"
        return f"{cell.mean:+.2f} ({cell.low:+.2f} to {cell.high:+.2f})"
    return str(cell)


def _parts(cells: Sequence[Cell]) -> tuple[str, ...]:
    if any(isinstance(cell, PairedDifference) for cell in cells):
        return "", " low", " high", " n"
    return ("", " std", " n") if any(isinstance(cell, MeanStd) for cell in cells) else ("",)


def _value(cell: Cell, part: str) -> object:
    if isinstance(cell, MeanStd | PairedDifference):
        return getattr(cell, part.strip() or "mean")
    return cell if not part else None


def _plain(words: str) -> str:
    return re.sub(r"([\\|<>&*_`\[\]#])", r"\\\1", " ".join(words.split()))


def _list(values: Iterable[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def _machines(group: Group) -> str:
    return f"Ran on {' and '.join(sorted({machine(run) for run in group.runs}))}."


def machine(run: Run) -> str:
    """Hardware and precision, in words."""
    hardware = run.record.get("hardware")
    name = hardware.get("name") if isinstance(hardware, dict) else None
    return f"{name or 'an unknown machine'}, {run.record.get('precision') or 'unknown precision'}"
