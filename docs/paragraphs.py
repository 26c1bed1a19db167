"""Paragraphs, lists and tables of Markdown, for the marked places that `readme.py` fills."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from setwise.report.tables import NONE, Cell, Table, shown

WIDTH = 128


def markdown(columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """A table."""
    lines = [columns, ["---"] * len(columns), *([shown(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def table_of_numbers(columns: Sequence[str], rows: Iterable[Sequence[str]], words: int = 1) -> str:
    """A table; all but the first columns, which are ``words``, are numbers."""
    lines = [columns, [*["---"] * words, *["---:"] * (len(columns) - words)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def picked(table: Table | None, *columns: str) -> list[list[str]]:
    """Some columns of a table of the report, in words; empty cells where it lacks one."""
    rows = [dict(zip(table.columns, table.words(row), strict=True)) for row in table.rows] if table else []
    return [[row.get(name, NONE) for name in columns] for row in rows]


def part_of(table: Table | None, *columns: str) -> str:
    """Some columns of a table of the report, all if none are named."""
    columns = columns or tuple(table.columns)
    return markdown(columns, picked(table, *columns))


def text(*sentences: str) -> str:
    """A paragraph."""
    return textwrap.fill(" ".join(filter(None, sentences)), WIDTH, break_long_words=False, break_on_hyphens=False)


def bullets(*lines: str) -> str:
    """A list."""
    return "\n".join(f"- {line}" for line in lines)
