"""Instance matching: how well the items of two sets find their partners, by linear and by quadratic assignment.

A cost is minus a score of ``setwise.similarity``: the distance itself for Euclidean measures, minus the similarity
for cosine. Everything is computed in float64 on the CPU, without gradients.

Ties never help. Assignments take the columns in a fixed random order: an encoder that maps all items to one point gets
about 1/N right, not all. Ranks count a column that is as near as the true one as nearer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from setwise.assignment import quadratic_objective, solve_linear, solve_quadratic
from setwise.checks import check_embeddings, check_floating, check_number
from setwise.similarity import Similarity, check_similarity, scores

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]

RANKS = (1, 5, 10)  # what re-identification papers report
WEIGHTS = (0.0, 1.0, 4.0, 16.0, 64.0)  # of unit vectors: below 1 hardly a match changes, above 64 only structure counts
ROUNDING = 1e-12  # costs closer than this share of the largest are equal: products of equal rows differ in last digits


@dataclass(frozen=True, eq=False)
class Matching:
    """How two sets of N items are matched; row i of both is the same item.

    ``assignment``              the column of each row in the cheapest assignment, Eq. (2); a LongTensor [N], CPU
    ``accuracy``                share of rows that it puts on their true partner
    ``cost``                    its total cost
    ``greedy_assignment``       the same where, again and again, the closest pair of what is left is taken
    ``greedy_accuracy``         its share of true partners
    ``greedy_gap``              (its cost - ``cost``) / abs(``cost``) >= 0; 0 if equal, inf if only ``cost`` is 0
    ``rank``                    {k: share of rows with their true partner among the k nearest columns}, the CMC curve
    ``mean_average_precision``  one true partner a row, so the mean of 1 / rank of the true partner
    ``costs``                   all costs [N, N], float64, CPU

    For ranks each row chooses among all columns on its own, and columns as near as the true one count as nearer.
    """

    assignment: Tensor = field(repr=False)
    accuracy: float
    cost: float
    greedy_assignment: Tensor = field(repr=False)
    greedy_accuracy: float
    greedy_gap: float
    rank: dict[int, float]
    mean_average_precision: float
    costs: Tensor = field(repr=False)

    @cached_property
    def margin(self) -> float:
        """How much more the second-best assignment costs than the best: 0 where the best is not unique (to rounding).

        Exact; infinite for N = 1. Computed from shortest paths when first used: 0.02 to 0.08 s for N = 1,000.
        """
        return _margin(self.costs.numpy(), self.assignment.numpy())


@dataclass(frozen=True, eq=False)
class QuadraticMatching:
    """How two sets are matched by the costs of their items and by the structure within each set.

    ``assignment`` is a LongTensor [N] on the CPU, ``accuracy`` its share of true partners and ``objective`` what it
    reaches. ``linear_accuracy`` and ``linear_objective`` are the same for the cheapest assignment, Eq. (2), whose
    objective is never higher.
    """

    assignment: Tensor = field(repr=False)
    accuracy: float
    objective: float
    linear_accuracy: float
    linear_objective: float


def match(z_a: Tensor, z_b: Tensor, *, similarity: Similarity = "euclidean") -> Matching:
    r"""Match two sets one to one by their costs alone, Eq. (2), and say how many rows come out right.

        min_{Y in Pi} tr(C Y^T),    C = -scores

    ``z_a``, ``z_b`` [N, E] are the two views of the same N items in the same order, on any device. Exact, O(N^3) at
    worst: N = 1,000, E = 64 takes 0.06 s on one core where most rows come out right, 0.1 s where none do.

    Examples:
        >>> a = torch.tensor([[0.0], [1.0], [2.0]])
        >>> found = sw.match(a, torch.tensor([[0.1], [2.1], [1.2]]))  # the second and third are confused
        >>> found.assignment, round(found.accuracy, 2), found.margin
        (tensor([0, 2, 1]), 0.33, 1.5999999046325684)
    """
    z_a, z_b = _on_cpu(z_a, z_b, similarity)
    costs = -scores(z_a, z_b, similarity=similarity).numpy()
    rows = np.arange(len(costs))
    best, greedy = _cheapest(costs), _greedy(costs)
    cost, greedy_cost = (math.fsum(costs[rows, p]) for p in (best, greedy))
    own = costs.diagonal()[:, None]
    ranks = np.count_nonzero(costs <= own + _rounding(costs), axis=1)
    return Matching(
        assignment=torch.from_numpy(best),
        accuracy=_accuracy(best),
        cost=cost,
        greedy_assignment=torch.from_numpy(greedy),
        greedy_accuracy=_accuracy(greedy),
        greedy_gap=_gap(greedy_cost, cost),
        rank={k: float((ranks <= k).mean()) for k in RANKS},
        mean_average_precision=float((1 / ranks).mean()),
        costs=torch.from_numpy(costs),
    )


def match_quadratic(
    z_a: Tensor, z_b: Tensor, *, weight: float, similarity: Similarity = "euclidean"
) -> QuadraticMatching:
    r"""Match two sets by their items and by their structure, Eq. (5) in the direction that is consistent.

        max_{Y in Pi} tr(S Y^T) + weight / N · tr(S_A Y S_B^T Y^T)

    All three matrices are scores, S = S_AB; for distances that is to minimise tr(D Y^T) - weight / N · tr(D_A Y D_B^T
    Y^T). Eq. (5) as printed minimises both terms over distances, which sends near pairs to far ones; that is a
    negative ``weight`` here. The 1/N keeps the two terms in proportion as sets grow. Cosine has no unit; for
    Euclidean distances a weight counts in 1 / distance, so scaling both sets by t needs weight / t.

    A heuristic, Frank-Wolfe from the linear optimum and then swaps of two: the objective is never below the linear
    optimum's, and weight 0 is the linear optimum. N = 220 takes about 0.02 s on one core (0.1 s for a negative weight),
    N = 1,500 2 to 5 s.

    Examples:
        >>> from setwise.evaluation import match_quadratic
        >>> a = torch.tensor([[0.0], [1.0], [3.0]])
        >>> b = 3 - a  # mirrored: pairs alone are wrong, distances within the sets are the same
        >>> round(sw.match(a, b).accuracy, 2), match_quadratic(a, b, weight=16.0).accuracy
        (0.33, 1.0)
    """
    z_a, z_b = _on_cpu(z_a, z_b, similarity)
    check_number(weight, "weight")
    n = len(z_a)
    s, s_a, s_b = (scores(x, y, similarity=similarity) for x, y in ((z_a, z_b), (z_a, z_a), (z_b, z_b)))
    linear = assignment = _cheapest(-s.numpy())
    if weight and n > 1:
        order = _random_order(n)
        own = torch.outer(s_a.diagonal(), s_b.diagonal())
        solution = solve_quadratic(
            weight / n * _pairs(s_a),
            _pairs(s_b)[order][:, order],
            (s + weight / n * own)[:, order],
            maximize=True,
            method="faq",
            initial=torch.from_numpy(np.argsort(order)[linear]),
        )
        assignment = order[solution.permutation.numpy()]

    def objective(p: Ints) -> float:
        return float(quadratic_objective(weight / n * s_a, s_b, torch.from_numpy(p), s))

    assignment = max(linear, assignment, key=objective)  # as good to the last digit
    return QuadraticMatching(
        assignment=torch.from_numpy(assignment),
        accuracy=_accuracy(assignment),
        objective=objective(assignment),
        linear_accuracy=_accuracy(linear),
        linear_objective=objective(linear),
    )


def choose_weight(
    sets: Sequence[tuple[Tensor, Tensor]],
    weights: Sequence[float] = WEIGHTS,
    *,
    similarity: Similarity = "euclidean",
) -> float:
    """The weight of :func:`match_quadratic` with the best mean accuracy over ``sets``, of equal ones the smallest.

    ``sets`` are pairs (z_a, z_b) [N, E] of validation items: a weight chosen on the sets it is reported for is too
    good. N = 220 takes about 0.1 s a set for the five ``weights``.
    """
    if not len(sets) or not len(weights):
        raise ValueError(f"expected at least one set and one weight, got {len(sets)} sets and {len(weights)} weights")
    for weight in weights:
        check_number(weight, "weights")

    def mean_accuracy(weight: float) -> float:
        accuracies = [match_quadratic(*pair, weight=weight, similarity=similarity).accuracy for pair in sets]
        return round(math.fsum(accuracies) / len(accuracies), 12)  # 0.1 + 0.3 and 0.2 + 0.2 are a tie

    return float(max(sorted(weights), key=mean_accuracy))


def _on_cpu(z_a: Tensor, z_b: Tensor, similarity: Similarity) -> tuple[Tensor, Tensor]:
    check_embeddings(z_a, z_b)
    check_similarity(similarity)
    moved = tuple(z.detach().to("cpu", torch.float64) for z in (z_a, z_b))
    for z, name in zip(moved, ("z_a", "z_b"), strict=True):
        check_floating(z, name)  # the values of an accelerator's tensor have not been looked at yet
    return moved[0], moved[1]


def _random_order(n: int, seed: int = 0, key: int = 0) -> Ints:
    """A permutation [N] by SeedSequence alone, which numpy promises never to change."""
    words = np.random.SeedSequence(seed, spawn_key=(key,)).generate_state(n, np.uint64)
    return np.argsort(words, kind="stable")


def _rounding(costs: Floats) -> float:
    """Costs that differ by no more than this are equal."""
    return ROUNDING * float(max(costs.max(), -costs.min()))


def _accuracy(p: Ints) -> float:
    return float((p == np.arange(len(p))).mean())


def _gap(cost: float, best: float) -> float:
    if cost <= best:  # less by rounding only
        return 0.0
    return (cost - best) / abs(best) if best else math.inf


def _cheapest(costs: Floats) -> Ints:
    """The column of each row [N] in the cheapest assignment."""
    order = _random_order(len(costs))
    shuffled = costs[:, order]
    # What a column costs every row changes no choice. Without it the solver has half the work: it would take columns
    # that are near to everything, and give them back.
    shuffled -= (shuffled - shuffled.min(1, keepdims=True)).min(0)
    cheapest: Ints = order[solve_linear(torch.from_numpy(shuffled)).numpy()]
    return cheapest


def _greedy(costs: Floats) -> Ints:
    """The column of each row [N] where the closest pair of what is left is taken, again and again.

    A pair that is nearest for both its row and its column is taken before any other pair of either, so all such pairs
    are taken at once. Of equal ones the first row is taken, and for it the first column; then at least one pair is.
    """
    n = len(costs)
    assignment = np.empty(n, dtype=np.int64)
    rows, columns = np.arange(n), _random_order(n)
    left = costs[:, columns]
    while len(rows):
        nearest = left.argmin(1)
        mutual = left.argmin(0)[nearest] == np.arange(len(rows))
        assignment[rows[mutual]] = columns[nearest[mutual]]
        free = np.ones(len(columns), dtype=bool)
        free[nearest[mutual]] = False
        rows, columns, left = rows[~mutual], columns[free], left[~mutual].compress(free, 1)
    return assignment


def _pairs(s: Tensor) -> Tensor:
    """``s`` [N, N] between different items, about its mean: for permutations the same problem but for a constant.

    Frank-Wolfe sees the difference. With the diagonal as it is, every row is nearest to itself, the objective is
    convex and all its first-order steps lead back to the start.
    """
    n = len(s)
    pairs = (s + s.mT) / 2 - (s.sum() - s.trace()) / (n * (n - 1))
    return pairs.fill_diagonal_(0)


def _margin(costs: Floats, p: Ints) -> float:
    """What the cheapest assignment but ``p``, the cheapest, costs more: its cheapest alternating cycle."""
    n = len(costs)
    if n == 1:
        return math.inf
    equal = _rounding(costs)
    # An arc from i to k gives row i the column of row k. No cycle is negative, or p would not be the cheapest.
    arcs = costs[:, p]
    arcs -= arcs.diagonal()[:, None].copy()
    # Bellman and Ford: with the shortest way to each row as its potential no arc is negative, and cycles stay as long.
    potential = np.zeros(n)
    for _ in range(n):
        shorter = (arcs + potential[:, None]).min(0)
        done = (potential - shorter).max() <= equal
        potential = shorter
        if done:
            break
    arcs = np.maximum(arcs + potential[:, None] - potential, 0)
    np.fill_diagonal(arcs, np.inf)
    shortest = float((arcs + arcs.T).min())
    # Only arcs shorter than the best swap of two can be part of a shorter cycle: few.
    start, end = np.nonzero(arcs < shortest)
    if len(start):
        from scipy.sparse import csr_array  # here, like scipy.optimize: slow to import
        from scipy.sparse.csgraph import dijkstra

        lengths = arcs[start, end]
        back = dijkstra(csr_array((lengths, (start, end)), shape=(n, n)), limit=shortest)
        shortest = min(shortest, float((lengths + back[end, start]).min()))
    return shortest if shortest > equal else 0.0
