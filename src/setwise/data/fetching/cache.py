"""Images decoded once into files that are mapped into memory afterwards."""

from __future__ import annotations

import hashlib
import os
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from setwise.data.root import OPTION, root_of
from setwise.locks import LockTaken, locked

FOLDER = ".decoded"


def signature(sources: Iterable[Path]) -> str:
    """A short text that changes when a source file is added, removed, renamed, resized or written to."""
    digest = hashlib.sha256()
    for path in sources:
        stat = path.stat()
        digest.update(f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode(errors="surrogateescape"))
    return digest.hexdigest()[:16]


def cached(
    root: Path, name: str, place: Path, sources: Iterable[Path], arrays: tuple[str, ...], build: Callable[[Path], None]
) -> list[npt.NDArray[Any]]:
    """The ``arrays`` that ``build(folder)`` writes as .npy files, built only if the ``sources`` at ``place`` changed.

    They are kept below ``root``, or below the default root where that cannot be written, or, with a warning, nowhere.
    They are mapped copy-on-write: writing to them changes no file. The folder appears under its final name, which
    holds the sources' signature, only when it is complete; older ones of the same ``name`` and ``place`` are removed.
    """
    key = f"{name}-{hashlib.sha256(os.fsencode(place.resolve())).hexdigest()[:8]}"
    full, folders = f"{key}-{signature(sources)}", decoded_folders(root)
    for folder in folders:
        if (stored := _open(folder / full, arrays)) is not None:
            return stored
    with writable(folders, key) as kept:
        if kept is not None:
            return _build(kept / full, key, arrays, build)
    # What is mapped stays when its file is removed; where a system does not remove it, it is left behind.
    with TemporaryDirectory(prefix="setwise-", ignore_cleanup_errors=True) as partial:
        build(Path(partial))
        return _complete(Path(partial), arrays)


@contextmanager
def writable(folders: Sequence[Path], key: str) -> Iterator[Path | None]:
    """The first of these folders that can be written to; no other process is in such a block with the same ``key``.

    None, with a warning, where there is none.
    """
    for folder in folders:
        with ExitStack() as stack:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(locked(folder / f"{key}.lock", option=OPTION, wait=True))
            except (OSError, LockTaken):  # it cannot be written, or has no locks
                continue
            yield folder
            return
    warnings.warn(
        f"expected to keep decoded images in {' or '.join(map(str, folders))}, got no place with locks that "
        "can be written; they are decoded each time: set SETWISE_DATA to a folder that you can write to",
        RuntimeWarning,
        stacklevel=2,
    )
    yield None


def decoded_folders(root: Path) -> list[Path]:
    """Where decoded images may be, the first one first."""
    roots = [root]
    with suppress(RuntimeError):  # a user without a home has no default root
        roots.append(root_of(None))
    return list(dict.fromkeys(place / FOLDER for place in roots))


def _build(place: Path, key: str, arrays: tuple[str, ...], build: Callable[[Path], None]) -> list[npt.NDArray[Any]]:
    """Build into ``place``, unless another process just did."""
    if (stored := _open(place, arrays)) is not None:
        return stored
    for stale in (*place.parent.glob(f"{key}-*"), *place.parent.glob(f".{key}-*")):
        shutil.rmtree(stale, ignore_errors=True)
    partial = place.with_name(f".{key}-partial")
    partial.mkdir()
    try:
        build(partial)
        for file in partial.iterdir():  # to the disk before it gets its final name, as in installing.py
            with file.open("r+b") as stream:
                os.fsync(stream.fileno())
        os.replace(partial, place)
    except OSError as error:  # what is wrong with an image is a DataError
        raise OSError(f"expected to keep decoded images in {place.parent}, got: {error}; is the disk full?") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return _complete(place, arrays)


def _complete(place: Path, arrays: tuple[str, ...]) -> list[npt.NDArray[Any]]:
    if (stored := _open(place, arrays)) is None:
        raise OSError(f"expected {', '.join(arrays)} in {place} after decoding, got damaged files; is the disk full?")
    return stored


def _open(place: Path, arrays: tuple[str, ...]) -> list[npt.NDArray[Any]] | None:
    try:
        # Copy-on-write rather than read-only: torch has no read-only tensors, and warns.
        return [np.load(place / f"{name}.npy", mmap_mode="c", allow_pickle=False) for name in arrays]
    except (FileNotFoundError, NotADirectoryError, PermissionError, ValueError, EOFError):
        return None
