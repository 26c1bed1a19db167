"""The paper's tables with our numbers: as text, as CSV, on a page. All accuracies are per cent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from setwise.paper import numbers as paper_numbers
from setwise.paper.collected import METHODS, TERMS, Group, Row, machine, probed, resumptions
from setwise.paper.numbers import word
from setwise.paper.recipes import Cell as Place
from setwise.records.statistics import MeanStd, number, paired_difference
from setwise.report.page import NOT_RUN
from setwise.report.tables import NOTE, Cell, Table

MEASURES = {
    "held-out": "held_out_accuracy",
    "test": "test_accuracy",
    "quadratic held-out": "quadratic_held_out_accuracy",
    "quadratic test": "quadratic_test_accuracy",
}
ENDS = (" accuracy", ", difference to plain")  # of a measure's two columns
Costs = Mapping[tuple[str, str], float | None]  # minutes of training of what has no run, by recipe and variant
NOTHING: Costs = {}


def not_run(costs: Costs, *needed: str | tuple[str, str]) -> str | None:
    """How a cell is marked that needs runs of recipes, or variants of them, which have none: "not run: 12 min".

    None if all have runs, or if ``costs`` does not know them.
    """
    keys = [one if isinstance(one, tuple) else (one, "") for one in needed]
    missing = [costs[key] for key in keys if key in costs]
    if not missing:
        return None
    minutes = [one for one in missing if one is not None]
    return f"{NOT_RUN}: {sum(minutes):,.0f} min".replace(": 0 min", ": < 1 min") if minutes else NOT_RUN


def _accuracy(costs: Costs, group: Group, row: Row) -> Cell:
    """Its probe accuracy, or that it is not run."""
    found = row.mean("probe_accuracy")
    if found is not None or group.changed or row.suffix:
        return found
    return not_run(costs, Place("classification", group.form, group.data, group.encoder, row.base, row.term).name)


def matching_table(group: Group) -> Table:
    """Table 1 for one data set and number of instances."""
    columns = [
        *("loss", "n", *(f"{name}{end}" for name in MEASURES for end in ENDS)),
        *("quadratic adds", "structure off", "paper (CUHK-03)", "rank-1", "mAP"),
    ]
    rows = []
    for row in group.rows:
        cells: list[Cell] = [row.label, len(row.runs) or None]
        for key in MEASURES.values():
            cells += [row.mean(key), group.difference(row, key)]
        adds = paired_difference(row.values(f"quadratic_{group.measure[0]}"), row.values(group.measure[0]))
        weights = [number(run.record["final"].get("quadratic_weight")) for run in row.runs.values()]
        off = f"{weights.count(0.0)} of {len(weights)}" if weights else None
        rows.append([*cells, adds, off, paper_number(group, row), *map(row.mean, ("rank1", "mean_average_precision"))])
    note = (
        f"{NOTE} Each run keeps the epoch with the best validation accuracy. Held-out: mean over {_sets(group)} "
        "outside all splits, the same for all seeds. Quadratic adds: the change of the same runs' "
        f"{group.measure[1]} where pairs and structure are matched together. The files have more columns; structure "
        "off: runs whose validation split gave the structure weight 0, so that it adds nothing. "
        f"{machines(group)}"
    )
    if group.choices:
        by_reason: dict[str, list[str]] = {}
        for label, words in group.choices:
            by_reason.setdefault(words, []).append(label)
        note += (
            " How the weights of our terms were chosen: "
            + "; ".join(f"{', '.join(who)}: {words}" for words, who in by_reason.items())
            + "."
        )
    few = (*columns[:2], *(f"{name}{end}" for name in ("held-out", "test") for end in ENDS))
    few += ("quadratic adds", *(["paper (CUHK-03)"] if group.data == "cuhk03" else []))
    return Table(group.name, columns, rows, group.title, note, wrap=True, shown=few)


def classification_table(group: Group, costs: Costs = NOTHING) -> Table:
    """Tables 2 and 3 for one encoder, one data set and one form of the losses."""
    columns = ("method", "n", "probe accuracy", "difference to plain", "paper", "kNN-20 accuracy", "kNN-20, difference")
    rows = [
        (
            row.label,
            len(row.runs) or None,
            _accuracy(costs, group, row),
            group.difference(row, "probe_accuracy"),
            paper_number(group, row),
            row.mean("knn20_accuracy"),
            group.difference(row, "knn20_accuracy"),
        )
        for row in group.rows
        if group.is_main(row) or row not in group.sweep(row.base).values()  # a sweep has a table of its own
    ]
    note = f"{NOTE} Accuracies are those of the last epoch; verdicts use the linear probe. {machines(group)}"
    return Table(group.name, columns, rows, group.title, note)


BESIDE = 4  # groups in a table


def overview(groups: Sequence[Group], costs: Costs = NOTHING) -> list[Table]:
    """Probe accuracies of all encoders and data sets side by side; a table for each form that has several.

    One of more than ``BESIDE`` would be wider than a page: then each encoder has its own.
    """
    of_forms = Counter((group.form, group.changed) for group in probed(groups))
    by_form: dict[tuple[str, str, str], list[Group]] = {}
    for group in probed(groups):
        encoder = group.encoder if of_forms[group.form, group.changed] > BESIDE else ""
        by_form.setdefault((group.form, group.changed, encoder), []).append(group)
    tables = []
    for (form, changed, encoder), members in by_form.items():
        if len(members) < 2:
            continue  # it would repeat the one table
        keys = [(base, term) for base in METHODS for term in TERMS]
        keys = [key for key in keys if any((row.base, row.term) == key for group in members for row in group.rows)]
        columns = ["method"]
        rows: list[list[Cell]] = [[Row(*key).label] for key in keys]
        for group in members:
            column = f"{word(group.encoder)}, {word(group.data)}"
            columns += [column, f"{column}, paper"]
            for key, line in zip(keys, rows, strict=True):
                row = next((row for row in group.rows if (row.base, row.term) == key), Row(*key))
                line += [_accuracy(costs, group, row), paper_number(group, row)]
        more = (f", {word(encoder)}" if encoder else "") + (f" ({changed})" if changed else "")
        name = "-".join(filter(None, ("classification", form, encoder, changed)))
        note = "Mean ± sample standard deviation over the seeds, per cent. Each column has its own table below."
        tables.append(Table(name, columns, rows, f"Linear probe, {form} form{more}", note))
    return tables


def changes_table(groups: Sequence[Group]) -> Table | None:
    """Changed recipes, each compared to the same recipe with fewer changes or none; None without any."""
    rows: list[list[Cell]] = []
    for group in probed(groups):
        for row in group.rows:
            if (fewest := _fewer_changes(groups, group, row)) is None:
                continue
            (before, same), form = fewest, [word(row.loss)] if row.loss else []
            cells: list[Cell] = [
                f"{Row(row.base, row.term).label}: {group.setting.removesuffix('*')}",
                *map(_with, ([*form, *_changes(group)], before)),
            ]
            difference = paired_difference(row.values("probe_accuracy"), same.values("probe_accuracy"))
            rows.append([*cells, len(row.runs), row.mean("probe_accuracy"), difference])
    columns = ("method", "recipe", "compared to", "n", "probe accuracy", "difference")
    return Table("changes", columns, rows, "Changed recipes", NOTE, wrap=True) if rows else None


def shown_by_changes(groups: Sequence[Group], group: Group) -> bool:
    """Whether a changed recipe has no set-level term in any row, and the table of changes shows all its rows."""
    rows = [row for row in group.rows if row.runs]
    return bool(group.changed) and all(not row.term and _fewer_changes(groups, group, row) for row in rows)


def _fewer_changes(groups: Sequence[Group], group: Group, row: Row) -> tuple[list[str], Row] | None:
    """The nearest runs to compare with: their changes and their row; None without any."""
    mine = row.values("probe_accuracy")
    if row.loss and row.weight is None:  # another pairwise loss
        near = [(_changes(group), group.plain(row.base))]
    else:
        setting = (group.form, group.data, group.encoder)
        like = [other for other in probed(groups) if (other.form, other.data, other.encoder) == setting]
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
    if group.changed or not group.is_main(row):  # another recipe or weight than the paper's
        return None
    if group.kind == "matching":
        return paper_numbers.MATCHING.get((row.base, row.term))
    method = "-".join(filter(None, (row.base, row.term)))
    return paper_numbers.CLASSIFICATION.get((group.encoder, group.data, method))


def paper_gain(group: Group, one: Row, other: Row) -> str | None:
    """The paper's difference between two rows; none for matching on other data than the paper's."""
    with_it, without = paper_number(group, one), paper_number(group, other)
    same = group.kind != "matching" or group.data == "cuhk03"
    return f"{with_it.mean - without.mean:+.2f}" if with_it and without and same else None


def _sets(group: Group) -> str:
    """How many held-out sets of which size its runs had, in words."""
    sizes = set()
    for run in group.runs:
        data = run.record.get("data")
        count, size = (number(data.get(key)) if isinstance(data, dict) else None for key in ("held_out_sets", "test"))
        if count and size:
            sizes.add((count, size))
    return " and ".join(f"{count:.0f} sets of {size:,.0f}" for count, size in sorted(sizes)) or "sets"


def machines(group: Group) -> str:
    """A sentence: the machines and precisions of its runs."""
    commits = len({str(one.get("commit")) for run in group.runs for one in resumptions(run)})
    at = f", at {commits} commits of this project" if commits > 1 else ""
    return f"Ran on {' and '.join(sorted({machine(run) for run in group.runs}))}{at}."
