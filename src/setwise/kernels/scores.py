"""Sums over scores that are never stored: log-sum-exps of rows and columns, and their gradient tile by tile.

A score is the product of two unit rows times ``scale``. On a GPU a unit row is stored times ``SPAN`` in half precision,
in one part or in two (high and low). Of two parts the products high · high + high · low + low · high have the digits of
float32 and take three times as long. float16 has as many digits as tf32 and is twice as fast. Elsewhere a row stays as
it is.

``place`` says where a tile lies: (row_first, period, shift, partner, itself). Row i is number h = row_first + i of its
set. Column partner + (h + shift) % period is its partner and column itself + h is the row itself; neither counts.
"""

from __future__ import annotations

import importlib
import math
import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from setwise.kernels.rows import SHORTEST, unit_rows, unit_rows_backward

Products = Literal["float32", "float16", "bfloat16"]
SPAN = 64.0  # lifts the low parts out of float16's subnormal numbers
LIFT = 13  # the largest weight becomes 2^13, so that half precision loses the least of the small ones
STEP = 64  # columns of a stored row come in so many
WIDEST = 4096  # entries of a row that one program of a kernel holds
NOWHERE = -(2**30)  # a column that no row has
Place = tuple[int, int, int, int, int]
Labels = tuple[Tensor, Tensor] | None


class Stored(NamedTuple):
    """Unit rows as they are multiplied [n, parts, depth], and the two divisors of each [2, n, 1]."""

    values: Tensor
    lengths: Tensor

    @property
    def span(self) -> float:
        """What the rows are multiplied by."""
        return SPAN if self.values.dtype in (torch.float16, torch.bfloat16) else 1.0


@cache
def _triton(device: torch.device) -> Any:
    """The module of kernels, or None where the device has no bfloat16 or Triton is not installed."""
    if device.type != "cuda" or torch.version.hip is not None or torch.cuda.get_device_capability(device) < (8, 0):
        return None
    try:
        return importlib.import_module("setwise.kernels.scores_triton")
    except ImportError as error:
        warnings.warn(f"plain torch compares large batches, since Triton is missing: {error}", stacklevel=4)
        return None


def serves(z: Tensor) -> bool:
    """Whether kernels take ``z``, in float32 or half precision on a GPU; torch that traces leaves that to later."""
    if not z.is_cuda or z.dtype == torch.float64 or z.shape[-1] > WIDEST:
        return False
    return torch.compiler.is_compiling() or _triton(z.device) is not None


def layout(width: int, products: Products) -> tuple[torch.dtype, int, int]:
    """How a GPU stores a row: the type, the number of parts, and the length of each."""
    dtype = torch.bfloat16 if products == "bfloat16" else torch.float16
    return dtype, 1 + (products == "float32"), -(-width // STEP) * STEP


def store(z: Tensor, products: Products) -> Stored:
    """Rows of ``z`` [n, E] at length 1, ready to be multiplied."""
    kernel = _triton(z.device)
    if kernel is not None:
        return Stored(*kernel.store(z, *layout(z.shape[1], products), SPAN))
    unit, lengths = unit_rows(z if z.dtype == torch.float64 else z.float())
    return Stored(unit[:, None], lengths)


def split(rows: Stored, dtype: torch.dtype, parts: int) -> Stored:
    """Rows that are stored as they are, in parts of half precision: what the GPU has, for tests."""
    wide = SPAN * rows.values[:, 0]
    high = wide.to(dtype)
    return Stored(torch.stack([high, (wide - high).to(dtype)][:parts], 1), rows.lengths)


def _scores(x: Tensor, y: Tensor, scale: Tensor, span: float) -> Tensor:
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    x, y = x.to(wide), y.to(wide)
    total = x[:, 0] @ y[:, 0].mT
    if x.shape[1] == 2:
        total = total + x[:, 0] @ y[:, 1].mT + x[:, 1] @ y[:, 0].mT
    return total * (scale / span**2)


def _hidden(scores: Tensor, place: Place) -> Tensor:
    row_first, period, shift, partner, itself = place
    home, columns = (torch.arange(count, device=scores.device) for count in scores.shape)
    home = home[:, None] + row_first
    return (columns == partner + (home + shift) % period) | (columns == itself + home)


def sums(
    x: Stored, y: Stored, scale: Tensor, *, place: Place, labels: Labels = None, columns: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of each row [n] and, if asked for, of each column [m]: log-sum-exp of its scores, sum of its true scores.

    True are the pairs with one label. What is not asked for is empty.
    """
    kernel = _triton(scale.device)
    if kernel is not None:
        result: tuple[Tensor, ...] = kernel.sums(x.values, y.values, scale, labels, columns, x.span**2, *place)
        return result[0], result[1], result[2], result[3]
    scores = _scores(x.values, y.values, scale, x.span)
    hidden, none = _hidden(scores, place), scores.new_empty(0)
    truths = [none, none]
    if labels is not None:
        true = torch.where((labels[0][:, None] == labels[1]) & ~hidden, scores, 0.0)
        truths = [true.sum(1), true.sum(0) if columns else none]
    scores = scores.masked_fill_(hidden, -math.inf)
    return scores.logsumexp(1), truths[0], scores.logsumexp(0) if columns else none, truths[1]


def weights(
    x: Stored,
    y: Stored,
    scale: Tensor,
    *,
    place: Place,
    labels: Labels = None,
    of_rows: Sequence[Tensor],
    of_columns: Sequence[Tensor] | None,
    most: Tensor,
) -> list[Tensor]:
    """The weight of every pair [n, m], in parts as ``x`` has them: the gradient of ``sums`` in the scores.

    ``of_rows``: log-sum-exp [n], weight of it [n], weight of the true scores [n]; ``of_columns`` likewise. All weights
    are multiplied by the power of 2 that takes ``most``, the largest of these, to 2^LIFT.
    """
    kernel = _triton(scale.device)
    if kernel is not None:
        parts: list[Tensor] = kernel.weights(
            x.values, y.values, scale, labels, of_rows, of_columns, most, x.span**2, LIFT, *place
        )
        return parts
    scores = _scores(x.values, y.values, scale, x.span)
    log, weight, pull = (v[:, None] if len(v) else v for v in of_rows)
    total = torch.exp(scores - log) * weight
    if of_columns is not None:
        total += torch.exp(scores - of_columns[0]) * of_columns[1]
        pull = pull + of_columns[2]
    if labels is not None:
        total += torch.where(labels[0][:, None] == labels[1], pull, 0.0)
    total = total.masked_fill_(_hidden(scores, place), 0.0) * _lift(most)
    high = total.to(x.values.dtype)
    return [high, (total - high).to(x.values.dtype)][: x.values.shape[1]]


def largest(first: Tensor, second: Tensor, third: Tensor) -> Tensor:
    """The largest absolute value [] of three tensors, of which the first two are as long."""
    kernel = _triton(first.device)
    if kernel is not None:
        result: Tensor = kernel.largest(first, second, third)
        return result
    return torch.cat([first, second, third]).abs().amax()


def _lift(most: Tensor) -> Tensor:
    return torch.exp2(LIFT - most.clamp_min(1e-30).log2().ceil())


def add_product(total: Tensor, left: list[Tensor], right: Tensor, *, fresh: bool = False) -> None:
    """total [n, E] += left · right, both in parts: [n, m] each, and [m, parts, depth]. ``fresh``: total is not read."""
    pairs = [(left[0], right[:, 0])]
    if len(left) == 2:
        pairs += [(left[0], right[:, 1]), (left[1], right[:, 0])]
    for a, b in pairs:
        b = b[:, : total.shape[1]]
        if total.dtype == a.dtype:
            torch.addmm(total, a, b, beta=0 if fresh else 1, out=total)
        elif total.is_cuda:
            torch.addmm(total, a, b, out_dtype=torch.float32, beta=0 if fresh else 1, out=total)
        else:
            product = a.to(total.dtype) @ b.to(total.dtype)
            total.copy_(product if fresh else total + product)
        fresh = False


def dots(z_x: Tensor, z_y: Tensor, lengths_x: Tensor, lengths_y: Tensor, scale: Tensor, shift: int) -> Tensor:
    """Scores [n] of row i of ``z_x`` with row (i + shift) % n of ``z_y``, in float32 at least."""
    kernel = _triton(z_x.device)
    if kernel is not None:
        result: Tensor = kernel.dots(z_x, z_y, lengths_x, lengths_y, scale, shift)
        return result
    a, b = (unit_rows(z if z.dtype == torch.float64 else z.float())[0] for z in (z_x, z_y[: len(z_x)]))
    return (a * b.roll(-shift, 0)).sum(1) * scale


def finish(
    total: Tensor,
    z: Tensor,
    lengths: Tensor,
    other: Tensor,
    other_lengths: Tensor,
    pulls: Tensor,
    scale: Tensor,
    most: Tensor,
    span: float,
    shift: int,
) -> Tensor:
    """Turn ``total`` [n, E], the sum of weights times stored rows, into the gradient in ``z``, in place.

    ``most``, ``span``: what weights and rows are multiplied by, see ``weights``. Row i < len(pulls) is pulled with
    ``pulls[i]`` towards row (i + shift) % len(pulls) of the other set. Gives <unit row, gradient in it> [n], from
    which comes the gradient of the scale.
    """
    kernel = _triton(z.device)
    if kernel is not None:
        constants = {"SPAN": span, "LIFT": LIFT, "SHORTEST": SHORTEST}
        along: Tensor = kernel.finish(total, z, lengths, other, other_lengths, pulls, scale, most, shift, **constants)
        return along
    wide = [unit_rows(v if v.dtype == torch.float64 else v.float())[0] for v in (z, other)]
    grad = total / (span * _lift(most))
    grad[: len(pulls)] += pulls[:, None] * wide[1][: len(pulls)].roll(-shift, 0)
    grad *= scale
    total.copy_(unit_rows_backward(grad, wide[0], lengths, z.shape[1]))
    return (grad * wide[0]).sum(1)
