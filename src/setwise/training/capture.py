"""CUDA graphs: a whole training step as one launch."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

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
