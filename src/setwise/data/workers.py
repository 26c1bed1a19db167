"""Work on many files by several processes. torch's DataLoader looks after them."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import tempfile
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from setwise.data.progress import progress_bar

T = TypeVar("T")
CHUNK = 16  # files that a process gets at a time
READ_AHEAD = 4  # such chunks for each process
NOTHING = -1


class Descriptor:
    """An open file, which is closed with its last user."""

    def __init__(self, number: int) -> None:
        """``number``: the system's."""
        self.number = number
        weakref.finalize(self, os.close, number)


def scratch() -> Descriptor:
    """A file in memory, or without a name where a system has no such."""
    if hasattr(os, "memfd_create"):
        return Descriptor(os.memfd_create("setwise"))
    number, name = tempfile.mkstemp()
    os.unlink(name)
    return Descriptor(number)


class WorkerDied(RuntimeError):
    """A process crashed or was killed; ``files`` are the numbers of those that the processes were working on."""

    def __init__(self, files: list[int], why: str) -> None:
        """``why``: the system's words."""
        super().__init__(why)
        self.files = files


class Place:
    """Which file each process is working on, in memory that all of them share."""

    def __init__(self, workers: int) -> None:
        """Before the processes start."""
        self._at = np.frombuffer(mmap.mmap(-1, 8 * max(1, workers)), np.int64)  # shared with processes started later
        self._at[:] = NOTHING
        self._turns, self._parent = scratch(), os.getpid()

    def at(self, file: int) -> None:
        """Note that this process turns to that file. It ends here if the process that started it was killed."""
        info = get_worker_info()
        if info is not None and os.getppid() != self._parent:
            os._exit(1)
        self._at[0 if info is None else info.id] = file

    def files(self) -> list[int]:
        """The files that the processes are working on."""
        return sorted({int(file) for file in self._at if file != NOTHING})

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Only one process at a time is in such a block. A process that dies leaves it."""
        try:
            import fcntl
        except ImportError:  # Windows: there is one process only
            yield
            return
        fcntl.lockf(self._turns.number, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._turns.number, fcntl.LOCK_UN)


class Workers(Generic[T]):
    """``work(chunk, place)`` for each of ``chunks``, by processes that start at once; ``with`` gives the results.

    Without ``in_order`` they come as they are ready. A process that dies raises ``WorkerDied``.
    """

    def __init__(
        self,
        work: Callable[[list[int], Place], T],
        chunks: Iterable[list[int]],
        *,
        workers: int,
        in_order: bool = True,
    ) -> None:
        """``workers``: how many; where this process cannot start any, it does the work itself."""
        able = "fork" in multiprocessing.get_all_start_methods() and not multiprocessing.current_process().daemon
        workers = workers if able else 0
        self._place = Place(workers)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*fork", category=DeprecationWarning)
            warnings.filterwarnings("ignore", message="This DataLoader will create")  # more than there are processors
            loader = DataLoader(
                _Work(work, self._place),
                batch_sampler=chunks,
                collate_fn=_as_it_is,
                num_workers=workers,
                prefetch_factor=READ_AHEAD if workers else None,
                # Other ways to start a process run the caller's script again, unless it is written for that.
                multiprocessing_context="fork" if workers else None,
                in_order=in_order,
                generator=torch.Generator(),  # else it draws a number of torch's own, and whatever follows changes
            )
            self._results: Iterator[T] | None = iter(loader)  # the processes start here, in the caller's thread

    def __enter__(self) -> Iterator[T]:
        """The results."""
        assert self._results is not None
        return self._results

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the processes."""
        # Python's collector would close the queues before the loader stops the processes by these: ten seconds' wait.
        getattr(self._results, "_shutdown_workers", int)()
        self._results = None
        if isinstance(error, RuntimeError) and str(error).startswith("DataLoader worker (pid"):
            raise WorkerDied(self._place.files(), str(error).split(". ")[0]) from error


class _Work(Dataset[Any]):
    def __init__(self, work: Callable[[list[int], Place], Any], place: Place) -> None:
        self._work, self._place = work, place

    def __getitems__(self, chunk: list[int]) -> Any:
        try:
            return self._work(chunk, self._place)
        finally:
            self._place.at(NOTHING)


def _as_it_is(result: Any) -> Any:
    return result


def for_each(
    work: Callable[[int, Place], T],
    count: int,
    done: Callable[[list[tuple[int, T]]], None],
    *,
    died: Callable[[str], T],
    title: str,
    shown: bool,
    workers: int | None = None,
) -> None:
    """``work(k, place)`` for each k below ``count``, by as many processes as there are processors, with a bar.

    ``done`` is told the results of some at a time, as they are ready. If a process dies, what the processes were at is
    tried again, each in a process of its own. If that dies too, the result is ``died(why)``.
    """

    def part(chunk: list[int], place: Place) -> list[tuple[int, T]]:
        found = []
        for k in chunk:
            place.at(k)
            found.append((k, work(k, place)))
        return found

    with progress_bar(shown=shown) as bar:
        task = bar.add_task(title, total=count)
        left = list(range(count))
        while left:
            finished: set[int] = set()

            def take(results: Iterable[list[tuple[int, T]]], finished: set[int] = finished) -> None:
                for found in results:
                    done(found)
                    finished.update(k for k, _ in found)
                    bar.advance(task, len(found))

            try:
                with Workers(
                    part, chunks(left), workers=processors(len(left)) if workers is None else workers, in_order=False
                ) as results:
                    take(results)
            except WorkerDied as death:
                for k in set(death.files) - finished:
                    try:
                        with Workers(part, [[k]], workers=1) as results:
                            take(results)
                    except WorkerDied as again:
                        take([[(k, died(str(again)))]])
                if not finished:
                    raise
            left = [k for k in left if k not in finished]


def chunks(places: list[int]) -> Iterator[list[int]]:
    """``places``, some at a time."""
    return (places[k : k + CHUNK] for k in range(0, len(places), CHUNK))


def processors(files: int | None = None, *, shared: bool = False) -> int:
    """Processors for this process, no more than there are chunks of ``files``.

    ``shared``: with the other processes that torchrun started on this machine, which do the same.
    """
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if shared:
        count //= int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
    return max(1, count if files is None else min(count, -(-files // CHUNK)))
