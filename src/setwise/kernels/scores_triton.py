"""Triton kernels behind ``kernels.scores``: products of stored rows on tensor cores, and what is made of each tile.

A stored row holds the unit row times ``SPAN`` in half precision, in one part or in two (high and low). Sums of powers
are in base 2 inside. Integers that change from call to call are not specialised, so that each kernel compiles once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _scores(
    x, y, scale, rows, columns, n, m, stride, DEPTH: tl.constexpr, PARTS: tl.constexpr, FACTOR: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Scores of a tile in base 2. Two parts: high · high + high · low + low · high."""
    k = tl.arange(0, BK)
    x_rows = x + (tl.minimum(rows, n - 1).to(tl.int64) * stride)[:, None] + k[None, :]
    y_rows = y + (tl.minimum(columns, m - 1).to(tl.int64) * stride)[None, :] + k[:, None]
    total = tl.zeros((BM, BN), tl.float32)
    for step in tl.range(0, (2 * PARTS - 1) * (DEPTH // BK)):
        term = step // (DEPTH // BK)
        place = (step % (DEPTH // BK)) * BK
        a = tl.load(x_rows + (place + (term == 2) * DEPTH))
        b = tl.load(y_rows + (place + (term == 1) * DEPTH))
        total = tl.dot(a, b, total)
    return total * (tl.load(scale) * (LOG2E / FACTOR))


@triton.jit
def _place(n, m, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr):
    """The tile of this program; tiles of ``GROUP`` rows of tiles follow each other, so that they share their inputs."""
    tall, wide = tl.cdiv(n, BM), tl.cdiv(m, BN)
    program = tl.program_id(0)
    first = (program // (GROUP * wide)) * GROUP
    height = min(tall - first, GROUP)
    within = program % (GROUP * wide)
    return first + within % height, within // height


@triton.jit
def _hidden(rows, columns, n, m, row_first, period, shift, partner, itself):
    """Pairs that do not count: beyond the edge, a row's partner, a row itself."""
    home = rows + row_first
    hidden = (rows >= n)[:, None] | (columns >= m)[None, :]
    hidden |= columns[None, :] == (partner + (home + shift) % period)[:, None]
    return hidden | (columns[None, :] == (itself + home)[:, None])


@triton.jit
def _logs(scores, AXIS: tl.constexpr):
    top = tl.max(scores, AXIS)
    top = tl.where(top == -float("inf"), 0.0, top)
    return top + tl.log2(tl.sum(tl.exp2(scores - tl.expand_dims(top, AXIS)), AXIS))


@triton.jit
def _lift(largest, LIFT: tl.constexpr):
    """The power of 2 that takes the largest weight to 2^LIFT."""
    return tl.exp2(LIFT - tl.ceil(tl.log2(tl.maximum(tl.load(largest), 1e-30))))


@triton.jit(do_not_specialize=["n", "m"])
def _largest(first, second, third, out, n, m, BLOCK: tl.constexpr):
    k = tl.arange(0, BLOCK)
    top = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        for source in tl.static_range(2):
            value = tl.abs(tl.load((first if source == 0 else second) + start + k, start + k < n, 0.0))
            top = tl.where((value > top) | (value != value), value, top)
    for start in range(0, m, BLOCK):
        value = tl.abs(tl.load(third + start + k, start + k < m, 0.0))
        top = tl.where((value > top) | (value != value), value, top)
    tl.store(out, tl.max(top, 0))


CHANGING = ["n", "m", "row_first", "period", "shift", "partner", "itself"]


@triton.jit(do_not_specialize=CHANGING)
def _sums(
    x, y, scale, labels_x, labels_y, row_logs, row_truths, column_logs, column_truths,
    n, m, row_first, period, shift, partner, itself, stride,
    DEPTH: tl.constexpr, PARTS: tl.constexpr, FACTOR: tl.constexpr, COLUMNS: tl.constexpr, LABELS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    tall, wide = _place(n, m, BM, BN, GROUP)
    rows, columns = tall * BM + tl.arange(0, BM), wide * BN + tl.arange(0, BN)
    scores = _scores(x, y, scale, rows, columns, n, m, stride, DEPTH, PARTS, FACTOR, BM, BN, BK)
    hidden = _hidden(rows, columns, n, m, row_first, period, shift, partner, itself)
    row_place, column_place = wide.to(tl.int64) * n + rows, tall.to(tl.int64) * m + columns
    if LABELS:
        of_rows, of_columns = tl.load(labels_x + rows, rows < n, 0), tl.load(labels_y + columns, columns < m, 0)
        true = (of_rows[:, None] == of_columns[None, :]) & ~hidden
        chosen = tl.where(true, scores, 0.0) * LN2
        tl.store(row_truths + row_place, tl.sum(chosen, 1), rows < n)
        if COLUMNS:
            tl.store(column_truths + column_place, tl.sum(chosen, 0), columns < m)
    scores = tl.where(hidden, -float("inf"), scores)
    tl.store(row_logs + row_place, _logs(scores, 1) * LN2, rows < n)
    if COLUMNS:
        tl.store(column_logs + column_place, _logs(scores, 0) * LN2, columns < m)


@triton.jit(do_not_specialize=["n", "count"])
def _merge(logs, truths, out, out_truths, n, count, LABELS: tl.constexpr, BLOCK: tl.constexpr):
    """Logs of sums of powers, and truths, of ``count`` parts of each row as one."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    top = tl.full((BLOCK,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    truth = tl.zeros((BLOCK,), tl.float32)
    for _ in range(count):
        value = tl.load(logs + at, at < n, -float("inf"))
        higher = tl.maximum(top, value)
        safe = tl.where(higher == -float("inf"), 0.0, higher)
        total = total * tl.exp2((top - safe) * LOG2E) + tl.exp2((value - safe) * LOG2E)
        top = higher
        logs += n
        if LABELS:
            truth += tl.load(truths + at, at < n, 0.0)
            truths += n
    tl.store(out + at, tl.where(top == -float("inf"), top, top + tl.log2(total) * LN2), at < n)
    if LABELS:
        tl.store(out_truths + at, truth, at < n)


@triton.jit(do_not_specialize=CHANGING)
def _weights(
    x, y, scale, labels_x, labels_y, row_logs, row_weights, row_pulls, column_logs, column_weights, column_pulls,
    largest, high, low, n, m, row_first, period, shift, partner, itself, stride,
    DEPTH: tl.constexpr, PARTS: tl.constexpr, FACTOR: tl.constexpr, COLUMNS: tl.constexpr, LABELS: tl.constexpr,
    LIFT: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    tall, wide = _place(n, m, BM, BN, GROUP)
    rows, columns = tall * BM + tl.arange(0, BM), wide * BN + tl.arange(0, BN)
    scores = _scores(x, y, scale, rows, columns, n, m, stride, DEPTH, PARTS, FACTOR, BM, BN, BK)
    hidden = _hidden(rows, columns, n, m, row_first, period, shift, partner, itself)
    lift = _lift(largest, LIFT)
    logs = tl.load(row_logs + rows, rows < n, 0.0) * LOG2E
    weights = tl.exp2(scores - logs[:, None]) * (tl.load(row_weights + rows, rows < n, 0.0) * lift)[:, None]
    if COLUMNS:
        logs = tl.load(column_logs + columns, columns < m, 0.0) * LOG2E
        more = tl.load(column_weights + columns, columns < m, 0.0) * lift
        weights += tl.exp2(scores - logs[None, :]) * more[None, :]
    if LABELS:
        of_rows, of_columns = tl.load(labels_x + rows, rows < n, 0), tl.load(labels_y + columns, columns < m, 0)
        pulls = tl.load(row_pulls + rows, rows < n, 0.0)[:, None]
        if COLUMNS:
            pulls = pulls + tl.load(column_pulls + columns, columns < m, 0.0)[None, :]
        weights += tl.where(of_rows[:, None] == of_columns[None, :], pulls * lift, 0.0)
    weights = tl.where(hidden, 0.0, weights)
    inside = (rows < n)[:, None] & (columns < m)[None, :]
    place = rows.to(tl.int64)[:, None] * m + columns[None, :]
    rounded = weights.to(high.dtype.element_ty)
    tl.store(high + place, rounded, inside)
    if PARTS == 2:
        tl.store(low + place, (weights - rounded.to(tl.float32)).to(high.dtype.element_ty), inside)


@triton.jit
def _store(
    z, out, lengths, n, width,
    DEPTH: tl.constexpr, PARTS: tl.constexpr, SPAN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, BLOCK)
    values = tl.load(z + row * width + k, k < width, 0.0).to(tl.float32)
    largest = tl.max(tl.abs(values), 0)
    divisor = tl.where(largest == 0.0, 1.0, largest)
    values = values / divisor
    length = tl.sqrt(tl.sum(values * values, 0))
    values = values * (SPAN / tl.maximum(length, 1.0))
    rounded = values.to(out.dtype.element_ty)
    tl.store(out + row * (PARTS * DEPTH) + k, rounded, k < DEPTH)
    if PARTS == 2:
        low = (values - rounded.to(tl.float32)).to(out.dtype.element_ty)
        tl.store(out + row * (2 * DEPTH) + DEPTH + k, low, k < DEPTH)
    tl.store(lengths + row, divisor)
    tl.store(lengths + n + row, length)


@triton.jit
def _dots(z_x, z_y, lengths_x, lengths_y, scale, out, n, m, shift, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    other = (row + shift) % n
    k = tl.arange(0, BLOCK)
    a = tl.load(z_x + row * width + k, k < width, 0.0).to(tl.float32) / tl.load(lengths_x + row)
    b = tl.load(z_y + other * width + k, k < width, 0.0).to(tl.float32) / tl.load(lengths_y + other)
    length = tl.maximum(tl.load(lengths_x + n + row), 1.0) * tl.maximum(tl.load(lengths_y + m + other), 1.0)
    tl.store(out + row, tl.sum(a * b, 0) / length * tl.load(scale))


@triton.jit
def _finish(
    total, z, lengths, other, other_lengths, pulls, scale, largest, along, n, m, pulled, shift, width,
    SPAN: tl.constexpr, LIFT: tl.constexpr, SHORTEST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Gradient of a row of ``z`` from ``total``, the sum of weights times stored rows, and from the row's partner."""
    row = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, BLOCK)
    inside = k < width
    divisor, length = tl.load(lengths + row), tl.load(lengths + n + row)
    x = tl.load(z + row * width + k, inside, 0.0).to(tl.float32) / divisor / tl.maximum(length, 1.0)
    grad = tl.load(total + row * width + k, inside, 0.0) / (SPAN * _lift(largest, LIFT))
    if row < pulled:
        place = (row + shift) % pulled
        y = tl.load(other + place * width + k, inside, 0.0).to(tl.float32) / tl.load(other_lengths + place)
        grad += y * (tl.load(pulls + row) / tl.maximum(tl.load(other_lengths + m + place), 1.0))
    grad *= tl.load(scale)
    dot = tl.sum(grad * x, 0)
    tl.store(along + row, dot)
    inverse = tl.where(length == 0.0, 0.0, 1.0 / length)
    tl.store(total + row * width + k, (grad - dot * x) * inverse / tl.maximum(divisor, SHORTEST), inside)


def _options(x: Tensor, factor: float, columns: bool, labels: object) -> dict[str, Any]:
    parts, depth = x.shape[1:]
    options = {"stride": parts * depth, "DEPTH": depth, "PARTS": parts, "FACTOR": factor, "COLUMNS": columns}
    return options | {"LABELS": labels is not None}


TILE = {"BM": 128, "BN": 256, "BK": 64, "GROUP": 8, "num_warps": 8, "num_stages": 3}


def sums(
    x: Tensor, y: Tensor, scale: Tensor, labels: tuple[Tensor, Tensor] | None, columns: bool, factor: float,
    *place: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """See ``scores.sums``."""
    n, m = len(x), len(y)
    tall, wide = triton.cdiv(n, TILE["BM"]), triton.cdiv(m, TILE["BN"])
    labels_x, labels_y = labels if labels is not None else (scale, scale)
    row_logs, column_logs = scale.new_empty(wide, n), scale.new_empty(tall, m if columns else 0)
    row_truths, column_truths = (torch.empty_like(z) if labels is not None else z for z in (row_logs, column_logs))
    with torch.cuda.device(x.device):
        _sums[(tall * wide,)](
            x, y, scale, labels_x, labels_y, row_logs, row_truths, column_logs, column_truths, n, m, *place,
            **_options(x, factor, columns, labels), **TILE,
        )  # fmt: skip
        of_rows = _merged(row_logs, row_truths, labels is not None)
        of_columns = _merged(column_logs, column_truths, labels is not None) if columns else (row_logs[0, :0],) * 2
    return *of_rows, *of_columns


def _merged(logs: Tensor, truths: Tensor, labelled: bool) -> tuple[Tensor, Tensor]:
    count, n = logs.shape
    out = logs.new_empty(n)
    out_truths = logs.new_empty(n if labelled else 0)
    _merge[(triton.cdiv(n, 128),)](logs, truths, out, out_truths, n, count, LABELS=labelled, BLOCK=128, num_warps=4)
    return out, out_truths


def weights(
    x: Tensor, y: Tensor, scale: Tensor, labels: tuple[Tensor, Tensor] | None, of_rows: Sequence[Tensor],
    of_columns: Sequence[Tensor] | None, largest: Tensor, factor: float, lift: int, *place: int,
) -> list[Tensor]:  # fmt: skip
    """See ``scores.weights``."""
    n, m = len(x), len(y)
    labels_x, labels_y = labels if labels is not None else (scale, scale)
    parts = [x.new_empty(n, m) for _ in range(x.shape[1])]
    with torch.cuda.device(x.device):
        _weights[(triton.cdiv(n, TILE["BM"]) * triton.cdiv(m, TILE["BN"]),)](
            x, y, scale, labels_x, labels_y, *of_rows, *(of_columns or of_rows), largest, parts[0], parts[-1], n, m,
            *place, **_options(x, factor, of_columns is not None, labels), LIFT=lift, **TILE,
        )  # fmt: skip
    return parts


def largest(first: Tensor, second: Tensor, third: Tensor) -> Tensor:
    """See ``scores.largest``."""
    out = first.new_empty(())
    with torch.cuda.device(first.device):
        _largest[(1,)](first, second, third, out, len(first), len(third), BLOCK=4096, num_warps=8)
    return out


def _block(width: int) -> dict[str, int]:
    block = triton.next_power_of_2(width)
    return {"BLOCK": block, "num_warps": min(max(block // 256, 1), 8)}


def store(z: Tensor, dtype: torch.dtype, parts: int, depth: int, span: float) -> tuple[Tensor, Tensor]:
    """See ``scores.store``."""
    n, width = z.shape
    out, lengths = z.new_empty((n, parts, depth), dtype=dtype), z.new_empty((2, n, 1), dtype=torch.float32)
    with torch.cuda.device(z.device):
        _store[(n,)](z.contiguous(), out, lengths, n, width, DEPTH=depth, PARTS=parts, SPAN=span, **_block(depth))
    return out, lengths


def dots(z_x: Tensor, z_y: Tensor, lengths_x: Tensor, lengths_y: Tensor, scale: Tensor, shift: int) -> Tensor:
    """See ``scores.dots``."""
    out, (n, width) = lengths_x.new_empty(len(z_x)), z_x.shape
    with torch.cuda.device(z_x.device):
        _dots[(n,)](z_x, z_y, lengths_x, lengths_y, scale, out, n, len(z_y), shift, width, **_block(width))
    return out


def finish(
    total: Tensor, z: Tensor, lengths: Tensor, other: Tensor, other_lengths: Tensor, pulls: Tensor, scale: Tensor,
    largest: Tensor, shift: int, **constants: float,
) -> Tensor:  # fmt: skip
    """See ``scores.finish``."""
    along, (n, width) = total.new_empty(len(z)), z.shape
    with torch.cuda.device(z.device):
        _finish[(n,)](
            total, z, lengths, other, other_lengths, pulls, scale, largest, along, n, other_lengths.shape[1],
            len(pulls), shift, width, **constants, **_block(width),
        )  # fmt: skip
    return along
