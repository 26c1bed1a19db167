"""The report: one page that answers first and shows its numbers after, and its tables as files beside it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from setwise.experiments.page import Page
from setwise.experiments.paper_numbers import word
from setwise.experiments.statistics import PairedDifference, number
from setwise.experiments.tables import (
    CHOSEN,
    TERMS,
    Cell,
    Group,
    Row,
    Run,
    Table,
    collect,
    groups,
    machine,
    paper_number,
    tables_of,
)
from setwise.training.checkpoint import replacing

LONGEST = 120  # of a file's name: file systems take 255 bytes
SIDES = {
    "above": "is above zero for",
    "around": "contains zero for",
    "below": "is below zero for",
    "unknown": "cannot be given, with one seed, for",
}
EXPLAINED = (
    "Differences are taken seed by seed, between the loss with the term and the same loss without it, and then "
    "averaged; in brackets the 95 % interval (Student's t). An interval that contains zero means that these runs "
    "cannot tell, not that there is no effect; and of twenty intervals one misses by chance."
)


def report(results: Path, out: Path) -> list[Path]:
    """Write the page and the tables of all records below ``results``; the files written, the page first."""
    runs, aside = collect(results)
    if not runs:
        also = f" that can be read ({_count(len(aside), 'file')} set aside, the first: {aside[0]})" if aside else ""
        raise ValueError(
            f"expected records of runs below {results / 'runs'}, got none{also}; `setwise reproduce table1` makes some"
        )
    found = groups(runs)
    files = [out / "index.html"]
    page = make_page(found, aside)
    taken: set[str] = set()
    for table in [differences(found), *tables_of(found)]:
        name = table.name[:LONGEST].strip("-")
        while name in taken:  # names lose the signs that files should not have, and their ends
            name += "-more"
        taken.add(name)
        for end, text in (("md", table.markdown()), ("csv", table.csv())):
            files.append(out / f"{name}.{end}")
            with replacing(files[-1]) as temporary:
                temporary.write_text(text, encoding="utf-8")
    page.write(files[0])
    return files


def make_page(found: Sequence[Group], aside: Sequence[str]) -> Page:
    """The page of sorted runs; ``aside`` are the files that have no place in it."""
    page = Page("Does contrasting sets help?", lead=_lead(found))
    page.text(*filter(None, map(answers, found)))
    if (table := differences(found)).rows:
        table.onto(page)
    page.heading("Tables")
    for table in tables_of(found):
        table.onto(page)
    page.heading("Learning curves")
    page.text("Means over the seeds, at epochs that every seed of a row has.")
    for group in found:
        _curves(page, group)
    page.heading("Where the numbers come from")
    for group in found:
        page.details(f"{group.title}: {_count(len(group.runs), 'run')}", provenance(group.runs))
    if aside:
        page.details(f"Set aside: {_count(len(aside), 'file')} without a place in a table", "\n".join(aside))
    return page


def measure_of(group: Group) -> tuple[str, str]:
    """The measure that answers for a group, and its name: many held-out sets tell more than one test set of 220."""
    if group.kind != "matching":
        return "probe_accuracy", "probe accuracy"
    if any(number(run.record["final"].get("held_out_accuracy")) is not None for run in group.runs):
        return "held_out_accuracy", "matching accuracy on held-out sets"
    return "test_accuracy", "matching accuracy on the test split"


def compared(group: Group, term: str) -> list[tuple[Row, PairedDifference]]:
    """Rows with this term and their differences to the loss without it, where both were run.

    Rows of other weights than the recipe's, or the chosen one, are for the tables only.
    """
    found = []
    for row in group.rows:
        difference = group.difference(row, measure_of(group)[0])
        if row.term == term and _is_main(group, row) and difference is not None:
            found.append((row, difference))
    return found


def _is_main(group: Group, row: Row) -> bool:
    return not row.said or (group.kind == "matching" and row.term in CHOSEN)


def answers(group: Group) -> str:
    """What a group says of each set-level term, a sentence for each; nothing where nothing can be compared."""
    sentences = []
    for term in filter(None, TERMS):
        found = compared(group, term)
        parts = []
        for side, words in SIDES.items():
            names = [word(row.base) for row, difference in found if difference.side == side]
            if names:
                parts.append(f"{words} {', '.join(names[:-1])}{' and ' if names[1:] else ''}{names[-1]}")
        if parts:
            whose = "QARe's" if term == "qare" else f"The {TERMS[term]}'s"
            sentences.append(f"{whose} interval {'; it '.join(parts)}.")
    return f"{group.title}, {measure_of(group)[1]}: {' '.join(sentences)}" if sentences else ""


def differences(found: Sequence[Group]) -> Table:
    """What every term adds to every loss, in one table."""
    terms = [term for term in TERMS if term]
    rows: list[list[Cell]] = []
    for group in found:
        cells = {term: {row.base: difference for row, difference in compared(group, term)} for term in terms}
        for base in dict.fromkeys(row.base for row in group.rows):
            if any(base in cells[term] for term in terms):
                with_qare, plain = (paper_number(group, Row(base, term)) for term in ("qare", ""))
                same = group.kind != "matching" or group.data == "cuhk03"
                gain = f"{with_qare.mean - plain.mean:+.2f}" if with_qare and plain and same else None
                label = f"{word(base)}: {_setting(group)}"
                ours, *others = (cells[term].get(base) for term in terms)
                rows.append([label, ours, gain, *others])
    columns = ["loss", TERMS["qare"], "paper's QARe", *(TERMS[term] for term in terms[1:])]
    starred = " *: recipes with changes, which the tables below name." if any(group.changed for group in found) else ""
    return Table("differences", columns, rows, "What set-level terms add, in points of accuracy", EXPLAINED + starred)


def _setting(group: Group) -> str:
    """Its title in few words, for a column; an asterisk where recipes were changed."""
    words = group.title.partition(" (")[0].removesuffix(" instances").removesuffix(" form")
    return words.partition(", ")[2] + ("*" if group.changed else "")


def _lead(found: Sequence[Group]) -> str:
    sides = [difference.side for group in found for _, difference in compared(group, "qare")]
    runs = _count(sum(len(group.runs) for group in found), "run")
    if not sides:
        return f"{runs}, and none yet with QARe beside one of the same seed without it: no answer."
    told = [side for side in sides if side != "unknown"]
    counts = {side: told.count(side) for side in ("above", "around", "below")}
    lead = f"QARe was compared with the same loss without it in {_count(len(sides), 'setting')} ({runs} in all). "
    if told:
        lead += (
            f"The 95 % interval of the difference is above zero in {counts['above']} of them (QARe helps), contains "
            f"zero in {counts['around']} (cannot be told) and is below zero in {counts['below']} (QARe harms)."
        )
    if len(told) < len(sides):
        lead += f" In {len(sides) - len(told)} there is one seed only, which gives no interval."
    return lead


def _curves(page: Page, group: Group) -> None:
    """Validation accuracy of each matching loss; the terms of the loss of each contrastive method."""
    bases = dict.fromkeys(row.base for row in group.rows if row.runs)
    kinds: dict[str, tuple[str, str, Callable[[dict[str, Any]], object]]]
    if group.kind == "matching":
        kinds = {"validation accuracy": ("accuracy", "%", lambda epoch: epoch.get("val_accuracy"))}
    else:
        kinds = {
            "loss without the set-level term": ("loss", "", lambda epoch: epoch.get("pairwise", epoch.get("loss"))),
            "set-level term": ("term", "", lambda epoch: epoch.get("regularizer")),
        }
    for base in bases:
        rows = [row for row in group.rows if row.base == base and row.runs and _is_main(group, row)]
        for what, (y, unit, value) in kinds.items():
            scale = 100.0 if unit else 1.0
            series = {row.label: [(x, scale * v) for x, v in mean_curve(row.runs.values(), value)] for row in rows}
            series = {label: points for label, points in series.items() if points}
            if series:
                title = f"{word(base)}, {what}"
                page.curves(title, series, x="epoch", y=f"{y}, {unit}".rstrip(", "), note=group.title)


def mean_curve(runs: Iterable[Run], value: Callable[[dict[str, Any]], object]) -> list[tuple[float, float]]:
    """(epoch, mean over the runs) where every run has a finite value: a mean over changing seeds would jump."""
    found = []
    for run in runs:
        epochs = run.record.get("epochs")
        rows = [row for row in epochs if isinstance(row, dict)] if isinstance(epochs, list) else []
        pairs = [(number(row.get("epoch")), number(value(row))) for row in rows]
        found.append({epoch: y for epoch, y in pairs if epoch is not None and y is not None})
    shared = sorted(set.intersection(*map(set, found))) if found else []
    return [(epoch, fmean(one[epoch] for one in found)) for epoch in shared]


def provenance(runs: Iterable[Run]) -> str:
    """Commit, versions, hardware and command, each with the records that were made so."""
    made: dict[str, list[Run]] = {}
    for run in runs:
        record = run.record
        command = record.get("command")
        lines = [
            f"$ {shlex.join(map(str, command))}" if isinstance(command, list) else "command unknown",
            f"commit {record.get('commit') or 'unknown'}",
            "versions " + _pairs(record.get("versions")),
            f"{machine(run)}; " + _pairs(record.get("hardware")),
        ]
        made.setdefault("\n".join(lines), []).append(run)
    parts = []
    for how, members in made.items():
        folders: dict[str, list[int]] = {}
        for run in members:
            folders.setdefault(run.path.rpartition("/")[0], []).append(run.seed)
        seconds = [number(_below(run.record.get("timings"), "training_seconds")) for run in members]
        total = sum(value for value in seconds if value is not None)
        lines = [f"  {folder}: seed {', '.join(map(str, sorted(seeds)))}" for folder, seeds in sorted(folders.items())]
        parts.append("\n".join([how, f"{_count(len(members), 'run')}, {total:,.0f} s of training", *lines]))
    return "\n\n".join(parts)


def _pairs(values: object) -> str:
    if not isinstance(values, dict):
        return "unknown"
    return ", ".join(f"{key} {value if isinstance(value, str) else json.dumps(value)}" for key, value in values.items())


def _below(values: object, key: str) -> object:
    return values.get(key) if isinstance(values, dict) else None


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n:,} {what}s"
