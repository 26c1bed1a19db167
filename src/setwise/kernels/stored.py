"""Compiled kernels kept from one process to the next: compiling all of an encoder's takes 6 to 11 s (H200)."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def folder() -> Path:
    """Where they are kept: $SETWISE_KERNELS, or ~/.cache/setwise/kernels."""
    given = os.environ.get("SETWISE_KERNELS")
    return Path(given) if given else Path.home() / ".cache" / "setwise" / "kernels"


def stored(key: str, make: Callable[[], tuple[bytes, str]]) -> tuple[bytes, str]:
    """A kernel's binary and its name in it, from its file or else from ``make``, which compiles it.

    ``key`` says all that they depend on. A file is taken only if this user wrote it, nobody else could have, and it
    is whole. Where none can be written, all is compiled anew each time, as it would be without.
    """
    try:
        place = folder() / hashlib.sha256(key.encode()).hexdigest()
    except RuntimeError:  # this user has no home
        return make()
    if (found := _read(place)) is not None:
        return found
    binary, name = make()
    with suppress(OSError):
        _write(place, binary, name)
    return binary, name


def _read(place: Path) -> tuple[bytes, str] | None:
    try:
        for path in (place, place.parent):
            status = path.stat()
            if status.st_mode & 0o022 or (hasattr(os, "getuid") and status.st_uid != os.getuid()):
                return None
        digest, name, binary = place.read_bytes().split(b"\n", 2)
    except (OSError, ValueError):
        return None
    return (binary, name.decode("ascii", "replace")) if digest == _digest(name, binary) else None


def _write(place: Path, binary: bytes, name: str) -> None:
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, temporary = tempfile.mkstemp(dir=place.parent)  # for this user only
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(b"\n".join([_digest(name.encode(), binary), name.encode(), binary]))
        os.replace(temporary, place)
    except OSError:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def _digest(name: bytes, binary: bytes) -> bytes:
    return hashlib.sha256(name + b"\n" + binary).hexdigest().encode()
