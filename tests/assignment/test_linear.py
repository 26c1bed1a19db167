"""Eq. (2) against enumeration."""

import math
from itertools import permutations

import pytest
import torch

import setwise as sw


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (3, 3), (5, 5), (3, 5)])
@pytest.mark.parametrize("forbidden", [0.0, 0.4])
def test_solve_linear_equals_enumeration(shape, maximize, forbidden):
    generator = torch.Generator().manual_seed(1)
    cost = torch.randn(4, 2, *shape, generator=generator, dtype=torch.float64)
    cost[torch.rand(cost.shape, generator=generator) < forbidden] = -math.inf if maximize else math.inf
    # At least one assignment is left.
    cost[..., range(shape[0]), range(shape[0])] = cost.nan_to_num(1.0, 1.0, 1.0).diagonal(dim1=-2, dim2=-1)
    found = sw.assignment.solve_linear(cost, maximize=maximize)
    assert found.shape == (4, 2, shape[0])
    assert found.dtype == torch.long
    for matrix, columns in zip(cost.flatten(0, 1), found.flatten(0, 1), strict=True):
        totals = [sum(matrix[i, j] for i, j in enumerate(p)) for p in permutations(range(shape[1]), shape[0])]
        best = max(totals) if maximize else min(totals)
        torch.testing.assert_close(matrix[torch.arange(shape[0]), columns].sum(), best)


@pytest.mark.parametrize("maximize", [False, True])
def test_costs_that_allow_no_assignment(maximize):
    no = -math.inf if maximize else math.inf
    with pytest.raises(ValueError, match="row 1 with every pair forbidden"):
        sw.assignment.solve_linear(torch.tensor([[0.0, 0.0], [no, no]]), maximize=maximize)
    crowded = torch.tensor([[0.0, no, no], [0.0, no, no], [0.0, 0.0, 0.0]])
    with pytest.raises(ValueError, match="cost, problem 1, to allow an assignment, got rows that share too few"):
        sw.assignment.solve_linear(torch.stack([torch.eye(3), crowded]), maximize=maximize)
    with pytest.raises(ValueError, match=f"finite or {no} .*, got 1 NaN or infinite"):
        sw.assignment.solve_linear(torch.tensor([[0.0, -no], [no, 0.0]]), maximize=maximize)


def test_matching_accuracy_counts_true_partners():
    z_a = torch.eye(4)
    assert sw.matching_accuracy(z_a, z_a) == 1.0
    assert sw.matching_accuracy(z_a, z_a[[1, 0, 2, 3]]) == 0.5
    assert sw.matching_accuracy(z_a, z_a[[1, 2, 3, 0]], similarity="cosine") == 0.0
    # Near in place, not in direction.
    a, b = torch.tensor([[1.0, 0.0], [4.0, 1.0]]), torch.tensor([[1.0, 0.9], [4.0, -1.0]])
    assert sw.matching_accuracy(a, b) == 1.0
    assert sw.matching_accuracy(a, b, similarity="cosine") == 0.0
    # One-to-one: row 1 is nearest to column 0 too, but only one of them can have it.
    a, b = torch.tensor([[0.0], [0.4]]), torch.tensor([[0.1], [5.0]])
    assert sw.matching_accuracy(a, b) == 1.0


@pytest.mark.parametrize(
    ("cost", "message"),
    [
        (torch.zeros(3, 2), r"at least as many columns as rows, got \(3, 2\); pass cost.mT"),
        (torch.zeros(2, 2, dtype=torch.long), "floating-point dtype, got torch.int64"),
        (torch.zeros(3), r"expected cost of shape \(\.\.\., N, M\), got \(3,\)"),
        (torch.zeros(0, 0), "at least one row"),
        (torch.tensor([[0.0, math.nan], [1.0, 2.0]]), "1 NaN or infinite of 4 values"),
    ],
)
def test_bad_costs(cost, message):
    with pytest.raises(ValueError, match=message):
        sw.assignment.solve_linear(cost)


def test_the_default_device_does_not_matter():
    z, shifted = torch.eye(4), torch.eye(4).roll(1, 0)
    with torch.device("meta"):  # as torch.set_default_device does; what is made there by mistake has no numbers
        assert sw.matching_accuracy(z, z) == 1.0
        assert sw.assignment.solve_linear(shifted, maximize=True).tolist() == [3, 0, 1, 2]


def test_a_collapsed_encoder_is_not_perfect():
    """All costs are equal: the identity is one optimum of many, and nothing says that it is the true one."""
    z = torch.ones(200, 4)
    assert sw.matching_accuracy(z, z) < 0.05
