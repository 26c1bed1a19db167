"""Small steps that are one launch each on a GPU, and plain torch elsewhere: unit rows, losses of rows, spectra."""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from setwise.kernels.nvrtc import Kernel, compile_kernel, or_none, usable

WARPS = 4  # rows a thread block


@cache
def _kernel(name: str, device: torch.device) -> Kernel | None:
    return or_none(lambda: compile_kernel("rows.cu", name, {}), f"the kernel {name}", "plain torch", device)


def _kernel_for(name: str, x: Tensor) -> Kernel | None:
    return _kernel(name, x.device) if usable(x) and x.numel() else None


def unit_rows(z: Tensor, append: float | None = None) -> tuple[Tensor, Tensor]:
    """Rows of ``z`` [..., E] made unit length, each followed by ``append`` if there is one; and lengths [2, ..., 1].

    The rows are divided by their largest entry first, so that no square over- or underflows; both divisors are
    returned. A zero row stays zero; NaN stays NaN.
    """
    kernel = _kernel_for("unit_rows", z)
    if kernel is not None:
        z = z.contiguous()
        width = z.shape[-1]
        rows, out_width = z.numel() // width, width + (append is not None)
        out, lengths = z.new_empty(*z.shape[:-1], out_width), z.new_empty(2, *z.shape[:-1], 1)
        arguments = [z, out, lengths, rows, width, out_width, float(append or 0)]
        kernel(grid=(-(-rows // WARPS), 1, 1), block=(32 * WARPS, 1, 1), args=arguments)
        return out, lengths
    largest = z.abs().amax(-1, keepdim=True)
    divisor = largest.masked_fill_(largest == 0, 1)
    z = z / divisor
    length = torch.linalg.vector_norm(z, dim=-1, keepdim=True)  # in [1, sqrt(E)], or 0
    out = z.mul_(length.clamp_min(1).reciprocal_())
    if append is not None:
        out = torch.cat([out, torch.full_like(length, append)], -1)
    return out, torch.stack([divisor, length])


SHORTEST = 1e-12  # largest entry of a row that a gradient is divided by in full, as torch's ``normalize`` has it


def unit_rows_backward(grad: Tensor, out: Tensor, lengths: Tensor, width: int) -> Tensor:
    """Gradient in z of ``unit_rows``: (g - x <x, g>) / length, and zero for a zero row.

    A row whose largest entry is below ``SHORTEST`` gets the gradient of one that has it: no length makes it overflow.
    """
    kernel = _kernel_for("unit_rows_backward", grad)
    if kernel is not None:
        grad = grad.contiguous()
        rows, out_width = grad.numel() // grad.shape[-1], grad.shape[-1]
        grad_z = grad.new_empty(*grad.shape[:-1], width)
        arguments = [grad, out, lengths, grad_z, rows, width, out_width, SHORTEST]
        kernel(grid=(-(-rows // WARPS), 1, 1), block=(32 * WARPS, 1, 1), args=arguments)
        return grad_z
    if grad.shape[-1] > width:
        grad, out = grad[..., :width], out[..., :width]
    divisor, length = lengths.unbind()
    along = (grad * out).sum(-1, keepdim=True)
    inverse = length.reciprocal().masked_fill_(length == 0, 0)
    across: Tensor = grad - along * out
    return across.mul_(inverse).div_(divisor.clamp_min(SHORTEST))


NOWHERE = -(2**30)  # a column that no row has


def have_row_losses(theta: Tensor) -> bool:
    """Whether there is a kernel for ``row_losses``, which has no other form here."""
    return _kernel_for("row_losses", theta) is not None


def row_losses(
    theta: Tensor, partner: Tensor, itself: int | None, sparse: bool, margin: float, least: float | None
) -> tuple[Tensor, Tensor]:
    """Losses [R] of the rows of ``theta`` [R, M] and their gradient in it [R, M], by one launch.

    What ``losses.structured`` computes step by step, and what is tested against it: log-sum-exp or ``sparse``, minus
    the score in column ``partner`` [R], from which ``margin`` is taken off. Scores are bounded by ``least`` from below;
    column i + ``itself`` is left out of row i.
    """
    kernel = _kernel_for("row_losses", theta)
    assert kernel is not None
    theta, (rows, width) = theta.contiguous(), theta.shape
    losses, gradient = theta.new_empty(rows), torch.empty_like(theta)
    column = NOWHERE if itself is None else itself
    bound = -math.inf if least is None else least
    arguments = [theta, partner, losses, gradient, rows, width, column, int(sparse), float(margin), float(bound)]
    kernel(grid=(-(-rows // WARPS), 1, 1), block=(32 * WARPS, 1, 1), args=arguments)
    return losses, gradient


def meeting(values: Tensor, rest: Tensor, size: int, largest: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Ordered dot product of two spectra of ``size`` eigenvalues, and what each eigenvalue meets in it.

    ``values`` [2, r] ascending, and ``rest`` [2], which makes up the remaining size - r of each set. Sorted alike
    (``largest``) or one the other way round. Returns met [2, r], what the repeated ones meet in sum [2], the value.
    """
    r = values.shape[-1]
    # No more than r of the repeated ones can meet anything but each other.
    copies = min(size - r, r)
    beyond = size - r - copies
    kernel = _kernel_for("meeting", values)
    if kernel is not None:
        values, rest = values.contiguous(), rest.contiguous()
        met, rest_met, value = torch.empty_like(values), torch.empty_like(rest), values.new_empty(())
        arguments = [values, rest, met, rest_met, value, r, copies, beyond, int(largest)]
        kernel(grid=(1, 1, 1), block=(64, 1, 1), args=arguments)
        return met, rest_met, value
    places = torch.arange(r, device=values.device) + copies * (values >= rest[:, None])
    ascending = rest[:, None].repeat(1, r + copies).scatter_(1, places, values)
    opposite = ascending.flip(0) if largest else ascending.flip(0, 1)
    met = opposite.gather(1, places)
    rest_met = opposite.sum(1) - met.sum(1) + beyond * rest.flip(0)
    return met, rest_met, (ascending[0] * opposite[0]).sum() + beyond * rest[0] * rest[1]
