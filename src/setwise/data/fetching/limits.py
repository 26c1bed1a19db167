"""Limits of files from outside, each checked before the memory is taken.

Two are elsewhere: what a data set unpacks to is in its ``Published``, what cuhk-03.mat may hold in cuhk03_mat.py.
docs/how-to/your-data.md#limits has a table of all of them.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from setwise.data.api import DataError

# Archives
TAR_HEADER = 4096  # bytes of a long name or a pax header; tarfile reads them whole, and pax in quadratic time
PATH_BYTES = 1024  # of a member
NAME_BYTES = 255  # of one part of its path, the limit of common file systems
PATH_PARTS = 32

# Images
IMAGE_FILE = 512 * 2**20  # bytes of an image file
IMAGE_PIXELS = 2**28 // 3  # 256 MiB as RGB; where Pillow begins to warn
# Deflate packs at most 1,032 bytes into one. A JPEG has at least one bit for a block of 8 x 8 pixels, a GIF 12 bits for
# 4,096 pixels, a BMP two bytes for 255. WebP and TIFF have no such bound; beyond this one nothing is in the picture.
PIXELS_PER_BYTE = {"PNG": 8 * 1032, "JPEG": 8 * 64, "GIF": 2731, "BMP": 128, "WEBP": 2**15, "TIFF": 2**15}
LARGEST_SIZE = 4096  # pixels of a side that images are resized to
SET_BYTES = 64 * 2**30  # of all images of a split, decoded; nor more than the memory that is available

# Other files, in bytes
CIFAR_BATCH = 160 * 10**6  # the largest, CIFAR-100's train, has 155 million
ANNOTATIONS = 16 * 2**20  # tiny-ImageNet's have half a million
MANIFEST_FILE = 64 * 2**20


def open_plain(path: str | Path, *, most_bytes: int | None = None) -> io.BufferedReader:
    """Open a file to read; refuse what is no plain file, such as a FIFO, and what is longer than ``most_bytes``.

    It checks the opened file, not its name, so that the file cannot be exchanged in between. It does not wait for a
    FIFO.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise DataError(f"expected {path} to be a plain file, got a folder, pipe or device; move it away")
        if most_bytes is not None and status.st_size > most_bytes:
            raise DataError(
                f"expected {path} of at most {most_bytes:,} bytes, got {status.st_size:,}; it is not what its name says"
            )
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def set_bytes() -> int:
    """The most bytes that the images of a split may take in memory: ``SET_BYTES``, or what is available."""
    return min(SET_BYTES, available_bytes())


def available_bytes() -> int:
    """Memory that Linux says is available, within the limits of this process's control groups; else ``SET_BYTES``."""
    found = [SET_BYTES]
    with suppress(OSError, ValueError, KeyError):
        fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        found = [1024 * int(fields["MemAvailable"].removesuffix("kB"))]
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, kinds, group = line.split(":", 2)
            if kinds in ("", "memory"):  # version 2, 1
                found += _left_in(Path("/sys/fs/cgroup", kinds), group)
    return max(0, min(found))


def _left_in(mount: Path, group: str) -> Iterator[int]:
    """Bytes that each group from ``group`` up leaves. Files that the system keeps in its cache make room."""
    names = ("memory.max", "memory.current", "file")
    if mount.name == "memory":
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache")
    below = Path(group.lstrip("/"))
    for place in (mount / below, *(mount / above for above in below.parents)):
        with suppress(OSError, ValueError, KeyError):  # "max": no limit
            limit, used = (int((place / name).read_text()) for name in names[:2])
            cache = dict(line.split() for line in (place / "memory.stat").read_text().splitlines())[names[2]]
            yield limit - used + int(cache)
