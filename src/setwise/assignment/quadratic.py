"""The quadratic assignment problem, Eq. (5): its objective, exact for small N, a heuristic beyond.

Everything below the two public functions minimises, in float64 numpy on the CPU, where scipy takes its input.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from setwise.assignment.linear import best_columns
from setwise.checks import check_floating, check_option, check_same_kind, check_square

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]

METHODS = ("auto", "exact", "tabu", "faq")
DEFAULT_SEED = 0

# Budgets are counts, never seconds, so that a result does not depend on the machine. Times are one core's.
EXACT_LIMIT = 12  # "auto" proves its answer up to here: 0.02 to 4 s on every kind of problem tried
EXACT_MAXIMUM = 16  # "exact" refuses more: a proof may take hours, and nothing tells beforehand
ROUNDING = 1e-13  # differences below this share of the largest conceivable objective count as none
CHUNK = 4096  # nodes of the search tree handled together: enough to hide Python, little memory

TABU_LIMIT = 200  # beyond it a walk within the budget hardly leaves the first local optimum
TABU_WALKS = 64  # at N = 30 a step of 64 costs less than twice one of 16, and the pool they fill stays diverse
TABU_ENTRIES = 83_000  # walks x N^2 at most (but four walks at least), so that they fit a core's cache
TABU_STEPS = 330  # steps a row ...
TABU_WORK = 4.6e8  # ... but walks x steps x N^2 at most: 1 to 1.8 s up to N = 36
TABU_FAQ = 8  # starts from Frank-Wolfe
ROUND_STEPS = 10  # steps a row between two generations, and all there are before an exact search
MOVED = 3  # rows of a child that swap columns at random

SWEEPS = 30  # Frank-Wolfe steps a start, scipy's default too
FAQ_STARTS = 3
FAQ_WORK = 1e11  # starts x SWEEPS x N^3 at most: three starts up to N = 1000, one from N = 1200
DESCENT_WORK = 4e8  # swaps x N^2 after Frank-Wolfe: 100 swaps at N = 2000


class QuadraticSolution(NamedTuple):
    """An assignment, its objective, and whether that is proven to be the best.

    ``permutation`` is a LongTensor [N], the column of each row, on the device of the problem.
    ``value`` is a Python float, computed in float64 from the permutation. ``optimal`` is True only where
    the exact search has excluded everything better (to rounding).
    """

    permutation: Tensor
    value: float
    optimal: bool


def quadratic_objective(a: Tensor, b: Tensor, permutation: Tensor, linear: Tensor | None = None) -> Tensor:
    r"""Objective of the quadratic assignment problem at one permutation, Eq. (5).

        sum_i linear[i, p_i] + sum_ij a_ij b_{p_i p_j}  =  tr(L Y^T) + tr(A Y B^T Y^T),  Y[i, p_i] = 1

    ``a``, ``b`` and ``linear`` are [N, N], ``permutation`` is a LongTensor [N], the column of each row.
    Returns a 0-dim tensor, differentiable in all three matrices. ``a`` and ``b`` need not be symmetric.

    Examples:
        >>> a = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
        >>> sw.assignment.quadratic_objective(a, 3 * a, torch.tensor([1, 0]))
        tensor(6.)
    """
    _check_problem(a, b, linear)
    _check_permutation(permutation, len(a), "permutation")
    value = (a * b[permutation][:, permutation]).sum()
    return value if linear is None else value + linear.gather(1, permutation[:, None]).sum()


def solve_quadratic(
    a: Tensor,
    b: Tensor,
    linear: Tensor | None = None,
    *,
    maximize: bool = False,
    method: str = "auto",
    initial: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> QuadraticSolution:
    r"""Best, or a good, assignment of N rows to N columns under a quadratic objective, Eq. (5).

        min_p  sum_i linear[i, p_i] + sum_ij a_ij b_{p_i p_j}          (max with ``maximize``)

    ``a``, ``b`` and ``linear`` are [N, N]; p_i is the column of row i. ``a`` and ``b`` need not be symmetric.
    With S as ``linear`` and S_A, S_B as ``a``, ``b`` this is Eq. (5) as printed. It points the wrong way for
    distances: between two copies of a set the identity *maximises* the quadratic term. The consistent
    problem is to minimise with ``-gamma * S_A`` for distances, or to maximise for similarities.

    ``method``:
      - "exact": branch and bound with Gilmore-Lawler bounds, N <= 16. ``optimal`` is True.
      - "tabu": generations of short tabu walks, from Frank-Wolfe and random starts, then from children of the best;
        O(N^2) a step. (One core: 1 to 2 s. All of 28 QAPLIB instances to N = 36 solved from each of five seeds, see
        ``benchmarks/quadratic.py``. Others are harder: sparse random ones at N = 30 may end 8 % above the best.)
      - "faq": Frank-Wolfe over doubly stochastic matrices from a few starts, or from the permutation ``initial``
        alone, which the result is never worse than; then swaps of two while they help, at most 4e8 / N^2.
        (One core: N = 500 in 1 to 3 s, N = 2000 in 4 to 120 s, mostly in Frank-Wolfe's linear assignments.)
      - "auto": exact up to N = 12, tabu up to N = 200, then faq.
    The budgets are counts, not seconds, so a result depends on the problem and the seed only. ``generator`` draws
    that seed; without one it is 0. Solving carries no gradient: see :func:`quadratic_objective`.

    Examples:
        >>> line = torch.tensor([0.0, 1.0, 3.0, 7.0])
        >>> a, b = ((x[:, None] - x).abs() for x in (line, line[[2, 0, 3, 1]]))  # the same points in another order
        >>> sw.assignment.solve_quadratic(a, b, maximize=True)  # finds the order back from the distances alone
        QuadraticSolution(permutation=tensor([1, 3, 0, 2]), value=230.0, optimal=True)
    """
    _check_problem(a, b, linear)
    check_option(method, METHODS, "method")
    n = len(a)
    if method == "auto":
        method = "exact" if n <= EXACT_LIMIT else "tabu" if n <= TABU_LIMIT else "faq"
    if method == "exact" and n > EXACT_MAXIMUM:
        raise ValueError(f"expected N <= {EXACT_MAXIMUM} for method 'exact', got {n}; use 'tabu' or 'faq'")
    if initial is not None:
        if method != "faq":
            raise ValueError(f"expected initial with method 'faq' only, got it with {method!r}; 'faq' takes any N")
        initial = initial.cpu()
        _check_permutation(initial, n, "initial")

    problem = [_float64(x, name) for x, name in ((a, "a"), (b, "b"), (linear, "linear")) if x is not None]
    sign = -1.0 if maximize else 1.0
    flow, distance = sign * problem[0].numpy(), problem[1].numpy()
    cost = np.zeros((n, n)) if linear is None else sign * problem[2].numpy()
    # A symmetric matrix sees only the symmetric part of the other, and two symmetric ones halve the work.
    if np.array_equal(distance, distance.T):
        flow = (flow + flow.T) / 2
    elif np.array_equal(flow, flow.T):
        distance = (distance + distance.T) / 2

    rng = np.random.default_rng(_seed(generator))
    if method == "faq":
        best = _descend(flow, distance, cost, rng, initial)
    else:
        best = _tabu(flow, distance, cost, rng, ROUND_STEPS if method == "exact" else TABU_STEPS)
    if method == "exact":
        best = _branch_and_bound(flow, distance, cost, best)
    permutation = torch.from_numpy(best)
    value = quadratic_objective(problem[0], problem[1], permutation, *problem[2:])
    return QuadraticSolution(permutation.to(a.device), float(value), method == "exact")


def _check_problem(a: Tensor, b: Tensor, linear: Tensor | None) -> None:
    for x, name in ((a, "a"), (b, "b"), (linear, "linear")):
        if x is None:
            continue
        check_square(x, name)
        if x.ndim != 2:
            raise ValueError(f"expected {name} of shape (N, N), one problem at a time, got {tuple(x.shape)}")
        if x.shape != a.shape:
            raise ValueError(f"expected {name} of shape {tuple(a.shape)} like a, got {tuple(x.shape)}")
        check_same_kind(x, name, a, "a")


def _check_permutation(p: Tensor, n: int, name: str) -> None:
    if p.shape != (n,) or p.dtype != torch.long:
        raise ValueError(f"expected {name} of shape ({n},) and dtype torch.int64, got {tuple(p.shape)} and {p.dtype}")
    if p.device.type == "cpu" and p.sort().values.tolist() != list(range(n)):
        raise ValueError(f"expected {name} to hold each of 0..{n - 1} once, got {p.tolist()}")


def _float64(x: Tensor, name: str) -> Tensor:
    values = x.detach().to("cpu", torch.float64)
    check_floating(values, name)  # the values of an accelerator's tensor have not been looked at yet
    return values


def _seed(generator: torch.Generator | None) -> int:
    if generator is None:
        return DEFAULT_SEED
    return int(torch.randint(2**62, (), generator=generator, device=generator.device))


def _values(a: Floats, b: Floats, linear: Floats, p: Ints) -> Floats:
    """Objective of each row of ``p`` [R, N]."""
    quadratic = (a * b[p[:, :, None], p[:, None, :]]).sum((1, 2))
    values: Floats = quadratic + linear[np.arange(len(a)), p].sum(1)
    return values


# --- starts: Frank-Wolfe (FAQ, Vogelstein et al. 2015), with the linear term scipy's version lacks


def _frank_wolfe(a: Floats, b: Floats, linear: Floats, y: Floats) -> Ints:
    """Permutation near the stationary point that Frank-Wolfe reaches from the doubly stochastic ``y``."""
    n = len(a)
    symmetric = bool((a == a.T).all() and (b == b.T).all())
    # The gradient A Y B^T + A^T Y B is linear in Y: following it through the steps leaves one product
    # (two if asymmetric) a step.
    slope = a @ y @ b.T + a.T @ y @ b
    for _ in range(SWEEPS):
        gradient = slope + linear
        p = best_columns(gradient)
        vertex_slope = a @ b[:, p].T
        vertex_slope = 2 * vertex_slope if symmetric else vertex_slope + a.T @ b[p]
        # Along y + t (vertex - y) the objective is f + first * t + second * t^2.
        first = gradient[np.arange(n), p].sum() - (gradient * y).sum()
        toward = vertex_slope - slope
        second = (toward[np.arange(n), p].sum() - (toward * y).sum()) / 2
        if second > 0:
            t = min(1.0, max(0.0, -first / (2 * second)))
        else:
            t = 1.0 if first + second < 0 else 0.0
        if t < 1e-6 or first > -ROUNDING * np.abs(gradient).sum():
            break
        y = (1 - t) * y
        y[np.arange(n), p] += t
        slope = slope + t * toward
    nearest: Ints = best_columns(y, maximize=True)
    return nearest


def _starts(a: Floats, b: Floats, linear: Floats, count: int, rng: np.random.Generator) -> Ints:
    """``count`` Frank-Wolfe permutations: from the barycentre, the linear optimum, then random points."""
    n = len(a)
    flat = np.full((n, n), 1 / n)
    points = [flat]
    if linear.any():
        points.append((flat + np.eye(n)[best_columns(linear)]) / 2)
    while len(points) < count:
        points.append((flat + np.eye(n)[rng.permutation(n)]) / 2)
    return np.stack([_frank_wolfe(a, b, linear, y) for y in points[:count]])


# --- moves: swaps of two rows' columns, for several permutations at once


class _Swaps:
    """What every swap would change, kept up to date in O(N^2) a move for R permutations at once.

    Swapping rows r and s multiplies Y by I - d d^T, d = e_r - e_s, so with B' = b[p][:, p] the change is
    exactly  -d^T T d + (d^T A d)(d^T B' d),  where T = A^T B' + A B'^T + linear[:, p].

    ``delta`` [R, N, N] holds it, symmetric, with inf where there is nothing to swap. A move of rows u and v adds
    d rho^T + kappa d^T + (d^T B' d) d d^T  to B', with d = e_u - e_v. Here rho is row v of B' minus row u, and kappa
    column v minus column u. What this adds to ``delta`` is a sum of a few x y^T + y x^T: one product of thin matrices.
    """

    def __init__(self, a: Floats, b: Floats, linear: Floats, p: Ints) -> None:
        """Start at the permutations ``p`` [R, N]."""
        walks, n = p.shape
        self.p, self.walks = p.copy(), np.arange(walks)
        self.value = _values(a, b, linear, p)
        rows, columns = p[:, :, None], p[:, None, :]
        b_p = b[rows, columns]
        t = a.T @ b_p + a @ b_p.transpose(0, 2, 1) + linear[:, p].transpose(1, 0, 2)
        t -= t.diagonal(axis1=1, axis2=2)[:, :, None]
        self.bend_a, self.bend_b = _bend(a), _bend(b)
        self.delta = self.bend_a * self.bend_b[rows, columns]
        self.delta += t
        self.delta += t.transpose(0, 2, 1)
        self.delta.reshape(walks, -1)[:, :: n + 1] = np.inf
        # T sums over a, b and over both transposed: one sum, twice as large, where they are symmetric.
        symmetric = np.array_equal(a, a.T) and np.array_equal(b, b.T)
        self.a = a[:, None] if symmetric else np.stack((a, a.T), 1)  # [N, K, N]
        self.b = np.stack((2 * b, self.bend_b) if symmetric else (b, b.T, self.bend_b), 1)  # [N, K + 1, N]
        self.a_flat = self.a.transpose(1, 2, 0).reshape(-1, n)  # [K N, N]
        self.linear = np.ascontiguousarray(linear.T) if linear.any() else None
        k = self.a.shape[1]
        self.thin = np.zeros((walks, 3 * (k + 3), n))  # x, y, x again: delta changes by x^T y + y^T x
        self.thin[:, k + 2] = 1
        self.added = np.empty_like(self.delta)
        self.places = np.arange(0, walks * (k + 1) * n, n).reshape(walks, k + 1, 1)

    def move(self, u: Ints, v: Ints, change: Floats) -> None:
        """Swap rows ``u`` and ``v`` [R] in each permutation."""
        w, k = self.walks, self.a.shape[1]
        width = k + 3
        x, y, again = self.thin[:, :width], self.thin[:, width : 2 * width], self.thin[:, 2 * width :]
        from_u, from_v = self.p[w, u], self.p[w, v]
        x[:, k : k + 2] = 0
        x[w, k, u], x[w, k + 1, v] = 1, -1
        d = x[:, k] + x[:, k + 1]
        np.subtract(self.a.take(u, 0), self.a.take(v, 0), out=x[:, :k])
        again[...] = x
        differences = (self.b.take(from_v, 0) - self.b.take(from_u, 0)).take(self.places + self.p[:, None, :])
        bend = self.bend_b[from_u, from_v][:, None] * d
        rho = differences[:, :k]  # and kappa
        rho += (bend if k == 1 else bend / 2)[:, None]
        y[:, :k] = rho
        h = rho.reshape(len(w), -1) @ self.a_flat
        if self.linear is not None:
            h += self.linear.take(from_v, 0) - self.linear.take(from_u, 0)
        bends = differences[:, k] - bend  # how the bend of B' changes in row u, and, negative, in row v
        y[:, k] = self.bend_a.take(u, 0) * bends + h
        y[:, k + 1] = self.bend_a.take(v, 0) * bends + h
        y[:, k + 2] = -(x[:, :k] * y[:, :k]).sum(1) - d * h  # T_rr and T_ss go on being subtracted
        np.matmul(self.thin[:, : 2 * width].transpose(0, 2, 1), self.thin[:, width:], out=self.added)
        self.delta += self.added
        self.p[w, u], self.p[w, v] = from_v, from_u
        self.value += change


def _bend(x: Floats) -> Floats:
    """d^T x d for every d = e_r - e_s."""
    diagonal = x.diagonal()
    bend: Floats = diagonal[:, None] + diagonal - x - x.T
    return bend


def _descend(a: Floats, b: Floats, linear: Floats, rng: np.random.Generator, initial: Tensor | None) -> Ints:
    """Best of a few Frank-Wolfe permutations, then the best swap again and again while it helps."""
    n = len(a)
    if initial is None:
        starts = _starts(a, b, linear, min(FAQ_STARTS, max(1, int(FAQ_WORK / (SWEEPS * n**3)))), rng)
    else:
        starts = np.stack((initial, _frank_wolfe(a, b, linear, np.eye(n)[initial])))
    values = np.array([_values(a, b, linear, p[None])[0] for p in starts])  # one by one: N may be large
    swaps = _Swaps(a, b, linear, starts[[values.argmin()]])
    for _ in range(int(DESCENT_WORK / n**2)):
        u, v = np.divmod(np.array([swaps.delta.argmin()]), n)
        change = swaps.delta[0, u, v]
        if change[0] >= -ROUNDING * _scale(a, b, linear):
            break
        swaps.move(u, v, change)
    found: Ints = swaps.p[0]
    return found


def _tabu(a: Floats, b: Floats, linear: Floats, rng: np.random.Generator, steps_per_row: int) -> Ints:
    """Best permutation of a memetic search: rounds of short tabu walks, each from a child of two of the best so far."""
    n = len(a)
    if n == 1:
        return np.zeros(1, dtype=np.int64)
    walks = max(4, min(TABU_WALKS, TABU_ENTRIES // n**2))
    steps = max(1, min(steps_per_row * n, int(TABU_WORK / (walks * n**2))))
    starts = _starts(a, b, linear, min(TABU_FAQ, walks // 2), rng)
    p = np.concatenate((starts, [rng.permutation(n) for _ in range(walks - len(starts))]))
    pool, values = p[:0], np.empty(0)
    penalty = 4 * _scale(a, b, linear)
    for done in range(0, steps, ROUND_STEPS * n):
        found, reached = _walk(_Swaps(a, b, linear, p), min(ROUND_STEPS * n, steps - done), penalty, rng)
        # One permutation of each value: without this rule the pool soon holds copies of a few.
        values, first = np.unique(np.append(values, reached), return_index=True)
        pool, values = np.concatenate((pool, found))[first[:walks]], values[:walks]
        p = _children(pool, walks, rng)
    best: Ints = pool[0]
    return best


def _walk(swaps: _Swaps, steps: int, penalty: float, rng: np.random.Generator) -> tuple[Ints, Floats]:
    """Best permutation of each walk, and its value: the best swap again and again, but none that undoes a recent one.

    A swap is forbidden where both rows would take back a column that they left within about N steps (Taillard 1991),
    unless it leads to a new best. ``penalty`` is more than any swap changes.
    """
    walks, n = swaps.p.shape
    w = swaps.walks
    best, best_value = swaps.p.copy(), swaps.value.copy()
    # until[s, r] x penalty: from this step on row r may take the column of row s. (r, s) and (s, r) are the same swap,
    # which is forbidden where both are.
    until = np.zeros((walks, n, n))
    cost = np.empty_like(until)
    everywhere, delta = w * n * n, swaps.delta.reshape(walks, -1)
    for step in range(steps):
        np.subtract(until, (step + 0.5) * penalty, out=cost)
        np.maximum(cost, swaps.delta, out=cost)  # where all are forbidden, the one that will be free first
        chosen = cost.reshape(walks, -1).argmin(1)
        lowest = delta.argmin(1)
        chosen = np.where(delta.take(everywhere + lowest) < best_value - swaps.value, lowest, chosen)
        u, v = np.divmod(chosen, n)
        tenure = rng.integers(int(0.9 * n), int(1.1 * n) + 2, size=(2, walks))
        until[w, u, u], until[w, v, v] = (step + tenure) * penalty
        until[w, u], until[w, v] = until[w, v], until[w, u]
        swaps.move(u, v, delta.take(everywhere + chosen))
        better = swaps.value < best_value
        if better.any():
            best[better], best_value[better] = swaps.p[better], swaps.value[better]
    return best, best_value


def _children(pool: Ints, count: int, rng: np.random.Generator) -> Ints:
    """``count`` permutations: half of one parent's columns, those of another that fit, the rest and three at random."""
    n = pool.shape[1]
    one, other = pool[rng.integers(len(pool), size=(2, count))]
    placed = rng.random((count, n)) < 0.5
    taken = np.zeros((count, n), dtype=bool)
    rows, _ = np.nonzero(placed)
    taken[rows, one[placed]] = True
    fits = ~placed & ~np.take_along_axis(taken, other, 1)
    rows, _ = np.nonzero(fits)
    taken[rows, other[fits]] = True
    children: Ints = np.where(placed, one, other)
    rows, free = np.nonzero(~taken)  # as many of a child as rows without a column
    children[~(placed | fits)] = free[np.lexsort((rng.random(len(free)), rows))]
    three = rng.random((count, n)).argsort(1)[:, :MOVED]
    moved = np.take_along_axis(children, np.roll(three, 1, 1), 1)
    np.put_along_axis(children, three, moved, 1)
    return children


def _scale(a: Floats, b: Floats, linear: Floats) -> float:
    """No objective is larger; its rounding is a small share of it."""
    return float(np.abs(a).sum() * np.abs(b).max() + np.abs(linear).sum())


# --- proof: branch and bound


def _branch_and_bound(a: Floats, b: Floats, linear: Floats, best: Ints) -> Ints:
    """Best permutation: ``best``, unless the search through all the others finds a better one.

    Rows get their columns in a fixed order. Chunks of nodes of one depth are taken from a stack, the
    deepest first, which bounds the memory.
    """
    n = len(a)
    # A row and itself are no pair: what they cost is linear, and the diagonals can go.
    linear = linear + np.outer(a.diagonal(), b.diagonal())
    a, b = a - np.diag(a.diagonal()), b - np.diag(b.diagonal())
    spread = np.abs(a - a.mean())
    order = np.argsort(-(spread.sum(0) + spread.sum(1)), kind="stable")  # what differs most decides most
    a, linear, best = a[np.ix_(order, order)], linear[order], best[order]
    rounding = ROUNDING * _scale(a, b, linear)
    limit = float(_values(a, b, linear, best[None])[0]) - rounding

    stack = [(np.empty((1, 0), dtype=np.int64), np.zeros(1))]
    while stack:
        p, cost = stack.pop()  # the columns of the first rows, [nodes, depth], and what they cost
        if len(p) > CHUNK:
            stack.append((p[CHUNK:], cost[CHUNK:]))
            p, cost = p[:CHUNK], cost[:CHUNK]
        nodes, depth = p.shape
        taken = np.zeros((nodes, n), dtype=bool)
        np.put_along_axis(taken, p, True, 1)
        free = np.nonzero(~taken)[1].reshape(nodes, n - depth)
        # Cost of each later row in each free column: its own, and with the rows already placed.
        given = linear[depth:] + a[:depth, depth:].T @ b[p] + a[depth:, :depth] @ b[:, p].transpose(1, 2, 0)
        given = np.take_along_axis(given, free[:, None, :], 2)  # [nodes, rows, columns]
        if depth == n - 1:
            values = cost + given[:, 0, 0]
            if values.min() < limit:
                i = values.argmin()
                best, limit = np.append(p[i], free[i]), float(values[i]) - rounding
            continue
        total = given + _least_pairs(a[depth:, depth:], b, free)
        # Two reductions bound the assignment problem from below, and each choice for the next row too.
        rows = total.min(2, keepdims=True)
        columns = (total - rows).min(1, keepdims=True)
        bound = cost + rows.sum((1, 2)) + columns.sum((1, 2))
        keep = bound[:, None] + (total - rows - columns)[:, 0] < limit  # [nodes, columns]
        if n - depth > 3:  # the whole assignment problem pays only where many nodes hang below
            for i in np.nonzero(keep.any(1))[0]:
                least = total[i][np.arange(n - depth), best_columns(total[i])].sum()
                keep[i] &= cost[i] + least < limit
        parent, child = np.nonzero(keep)
        if len(parent):
            stack.append((np.c_[p[parent], free[parent, child]], cost[parent] + given[parent, 0, child]))
    found = np.empty_like(best)
    found[order] = best
    return found


def _least_pairs(a: Floats, b: Floats, free: Ints) -> Floats:
    """Least a row could pay for its pairs in each column, [nodes, rows, columns] (Gilmore, Lawler).

    ``a`` [m, m] holds the rows still to place, ``free`` [nodes, m] their columns. A row's pairs cost at
    least the product of its entries, ascending, with those of the column, descending.
    """
    m = len(a)
    others = ~np.eye(m, dtype=bool)
    sets, node_set = np.unique(free, axis=0, return_inverse=True)  # far fewer sets than nodes
    ascending = np.sort(a[others].reshape(m, m - 1), 1)
    pairs = b[sets[:, :, None], sets[:, None, :]][:, others].reshape(-1, m, m - 1)
    descending = np.sort(pairs, 2)[:, :, ::-1]
    least: Floats = (ascending @ descending.transpose(0, 2, 1))[node_set.ravel()]
    return least
