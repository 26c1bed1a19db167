"""The quadratic assignment problem, Eq. (5): its objective, exact for small N, a heuristic beyond.

What the two public functions call minimises, in float64: numpy on the CPU, where scipy takes its input, and torch for
the walks of a GPU.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from setwise.assignment.heuristics import ROUND_STEPS, TABU_STEPS, Floats, Ints, descend, tabu
from setwise.assignment.proof import branch_and_bound
from setwise.assignment.walks import tabu_walks
from setwise.checks import check_floating, check_matrix, check_option, check_same_kind, check_square

METHODS = ("auto", "exact", "tabu", "faq")
DEFAULT_SEED = 0
EXACT_LIMIT = 12  # "auto" proves its answer up to here: 0.02 to 4 s on every kind of problem tried
EXACT_MAXIMUM = 16  # "exact" refuses more: a proof may take hours, and nothing tells beforehand
TABU_LIMIT = 200  # beyond it a walk within the budget hardly leaves the first local optimum


class QuadraticSolution(NamedTuple):
    """An assignment, its objective, and whether that is proven to be the best.

    ``permutation`` is a LongTensor [N], the column of each row or -1, on the device of the problem.
    ``value`` is a Python float, computed in float64 from the permutation. ``optimal`` is True only where
    the exact search has excluded everything better (to rounding).
    """

    permutation: Tensor
    value: float
    optimal: bool


def quadratic_objective(a: Tensor, b: Tensor, permutation: Tensor, linear: Tensor | None = None) -> Tensor:
    r"""Objective of the quadratic assignment problem at one permutation, Eq. (5).

        sum_i linear[i, p_i] + sum_ij a_ij b_{p_i p_j}  =  tr(L Y^T) + tr(A Y B^T Y^T),  Y[i, p_i] = 1

    ``a`` is [N, N], ``b`` [M, M] and ``linear`` [N, M]. ``permutation`` is a LongTensor [N], the column of each row.
    If N > M then N - M rows have none, -1, and add nothing.
    Returns a 0-dim tensor, differentiable in all three matrices. ``a`` and ``b`` need not be symmetric.

    Examples:
        >>> a = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
        >>> sw.assignment.quadratic_objective(a, 3 * a, torch.tensor([1, 0]))
        tensor(6.)
    """
    _check_problem(a, b, linear)
    _check_permutation(permutation, len(a), len(b), "permutation")
    if len(a) > len(b):
        kept = (permutation >= 0).nonzero()[:, 0]
        a, permutation = a[kept][:, kept], permutation[kept]
        linear = None if linear is None else linear[kept]
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
    partial_match: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> QuadraticSolution:
    r"""Best, or a good, assignment of N rows to M columns under a quadratic objective, Eq. (5).

        min_p  sum_i linear[i, p_i] + sum_ij a_ij b_{p_i p_j}          (max with ``maximize``)

    ``a`` is [N, N], ``b`` [M, M] and ``linear`` [N, M]; p_i is the column of row i. ``a`` and ``b`` need not be
    symmetric. The smaller set is assigned as a whole: if N > M, N - M rows have no column, -1, and add nothing.
    ``partial_match``, a LongTensor [K, 2], holds pairs (row, column) that are given; the others are found, and below
    N is the number of rows or columns, whichever is larger, that are left.
    With S as ``linear`` and S_A, S_B as ``a``, ``b`` this is Eq. (5) as printed. It points the wrong way for
    distances: between two copies of a set the identity *maximises* the quadratic term. The consistent
    problem is to minimise with ``-gamma * S_A`` for distances, or to maximise for similarities.

    ``method``:
      - "exact": branch and bound with Gilmore-Lawler bounds, N <= 16. ``optimal`` is True.
      - "tabu": generations of short tabu walks, from Frank-Wolfe and random starts, then from children of the best;
        O(N^2) a step. (One core: 1 to 2 s. All of 28 QAPLIB instances to N = 36 solved from each of five seeds, see
        ``benchmarks/quadratic.py``. Others are harder: sparse random ones at N = 30 may end 8 % above the best.)
        Tensors on a CUDA device take many more walks, all at once and on that device.
      - "faq": Frank-Wolfe over doubly stochastic matrices from a few starts, or from the permutation ``initial``
        alone, which the result is never worse than; then swaps of two while they help, at most 4e8 / N^2.
        (One core: N = 500 in 1 to 3 s, N = 2000 in 4 to 120 s, mostly in Frank-Wolfe's linear assignments.)
      - "auto": exact up to N = 12, tabu up to N = 200, then faq.
    The budgets are counts, not seconds, so a result depends on the problem, the kind of device and the seed only.
    ``generator`` draws that seed; without one it is 0. Solving carries no gradient: see :func:`quadratic_objective`.

    Examples:
        >>> line = torch.tensor([0.0, 1.0, 3.0, 7.0])
        >>> a, b = ((x[:, None] - x).abs() for x in (line, line[[2, 0, 3, 1]]))  # the same points in another order
        >>> sw.assignment.solve_quadratic(a, b, maximize=True)  # finds the order back from the distances alone
        QuadraticSolution(permutation=tensor([1, 3, 0, 2]), value=230.0, optimal=True)
    """
    _check_problem(a, b, linear)
    check_option(method, METHODS, "method")
    n, m = len(a), len(b)
    size = max(n, m)
    given = _given(partial_match, n, m)
    left = size - len(given)
    if method == "auto":
        method = "exact" if left <= EXACT_LIMIT else "tabu" if left <= TABU_LIMIT else "faq"
    if method == "exact" and left > EXACT_MAXIMUM:
        raise ValueError(f"expected N <= {EXACT_MAXIMUM} for method 'exact', got {left}; use 'tabu' or 'faq'")
    if initial is not None:
        if method != "faq":
            raise ValueError(f"expected initial with method 'faq' only, got it with {method!r}; 'faq' takes any N")
        initial = initial.cpu()
        _check_permutation(initial, n, m, "initial")
        if (initial[given[:, 0]].numpy() != given[:, 1]).any():
            raise ValueError("expected initial to have the pairs of partial_match, got others; change one of the two")

    problem = [_float64(x, name) for x, name in ((a, "a"), (b, "b"), (linear, "linear")) if x is not None]
    sign = -1.0 if maximize else 1.0
    # Rows and columns of zeros make both sets equally large, and change no objective.
    flow, distance = _padded(sign * problem[0].numpy(), size), _padded(problem[1].numpy(), size)
    cost = np.zeros((size, size)) if linear is None else _padded(sign * problem[2].numpy(), size)
    start = None if initial is None else _completed(initial.numpy(), size)
    best = np.empty(size, dtype=np.int64)
    best[given[:, 0]] = given[:, 1]
    rows, columns = (np.setdiff1d(np.arange(size), x) for x in given.T)
    if left:
        part = flow, distance, cost
        if len(given):
            part = _remaining(flow, distance, cost, given, rows, columns)
            start = None if start is None else np.searchsorted(columns, start[rows])
        best[rows] = columns[_solve(*part, method, start, np.random.default_rng(_seed(generator)), a.device)]
    permutation = torch.from_numpy(np.where(best[:n] < m, best[:n], -1))
    value = quadratic_objective(problem[0], problem[1], permutation, *problem[2:])
    return QuadraticSolution(permutation.to(a.device), float(value), method == "exact")


def structure_of(s: Tensor) -> Tensor:
    """``s`` [N, N] between different items, about its mean: for permutations the same problem but for a constant.

    Frank-Wolfe sees the difference. With the diagonal as it is, every row is nearest to itself, the objective is
    convex and all its first-order steps lead back to the start.
    """
    n = len(s)
    pairs = (s + s.mT) / 2 - (s.sum() - s.trace()) / max(1, n * (n - 1))
    return pairs.fill_diagonal_(0)


def _solve(
    flow: Floats,
    distance: Floats,
    cost: Floats,
    method: str,
    start: Ints | None,
    rng: np.random.Generator,
    device: torch.device,
) -> Ints:
    # A symmetric matrix sees only the symmetric part of the other, and two symmetric ones halve the work.
    if np.array_equal(distance, distance.T):
        flow = (flow + flow.T) / 2
    elif np.array_equal(flow, flow.T):
        distance = (distance + distance.T) / 2
    if method == "faq":
        return descend(flow, distance, cost, rng, start)
    if method == "tabu" and device.type == "cuda":
        return tabu_walks(flow, distance, cost, rng, device)
    best = tabu(flow, distance, cost, rng, ROUND_STEPS if method == "exact" else TABU_STEPS)
    return branch_and_bound(flow, distance, cost, best) if method == "exact" else best


def _remaining(
    a: Floats, b: Floats, linear: Floats, given: Ints, rows: Ints, columns: Ints
) -> tuple[Floats, Floats, Floats]:
    """The problem of the ``rows`` and ``columns`` that are not given: what they cost with those that are is linear."""
    i, j = given.T
    with_given = a[np.ix_(rows, i)] @ b[np.ix_(columns, j)].T + a[np.ix_(i, rows)].T @ b[np.ix_(j, columns)]
    return a[np.ix_(rows, rows)], b[np.ix_(columns, columns)], linear[np.ix_(rows, columns)] + with_given


def _padded(x: Floats, size: int) -> Floats:
    return np.pad(x, [(0, size - length) for length in x.shape])


def _completed(p: Ints, size: int) -> Ints:
    """A permutation that has the columns of ``p``, and the unused ones for its -1 and for the rows after it."""
    whole = np.full(size, -1)
    whole[: len(p)] = p
    whole[whole < 0] = np.setdiff1d(np.arange(size), whole)
    return whole


def _given(pairs: Tensor | None, n: int, m: int) -> Ints:
    """The pairs (row, column) that are given [K, 2]."""
    if pairs is None:
        return np.empty((0, 2), dtype=np.int64)
    if not isinstance(pairs, Tensor) or pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.dtype != torch.long:
        got = f"{tuple(pairs.shape)} and {pairs.dtype}" if isinstance(pairs, Tensor) else type(pairs).__name__
        raise ValueError(f"expected partial_match of shape (K, 2) and dtype torch.int64, got {got}")
    given: Ints = pairs.cpu().numpy()
    for values, size, what in zip(given.T, (n, m), ("rows", "columns"), strict=True):
        if len(np.unique(values)) < len(values) or not np.isin(values, np.arange(size)).all():
            raise ValueError(
                f"expected partial_match with {what} of 0..{size - 1}, each at most once, got {values.tolist()}"
            )
    return given


def _check_problem(a: Tensor, b: Tensor, linear: Tensor | None) -> None:
    for x, name in ((a, "a"), (b, "b"), (linear, "linear")):
        if x is None:
            continue
        (check_matrix if name == "linear" else check_square)(x, name)
        if x.ndim != 2:
            raise ValueError(f"expected {name} of shape (N, N), one problem at a time, got {tuple(x.shape)}")
        check_same_kind(x, name, a, "a")
    if linear is not None and linear.shape != (len(a), len(b)):
        raise ValueError(f"expected linear of shape {(len(a), len(b))} like a and b, got {tuple(linear.shape)}")


def _check_permutation(p: Tensor, n: int, m: int, name: str) -> None:
    if p.shape != (n,) or p.dtype != torch.long:
        raise ValueError(f"expected {name} of shape ({n},) and dtype torch.int64, got {tuple(p.shape)} and {p.dtype}")
    if p.device.type != "cpu":
        return
    columns = p.sort().values[max(0, n - m) :].tolist()
    none = int((p == -1).sum())
    if none != max(0, n - m) or not set(columns) <= set(range(m)) or len(set(columns)) < len(columns):
        rule = f"each of 0..{m - 1} once" if n == m else f"columns of 0..{m - 1}, each at most once"
        raise ValueError(f"expected {name} to hold {rule}{f', and {n - m} of -1' if n > m else ''}, got {p.tolist()}")


def _float64(x: Tensor, name: str) -> Tensor:
    values = x.detach().to("cpu", torch.float64)
    check_floating(values, name)  # on an accelerator the values are not checked yet
    return values


def _seed(generator: torch.Generator | None) -> int:
    if generator is None:
        return DEFAULT_SEED
    return int(torch.randint(2**62, (), generator=generator, device=generator.device))
