"""Speed records: a table and a picture of accuracy against minutes, beside the public marks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from setwise.records import Run
from setwise.records.statistics import MeanStd, mean_std, number
from setwise.report.chart import chart
from setwise.report.tables import Cell, Table

SEEDS = 10  # that make a record
PARTS = ("data", "network", "kernels", "training")


@dataclass(frozen=True)
class Mark:
    """What others have published: per cent of ``neighbours`` neighbours after so many minutes."""

    name: str
    accuracy: float
    minutes: float
    gpu: str
    neighbours: int
    pflop: float | None
    source: str


DKOBAK = "https://github.com/dkobak/simclr-cifar10/blob/44b2500/README.md"
LIGHTLY = "https://github.com/lightly-ai/lightly/blob/e8d317f/docs/source/getting_started/benchmarks.rst"
# PFLOP of two views: epochs x 50,000 images x 2 views x 0.556 G multiply-adds x 2 operations x 3 for both passes.
MARKS = (
    Mark("dkobak, ResNet-18, 500 epochs", 90.3, 99.0, "A100", 10, 167.0, DKOBAK),
    Mark("dkobak, ResNet-18, 100 epochs", 83.2, 20.0, "A100", 10, 33.4, DKOBAK),
    Mark("dkobak, ResNet-18, 1000 epochs", 91.4, 1000 * 11.9 / 60, "A100", 10, 334.0, DKOBAK),
    Mark("lightly, SimCLR, 200 epochs", 84.8, 87.1, "not stated", 200, 66.7, LIGHTLY),
    Mark("lightly, FastSiam, 200 epochs", 90.6, 164.0, "not stated", 200, None, LIGHTLY),
)


@dataclass(frozen=True)
class Entry:
    """Runs of one recipe by the rules, which differ in their seed alone."""

    name: str
    images: str  # "test" or "validation"
    gpu: str
    runs: tuple[Run, ...]

    def mean(self, of: Callable[[dict[str, Any]], float]) -> MeanStd:
        """A number of the runs' ``speedrun`` part, over the seeds."""
        return mean_std([of(run.record["speedrun"]) for run in self.runs])

    @property
    def accuracy(self) -> MeanStd:
        """Per cent of ten neighbours."""
        return self.mean(lambda part: 100 * part["knn10"])

    @property
    def minutes(self) -> MeanStd:
        """By the whole clock."""
        return self.mean(lambda part: part["clock"]["seconds"] / 60)


def entries(runs: Sequence[Run]) -> list[Entry]:
    """The runs under the clock by recipe, images and GPU, the fastest first; other runs are left out."""
    found: dict[tuple[str, str, str, str], list[Run]] = {}
    for run in runs:
        part = run.record.get("speedrun")
        if isinstance(part, dict) and _whole(part):
            key = str(run.record.get("name")), part["images"], part["gpu"], run.recipe_text
            found.setdefault(key, []).append(run)
    made = [Entry(name, images, gpu, tuple(members)) for (name, images, gpu, _), members in found.items()]
    return sorted(made, key=lambda entry: entry.minutes.mean)


def _whole(part: dict[str, Any]) -> bool:
    clock = part.get("clock")
    numbers = [part.get("knn10"), part.get("pflop"), part.get("target")]
    if not isinstance(clock, dict) or not all(isinstance(part.get(name), str) for name in ("images", "gpu")):
        return False
    return all(number(x) is not None for x in [*numbers, *(clock.get(name) for name in ("seconds", *PARTS))])


def speedrun_tables(runs: Sequence[Run]) -> list[Table]:
    """A table of the runs under the clock; none where there are no such runs."""
    rows: list[list[Cell]] = []
    for entry in entries(runs):
        without = entry.mean(lambda part: (part["clock"]["seconds"] - part["clock"]["kernels"]) / 60)
        clocks = [run.record["speedrun"]["clock"] for run in entry.runs]
        parts = ", ".join(f"{name} {fmean(clock[name] for clock in clocks):.1f}" for name in PARTS)
        pflop = f"{entry.mean(lambda part: part['pflop']).mean:.3g}"
        first, n = entry.runs[0].record, len(entry.runs)
        reached = "yes" if entry.accuracy.mean >= 100 * first["speedrun"]["target"] else "no"
        reached += f", with {n} of {SEEDS} seeds" if n < SEEDS else ""
        row: list[Cell] = [entry.name, entry.images, n, entry.accuracy, reached, entry.minutes, without, parts, pflop]
        rows.append([*row, _short(entry.gpu), str(first.get("commit") or "-")[:9]])
    columns = ["recipe", "images", "n", "10 neighbours", "target reached", "minutes", "without kernels"]
    columns += ["seconds of each part", "PFLOP", "device", "commit"]
    note = "Mean ± sample standard deviation over n seeds; accuracy in per cent. The mean has to reach the target."
    return [Table("speedrun", columns, rows, "Runs under the clock", note, wrap=True)] if rows else []


def speedrun_chart(runs: Sequence[Run]) -> str:
    """HTML of accuracy against minutes: every entry that was tested, and public marks."""
    points = {
        f"{entry.name}, {_short(entry.gpu)}, n = {len(entry.runs)}": [
            (round(entry.minutes.mean, 2), round(entry.accuracy.mean, 2))
        ]
        for entry in entries(runs)
        if entry.images == "test"
    }
    points |= {mark.name: [(round(mark.minutes, 1), mark.accuracy)] for mark in MARKS}
    return chart("Accuracy against minutes", points, x="minutes", y="accuracy, %", log="x")


def _short(gpu: str) -> str:
    return gpu.removeprefix("NVIDIA ")
