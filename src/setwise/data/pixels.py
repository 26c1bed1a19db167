"""Pixels that are not in memory: in one file of decoded images, or in image files that are decoded when needed.

Both give the same bytes for the same rows, so where pixels live changes nothing of a run.
"""

from __future__ import annotations

import os
import warnings
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from setwise.data.api import DataError
from setwise.data.formats.decode import quiet_pillow, read_image

CHUNK = 16  # images that a worker process decodes at a time
READ_AHEAD = 4  # such chunks for each worker


class Pixels(ABC):
    """uint8 images [N, C, H, W] that are read when somebody asks for some of them."""

    shape: torch.Size
    where: str  # for people, as in "in a file, 1.2 GB"

    def __len__(self) -> int:
        """Number of images."""
        return self.shape[0]

    @abstractmethod
    def __getitem__(self, rows: Tensor | slice) -> Tensor:
        """The images in these rows, int64 [n], as a tensor of their own."""

    @abstractmethod
    def select(self, rows: Tensor) -> Pixels:
        """These rows alone; nothing is read."""

    @abstractmethod
    def batches(self, rows: Iterable[Tensor], empty: Callable[[int], Tensor]) -> Iterator[Tensor]:
        """The images of each of ``rows``, in order, in tensors that ``empty`` gives for so many images.

        What can be prepared ahead of time is.
        """


class StoredPixels(Pixels):
    """Rows of a file of decoded images, read one by one; what the system keeps in its cache is not this process's."""

    def __init__(self, path: Path, shape: Sequence[int], *, offset: int = 0, rows: Tensor | None = None) -> None:
        """``path`` holds images [N, C, H, W] from byte ``offset`` on; ``rows`` of them count, or all."""
        self._path, self._stored, self._offset, self._rows = path, torch.Size(shape), offset, rows
        self.shape = torch.Size((shape[0] if rows is None else len(rows), *shape[1:]))
        self._image_bytes = int(np.prod(shape[1:]))
        self.where = f"in a file of decoded images, {self._image_bytes * shape[0] / 1e9:,.2f} GB"
        self._file = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))  # stays readable if it is replaced
        weakref.finalize(self, os.close, self._file)
        needed = offset + self._image_bytes * shape[0]
        if (length := os.fstat(self._file).st_size) < needed:
            raise DataError(f"expected {path} of {needed:,} bytes, got {length:,}; remove it, it is made again")

    def __getitem__(self, rows: Tensor | slice) -> Tensor:
        """Read them."""
        rows = _places(rows, len(self))
        out = torch.empty(len(rows), *self.shape[1:], dtype=torch.uint8, device="cpu")
        self._read(rows, out)
        return out

    def select(self, rows: Tensor) -> StoredPixels:
        """The same file."""
        chosen = rows if self._rows is None else self._rows[rows]
        return StoredPixels(self._path, self._stored, offset=self._offset, rows=chosen)

    def batches(self, rows: Iterable[Tensor], empty: Callable[[int], Tensor]) -> Iterator[Tensor]:
        """One read an image: the system's cache and the disk do the rest."""
        for some in rows:
            out = empty(len(some))
            self._read(some, out)
            yield out

    def _read(self, rows: Tensor, out: Tensor) -> None:
        places = rows if self._rows is None else self._rows[rows]
        size, images = self._image_bytes, out.numpy().reshape(len(places), self._image_bytes)
        for image, place in zip(images, places.tolist(), strict=True):
            if os.preadv(self._file, [image.data], self._offset + size * place) != size:
                raise DataError(f"expected image {place:,} whole in {self._path}, got less; remove the file")


class FilePixels(Pixels):
    """Image files, decoded, cropped and resized by worker processes whenever they are needed; nothing is kept."""

    def __init__(self, paths: Sequence[Path], size: tuple[int, int], *, workers: int | None = None) -> None:
        """``size`` is (height, width); ``workers`` are as many as there are processors for this process, by default."""
        self._paths, self._size = tuple(paths), size
        self._workers = _processors() if workers is None else workers
        self.shape = torch.Size((len(paths), 3, *size))
        self.where = f"in their files, decoded for each epoch by {self._workers} processes"

    def __getitem__(self, rows: Tensor | slice) -> Tensor:
        """Decode them here, one by one."""
        return _Files(self._paths, self._size).__getitems__(_places(rows, len(self)).tolist())

    def select(self, rows: Tensor) -> FilePixels:
        """The same files, fewer of them."""
        return FilePixels([self._paths[k] for k in rows.tolist()], self._size, workers=self._workers)

    def batches(self, rows: Iterable[Tensor], empty: Callable[[int], Tensor]) -> Iterator[Tensor]:
        """Workers decode ahead; torch's DataLoader looks after them."""
        sizes: list[int] = []  # of the batches that were cut into chunks and are not yet whole

        def chunks() -> Iterator[list[int]]:
            for some in rows:
                sizes.append(len(some))
                yield from (part.tolist() for part in torch.split(some, CHUNK))

        loader = DataLoader(
            _Files(self._paths, self._size),
            batch_sampler=chunks(),
            collate_fn=_as_it_is,
            num_workers=self._workers,
            prefetch_factor=READ_AHEAD,
            # Other ways to start a process run the caller's script again, unless it is written for that.
            multiprocessing_context="fork",
        )
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*fork", category=DeprecationWarning)
            decoded = iter(loader)  # the workers start here, in the caller's thread
        return _joined(decoded, sizes, empty)


def _joined(decoded: Any, sizes: list[int], empty: Callable[[int], Tensor]) -> Iterator[Tensor]:
    """Chunks put together to batches."""
    try:
        for part in decoded:
            out, filled = empty(sizes.pop(0)), 0
            while True:
                out[filled : filled + len(part)] = part
                filled += len(part)
                if filled == len(out):
                    break
                part = next(decoded)
            yield out
    finally:
        # Python's collector would close the workers' queues before the loader stops them by these: ten seconds' wait.
        decoded._shutdown_workers()


class _Files(Dataset[Tensor]):
    """What a worker process decodes."""

    def __init__(self, paths: Sequence[Path], size: tuple[int, int]) -> None:
        self._paths, self._size = paths, size

    def __getitems__(self, rows: list[int]) -> Tensor:
        out = np.empty((len(rows), 3, *self._size), np.uint8)
        with quiet_pillow():
            for k, row in enumerate(rows):
                out[k] = read_image(self._paths[row], self._size, crop=True).transpose(2, 0, 1)
        return torch.from_numpy(out)


def _as_it_is(images: Any) -> Any:
    return images


def _places(rows: Tensor | slice, count: int) -> Tensor:
    return torch.arange(count, device="cpu")[rows] if isinstance(rows, slice) else rows.cpu()


def _processors() -> int:
    """Processors for this process; the processes that torchrun started on this machine share them."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, count // int(os.environ.get("LOCAL_WORLD_SIZE") or 1))
