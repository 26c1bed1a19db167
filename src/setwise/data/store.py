"""Image files as pixels: decoded by several processes, once, and kept; or in memory alone; or whenever needed.

.decoded/NAME-1a2b3c4d/       what is kept of a folder called NAME; the rest is for its whole path
    64x64-5e6f7a8b.images     its decoded images, one row each
    64x64.index               which file is in which row, or what is wrong with it; a line for some files at a time
    size.json                 the size that the files suggest

A row counts once its line is in the index, so decoding that was killed goes on there. A file is known by its path, its
length and when it was changed. Rows of files that changed stay until most rows are such; then all begins anew.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import mmap
import os
import shutil
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from setwise.checks import see
from setwise.data.api import DataError, Placement
from setwise.data.fetching.cache import FOLDER, decoded_folders, writable
from setwise.data.fetching.limits import available_bytes
from setwise.data.formats.decode import RESIZE, quiet_pillow, read_image, reason, room
from setwise.data.index import UNKNOWN, VERSION, Broken, Files, Index, images_at, line_of, new_index, parsed, read_index
from setwise.data.pixels import FilePixels, Pixels, StoredPixels
from setwise.data.root import OPTION
from setwise.data.workers import Place, for_each, scratch
from setwise.locks import locked

WRITE_SECONDS = 1.0  # between lines of the index, each of which waits for the disk
DIED = "decoding it ended the process: {}"
HEAD_BYTES = 2**16  # of an index, which hold its first line


@dataclass(frozen=True)
class Decoded:
    """What became of files."""

    images: Tensor  # uint8 [N, 3, H, W], on the device "meta" where ``pixels`` are elsewhere
    pixels: Pixels | None
    whole: list[int]  # places of the N files
    broken: Broken


@dataclass(frozen=True)
class Outcome:
    """What became of one file."""

    why: str = ""  # it is broken
    lasting: bool = True  # the same file will give the same again; else it lacked a permission, or memory


class NoRoom(DataError):
    """The disk has no room for decoded images."""


def decoded(
    files: Files,
    size: tuple[int, int],
    root: Path,
    placement: Placement | None = None,
    *,
    try_all: bool = False,
) -> Decoded:
    """Files decoded, cropped and resized to ``size``, and those that cannot be.

    What is resident is kept below ``root`` too, as what is mapped, unless there are few files. ``try_all``: look for
    broken files even if pixels stay in them.
    """
    placement = placement or Placement()
    pixels, count = placement.pixels, len(files.names)
    most = available_bytes() // (2 * int(os.environ.get("LOCAL_WORLD_SIZE") or 1))  # torchrun's processes share it
    if placement.most_bytes is not None:
        most = min(most, placement.most_bytes)
    resident = pixels == "resident" or (pixels == "auto" and 3 * count * size[0] * size[1] <= most)
    if resident:
        room(count, size[0] * size[1])  # before anything is decoded
        if files.few:
            return _in_memory(files, size)
    if pixels != "files":
        try:
            if (kept := _kept(files, size, root)) is not None:
                kept[0].resident = resident
                return _read(*kept, count) if resident and not placement.wait else _not_in_memory(*kept, count)
        except NoRoom as error:
            if pixels == "mapped":
                raise
            then = "decoded in memory, each time" if resident else "decoded whenever they are needed"
            warnings.warn(f"{error}. Now they are {then}", RuntimeWarning, stacklevel=2)
    if resident:
        return _in_memory(files, size)
    return _not_in_memory(*_on_the_fly(files, size, try_all=try_all), count)


def _places_of_whole(count: int, broken: Broken) -> list[int]:
    out = {place for place, _ in broken}
    return [place for place in range(count) if place not in out]


def _read(stored: Pixels, broken: Broken, count: int) -> Decoded:
    return Decoded(stored[:], None, _places_of_whole(count, broken), broken)


def _not_in_memory(pixels: Pixels, broken: Broken, count: int) -> Decoded:
    images = torch.empty(pixels.shape, dtype=torch.uint8, device="meta")
    return Decoded(images, pixels, _places_of_whole(count, broken), broken)


def _in_memory(files: Files, size: tuple[int, int]) -> Decoded:
    """Decoded into memory that the processes share."""
    shape = (len(files.names), 3, *size)
    if not files.names:
        return Decoded(torch.empty(shape, dtype=torch.uint8, device="cpu"), None, [], [])
    memory = scratch()
    os.ftruncate(memory.number, int(np.prod(shape)))
    images = torch.from_numpy(np.frombuffer(mmap.mmap(memory.number, 0), np.uint8).reshape(shape))
    broken = _decode(files.paths(), range(len(files.names)), size, memory.number, shown=not files.few)
    whole = _places_of_whole(len(files.names), broken)
    return Decoded(images if not broken else images[whole], None, whole, broken)


def _on_the_fly(files: Files, size: tuple[int, int], *, try_all: bool) -> tuple[Pixels, Broken]:
    """Nothing is decoded now, unless all files are to be tried."""
    paths = files.paths()
    broken = _decode(paths, range(len(paths)), size, None, shown=not files.few) if try_all else []
    return FilePixels([paths[k] for k in _places_of_whole(len(paths), broken)], size), broken


def _decode(
    paths: Sequence[str],
    rows: Sequence[int],
    size: tuple[int, int],
    out: int | None,
    done: Callable[[list[tuple[int, Outcome]]], None] | None = None,
    *,
    shown: bool,
) -> Broken:
    """Decode ``paths`` into ``rows`` of the open file ``out``; ``done`` is told of some files at a time."""

    def work(k: int, process: Place) -> Outcome | OSError:
        try:
            with quiet_pillow():
                image = read_image(paths[k], size, crop=True, turn=process.turn)
        except DataError as error:
            return Outcome(reason(error), _lasting(error))
        try:
            if out is not None:
                _write(out, np.ascontiguousarray(image.transpose(2, 0, 1)), rows[k] * image.nbytes)
        except OSError as error:  # the disk is full, or gone
            return error
        return Outcome()

    broken: Broken = []

    def take(results: list[tuple[int, Outcome | OSError]]) -> None:
        found = []
        for k, outcome in results:
            if isinstance(outcome, OSError):
                raise outcome
            found.append((k, outcome))
        broken.extend((k, outcome.why) for k, outcome in found if outcome.why)
        if done is not None:
            done(found)

    def died(why: str) -> Outcome:
        return Outcome(DIED.format(why), lasting=False)

    for_each(work, len(paths), take, died=died, title="decoding images", shown=shown)
    return sorted(broken)


def _write(out: int, image: npt.NDArray[np.uint8], at: int) -> None:
    view = image.reshape(-1).data
    while view:  # a disk that is almost full takes less than all
        written = os.pwrite(out, view, at)
        view, at = view[written:], at + written


def _lasting(error: DataError) -> bool:
    """Whether the file's content is to blame: then another attempt would fail, too."""
    cause = error.__cause__
    return not isinstance(cause, MemoryError) and not (isinstance(cause, OSError) and cause.strerror)


def _kept(files: Files, size: tuple[int, int], root: Path) -> tuple[StoredPixels, Broken] | None:
    """Pixels in the file where they are kept, decoded there now if they are not yet; None where none can be kept."""
    folders = decoded_folders(root)
    for folder in folders:
        with suppress(OSError, DataError):  # it is being replaced
            index = read_index(folder / files.key, size)
            if index is not None and not index.missing(files):
                return index.open(files, size)
    with writable(folders, files.key) as kept:
        if kept is None:
            return None
        place = kept / files.key
        index = read_index(place, size)  # another process may have been here
        if index is None or (index.missing(files) and index.mostly_stale(files)):
            index = None
        if index is None or index.missing(files):
            index = _add(index, place, files, size)
        return index.open(files, size)


def _add(index: Index | None, place: Path, files: Files, size: tuple[int, int]) -> Index:
    """Decode what is missing into the file, a new one if there is no ``index``."""
    missing = list(range(len(files.names))) if index is None else index.missing(files)
    image_bytes = 3 * size[0] * size[1]
    _check_room(place, [] if index else images_at(place, size), len(missing), size)
    if index is None:
        index = new_index(place, files.folder, size)
    used = index.used
    free = (row for row in itertools.count() if row not in used)
    rows = list(itertools.islice(free, len(missing)))
    paths = [os.path.join(files.folder, files.names[k]) for k in missing]
    waiting: list[tuple[str, int, int, int | str]] = []
    written = time.monotonic()
    with ExitStack() as stack:
        out = os.open(index.images, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o644)
        stack.callback(os.close, out)
        lines = stack.enter_context(index.path.open("ab"))

        def write() -> None:
            nonlocal written
            if waiting:
                os.fsync(out)  # the rows first
                lines.write(line_of(waiting))
                lines.flush()
                os.fsync(lines.fileno())
                waiting.clear()
            written = time.monotonic()

        def done(found: list[tuple[int, Outcome]]) -> None:
            for k, outcome in found:
                name, stat = files.names[missing[k]], files.stats[missing[k]] if outcome.lasting else UNKNOWN
                waiting.append((name, *stat, outcome.why or rows[k]))
            if time.monotonic() - written >= WRITE_SECONDS:
                write()

        try:
            _decode(paths, rows, size, out, done, shown=True)
        except OSError as error:
            raise OSError(
                f"expected to write {image_bytes * len(missing):,} bytes of decoded images into {place}, got: {error}; "
                "is the disk full? What is decoded stays: the same command goes on there"
            ) from error
        finally:
            write()
    found = read_index(place, size)
    if found is None or not found.last.keys() >= set(files.names):
        raise OSError(f"expected whole files in {place} after decoding, got damaged ones; is the disk full?")
    return found


def _check_room(place: Path, replaced: Sequence[Path], count: int, size: tuple[int, int]) -> None:
    """Raise unless the disk has room for ``count`` more images."""
    above = next(folder for folder in (place, *place.parents) if folder.exists())
    needed, free = 3 * count * size[0] * size[1], shutil.disk_usage(above).free
    free += sum(path.stat().st_size for path in replaced)
    if needed > free:
        raise NoRoom(
            f"expected {needed:,} bytes of disk for {count:,} decoded images of {size[0]}x{size[1]} in {place.parent}, "
            f"got {free:,} that are free; free some (`setwise data clean` removes decoded images), name another disk "
            f"by {OPTION}, {RESIZE}, or decode whenever needed by --pixels files, {see('how-to/your-data#pixels')}"
        )


def remembered_size(
    files: Files, root: Path, measure: Callable[[], tuple[tuple[int, int], str]]
) -> tuple[tuple[int, int], str]:
    """What ``measure`` says of the size of files; it is asked again only after they have changed."""
    if files.few:
        return measure()
    digest = hashlib.sha256(f"{VERSION}\0".encode() + os.fsencode("\0".join(files.names)))
    digest.update(files.table.data)
    listed = digest.hexdigest()
    folders = decoded_folders(root)

    def known() -> tuple[tuple[int, int], str] | None:
        for folder in folders:
            with suppress(OSError, ValueError, TypeError):
                of, height, width, why = json.loads((folder / files.key / "size.json").read_text())
                if of == listed:
                    return (int(height), int(width)), str(why)
        return None

    if (found := known()) is not None:
        return found
    with writable(folders, files.key) as kept:
        if (found := known()) is not None:
            return found
        (height, width), why = measure()
        if kept is not None:
            with suppress(OSError):  # nothing depends on it
                (kept / files.key).mkdir(exist_ok=True)
                (kept / files.key / "size.json").write_text(json.dumps([listed, height, width, why]))
        return (height, width), why


@dataclass(frozen=True)
class DecodedFolder:
    """Decoded images of one folder or data set."""

    place: Path
    folder: str  # the images' own; the set's name if it is no folder of one's own
    size: int  # bytes


def all_kept(root: Path) -> list[DecodedFolder]:
    """What is kept below ``root``."""
    found = []
    for place in sorted((root / FOLDER).iterdir()) if (root / FOLDER).is_dir() else ():
        if place.is_dir():
            heads = [header for path in place.glob("*.index") if (header := _head(path)) is not None]
            size = sum(path.lstat().st_size for path in place.iterdir())
            found.append(DecodedFolder(place, heads[0]["folder"] if heads else place.name, size))
    return found


def _head(path: Path) -> dict[str, Any] | None:
    """The first line of an index."""
    with path.open("rb") as file:
        header = next(filter(None, map(parsed, file.read(HEAD_BYTES).split(b"\n"))), None)
    return header if isinstance(header, dict) and isinstance(header.get("folder"), str) else None


def remove(kept: DecodedFolder) -> None:
    """Remove decoded images; ``LockTaken`` if another process is decoding them. A process that reads them reads on."""
    ours = any(kept.place.glob("*.index")) or (kept.place / "size.json").exists()
    key = kept.place.name if ours else kept.place.name.lstrip(".").rpartition("-")[0]
    with locked(kept.place.with_name(f"{key}.lock"), option=OPTION):
        shutil.rmtree(kept.place)
