"""The ablation: one change at a time, tested on validation images, and the best of them."""

from __future__ import annotations

import math

from setwise.paper.collected import Group, Row
from setwise.paper.numbers import word
from setwise.paper.spectra import ranks
from setwise.paper.tables import machines
from setwise.records.statistics import PairedDifference
from setwise.report.tables import NOTE, Cell, Table, filled, shown


def is_ablation(group: Group) -> bool:
    """Whether its runs are for choosing: tested on validation images."""
    return group.kind == "classification" and group.validation > 0


def ablation_table(group: Group) -> Table:
    """A row for each change and weight, the plain loss first and then the best difference to it."""
    columns = (
        *("change", "weight", "n", "validation accuracy", "difference to plain"),
        *("kNN-20 accuracy", "kNN-20, difference", "effective rank", "effective rank of features"),
    )
    rows: list[list[Cell]] = []
    for row, difference in ranked(group):
        label = word(row.loss) if row.loss else row.label + ("" if row.term else ", plain")
        weight = None if row.weight is None else f"{row.weight:g}"
        cells: list[Cell] = [label, weight, len(row.runs), row.mean("probe_accuracy")]
        other = group.difference(row, "knn20_accuracy")
        rows.append([*cells, difference, row.mean("knn20_accuracy"), other, *ranks(row)])
    note = f"{NOTE} Tested on validation images, a part of the training split. {machines(group)}"
    return Table(group.name, *filled(columns, rows), group.title, note)


def ranked(group: Group) -> list[tuple[Row, PairedDifference | None]]:
    """A group's rows with their differences to the plain loss: rows without one first, then the best."""
    rows = [(row, group.difference(row, "probe_accuracy")) for row in group.rows if row.runs]
    return sorted(rows, key=lambda pair: -math.inf if pair[1] is None else -pair[1].mean)


def bests_of(group: Group) -> list[tuple[Row, PairedDifference]]:
    """The row with the greatest difference, and that among set-level terms if it is another; only with an interval."""
    known = [(row, d) for row, d in ranked(group) if d is not None and d.low is not None]
    terms = [pair for pair in known if pair[0].weight is not None]
    return known[:1] if known[:1] == terms[:1] else known[:1] + terms[:1]


def ablation_answer(group: Group) -> str:
    """The best on validation, in a sentence, and what it is worth."""
    bests = bests_of(group)
    if not bests:
        return f"{group.title}: no change yet has two seeds beside the plain loss."
    tried = sum(1 for _, d in ranked(group) if d is not None)
    best, *others = (f"{row.label}: it adds {shown(d)} points to the plain loss" for row, d in bests)
    also = "".join(f" The best with a set-level term is {words}." for words in others)
    return (
        f"{group.title}: the best of {tried} changes is {best}.{also} The best of many looks better than it is: "
        '`setwise reproduce confirm` tries it with fresh seeds on test images: the claim "The ablation\'s best holds".'
    )
