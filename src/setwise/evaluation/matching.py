"""Instance matching: how well the items of two sets find their partners, by linear and by quadratic assignment.

A cost is minus a score of ``setwise.similarity``: the distance itself for Euclidean measures, minus the similarity
for cosine. Everything is computed in float64 on the CPU, without gradients.

Ties never help. Assignments take the columns in a fixed random order: an encoder that maps all items to one point gets
about 1/N right, not all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from setwise.assignment import quadratic_objective, solve_quadratic
from setwise.assignment.quadratic import structure_of
from setwise.checks import check_number, imported, see
from setwise.evaluation.costs import (
    cheapest,
    cheapest_first,
    far_beyond,
    margin_of,
    random_order,
    relative_gap,
    rounding_of,
    total_cost,
)
from setwise.evaluation.ranks import (
    Array,
    Bools,
    Floats,
    Ints,
    Known,
    Names,
    Truth,
    blocks_of_rows,
    known_truth,
    on_cpu,
    rank_rows,
)
from setwise.similarity import Similarity, scores

WEIGHTS = (0.0, 1.0, 4.0, 16.0, 64.0)  # of unit vectors: below 1 hardly a match changes, above 64 only structure counts


@dataclass(frozen=True, eq=False, repr=False)
class Matching:
    """How a set of N items is matched to one of M. What needs the truth is None where that is not known.

    ``assignment``              the column of each row in the cheapest assignment, or -1; a LongTensor [N], CPU
    ``cost``                    its total cost, with the price of each row that it leaves alone
    ``accuracy``                share of rows that are right: on a true partner, or alone where there is none
    ``precision``               share of its pairs that are right; None without pairs
    ``recall``                  its right pairs, of the most that a one-to-one assignment can have
    ``correct``                 which rows are right; a bool tensor [N]
    ``greedy_assignment``       the same where, again and again, the closest pair of what is left is taken
    ``greedy_accuracy``         its share of rows that are right
    ``greedy_gap``              (its cost - ``cost``) / abs(``cost``) >= 0; 0 if equal, inf if only ``cost`` is 0, None
                                if it has fewer pairs and rows left alone have no price
    ``rank``                    {k: share of queries with a true partner among the k nearest columns}, the CMC curve
    ``mean_average_precision``  mean over queries, of the precision at each true partner
    ``queries``                 how many rows have a true partner: the others have no rank
    ``costs``                   all costs [N, M], float64, CPU; inf for pairs that are forbidden, left out or below the
                                threshold
    ``price``                   of a row that is left alone, or None

    For ranks each row chooses among all columns on its own, and columns as near as the true one count as nearer.
    """

    assignment: Tensor
    cost: float
    accuracy: Known
    precision: Known
    recall: Known
    correct: Tensor | Any
    greedy_assignment: Tensor
    greedy_accuracy: Known
    greedy_gap: Known
    rank: dict[int, float] | Any
    mean_average_precision: Known
    queries: int | Any
    costs: Tensor
    price: float | None

    @cached_property
    def margin(self) -> float:
        """How much more the second-best assignment costs than the best: 0 where the best is not unique (to rounding).

        Exact; infinite where there is no other. Without a price, only assignments with as many pairs count. Computed
        from shortest paths when first used: 0.02 to 0.08 s for N = 1,000.
        """
        return margin_of(self.costs.numpy(), self.assignment.numpy(), self.price)

    @cached_property
    def margins(self) -> Tensor:
        """How much more each row's nearest other column costs than the one it got, [N]; NaN for a row without one.

        Negative where the row had to leave a nearer column to another row.
        """
        return _margins(self.costs, self.assignment)

    def __repr__(self) -> str:
        """The sizes, the pairs, and what is known of them."""
        pairs = int((self.assignment >= 0).sum())
        shown: dict[str, Known] = {"cost": self.cost, "accuracy": self.accuracy}
        shown |= {"precision": self.precision, "recall": self.recall}
        shown |= {"rank1": (self.rank or {}).get(1), "mAP": self.mean_average_precision}
        known = "".join(f", {name}={round(x, 4)}" for name, x in shown.items() if x is not None)
        return f"Matching({pairs} pairs of {len(self.costs)} x {self.costs.shape[1]}{known})"

    def to_dataframe(self) -> Any:
        """A pandas DataFrame, one line a row: ``column`` (-1 for none), ``cost``, ``margin``, and ``correct`` if known.

        A row without a column has cost and margin NaN. It needs the package pandas.
        """
        return _dataframe(self.costs, self.assignment, self.correct)


@dataclass(frozen=True, eq=False)
class QuadraticMatching:
    """How two sets are matched by the costs of their items and by the structure within each set.

    ``assignment``, ``accuracy``, ``precision``, ``recall``, ``correct`` and ``costs`` are those of :class:`Matching`;
    ``objective`` is what the assignment reaches. ``linear_accuracy`` and ``linear_objective`` are the same for the
    cheapest assignment, Eq. (2), whose objective is never higher.
    """

    assignment: Tensor = field(repr=False)
    accuracy: Known
    precision: Known
    recall: Known
    correct: Tensor | Any = field(repr=False)
    objective: float
    linear_accuracy: Known
    linear_objective: float
    costs: Tensor = field(repr=False)

    def to_dataframe(self) -> Any:
        """The table of :meth:`Matching.to_dataframe`."""
        return _dataframe(self.costs, self.assignment, self.correct)


def match(
    z_a: Array,
    z_b: Array,
    *,
    ids_a: Names | None = None,
    ids_b: Names | None = None,
    cameras_a: Names | None = None,
    cameras_b: Names | None = None,
    forbidden: Array | None = None,
    price: float | None = None,
    threshold: float | None = None,
    similarity: Similarity = "euclidean",
) -> Matching:
    r"""Match two sets one to one by their costs alone, Eq. (2), and say how many rows come out right.

        min_{Y in Pi} tr(C Y^T),    C = -scores
        min over partial Y of tr(C Y^T) + price * (rows without a column)        with ``price``

    ``z_a`` [N, E] and ``z_b`` [M, E] are tensors, on any device, or numpy arrays. The N rows are the queries of
    re-identification and the M columns its gallery. The smaller set is matched as a whole, unless

    - ``forbidden``, a bool mask [N, M], excludes pairs: then as many rows as possible get a column. For ranks such
      pairs come last;
    - ``price``, in units of the costs, is what a row without a column costs. No pair that costs as much is made. It is
      exact: min(C - price, 0) is solved, where a pair of cost 0 is none. For cosine, -0.5 asks for a similarity of 0.5;
    - ``threshold``, in units of the scores, is the least score of a pair: 0.5 asks for a similarity of 0.5, or, where
      scores are minus distances, -2.0 for a distance of 2. As many rows as possible get such a column, where a price
      would rather leave one alone than take two poor pairs for one good. Ranks do not know it.

    ``ids_a`` and ``ids_b``, integers or strings, say who is who; any number of rows and columns may share an identity.
    Without them row i of both is the same item if N = M, and nothing is known otherwise. ``cameras_a`` and
    ``cameras_b`` leave out, of each row, the columns of the same identity and the same camera, as Market-1501's
    protocol does: neither assigned, nor counted in ranks, nor true.

    Exact, O(N^3) at worst: N = 1,000, E = 64 takes 0.09 s on one core where most rows come out right, 0.13 s where none
    do. It needs up to three matrices of N x M float64; :func:`match_ranks` gives the ranks alone, by blocks.

    Examples:
        >>> a = torch.tensor([[0.0], [1.0], [2.0]])
        >>> found = sw.match(a, torch.tensor([[0.1], [2.1], [1.2]]))  # the second and third are confused
        >>> found.assignment, round(found.accuracy, 2), found.margin
        (tensor([0, 2, 1]), 0.33, 1.5999999046325684)
        >>> gallery = torch.tensor([[9.0], [0.1], [2.0]])
        >>> sw.match(a, gallery, ids_a=["ann", "bob", "cy"], ids_b=["dan", "ann", "cy"], price=0.5)
        Matching(2 pairs of 3 x 3, cost=0.6, accuracy=1.0, precision=1.0, recall=1.0, rank1=1.0, mAP=1.0)
    """
    z_a, z_b = on_cpu(z_a, z_b, similarity)
    n, m = len(z_a), len(z_b)
    truth = known_truth(n, m, ids_a, ids_b, cameras_a, cameras_b)
    _check_none(price, threshold)
    costs, equal = _allowed_costs(z_a, z_b, truth, forbidden, similarity)
    ranked = (
        None
        if truth is None
        else rank_rows(((rows, costs[rows].copy()) for rows in blocks_of_rows(n, m)), truth, equal)
    )
    _exclude_below(costs, threshold)
    best, greedy = cheapest(costs, price), cheapest_first(costs, price)
    cost, greedy_cost = (total_cost(costs, p, price) for p in (best, greedy))
    comparable = price is not None or (best < 0).sum() == (greedy < 0).sum()
    judged, greedy_judged = (_judge(truth, None if ranked is None else ranked.first > 0, p) for p in (best, greedy))
    return Matching(
        assignment=torch.from_numpy(best),
        cost=cost,
        accuracy=judged.accuracy,
        precision=judged.precision,
        recall=judged.recall,
        correct=judged.correct,
        greedy_assignment=torch.from_numpy(greedy),
        greedy_accuracy=greedy_judged.accuracy,
        greedy_gap=relative_gap(greedy_cost, cost) if comparable else None,
        rank=None if ranked is None else ranked.curve(),
        mean_average_precision=None if ranked is None else ranked.mean(),
        queries=None if ranked is None else ranked.queries(),
        costs=torch.from_numpy(costs),
        price=None if price is None else float(price),
    )


def match_quadratic(
    z_a: Array,
    z_b: Array,
    *,
    weight: float,
    ids_a: Names | None = None,
    ids_b: Names | None = None,
    cameras_a: Names | None = None,
    cameras_b: Names | None = None,
    forbidden: Array | None = None,
    price: float | None = None,
    threshold: float | None = None,
    similarity: Similarity = "euclidean",
) -> QuadraticMatching:
    r"""Match two sets by their items and by their structure, Eq. (5) in the direction that is consistent.

        max_{Y in Pi} tr(S Y^T) + weight / N · tr(S_A Y S_B^T Y^T)
        max over partial Y of tr(S Y^T) + weight / N · tr(S'_A Y S'_B^T Y^T) - price * (rows without a column)

    All three matrices are scores, S = S_AB; for distances that is to minimise tr(D Y^T) - weight / N · tr(D_A Y D_B^T
    Y^T). Eq. (5) as printed minimises both terms over distances, which sends near pairs to far ones; that is a
    negative ``weight`` here. The 1/N keeps the two terms in proportion as sets grow. Cosine has no unit; for
    Euclidean distances a weight counts in 1 / distance, so scaling both sets by t needs weight / t.

    All other options are those of :func:`match`. Where sets differ in size, or a price, a threshold, cameras or
    forbidden pairs may leave rows alone, the second line is solved, for the smaller of both sizes as N. S'_A and S'_B
    are S_A and S_B between different items, about their means: two pairs gain where the items are nearer than usual in
    both sets, or farther in both. (Without that, items to spare would be chosen for being near each other.) If all rows
    and columns are matched, both lines are the same problem. Most pairs gain a little, so the larger ``weight`` is, the
    fewer rows stay alone.

    A heuristic, Frank-Wolfe from the linear optimum and then swaps of two: the objective is never below the linear
    optimum's, and weight 0 is the linear optimum. N = 220 takes about 0.02 s on one core (0.1 s for a negative weight),
    N = 1,500 2 to 5 s. Where a price, a threshold, cameras or a mask may leave rows alone, the problem
    has N + M rows: N = M = 220 takes 0.07 s, 500 0.6 s.

    Examples:
        >>> from setwise.evaluation import match_quadratic
        >>> a = torch.tensor([[0.0], [1.0], [3.0]])
        >>> b = 3 - a  # mirrored: pairs alone are wrong, distances within the sets are the same
        >>> round(sw.match(a, b).accuracy, 2), match_quadratic(a, b, weight=16.0).accuracy
        (0.33, 1.0)
    """
    z_a, z_b = on_cpu(z_a, z_b, similarity)
    check_number(weight, "weight")
    _check_none(price, threshold)
    n, m = len(z_a), len(z_b)
    truth = known_truth(n, m, ids_a, ids_b, cameras_a, cameras_b)
    costs, _ = _allowed_costs(z_a, z_b, truth, forbidden, similarity)
    _exclude_below(costs, threshold)
    linear = assignment = cheapest(costs, price)
    s_a, s_b = (scores(z, z, similarity=similarity) for z in (z_a, z_b))
    share = weight / min(n, m)
    if n == m and price is None and costs.max() < np.inf:
        s = -torch.from_numpy(costs)
        if weight and n > 1:
            own = torch.outer(s_a.diagonal(), s_b.diagonal())
            assignment = _improved(linear, share * structure_of(s_a), structure_of(s_b), s + share * own)

        def objective(p: Ints) -> float:
            return float(quadratic_objective(share * s_a, s_b, torch.from_numpy(p), s))

    else:
        s_a, s_b = share * structure_of(s_a), structure_of(s_b)
        if weight and (linear >= 0).any():
            assignment = _improved_part(linear, s_a, s_b, costs, price)

        def objective(p: Ints) -> float:
            rows = np.nonzero(p >= 0)[0]
            structure = s_a[rows][:, rows] * s_b[p[rows]][:, p[rows]]
            return float(structure.sum()) - total_cost(costs, p, price)

    assignment = max(linear, assignment, key=objective)  # as good to the last digit
    partner = None if truth is None else truth.have_partner()
    judged = _judge(truth, partner, assignment)
    return QuadraticMatching(
        assignment=torch.from_numpy(assignment),
        accuracy=judged.accuracy,
        precision=judged.precision,
        recall=judged.recall,
        correct=judged.correct,
        objective=objective(assignment),
        linear_accuracy=_judge(truth, partner, linear).accuracy,
        linear_objective=objective(linear),
        costs=torch.from_numpy(costs),
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
        if None in accuracies:
            raise ValueError("expected sets (z_a, z_b) of one size, row i of both the same item, got unequal ones")
        return round(math.fsum(accuracies) / len(accuracies), 12)  # 0.1 + 0.3 and 0.2 + 0.2 are a tie

    return float(max(sorted(weights), key=mean_accuracy))


def _check_none(price: float | None, threshold: float | None) -> None:
    for value, name in ((price, "price"), (threshold, "threshold")):
        if value is not None:
            check_number(value, name)


def _allowed_costs(
    z_a: Tensor, z_b: Tensor, truth: Truth | None, forbidden: Array | None, similarity: Similarity
) -> tuple[Floats, float]:
    """All costs [N, M], inf where a pair is forbidden or left out, and the difference of equal ones."""
    n, m = len(z_a), len(z_b)
    costs: Floats = -scores(z_a, z_b, similarity=similarity).numpy()
    equal = rounding_of(costs)
    if forbidden is not None:
        costs[_mask(forbidden, n, m)] = np.inf
    if truth is not None and truth.cameras is not None:
        for rows in blocks_of_rows(n, m):
            costs[rows][truth.left_out(rows)] = np.inf
    return costs, equal


def _exclude_below(costs: Floats, threshold: float | None) -> None:
    if threshold is not None:
        costs[costs > -threshold] = np.inf


class _Judged(NamedTuple):
    """Which rows of an assignment are right, and the shares that :class:`Matching` explains; None if not known."""

    correct: Tensor | None = None
    accuracy: Known = None
    precision: Known = None
    recall: Known = None


def _judge(truth: Truth | None, partner: Bools | None, p: Ints) -> _Judged:
    """``partner``: which rows have a true partner."""
    if truth is None or partner is None:
        return _Judged()
    correct = np.where(p < 0, ~partner, truth.same(p))
    right, pairs, most = int(truth.same(p).sum()), int((p >= 0).sum()), truth.most_pairs()
    shares = (right / pairs if pairs else None, right / most if most else None)
    return _Judged(torch.from_numpy(correct), float(correct.mean()), *shares)


def _margins(costs: Tensor, assignment: Tensor) -> Tensor:
    costs, p = costs.clone(), assignment[:, None].clamp_min(0)
    own = costs.gather(1, p)
    others = costs.scatter_(1, p, math.inf).amin(1)
    return torch.where(assignment < 0, math.nan, others - own[:, 0])


def _dataframe(costs: Tensor, assignment: Tensor, correct: Tensor | None) -> Any:
    pandas = imported("pandas", "pandas", see("how-to/your-data#re-identification"))
    cost = torch.where(assignment < 0, math.nan, costs.gather(1, assignment[:, None].clamp_min(0))[:, 0])
    table = {"column": assignment, "cost": cost, "margin": _margins(costs, assignment)}
    if correct is not None:
        table["correct"] = correct
    return pandas.DataFrame({name: x.numpy() for name, x in table.items()})


def _mask(forbidden: Array, n: int, m: int) -> Bools:
    mask = np.asarray(forbidden.detach().cpu() if isinstance(forbidden, Tensor) else forbidden)
    if mask.shape != (n, m) or mask.dtype != np.bool_:
        raise ValueError(f"expected forbidden of shape ({n}, {m}) and dtype bool, got {mask.shape} and {mask.dtype}")
    return mask


def _improved(p: Ints, a: Tensor, b: Tensor, gain: Tensor) -> Ints:
    """A permutation, or the columns of a part of the rows, whose gains and structure are worth no less than p's."""
    order = random_order(len(b))
    place = np.append(np.argsort(order), -1)  # of each column, and of none
    solution = solve_quadratic(
        a, b[order][:, order], gain[:, order], maximize=True, method="faq", initial=torch.from_numpy(place[p])
    )
    improved: Ints = np.append(order, -1)[solution.permutation.numpy()]
    return improved


def _improved_part(p: Ints, a: Tensor, b: Tensor, costs: Floats, price: float | None) -> Ints:
    """The same where rows may be alone: a problem of N + M, in which each row and column has a place of none."""
    n, m = costs.shape
    if price is None and costs.max() < np.inf:  # the smaller set is matched as a whole
        return _improved(p, a, b, -torch.from_numpy(costs))
    # By Cauchy and Schwarz no structure is worth more than this, and no pair adds more to it.
    most, most_of_a_pair = float(a.norm() * b.norm()), float(2 * a.norm(dim=1).max() * b.norm(dim=1).max())
    difference, alone = far_beyond(costs) if price is None else (0.0, price)
    alone = alone + 2 * most if price is None else price  # then as many pairs are made as can be
    gain = np.zeros((n + m, m + n))
    excluded = alone + 2 * most_of_a_pair + max(1.0, difference)
    gain[:n, :m] = -np.where(costs < np.inf, costs, excluded)
    gain[:n, m:] = -alone
    start = np.where(p < 0, m + np.arange(n), p)
    start = np.append(start, np.setdiff1d(np.arange(n + m), start))
    a, b = (functional.pad(x, (0, n + m - len(x)) * 2) for x in (a, b))
    found = _improved(start, a, b, torch.from_numpy(gain))[:n]
    return np.where(found < m, found, -1)
