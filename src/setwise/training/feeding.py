"""Images that are not on the device, brought there ahead of the steps.

A thread fills pinned buffers. A stream of its own copies them to the device while steps run there. A captured step
reads its images at one place, so each batch is copied there before its step, which takes microseconds.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from setwise.data import ImageSet

AHEAD = 3  # batches that are under way or ready
SHARE = 0.4  # of a GPU's free memory that images may take


def fits(data: ImageSet, device: torch.device) -> bool:
    """Whether the images are in memory, or are to be, and may move to the device whole."""
    if data.pixels is not None and not data.pixels.resident:
        return False
    if device.type != "cuda" or data.images.device == device:
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return data.images.nbytes <= SHARE * free


@dataclass
class _Slot:
    """A batch on its way: on the host, on the device, and how far it is."""

    host: Tensor
    device: Tensor
    arrived: Any = None  # CUDA events: the copy to the device has ended,
    used: Any = None  # and the step's own copy, after which the slot is free
    rows: int = 0


class Feed:
    """One batch after the other into ``images``, where steps read them."""

    def __init__(self, data: ImageSet, most_rows: int, steps: int, device: torch.device) -> None:
        """``most_rows``: of the largest batch; ``steps``: in an epoch."""
        self._data, self._steps, self._device = data, steps, device
        shape = (most_rows, *data.images.shape[1:])
        # Any images will do before the first batch, when steps are captured; equal ones might make a loss infinite.
        numbers = torch.arange(most_rows, device=device).view(-1, 1, 1, 1) % 251
        self.images = numbers.expand(shape).to(torch.uint8, memory_format=torch.contiguous_format)
        on_gpu = device.type == "cuda"
        hosts = [torch.empty(shape, dtype=torch.uint8, device="cpu", pin_memory=on_gpu) for _ in range(AHEAD)]
        self._slots = [_Slot(host, torch.empty_like(host, device=device) if on_gpu else host) for host in hosts]
        self._stream: Any = torch.cuda.Stream(device) if on_gpu else None  # type: ignore[no-untyped-call]
        self._thread: threading.Thread | None = None
        self._place: tuple[int, int] | None = None  # of the next batch: epoch and step

    def load(self, epoch: int, step: int, batches: Callable[[int, int], Iterator[Tensor]]) -> None:
        """Put the batch of a step into ``images``.

        ``batches(epoch, step)`` gives the rows of that batch and of all that follow, those of later epochs too.
        """
        if self._place != (epoch, step):
            self._start(batches(epoch, step))
        slot = self._ready.get()
        if isinstance(slot, BaseException):
            self._place = None
            raise slot
        images = self.images[: slot.rows]
        if self._stream is None:
            images.copy_(slot.host[: slot.rows])
        else:
            stream = torch.cuda.current_stream(self._device)
            stream.wait_event(slot.arrived)
            images.copy_(slot.device[: slot.rows], non_blocking=True)
            slot.used = stream.record_event()
        self._free.put(slot)
        self._place = (epoch, step + 1) if step + 1 < self._steps else (epoch + 1, 0)

    def _start(self, rows: Iterator[Tensor]) -> None:
        self.close()
        self._free: queue.Queue[_Slot | None] = queue.Queue()
        self._ready: queue.Queue[_Slot | BaseException] = queue.Queue()
        for slot in self._slots:
            self._free.put(slot)
        # Made here: worker processes are not to be started by a thread.
        images = self._batches(rows)
        self._thread = threading.Thread(target=self._fill, args=(images,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop reading ahead."""
        if self._thread is not None:
            self._free.put(None)
            self._thread.join()
            self._thread = None
        self._place = None

    def _batches(self, rows: Iterable[Tensor]) -> Iterator[Tensor]:
        """The images of these rows, each batch in the host memory of a free slot."""
        if self._data.pixels is not None:
            return self._data.pixels.batches(rows, self._empty)
        return (torch.index_select(self._data.images, 0, some, out=self._empty(len(some))) for some in rows)

    def _empty(self, rows: int) -> Tensor:
        slot = self._free.get()
        if slot is None:
            raise _Closed
        if slot.arrived is not None:
            slot.arrived.synchronize()  # its copy to the device still reads the host memory
        self._filling, slot.rows = slot, rows
        return slot.host[:rows]

    def _fill(self, images: Iterator[Tensor]) -> None:
        try:
            for _ in images:
                slot = self._filling
                if self._stream is not None:
                    with torch.cuda.stream(self._stream):
                        if slot.used is not None:
                            self._stream.wait_event(slot.used)
                        slot.device[: slot.rows].copy_(slot.host[: slot.rows], non_blocking=True)
                        slot.arrived = self._stream.record_event()
                self._ready.put(slot)
        except _Closed:
            pass
        except BaseException as error:  # for the thread that trains
            self._ready.put(error)


class _Closed(Exception):
    """Nobody wants more batches."""
