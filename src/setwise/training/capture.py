"""CUDA graphs: a whole training step as one launch."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Thread
from typing import Any

import torch
from torch.nn.functional import conv2d

WARM_UP = 3  # runs before a capture: libraries choose their kernels and allocate what they keep
DDP_WARM_UP = 11  # DistributedDataParallel measures its first ten steps, which waits for the device


def captured(
    run: Callable[[], object],
    pool: Any = None,
    before: Callable[[], object] | None = None,
    *,
    warm_up: int = WARM_UP,
    stream: Any = None,
) -> Callable[[], None]:
    """``run`` as the replay of a CUDA graph. Fails if anything in it waits for the device.

    It is run ``warm_up`` times first, each time after ``before``: what it changes is changed. Graphs that are never
    replayed at once may share their memory: give the ``torch.cuda.graph_pool_handle()`` of the others. ``stream``: to
    run and capture in, if what runs was made in one of its own.
    """
    stream = new_stream() if stream is None else stream
    with within(stream):
        for _ in range(warm_up):
            if before is not None:
                before()
            run()
    graph = torch.cuda.CUDAGraph()
    # Of this thread alone: another one may bring the next batches to the device meanwhile.
    mode = "thread_local"
    with no_collection(), torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode=mode):
        run()

    def replay(keep: object = run) -> None:
        # A graph knows addresses only: the tensors that ``run`` refers to have to live as long as it does.
        graph.replay()

    return replay


def new_stream() -> Any:
    """A stream beside the current one."""
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]


@contextmanager
def within(stream: Any) -> Iterator[None]:
    """Run the block on ``stream``, which waits for the current stream; afterwards the current one waits for it."""
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)


@contextmanager
def no_collection() -> Iterator[None]:
    """Collect garbage before the block and not in it: to free a dead graph during a capture would end the capture."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def waken(device: torch.device) -> Thread | None:
    """Load a GPU's libraries in a thread, while files are listed: the first convolution and product take half a second.

    None where there is nothing to load. A process is not forked meanwhile: what the thread locks, a copy of the process
    would find locked for ever.
    """
    if device.type != "cuda":
        return None
    thread = Thread(target=_use_libraries, args=(device,), daemon=True)
    thread.start()
    _waking.append(thread)
    return thread


_waking: list[Thread] = []


def _wait() -> None:
    while _waking:
        _waking.pop().join()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_wait)


def _use_libraries(device: torch.device) -> None:
    with suppress(RuntimeError), torch.cuda.device(device), torch.cuda.stream(new_stream()):  # the step will say why
        x, weight = (
            torch.zeros(*shape, dtype=torch.bfloat16, device=device, requires_grad=True)
            for shape in ((8, 8, 8, 8), (8, 8, 3, 3))
        )
        rows = conv2d(x, weight, padding=1).flatten(1)
        (rows @ rows.mT).sum().backward()  # type: ignore[no-untyped-call]
