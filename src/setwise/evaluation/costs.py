"""Assignments of one matrix of costs [N, M]: the cheapest, a greedy one, and how much the next best costs more.

Rows may stay alone at a price; costs of inf are pairs that may not be. Columns are taken in a fixed random order, so
that ties help nobody.
"""

from __future__ import annotations

import math

import numpy as np

from setwise.assignment.linear import best_columns
from setwise.evaluation.ranks import ROUNDING, Floats, Ints, blocks_of_rows


def random_order(n: int) -> Ints:
    """A permutation [N] by SeedSequence alone, which numpy promises never to change."""
    words = np.random.SeedSequence(0, spawn_key=(0,)).generate_state(n, np.uint64)
    return np.argsort(words, kind="stable")


def rounding_of(costs: Floats) -> float:
    """Costs that differ by no more than this are equal."""
    return ROUNDING * float(max(np.max(costs, initial=0, where=costs < np.inf), -costs.min(initial=0)))


def total_cost(costs: Floats, p: Ints, price: float | None) -> float:
    """The cost of the pairs of ``p``, and the price of the rows without one."""
    rows = np.nonzero(p >= 0)[0]
    return math.fsum(costs[rows, p[rows]]) + (price or 0.0) * (len(p) - len(rows))


def relative_gap(cost: float, best: float) -> float:
    if cost <= best:  # less by rounding only
        return 0.0
    return (cost - best) / abs(best) if best else math.inf


def far_beyond(costs: Floats) -> tuple[float, float]:
    """More than two assignments with as many pairs can differ by, and a price at which a pair less costs still more."""
    top, low = float(np.max(costs, initial=-np.inf, where=costs < np.inf)), float(costs.min())
    if low == np.inf:  # there are no pairs
        return math.inf, 0.0
    difference = (min(costs.shape) + 1) * ((top - low) or 1.0)
    return difference, top + 2 * difference


def cheapest(costs: Floats, price: float | None = None) -> Ints:
    """The column of each row [N] in the cheapest assignment, -1 for none."""
    n, m = costs.shape
    order = random_order(m)
    shuffled = costs[:, order]
    if price is None and costs.max() == np.inf:
        price = far_beyond(costs)[1]
    if price is not None:  # a pair of cost 0 is none
        shuffled -= price
        np.minimum(shuffled, 0, out=shuffled)
    elif n == m:
        # What a column costs every row changes no choice. Without it the solver has half the work: it would take
        # columns that are near to everything, and give them back.
        block_minima = [(x - x.min(1, keepdims=True)).min(0) for x in (shuffled[rows] for rows in blocks_of_rows(n, m))]
        shuffled -= np.min(block_minima, 0)
    if n <= m:
        chosen = best_columns(shuffled)
    else:
        chosen = np.full(n, -1)
        chosen[best_columns(shuffled.T)] = np.arange(m)
    if price is not None:
        chosen = np.where(shuffled[np.arange(n), chosen] < 0, chosen, -1)
    cheapest: Ints = np.where(chosen < 0, -1, order[chosen])
    return cheapest


def cheapest_first(costs: Floats, price: float | None = None) -> Ints:
    """The column of each row [N] where the closest pair of what is left is taken, again and again; -1 for none.

    A pair that is nearest for both its row and its column is taken before any other pair of either, so all such pairs
    are taken at once. Of equal ones the first row is taken, and for it the first column; then at least one pair is,
    unless all that are left cost the price or are forbidden.
    """
    n, m = costs.shape
    limit = np.inf if price is None else price
    assignment = np.full(n, -1)
    rows, columns = np.arange(n), random_order(m)
    left = costs[:, columns]
    while left.size:
        nearest = left.argmin(1)
        mutual = left.argmin(0)[nearest] == np.arange(len(rows))
        mutual &= left[np.arange(len(rows)), nearest] < limit
        if not mutual.any():
            break
        assignment[rows[mutual]] = columns[nearest[mutual]]
        free = np.ones(len(columns), dtype=bool)
        free[nearest[mutual]] = False
        rows, columns, left = rows[~mutual], columns[free], left[np.ix_(~mutual, free)]
    return assignment


def margin_of(costs: Floats, p: Ints, price: float | None = None) -> float:
    """What the cheapest assignment but ``p``, the cheapest, costs more: its cheapest alternating cycle."""
    n, m = costs.shape
    equal = rounding_of(costs)
    # An arc from i to k gives row i the column of row k. No cycle is negative, or p would not be the cheapest.
    if n == m and price is None and (p >= 0).all():
        arcs = costs[:, p]
        arcs -= arcs.diagonal()[:, None].copy()
        beyond = math.inf
    else:
        beyond, paid = far_beyond(costs) if price is None else (math.inf, price)
        arcs = _arcs_of_a_part(costs, p, paid)
        equal = max(equal, 1e-15 * abs(paid))
    # Bellman and Ford: with the shortest way to each row as its potential no arc is negative, and cycles stay as long.
    potential = np.zeros(len(arcs))
    for _ in range(len(arcs)):
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
        back = dijkstra(csr_array((lengths, (start, end)), shape=arcs.shape), limit=shortest)
        shortest = min(shortest, float((lengths + back[end, start]).min()))
    if shortest >= beyond:
        return math.inf
    return shortest if shortest > equal else 0.0


def _arcs_of_a_part(costs: Floats, p: Ints, price: float) -> Floats:
    """Arcs [N + 1, N + 1] where rows or columns may be without a partner.

    The last node stands for what is free. An arc to it gives a row the nearest free column, or none, for the price.
    An arc from it to a row frees what this row has.
    """
    n, m = costs.shape
    matched = p >= 0
    free = np.ones(m, dtype=bool)
    free[p[matched]] = False
    own = np.where(matched, costs[np.arange(n), p], price)
    arcs = np.full((n + 1, n + 1), np.inf)
    arcs[:n, :n][:, matched] = costs[:, p[matched]] - own[:, None]
    nearest_free = np.min(costs, 1, initial=np.inf, where=free)
    arcs[:n, n] = np.minimum(nearest_free, np.where(matched, price, np.inf)) - own
    arcs[n, :n] = 0
    np.fill_diagonal(arcs, 0)
    return arcs
