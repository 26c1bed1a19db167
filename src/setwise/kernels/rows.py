"""Unit rows, losses of rows, products of spectra: one launch each on a GPU, plain torch elsewhere."""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from setwise.kernels.nvrtc import Kernel, compile_kernel, compiled_or_none, usable

WARPS = 4  # rows a thread block


@cache
def _kernel(name: str, device: torch.device) -> Kernel | None:
    return compiled_or_none(lambda: compile_kernel("rows.cu", name, {}), f"the kernel {name}", "plain torch", device)


def _kernel_for(name: str, x: Tensor) -> Kernel | None:
    return _kernel(name, x.device) if usable(x, torch.float32) else None


def unit_rows(z: Tensor, append: float | None = None) -> tuple[Tensor, Tensor]:
    """Rows of ``z`` [..., E] with unit length, each followed by ``append`` if given; and both divisors [2, ..., 1].

    We divide each row by its largest entry first, so that no square over- or underflows. A zero row stays zero; NaN
    stays NaN.
    """
    kernel = _kernel_for("unit_rows", z) if z.is_cuda else None
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


SHORTEST = 1e-12  # gradients are divided by at least this, as in torch's ``normalize``


def unit_rows_backward(grad: Tensor, out: Tensor, lengths: Tensor, width: int) -> Tensor:
    """Gradient in z of ``unit_rows``: (g - x <x, g>) / length, and zero for a zero row.

    A row whose largest entry is below ``SHORTEST`` is treated as if it were ``SHORTEST``, so that nothing overflows.
    """
    kernel = _kernel_for("unit_rows_backward", grad) if grad.is_cuda else None
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
    """Whether a kernel serves for ``row_losses``; losses.structured has its plain torch."""
    return theta.is_cuda and _kernel_for("row_losses", theta) is not None


def row_losses(
    theta: Tensor, partner: Tensor, itself: int | None, sparse: bool, margin: float, least: float | None
) -> tuple[Tensor, Tensor]:
    """Losses [R] of the rows of ``theta`` [R, M] and their gradient in it [R, M].

    A loss is the log-sum-exp of a row, or its ``sparse`` counterpart, minus the score in column ``partner`` [R], which
    is lowered by ``margin``. Scores below ``least`` count as ``least``. Row i leaves column i + ``itself`` out.
    ``losses.structured`` computes the same step by step.
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


def set_losses(
    theta: Tensor,
    ids: Tensor,
    others: Tensor,
    alone: bool,
    itself: int | None,
    sparse: bool,
    margin: float,
    least: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The same where only sets are known: losses [R], their gradient [R, M], and which rows have a partner [R].

    ``ids`` [R], ``others`` of the first columns: a column with the row's id is of its set. A loss is the smoothed
    maximum of a row minus that of its set's columns. ``alone``: the last column is in every set, and has no bound.
    A row without a partner has a loss of 0. ``losses.sets`` computes the same step by step.
    """
    kernel = _kernel_for("set_losses", theta)
    assert kernel is not None
    theta, (rows, width) = theta.contiguous(), theta.shape
    losses, gradient = theta.new_empty(rows), torch.empty_like(theta)
    partnered = torch.empty(rows, dtype=torch.bool, device=theta.device)
    column, bound = NOWHERE if itself is None else itself, -math.inf if least is None else least
    tensors = [theta, ids.contiguous(), others.contiguous(), losses, gradient, partnered]
    numbers = [rows, width, len(others), column, int(sparse), int(alone), float(margin), float(bound)]
    kernel(grid=(-(-rows // WARPS), 1, 1), block=(32 * WARPS, 1, 1), args=[*tensors, *numbers])
    return losses, gradient, partnered


def spectra_product(values: Tensor, rest: Tensor, size: int, largest: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Ordered dot product of two spectra of ``size`` eigenvalues, and the partner of each eigenvalue in it.

    Set s has the eigenvalues ``values[s]`` [r], ascending, and size - r copies of ``rest[s]``. Both sets are sorted
    alike (``largest``) or in opposite orders. Returns the partners [2, r] of the values, the sum of the partners of
    the copies [2], and the product.
    """
    r = values.shape[-1]
    # At most r copies of a set can have a partner that is not a copy.
    copies = min(size - r, r)
    beyond = size - r - copies
    kernel = _kernel_for("spectra_product", values) if values.is_cuda else None
    if kernel is not None:
        values, rest = values.contiguous(), rest.contiguous()
        partners, rest_partners, product = torch.empty_like(values), torch.empty_like(rest), values.new_empty(())
        arguments = [values, rest, partners, rest_partners, product, r, copies, beyond, int(largest)]
        kernel(grid=(1, 1, 1), block=(64, 1, 1), args=arguments)
        return partners, rest_partners, product
    places = torch.arange(r, device=values.device) + copies * (values >= rest[:, None])
    ascending = rest[:, None].repeat(1, r + copies).scatter_(1, places, values)
    opposite = ascending.flip(0) if largest else ascending.flip(0, 1)
    partners = opposite.gather(1, places)
    rest_partners = opposite.sum(1) - partners.sum(1) + beyond * rest.flip(0)
    return partners, rest_partners, (ascending[0] * opposite[0]).sum() + beyond * rest[0] * rest[1]
