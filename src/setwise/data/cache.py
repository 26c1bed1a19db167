"""Images decoded once into files that are mapped into memory afterwards."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

FOLDER = ".decoded"


def signature(sources: Iterable[Path]) -> str:
    """A word that changes when a source file is added, removed, renamed, resized or written to."""
    digest = hashlib.sha256()
    for path in sources:
        stat = path.stat()
        digest.update(f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode(errors="surrogateescape"))
    return digest.hexdigest()[:16]


def cached(
    root: Path, key: str, sources: Iterable[Path], names: tuple[str, ...], build: Callable[[Path], None]
) -> list[npt.NDArray[Any]]:
    """The arrays ``names`` that ``build(folder)`` writes as .npy files, built only if the sources changed.

    They are mapped copy-on-write: writing to them changes no file. The folder appears under its final name, which
    holds the sources' signature, only when it is complete; older ones of the same ``key`` are removed.
    """
    from filelock import FileLock

    place = root / FOLDER / f"{key}-{signature(sources)}"
    if (found := _open(place, names)) is not None:
        return found
    place.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(place.parent / f"{key}.lock"):
        if (found := _open(place, names)) is not None:
            return found
        for stale in (*place.parent.glob(f"{key}-*"), *place.parent.glob(f".{key}-*")):
            shutil.rmtree(stale, ignore_errors=True)
        partial = place.with_name(f".{key}-partial")
        partial.mkdir()
        try:
            build(partial)
            os.replace(partial, place)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    if (found := _open(place, names)) is None:
        raise OSError(f"expected {', '.join(names)} in {place} after decoding, got damaged files; is the disk full?")
    return found


def _open(place: Path, names: tuple[str, ...]) -> list[npt.NDArray[Any]] | None:
    try:
        # Copy-on-write rather than read-only: torch has no read-only tensors, and warns.
        return [np.load(place / f"{name}.npy", mmap_mode="c", allow_pickle=False) for name in names]
    except (FileNotFoundError, ValueError, EOFError):
        return None
