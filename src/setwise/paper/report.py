"""The report: one page that answers first and shows its numbers after, and its tables as files beside it."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from setwise.checks import see
from setwise.paper.ablation import ablation_answer, ablation_table, is_ablation
from setwise.paper.claims import claims, differences, lead, pictured, settings
from setwise.paper.collected import Group, Run, collect, groups, sittings
from setwise.paper.figures import Timing, cost_table, costs_onto, sweep_onto, sweep_table, sweeps, timings
from setwise.paper.numbers import word
from setwise.paper.spectra import looks_table, spectra_onto
from setwise.paper.tables import changes_table, said_by_changes, tables_of
from setwise.records.run import mean_curve, pause_collection
from setwise.records.statistics import number
from setwise.report.page import Page
from setwise.report.tables import Table, own_tables
from setwise.terminal import visible
from setwise.training.checkpoint import replacing

PICTURED = (
    "Means over the seeds and their 95 % intervals, in colour where these exclude zero; hollow: what the paper has. "
    "An arrow: further than drawn; a mean there has no dot."
)
LONGEST = 120  # of a file's name: file systems take 255 bytes


@pause_collection()
def report(results: Path, out: Path) -> list[Path]:
    """Write the page and the tables of all records below ``results``; the files written, the page first."""
    runs, aside = collect(results)
    timed, also_aside = timings(results)
    aside += also_aside
    if not runs and not timed:
        also = f" that can be read ({_count(len(aside), 'file')} set aside, the first: {aside[0]})" if aside else ""
        raise ValueError(
            f"expected records of runs below {results / 'runs'}, got none{also}; `setwise reproduce table1` makes "
            f"some, runs of your own have theirs in their folders, {see('how-to/reproduce')}"
        )
    found = groups(runs)
    files = [out / "index.html"]
    page = make_page(found, aside, timed)
    taken: set[str] = set()
    for table in all_tables(found, timed):
        name = re.sub(r"[^a-z0-9]+", "-", table.name.lower())[:LONGEST].strip("-")
        while name in taken:  # names lose the signs that files should not have, and their ends
            name += "-more"
        taken.add(name)
        for end, text in (("md", table.markdown()), ("csv", table.csv())):
            files.append(out / f"{name}.{end}")
            with replacing(files[-1]) as temporary:
                # JSON may hold half a letter.
                temporary.write_text(visible(text), encoding="utf-8", errors="backslashreplace")
    page.write(files[0])
    if aside:
        print(f"setwise: {_count(len(aside), 'file')} set aside, the end of the page says why", file=sys.stderr)
    return files


def all_tables(found: Sequence[Group], timed: Sequence[Timing] = ()) -> list[Table]:
    """Every table of the page, in its order."""
    more = _more_to_see(found)
    return [
        claims(found),
        differences(found),
        settings(found),
        *tables_of(more),
        *(sweep_table(sweep) for group in found for sweep in sweeps(group)),
        *map(ablation_table, filter(is_ablation, found)),
        *filter(None, [changes_table(found)]),
        *filter(None, map(looks_table, more)),
        *map(cost_table, timed),
        *own_tables([run for group in found for run in group.runs]),
    ]


def make_page(found: Sequence[Group], aside: Sequence[str], timed: Sequence[Timing] = ()) -> Page:
    """The page of sorted runs; ``aside`` are the files that have no place in it."""
    more = _more_to_see(found)
    page = Page("Does contrasting sets help?", lead=lead(found))
    if gains := pictured(found):
        page.intervals("What QARe adds, in points of accuracy", gains, other="paper", note=PICTURED)
    claims(found).onto(page)
    if gains:
        page.heading("Setting by setting")
    for table in (differences(found), settings(found)):
        if table.rows:
            table.onto(page)
    if tables := tables_of(more):
        page.heading("Tables")
        for table in tables:
            table.onto(page)
    if swept := [sweep for group in found for sweep in sweeps(group)]:
        page.heading("Accuracy against QARe's weight (Figure 2)")
        for sweep in swept:
            sweep_onto(page, sweep)
    chosen, changes = [group for group in found if is_ablation(group)], changes_table(found)
    if chosen or changes:
        page.heading("One thing changed at a time")
        for group in chosen:
            page.text(ablation_answer(group))
            ablation_table(group).onto(page)
        if changes:
            changes.onto(page)
    if own := own_tables([run for group in found for run in group.runs]):
        page.heading("Tables of your own")
        for table in own:
            table.onto(page)
    spectra_onto(page, more)
    costs_onto(page, timed)
    if found:
        page.heading("Learning curves")
        page.text("Means over the seeds, at epochs that every seed of a row has.")
        for group in more:
            if not group.validation:
                _curves(page, group)
    page.heading("Where the numbers come from")
    for group in found:
        page.details(f"{group.title}: {_count(len(group.runs), 'run')}", provenance(group.runs))
    if timed:
        lines = [f"{one.file}: {one.device}, torch {one.torch}, commit {one.commit}" for one in timed]
        page.details(f"Figure 3: {_count(len(timed), 'record')}", "\n".join(["$ setwise bench qare", *lines]))
    if aside:
        page.details(f"Set aside: {_count(len(aside), 'file')} without a place in a table", "\n".join(aside))
    return page


def _more_to_see(found: Sequence[Group]) -> list[Group]:
    return [group for group in found if not said_by_changes(found, group)]


def _curves(page: Page, group: Group) -> None:
    """Validation accuracy of each matching loss; the terms of the loss of each contrastive method."""
    bases = dict.fromkeys(row.base for row in group.rows if row.runs)
    kinds: dict[str, tuple[str, str, tuple[str, ...]]]
    if group.kind == "matching":
        kinds = {"validation accuracy": ("accuracy", "%", ("val_accuracy",))}
    else:
        kinds = {
            "loss without the set-level term": ("loss", "", ("pairwise", "loss")),
            "set-level term": ("term", "", ("regularizer",)),
        }
    for base in bases:
        rows = [row for row in group.rows if row.base == base and row.runs and group.is_main(row)]
        for what, (y, unit, names) in kinds.items():
            scale = 100.0 if unit else 1.0
            means = {row.label: mean_curve(run.curve(*names) for run in row.runs.values()) for row in rows}
            series = {label: [(x, scale * v) for x, v in points] for label, points in means.items()}
            if any(series.values()):  # a row without any keeps its colour
                title = f"{word(base)}, {what}"
                page.curves(title, series, x="epoch", y=f"{y}, {unit}".rstrip(", "), note=group.title)


def provenance(runs: Iterable[Run]) -> str:
    """Commit, versions, hardware and command, each with the records that were made so."""
    made: dict[str, list[Run]] = {}
    for run in runs:
        *earlier, last = sittings(run)
        lines = [f"{_made(one)}\ntrained from epoch {one.get('epoch', 'unknown')} on, then:" for one in earlier]
        lines += [_made(last), f"precision {run.record.get('precision') or 'unknown'}"]
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


def _made(by: dict[str, Any]) -> str:
    """Command, commit, versions and hardware of a process."""
    command = by.get("command")
    lines = [
        f"$ {shlex.join(map(str, command))}" if isinstance(command, list) else "command unknown",
        f"commit {by.get('commit') or 'unknown'}",
        f"versions {_pairs(by.get('versions'))}",
        f"hardware {_pairs(by.get('hardware'))}",
    ]
    return "\n".join(lines)


def _pairs(values: object) -> str:
    if not isinstance(values, dict):
        return "unknown"
    return ", ".join(f"{key} {value if isinstance(value, str) else json.dumps(value)}" for key, value in values.items())


def _below(values: object, key: str) -> object:
    return values.get(key) if isinstance(values, dict) else None


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n:,} {what}s"
