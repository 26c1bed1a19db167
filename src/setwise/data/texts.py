"""Texts as numbers: words and pieces of words, hashed into a vocabulary of fixed size. Nothing is downloaded.

The hash is CRC-32 of the piece in UTF-8: the same in every process and on every machine. Two pieces may share a number;
with 32,768 of them and a few thousand words that costs little.
"""

from __future__ import annotations

import gzip
import os
import re
import unicodedata
import zlib
from array import array
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from setwise.checks import check_count
from setwise.data.api import DataError
from setwise.data.fetching.limits import available_bytes, open_plain

LINE = 2**16  # bytes of a line, at most
SETS_COLUMNS = 3  # of a file with sets: two texts, and the set
SAVE = "save the file as UTF-8"
WORDS = re.compile(r"\w+|[^\w\s]")
KEPT_WORDS = 2**16  # whose pieces are kept while a file is read
KEPT_FILES = 8  # whose ids are kept for the next run of this process


@dataclass(frozen=True)
class Tokenizer:
    """A text as ids: of each word itself, then of its n-grams of characters, between "<" and ">" as in fastText.

    Case and Unicode's compatible forms make no difference. ``length``: the most ids that a text keeps.

    Examples:
        >>> from setwise.data.texts import Tokenizer
        >>> Tokenizer(ngrams=(3,)).ids("A dog.")  # <a>; <dog>, <do, dog, og>; <.>
        array('i', [25116, 11231, 13541, 15320, 25589, 528])
    """

    vocabulary: int = 32768
    ngrams: tuple[int, ...] = (3, 4)
    length: int = 256

    def __post_init__(self) -> None:
        """Raise unless all are positive."""
        for name, value, least in (("vocabulary", self.vocabulary, 2), ("length", self.length, 1)):
            if value < least:
                raise ValueError(f"expected {name} of at least {least}, got {value}")
        for n in self.ngrams:
            check_count(n, "ngrams")

    def ids(self, text: str) -> array[int]:
        """The ids of a text, at most ``length``."""
        return self.ids_by(text, self.word)

    def word(self, word: str) -> tuple[int, ...]:
        """The ids of a word and of its pieces."""
        whole = f"<{word}>"
        pieces = [whole[i : i + n] for n in self.ngrams if n < len(whole) for i in range(len(whole) - n + 1)]
        return tuple(1 + zlib.crc32(piece.encode()) % (self.vocabulary - 1) for piece in (whole, *pieces))

    def ids_by(self, text: str, word: Callable[[str], tuple[int, ...]]) -> array[int]:
        """The same with another ``word``, such as one that remembers."""
        found = array("i")
        for match in WORDS.finditer(unicodedata.normalize("NFKC", text).casefold()):
            found.extend(word(match[0]))
            if len(found) >= self.length:
                return found[: self.length]
        return found


def read_ids(path: Path, *, columns: int, tokenizer: Tokenizer) -> tuple[Tensor, ...]:
    """The ids of each column of a file with a line for each row: int32 [N, L], zeros behind the end of a text.

    Columns are divided by tabs. The file is UTF-8, and gzip if its name ends with .gz. It may take a quarter of the
    available memory. What was read before is kept, for many runs in one process.
    """
    status = os.stat(path)
    return _read_ids(path, (status.st_size, status.st_mtime_ns), columns, tokenizer)


@lru_cache(maxsize=KEPT_FILES)
def _read_ids(path: Path, status: tuple[int, int], columns: int, tokenizer: Tokenizer) -> tuple[Tensor, ...]:
    rows = [IdRows(tokenizer, columns) for _ in range(columns)]
    for where, texts in read_columns(path, columns):
        for column, text in zip(rows, texts, strict=True):
            column.add(text, where)
    return tuple(column.matrix() for column in rows)


class IdRows:
    """The ids of one text after the other."""

    def __init__(self, tokenizer: Tokenizer, columns: int = 1) -> None:
        """``columns``: how many such there are, which share the memory."""
        self._tokenizer = tokenizer
        self._rows: list[array[int]] = []
        self._word = lru_cache(maxsize=KEPT_WORDS)(tokenizer.word)
        self._most = available_bytes() // 4 // (4 * columns * tokenizer.length)

    def add(self, text: str, where: str) -> None:
        """One more; ``where`` it stands, for an error."""
        ids = self._tokenizer.ids_by(text, self._word)
        if not ids:
            raise DataError(
                f"expected a text with at least one word or sign in {where}, got {text[:80]!r}; write one, or take the "
                "line out"
            )
        if len(self._rows) >= self._most:
            raise DataError(
                f"expected at most {self._most:,} texts, for which there is memory, got more in {where}; a smaller "
                f"length (now {self._tokenizer.length}, --data.length) makes room"
            )
        self._rows.append(ids)

    def matrix(self) -> Tensor:
        """All of them, int32 [N, L]."""
        return _matrix(self._rows)


def _matrix(rows: list[array[int]]) -> Tensor:
    ids = np.zeros((len(rows), max(map(len, rows))), dtype=np.int32)
    for row, found in zip(ids, rows, strict=True):
        row[: len(found)] = found
    return torch.from_numpy(ids)


def read_columns(path: Path, columns: int) -> Iterator[tuple[str, list[str]]]:
    """The texts of each line, of so many columns with tabs between them, and where they stand; at least one line."""
    number = 0
    for number, line in read_lines(path):
        texts = line.split("\t") if columns > 1 else [line]
        where = f"{path}, line {number}"
        if len(texts) != columns:
            got = "an empty line" if not line else f"{len(texts)}: {line[:80]!r}"
            advice = _columns_advice(line, len(texts), columns)
            raise DataError(f"expected {columns} columns with a tab between them in {where}, got {got}; {advice}")
        yield where, texts
    if not number:
        raise DataError(f"expected a line for each text in {path}, got an empty file; is it the right one?")


def _columns_advice(line: str, found: int, columns: int) -> str:
    """What to do about a line of another number of columns."""
    if not line:
        return "take it out"
    if "\r" in line:
        return "end each line with a newline, not with a carriage return"
    if columns == SETS_COLUMNS:
        return "the header names one of the three for --data.sets; leave that out if there are no sets"
    if found == SETS_COLUMNS:
        return "leave one out, or say by --data.sets which column, named in a header, holds the sets"
    return "put one tab between the two texts"


def read_sets(path: Path, column: str) -> Iterator[tuple[str, list[str], int]]:
    """Of each line below the header: where it stands, two texts, and the number of its set, which ``column`` names.

    There are three columns. Lines with the same text in that one are a set.
    """
    lines, numbers = read_columns(path, SETS_COLUMNS), dict[str, int]()
    where, header = next(lines)
    if column not in header:
        raise DataError(
            f"expected the name {column!r} of the column of sets in {where}, got {header}; give one of these names, or "
            "add a header"
        )
    if header.count(column) > 1:
        raise DataError(f"expected one column {column!r} in {where}, got {header}; give the others another name")
    place = header.index(column)
    for where, texts in lines:
        name = texts.pop(place)
        if not name.strip():
            raise DataError(f"expected the name of a set in the column {column!r} of {where}, got none; write one")
        yield where, texts, numbers.setdefault(name, len(numbers))
    if not numbers:
        raise DataError(f"expected a line for each pair below the header of {path}, got none; add some")


def first_line(path: Path) -> list[str]:
    """The columns of the first line."""
    with closing(read_lines(path)) as lines:
        return next(lines, (0, ""))[1].split("\t")


def read_lines(path: Path) -> Generator[tuple[int, str]]:
    """The lines of a text file, numbered from 1, without their ends; an error says which line is broken."""
    with open_plain(path) as plain, closing(gzip.GzipFile(fileobj=plain) if path.suffix == ".gz" else plain) as file:
        number = 0
        try:
            while line := file.readline(LINE + 1):
                number += 1
                if len(line) > LINE:
                    raise DataError(f"expected at most {LINE:,} bytes in {path}, line {number}, got more; shorten it")
                if b"\0" in line:  # UTF-16, or no text at all
                    raise DataError(f"expected UTF-8 in {path}, line {number}, got a zero byte; {SAVE}")
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
                yield number, text
        except UnicodeDecodeError as error:
            raise DataError(
                f"expected UTF-8 in {path}, line {number}, got {error.object[error.start :][:4]!r}; {SAVE}"
            ) from error
        except (OSError, EOFError, zlib.error) as error:
            if isinstance(error, OSError) and not isinstance(error, gzip.BadGzipFile):
                raise
            raise DataError(f"expected a whole gzip file at {path}, got: {error}; copy it again") from error
