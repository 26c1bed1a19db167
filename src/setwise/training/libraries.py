"""A GPU's libraries, loaded while files are listed: the first convolution and product would wait half a second."""

from __future__ import annotations

import os
from contextlib import suppress
from threading import Thread

import torch
from torch.nn.functional import conv2d

from setwise.training.capture import new_stream

_waking: list[Thread] = []


def waken(device: torch.device) -> Thread | None:
    """Load them in a thread; None where there is nothing to load.

    A process is not forked meanwhile: what the thread locks, a copy of the process would find locked for ever.
    """
    if device.type != "cuda":
        return None
    thread = Thread(target=_use, args=(device,), daemon=True)
    thread.start()
    _waking.append(thread)
    return thread


def _wait() -> None:
    while _waking:
        _waking.pop().join()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_wait)


def _use(device: torch.device) -> None:
    with suppress(RuntimeError), torch.cuda.device(device), torch.cuda.stream(new_stream()):  # the step will say why
        x, weight = (
            torch.zeros(*shape, dtype=torch.bfloat16, device=device, requires_grad=True)
            for shape in ((8, 8, 8, 8), (8, 8, 3, 3))
        )
        rows = conv2d(x, weight, padding=1).flatten(1)
        (rows @ rows.mT).sum().backward()  # type: ignore[no-untyped-call]
