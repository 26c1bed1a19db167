"""The paper's two figures with our numbers: accuracy against QARe's weight (2), and what QARe costs (3)."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from setwise.paper.collected import FEWEST, Group, Row
from setwise.paper.numbers import MEMORY_ADDED, SAFE_WEIGHTS, TIME_ADDED, word
from setwise.paper.spectra import ranks
from setwise.records.record import read
from setwise.records.statistics import PairedDifference, number, paired_difference
from setwise.report.page import Page
from setwise.report.tables import NOTE, Cell, Table, filled, shown

MEASURE = "probe_accuracy"
SAFE = "{:g} to {:g}".format(*SAFE_WEIGHTS)
VERDICTS = {
    "above": "they help",
    "around": "these runs cannot tell whether they help",
    "below": "they harm",
    "unknown": "one seed gives no interval",
}


@dataclass(frozen=True)
class Sweep:
    """One loss in one setting: with QARe at many weights, and alone."""

    group: Group
    rows: dict[float, Row]  # by weight, ascending
    plain: Row

    @property
    def label(self) -> str:
        """In words: "SimCLR + QARe"."""
        return Row(self.plain.base, "qare").label

    def safe(self) -> tuple[tuple[float, ...], dict[int, float]]:
        """The weights that the paper calls safe, and each seed's mean accuracy over them."""
        low, high = SAFE_WEIGHTS
        within = {weight: row.values(MEASURE) for weight, row in self.rows.items() if low <= weight <= high}
        seeds = set.intersection(*map(set, within.values())) if within else set()
        return tuple(within), {seed: fmean(values[seed] for values in within.values()) for seed in sorted(seeds)}

    def against_plain(self) -> PairedDifference | None:
        """The safe weights' mean accuracy minus that of the loss alone: one interval for all of them."""
        return paired_difference(self.safe()[1], self.plain.values(MEASURE))

    def against_zero(self) -> PairedDifference | None:
        """The same minus that of weight zero."""
        return paired_difference(self.safe()[1], self.rows[0.0].values(MEASURE)) if 0.0 in self.rows else None


def sweeps(group: Group) -> list[Sweep]:
    """The sweeps over QARe's weight in a group, with the seeds that two weights or more have.

    Seeds of one weight alone, or of the plain loss alone, would move it against the others.
    """
    result = []
    for base in dict.fromkeys(row.base for row in group.rows):
        if rows := group.sweep(base):
            counts = Counter(seed for row in rows.values() for seed in row.runs)
            seeds = {seed for seed, count in counts.items() if count > 1}
            kept = {weight: _of_seeds(row, seeds) for weight, row in rows.items() if seeds & row.runs.keys()}
            if len(kept) >= FEWEST:
                result.append(Sweep(group, kept, _of_seeds(group.plain(base), seeds)))
    return result


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
    name = f"weights-{sweep.group.name}-{sweep.plain.base}"
    note = (
        f"{NOTE} Weight 0 is QARe's form of the loss without QARe; the released form keeps its clamp. Seeds that only "
        "one weight has are left out."
    )
    figure = "Figure 2" if sweep.group.encoder == "resnet32" else "Like Figure 2, which shows ResNet-32"
    return Table(name, *filled(columns, rows), f"{figure}: {sweep.label}, {sweep.group.setting}", note)


def sweep_answer(sweep: Sweep) -> str:
    """Whether the weights that the paper calls safe help, in a sentence."""
    start = f"{sweep.label}, {sweep.group.setting}: "
    plain, zero = sweep.against_plain(), sweep.against_zero()
    if plain is None:
        return f"{start}no seed yet has all weights from {SAFE} and the loss without QARe."
    also = f" Compared to weight 0: {shown(zero)}." if zero else ""
    weights, seeds = (count(n, what) for n, what in ((len(sweep.safe()[0]), "weight"), (plain.n, "seed")))
    return (
        f'{start}the paper says that weights from {SAFE} "provide consistent improvement". The mean of {weights} there '
        f"adds {shown(plain)} points to the plain loss ({seeds}): {VERDICTS[plain.side]}.{also}"
    )


def count(n: int, what: str) -> str:
    """In words: "1 run", "1,234 runs"."""
    return f"{n} {what}" if n == 1 else f"{n:,} {what}s"


def sweep_onto(page: Page, sweep: Sweep) -> None:
    """The sentence and the picture; weights that lack some seeds are left out of the picture if enough are left."""
    page.text(sweep_answer(sweep))
    most = max(len(row.runs) for row in sweep.rows.values())
    whole = {weight: row for weight, row in sweep.rows.items() if len(row.runs) == most}
    rows = whole if len(whole) >= FEWEST else sweep.rows
    means = {weight: mean for weight, row in rows.items() if (mean := row.mean(MEASURE))}
    series = {sweep.label: [(weight, mean.mean) for weight, mean in means.items()]}
    bands = {sweep.label: [(w, mean.mean - mean.std, mean.mean + mean.std) for w, mean in means.items() if mean.std]}
    if plain := sweep.plain.mean(MEASURE):
        series[f"{sweep.plain.label}, plain"] = [(weight, plain.mean) for weight in (min(rows), max(rows))]
    note = f"{sweep.group.title}. Shaded: one sample standard deviation over the seeds, up and down."
    if len(rows) < len(sweep.rows):
        note += f" Weights with fewer than {most} seeds are in the table only."
    title = f"{sweep.label}, accuracy against weight"
    page.curves(title, series, x="weight of QARe", y="probe accuracy, %", note=note, bands=bands)


@dataclass(frozen=True)
class Timing:
    """A record of ``setwise bench qare``.

    ``costs`` has a row for each batch size "n", with what was measured: milliseconds of an iteration and its peak bytes
    without QARe ("plain_ms", "plain_bytes"), with it ("qare_...") and with dense QARe ("dense_..."), and "added_ms".
    """

    file: str
    device: str
    encoder: str
    torch: str
    commit: str
    costs: tuple[dict[str, float], ...]

    @property
    def where(self) -> str:
        """Machine and network, in words."""
        return f"{self.device}, {'projection head only' if self.encoder == 'none' else word(self.encoder)}"


def time_record(results: Path, device: torch.device) -> Path:
    """Where the record of this machine is or will be: bench-qare-h200.json."""
    name = torch.cuda.get_device_name(device).lower() if device.type == "cuda" else device.type
    return results / f"bench-qare-{re.sub(r'[^a-z0-9]+', '-', name.removeprefix('nvidia')).strip('-')}.json"


def timings(results: Path) -> tuple[list[Timing], list[str]]:
    """The records of Figure 3 in a folder, and why others of that name cannot be read."""
    timed, aside = [], []
    for path in sorted(results.glob("bench-qare*.json")):
        try:
            timed.append(timing_of(path.name, read(path, run=False)))
        except ValueError as error:
            aside.append(f"{path.name}: {str(error).replace(str(path), path.name)}")
    return timed, aside


def timing_of(file: str, record: Any) -> Timing:
    """What Figure 3 shows of a record."""
    if not isinstance(record, dict) or record.get("what") != "bench qare":
        raise ValueError("expected a record of `setwise bench qare`, got another file")
    rows = record.get("rows")
    costs = [cost for row in rows if "n" in (cost := _cost(row))] if isinstance(rows, list) else []
    if not costs:
        raise ValueError("expected rows with a batch size and the time of an iteration, got none")
    names = ("device", "encoder", "torch", "commit")
    device, encoder, version, commit = (str(record.get(key) or "unknown") for key in names)
    return Timing(file, device, encoder, version, commit, tuple(sorted(costs, key=lambda cost: cost["n"])))


def _cost(row: object) -> dict[str, float]:
    """A row of the record; empty without its batch size and time. What is not above zero was not measured."""
    names = ("n", "plain_ms", "qare_ms", "dense_term_ms", "plain_bytes", "qare_bytes", "dense_bytes")
    known = row if isinstance(row, dict) else {}
    cost = {key: value for key in names if (value := number(known.get(key))) is not None and value > 0}
    if "n" not in cost or "plain_ms" not in cost:
        return {}
    if (added := number(known.get("added_ms"))) is not None:
        cost["added_ms"] = added
    if "dense_term_ms" in cost:
        cost["dense_ms"] = cost["plain_ms"] + cost["dense_term_ms"]
    return cost


def cost_table(timing: Timing) -> Table:
    """Figure 3 in numbers: what is added, in per cent of the iteration or memory without QARe."""
    columns = (
        *("batch", "iteration without QARe, ms", "QARe adds, ms", "QARe adds, %", "dense QARe adds, %"),
        *("paper's adds, %", "memory, MiB", "QARe adds to it, %", "dense QARe adds to it, %", "paper's adds to it, %"),
    )
    rows: list[list[Cell]] = []
    for cost in timing.costs:
        n, added = int(cost["n"]), cost.get("added_ms")
        percent = None if added is None else 100 * added / cost["plain_ms"]
        memory = round(cost["plain_bytes"] / 2**20) if "plain_bytes" in cost else None
        cells: list[Cell] = [str(n), cost["plain_ms"], added, percent, _more(cost, "dense", "ms"), TIME_ADDED.get(n)]
        rows.append([*cells, memory, *(_more(cost, what, "bytes") for what in ("qare", "dense")), MEMORY_ADDED.get(n)])
    name = f"time-{timing.file.removesuffix('.json').removeprefix('bench-qare').strip('-') or 'here'}"
    note = (
        "Medians. QARe adds: the median difference of consecutive iterations, not the difference of the chart's two "
        "medians. A per cent or two of time or memory, and anything below zero, is noise. Dense: eigenvalues of the "
        "N x N matrices, differentiated by torch, as the paper's algorithm is written. "
        f"torch {timing.torch}, {timing.file}."
    )
    return Table(name, columns, rows, f"Figure 3: {timing.where}", note)


def _more(cost: dict[str, float], what: str, unit: str) -> float | None:
    value, plain = cost.get(f"{what}_{unit}"), cost.get(f"plain_{unit}")
    return None if value is None or plain is None else 100 * (value / plain - 1)


LABELS = {"plain": "InfoNCE", "qare": "InfoNCE + QARe, setwise", "dense": "InfoNCE + QARe, dense"}


def costs_onto(page: Page, timing: Timing) -> None:
    """Pictures of time and memory on one machine."""
    for unit, y, scale in (("ms", "iteration, ms", 1.0), ("bytes", "peak memory, MiB", 2.0**-20)):
        series = {}
        for key, label in LABELS.items():
            name = f"{key}_{unit}"
            if points := [(cost["n"], scale * cost[name]) for cost in timing.costs if name in cost]:
                series[label] = points
        if series:
            kind = "time" if unit == "ms" else "memory"
            page.curves(f"{timing.where}, {kind}", series, x="batch size N", y=y, log="xy")
