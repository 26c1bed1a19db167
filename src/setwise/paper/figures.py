"""The paper's two figures with our numbers: accuracy against QARe's weight (2), and what QARe costs (3)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from setwise.paper.collected import FEWEST, TERMS, Group, Row
from setwise.paper.numbers import MEMORY_ADDED, SAFE_WEIGHTS, TIME_ADDED, word
from setwise.paper.spectra import ranks
from setwise.records.record import read_json
from setwise.records.statistics import PairedDifference, number, paired_difference
from setwise.report.page import Page
from setwise.report.tables import NOTE, Cell, Table, filled, shown

MEASURE = "probe_accuracy"
SAFE = "{:g} to {:g}".format(*SAFE_WEIGHTS)


@dataclass(frozen=True)
class Sweep:
    """One loss in one setting with a set-level term of many weights, and the loss alone."""

    group: Group
    rows: dict[float, Row]  # by weight, ascending
    plain: Row

    @property
    def label(self) -> str:
        """In words: "SimCLR + QARe"."""
        row = next(iter(self.rows.values()))
        return f"{word(row.base)} + {TERMS[row.term]}"

    def safe(self) -> tuple[tuple[float, ...], dict[int, float]]:
        """The weights that the paper calls safe and were run, and each seed's mean accuracy over all of them."""
        low, high = SAFE_WEIGHTS
        within = {weight: row.values(MEASURE) for weight, row in self.rows.items() if low <= weight <= high}
        seeds = set.intersection(*map(set, within.values())) if within else set()
        return tuple(within), {seed: fmean(values[seed] for values in within.values()) for seed in sorted(seeds)}

    def against_plain(self) -> PairedDifference | None:
        """The safe weights' mean accuracy minus that of the loss alone: one interval, not one for each weight."""
        return paired_difference(self.safe()[1], self.plain.values(MEASURE))

    def against_zero(self) -> PairedDifference | None:
        """The same minus that of weight zero."""
        return paired_difference(self.safe()[1], self.rows[0.0].values(MEASURE)) if 0.0 in self.rows else None


def sweeps(group: Group) -> list[Sweep]:
    """The sweeps over QARe's weight in a group, and the plain loss, of the seeds that two weights or more have.

    Seeds of one weight only, or of the plain loss, would move that one up or down.
    """
    found = []
    for base in dict.fromkeys(row.base for row in group.rows):
        if rows := group.sweep(base):
            counts = Counter(seed for row in rows.values() for seed in row.runs)
            seeds = {seed for seed, count in counts.items() if count > 1}
            kept = {weight: _of_seeds(row, seeds) for weight, row in rows.items() if seeds & row.runs.keys()}
            if len(kept) >= FEWEST:
                found.append(Sweep(group, kept, _of_seeds(group.plain(base), seeds)))
    return found


def _of_seeds(row: Row, seeds: set[int]) -> Row:
    return replace(row, runs={seed: run for seed, run in row.runs.items() if seed in seeds})


def sweep_table(sweep: Sweep) -> Table:
    """Figure 2 in numbers."""
    columns = (
        *("weight of QARe", "n", "probe accuracy", "difference to weight 0", "difference to plain"),
        *("effective rank", "effective rank of features"),
    )
    zero = sweep.rows[0.0].values(MEASURE) if 0.0 in sweep.rows else {}
    plain = sweep.plain.values(MEASURE)
    rows: list[list[Cell]] = []
    if sweep.plain.runs:
        cells: list[Cell] = [f"none: {sweep.plain.label}", len(sweep.plain.runs), sweep.plain.mean(MEASURE), None, None]
        rows.append([*cells, *ranks(sweep.plain)])
    for weight, row in sweep.rows.items():
        values = row.values(MEASURE)
        to_zero = paired_difference(values, zero) if weight else None
        cells = [f"{weight:g}", len(row.runs), row.mean(MEASURE), to_zero, paired_difference(values, plain)]
        rows.append([*cells, *ranks(row)])
    name = f"weights-{sweep.group.name}-{next(iter(sweep.rows.values())).base}"
    zeros = "Weight 0 is the loss as it is with QARe (in the released form clamped), without QARe."
    note = f"{NOTE} {zeros} Seeds that only one weight has are left out."
    figure = "Figure 2" if sweep.group.encoder == "resnet32" else "As Figure 2, which is of ResNet-32"
    return Table(name, *filled(columns, rows), f"{figure}: {sweep.label}, {sweep.group.setting}", note)


def sweep_answer(sweep: Sweep) -> str:
    """Whether the weights that the paper calls safe are, in a sentence."""
    start = f"{sweep.label}, {sweep.group.setting}: "
    weights, _ = sweep.safe()
    plain, zero = sweep.against_plain(), sweep.against_zero()
    if plain is None:
        return f"{start}no seed yet with all weights from {SAFE} beside the loss without QARe."
    also = f", and {shown(zero)} points to weight 0" if zero else ""
    verdict = {
        "above": "they improve on it",
        "around": "an improvement cannot be told from none",
        "below": "they harm",
        "unknown": "one seed gives no interval",
    }[plain.side]
    many = f"the {len(weights)} weights" if len(weights) > 1 else "the one weight"
    seeds = f"{plain.n} seeds" if plain.n > 1 else "one seed"
    return (
        f'{start}the paper says that weights from {SAFE} "provide consistent improvement". Mean of {many} there, seed '
        f"by seed: {shown(plain)} points to the plain loss ({seeds}): {verdict}{also}."
    )


def sweep_onto(page: Page, sweep: Sweep) -> None:
    """The sentence, the picture and the table."""
    page.text(sweep_answer(sweep))
    most = max(len(row.runs) for row in sweep.rows.values())
    whole = {weight: row for weight, row in sweep.rows.items() if len(row.runs) == most}
    rows = whole if len(whole) >= FEWEST else sweep.rows
    weights = list(rows)
    means = {weight: row.mean(MEASURE) for weight, row in rows.items()}
    series = {sweep.label: [(weight, mean.mean) for weight, mean in means.items() if mean]}
    bands = {
        sweep.label: [
            (weight, mean.mean - mean.std, mean.mean + mean.std) for weight, mean in means.items() if mean and mean.std
        ]
    }
    if plain := sweep.plain.mean(MEASURE):
        label = f"{sweep.plain.label}, plain"
        series[label] = [(weight, plain.mean) for weight in (weights[0], weights[-1])]
    note = f"{sweep.group.title}. Shaded: one sample standard deviation over the seeds to each side."
    if len(rows) < len(sweep.rows):
        note += f" Weights that not all of {most} seeds have yet are in the table only."
    title = f"{sweep.label}, accuracy against weight"
    page.curves(title, series, x="weight of QARe", y="probe accuracy, %", note=note, bands=bands)
    sweep_table(sweep).onto(page)


@dataclass(frozen=True)
class Cost:
    """What one batch size costs: milliseconds of an iteration and its peak bytes, alone, with QARe, and dense QARe."""

    n: int
    plain_ms: float
    qare_ms: float | None
    added_ms: float | None
    dense_ms: float | None  # of an iteration with the dense term
    plain_bytes: float | None
    qare_bytes: float | None
    dense_bytes: float | None


@dataclass(frozen=True)
class Timing:
    """A record of ``setwise bench qare``."""

    file: str
    device: str
    encoder: str
    torch: str
    costs: tuple[Cost, ...]
    commit: str = "unknown"

    @property
    def where(self) -> str:
        """Machine and network, in words."""
        return f"{self.device}, {'projection head only' if self.encoder == 'none' else word(self.encoder)}"


def time_record(results: Path, device: torch.device) -> Path:
    """Where the record of this machine is or will be: bench-qare-h200.json."""
    name = torch.cuda.get_device_name(device).lower() if device.type == "cuda" else device.type
    return results / f"bench-qare-{re.sub(r'[^a-z0-9]+', '-', name.removeprefix('nvidia')).strip('-')}.json"


def timings(results: Path) -> tuple[list[Timing], list[str]]:
    """The records of Figure 3 in a folder, and what is named like one but cannot be read, in words."""
    found, aside = [], []
    for path in sorted(results.glob("bench-qare*.json")):
        try:
            found.append(_timing(path.name, read_json(path)))
        except ValueError as error:
            aside.append(f"{path.name}: {str(error).replace(str(path), path.name)}")
    return found, aside


def _timing(file: str, record: Any) -> Timing:
    if not isinstance(record, dict) or record.get("what") != "bench qare":
        raise ValueError("expected a record of `setwise bench qare`, got another file")
    rows = record.get("rows")
    costs = sorted(filter(None, map(_cost, rows)), key=lambda cost: cost.n) if isinstance(rows, list) else []
    if not costs:
        raise ValueError("expected rows with a batch size and the time of an iteration, got none")
    names = ("device", "encoder", "torch", "commit")
    device, encoder, version, commit = (str(record.get(key) or "unknown") for key in names)
    return Timing(file, device, encoder, version, tuple(costs), commit)


def _cost(row: object) -> Cost | None:
    """A row of the record; None without its batch size and time. What is not above zero was not measured."""
    if not isinstance(row, dict):
        return None
    names = ("n", "plain_ms", "qare_ms", "dense_term_ms", "plain_bytes", "qare_bytes", "dense_bytes")
    values = {key: value for key in names if (value := number(row.get(key))) is not None and value > 0}
    if "n" not in values or "plain_ms" not in values:
        return None
    plain, dense = values["plain_ms"], values.get("dense_term_ms")
    return Cost(
        n=int(values["n"]),
        plain_ms=plain,
        qare_ms=values.get("qare_ms"),
        added_ms=number(row.get("added_ms")),
        dense_ms=None if dense is None else plain + dense,
        **{key: values.get(key) for key in names[4:]},
    )


def cost_table(timing: Timing) -> Table:
    """Figure 3 in numbers: what is added, in per cent of the iteration or memory without QARe."""
    columns = (
        *(
            "batch",
            "iteration without QARe, ms",
            "QARe adds, ms",
            "QARe adds, %",
            "dense QARe adds, %",
            "paper's adds, %",
        ),
        *("memory, MiB", "QARe adds to it, %", "dense QARe adds to it, %", "paper's adds to it, %"),
    )
    rows: list[list[Cell]] = []
    for cost in timing.costs:
        added = None if cost.added_ms is None else 100 * cost.added_ms / cost.plain_ms
        cells: list[Cell] = [str(cost.n), cost.plain_ms, cost.added_ms, added, _more(cost.dense_ms, cost.plain_ms)]
        cells += [TIME_ADDED.get(cost.n), None if cost.plain_bytes is None else round(cost.plain_bytes / 2**20)]
        cells += [_more(value, cost.plain_bytes) for value in (cost.qare_bytes, cost.dense_bytes)]
        rows.append([*cells, MEMORY_ADDED.get(cost.n)])
    name = f"time-{timing.file.removesuffix('.json').removeprefix('bench-qare').strip('-') or 'here'}"
    note = (
        "Medians; QARe adds: the median of differences of iterations one after the other, so not the difference of the "
        "chart's two medians. A per cent or two of time or memory, and anything below zero, is the noise of the "
        "measurement. Dense: eigenvalues of the N x N matrices, "
        f"differentiated by the library, as the paper's algorithm is written. torch {timing.torch}, {timing.file}."
    )
    return Table(name, columns, rows, f"Figure 3: {timing.where}", note)


def _more(value: float | None, plain: float | None) -> float | None:
    return None if value is None or plain is None else 100 * (value / plain - 1)


def costs_onto(page: Page, timed: Sequence[Timing]) -> None:
    """The section of the page, time and memory for each machine; or nothing."""
    if not timed:
        return
    page.heading("What QARe costs (Figure 3)")
    page.text(
        "The paper reports 13 % more time of a training iteration of InfoNCE at a batch of 256, up to 29 % at 2,048, "
        "and 0.78 % more memory at 2,048, by eigenvalues of dense matrices. Below, batch sizes are per view, and both "
        "axes are logarithmic."
    )
    labels = {"plain": "InfoNCE", "qare": "InfoNCE + QARe, setwise", "dense": "InfoNCE + QARe, dense"}
    for timing in timed:
        for what, unit, scale in (("ms", "iteration, ms", 1.0), ("bytes", "peak memory, MiB", 2.0**-20)):
            series = {}
            for key, label in labels.items():
                pairs = [(cost.n, getattr(cost, f"{key}_{what}")) for cost in timing.costs]
                if points := [(float(n), scale * value) for n, value in pairs if value is not None]:
                    series[label] = points
            if series:
                kind = "time" if what == "ms" else "memory"
                page.curves(f"{timing.where}, {kind}", series, x="batch size N", y=unit, log="xy")
        cost_table(timing).onto(page)
