"""What of the paper's tables and figures, and of ours beside them, has no runs yet, and how long these train."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from setwise.paper.claims import BOTH
from setwise.paper.figures import count
from setwise.paper.jobs import Job, expand
from setwise.paper.numbers import CLASSIFICATION, MATCHING, SAFE_WEIGHTS, word
from setwise.paper.objectives import weight_of
from setwise.paper.recipes import FORMS, MATCHING_LOSSES, Cell
from setwise.paper.reproduce import estimate
from setwise.paper.tables import Costs, not_run
from setwise.report.page import NOT_RUN
from setwise.report.tables import Cell as TableCell
from setwise.report.tables import Table

DATA = tuple(dict.fromkeys(data for _, data, _ in CLASSIFICATION))
TUNED = (("cifar10", "conv4"), ("cifar100", "conv4"), ("cifar10", "resnet32"))
MAPPED = ("cifar10", "cifar100")
NOTE = (
    "Minutes of training on the GPU of bench-step*.json, one run after the other; several at once (--at-once) take "
    "less. Runs that two parts share count once in all."
)


@dataclass(frozen=True)
class Part:
    """A part of the paper, or of ours, that one command makes."""

    title: str
    tables: tuple[str, ...]
    data: str
    only: str  # words of the names of its runs
    runs: dict[Path, Job]  # by the place of the record
    left: dict[Path, float | None]  # those without a record, and their seconds

    @property
    def command(self) -> str:
        """The command that makes it."""
        words = ["setwise reproduce", *self.tables, "--data", self.data]
        return " ".join([*words, *(["--only", self.only] if self.only else [])])

    @property
    def minutes(self) -> float | None:
        """Of training, of all runs that are left; None if nothing is known of any."""
        return _minutes(list(self.left.values()))

    @property
    def sentence(self) -> str:
        """What is left, in words; "" for nothing."""
        if not self.left:
            return ""
        return f"Not run: {count(len(self.left), 'run')} of `{self.command}`{_cost(self.left)}."


def parts(results: Path) -> list[Part]:
    """All parts, whether anything of them is left or not."""

    def part(title: str, *tables: str, data: str = "cifar10", only: str = "") -> Part:
        jobs = expand(tables, data=data, only=(only,) if only else (), results=results, whole=True)
        runs = {job.record(results): job for job in jobs}
        left = [path for path in runs if not path.exists()]
        seconds = estimate([runs[path] for path in left], results)
        return Part(title, tables, data, only, runs, dict(zip(left, seconds, strict=True)))

    found = [part("Table 1: CUHK-03", "table1", data="cuhk03", only="paper/")]
    for form, data, encoder in _settings():
        title = f"Tables 2 and 3: {word(data)}, {word(encoder)}, {form} form"
        found.append(part(title, "table2", "table3", data=data, only=f"{form}/{data}-{encoder}-"))
    found.append(part("Figure 2: CIFAR-10, ResNet-32", "fig-beta", only="resnet32"))
    for data, encoder in TUNED:
        title = f"Every objective tuned: {word(data)}, {word(encoder)}"
        found.append(part(title, "tuning", "tuned", data=data, only=encoder))
    return [*found, *(part(f"Where does it pay: {word(data)}", "map", data=data) for data in MAPPED)]


def part_of(some: Sequence[Part], table: str, data: str, encoder: str = "") -> Part | None:
    """The part of these that a table makes of this data, with this encoder if it has several."""
    found = (one for one in some if table in one.tables and one.data == data)
    return next((one for one in found if encoder in ("", one.only)), None)


def costs(some: Sequence[Part]) -> Costs:
    """Minutes of training of every cell that has no run at all, by the recipe's name and the variant."""
    cells: dict[tuple[str, str], set[Path]] = {}
    left: dict[Path, float | None] = {}
    for part in some:
        left |= part.left
        for path, job in part.runs.items():
            cells.setdefault((job.name, job.variant), set()).add(path)
    return {key: _minutes([left[path] for path in paths]) for key, paths in cells.items() if left.keys() >= paths}


def _minutes(seconds: Sequence[float | None]) -> float | None:
    known = [one for one in seconds if one is not None]
    return sum(known) / 60 if known else None


def _settings() -> list[tuple[str, str, str]]:
    return [(form, data, encoder) for data in DATA for encoder in BOTH for form in FORMS]


def missing_table(some: Sequence[Part]) -> Table:
    """What is left of each part, and its cost."""
    rows: list[list[TableCell]] = []
    for part in (part for part in some if part.left):
        made = f"{len(part.runs) - len(part.left):,} of {len(part.runs):,}"
        minutes = None if part.minutes is None else f"{part.minutes:,.0f}" if part.minutes >= 1 else "< 1"
        rows.append([part.title, made, minutes, part.command])
    columns = ("part", "runs made", "GPU minutes left", "command")
    return Table("not-run", columns, rows, missing_answer(some), NOTE, wrap=True)


def missing_answer(some: Sequence[Part]) -> str:
    """How much is left in all, in words."""
    left = {path: seconds for part in some for path, seconds in part.left.items()}
    return (
        f"Of the paper and what follows from it: {count(len(left), 'run')}{_cost(left)}"
        if left
        else "Every run is made"
    )


def _cost(left: Mapping[Path, float | None]) -> str:
    minutes = _minutes(list(left.values()))
    return f", {minutes:,.0f} GPU minutes" if minutes else ""


def table1_not_run(unmade: Costs) -> Table:
    """The paper's Table 1 on its own data; no rows once that has runs, since then a table of runs shows it."""
    rows: list[list[TableCell]] = []
    for (loss, term), paper in MATCHING.items():
        label = word(loss) + (" + QARe" if term else "")
        rows.append([label, not_run(unmade, *_matched(loss, term)), paper])
    made = [row for row in rows if row[1] is None]
    columns = ("loss", "test accuracy", "paper")
    return Table("table1-cuhk03", columns, [] if made else rows, "Table 1: matching, CUHK-03", "")


def _matched(loss: str, *terms: str) -> list[str]:
    return [Cell("matching", "paper", "cuhk03", "resnet18", loss, term).name for term in terms]


# The methods, with their terms, whose runs answer the paper's claims in a setting of linear probes.
NEEDED = {
    "helps": ((("simclr", ""), ("simclr", "qare")), (("sparseclr", ""), ("sparseclr", "qare"))),
    "sparse-helps": ((("simclr", ""), ("sparseclr", "")),),
    "sparse-support": ((("sparseclr", ""),),),
    "false-negatives": ((("simclr", ""), ("sparseclr", "")),),
}


def claims_not_run(some: Sequence[Part]) -> dict[str, str]:
    """By claim of the paper, the settings that no run answers and what they cost, in words."""
    unmade = costs(some)
    found: dict[str, list[str]] = {}

    def add(claim: str, where: str, sides: Mapping[str, Sequence[str | tuple[str, str]]]) -> None:
        marks = {label: mark for label, names in sides.items() if (mark := not_run(unmade, *names))}
        if marks:
            words = [f"{label} {mark.removeprefix(NOT_RUN).strip(': ')}".strip() for label, mark in marks.items()]
            found.setdefault(claim, []).append(f"{where} ({', '.join(words)})")

    add("helps", "CUHK-03", {word(loss): _matched(loss, "", "qare") for loss in MATCHING_LOSSES})
    for claim, sides in NEEDED.items():
        for form, data, encoder in _settings():
            names = {
                word(side[0][0]) if len(sides) > 1 else "": [
                    Cell("classification", form, data, encoder, *pair).name for pair in side
                ]
                for side in sides
            }
            add(claim, f"{word(data)}, {word(encoder)}, {form} form", names)
    if (sweep := part_of(some, "fig-beta", "cifar10")) is not None:
        low, high = SAFE_WEIGHTS
        safe = {(job.name, job.variant) for job in sweep.runs.values() if low <= (weight_of(job.recipe) or 0) <= high}
        add("safe-weights", "CIFAR-10, ResNet-32, released form", {"": sorted(safe)})
    return {claim: f"Not run: {'; '.join(places)}." for claim, places in found.items()}
