"""The row-wise half of the grid in ``setwise.assignment.smoothing``: each row picks freely, Eq. (12) to (16)."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from setwise.checks import check_floating, check_matrix, check_option
from setwise.similarity import full_precision

Smoothing = Literal["none", "entropy", "sparse", "sinkhorn", "sparsemap"]
ROW_SMOOTHINGS = ("none", "entropy", "sparse")
# Scores that stay in a core's cache while sparsemax passes over them: 1 MiB of float32. 2,048 x 2,048 in 47 ms, not 87.
CACHED_SCORES = 2**18


class Maximum(NamedTuple):
    """Value and argmax of a (smoothed) maximum; ``truth`` is Ω of a single assignment, what a perfect θ pays.

    Rows: ``value`` [N], ``argmax`` [N, M] row-stochastic. One-to-one: ``value`` [], ``argmax`` [N, M].
    ``converged`` is False where an iterative solver stopped at its limit.
    """

    value: Tensor
    argmax: Tensor
    truth: float
    converged: bool = True


def row_maximum(theta: Tensor, *, smoothing: Smoothing) -> Maximum:
    """Maximum of each row of θ [N, M] over the simplex, Eq. (12), (13), (14). Entries of -inf are left out.

    Examples:
        >>> theta = torch.tensor([[1.2, 1.0, -1.0]])
        >>> sw.assignment.row_maximum(theta, smoothing="none").argmax
        tensor([[1., 0., 0.]])
        >>> sw.assignment.row_maximum(theta, smoothing="sparse").argmax
        tensor([[0.6000, 0.4000, 0.0000]])
    """
    check_option(smoothing, ROW_SMOOTHINGS, 'smoothing with mining="batch-hard"')
    check_scores(theta)
    with torch.no_grad():
        return best_rows(theta, smoothing=smoothing)


def check_scores(theta: Tensor) -> None:
    """Raise unless θ is a matrix of scores; on the CPU also where a row has every pair forbidden."""
    check_matrix(theta, "theta", forbidden=-math.inf)
    if theta.ndim != 2:
        raise ValueError(f"expected theta of shape (N, M), got {tuple(theta.shape)}; pass one problem at a time")
    if theta.device.type == "cpu" and not torch.compiler.is_compiling():
        empty = (theta.amax(-1) == -math.inf).nonzero()[:, 0].tolist()
        if empty:
            raise ValueError(
                f"expected a finite score in every row of theta, got row {empty[0]} with every pair forbidden (-inf); "
                "allow one, or leave the row out"
            )


def best_rows(theta: Tensor, *, smoothing: Smoothing) -> Maximum:
    """``row_maximum`` without its checks, for callers that record no gradient."""
    largest = theta.amax(-1)
    largest = largest + (largest - largest)  # an infinite one is NaN from here on
    if smoothing == "none":
        hit = (theta == largest[:, None]).to(theta.dtype)  # ties share the gradient, whatever their order
        return Maximum(largest, hit / hit.sum(-1, keepdim=True), truth=0.0)
    if smoothing == "entropy":
        p = torch.softmax(theta, -1)
        # log-sum-exp = max - log p_max. One fused pass, and p is needed anyway: 0.8x of torch.logsumexp and its
        # backward at N = 1024.
        return Maximum(largest - p.amax(-1).log(), p, truth=0.0)
    value, p = _sparsemax(theta)
    return Maximum(value, p, truth=0.5)


def sparsemax(theta: Tensor) -> Tensor:
    """argmin_p |p - θ|² over the simplex, along the last dimension, Eq. (16). Not differentiable here.

    Examples:
        >>> sw.assignment.sparsemax(torch.tensor([1.2, 1.0, -1.0]))
        tensor([0.6000, 0.4000, 0.0000])
    """
    check_floating(theta, "theta", forbidden=-math.inf)
    return _sparsemax(theta.detach().reshape(-1, theta.shape[-1]))[1].reshape(theta.shape)


def _sparsemax(theta: Tensor) -> tuple[Tensor, Tensor]:
    """max_p <p, θ> - ½|p|² over the simplex and its p, for each row; Eq. (14) to (16).

    The value is Eq. (14)'s ½ Σ_{j in Ω} (θ_j² - T²) in a form without cancellation: on the support
    θ_j = T + p_j, so it is T + ½|p|².
    """
    work = full_precision(theta)
    largest = work.amax(-1, keepdim=True)
    shifted = work - largest  # the support lies in (-1, 0]: no digits are lost to a common offset
    eager = theta.device.type == "cpu" and not torch.compiler.is_compiling()
    threshold = _threshold_by_passes(shifted) if eager else _threshold_by_sorting(shifted)
    p = shifted.sub_(threshold).clamp_min_(0)
    value = largest + threshold + 0.5 * (p * p).sum(-1, keepdim=True)
    return value.squeeze(-1).to(theta.dtype), p.to(theta.dtype)


def _threshold_by_sorting(shifted: Tensor) -> Tensor:
    """T of Eq. (15), [N, 1], with the largest entry of each row at 0. Nothing depends on values: no device waits."""
    ordered = shifted.sort(-1, descending=True).values
    above = ordered.cumsum(-1) - 1
    count = torch.arange(1, shifted.shape[-1] + 1, device=shifted.device)
    support = (count * ordered > above).sum(-1, keepdim=True).clamp_min(1)  # a row of NaN has none
    return above.gather(-1, support - 1) / support


def _threshold_by_passes(shifted: Tensor) -> Tensor:
    """The same by Michelot's passes: T of the entries above -1, then of those above T, until they stay the same.

    T only rises, so the last entries are exactly the support. 2 to 10 passes were seen.
    """
    # Forward and backward of the loss on N x N cosines with a margin of 1; ms, one core, one run:
    #     N                       128    512   1024   2048
    #     passes                  0.5    1.7    5.8     32
    #     sort                    0.9   14.8     66    305
    #     entmax's best k         0.9    5.9     18     73
    # Where all entries are in the support, passes take 0.3 to 21, entmax's best 0.8 to 339.
    threshold = torch.full_like(shifted[:, :1], -1)
    rows = max(1, CACHED_SCORES // shifted.shape[-1])
    for part, t in zip(torch.split(shifted, rows), torch.split(threshold, rows), strict=True):
        part = part.clamp_min(-1)  # never in the support, and finite
        above, before = torch.empty_like(part), torch.zeros_like(t)
        count = torch.gt(part, t, out=above).sum(-1, keepdim=True)
        while not torch.equal(count, before):
            torch.maximum(t, (above.mul_(part).sum(-1, keepdim=True) - 1) / count, out=t)
            before, count = count, torch.gt(part, t, out=above).sum(-1, keepdim=True)
    return threshold
