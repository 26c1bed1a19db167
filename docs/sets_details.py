"""Every table of the study of sets: tuned and untuned runs, recall, partners inside sets, "no partner"."""

from __future__ import annotations

from pathlib import Path

from paragraphs import markdown
from sets_runs import HARD, ONE, QUADRATIC, SAME, WAYS, Row, Study, Ways, from_to, gain, machines, name, study
from sets_runs import values as values_of
from setwise.records.statistics import mean_std
from setwise.report.tables import Cell

STAGES = {
    "tuned": "Temperature, epochs and price chosen for each way on validation data",
    "untuned": "The recipe's own numbers, nothing tuned",
}
KINDS = {
    "plain": "sets of all sizes",
    "missing": "items without a partner",
    "wrong": "wrong sets",
    "other": "other starts",
}
MEASURES = {"recall1": "recall@1, %", "aligned": "partners found inside sets, %"}
UNTUNED_PRICE = "-0.3"


def all_tables_of_sets(path: Path) -> str:
    """All that is in the study's file."""
    found, parts = study(path), []
    for stage, about in STAGES.items():
        rows, title = found.stages[stage], stage.capitalize()
        if not rows:
            continue
        runs = (run for ways in rows.values() for some in ways.values() for run in some)
        parts += [f"## {title}", f"{about} ({machines(runs)})."]
        for kind, what in KINDS.items():
            some = {row: ways for row, ways in rows.items() if _kind(row) == kind}
            tables = [_table(some, measure, found, stage) for measure in MEASURES]
            parts += [f"### {title}: {what}", *tables] if any(tables) else []
        alone = _alone(rows, found)
        parts += [f'### {title}: how well "no partner" is known', alone] if alone else []
    return "\n\n".join(filter(None, parts)) or "Not run yet: `python benchmarks/sets_study.py` makes the runs."


def _kind(row: Row) -> str:
    return "other" if row.scene else "missing" if row.missing else "wrong" if row.wrong else "plain"


def _table(rows: dict[Row, Ways], measure: str, found: Study, stage: str) -> str:
    """The measure of "same", and what the other ways add to it, seed by seed; "" where there is none."""
    table: list[list[Cell]] = []
    present = {way for ways in rows.values() for way in ways}
    others = [(one, priced) for one in WAYS for priced in (False, True) if (one, priced) in present - {SAME}]
    compared = [(way, SAME) for way in others]
    compared += [pair for pair in ((ONE, HARD), (QUADRATIC, ONE)) if present.issuperset(pair)]
    for row, ways in rows.items():
        same = values_of(ways, SAME, measure)
        if not same:
            continue
        gains = [gain(ways, a, b, measure) for a, b in compared]
        seeds = from_to([len(same), *(one.n for one in gains if one is not None)])
        trials = [from_to(found.tries(row, way) for way in ways)] if stage == "tuned" else []
        table.append([", ".join(row.parts), seeds, *trials, mean_std([*same.values()]), *gains])
    columns = [MEASURES[measure], "seeds", *(["trials"] if stage == "tuned" else []), name(SAME)]
    columns += [f"{name(a)} adds" if b == SAME else f"{name(a)} − {name(b)}" for a, b in compared]
    return markdown(columns, table) if table else ""


def _alone(rows: dict[Row, Ways], found: Study) -> str:
    """How well "no partner" is known, at the price of sw.align that was best for it in the trial that was chosen."""
    table: list[list[Cell]] = []
    for row, ways in rows.items():
        for way, runs in ways.items() if row.missing else ():
            tried = [one for one in found.trials.get(row, {}).get(way, []) if one["changes"] == runs[0]["changes"]]
            prices = tried[0]["final"]["alone"] if tried else {UNTUNED_PRICE: [1.0, 1.0]}
            price = max(prices, key=lambda price: _f1(*prices[price]))
            both = zip(*(run["final"]["alone"][price] for run in runs), strict=True)
            means = [mean_std([100 * x for x in values]) for values in both]
            table.append([", ".join(row.parts), name(way), price, *means, str(len(runs))])
    columns = ("no partner", "truth in training", "price of `sw.align`", "precision, %", "recall, %", "seeds")
    return markdown(columns, table) if table else ""


def _f1(precision: float, recall: float) -> float:
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0
