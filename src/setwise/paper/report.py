"""The paper's report: one page with the answer first and the numbers after it, and every table as a file."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from setwise.checks import see
from setwise.paper.ablation import ablation_answer, ablation_table, is_ablation
from setwise.paper.claims import by_claim, claims, differences, lead, pictured, settings
from setwise.paper.collected import Group, Run, collect, probed, resumptions
from setwise.paper.collected import groups as sort_into_groups
from setwise.paper.figures import Timing, cost_table, costs_onto, count, sweep_onto, sweep_table, sweeps, timings
from setwise.paper.missing import (
    Part,
    claims_not_run,
    costs,
    missing_table,
    part_of,
    parts,
    table1_not_run,
)
from setwise.paper.numbers import word
from setwise.paper.paying import PICTURED as MAPPED
from setwise.paper.paying import map_answer, map_rows, map_table, maps
from setwise.paper.spectra import looks_table, spectra_onto
from setwise.paper.tables import changes_table, classification_table, matching_table, overview, shown_by_changes
from setwise.paper.tuned import settings as settings_of
from setwise.paper.tuned import trials_table, tuned_answer, tuned_table
from setwise.records.run import mean_curve, pause_collection
from setwise.records.statistics import number
from setwise.report.page import Page
from setwise.report.tables import NOTE, Table, own_tables
from setwise.terminal import visible
from setwise.training.checkpoint import replacing

PICTURED = (
    "Mean over the seeds and 95 % interval; coloured where the interval excludes zero. Hollow: the paper's number. An "
    "arrow: the interval goes on; a mean out there has no dot. Settings with an encoder are linear probes, settings "
    "with a number of instances are matching."
)
COSTS = (
    "The paper reports that QARe, by eigenvalues of dense matrices, adds 13 % to the time of a training iteration of "
    "InfoNCE at a batch of 256 and 29 % at 2,048, and 0.78 % to its memory at 2,048. Below, batch sizes are per view, "
    "and both axes are logarithmic."
)
LONGEST = 120  # of a file's name: file systems take 255 bytes


@pause_collection()
def report(results: Path, out: Path) -> list[Path]:
    """Write the page and the tables of all records below ``results``; returns the files, the page first."""
    page, tables, aside = read_page(results)
    files = [out / "index.html"]
    taken: set[str] = set()
    for table in tables:
        name = re.sub(r"[^a-z0-9]+", "-", table.name.lower())[:LONGEST].strip("-")
        while name in taken:  # two long names may become one
            name += "-more"
        taken.add(name)
        for end, text in (("md", table.markdown()), ("csv", table.csv())):
            files.append(out / f"{name}.{end}")
            with replacing(files[-1]) as temporary:
                # JSON may hold half a letter.
                temporary.write_text(visible(text), encoding="utf-8", errors="backslashreplace")
    page.write(files[0])
    if aside:
        print(f"setwise: {count(len(aside), 'file')} set aside; the end of the page says why", file=sys.stderr)
    return files


def read_page(results: Path) -> tuple[Page, list[Table], list[str]]:
    """The page of all records below ``results``, its tables, and the files that are set aside, with reasons."""
    runs, aside = collect(results)
    timed, unread = timings(results)
    aside += unread
    if not runs and not timed:
        also = f" that can be read ({count(len(aside), 'file')} set aside, the first: {aside[0]})" if aside else ""
        raise ValueError(
            f"expected records of runs below {results / 'runs'}, got none{also}; `setwise reproduce table1` makes "
            f"some, {see('how-to/reproduce')}; `setwise report FOLDER` shows runs of your own"
        )
    apart = [run for run in runs if run.trial or run.point]
    return *make_page(sort_into_groups(runs), aside, timed, apart, parts(results) if runs else ()), aside


def make_page(
    groups: Sequence[Group],
    aside: Sequence[str],
    timed: Sequence[Timing] = (),
    trials: Sequence[Run] = (),
    wanted: Sequence[Part] = (),
) -> tuple[Page, list[Table]]:
    """The page, and its tables; ``aside`` are the files that have no place in it, with reasons.

    ``trials`` are runs of tuning and of the map, which are in no group; ``wanted`` are the parts of the paper, some of
    whose runs may be missing.
    """
    unmade = costs(wanted)
    page = Page("Does contrasting sets help?", lead=lead(groups))
    tables: list[Table] = []
    tuned = settings_of(trials, groups)
    mapped = maps(trials, tuned)
    for one in mapped:
        page.text(map_answer(one))

    def put(*more: Table | None) -> None:
        for table in more:
            if table and table.rows:
                explained = any(NOTE in other.note for other in tables)  # once on a page, in every file
                tables.append(table)
                replace(table, note=table.note.replace(NOTE, "").strip() if explained else table.note).onto(page)

    def say_left(part: Part | None) -> None:
        if part and part.left:
            page.text(part.sentence)

    if pictures := pictured(groups):
        page.intervals("What QARe adds, in points of accuracy", pictures, other="paper", note=PICTURED)
    put(claims(groups))
    if pictures:
        page.heading("Setting by setting")
    put(differences(groups))
    answered = by_claim(groups, claims_not_run(wanted))
    if (every := settings(answered)).rows:
        tables.append(every)  # a file; on the page, a table for each claim
    for table in answered:
        if table.rows:
            table.onto(page)
    more = [group for group in groups if not shown_by_changes(groups, group)]
    main = [matching_table(group) for group in more if group.kind == "matching"]
    main += overview(more, unmade) + [classification_table(group, unmade) for group in probed(more)]
    main += [table for table in (table1_not_run(unmade),) if table.rows]
    if main:
        page.heading("Tables")
        put(*main)
    swept, figure = [sweep for group in groups for sweep in sweeps(group)], part_of(wanted, "fig-beta", "cifar10")
    if swept:
        page.heading("Accuracy against QARe's weight (Figure 2)")
        for sweep in swept:
            sweep_onto(page, sweep)
            put(sweep_table(sweep))
        if figure and figure.left:
            page.text(f"{figure.title}. {figure.sentence}")
    chosen, changes = [group for group in groups if is_ablation(group)], changes_table(groups)
    if chosen or changes:
        page.heading("One change at a time")
        for group in chosen:
            page.text(ablation_answer(group))
            put(ablation_table(group))
        put(changes)
    if tuned:
        page.heading("Every objective tuned")
        for setting in tuned:
            page.text(tuned_answer(setting))
            say_left(part_of(wanted, "tuned", setting.data, setting.encoder))
            put(tuned_table(setting, unmade) if setting.tested else None, trials_table(setting))
    if mapped:
        page.heading("Where does it pay?")
        for one in mapped:
            say_left(part_of(wanted, "map", one.data))
            if gains := map_rows(one):
                title = f"What set-level terms add to tuned SimCLR, in points: {word(one.data)}, Conv-4"
                page.intervals(title, gains, other="again", note=MAPPED)
            put(map_table(one))
    if own := own_tables([run for group in groups for run in group.runs]):
        page.heading("Your own tables")
        put(*own)
    spectra_onto(page, more)
    tables += filter(None, map(looks_table, more))
    if timed:
        page.heading("What QARe costs (Figure 3)")
        page.text(COSTS)
        for timing in timed:
            costs_onto(page, timing)
            put(cost_table(timing))
    if any(part.left for part in wanted):
        page.heading("Not run")
        put(missing_table(wanted))
    if groups:
        page.heading("Learning curves")
        page.text("Means over the seeds, at epochs that every seed of a row has.")
        for group in more:
            if not group.validation:
                _curves(page, group)
    page.heading("Where the numbers come from")
    for group in groups:
        page.details(f"{group.title}: {count(len(group.runs), 'run')}", provenance(group.runs))
    for setting in tuned:
        page.details(f"Tuning, {setting.title}: {count(len(setting.runs), 'run')}", provenance(setting.runs))
    for one in mapped:
        page.details(f"The map, {word(one.data)}: {count(len(one.runs), 'run')}", provenance(one.runs))
    if timed:
        lines = [f"{one.file}: {one.device}, torch {one.torch}, commit {one.commit}" for one in timed]
        page.details(f"Figure 3: {count(len(timed), 'record')}", "\n".join(["$ setwise bench qare", *lines]))
    if aside:
        page.details(f"Set aside: {count(len(aside), 'file')} without a place in a table", "\n".join(aside))
    return page, tables


# What is drawn over the epochs: title, axis, scale, and the metrics, the first of which that is there counts.
CURVES: dict[str, list[tuple[str, str, float, tuple[str, ...]]]] = {
    "matching": [("validation accuracy", "accuracy, %", 100.0, ("val_accuracy",))],
    "classification": [
        ("loss without the set-level term", "loss", 1.0, ("pairwise", "loss")),
        ("set-level term", "term", 1.0, ("regularizer",)),
    ],
}


def _curves(page: Page, group: Group) -> None:
    """Learning curves of each loss or method, with and without set-level terms."""
    for base in dict.fromkeys(row.base for row in group.rows if row.runs):
        rows = [row for row in group.rows if row.base == base and row.runs and group.is_main(row)]
        for what, y, scale, names in CURVES[group.kind]:
            means = {row.label: mean_curve(run.curve(*names) for run in row.runs.values()) for row in rows}
            series = {label: [(x, scale * v) for x, v in points] for label, points in means.items()}
            if any(series.values()):  # a row without any keeps its colour
                page.curves(f"{word(base)}, {what}", series, x="epoch", y=y, note=group.title)


def provenance(runs: Iterable[Run]) -> str:
    """Each command, commit, versions and hardware, with the records that they made."""
    made: dict[str, list[Run]] = {}
    for run in runs:
        *earlier, last = resumptions(run)
        lines = [f"{_made(one)}\ntrained from epoch {one.get('epoch', 'unknown')} on, then:" for one in earlier]
        lines += [_made(last), f"precision {run.record.get('precision') or 'unknown'}"]
        made.setdefault("\n".join(lines), []).append(run)
    parts = []
    for origin, members in made.items():
        folders: dict[str, list[int]] = {}
        for run in members:
            folders.setdefault(run.path.rpartition("/")[0], []).append(run.seed)
        timings_of = [run.record.get("timings") for run in members]
        seconds = [number(one.get("training_seconds")) for one in timings_of if isinstance(one, dict)]
        total = sum(filter(None, seconds))
        lines = [f"  {folder}: seed {', '.join(map(str, sorted(seeds)))}" for folder, seeds in sorted(folders.items())]
        parts.append("\n".join([origin, f"{count(len(members), 'run')}, {total:,.0f} s of training", *lines]))
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
