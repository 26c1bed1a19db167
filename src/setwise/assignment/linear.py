"""The linear assignment problem, Eq. (2), and what share of it comes out right."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from setwise.checks import check_embeddings, check_matrix
from setwise.kernels.assign import best_inside
from setwise.similarity import Similarity, check_similarity, scores


def best_columns(cost: NDArray[Any], *, maximize: bool = False) -> NDArray[np.int64]:
    """The column of each row of one problem [N, M], N <= M, in numpy."""
    from scipy.optimize import linear_sum_assignment  # here: its import takes a third of torch's

    columns: NDArray[np.int64] = linear_sum_assignment(cost, maximize=maximize)[1]
    return columns


def solve_linear(cost: Tensor, *, maximize: bool = False) -> Tensor:
    r"""Best one-to-one assignment of rows to columns, Eq. (2).

        y(S) = argmin_{Y in Pi} tr(S Y^T)

    ``cost`` is [..., N, M] with N <= M: every row gets a column of its own, M - N columns stay free.
    A cost of +inf forbids a pair; with ``maximize`` -inf does.
    Returns the column of each row, a LongTensor [..., N] on the device of ``cost``.
    Exact, O(N^2 M), by scipy on the CPU, one problem after the other.

    Examples:
        >>> cost = torch.tensor([[4.0, 1.0, 3.0], [2.0, 0.0, 5.0], [3.0, 2.0, 2.0]])
        >>> sw.assignment.solve_linear(cost)  # 1 + 2 + 2 = 5 is the least sum
        tensor([1, 0, 2])
    """
    forbidden = -math.inf if maximize else math.inf
    check_matrix(cost, "cost", forbidden=forbidden)
    *batch, n, m = cost.shape
    if n > m:
        raise ValueError(f"expected cost with at least as many columns as rows, got {(n, m)}; pass cost.mT")
    problems = cost.detach().reshape(-1, n, m).to("cpu", torch.float64).numpy()
    columns = torch.empty(len(problems), n, dtype=torch.long, device="cpu")
    for k, problem in enumerate(problems):
        try:
            columns[k] = torch.from_numpy(best_columns(problem, maximize=maximize))
        except ValueError as error:
            which = f"cost, problem {k}," if batch else "cost"
            raise ValueError(f"expected {which} {_refusal(problem, forbidden)}") from error
    return columns.reshape(*batch, n).to(cost.device)


def columns_on_device(theta: Tensor) -> Tensor:
    """The column of each row of θ [N, M], N <= M, in the assignment of the largest sum; a GPU is not waited for."""
    one_set = [torch.zeros(size, dtype=torch.int64, device=theta.device) for size in theta.shape]
    found = best_inside(theta, *one_set) if theta.is_cuda else None
    return solve_linear(theta, maximize=True) if found is None else found[0]


def _refusal(cost: NDArray[Any], forbidden: float) -> str:
    """Why there is no best assignment of one problem."""
    if not (np.isfinite(cost) | (cost == forbidden)).all():  # on an accelerator, or compiled: not checked before
        return f"to be finite or {forbidden}, got NaN or {-forbidden}; look for an overflow before it"
    empty = (cost == forbidden).all(1).nonzero()[0].tolist()
    got = f"row {empty[0]} with every pair forbidden" if empty else "rows that share too few allowed columns"
    return f"to allow an assignment, got {got}; allow more pairs"


def matching_accuracy(
    z_a: Tensor, z_b: Tensor, *, labels: Tensor | None = None, similarity: Similarity = "euclidean"
) -> float:
    """Share of rows that the best assignment between the two sets puts on their true partner, in [0, 1].

    ``z_a``, ``z_b`` [N, E] are the two views of the same N items in the same order. The paper calls this the mean
    Hamming distance to the true assignment; it is one minus that. With ``labels`` [N], rows of one label are each
    other's partners. Ties know nothing of the truth: the columns are
    searched in a fixed random order, so that an encoder that maps all items to one point gets about 1/N right.

    Examples:
        >>> z = torch.eye(4)
        >>> sw.matching_accuracy(z, z), sw.matching_accuracy(z, z[[1, 0, 2, 3]])
        (1.0, 0.5)
    """
    check_embeddings(z_a, z_b)
    check_similarity(similarity)
    # On the CPU, where the generator is, also with torch.set_default_device.
    order = torch.randperm(len(z_b), generator=torch.Generator().manual_seed(0), device="cpu").to(z_b.device)
    partner = order[solve_linear(scores(z_a, z_b[order], similarity=similarity), maximize=True)]
    own = torch.arange(len(partner), device=partner.device) if labels is None else labels.to(partner.device)
    return (own[partner] == own).double().mean().item()
