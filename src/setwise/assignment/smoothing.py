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

The temperature is the caller's: f_τ(θ) = τ f(θ/τ) for all of them.

θ_ij = -inf forbids a pair: its argmax is exactly 0. NaN and +inf are refused on the CPU; so is θ that leaves a row, or
the assignment, no choice. On an accelerator, or compiled, these give NaN, or an error of the solver's.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import permutations, product
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from setwise.assignment.linear import solve_linear
from setwise.checks import check_floating, check_matrix, check_option
from setwise.kernels.assign import best_inside
from setwise.similarity import full_precision

Mining = Literal["batch-hard", "one-to-one"]
Smoothing = Literal["none", "entropy", "sparse", "sinkhorn", "sparsemap"]
ROW_SMOOTHINGS = ("none", "entropy", "sparse")
ASSIGNMENT_SMOOTHINGS = ("none", "entropy", "sinkhorn", "sparse", "sparsemap")

# 2^16 column subsets and 7! assignments: 10 and 6 ms on a CPU.
MAX_EXACT_ENTROPY = 16
MAX_EXACT_SPARSE = 7
MAX_EXACT_PARTIAL = 5  # 1,546 assignments that may leave rows alone
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
    _check_scores(theta)
    with torch.no_grad():
        return best_rows(theta, smoothing=smoothing)


def _check_scores(theta: Tensor) -> None:
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
    _check_scores(theta)
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
        best = _best_columns(theta)[:, None]
        argmax = torch.zeros_like(theta).scatter_(1, best, 1)
        return Maximum(theta.gather(1, best).sum(), argmax, truth=0.0)
    if smoothing == "entropy":
        _check_small(n, MAX_EXACT_ENTROPY, "entropy", "sinkhorn")
        # Also within torch.inference_mode, where nothing has a gradient and what is cached could never have one.
        with torch.inference_mode(False), torch.enable_grad():
            leaf = full_precision(theta).clone().requires_grad_()
            value = _log_permanent(leaf)
            (argmax,) = torch.autograd.grad(value, leaf)
        return Maximum(value.detach().to(theta.dtype), argmax.to(theta.dtype), truth=0.0)
    if smoothing == "sparse":
        _check_small(n, MAX_EXACT_SPARSE, "sparse", "sparsemap")
        columns = torch.tensor(list(permutations(range(n))), device=theta.device)  # [N!, N]
        totals = theta[torch.arange(n, device=theta.device), columns].sum(1)
        value, p = _sparsemax(totals[None])
        argmax = torch.zeros_like(theta)
        for row in range(n):
            argmax[row].index_add_(0, columns[:, row], p[0])
        return Maximum(value[0], argmax, truth=0.5)
    if smoothing == "sinkhorn" and theta.device.type != "cpu":
        return _unwatched_hull_maximum(theta)
    return _hull_maximum(theta, smoothing="entropy" if smoothing == "sinkhorn" else "sparse")


def _best_columns(theta: Tensor) -> Tensor:
    """The column of each row of θ [N, M], N <= M, in the best assignment; a GPU is not waited for."""
    one_set = [torch.zeros(size, dtype=torch.int64, device=theta.device) for size in theta.shape]
    found = best_inside(theta, *one_set) if theta.is_cuda else None
    return solve_linear(theta, maximize=True) if found is None else found[0]


@torch.no_grad()
def best_partial(theta: Tensor, *, smoothing: Smoothing) -> Maximum:
    """Maximum over one-to-one assignments of θ [N, M] that may leave any row and any column alone, at a score of 0.

    Exact: "none" by linear assignment, "entropy" for at most 16 rows or columns, "sparse" for at most 5 of both.
    "sinkhorn" and "sparsemap" are relaxed: Ω is that of the rows, with what each leaves alone as one more entry.
    """
    if smoothing == "none":
        worth = theta.clamp_min(0)
        wide = worth if len(theta) <= theta.shape[1] else worth.mT
        hit = torch.zeros_like(wide).scatter_(1, _best_columns(wide)[:, None], 1)
        argmax = (hit if wide is worth else hit.mT) * (theta > 0)
        return Maximum((worth * argmax).sum(), argmax, truth=0.0)
    if smoothing == "entropy":
        _check_small(min(theta.shape), MAX_EXACT_ENTROPY, "entropy at a price", "sinkhorn")
        with torch.inference_mode(False), torch.enable_grad():
            leaf = full_precision(theta).clone().requires_grad_()
            value = _log_matchings(leaf if theta.shape[1] <= len(theta) else leaf.mT)
            (argmax,) = torch.autograd.grad(value, leaf)
        return Maximum(value.detach().to(theta.dtype), argmax.to(theta.dtype), truth=0.0)
    if smoothing != "sparse":
        return _partial_hull_maximum(theta, smoothing="entropy" if smoothing == "sinkhorn" else "sparse")
    n, m = theta.shape
    _check_small(max(n, m), MAX_EXACT_PARTIAL, "sparse at a price", "sparsemap")
    every = product(range(m + 1), repeat=n)  # the column of each row; m: alone
    columns = torch.tensor(
        [x for x in every if len({*x} - {m}) == n - x.count(m)], device=theta.device
    )  # [matchings, N]
    totals = pad(theta, (0, 1))[torch.arange(n, device=theta.device), columns].sum(1)
    value, p = _sparsemax(totals[None])
    argmax = theta.new_zeros(n, m + 1)
    for row in range(n):
        argmax[row].index_add_(0, columns[:, row], p[0])
    return Maximum(value[0], argmax[:, :m].contiguous(), truth=0.5)


def _log_matchings(theta: Tensor) -> Tensor:
    """log of the sum of exp <θ, Y> over all Y that leave rows and columns alone at will; O(N M 2^M)."""
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


def _check_small(n: int, limit: int, smoothing: str, instead: str) -> None:
    if n > limit:
        raise ValueError(
            f"expected at most {limit} rows for the exact one-to-one smoothing {smoothing!r}, got {n}; "
            f"{instead!r} is the related form for any N (see setwise.assignment.smoothing)"
        )


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


# The convex hull of the assignments, by prices: with a price v_j on each column every row chooses freely, and
#
#     max_{Y doubly stochastic} <θ, Y> - Ω(Y)  =  min_v  Σ_j v_j + Σ_i row_maximum(θ_i - v)
#
# (Ω a sum over rows). The right side is convex; its gradient, 1 - (how much of each column is taken), vanishes
# where every column is taken once. Newton's method finds that in 5 to 20 steps (measured at N = 64, θ
# normal with a deviation of 1 to 100); plain Sinkhorn scaling, which is coordinate descent on the same function, took
# 10 at 1, 3,300 at 10, and had not arrived after 200,000 at 30. But a pass of it costs less than a hundredth of a
# Newton step, so the entropic maximum begins with some. Cosines of two views over 0.1, five amounts of noise, ms on one
# busy core from linear prices and from scaling: N = 256: 20 to 51 and 0.5 to 23; N = 1,024: 660 to 1,830 and 26 to 165.
SLOW = 0.9  # passes of scaling go on while each lowers the violation below this share of the last
NEWTON_STEPS = 200
NEWTON_TOLERANCE = 1e-11  # how far any column's total may be from 1; the value's error is its square


def _hull_maximum(theta: Tensor, *, smoothing: Literal["entropy", "sparse"]) -> Maximum:
    work = _possible_pairs(theta.double())
    n = len(work)
    prices = _scaled_prices(work) if smoothing == "entropy" else _linear_prices(work)
    rows = best_rows(work - prices, smoothing=smoothing)
    value = prices.sum() + rows.value.sum()
    for _ in range(NEWTON_STEPS):
        excess = rows.argmax.sum(0) - 1
        violation = excess.abs().amax()
        if violation <= NEWTON_TOLERANCE:
            break
        # ∂P_i/∂θ_i is diag(w) - w w^T / Σw, with w = p for softmax and w = [p > 0] for sparsemax.
        weight = rows.argmax if smoothing == "entropy" else (rows.argmax > 0).to(work.dtype)
        hessian = torch.diag(weight.sum(0)) - (weight / weight.sum(1, keepdim=True)).mT @ weight
        # Singular along equal prices, and wherever rows do not compete; a ridge that vanishes with the violation
        # keeps the fast convergence.
        hessian += 1 / n + 0.01 * violation * torch.eye(n, dtype=work.dtype, device=work.device)
        step = torch.linalg.solve(hessian, excess)
        slope, size = torch.dot(excess, step), 1.0
        rounding = 8 * torch.finfo(work.dtype).eps * value.abs()
        while size > 1e-12:
            tried = best_rows(work - (prices + size * step), smoothing=smoothing)
            tried_value = (prices + size * step).sum() + tried.value.sum()
            if tried_value <= value - 1e-4 * size * slope + rounding:
                break
            size /= 2
        prices, rows, value = prices + size * step, tried, tried_value
    plan = rows.argmax
    converged = bool((plan.sum(0) - 1).abs().amax() <= 100 * NEWTON_TOLERANCE)
    if smoothing == "sparse":
        # Independent of how it was found: at the maximum no assignment improves on the plan to first order.
        best = solve_linear(work - plan, maximize=True)[:, None]
        finite = work.masked_fill(work == -math.inf, 0)
        ascent = finite - plan
        gap = ascent.gather(1, best).sum() - (ascent * plan).sum()
        converged = converged and bool(gap <= 1e-8 * (1 + finite.abs().amax()) * n)
    truth = 0.0 if smoothing == "entropy" else n / 2  # Ω of an assignment: -H(Y) = 0, ½|Y|² = N/2
    return Maximum(value.to(theta.dtype), plan.to(theta.dtype), truth, converged)


# Where nothing may wait for the device to say how far it is, the entropic maximum takes so many passes of scaling, then
# so many Newton steps, each by so many steps of conjugate gradients and the best of so many halvings. Columns were then
# off by 2e-9 at most for cosines over 0.1, 0.05 and 0.02 (N = 32 and 256, four amounts of noise) and θ normal with a
# deviation of 10, by 2e-7 with 30, and by 2e-3 with 100.
PASSES, STEPS, DIRECTIONS, HALVINGS = 50, 12, 20, 8


def _unwatched_hull_maximum(theta: Tensor) -> Maximum:
    """The entropic maximum of ``_hull_maximum`` in a fixed number of operations: a CUDA graph can hold it.

    It cannot say whether it converged. Rows are exact, columns nearly.
    """
    work = _possible_pairs(theta.double())
    kernel = torch.exp(work - work.amax(1, keepdim=True))
    scale = torch.ones_like(kernel[0])
    for _ in range(PASSES):
        scale = torch.reciprocal(torch.reciprocal(kernel @ scale) @ kernel)
    prices = -scale.log()

    def value_at(prices: Tensor) -> Tensor:
        return prices.sum() + torch.logsumexp(work - prices, 1).sum()

    sizes = torch.logspace(0, 1 - HALVINGS, HALVINGS, base=2, dtype=work.dtype, device=work.device)
    for _ in range(STEPS):
        plan, value = torch.softmax(work - prices, 1), value_at(prices)
        taken = plan.sum(0)
        # Prices that all rise alike change nothing. Without a least ridge, rounding would let them rise far.
        ridge = 0.01 * (taken - 1).abs().amax().clamp_min(1e-10)
        step = _newton_step(plan, taken, ridge)
        tried = torch.stack([value_at(prices + size * step) for size in sizes])
        enough = value - 1e-4 * sizes * torch.dot(taken - 1, step) + 8 * torch.finfo(work.dtype).eps * value.abs()
        prices = prices + torch.where(tried <= enough, sizes, 0).amax() * step
    return Maximum(value_at(prices).to(theta.dtype), torch.softmax(work - prices, 1).to(theta.dtype), truth=0.0)


def _newton_step(plan: Tensor, taken: Tensor, ridge: Tensor) -> Tensor:
    """x of (diag(taken) - plan^T plan + ridge) x = taken - 1, by conjugate gradients; rows of the plan sum to 1."""
    diagonal = taken - plan.square().sum(0) + ridge
    x, rest = torch.zeros_like(taken), taken - 1
    scaled = _share(rest, diagonal)
    direction, size = scaled, torch.dot(rest, scaled)
    for _ in range(DIRECTIONS):
        image = (taken + ridge) * direction - (plan @ direction) @ plan
        length = _share(size, torch.dot(direction, image))
        x, rest = x + length * direction, rest - length * image
        scaled = _share(rest, diagonal)
        before, size = size, torch.dot(rest, scaled)
        direction = scaled + _share(size, before) * direction
    return x


def _share(part: Tensor, whole: Tensor) -> Tensor:
    """part / whole, and 0 where nothing is left to divide by; NaN stays NaN."""
    return torch.where(whole == 0, 0, part / whole)


def _partial_hull_maximum(theta: Tensor, *, smoothing: Literal["entropy", "sparse"]) -> Maximum:
    """The same where rows and columns may stay alone: no column is taken more than once, and no price is below 0.

    Newton's method on the columns that have a price or are taken too often. It begins with small scores, whose prices
    are a start for larger ones.
    """
    work = pad(theta.double(), (0, 1))  # the last column: alone
    n, m = theta.shape
    prices = work.new_zeros(m)

    def rows_at(prices: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        rows = best_rows(scale * work - pad(prices, (0, 1)), smoothing=smoothing)
        return prices.sum() + rows.value.sum(), rows.argmax

    for scale in (1 / 64, 1 / 16, 1 / 4, 1.0):
        prices = 4 * prices
        value, plan = rows_at(prices, scale)
        for _ in range(NEWTON_STEPS):
            excess = plan[:, :m].sum(0) - 1
            free = (prices > 0) | (excess > 0)
            violation = torch.where(free, excess.abs(), 0).amax()
            if violation <= NEWTON_TOLERANCE:
                break
            weight = plan if smoothing == "entropy" else (plan > 0).to(work.dtype)
            share = (weight / weight.sum(1, keepdim=True))[:, :m]
            hessian = torch.diag(weight[:, :m].sum(0)) - share.mT @ weight[:, :m]
            hessian = torch.where(free[:, None] & free, hessian, 0) + torch.diag((~free).to(work.dtype))
            hessian += 0.01 * violation * torch.eye(m, dtype=work.dtype, device=work.device)
            step, size = torch.linalg.solve(hessian, torch.where(free, excess, 0)), 1.0
            rounding = 8 * torch.finfo(work.dtype).eps * value.abs()
            while size > 1e-12:
                tried = (prices + size * step).clamp_min(0)
                tried_value, tried_plan = rows_at(tried, scale)
                if tried_value <= value - 1e-4 * torch.dot(excess, tried - prices) + rounding:
                    break
                size /= 2
            prices, value, plan = tried, tried_value, tried_plan
    excess = plan[:, :m].sum(0) - 1
    converged = bool(torch.where(prices > 0, excess.abs(), excess.clamp_min(0)).amax() <= 100 * NEWTON_TOLERANCE)
    truth = 0.0 if smoothing == "entropy" else n / 2
    return Maximum(value.to(theta.dtype), plan[:, :m].to(theta.dtype), truth, converged)


def _possible_pairs(theta: Tensor) -> Tensor:
    """θ with -inf also at the pairs that no assignment without forbidden ones has; only infinite prices avoid these.

    Rows point to the rows whose columns they could take; a pair is in an assignment if that closes a cycle.
    """
    allowed, watched = theta > -math.inf, theta.device.type == "cpu"
    if watched and allowed.all():
        return theta
    partner = solve_linear(theta, maximize=True) if watched else _best_columns(allowed.float())
    edges = allowed[:, partner]
    if watched:
        from scipy.sparse.csgraph import connected_components  # here: its import takes a third of torch's

        group = torch.from_numpy(connected_components(edges.numpy(), connection="strong")[1])
        closed = group[:, None] == group
    else:
        reached = _reached(edges)
        closed = reached & reached.mT
    return theta.masked_fill(~closed[:, partner.argsort()], -math.inf)


def _reached(edges: Tensor) -> Tensor:
    """Which nodes [N, N] paths of any length lead to, from each."""
    reached = edges | torch.eye(len(edges), dtype=torch.bool, device=edges.device)
    for _ in range(max(1, len(edges) - 1).bit_length()):
        steps = reached.float()
        reached = steps @ steps > 0
    return reached


def _scaled_prices(theta: Tensor) -> Tensor:
    """Prices from Sinkhorn scaling, as long as it is quick; those of the linear assignment if these are better."""
    kernel = torch.exp(theta - theta.amax(1, keepdim=True))
    scale, before, violation = torch.ones_like(theta[0]), math.inf, 1.0
    while NEWTON_TOLERANCE < violation < SLOW * before:  # never with NaN
        taken = torch.reciprocal(kernel @ scale) @ kernel
        before, violation = violation, float((taken * scale - 1).abs().amax())
        scale = taken.reciprocal()
    prices = -scale.log()
    if violation <= NEWTON_TOLERANCE:
        return prices

    def value(prices: Tensor) -> float:
        return float(prices.sum() + best_rows(theta - prices, smoothing="entropy").value.sum())

    linear = _linear_prices(theta)
    return prices if value(prices) < value(linear) else linear


def _linear_prices(theta: Tensor) -> Tensor:
    """Prices at which every row is content with its column of the best linear assignment.

    v_j - v_{p_i} >= θ_ij - θ_{i p_i}: longest paths, from both ends; midway between the least and the greatest
    such prices no two columns are tied unless they must be. A start that is exact as θ grows.
    """
    n = len(theta)
    partner = solve_linear(theta, maximize=True)
    gain = theta - theta.gather(1, partner[:, None])  # [row, column]; longest path from column partner[row]
    low, high = theta.new_zeros(n), theta.new_zeros(n)
    for _ in range(n):
        raised = torch.maximum(low, (low[partner][:, None] + gain).amax(0))
        lowered = high.clone()
        lowered[partner] = torch.minimum(high[partner], (high - gain).amin(1))
        if torch.equal(raised, low) and torch.equal(lowered, high):
            break
        low, high = raised, lowered
    return (low + high) / 2
