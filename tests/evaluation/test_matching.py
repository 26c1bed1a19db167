"""Matching: by hand, against enumeration, scipy and scikit-learn, and where costs are equal."""

import math
import time
from functools import partial
from itertools import permutations
from statistics import median
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment, quadratic_assignment
from scipy.spatial.distance import cdist
from sklearn.metrics import label_ranking_average_precision_score, top_k_accuracy_score
from torch.nn.functional import normalize

from setwise.assignment import quadratic_objective
from setwise.evaluation import matching
from setwise.evaluation.costs import cheapest_first, margin_of, relative_gap
from setwise.evaluation.matching import choose_weight, match, match_quadratic

MEASURES = {
    "euclidean": lambda a, b: cdist(a, b),
    "sqeuclidean": lambda a, b: cdist(a, b, "sqeuclidean"),
    "cosine": lambda a, b: np.nan_to_num(cdist(a, b, "cosine"), nan=1.0) - 1,
}


def pair(n, e=8, *, noise=1.0, seed=0, dtype=torch.float64):
    """Two noisy views of the same items."""
    generator = torch.Generator().manual_seed(seed)
    items, *noises = torch.randn(3, n, e, generator=generator, dtype=torch.float64)
    return torch.stack([items + noise * x for x in noises]).to(dtype)


def turned(n, e=64, *, noise=0.3, angle=1.2, seed=0):
    """Views on the sphere as of two cameras: little noise of their own, but one is turned as a whole."""
    generator = torch.Generator().manual_seed(seed)
    items, *noises = torch.randn(3, n, e, generator=generator, dtype=torch.float64)
    items *= torch.linspace(1, 0.05, e, dtype=torch.float64)
    skew = torch.randn(e, e, generator=generator, dtype=torch.float64)
    rotation = torch.linalg.matrix_exp(angle * (skew - skew.T) / (2 * e) ** 0.5)
    return normalize(items + noise * noises[0]), normalize((items + noise * noises[1]) @ rotation)


def test_by_hand():
    # Costs [[0.9, 2.5], [0.1, 1.5]]: the true assignment costs 2.4, the other one, which begins with 0.1, 2.6.
    found = match(torch.tensor([[0.0], [1.0]]).double(), torch.tensor([[0.9], [2.5]]).double())
    assert (found.assignment.tolist(), found.greedy_assignment.tolist()) == ([0, 1], [1, 0])
    assert found.assignment.dtype == found.greedy_assignment.dtype == torch.long
    assert (found.accuracy, found.greedy_accuracy) == (1.0, 0.0)
    assert found.cost == pytest.approx(2.4)
    assert found.greedy_gap == pytest.approx(0.2 / 2.4)
    assert found.rank == {1: 0.5, 5: 1.0, 10: 1.0}
    assert found.mean_average_precision == 0.75
    assert found.margin == pytest.approx(0.2)


@pytest.mark.parametrize("similarity", MEASURES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_linear_part_as_scipy(similarity, dtype):
    z_a, z_b = pair(60, dtype=dtype)
    found = match(z_a.clone().requires_grad_(), z_b, similarity=similarity)
    costs = MEASURES[similarity](z_a.double().numpy(), z_b.double().numpy())
    np.testing.assert_allclose(found.costs.numpy(), costs, atol=1e-12)
    rows, expected = linear_sum_assignment(costs)
    assert found.assignment.tolist() == expected.tolist()
    assert found.accuracy == np.mean(expected == rows)
    assert 0.2 < found.accuracy < 0.9  # neither trivial nor hopeless
    assert found.cost == pytest.approx(costs[rows, expected].sum())


@pytest.mark.parametrize("similarity", MEASURES)
@pytest.mark.parametrize("points", ["apart", "on a grid of nine"])
def test_ranks_as_scikit_learn(points, similarity):
    z_a, z_b = pair(80, seed=1) if points == "apart" else pair(80, 2, noise=0.3).clamp(-1, 1).round() + 3
    found = match(z_a, z_b, similarity=similarity)
    near = -MEASURES[similarity](z_a.numpy(), z_b.numpy()).round(12)
    # Both count the worst place among equals.
    assert found.mean_average_precision == pytest.approx(label_ranking_average_precision_score(np.eye(80), near))
    worst = [sum(x >= row[i] for x in row) for i, row in enumerate(near)]
    assert found.rank == {k: np.mean([w <= k for w in worst]) for k in (1, 5, 10)}
    if points == "apart":
        assert found.rank == {k: pytest.approx(top_k_accuracy_score(range(80), near, k=k)) for k in (1, 5, 10)}
        assert 0 < found.rank[1] < found.rank[5] < found.rank[10] < 1


@pytest.mark.parametrize("levels", [1, 2, 5, 1000])
def test_greedy_takes_the_closest_pair_of_what_is_left(levels):
    rng = np.random.default_rng(levels)
    for n in (1, 2, 3, 17, 40):
        costs = rng.integers(levels, size=(n, n)).astype(float)
        chosen = cheapest_first(costs)
        left = costs.copy()
        for i in np.argsort(costs[np.arange(n), chosen], kind="stable"):
            assert costs[i, chosen[i]] == left.min()
            left[i], left[:, chosen[i]] = np.inf, np.inf


def test_gap_is_relative_to_the_size_of_the_cost():
    for cost, best, gap in ((3, 2, 0.5), (-1, -2, 0.5), (0, 0, 0), (1, 0, math.inf), (0.3, 0.1 + 0.2, 0)):
        assert relative_gap(cost, best) == gap


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6, 7])
def test_margin_is_enumeration(n):
    rng = np.random.default_rng(n)
    for draw in range(3 if n == 7 else 12):
        costs = rng.integers(-6, 7, size=(n, n)).astype(float) if draw % 3 == 0 else rng.normal(size=(n, n))
        values = sorted((costs[range(n), p].sum(), p) for p in permutations(range(n)))
        assert margin_of(costs, np.array(values[0][1])) == pytest.approx(values[1][0] - values[0][0], abs=1e-12)


@pytest.mark.parametrize("similarity", MEASURES)
@pytest.mark.parametrize("seed", range(3))
def test_margin_is_the_least_loss_when_one_pair_is_forbidden(seed, similarity):
    found = match(*pair(30, seed=seed), similarity=similarity)
    others = []
    for i, j in enumerate(found.assignment.tolist()):
        without = found.costs.numpy().copy()
        without[i, j] = 1e6
        others.append(without[linear_sum_assignment(without)].sum())
    assert 0 < found.margin == pytest.approx(min(others) - found.cost, rel=1e-9)


@pytest.mark.parametrize("similarity", MEASURES)
def test_margin_is_zero_exactly_where_the_best_is_not_unique(similarity):
    z_a, z_b = pair(50, noise=0.1)
    assert match(z_a, z_b, similarity=similarity).margin > 1e-3
    z_a[7] = z_a[31]
    found = match(z_a, z_b, similarity=similarity)
    assert found.margin == 0.0
    rounded = found.costs.numpy() + np.linspace(0, 7, 50)  # no longer the same differences
    assert margin_of(rounded, found.assignment.numpy()) == 0.0


def test_margin_is_computed_once_and_only_if_asked_for(monkeypatch):
    calls = []
    monkeypatch.setattr(matching, "margin_of", lambda costs, p, price: calls.append(len(p)) or 0.5)
    found = match(*pair(5))
    assert (calls[:], found.margin, found.margin, calls) == ([], 0.5, 0.5, [5])


@pytest.mark.parametrize("similarity", MEASURES)
@pytest.mark.parametrize("n", [120, 121])
def test_a_collapsed_encoder_gets_nothing_for_free(similarity, n):
    found = match(z := torch.full((n, 5), 0.1), z, similarity=similarity)
    assert max(found.accuracy, found.greedy_accuracy) < 0.05
    assert (found.rank, found.mean_average_precision) == ({1: 0.0, 5: 0.0, 10: 0.0}, pytest.approx(1 / n))
    assert found.margin == found.greedy_gap == 0.0
    assert match_quadratic(z, z, weight=1.0, similarity=similarity).accuracy < 0.05


def test_items_that_share_a_point_share_their_chances():
    z = torch.eye(100).repeat_interleave(2, 0)  # a hundred pairs of twins: half of them are told apart by luck
    found = match(z, z)
    assert 0.35 < found.accuracy < 0.65
    assert found.cost == found.greedy_gap == found.margin == 0.0
    assert (found.rank, found.mean_average_precision) == ({1: 0.0, 5: 1.0, 10: 1.0}, 0.5)


@pytest.mark.parametrize("similarity", MEASURES)
def test_one_item(similarity):
    z_a, z_b = pair(1)
    found = match(z_a, z_b, similarity=similarity)
    assert (found.assignment.tolist(), found.greedy_assignment.tolist()) == ([0], [0])
    assert (found.accuracy, found.greedy_accuracy, found.mean_average_precision) == (1.0, 1.0, 1.0)
    assert found.rank == {1: 1.0, 5: 1.0, 10: 1.0}
    assert (found.greedy_gap, found.margin) == (0.0, math.inf)
    assert match_quadratic(z_a, z_b, weight=3.0, similarity=similarity).accuracy == 1.0


@pytest.mark.parametrize("scale", [1e-6, 1e6])
@pytest.mark.parametrize(("similarity", "power"), [("euclidean", 1), ("sqeuclidean", 2), ("cosine", 0)])
def test_scale(similarity, power, scale):
    z_a, z_b = pair(70, seed=3)
    plain, scaled = (match(t * z_a, t * z_b, similarity=similarity) for t in (1, scale))
    assert scaled.assignment.tolist() == plain.assignment.tolist()
    assert scaled.greedy_assignment.tolist() == plain.greedy_assignment.tolist()
    assert scaled.rank == plain.rank
    expected = [scale**power * plain.cost, scale**power * plain.margin, plain.greedy_gap]
    assert [scaled.cost, scaled.margin, scaled.greedy_gap] == pytest.approx(expected, rel=1e-9, abs=0)


@pytest.mark.gpu
def test_tensors_on_a_device():
    z_a, z_b = pair(40, dtype=torch.float32)
    here, there = match(z_a, z_b), match(z_a.cuda(), z_b.cuda())
    assert there.assignment.device.type == "cpu"
    assert there.assignment.tolist() == here.assignment.tolist()
    with pytest.raises(ValueError, match="expected z_a to be finite"):
        match(z_a.cuda() / 0, z_b.cuda())


# --- quadratic


def quadratic_values(z_a, z_b, weight, similarity):
    n = len(z_a)
    s, s_a, s_b = (-MEASURES[similarity](x.numpy(), y.numpy()) for x, y in ((z_a, z_b), (z_a, z_a), (z_b, z_b)))
    y = np.eye(n)[np.array(list(permutations(range(n))))]
    return (s * y).sum((1, 2)) + weight / n * np.einsum("ij,pjk,kl,pil->p", s_a, y, s_b.T, y, optimize=True)


@pytest.mark.parametrize("similarity", MEASURES)
@pytest.mark.parametrize("weight", [0.5, 4.0, -4.0])
def test_quadratic_is_nearly_enumeration_and_never_worse_than_linear(weight, similarity):
    best = []
    for seed in range(12):
        z_a, z_b = pair(3 + seed % 4, 3, seed=seed)
        values = dict(zip(permutations(range(len(z_a))), quadratic_values(z_a, z_b, weight, similarity), strict=True))
        found = match_quadratic(z_a, z_b, weight=weight, similarity=similarity)
        assert found.objective == pytest.approx(values[tuple(found.assignment.tolist())])
        linear = match(z_a, z_b, similarity=similarity)
        assert found.linear_objective == pytest.approx(values[tuple(linear.assignment.tolist())])
        assert found.objective >= found.linear_objective
        best.append(found.objective >= max(values.values()) - 1e-9)
    assert np.mean(best) >= 0.6


@pytest.mark.parametrize("similarity", MEASURES)
@pytest.mark.parametrize("n", [1, 2, 50])
def test_weight_zero_is_the_linear_optimum(n, similarity):
    z_a, z_b = pair(n)
    found, linear = match_quadratic(z_a, z_b, weight=0, similarity=similarity), match(z_a, z_b, similarity=similarity)
    assert found.assignment.tolist() == linear.assignment.tolist()
    assert found.accuracy == found.linear_accuracy == linear.accuracy
    assert found.objective == found.linear_objective == pytest.approx(-linear.cost)
    hardly = match_quadratic(z_a, z_b, weight=1e-9, similarity=similarity)
    assert hardly.assignment.tolist() == found.assignment.tolist()


@pytest.mark.parametrize("similarity", ["euclidean", "cosine"])
@pytest.mark.parametrize("seed", range(3))
def test_structure_alone_as_well_as_scipy(seed, similarity):
    z_a, z_b = pair(40, noise=0.3, seed=seed)
    s_a, s_b = (-MEASURES[similarity](z.numpy(), z.numpy()) for z in (z_a, z_b))
    start = np.eye(40)[match(z_a, z_b, similarity=similarity).assignment]
    options = {"maximize": True, "rng": np.random.default_rng(0)}
    theirs = [quadratic_assignment(s_a, s_b, options=options | {"P0": p}).fun for p in (start, "barycenter")]
    p = match_quadratic(z_a, z_b, weight=1e6, similarity=similarity).assignment.numpy()  # the linear part hardly counts
    assert (s_a * s_b[p][:, p]).sum() >= max(theirs) * (1 - 1e-9)


def test_structure_repairs_what_a_turn_has_spoilt_and_equation_5_spoils_more():
    accuracies = []
    for seed in range(3):
        z_a, z_b = turned(120, seed=seed)
        found, anti = (match_quadratic(z_a, z_b, weight=w) for w in (32.0, -32.0))
        accuracies.append((found.linear_accuracy, found.accuracy, anti.accuracy))
        # Eq. (5) as printed: distances, both terms minimised.
        d, d_a, d_b = (torch.from_numpy(cdist(x, y)) for x, y in ((z_a, z_b), (z_a, z_a), (z_b, z_b)))
        value = quadratic_objective(32 / 120 * d_a, d_b, anti.assignment, d)
        assert -anti.objective == pytest.approx(value.item())
    linear, repaired, printed = np.mean(accuracies, 0)  # 0.71, 1.00 and 0.23
    assert printed < 0.4 < linear < 0.8 < 0.95 < repaired


def test_permuting_or_scaling_both_sets_in_quadratic_matching():
    z_a, z_b = turned(60)
    order = torch.arange(60).roll(7).reshape(2, 30).T.flatten()
    plain, other = (match_quadratic(z_a[p], z_b[p], weight=16.0) for p in (torch.arange(60), order))
    assert order[other.assignment].tolist() == plain.assignment[order].tolist()
    assert other.objective == pytest.approx(plain.objective)
    assert match_quadratic(8 * z_a, 8 * z_b, weight=2.0).assignment.tolist() == plain.assignment.tolist()


@pytest.mark.parametrize(
    ("function", "sets"),
    [
        (match, pair(1000, 64, dtype=torch.float32)),  # 0.09 s measured
        (match, pair(1000, 64, noise=3.0, dtype=torch.float32)),  # hopeless, and the most work: 0.13 s
        (partial(match_quadratic, weight=16.0), turned(220, noise=0.5)),  # 0.03 s
    ],
)
def test_takes_a_fraction_of_a_second(function, sets):
    times = []
    for _ in range(5):
        began = time.process_time()  # not the clock on the wall: others use this machine too
        function(*sets)
        times.append(time.process_time() - began)
    assert median(times) < 0.3


def test_choose_weight():
    sets = [turned(60, seed=seed) for seed in range(3)]
    assert choose_weight(sets, (64, 0, 4)) == 64
    means = [np.mean([match_quadratic(*z, weight=w).accuracy for z in sets]) for w in (0, 4, 64)]
    assert means[0] < means[1] < means[2]
    assert choose_weight(sets, [0.0, -16.0], similarity="cosine") == 0.0
    z = torch.eye(5)
    assert choose_weight([(z, z)], (4.0, 2.0, 8.0)) == 2.0  # all of them are right about everything
    assert choose_weight([(z, z)]) == 0.0


def test_choose_weight_takes_means_that_differ_by_rounding_as_equal(monkeypatch):
    right = {1.0: [0.1, 0.7], 2.0: [0.4, 0.4]}
    assert math.fsum(right[1.0]) < math.fsum(right[2.0])
    monkeypatch.setattr(
        matching, "match_quadratic", lambda a, b, weight, **_: SimpleNamespace(accuracy=right[weight][a])
    )
    assert choose_weight([(0, 0), (1, 1)], (2.0, 1.0)) == 1.0


@pytest.mark.parametrize(
    "call",
    [
        lambda z: match(z, z[:, :2]),
        lambda z: match(z / 0, z),
        lambda z: match(z, z, similarity="euclid"),
        lambda z: match_quadratic(z, z[:, :2], weight=1.0),
        lambda z: match_quadratic(z, z, weight=1.0, similarity="euclid"),
        lambda z: match_quadratic(z, z, weight=math.inf),
        lambda z: choose_weight([]),
        lambda z: choose_weight([(z, z)], ()),
        lambda z: choose_weight([(z, z[:3])]),
        lambda z: choose_weight([(z, z)], (0.0, math.nan)),
    ],
)
def test_bad_arguments(call):
    with pytest.raises(ValueError, match="^expected (z_a|z_b|similarity|weight|at least one set|sets)"):
        call(torch.rand(4, 3))


@pytest.mark.parametrize("how", [match, partial(match_quadratic, weight=1.0)])
def test_what_is_printed_of_a_matching_fits_on_a_screen(how):
    z = torch.randn(2000 if how is match else 60, 8, generator=torch.Generator().manual_seed(0))
    shown = repr(how(z, z))
    assert "accuracy=1.0" in shown
    assert len(shown) < 400
