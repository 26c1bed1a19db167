"""A batch in parts: the loss and the gradients of the whole batch in the memory of one part (GradCache).

First every part goes through the network without gradients. The loss sees the encodings of all parts together, and
gives each a gradient. Then every part goes through the network again and carries its gradient back (Gao, Zhang, Han
and Callan 2021). A step takes a third more time. Loss and gradients are those of the whole batch up to rounding,
except that each BatchNorm of the encoder sees one part at a time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor, nn

from setwise.checks import see
from setwise.losses.parallel import Processes
from setwise.methods import Batch, Method


def check_divisible(method: Method, name: str) -> None:
    """Raise unless the method says what it encodes and what it compares: then its batch can come in parts."""
    if type(method).forward is not Method.forward:
        raise ValueError(
            f"expected a method with encode(batch) and compare(encoded, batch) for parts > 1, got {name!r} with a "
            f"forward(batch) of its own; leave out --parts, or write those two, {see('how-to/your-method#parts')}"
        )


def divided(batch: Batch, parts: int) -> list[Batch]:
    """The batch in so many parts of nearly the same length, or as many as it has labels."""
    rows = len(batch.labels)
    parts, views = min(parts, rows), len(batch.images) // rows  # two sets of images in matching: all A, then all B
    found = []
    for k in range(parts):
        here = slice(rows * k // parts, rows * (k + 1) // parts)
        both = [torch.unflatten(x, 0, (views, rows)) for x in (batch.images, batch.samples)]
        images, samples = (x[:, here].flatten(0, 1) for x in both)
        one = replace(batch, images=images, samples=samples, labels=batch.labels[here])
        second, sets, others = (None if x is None else x[here] for x in (batch.second, batch.sets, batch.others))
        found.append(replace(one, second=second, sets=sets, others=others))
    return found


def backward_in_parts(
    method: Method, batch: Batch, parts: int, autocast: Callable[[], AbstractContextManager[object]]
) -> dict[str, Tensor]:
    """``terms = method(batch)`` and ``terms["loss"].backward()`` for a batch in parts; returns the terms.

    Each part is rendered twice, and its views are the same both times. The first pass leaves no trace in buffers, so
    that BatchNorm counts every image once. Each pass has an ``autocast`` of its own: weights that are cast without
    gradients, and kept, must not serve the pass that has them.
    """
    batches = divided(batch, parts)
    before = [(x, x.clone()) for x in method.buffers()]
    state = _random_state(batch.images.device)
    with torch.no_grad(), autocast():
        encoded = [method.encode(part) for part in batches]
    for x, old in before:
        x.copy_(old)
    now = _random_state(batch.images.device)
    if state is not None and now is not None and not torch.equal(state, now):
        raise ValueError(
            f"expected a network that draws nothing at random, since each part goes through it twice, got "
            f"{_drawing_layers(method)}; set its rate to 0, or leave out --parts, {see('how-to/large-batches#parts')}"
        )
    rows = [len(part.labels) for part in batches]
    for tensors, count in zip(encoded, rows, strict=True):
        if any(len(x) != count for x in tensors):
            raise ValueError(
                f"expected encode of {type(method).__name__} to give tensors of a row for each of {count} items, got "
                f"{[len(x) for x in tensors]} rows; give one tensor for each view, as z.chunk(2) does"
            )
    whole = [torch.cat(same).requires_grad_() for same in zip(*encoded, strict=True)]
    del encoded
    with autocast():
        terms = method.compare(tuple(whole), batch)
    terms["loss"].backward()  # type: ignore[no-untyped-call,unused-ignore]
    gradients = [None if x.grad is None else torch.split(x.grad, rows) for x in whole]
    for k, part in enumerate(batches):
        with autocast():
            again = method.encode(part)
        pairs = [(x, g[k]) for x, g in zip(again, gradients, strict=True) if g is not None and x.requires_grad]
        torch.autograd.backward([x for x, _ in pairs], [g for _, g in pairs])
    return terms


def average_gradients(parameters: Sequence[nn.Parameter], processes: Processes) -> None:
    """Give every process the mean of all processes' gradients, in one message for each dtype: what DDP does."""
    found = [p.grad for p in parameters if p.grad is not None]
    for dtype in dict.fromkeys(g.dtype for g in found):  # in the same order everywhere
        same = [g for g in found if g.dtype == dtype]
        flat = torch.cat([g.flatten() for g in same])
        dist.all_reduce(flat, group=processes.group)
        flat /= processes.size
        for g, mean in zip(same, torch.split(flat, [g.numel() for g in same]), strict=True):
            g.copy_(mean.view_as(g))


def _random_state(device: torch.device) -> Tensor | None:
    """The state of torch's generator on the device; none within a capture, where it may not be read."""
    if device.type != "cuda":
        return torch.get_rng_state()
    return None if torch.cuda.is_current_stream_capturing() else torch.cuda.get_rng_state(device)


def _drawing_layers(method: Method) -> str:
    """The first layers that look like dropout or stochastic depth, else the encoder's class."""
    kinds = [(name, type(layer).__name__, getattr(layer, "p", 1)) for name, layer in method.named_modules()]
    named = [f"{name} ({kind})" for name, kind, rate in kinds if rate and re.search("drop|stochastic", kind.lower())]
    return ", ".join(named[:3]) or type(method.encoder).__name__
