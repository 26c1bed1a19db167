"""The relaxed cells of the grid: maxima over the convex hull of the one-to-one assignments, by prices on columns.

"sinkhorn" and "sparsemap" of ``setwise.assignment.smoothing`` end here, with and without items that stay alone.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from setwise.assignment.linear import columns_on_device, solve_linear
from setwise.assignment.rows import Maximum, best_rows

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


def hull_maximum(theta: Tensor, *, smoothing: Literal["entropy", "sparse"]) -> Maximum:
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


def unwatched_hull_maximum(theta: Tensor) -> Maximum:
    """The entropic maximum of ``hull_maximum`` in a fixed number of operations: a CUDA graph can hold it.

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


def partial_hull_maximum(theta: Tensor, *, smoothing: Literal["entropy", "sparse"]) -> Maximum:
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
    partner = solve_linear(theta, maximize=True) if watched else columns_on_device(allowed.float())
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
