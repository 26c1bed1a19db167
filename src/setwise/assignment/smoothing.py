r"""max over assignments: {hard, entropic, sparse} × {row-wise, one-to-one}, Eq. (3), (4), (8), (12)-(16).

Every cell of the grid is the maximum of a linear function minus a convex regulariser Ω,

    max_{Y in D} <θ, Y> - Ω(Y),        gradient in θ: its argmax Y*(θ)        (Danskin's theorem)

where θ is [N, M] with larger meaning better, and D is

    row-wise      all row-stochastic matrices: each row picks freely ("batch-hard")
    one-to-one    the assignments, or their convex hull

    smoothing       row-wise                             one-to-one
    "none"          max of each row              (12)    linear assignment                             (3)
    "entropy"       log-sum-exp of each row      (13)    log-sum-exp over all assignments, N <= 16     (4)
    "sparse"        sparsemax of each row        (14)    sparsemax over all assignments, N <= 7        (8)
    "sinkhorn"      -                                    entropy of Y instead of entropy over assignments
    "sparsemap"     -                                    ½|Y|² instead of ½|p|² over assignments

Log-sum-exp over all choices of rows is the sum of the rows' own, so Eq. (13) is Eq. (4) on the larger domain.
Sparsemax is not: Eq. (14) is "sparsemap" on the larger domain, and Eq. (8) is something else. Hence the names:
nothing changes from one form to another by itself.

The file ``rows`` has the row-wise column, ``hull`` the last two rows, this one the rest.

The temperature is the caller's: f_τ(θ) = τ f(θ/τ) for all of them.

θ_ij = -inf forbids a pair: its argmax is exactly 0. NaN and +inf are refused on the CPU; so is θ that leaves a row, or
the assignment, no choice. On an accelerator, or compiled, these give NaN, or an error of the solver's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import permutations, product
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from setwise.assignment.hull import hull_maximum, partial_hull_maximum, unwatched_hull_maximum
from setwise.assignment.linear import columns_on_device, solve_linear
from setwise.assignment.rows import Maximum, Smoothing, best_rows, check_scores
from setwise.checks import check_option
from setwise.similarity import full_precision

# Also names of ``rows``, for callers that need both halves.
Mining = Literal["batch-hard", "one-to-one"]
ASSIGNMENT_SMOOTHINGS = ("none", "entropy", "sinkhorn", "sparse", "sparsemap")
# 2^16 column subsets and 7! assignments: 10 and 6 ms on a CPU.
MAX_EXACT_ENTROPY = 16
MAX_EXACT_SPARSE = 7
MAX_EXACT_PARTIAL = 5  # 1,546 assignments that may leave rows alone


def assignment_maximum(theta: Tensor, *, smoothing: Smoothing) -> Maximum:
    """Maximum over one-to-one assignments of the rows of θ [N, M] to columns, Eq. (3), (4), (8) and hulls.

    M > N (columns that may stay free) is for "none" only.

    Examples:
        >>> theta = torch.tensor([[1.0, 2.0], [0.0, 3.0]])
        >>> sw.assignment.assignment_maximum(theta, smoothing="none").value
        tensor(4.)
        >>> sw.assignment.assignment_maximum(theta, smoothing="entropy").value  # log(e⁴ + e²)
        tensor(4.1269)
    """
    check_option(smoothing, ASSIGNMENT_SMOOTHINGS, 'smoothing with mining="one-to-one"')
    check_scores(theta)
    if smoothing in ("entropy", "sparse") and theta.device.type == "cpu" and theta.amin() == -math.inf:
        solve_linear(theta, maximize=True)  # raises where no assignment is left
    return best_assignment(theta, smoothing=smoothing)


@torch.no_grad()
def best_assignment(theta: Tensor, *, smoothing: Smoothing) -> Maximum:
    """``assignment_maximum`` without its checks."""
    n, m = theta.shape
    if n != m and smoothing != "none":
        raise ValueError(
            f"expected as many columns as rows for one-to-one smoothing {smoothing!r}, got {(n, m)}; extra negatives "
            'go with smoothing="none" or mining="batch-hard"'
        )
    if smoothing == "none":
        best = columns_on_device(theta)[:, None]
        argmax = torch.zeros_like(theta).scatter_(1, best, 1)
        return Maximum(theta.gather(1, best).sum(), argmax, truth=0.0)
    if smoothing == "entropy":
        _check_small(n, MAX_EXACT_ENTROPY, "entropy", "sinkhorn")
        return _entropic_maximum(theta, _log_permanent)
    if smoothing == "sparse":
        _check_small(n, MAX_EXACT_SPARSE, "sparse", "sparsemap")
        return _sparse_maximum(theta, permutations(range(n)))
    if smoothing == "sinkhorn" and theta.device.type != "cpu":
        return unwatched_hull_maximum(theta)
    return hull_maximum(theta, smoothing="entropy" if smoothing == "sinkhorn" else "sparse")


@torch.no_grad()
def best_partial(theta: Tensor, *, smoothing: Smoothing) -> Maximum:
    """Maximum over one-to-one assignments of θ [N, M] that may leave any row and any column alone, at a score of 0.

    Exact: "none" by linear assignment, "entropy" for at most 16 rows or columns, "sparse" for at most 5 of both.
    "sinkhorn" and "sparsemap" are relaxed: Ω is that of the rows, with what each leaves alone as one more entry.
    """
    if smoothing == "none":
        worth = theta.clamp_min(0)
        wide = worth if len(theta) <= theta.shape[1] else worth.mT
        hit = torch.zeros_like(wide).scatter_(1, columns_on_device(wide)[:, None], 1)
        argmax = (hit if wide is worth else hit.mT) * (theta > 0)
        return Maximum((worth * argmax).sum(), argmax, truth=0.0)
    if smoothing == "entropy":
        _check_small(min(theta.shape), MAX_EXACT_ENTROPY, "entropy at a price", "sinkhorn")
        return _entropic_maximum(theta, _log_matchings)
    if smoothing != "sparse":
        return partial_hull_maximum(theta, smoothing="entropy" if smoothing == "sinkhorn" else "sparse")
    n, m = theta.shape
    _check_small(max(n, m), MAX_EXACT_PARTIAL, "sparse at a price", "sparsemap")
    every = product(range(m + 1), repeat=n)  # the column of each row; m: alone
    matchings = (x for x in every if len({*x} - {m}) == n - x.count(m))
    best = _sparse_maximum(pad(theta, (0, 1)), matchings)
    return best._replace(argmax=best.argmax[:, :m].contiguous())


def _check_small(n: int, limit: int, smoothing: str, instead: str) -> None:
    if n > limit:
        raise ValueError(
            f"expected at most {limit} rows for the exact one-to-one smoothing {smoothing!r}, got {n}; "
            f"{instead!r} is the related form for any N (see setwise.assignment.smoothing)"
        )


def _entropic_maximum(theta: Tensor, log_sum: Callable[[Tensor], Tensor]) -> Maximum:
    """Value and gradient of a log-sum-exp over assignments."""
    # Also within torch.inference_mode, where nothing has a gradient and what is cached could never have one.
    with torch.inference_mode(False), torch.enable_grad():
        leaf = full_precision(theta).clone().requires_grad_()
        value = log_sum(leaf)
        (argmax,) = torch.autograd.grad(value, leaf)
    return Maximum(value.detach().to(theta.dtype), argmax.to(theta.dtype), truth=0.0)


def _log_permanent(theta: Tensor) -> Tensor:
    """log Σ_{Y in Pi} exp <θ, Y> of Eq. (4), by dynamic programming over column subsets: O(N 2^N), not N!.

    -inf has no gradient in log-sum-exp. A bound far below all scores has: 0, which is also its share of any sum.
    """
    bound = torch.finfo(theta.dtype).min / 4
    total = theta.new_zeros(1)  # log-sum over the ways to put the first k rows on each k-subset of columns
    for row, (columns, rest) in zip(theta, _subsets(len(theta)), strict=True):
        columns, rest = columns.to(theta.device), rest.to(theta.device)
        total = torch.logsumexp((total[rest] + row[columns]).clamp_min(bound), 1)
    return torch.where(total[0].abs() < -bound / 2, total[0], math.nan)  # every way forbidden, or +inf: NaN


@lru_cache(maxsize=32)
def _subsets(n: int) -> tuple[tuple[Tensor, Tensor], ...]:
    """For k = 1..n: for each k-subset of n columns, its k members and the number of the rest without each."""
    members = ((torch.arange(2**n, device="cpu")[:, None] >> torch.arange(n, device="cpu")) & 1).bool()
    size = members.sum(1)
    number = torch.empty(2**n, dtype=torch.long, device="cpu")  # of a subset among those of its size
    tables = []
    for k in range(n + 1):
        masks = (size == k).nonzero()[:, 0]
        number[masks] = torch.arange(len(masks), device="cpu")
        if k:
            columns = members[masks].nonzero()[:, 1].reshape(-1, k)
            tables.append((columns, number[masks[:, None] ^ (1 << columns)]))
    return tuple(tables)


def _log_matchings(theta: Tensor) -> Tensor:
    """log of the sum of exp <θ, Y> over all Y that leave rows and columns alone at will; O(N M 2^M), M <= N."""
    theta = theta if theta.shape[1] <= len(theta) else theta.mT
    m = theta.shape[1]
    bound = torch.finfo(theta.dtype).min / 4  # as in ``_log_permanent``
    subsets, bit = torch.arange(2**m, device=theta.device)[:, None], 1 << torch.arange(m, device=theta.device)
    without = torch.where(subsets & bit > 0, subsets ^ bit, 0)  # [2^M, M]
    total = torch.full((2**m,), bound, dtype=theta.dtype, device=theta.device)  # by the columns taken so far
    total[0] = 0.0
    for row in theta:
        taken = torch.where(subsets & bit > 0, (total[without] + row).clamp_min(bound), bound)
        total = torch.logsumexp(torch.cat([total[:, None], taken], 1), 1)
    return torch.logsumexp(total, 0)


def _sparse_maximum(theta: Tensor, assignments: Iterable[tuple[int, ...]]) -> Maximum:
    """Sparsemax over the assignments that are listed, each as the column of every row."""
    columns = torch.tensor(list(assignments), device=theta.device)  # [assignments, N]
    totals = theta[torch.arange(len(theta), device=theta.device), columns].sum(1)
    best = best_rows(totals[None], smoothing="sparse")
    argmax = torch.zeros_like(theta)
    for row in range(len(theta)):
        argmax[row].index_add_(0, columns[:, row], best.argmax[0])
    return Maximum(best.value[0], argmax, best.truth)
