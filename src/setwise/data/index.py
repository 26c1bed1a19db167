"""Which image files are kept decoded, and where: the index beside their pixels.

Its first line is a header; each other one, with a checksum, has some files: name, Stat, and row or what is wrong.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import secrets
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from setwise.data.formats.decode import SHOW_PROGRESS_FROM
from setwise.data.pixels import StoredPixels
from setwise.walking import Stat

VERSION = 1  # of the index, and of what decode.py makes of a file
FEW_FILES, FEW_BYTES = SHOW_PROGRESS_FROM, 32 * 2**20  # decoded in about a second: not kept
Broken = list[tuple[int, str]]  # places of files, and what is wrong with them
UNKNOWN = (-1, -1)  # the Stat of no file


@dataclass(frozen=True)
class Files:
    """Image files below a folder."""

    folder: Path
    names: Sequence[str]  # below the folder
    stats: Sequence[Stat]

    @property
    def few(self) -> bool:
        """Whether they are so few that decoding them anew is quick: then nothing is kept."""
        return len(self.names) <= FEW_FILES and sum(length for length, _ in self.stats) <= FEW_BYTES

    @property
    def key(self) -> str:
        """The name under which the folder's images are kept."""
        return f"{self.folder.name[:50]}-{hashlib.sha256(os.fsencode(self.folder)).hexdigest()[:8]}"

    @cached_property
    def table(self) -> npt.NDArray[np.int64]:
        """The Stat of each, [N, 2]."""
        return _table(self.stats)

    def paths(self) -> list[str]:
        """Where the files are."""
        return [os.path.join(self.folder, name) for name in self.names]


def _table(stats: Sequence[Stat]) -> npt.NDArray[np.int64]:
    return np.fromiter(itertools.chain.from_iterable(stats), np.int64, 2 * len(stats)).reshape(-1, 2)


@dataclass
class Index:
    """An index file, read."""

    path: Path
    image_bytes: int
    images: Path
    names: list[str] = field(default_factory=list)  # an entry for each; of a file that changed there are several
    stats: list[Stat] = field(default_factory=list)
    rows: list[int | str] = field(default_factory=list)  # or what is wrong with the file

    @cached_property
    def last(self) -> dict[str, int]:
        """The last entry of each file."""
        return dict(zip(self.names, itertools.count()))

    @property
    def used(self) -> set[int]:
        """Rows, also of files that have changed since."""
        return {row for row in self.rows if not isinstance(row, str)}

    def places(self, files: Files) -> npt.NDArray[np.int64]:
        """The last entry of each of the files, -1 where there is none."""
        return np.fromiter(map(self.last.get, files.names, itertools.repeat(-1)), np.int64, len(files.names))

    def missing(self, files: Files) -> list[int]:
        """Places of the files that are not in it as they are now."""
        known, now = _table([*self.stats, UNKNOWN])[self.places(files)], files.table  # of entry -1: UNKNOWN
        same = (known == now).all(1) & (now != UNKNOWN).any(1)
        return np.flatnonzero(~same).tolist()

    def open(self, files: Files, size: tuple[int, int]) -> tuple[StoredPixels, Broken]:
        """The pixels of all ``files``, none of which is missing."""
        entries = self.places(files)
        found = np.array([-1 if isinstance(row, str) else row for row in self.rows], np.int64)[entries]
        broken = [(k, str(self.rows[entries[k]])) for k in np.flatnonzero(found < 0).tolist()]
        rows = torch.from_numpy(found[found >= 0])
        shape = (int(found.max(initial=-1)) + 1, 3, *size)
        if not len(rows):
            self.images.touch()
        return StoredPixels(self.images, shape, rows=rows), broken

    def mostly_stale(self, files: Files) -> bool:
        """Whether most rows are of files that changed or are gone."""
        listed = dict(zip(files.names, files.stats, strict=True))
        live = 0
        for name, k in self.last.items():
            now = listed.get(name) or _stat(os.path.join(files.folder, name))
            live += isinstance(self.rows[k], int) and now == self.stats[k]
        return 2 * live < len(self.used)


def _stat(path: str) -> Stat | None:
    with suppress(OSError):
        status = os.stat(path)
        return status.st_size, status.st_mtime_ns
    return None


def stats(paths: Sequence[str | Path]) -> list[Stat]:
    """Length and time of each file; of a missing one, values that no file has."""
    return [_stat(os.fspath(path)) or UNKNOWN for path in paths]


def images_at(place: Path, size: tuple[int, int]) -> list[Path]:
    """Files of decoded images of that size; one, but for what a killed process left."""
    return list(place.glob(f"{size[0]}x{size[1]}-*.images"))


def header_of(folder: str, images: str) -> dict[str, Any]:
    """The first line: of which folder, and the name of the file of its images."""
    import PIL

    return {"version": VERSION, "pillow": PIL.__version__, "folder": folder, "images": images}


def line_of(value: object) -> bytes:
    """A line of an index: a checksum and JSON."""
    text = json.dumps(value).encode()
    return b"\n%08x %b\n" % (zlib.crc32(text), text)  # the line before may have been cut off


def parsed(line: bytes) -> Any:
    """What a line says; None if it is not whole."""
    with suppress(ValueError):
        if int(line[:8], 16) == zlib.crc32(line[9:]):
            return json.loads(line[9:])
    return None


def new_index(place: Path, folder: Path, size: tuple[int, int]) -> Index:
    """An empty one, in place of any other."""
    place.mkdir(exist_ok=True)
    for stale in images_at(place, size):
        stale.unlink()
    name = f"{size[0]}x{size[1]}"
    images = place / f"{name}-{secrets.token_hex(4)}.images"
    images.touch()
    path = place / f"{name}.index"
    partial = place / f".{name}.index"
    partial.write_bytes(line_of(header_of(str(folder), images.name)))
    os.replace(partial, path)
    return Index(path, 3 * size[0] * size[1], images)


def read_index(place: Path, size: tuple[int, int]) -> Index | None:
    """The index of images of that size; None if there is none, or if it is damaged or of another version."""
    path = place / f"{size[0]}x{size[1]}.index"
    try:
        header, *lines = [parsed(line) for line in path.read_bytes().split(b"\n") if line] or [None]
        if not isinstance(header, dict) or header != header_of(str(header.get("folder")), str(header.get("images"))):
            return None
        images = place / Path(header["images"]).name
        index = Index(path, 3 * size[0] * size[1], images)
        rows = images.stat().st_size // index.image_bytes
    except OSError:
        return None
    for line in lines:  # rows beyond the file's end were cut off
        whole = [entry for entry in line or () if isinstance(entry[3], str) or entry[3] < rows]
        if whole:
            names, lengths, changed, places = zip(*whole, strict=True)
            index.names += names
            index.stats += zip(lengths, changed, strict=True)
            index.rows += places
    return index
