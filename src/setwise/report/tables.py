"""A table: as text, as CSV, on a page. Accuracies are per cent."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import setwise.register as register
from setwise.records import Run
from setwise.records.statistics import MeanStd, PairedDifference
from setwise.report.page import Page

Cell = str | int | float | MeanStd | PairedDifference | None
NONE = "-"  # of a run that was not made
SHARED = 3  # rows: words that all of at least so many have are said once
NOTE = (
    "Mean ± sample standard deviation over n seeds, per cent. Differences: mean over the seeds that both have, with "
    "the 95 % interval of Student's t."
)


@dataclass(frozen=True)
class Table:
    """Rows of cells under columns; the first column names the rows. ``name`` is for files.

    ``shown`` are the columns that a page has, all if none; files have all.
    """

    name: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    caption: str
    note: str = ""
    wrap: bool = False  # on a page its words may take more lines
    shown: Sequence[str] = ()

    def markdown(self) -> str:
        """A GitHub table under its caption; what Markdown would read as its own is escaped."""
        lines = [self.columns, ["---"] * len(self.columns), *map(self.words, self.rows)]
        table = ["| " + " | ".join(cells if i == 1 else map(_plain, cells)) + " |" for i, cells in enumerate(lines)]
        return "\n".join([f"**{_plain(self.caption)}**", "", *table, "", _plain(self.note)]).rstrip() + "\n"

    def csv(self) -> str:
        """The same numbers unrounded, one to a cell: a mean has columns for std and n, a difference for its bounds."""
        places = [(i, part) for i in range(len(self.columns)) for part in _parts([row[i] for row in self.rows])]
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([f"{self.columns[i]}{part}" for i, part in places])
        for row in self.rows:
            values: list[object] = []
            for i, part in places:
                if isinstance(row[i], MeanStd | PairedDifference):
                    values.append(getattr(row[i], part.strip() or "mean", None))  # a mean has no bounds
                else:
                    values.append(None if part else row[i])
            writer.writerow(values)
        return file.getvalue()

    def brief(self) -> Table:
        """The same with the columns that are ``shown`` alone."""
        kept = [i for i, name in enumerate(self.columns) if not self.shown or name in self.shown]
        return replace(
            self, columns=[self.columns[i] for i in kept], rows=[[row[i] for i in kept] for row in self.rows]
        )

    def onto(self, page: Page) -> None:
        """Put it on a page, in brief: no column that has nothing, and what all rows share in the caption."""
        brief, caption = self.brief(), self.caption
        rows = [brief.words(row) for row in brief.rows]
        left_out = set()
        for i, cells in enumerate(zip(*rows, strict=True)):
            alike = len(cells) >= SHARED and len(set(cells)) == 1 and re.search("[a-z]", cells[0])
            if alike or set(cells) == {NONE}:
                left_out.add(i)
                caption += f" ({brief.columns[i]}: {cells[0]})" if alike else ""
        kept = [i for i in range(len(brief.columns)) if i not in left_out]
        words = [[row[i] for i in kept] for row in rows]
        page.table([brief.columns[i] for i in kept], words, caption=caption, note=self.note, wrap=self.wrap)

    def words(self, row: Sequence[Cell]) -> list[str]:
        """Cells for people; a mean of ours over fewer than the row's n says so."""
        n = row[self.columns.index("n")] if "n" in self.columns else None
        cells = [shown(cell) for cell in row]
        for i, (column, cell) in enumerate(zip(self.columns, row, strict=True)):
            if isinstance(cell, MeanStd) and not column.startswith("paper") and n not in (None, cell.n):
                cells[i] += f" (n = {cell.n})"
        return cells


def said_once(table: str) -> str:
    """A table in Markdown without first cells that repeat the one above."""
    lines, above = [], ""
    for line in table.splitlines():
        first, bar, rest = line.removeprefix("| ").partition(" | ")
        lines.append(f"| {bar}{rest}" if bar and line.startswith("| ") and first == above else line)
        above = first
    return "\n".join(lines) + "\n"


def own_tables(runs: Sequence[Run]) -> list[Table]:
    """The tables that users and installed packages registered, each made of all runs."""
    register.load_entry_points()
    return [entry.make(runs) for entry in register.table.values()]


def filled(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> tuple[Sequence[str], Sequence[Sequence[Cell]]]:
    """The table without empty columns at its end."""
    used = max((i + 1 for row in rows for i, cell in enumerate(row) if cell is not None), default=0)
    return columns[:used], [row[:used] for row in rows]


def shown(cell: Cell) -> str:
    """A cell for people: two decimals, "-" where there is nothing."""
    if cell is None:
        return NONE
    if isinstance(cell, MeanStd):
        return f"{cell.mean:.2f}" + (f" ± {cell.std:.2f}" if cell.std is not None else "")
    if isinstance(cell, PairedDifference):
        if cell.low is None or cell.high is None:
            return f"{_signed(cell.mean)} (one seed)"
        if math.isinf(cell.low):
            return f"{_signed(cell.mean)} (equal in all seeds)"
        return f"{_signed(cell.mean)} ({_signed(cell.low)} to {_signed(cell.high)})"
    if isinstance(cell, float):
        return f"{cell:.2f}" if abs(cell) < 100 else f"{cell:,.0f}"
    return str(cell)


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-0.00", "+0.00")


def _parts(cells: Sequence[Cell]) -> tuple[str, ...]:
    means = (" std",) if any(isinstance(cell, MeanStd) for cell in cells) else ()
    bounds = (" low", " high") if any(isinstance(cell, PairedDifference) for cell in cells) else ()
    return ("", *means, *bounds, " n") if means or bounds else ("",)


def _plain(words: str) -> str:
    return re.sub(r"([\\|<>&*_`\[\]#])", r"\\\1", " ".join(words.split()))
