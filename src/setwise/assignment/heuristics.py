"""Good permutations for the quadratic assignment problem: Frank-Wolfe, swaps of two, generations of tabu walks.

Everything minimises, in float64 numpy. Budgets are counts, never seconds, so that a result does not depend on the
machine. Times are one core's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from setwise.assignment.linear import best_columns

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Walk: TypeAlias = Callable[
    [Ints, int], tuple[Ints, Floats]
]  # from permutations [R, N], so many steps: the best of each

ROUNDING = 1e-13  # differences below this share of the largest conceivable objective count as none

TABU_WALKS = 64  # at N = 30 a step of 64 costs less than twice one of 16, and the pool they fill stays diverse
TABU_ENTRIES = 83_000  # walks x N^2 at most (but four walks at least), so that they fit a core's cache
TABU_STEPS = 330  # steps a row ...
TABU_WORK = 4.0e8  # ... but walks x steps x N^2 at most: 1 to 2 s up to N = 36
TABU_FAQ = 8  # starts from Frank-Wolfe
ROUND_STEPS = 10  # steps a row between two generations, and all there are before an exact search
MOVED = 3  # rows of a child that swap columns at random

SWEEPS = 30  # Frank-Wolfe steps a start, scipy's default too
FAQ_STARTS = 3
FAQ_WORK = 1e11  # starts x SWEEPS x N^3 at most: three starts up to N = 1000, one from N = 1200
DESCENT_WORK = 4e8  # swaps x N^2 after Frank-Wolfe: 100 swaps at N = 2000


def objectives(a: Floats, b: Floats, linear: Floats, p: Ints) -> Floats:
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
        self.value = objectives(a, b, linear, p)
        rows, columns = p[:, :, None], p[:, None, :]
        b_p = b[rows, columns]
        t = a.T @ b_p + a @ b_p.transpose(0, 2, 1) + linear[:, p].transpose(1, 0, 2)
        t -= t.diagonal(axis1=1, axis2=2)[:, :, None]
        self.bend_a, self.bend_b = bend(a), bend(b)
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
        bent = self.bend_b[from_u, from_v][:, None] * d
        rho = differences[:, :k]  # and kappa
        rho += (bent if k == 1 else bent / 2)[:, None]
        y[:, :k] = rho
        h = rho.reshape(len(w), -1) @ self.a_flat
        if self.linear is not None:
            h += self.linear.take(from_v, 0) - self.linear.take(from_u, 0)
        bends = differences[:, k] - bent  # how the bend of B' changes in row u, and, negative, in row v
        y[:, k] = self.bend_a.take(u, 0) * bends + h
        y[:, k + 1] = self.bend_a.take(v, 0) * bends + h
        y[:, k + 2] = -(x[:, :k] * y[:, :k]).sum(1) - d * h  # T_rr and T_ss go on being subtracted
        np.matmul(self.thin[:, : 2 * width].transpose(0, 2, 1), self.thin[:, width:], out=self.added)
        self.delta += self.added
        self.p[w, u], self.p[w, v] = from_v, from_u
        self.value += change


def bend(x: Floats) -> Floats:
    """d^T x d for every d = e_r - e_s."""
    diagonal = x.diagonal()
    bent: Floats = diagonal[:, None] + diagonal - x - x.T
    return bent


def descend(a: Floats, b: Floats, linear: Floats, rng: np.random.Generator, initial: Ints | None) -> Ints:
    """Best of a few Frank-Wolfe permutations, then the best swap again and again while it helps."""
    n = len(a)
    if initial is None:
        starts = _starts(a, b, linear, min(FAQ_STARTS, max(1, int(FAQ_WORK / (SWEEPS * n**3)))), rng)
    else:
        starts = np.stack((initial, _frank_wolfe(a, b, linear, np.eye(n)[initial])))
    values = np.array([objectives(a, b, linear, p[None])[0] for p in starts])  # one by one: N may be large
    swaps = _Swaps(a, b, linear, starts[[values.argmin()]])
    for _ in range(int(DESCENT_WORK / n**2)):
        u, v = np.divmod(np.array([swaps.delta.argmin()]), n)
        change = swaps.delta[0, u, v]
        if change[0] >= -ROUNDING * scale(a, b, linear):
            break
        swaps.move(u, v, change)
    best: Ints = swaps.p[0]
    return best


def tabu(a: Floats, b: Floats, linear: Floats, rng: np.random.Generator, steps_per_row: int) -> Ints:
    """Best permutation of a memetic search: rounds of short tabu walks, each from a child of two of the best so far."""
    n = len(a)
    walks = max(4, min(TABU_WALKS, TABU_ENTRIES // n**2))
    steps = max(1, min(steps_per_row * n, int(TABU_WORK / (walks * n**2))))
    penalty = 4 * scale(a, b, linear)

    def walk(p: Ints, steps: int) -> tuple[Ints, Floats]:
        return _walk(_Swaps(a, b, linear, p), steps, penalty, rng)

    return generations(a, b, linear, rng, walks, steps, walk)


def generations(
    a: Floats, b: Floats, linear: Floats, rng: np.random.Generator, walks: int, steps: int, walk: Walk
) -> Ints:
    """Best permutation after ``steps`` in each of so many walks, in rounds of ``ROUND_STEPS`` a row."""
    n = len(a)
    if n == 1:
        return np.zeros(1, dtype=np.int64)
    starts = _starts(a, b, linear, min(TABU_FAQ, walks // 2), rng)
    p = np.concatenate((starts, [rng.permutation(n) for _ in range(walks - len(starts))]))
    pool, values = p[:0], np.empty(0)
    for done in range(0, steps, ROUND_STEPS * n):
        ends, reached = walk(p, min(ROUND_STEPS * n, steps - done))
        # One permutation of each value: without this rule the pool soon holds copies of a few.
        values, first = np.unique(np.append(values, reached), return_index=True)
        pool, values = np.concatenate((pool, ends))[first[:walks]], values[:walks]
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


def scale(a: Floats, b: Floats, linear: Floats) -> float:
    """No objective is larger; its rounding is a small share of it."""
    return float(np.abs(a).sum() * np.abs(b).max() + np.abs(linear).sum())
