"""The ablation: one thing changed at a time, tested on training images that were kept apart; the best of it."""

from __future__ import annotations

import math

from setwise.paper.collected import Group, Row
from setwise.paper.numbers import word
from setwise.paper.spectra import ranks
from setwise.paper.tables import machines
from setwise.records.statistics import PairedDifference
from setwise.report.tables import NOTE, Cell, Table, filled, shown


def is_ablation(group: Group) -> bool:
    """Whether its runs are for choosing: tested on training images that were kept apart."""
    return group.kind == "classification" and group.validation > 0


def ablation_table(group: Group) -> Table:
    """One row for what was changed and its weight, the best difference to the plain loss first."""
    columns = (
        *("what is changed", "weight", "n", "validation accuracy", "difference to plain"),
        *("kNN-20 accuracy", "kNN-20, difference", "effective rank", "effective rank of features"),
    )
    rows: list[list[Cell]] = []
    for row, difference in ranked(group):
        label = word(row.loss) if row.loss else row.label + ("" if row.term else ", plain")
        weight = None if row.weight is None else f"{row.weight:g}"
        cells: list[Cell] = [label, weight, len(row.runs), row.mean("probe_accuracy")]
        other = group.difference(row, "knn20_accuracy")
        rows.append([*cells, difference, row.mean("knn20_accuracy"), other, *ranks(row)])
    note = f"{NOTE} Tested on training images that were kept apart, not on the test split. {machines(group)}"
    return Table(group.name, *filled(columns, rows), group.title, note)


def ranked(group: Group) -> list[tuple[Row, PairedDifference | None]]:
    """A group's rows with their differences to the plain loss, the best first, those without one before them."""
    found = [(row, group.difference(row, "probe_accuracy")) for row in group.rows if row.runs]
    return sorted(found, key=lambda pair: -math.inf if pair[1] is None else -pair[1].mean)


def bests_of(group: Group) -> list[tuple[Row, PairedDifference]]:
    """Of an ablation's rows with an interval the one of the greatest difference, and that among set-level terms."""
    found = [(row, d) for row, d in ranked(group) if d is not None and d.low is not None]
    bests = [*found[:1], *[(row, d) for row, d in found if row.weight is not None][:1]]
    return bests if len(bests) == 2 and bests[0][0] is not bests[1][0] else bests[:1]


def ablation_answer(group: Group) -> str:
    """The best on validation in a sentence, and what it is worth."""
    bests = bests_of(group)
    if not bests:
        return f"{group.title}: nothing yet with two seeds beside the plain loss."
    row, difference = bests[0]
    tried = sum(1 for _, d in ranked(group) if d is not None)
    also = "".join(f"; of those with a set-level term {other.label}, {shown(d)}" for other, d in bests[1:])
    return (
        f"{group.title}: the best on validation of {tried} is {row.label}, {shown(difference)} points to the plain "
        f"loss{also}. The best of many is too good by selection: whether it holds on fresh seeds and the test set "
        "(`setwise reproduce confirm`) is the last of the claims above."
    )
