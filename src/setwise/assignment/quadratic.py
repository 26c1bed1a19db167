"""The quadratic assignment problem, Eq. (5): its objective, exact for small N, a heuristic beyond.

What the two public functions call minimises, in float64 numpy on the CPU, where scipy takes its input.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from setwise.assignment.heuristics import ROUND_STEPS, TABU_STEPS, descend, tabu
from setwise.assignment.proof import branch_and_bound
from setwise.checks import check_floating, check_option, check_same_kind, check_square

METHODS = ("auto", "exact", "tabu", "faq")
DEFAULT_SEED = 0
EXACT_LIMIT = 12  # "auto" proves its answer up to here: 0.02 to 4 s on every kind of problem tried
EXACT_MAXIMUM = 16  # "exact" refuses more: a proof may take hours, and nothing tells beforehand
TABU_LIMIT = 200  # beyond it a walk within the budget hardly leaves the first local optimum


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
        best = descend(flow, distance, cost, rng, None if initial is None else initial.numpy())
    else:
        best = tabu(flow, distance, cost, rng, ROUND_STEPS if method == "exact" else TABU_STEPS)
    if method == "exact":
        best = branch_and_bound(flow, distance, cost, best)
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
    check_floating(values, name)  # on an accelerator the values are not checked yet
    return values


def _seed(generator: torch.Generator | None) -> int:
    if generator is None:
        return DEFAULT_SEED
    return int(torch.randint(2**62, (), generator=generator, device=generator.device))
