"""The paper's tables with our numbers: as text, as CSV, on a page. All accuracies are per cent."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from setwise.experiments import paper_numbers
from setwise.experiments.collected import METHODS, TERMS, Group, Row, machine, probed, resumptions
from setwise.experiments.page import Page
from setwise.experiments.paper_numbers import word
from setwise.experiments.statistics import MeanStd, PairedDifference, number, paired_difference

Cell = str | int | float | MeanStd | PairedDifference | None
NONE = "-"  # of a run that was not made
NOTE = (
    "Mean ± sample standard deviation over n seeds, per cent. Differences: mean over the seeds that both have, with "
    "the 95 % interval of Student's t."
)


@dataclass(frozen=True)
class Table:
    """Rows of cells under columns; the first column names the rows. ``name`` is for files."""

    name: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    caption: str
    note: str = ""
    wrap: bool = False  # on a page its words may take more lines

    def markdown(self) -> str:
        """A GitHub table under its caption; what Markdown would read as its own is escaped."""
        lines = [self.columns, ["---"] * len(self.columns), *map(self._shown, self.rows)]
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
        rows = [self._shown(row) for row in self.rows]
        page.table(self.columns, rows, caption=self.caption, note=self.note, wrap=self.wrap)

    def _shown(self, row: Sequence[Cell]) -> list[str]:
        """Cells for people; a mean of ours over fewer than the row's n says so."""
        n = row[self.columns.index("n")] if "n" in self.columns else None
        cells = [shown(cell) for cell in row]
        for i, (column, cell) in enumerate(zip(self.columns, row, strict=True)):
            if isinstance(cell, MeanStd) and not column.startswith("paper") and n not in (None, cell.n):
                cells[i] += f" (n = {cell.n})"
        return cells


def matching_table(group: Group) -> Table:
    """Table 1 for one data set and number of instances."""
    measures = {"held-out": "held_out_accuracy", "test": "test_accuracy"}
    parts = {
        f"{end}{name}": f"{end.replace(' ', '_')}{key}" for end in ("", "quadratic ") for name, key in measures.items()
    }
    columns = [
        *("loss", "n", *(f"{name}{end}" for name in parts for end in (" accuracy", ", difference to plain"))),
        *("quadratic adds", "structure off", "paper (CUHK-03)", "rank-1", "mAP"),
    ]
    rows = []
    for row in group.rows:
        cells: list[Cell] = [row.label, len(row.runs) or None]
        for key in parts.values():
            cells += [row.mean(key), group.difference(row, key)]
        adds = paired_difference(row.values(f"quadratic_{group.measure[0]}"), row.values(group.measure[0]))
        weights = [number(run.record["final"].get("quadratic_weight")) for run in row.runs.values()]
        off = f"{weights.count(0.0)} of {len(weights)}" if weights else None
        rows.append([*cells, adds, off, paper_number(group, row), *map(row.mean, ("rank1", "mean_average_precision"))])
    note = (
        f"{NOTE} Weights are those of the epoch with the best validation accuracy. Held-out: mean over {_sets(group)} "
        "that no split has, the same for all seeds. Quadratic: pairs and structure are matched together, and what that "
        f"adds to the same runs' {group.measure[1]}; structure off: runs whose validation split gave it weight 0, so "
        f"that both are the same. {machines(group)}"
    )
    if group.choices:
        how: dict[str, list[str]] = {}
        for label, words in group.choices:
            how.setdefault(words, []).append(label)
        note += " Weights of our terms: " + "; ".join(f"{', '.join(who)}: {words}" for words, who in how.items()) + "."
    return Table(group.name, columns, rows, group.title, note)


def classification_table(group: Group) -> Table:
    """Tables 2 and 3 for one encoder, one data set and one form of the losses."""
    columns = ("method", "n", "probe accuracy", "difference to plain", "paper", "kNN-20 accuracy", "kNN-20, difference")
    rows = [
        (
            row.label,
            len(row.runs) or None,
            row.mean("probe_accuracy"),
            group.difference(row, "probe_accuracy"),
            paper_number(group, row),
            row.mean("knn20_accuracy"),
            group.difference(row, "knn20_accuracy"),
        )
        for row in group.rows
        if group.is_main(row) or row not in group.sweep(row.base).values()  # a sweep has a table of its own
    ]
    note = f"{NOTE} Accuracies are of the last epoch; verdicts are by the linear probe. {machines(group)}"
    return Table(group.name, columns, rows, group.title, note)


def overview(found: Sequence[Group]) -> list[Table]:
    """Probe accuracies of all encoders and data sets side by side, a table for each form that has several."""
    by_form: dict[tuple[str, str], list[Group]] = {}
    for group in probed(found):
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
    return matching + overview(found) + [classification_table(group) for group in probed(found)]


def changes_table(found: Sequence[Group]) -> Table | None:
    """What changes of a recipe do, each against the same recipe with fewer of them or none; None without any."""
    rows: list[list[Cell]] = []
    for group in probed(found):
        for row in group.rows:
            if (fewest := _fewer_changes(found, group, row)) is None:
                continue
            (before, same), form = fewest, [word(row.loss)] if row.loss else []
            cells: list[Cell] = [
                f"{Row(row.base, row.term).label}: {group.setting.removesuffix('*')}",
                *map(_with, ([*form, *_changes(group)], before)),
            ]
            difference = paired_difference(row.values("probe_accuracy"), same.values("probe_accuracy"))
            rows.append([*cells, len(row.runs), row.mean("probe_accuracy"), difference])
    columns = ("method", "recipe", "compared to", "n", "probe accuracy", "difference")
    return Table("changes", columns, rows, "Recipes with changes", NOTE, wrap=True) if rows else None


def said_by_changes(found: Sequence[Group], group: Group) -> bool:
    """Whether a changed recipe has no set-level term to judge and the table of changes has all of its rows."""
    rows = [row for row in group.rows if row.runs]
    return bool(group.changed) and all(not row.term and _fewer_changes(found, group, row) for row in rows)


def _fewer_changes(found: Sequence[Group], group: Group, row: Row) -> tuple[list[str], Row] | None:
    """With which of the changes, and in which row, the nearest runs to compare with were made; None without any."""
    mine = row.values("probe_accuracy")
    if row.loss and row.weight is None:  # the pairwise loss itself is another one
        near = [(_changes(group), group.plain(row.base))]
    else:
        setting = (group.form, group.data, group.encoder)
        like = [other for other in probed(found) if (other.form, other.data, other.encoder) == setting]
        fewer = [other for other in like if set(_changes(other)) < set(_changes(group))]
        fewer.sort(key=lambda other: -len(_changes(other)))
        near = [(_changes(other), one) for other in fewer for one in other.rows if one.label == row.label]
    return next((pair for pair in near if mine.keys() & pair[1].values("probe_accuracy").keys()), None)


def _with(changes: Sequence[str]) -> str:
    return f"with {', '.join(changes)}" if changes else "the recipe as it is"


def _changes(group: Group) -> list[str]:
    return list(filter(None, group.changed.split(", ")))


def paper_number(group: Group, row: Row) -> MeanStd | None:
    """What the paper prints for this row; of matching, always on CUHK-03."""
    if row.said or group.changed:  # another weight or recipe than the paper's
        return None
    if group.kind == "matching":
        return paper_numbers.MATCHING.get((row.base, row.term))
    method = "-".join(filter(None, (row.base, row.term)))
    return paper_numbers.CLASSIFICATION.get((group.encoder, group.data, method))


def filled(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> tuple[Sequence[str], Sequence[Sequence[Cell]]]:
    """Without the last columns that no row has anything in."""
    used = max((i + 1 for row in rows for i, cell in enumerate(row) if cell is not None), default=0)
    return columns[:used], [row[:used] for row in rows]


def shown(cell: Cell) -> str:
    """A cell for people: two decimals, "-" where there is nothing."""
    if cell is None:
        return NONE
    if isinstance(cell, MeanStd):
        return f"{cell.mean:.2f}" + (f" ± {cell.std:.2f}" if cell.std is not None else "")
    if isinstance(cell, PairedDifference):
        if cell.low is None or cell.high is None:
            return f"{_signed(cell.mean)} (one seed)"
        if math.isinf(cell.low):
            return f"{_signed(cell.mean)} (equal in all seeds)"
        return f"{_signed(cell.mean)} ({_signed(cell.low)} to {_signed(cell.high)})"
    if isinstance(cell, float):
        return f"{cell:.2f}" if abs(cell) < 100 else f"{cell:,.0f}"
    return str(cell)


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-0.00", "+0.00")


def _parts(cells: Sequence[Cell]) -> tuple[str, ...]:
    means = (" std",) if any(isinstance(cell, MeanStd) for cell in cells) else ()
    bounds = (" low", " high") if any(isinstance(cell, PairedDifference) for cell in cells) else ()
    return ("", *means, *bounds, " n") if means or bounds else ("",)


def _value(cell: Cell, part: str) -> object:
    if isinstance(cell, MeanStd | PairedDifference):
        return getattr(cell, part.strip() or "mean", None)  # a difference has no std, a mean no bounds
    return cell if not part else None


def _plain(words: str) -> str:
    return re.sub(r"([\\|<>&*_`\[\]#])", r"\\\1", " ".join(words.split()))


def _sets(group: Group) -> str:
    """How many held-out sets of which size its runs had, if their records say so."""
    found = set()
    for run in group.runs:
        data = run.record.get("data")
        count, size = (number(data.get(key)) if isinstance(data, dict) else None for key in ("held_out_sets", "test"))
        if count and size:
            found.add((count, size))
    return " and ".join(f"{count:.0f} sets of {size:,.0f}" for count, size in sorted(found)) or "sets"


def machines(group: Group) -> str:
    """On what its runs were made, a sentence."""
    commits = len({str(one.get("commit")) for run in group.runs for one in resumptions(run)})
    at = f", at {commits} commits of this project" if commits > 1 else ""
    return f"Ran on {' and '.join(sorted({machine(run) for run in group.runs}))}{at}."
