"""Which images lie below a folder, by their names, how long they are and when they were changed. Nothing is opened.

To ask the system for 100,000 files takes 0.3 s. A process of its own can do so while torch is imported: ``ahead``. That
process runs this file alone, so nothing of setwise is imported here.
"""

from __future__ import annotations

import marshal
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from subprocess import DEVNULL, Popen
from tempfile import TemporaryFile
from typing import IO

SUFFIXES = (".png", ".jpg", ".jpeg")  # of data sets by name
# Of your own images. What counts is the content: a PNG may be called .jpg. Pillow's other readers are many, old, and
# not needed.
OWN_SUFFIXES = (*SUFFIXES, ".jpe", ".jfif", ".webp", ".gif", ".bmp", ".tif", ".tiff")
SPLITS = ("train", "test", "val")  # of a folder, as folders in it
DEEPEST = 32  # folders below the one that is read
Stat = tuple[int, int]  # bytes, and when it was changed, in nanoseconds
File = tuple[str, Stat, str]  # its path, its Stat, and the folder that it is in

_begun: dict[str, tuple[Popen[bytes], IO[bytes]]] = {}  # by their folders: processes, and what they write
_ready: dict[str, Walk] = {}  # by their places: what such processes have found


@dataclass
class Walk:
    """The images in a place and below, sorted by folders first: photos/a/1.jpg before photos/a-b/1.jpg."""

    paths: list[str] = field(default_factory=list)
    stats: list[Stat] = field(default_factory=list)
    places: list[str] = field(default_factory=list)  # the folder of each
    unusable: list[tuple[str, str]] = field(default_factory=list)  # links and pipes, with the reason
    others: Counter[str] = field(default_factory=Counter)  # files that are no images, by their endings


def is_own(name: str) -> bool:
    """Whether the name is that of an image, and not hidden."""
    return name.lower().endswith(OWN_SUFFIXES) and not name.startswith(".")


def walk(place: str | os.PathLike[str], top: str | os.PathLike[str], *, follow_links: bool = False) -> Walk:
    """The images in ``place``, which is ``top`` or lies in it; links out of ``top`` are not followed, by default."""
    place, top = os.fspath(place), os.fspath(top)
    if not follow_links:
        if top in _begun:
            _ready.update(_finished(*_begun.pop(top)))
        if place in _ready:
            return _ready.pop(place)  # once: a second walk may find other files
    found = Walk()
    files = sorted(images(place, top, found, follow_links=follow_links), key=_by_folders)
    if files:
        found.paths, found.stats, found.places = map(list, zip(*files, strict=True))
    return found


def _by_folders(file: File) -> str:
    return file[0].replace(os.sep, "\0")  # which no name has, and no letter is below


def images(
    place: str, top: str, found: Walk, *, follow_links: bool = False, above: frozenset[str] = frozenset()
) -> Iterator[File]:
    """The images in ``place`` and below, as the system gives them; ``found`` gets what is none.

    Links out of ``top`` are refused, so are links to folders, unless followed. ``above``: the folders on the way here,
    so that links cannot lead in circles.
    """
    above |= {os.path.realpath(place)}
    with os.scandir(place) as entries:
        for entry in entries:
            name = entry.name
            if name.startswith("."):
                continue
            if name.lower().endswith(OWN_SUFFIXES) and entry.is_file(follow_symlinks=False):  # nearly all are
                status = entry.stat()
                yield entry.path, (status.st_size, status.st_mtime_ns), place
                continue
            path, link = entry.path, entry.is_symlink()
            if entry.is_dir():
                if link and not follow_links:
                    found.unusable.append((path, "a link to a folder; --follow-links reads it"))
                elif os.path.realpath(path) in above:
                    found.unusable.append((path, "a link to a folder that it lies in"))
                elif path.count(os.sep) - top.count(os.sep) > DEEPEST:
                    found.unusable.append((path, f"more than {DEEPEST} folders deep"))
                else:
                    yield from images(path, top, found, follow_links=follow_links, above=above)
            elif not is_own(name):
                found.others[os.path.splitext(name)[1].lower() or "(no ending)"] += 1
            elif not entry.is_file():
                found.unusable.append((path, "a link to nothing" if link else "a pipe or device"))
            elif link and not follow_links and not _inside(path, top):
                found.unusable.append((path, "a link out of the folder; --follow-links reads it"))
            else:
                status = entry.stat()
                yield path, (status.st_size, status.st_mtime_ns), place


def _inside(link: str, folder: str) -> bool:
    return os.path.realpath(link).startswith(os.path.join(os.path.realpath(folder), ""))


@contextmanager
def ahead(folder: str) -> Iterator[None]:
    """Begin to walk through a folder, if it is one, by a process of its own, which ``walk`` waits for in this block."""
    wanted = bool(folder)  # "" would be the folder that the command was given in
    folder = os.path.realpath(os.path.expanduser(folder))
    with ExitStack() as stack:
        if wanted and os.path.isdir(folder):
            stack.callback(_ready.clear)
            stack.callback(_begun.clear)
            with suppress(OSError):
                out = stack.enter_context(TemporaryFile())
                command = [sys.executable, "-S", "-P", __file__, folder]
                process = Popen(command, stdin=DEVNULL, stdout=out, stderr=DEVNULL)
                stack.callback(process.wait)
                stack.callback(process.kill)
                _begun[folder] = process, out
        yield


def _finished(process: Popen[bytes], out: IO[bytes]) -> dict[str, Walk]:
    """What the process has found, by the places; nothing if it failed: then this process fails too, and says why."""
    if process.wait() != 0:
        return {}
    out.seek(0)
    found = {place: Walk(*columns) for place, columns in marshal.loads(out.read()).items()}
    for one in found.values():
        one.others = Counter(one.others)
    return found


def _main(folder: str) -> None:
    """What the process does: the walks that a folder with splits, or without any, will be asked for."""
    places = [folder]
    if os.path.isdir(os.path.join(folder, "train")):
        splits = [path for name in SPLITS if os.path.isdir(path := os.path.join(folder, name))]
        places = [entry.path for split in splits for entry in os.scandir(split) if entry.is_dir()]
    walks = {place: walk(place, folder) for place in places}
    found = {place: (w.paths, w.stats, w.places, w.unusable, dict(w.others)) for place, w in walks.items()}
    marshal.dump(found, sys.stdout.buffer)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    _main(sys.argv[1])
