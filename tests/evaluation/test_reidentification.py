"""Matching of unequal sets, identities and cameras: against enumeration, scikit-learn and Market-1501's protocol."""

import importlib.util
import math
from itertools import combinations, permutations

import numpy as np
import pytest
import torch
from scipy.linalg import expm
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching
from scipy.spatial.distance import cdist
from sklearn.metrics import average_precision_score

from setwise.evaluation import ranks as module
from setwise.evaluation.matching import match, match_quadratic
from setwise.evaluation.ranks import match_ranks


def shots(n, m, *, people=12, cameras=3, noise=0.7, seed=0, grid=False):
    """Queries and a gallery of several shots a person; some are in one of the two only."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(people + 4, 4))
    ids_a, ids_b = rng.integers(people, size=n), rng.integers(4, people + 4, size=m)
    z_a, z_b = (centres[ids] + noise * rng.normal(size=(len(ids), 4)) for ids in (ids_a, ids_b))
    if grid:
        z_a, z_b = z_a.clip(-1, 1).round(), z_b.clip(-1, 1).round()
    names = {"ids_a": ids_a, "ids_b": ids_b}
    return z_a, z_b, names | {"cameras_a": rng.integers(cameras, size=n), "cameras_b": rng.integers(cameras, size=m)}


def partial_assignments(n, m):
    """Every way to give some of n rows a column of their own, -1 for none."""
    for k in range(min(n, m) + 1):
        for rows in combinations(range(n), k):
            for columns in permutations(range(m), k):
                p = np.full(n, -1)
                p[list(rows)] = columns
                yield p


def enumerated(costs, price):
    """The totals of the cheapest assignment and of the next, and the cheapest one; without a price most pairs first."""
    found = []
    for p in partial_assignments(*costs.shape):
        total = costs[p >= 0, p[p >= 0]].sum()
        if total < math.inf:
            found.append((0 if price is not None else (p < 0).sum(), total + (price or 0) * (p < 0).sum(), p.tolist()))
    found.sort(key=lambda x: x[:2])
    totals = [total for alone, total, _ in found if alone == found[0][0]] + [math.inf]
    return totals[0], totals[1], found[0][2]


@pytest.mark.parametrize("price", [None, 0.6, 1.5], ids=str)
@pytest.mark.parametrize("forbidden", [0.0, 0.4, 0.9], ids=str)
@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 3), (3, 1), (3, 5), (4, 4), (5, 3)])
def test_assignment_and_margin_are_enumeration(n, m, forbidden, price):
    for seed in range(4):
        rng = np.random.default_rng(seed)
        z_a, z_b = rng.normal(size=(n, 2)), rng.normal(size=(m, 2))
        mask = rng.random((n, m)) < forbidden
        found = match(z_a, z_b, forbidden=mask, price=price)
        best, second, assignment = enumerated(np.where(mask, np.inf, cdist(z_a, z_b)), price)
        assert found.assignment.tolist() == assignment
        assert found.cost == pytest.approx(best)
        assert found.margin == pytest.approx(second - best)


def test_margin_of_a_tie_is_zero_with_unequal_sizes():
    z = torch.tensor([[0.0], [1.0], [1.0]])
    assert match(z[:2], z).margin == match(z, z[:2]).margin == 0.0
    assert match(z[:2], z, price=1.0).margin == 0.0  # either of two columns
    assert match(z[:1], z, price=0.5).margin == 0.5  # or none


@pytest.mark.parametrize(("n", "m"), [(60, 40), (40, 60)])
def test_unequal_sizes_as_scipy_and_nothing_is_invented(n, m):
    z_a, z_b, _ = shots(n, m)
    found = match(z_a, z_b)
    rows, columns = linear_sum_assignment(cdist(z_a, z_b))
    assert found.cost == pytest.approx(cdist(z_a, z_b)[rows, columns].sum())
    assert found.assignment[rows].tolist() == columns.tolist()
    assert (found.assignment < 0).sum() == max(0, n - m)
    for name in ("accuracy", "precision", "recall", "correct", "greedy_accuracy", "rank", "mean_average_precision"):
        assert getattr(found, name) is None
    assert found.queries is None
    assert found.greedy_gap >= 0
    assert repr(found) == f"Matching(40 pairs of {n} x {m}, cost={round(found.cost, 4)})"


@pytest.mark.parametrize("price", [None, 2.0], ids=str)
def test_greedy_takes_the_closest_allowed_pair_of_what_is_left(price):
    gaps = []
    for seed in range(5):
        z_a, z_b, _ = shots(20, 20, seed=seed)
        mask = np.random.default_rng(seed).random((20, 20)) < 0.8
        found = match(z_a, z_b, forbidden=mask, price=price)
        left, expected = np.where(mask, np.inf, cdist(z_a, z_b)), np.full(20, -1)
        while left.min() < (math.inf if price is None else price):
            i, j = np.unravel_index(left.argmin(), left.shape)
            expected[i], left[i], left[:, j] = j, np.inf, np.inf
        assert found.greedy_assignment.tolist() == expected.tolist()
        fewer = (expected < 0).sum() > (found.assignment < 0).sum()
        assert (found.greedy_gap is None) == (price is None and fewer)
        gaps.append(found.greedy_gap)
    assert None in gaps if price is None else max(gaps) > 0


# --- ranks


def market_1501(distances, ids_a, ids_b, cameras_a, cameras_b):
    """Rank-k and mAP as Market-1501's evaluation defines them, one query after the other.

    torchreid's ``eval_market1501`` follows the same rules: a gallery entry of the query's person and camera is left
    out, a query without a partner is not counted, and of a person's entries all count.
    """
    hits, precisions = [], []
    for i, row in enumerate(distances):
        gallery = [j for j in np.argsort(row) if ids_b[j] != ids_a[i] or cameras_b[j] != cameras_a[i]]
        good = [place for place, j in enumerate(gallery, 1) if ids_b[j] == ids_a[i]]
        if good:
            hits.append(good[0])
            precisions.append(np.mean([found / place for found, place in enumerate(good, 1)]))
    return {k: np.mean(np.array(hits) <= k) for k in (1, 5, 10)}, np.mean(precisions), len(hits)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("with_cameras", [True, False])
def test_ranks_as_market_1501(monkeypatch, with_cameras, seed):
    z_a, z_b, names = shots(50, 80, seed=seed)
    if not with_cameras:
        names |= {"cameras_a": np.zeros(50, int), "cameras_b": np.ones(80, int)}
    rank, mean, queries = market_1501(cdist(z_a, z_b), **names)
    if not with_cameras:
        del names["cameras_a"], names["cameras_b"]
    for block in (module.BLOCK, 200):
        monkeypatch.setattr(module, "BLOCK", block)
        found = match(z_a, z_b, **names)
        assert found.rank == pytest.approx(rank)
        assert found.mean_average_precision == pytest.approx(mean)
        assert found.queries == queries < 50
        alone = match_ranks(z_a, z_b, **names)
        assert alone.rank == found.rank
        assert alone.mean_average_precision == pytest.approx(found.mean_average_precision, rel=1e-12)
        assert alone.queries == queries
    assert 0 < rank[1] < rank[10] < 1


@pytest.mark.parametrize("grid", [False, True])
def test_average_precision_as_scikit_learn_with_ties_too(grid):
    z_a, z_b, names = shots(40, 60, seed=1, grid=grid)
    near, precisions, places = -cdist(z_a, z_b).round(12), [], []
    for i in range(40):
        same = names["ids_b"] == names["ids_a"][i]
        kept = ~same | (names["cameras_b"] != names["cameras_a"][i])
        if (same & kept).any():
            precisions.append(average_precision_score(same[kept], near[i, kept]))
            others = (near[i, ~same] >= near[i, same & kept].max()).sum()  # equally near ones count as nearer
            places.append(1 + others)
    for found in (match(z_a, z_b, **names), match_ranks(z_a, z_b, **names)):
        assert found.mean_average_precision == pytest.approx(np.mean(precisions))
        assert found.rank == {k: np.mean(np.array(places) <= k) for k in (1, 5, 10)}


def test_a_collapsed_encoder_finds_a_partner_by_chance_alone():
    ids = np.repeat(np.arange(20), 3)
    found = match(np.ones((60, 4)), np.ones((60, 4)), ids_a=ids, ids_b=ids)
    assert found.rank == {1: 0.0, 5: 0.0, 10: 0.0}
    assert found.mean_average_precision == pytest.approx(1 / 20)
    assert found.accuracy < 0.2


def test_true_partners_do_not_stand_in_each_others_way():
    found = match_ranks(np.zeros((1, 2)), np.array([[0.0, 0], [0, 0], [1, 0]]), ids_a=[7], ids_b=[7, 7, 8])
    assert (found.rank[1], found.mean_average_precision) == (1.0, 1.0)


def test_forbidden_partners_come_last():
    z = torch.arange(4.0)[:, None]
    found = match(z, z, forbidden=torch.eye(4, dtype=torch.bool))
    assert found.rank == {1: 0.0, 5: 1.0, 10: 1.0}
    assert found.mean_average_precision == 1 / 4
    assert found.accuracy == found.recall == 0.0
    # Of a gallery of three one is left out: last is second.
    cameras = {"cameras_a": [0], "cameras_b": [0, 1, 1]}
    mask = np.array([[False, True, False]])
    found = match(z[:1].numpy(), z[:3].numpy(), ids_a=[0], ids_b=[0, 0, 1], forbidden=mask, **cameras)
    assert (found.assignment.tolist(), found.mean_average_precision) == ([2], 1 / 2)


@pytest.mark.parametrize("similarity", ["cosine", "euclidean", "sqeuclidean"])
@pytest.mark.parametrize("grid", [False, True])
def test_match_ranks_is_the_ranks_of_match_by_blocks(monkeypatch, grid, similarity):
    z_a, z_b, _ = shots(70, 70, noise=0.1, grid=grid)
    z_b[:35] = z_a[:35]
    found = match(z_a, z_b, similarity=similarity)
    monkeypatch.setattr(module, "BLOCK", 300)
    alone = match_ranks(z_a, z_b, similarity=similarity)
    assert (alone.rank, alone.queries) == (found.rank, 70)
    assert alone.mean_average_precision == pytest.approx(found.mean_average_precision, rel=1e-12)
    with pytest.raises(ValueError, match="expected ids_a and ids_b for sets of unequal size, got 70 and 69 rows"):
        match_ranks(z_a, z_b[1:], similarity=similarity)


def test_match_ranks_keeps_no_matrix(monkeypatch):
    seen = []
    scores = module.scores

    def watched(*sets, similarity):
        seen.append(scores(*sets, similarity=similarity))
        return seen[-1]

    monkeypatch.setattr(module, "scores", watched)
    monkeypatch.setattr(module, "BLOCK", 1000)
    z_a, z_b, names = shots(90, 100)
    match_ranks(z_a, z_b, **names)
    assert [tuple(x.shape) for x in seen] == [(10, 100)] * 9


# --- who is right


@pytest.mark.parametrize("price", [None, 1.2], ids=str)
@pytest.mark.parametrize("with_cameras", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_precision_recall_and_accuracy_by_counting(seed, with_cameras, price):
    z_a, z_b, names = shots(40, 30, seed=seed)
    true = names["ids_a"][:, None] == names["ids_b"]
    if with_cameras:
        true &= names["cameras_a"][:, None] != names["cameras_b"]
    else:
        del names["cameras_a"], names["cameras_b"]
    found = match(z_a, z_b, price=price, **names)
    p = found.assignment.tolist()
    right = [j >= 0 and true[i, j] for i, j in enumerate(p)]
    most = (maximum_bipartite_matching(csr_array(true.astype(int))) >= 0).sum()
    assert found.precision == sum(right) / sum(j >= 0 for j in p)
    assert found.recall == sum(right) / most
    correct = [r if j >= 0 else not true[i].any() for i, (r, j) in enumerate(zip(right, p, strict=True))]
    assert found.correct.tolist() == correct
    assert found.accuracy == np.mean(correct)
    if with_cameras:
        same = (names["ids_a"] == names["ids_b"][p]) & (names["cameras_a"] == names["cameras_b"][p])
        assert not (same & (np.array(p) >= 0)).any()


def test_a_price_tells_strangers_from_friends():
    z = torch.eye(8)
    found = match(z[:6], z[2:], ids_a=range(6), ids_b=range(2, 8), price=1.0)
    assert found.assignment.tolist() == [-1, -1, 0, 1, 2, 3]
    assert (found.accuracy, found.precision, found.recall, found.cost) == (1.0, 1.0, 1.0, 2.0)
    none = match(z[:6], z[2:], ids_a=range(6), ids_b=range(2, 8), price=-1.0)
    assert (none.precision, none.recall, none.accuracy) == (None, 0.0, 2 / 6)
    strangers = match(z[:2], z[2:], ids_a=[0, 1], ids_b=range(2, 8))
    assert (strangers.rank, strangers.mean_average_precision, strangers.queries) == (None, None, 0)
    assert (strangers.precision, strangers.recall, strangers.accuracy) == (0.0, None, 0.0)


def test_names_and_arrays_of_any_kind_are_the_same():
    z_a, z_b, names = shots(30, 20)
    plain = match(z_a, z_b, **names)
    z_a.setflags(write=False)
    words = {name: [f"p{x}" for x in values] for name, values in names.items()}
    tensors = {name: torch.from_numpy(values) for name, values in names.items()}
    reversed_twice = z_b[::-1].copy()[::-1]
    for other in (match(z_a, reversed_twice, **words), match(torch.tensor(z_a), torch.tensor(z_b), **tensors)):
        assert other.assignment.tolist() == plain.assignment.tolist()
        assert repr(other) == repr(plain)


def test_identities_that_are_rows_are_the_default():
    z_a, z_b, _ = shots(30, 30)
    assert repr(match(z_a, z_b)) == repr(match(z_a, z_b, ids_a=range(30), ids_b=range(30)))


def test_quadratic_matching_counts_identities():
    z_a, z_b, names = shots(30, 30)
    ids = {name: names[name] for name in ("ids_a", "ids_b")}
    found = match_quadratic(z_a, z_b, weight=4.0, **ids)
    plain = match_quadratic(torch.tensor(z_a), torch.tensor(z_b), weight=4.0)
    assert found.assignment.tolist() == plain.assignment.tolist()
    assert found.accuracy == np.mean(names["ids_a"] == names["ids_b"][found.assignment]) != plain.accuracy
    linear = match(z_a, z_b).assignment
    assert found.linear_accuracy == np.mean(names["ids_a"] == names["ids_b"][linear])


def structured_values(z_a, z_b, weight, costs, price, similarity):
    """The objective of every assignment with the most pairs, or of all where one has a price; by loops."""
    n, m = costs.shape
    s_a, s_b = (-cdist(z, z) if similarity == "euclidean" else 1 - cdist(z, z, "cosine") for z in (z_a, z_b))
    means = [s[~np.eye(len(s), dtype=bool)].mean() if len(s) > 1 else 0 for s in (s_a, s_b)]
    values = {}
    for p in partial_assignments(n, m):
        rows = [i for i in range(n) if p[i] >= 0]
        if all(costs[i, p[i]] < math.inf for i in rows):
            pairs = [(s_a[i, k] - means[0]) * (s_b[p[i], p[k]] - means[1]) for i in rows for k in rows if i != k]
            total = sum(pairs) * weight / min(n, m) - sum(costs[i, p[i]] for i in rows)
            values[tuple(p.tolist())] = total - (price or 0) * (n - len(rows))
    most = max(sum(j >= 0 for j in p) for p in values)
    return {p: x for p, x in values.items() if price is not None or sum(j >= 0 for j in p) == most}


@pytest.mark.parametrize("similarity", ["euclidean", "cosine"])
@pytest.mark.parametrize("price", [None, 0.4, 1.5], ids=str)
@pytest.mark.parametrize("forbidden", [0.0, 0.4, 1.0], ids=str)
@pytest.mark.parametrize("weight", [4.0, -4.0])
def test_quadratic_matching_of_parts_is_nearly_enumeration(weight, forbidden, price, similarity):
    best = []
    for seed, (n, m) in enumerate([(1, 1), (1, 3), (3, 1), (3, 4), (4, 3), (4, 4), (2, 5)]):
        if n == m and price is None and not forbidden:
            continue  # a whole permutation, whose structure is not about its mean
        rng = np.random.default_rng(seed)
        z_a, z_b = rng.normal(size=(n, 2)), rng.normal(size=(m, 2))
        mask = rng.random((n, m)) < forbidden
        options = {"forbidden": mask, "price": price, "similarity": similarity}
        found, linear = match_quadratic(z_a, z_b, weight=weight, **options), match(z_a, z_b, **options)
        distances = cdist(z_a, z_b, similarity) - (similarity == "cosine")
        values = structured_values(z_a, z_b, weight, np.where(mask, math.inf, distances), price, similarity)
        if mask.any() or price is not None or n != m:
            assert found.objective == pytest.approx(values[tuple(found.assignment.tolist())])
            assert found.linear_objective == pytest.approx(values[tuple(linear.assignment.tolist())])
            assert found.objective >= found.linear_objective
            best.append(found.objective >= max(values.values()) - 1e-9)
        torch.testing.assert_close(found.costs, linear.costs)
    assert np.mean(best) >= 0.6


def test_structure_finds_the_partners_of_a_part_that_turned():
    """Fifty of 65 items are in both sets, of which one is turned."""
    for seed in range(2):
        rng = np.random.default_rng(seed)
        z_a, others, noise = rng.normal(size=(65, 16)), rng.normal(size=(15, 16)), 0.1 * rng.normal(size=(65, 16))
        turn = rng.normal(size=(16, 16))
        z_b = (np.concatenate((z_a[:50], others)) + noise) @ expm(0.2 * (turn - turn.T))
        ids_a, ids_b = np.arange(65), np.append(np.arange(50), 100 + np.arange(15))
        found = match_quadratic(z_a, z_b, weight=8.0, price=3.0, ids_a=ids_a, ids_b=ids_b)
        assert match(z_a, z_b, price=3.0, ids_a=ids_a, ids_b=ids_b).recall < 0.5 < 0.9 < found.recall
        assert found.linear_accuracy < 0.5 < 0.7 < found.accuracy
        cut = match_quadratic(z_a, z_b[:50], weight=8.0, ids_a=ids_a, ids_b=ids_b[:50])
        assert cut.linear_accuracy < 0.6 < 0.9 < cut.accuracy
        assert (cut.assignment < 0).sum() == 15


@pytest.mark.parametrize("weight", [0.0, 2.0])
def test_quadratic_matching_takes_what_matching_takes(weight):
    z_a, z_b, names = shots(30, 20, seed=2)
    options = {"threshold": -2.5, "price": 2.0, "forbidden": np.random.default_rng(0).random((30, 20)) < 0.2}
    linear, found = match(z_a, z_b, **names, **options), match_quadratic(z_a, z_b, weight=weight, **names, **options)
    assert found.linear_accuracy == linear.accuracy
    p, true = found.assignment.tolist(), names["ids_a"][:, None] == names["ids_b"]
    true &= names["cameras_a"][:, None] != names["cameras_b"]
    right = [true[i, j] if j >= 0 else not true[i].any() for i, j in enumerate(p)]
    assert found.correct.tolist() == right
    assert found.accuracy == np.mean(right)
    assert found.precision == sum(true[i, j] for i, j in enumerate(p) if j >= 0) / sum(j >= 0 for j in p)
    assert all(found.costs[i, j] <= 2.5 and not options["forbidden"][i, j] for i, j in enumerate(p) if j >= 0)
    if not weight:
        assert (p, found.recall) == (linear.assignment.tolist(), linear.recall)
    nothing_known = match_quadratic(torch.tensor(z_a), torch.tensor(z_b), weight=weight)
    for name in ("accuracy", "precision", "recall", "correct", "linear_accuracy"):
        assert getattr(nothing_known, name) is None
    assert (nothing_known.assignment < 0).sum() == 10


# --- a threshold


@pytest.mark.parametrize("price", [None, 1.0], ids=str)
def test_a_threshold_is_the_least_score_of_a_pair(price):
    for seed in range(4):
        z_a, z_b, names = shots(12, 9, seed=seed)
        found = match(z_a, z_b, threshold=-1.5, price=price, **names)
        far = match(z_a, z_b, forbidden=cdist(z_a, z_b) > 1.5, price=price, **names)
        assert found.assignment.tolist() == far.assignment.tolist()
        assert found.greedy_assignment.tolist() == far.greedy_assignment.tolist()
        assert (found.cost, found.margin) == (far.cost, far.margin)
        plain = match(z_a, z_b, **names)
        assert (found.rank, found.mean_average_precision) == (plain.rank, plain.mean_average_precision)
    z = torch.eye(3)
    assert match(z, z.roll(1, 0) + z, threshold=0.7, similarity="cosine").assignment.min() >= 0  # 0.707
    assert match(z, z.roll(1, 0) + z, threshold=0.71, similarity="cosine").assignment.tolist() == [-1] * 3
    assert match(z, z, threshold=-0.0).assignment.tolist() == [0, 1, 2]  # as far as the threshold is near enough


def test_a_threshold_takes_two_poor_pairs_and_a_price_one_good():
    z_a, z_b = torch.tensor([[0.0], [1.0]]), torch.tensor([[1.0], [1.9]])
    assert match(z_a, z_b, threshold=-1.0).assignment.tolist() == [0, 1]
    assert match(z_a, z_b, price=0.9).assignment.tolist() == [-1, 0]


# --- what is shown


def test_margins_of_rows():
    found = match(torch.tensor([[0.0], [1.0], [9.0]]).double(), torch.tensor([[0.9], [2.5]]).double())
    assert found.assignment.tolist() == [0, 1, -1]
    torch.testing.assert_close(found.margins, torch.tensor([1.6, -1.4, math.nan]).double(), equal_nan=True)
    assert match(torch.zeros(1, 1), torch.ones(1, 1)).margins.tolist() == [math.inf]


def test_to_dataframe(monkeypatch):
    if importlib.util.find_spec("pandas") is None:
        import sys
        from types import SimpleNamespace

        monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=dict))  # what it is given
    z = torch.tensor([[0.0], [1.0], [5.0]])
    table = match(z, z[:2] + 0.25, price=1.0).to_dataframe()
    assert list(table) == ["column", "cost", "margin"]
    assert list(table["column"]) == [0, 1, -1]
    np.testing.assert_allclose(table["cost"], [0.25, 0.25, math.nan])
    np.testing.assert_allclose(table["margin"], [1.0, 0.5, math.nan])
    assert list(match(z, z).to_dataframe()["correct"]) == [True, True, True]
    table = match_quadratic(z, z[:2] + 0.25, weight=1e-6, price=1.0).to_dataframe()
    assert (list(table), list(table["column"])) == (["column", "cost", "margin"], [0, 1, -1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ids_a": [1, 2, 3, 4]}, "expected ids_a and ids_b together, got no ids_b"),
        ({"cameras_a": [1] * 4, "cameras_b": [1] * 4}, "expected ids_a and ids_b with cameras"),
        ({"ids_a": [1, 2, 3], "ids_b": [1] * 4}, r"expected ids_a to be 4 integers or strings.*shape \(3,\)"),
        ({"ids_a": [1.0] * 4, "ids_b": [1] * 4}, "expected ids_a to be 4 integers or strings.*float64"),
        ({"ids_a": ["1"] * 4, "ids_b": [1] * 4}, "expected ids_a and ids_b of one kind"),
        ({"threshold": math.nan}, "expected threshold to be a finite number"),
        ({"price": math.inf}, "expected price to be a finite number"),
        ({"forbidden": np.zeros((4, 3), bool)}, r"expected forbidden of shape \(4, 4\) and dtype bool"),
        ({"forbidden": np.zeros((4, 4))}, r"expected forbidden of shape \(4, 4\) and dtype bool"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        match(torch.rand(4, 3), torch.rand(4, 3), **options)


@pytest.mark.parametrize(
    ("z_a", "z_b", "message"),
    [
        (np.zeros((4, 3), int), np.zeros((4, 3)), "expected z_a of float16, float32 or float64, got int64"),
        (np.zeros((4, 3)), np.zeros((4, 3), np.float32), "expected z_b of dtype torch.float64 like z_a"),
        (np.zeros((4, 3)), np.zeros((5, 2)), r"expected z_b of shape \(M, 3\) like z_a, got \(5, 2\)"),
        (np.zeros(4), np.zeros((4, 3)), r"expected z_a of shape"),
        (np.zeros((0, 3)), np.zeros((4, 3)), "expected z_a with at least one row"),
    ],
)
def test_bad_sets(z_a, z_b, message):
    with pytest.raises(ValueError, match=message):
        match(z_a, z_b)
