"""The best permutation of a small quadratic assignment problem, proven: branch and bound with Gilmore-Lawler bounds."""

from __future__ import annotations

import numpy as np

from setwise.assignment.heuristics import ROUNDING, Floats, Ints, objectives, scale
from setwise.assignment.linear import best_columns

CHUNK = 4096  # nodes of the search tree handled together: enough to hide Python, little memory


def branch_and_bound(a: Floats, b: Floats, linear: Floats, best: Ints) -> Ints:
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
    rounding = ROUNDING * scale(a, b, linear)
    limit = float(objectives(a, b, linear, best[None])[0]) - rounding

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
    permutation = np.empty_like(best)
    permutation[order] = best
    return permutation


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
