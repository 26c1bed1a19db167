"""The grid of assignment losses: the propositions, brute-force oracles, properties and gradients."""

import math
from itertools import permutations

import entmax
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import setwise as sw
from setwise.losses.functional import score_assignment_loss

CELLS = [
    *(("batch-hard", smoothing) for smoothing in ("none", "entropy", "sparse")),
    *(("one-to-one", smoothing) for smoothing in ("none", "entropy", "sinkhorn", "sparse", "sparsemap")),
]


def distances(seed: int, n: int = 5) -> Tensor:
    return torch.rand(n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# Proposition 1 and 2


@given(seed=st.integers(0, 10_000), n=st.integers(1, 8), margin=st.floats(0, 2))
@settings(max_examples=60)
def test_proposition_1_row_wise_is_the_batch_hard_triplet_loss(seed, n, margin):
    d = distances(seed, n)
    hardest = [min((d[i, j].item() for j in range(n) if j != i), default=math.inf) for i in range(n)]
    triplet = sum(max(0.0, margin + d[i, i].item() - hardest[i]) for i in range(n))
    got = score_assignment_loss(-d, margin=margin, reduction="sum")
    assert got.item() == pytest.approx(triplet, abs=1e-12)
    one_to_one = score_assignment_loss(-d, mining="one-to-one", margin=margin, reduction="sum")
    assert one_to_one.item() <= triplet + 1e-12


def test_proposition_1_fails_one_to_one():
    d = torch.tensor([[1.0, 0.5], [10.0, 1.0]])
    assert score_assignment_loss(-d, margin=0.2, reduction="sum").item() == pytest.approx(0.7)
    assert score_assignment_loss(-d, mining="one-to-one", margin=0.2, reduction="sum").item() == 0


@pytest.mark.parametrize("temperature", [0.05, 0.5, 2.0])
def test_proposition_2_row_wise_entropic_is_cross_entropy(views, temperature):
    z_a, z_b = views(7, 5)
    s = F.cosine_similarity(z_a[:, None], z_b[None], dim=-1)
    cross_entropy = F.cross_entropy(s / temperature, torch.arange(7))
    torch.testing.assert_close(sw.InfoNCE(temperature=temperature)(z_a, z_b), cross_entropy)
    options = {"smoothing": "entropy", "temperature": temperature, "similarity": "cosine"}
    torch.testing.assert_close(sw.AssignmentLoss(**options)(z_a, z_b), cross_entropy)
    equation = sw.AssignmentLoss(**options, reduction="sum")(z_a, z_b)  # Eq. (13) = τ N cross-entropy
    torch.testing.assert_close(equation, temperature * 7 * cross_entropy)


# Oracles: the printed equation of every cell by enumeration, on a distance S with Y_gt = identity


def oracle(d: Tensor, mining: str, smoothing: str, tau: float) -> Tensor:
    n = len(d)
    if mining == "batch-hard":
        rows = {
            "none": lambda: -d.amin(1),
            "entropy": lambda: tau * torch.logsumexp(-d / tau, 1),
            "sparse": lambda: tau * entmax.sparsemax_loss(-d / tau, torch.arange(n)) - d.diagonal(),
        }[smoothing]()
        return d.trace() + rows.sum()
    costs = torch.stack([d[range(n), list(p)].sum() for p in permutations(range(n))])
    if smoothing == "none":
        return d.trace() - costs.min()
    if smoothing == "entropy":
        return d.trace() + tau * torch.logsumexp(-costs / tau, 0)
    # The identity is the first permutation; entmax adds ½ and takes the target off.
    return tau * entmax.sparsemax_loss(-costs[None] / tau, torch.tensor([0]))[0]


@pytest.mark.parametrize("temperature", [1.0, 0.2])
@pytest.mark.parametrize(("mining", "smoothing"), [cell for cell in CELLS if cell[1] not in ("sinkhorn", "sparsemap")])
def test_cells_equal_their_enumeration(mining, smoothing, temperature):
    if smoothing == "none":
        temperature = 1.0
    for seed in range(5):
        d = distances(seed, 4).requires_grad_()
        expected = oracle(d, mining, smoothing, temperature)
        got = score_assignment_loss(-d, mining=mining, smoothing=smoothing, temperature=temperature, reduction="sum")
        torch.testing.assert_close(got, expected)
        torch.testing.assert_close(*(torch.autograd.grad(x, d)[0] for x in (got, expected)))
        mean = score_assignment_loss(-d, mining=mining, smoothing=smoothing, temperature=temperature)
        torch.testing.assert_close(mean, expected / (4 * temperature))


def test_relaxations_lie_above_one_to_one_and_below_nothing():
    # "sinkhorn" and "sparsemap" have their own oracles in tests/assignment/test_smoothing.py; here, their order.
    for seed in range(10):
        d = distances(seed, 5)
        loss = {(m, s): score_assignment_loss(-d, mining=m, smoothing=s, reduction="sum").item() for m, s in CELLS}
        assert loss["one-to-one", "none"] <= loss["batch-hard", "none"] + 1e-12
        assert loss["one-to-one", "entropy"] <= loss["one-to-one", "sinkhorn"] + 1e-12
        assert loss["one-to-one", "sinkhorn"] <= loss["batch-hard", "entropy"] + 1e-9  # a smaller domain
        assert loss["one-to-one", "sparsemap"] <= loss["batch-hard", "sparse"] + 1e-9
        assert min(loss.values()) >= 0


def test_the_printed_sign_of_eq_14_makes_collapse_a_minimum_and_ours_does_not():
    collapsed, spread = torch.zeros(4, 4), 3 * (1 - torch.eye(4))

    def printed(d: Tensor) -> float:
        return (d.trace() - (entmax.sparsemax_loss(-d, torch.arange(4)) - d.diagonal() - 0.5).sum()).item()

    def ours(d: Tensor) -> float:
        return score_assignment_loss(-d, smoothing="sparse", reduction="sum").item()

    assert printed(collapsed) < printed(spread)
    assert ours(collapsed) > ours(spread) == 0


@pytest.mark.parametrize(("mining", "smoothing"), [*CELLS[:3], ("one-to-one", "none")])
def test_extra_negatives_are_further_columns(views, mining, smoothing):
    z_a, z_b = views(5, 3)
    extra = views(4, 3, seed=9)[0].detach()
    got = sw.AssignmentLoss(mining=mining, smoothing=smoothing)(z_a, z_b, extra)
    d = torch.cdist(z_a, torch.cat([z_b, extra]))
    torch.testing.assert_close(got, score_assignment_loss(-d, mining=mining, smoothing=smoothing))
    assert got >= sw.AssignmentLoss(mining=mining, smoothing=smoothing)(z_a, z_b)


def test_symmetric_is_the_mean_of_both_directions(views):
    z_a, z_b = views(6, 4)
    for mining, smoothing in CELLS:
        loss = sw.AssignmentLoss(mining=mining, smoothing=smoothing)
        both = sw.AssignmentLoss(mining=mining, smoothing=smoothing, symmetric=True)(z_a, z_b)
        torch.testing.assert_close(both, (loss(z_a, z_b) + loss(z_b, z_a)) / 2)
        if mining == "one-to-one":
            torch.testing.assert_close(both, loss(z_a, z_b))
