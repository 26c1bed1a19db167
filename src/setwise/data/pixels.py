"""Pixels that are not in memory: in one file of decoded images, or in image files that are decoded when needed.

Both give the same bytes for the same rows, so where pixels live changes nothing of a run.
"""

from __future__ import annotations

import math
import mmap
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from setwise.data.api import DataError
from setwise.data.formats.decode import quiet_pillow, read_image
from setwise.data.workers import Descriptor, Place, WorkerDied, Workers, chunks, processors

ANNOUNCED = 4  # batches that the system hears of before they are read
PART_BYTES = 64 * 2**20  # that a thread reads at a time, where more are read
WAY_BYTES = 4 * PART_BYTES  # of memory, through which pixels move to a GPU


class Pixels(ABC):
    """uint8 images [N, C, H, W] that are read when somebody asks for some of them."""

    shape: torch.Size
    where: str  # for people, as in "in a file, 1.2 GB"
    resident = False  # whether they are here only until ``ImageSet.in_memory`` reads them

    def __len__(self) -> int:
        """Number of images."""
        return self.shape[0]

    @abstractmethod
    def __getitem__(self, rows: Tensor | slice) -> Tensor:
        """The images in these rows, int64 [n], as a tensor of their own."""

    def onto(self, device: torch.device) -> Tensor:
        """All images on ``device``."""
        return self[:].to(device)

    @abstractmethod
    def select(self, rows: Tensor) -> Pixels:
        """These rows alone; nothing is read."""

    @abstractmethod
    def batches(self, rows: Iterable[Tensor], empty: Callable[[int], Tensor]) -> Iterator[Tensor]:
        """The images of each of ``rows``, in order, in tensors that ``empty`` gives for so many images.

        What can be prepared ahead of time is.
        """


class StoredPixels(Pixels):
    """Rows of a file of decoded images, read when needed; what the system keeps in its cache is not this process's."""

    def __init__(self, path: Path, shape: Sequence[int], *, rows: Tensor | None = None) -> None:
        """``path`` holds images [N, C, H, W]; ``rows`` of them count, or all."""
        flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
        self._path, self._file = path, Descriptor(os.open(path, flags))  # readable even after it is replaced or removed
        self._image_bytes = math.prod(shape[1:])
        self._rows = torch.arange(shape[0], device="cpu") if rows is None else rows
        self.shape = torch.Size((len(self._rows), *shape[1:]))
        self.where = f"in a file of decoded images, {self._image_bytes * len(self) / 1e9:,.2f} GB"
        needed, length = self._image_bytes * shape[0], os.fstat(self._file.number).st_size
        if length < needed:
            raise DataError(f"expected {path} of {needed:,} bytes, got {length:,}; remove it, it is made again")

    def __getitem__(self, rows: Tensor | slice) -> Tensor:
        """Read them."""
        places = self._rows[rows if isinstance(rows, slice) else rows.cpu()]
        return self.read(places, _memory(len(places), self.shape[1:]))

    def onto(self, device: torch.device) -> Tensor:
        """All images on ``device``, none of them twice: to hand out memory for all takes longer than to read them."""
        if device.type == "cpu":
            return self[:]
        return self.copy_to(torch.empty(self.shape, dtype=torch.uint8, device=device))

    def copy_to(self, out: Tensor) -> Tensor:
        """All images into ``out``, on any device, through ``WAY_BYTES`` of memory."""
        some = max(1, WAY_BYTES // self._image_bytes)
        way = torch.empty(min(some, len(self)), *self.shape[1:], dtype=torch.uint8, device="cpu")
        for places, images in zip(torch.split(self._rows, some), torch.split(out, some), strict=True):
            images.copy_(self.read(places, way[: len(places)]))
        return out

    def select(self, rows: Tensor) -> StoredPixels:
        """The same file."""
        other = copy(self)
        other._rows = self._rows[rows]
        other.shape = torch.Size((len(rows), *self.shape[1:]))
        return other

    def batches(self, rows: Iterable[Tensor], empty: Callable[[int], Tensor]) -> Iterator[Tensor]:
        """Announce batches to the system ahead: so a disk reads many images at once, though each read waits for one."""
        announced: deque[Tensor] = deque()
        for some in rows:
            announced.append(self._rows[some])
            self._announce(announced[-1])
            if len(announced) > ANNOUNCED:
                places = announced.popleft()
                yield self.read(places, empty(len(places)))
        for places in announced:
            yield self.read(places, empty(len(places)))

    def _announce(self, places: Tensor) -> None:
        if hasattr(os, "posix_fadvise"):
            for place in places.tolist():
                at = self._image_bytes * place
                os.posix_fadvise(self._file.number, at, self._image_bytes, os.POSIX_FADV_WILLNEED)

    def read(self, places: Tensor, out: Tensor) -> Tensor:
        """Images that lie at these places of the file into ``out``; neighbours by one read, many by several threads."""
        if len(places) * self._image_bytes <= PART_BYTES:
            self._read(places, out)
        else:
            some = max(1, PART_BYTES // self._image_bytes)
            with ThreadPoolExecutor(processors(shared=True)) as threads:
                list(threads.map(self._read, torch.split(places, some), torch.split(out, some)))
        return out

    def _read(self, places: Tensor, out: Tensor) -> None:
        size, images, numbers = self._image_bytes, out.numpy().reshape(-1), places.tolist()
        starts = (torch.diff(places, prepend=places[:1] - 2) != 1).nonzero().flatten().tolist()
        for first, end in pairwise([*starts, len(numbers)]):
            view, at = images[size * first : size * end].data, size * numbers[first]
            while view:  # a read ends at 2 GiB
                got = os.preadv(self._file.number, [view], at)
                if not got:
                    raise DataError(f"expected images whole in {self._path}, got an end; remove the file")
                view, at = view[got:], at + got


def _memory(rows: int, shape: torch.Size) -> Tensor:
    """Memory for so many images; much of it without torch's large pages, which a virtual machine hands out slowly.

    1.2 GB took 0.6 s of processor time to read into small pages, and 2.5 s into large ones.
    """
    length = rows * math.prod(shape)
    if length <= PART_BYTES or not hasattr(mmap, "MAP_PRIVATE"):
        return torch.empty(rows, *shape, dtype=torch.uint8, device="cpu")
    pages = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=torch.uint8).view(rows, *shape)


class FilePixels(Pixels):
    """Image files, decoded, cropped and resized by worker processes whenever they are needed; nothing is kept."""

    def __init__(self, paths: Sequence[str | Path], size: tuple[int, int], *, workers: int | None = None) -> None:
        """``size`` is (height, width); ``workers`` are as many as there are processors for this process, by default."""
        self._paths, self._size = tuple(paths), size
        self._workers = processors(shared=True) if workers is None else workers
        self.shape = torch.Size((len(paths), 3, *size))
        self.where = f"in their files, decoded for each epoch by {self._workers} processes"

    def __getitem__(self, rows: Tensor | slice) -> Tensor:
        """Decode them here, one by one."""
        places = torch.arange(len(self), device="cpu")[rows] if isinstance(rows, slice) else rows
        return _whole(self._decode(places.tolist(), Place(0)))

    def select(self, rows: Tensor) -> FilePixels:
        """The same files, fewer of them."""
        return FilePixels([self._paths[k] for k in rows.tolist()], self._size, workers=self._workers)

    def batches(self, rows: Iterable[Tensor], empty: Callable[[int], Tensor]) -> Iterator[Tensor]:
        """Workers decode ahead."""
        sizes: list[int] = []  # of the batches that were cut into chunks and are not yet whole

        def parts() -> Iterator[list[int]]:
            for some in rows:
                sizes.append(len(some))
                yield from chunks(some.tolist())

        return self._joined(Workers(self._decode, parts(), workers=self._workers), sizes, empty)

    def _decode(self, rows: list[int], place: Place) -> Tensor | DataError:
        """What a worker does; an error goes to the process that asked."""
        out = np.empty((len(rows), 3, *self._size), np.uint8)
        with quiet_pillow():
            for k, row in enumerate(rows):
                place.at(row)
                try:
                    out[k] = read_image(self._paths[row], self._size, crop=True, turn=place.turn).transpose(2, 0, 1)
                except DataError as error:
                    return DataError(
                        f"{error}; `setwise data check` lists all such files, --skip-broken leaves them out"
                    )
        return torch.from_numpy(out)

    def _joined(
        self, workers: Workers[Tensor | DataError], sizes: list[int], empty: Callable[[int], Tensor]
    ) -> Iterator[Tensor]:
        """Chunks put together to batches."""
        try:
            with workers as decoded:
                for part in decoded:
                    out, filled = empty(sizes.pop(0)), 0
                    while True:
                        images = _whole(part)
                        out[filled : filled + len(images)] = images
                        filled += len(images)
                        if filled == len(out):
                            break
                        part = next(decoded)
                    yield out
        except WorkerDied as death:
            names = ", ".join(str(self._paths[k]) for k in death.files)
            raise DataError(
                f"expected whole images, got a process that died ({death}) at one of these: {names}"
            ) from death


def _whole(images: Tensor | DataError) -> Tensor:
    if isinstance(images, DataError):
        raise images
    return images
