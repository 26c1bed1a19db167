"""Alignment inside sets: against scipy set by set, enumeration of partial matchings, and plain Sinkhorn scaling."""

from itertools import permutations

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from scipy.special import logsumexp

import setwise as sw


def drawn(seed, sizes_a, sizes_b, width=3):
    """Embeddings, and the sets of their rows in a random order; a size of 0 leaves the set out."""
    rng = np.random.default_rng(seed)
    sets = [rng.permutation(np.repeat(np.arange(len(sizes)), sizes)) for sizes in (sizes_a, sizes_b)]
    z_a, z_b = (rng.normal(size=(len(one), width)) for one in sets)
    return z_a, z_b, sets


def cosines(z_a, z_b):
    unit_a, unit_b = (z / np.linalg.norm(z, axis=1, keepdims=True) for z in (z_a, z_b))
    return unit_a @ unit_b.T


def scaled(theta):
    """The doubly stochastic matrix of a square problem, by plain scaling."""
    for _ in range(1_000):
        theta = theta - logsumexp(theta, 1, keepdims=True)
        theta = theta - logsumexp(theta, 0, keepdims=True)
    return np.exp(theta)


def test_every_set_is_matched_as_scipy_would():
    z_a, z_b, sets = drawn(0, [4, 7, 1, 0, 3, 12], [4, 5, 6, 2, 0, 12])
    found = sw.align(z_a, z_b, sets=sets)
    expected = np.full(len(z_a), -1)
    for one in range(6):
        rows, columns = (np.nonzero(ids == one)[0] for ids in sets)
        i, j = linear_sum_assignment(-cosines(z_a[rows], z_b[columns]))
        expected[rows[i]] = columns[j]
    assert found.partner.tolist() == expected.tolist()
    assert found.sets == 4
    assert (found.alone_a, found.alone_b) == (None, None)
    assert torch.equal(found.confidence.isnan(), found.partner < 0)
    assert (found.partner < 0).sum() == 3 + 2, "a set without partners, and the rows to spare"


@pytest.mark.parametrize("price", [-0.6, -0.1, 0.4])
def test_with_a_price_the_best_of_all_partial_matchings_is_found(price):
    z_a, z_b, sets = drawn(1, [3, 4, 2, 1], [4, 3, 2, 0])
    found = sw.align(z_a, z_b, sets=sets, price=price)
    for one in range(3):
        rows, columns = (np.nonzero(ids == one)[0] for ids in sets)
        costs = -cosines(z_a[rows], z_b[columns])
        n, m = costs.shape
        wide = np.concatenate([costs, np.full((n, n), price)], axis=1)  # a column of none for each row
        best = min(wide[np.arange(n), list(p)].sum() for p in permutations(range(m + n), n))
        chosen = found.partner[rows].numpy()
        place = {column: k for k, column in enumerate(columns)}
        total = sum(price if p < 0 else costs[i, place[p]] for i, p in enumerate(chosen.tolist()))
        assert total == pytest.approx(best, abs=1e-12)
        matched = chosen[chosen >= 0]
        assert len(set(matched.tolist())) == len(matched)
    assert found.alone_a[sets[0] == 3].tolist() == [1.0], "its set has no partner"


@pytest.mark.parametrize("sizes", [(5, 5), (3, 6), (6, 3), (1, 1)], ids=str)
@pytest.mark.parametrize("price", [None, -0.2])
def test_confidences_are_those_of_sinkhorn(sizes, price):
    n, m = sizes
    z_a, z_b, sets = drawn(2, [n], [m])
    found = sw.align(z_a, z_b, sets=sets, temperature=0.2, price=price)
    size = max(n, m) if price is None else n + m
    theta = np.zeros((size, size))
    theta[:n] = 0 if price is None else -price / 0.2
    theta[:n, :m] = cosines(z_a, z_b) / 0.2
    share = scaled(theta)[:n, :m]
    matched = np.nonzero(found.partner.numpy() >= 0)[0]
    expected = share[matched, found.partner.numpy()[matched]]
    np.testing.assert_allclose(found.confidence.numpy()[matched], expected, atol=1e-7)
    if price is not None:
        np.testing.assert_allclose(found.alone_a, 1 - share.sum(1), atol=1e-7)
        np.testing.assert_allclose(found.alone_b, 1 - share.sum(0), atol=1e-7)


def test_at_the_price_an_item_is_as_likely_alone():
    z = torch.tensor([[1.0, 0.0]])
    at = sw.align(z, z, sets=([0], [0]), price=-1.0)
    assert at.alone_a.item() == pytest.approx(0.5)
    shares = [sw.align(z, z, sets=([0], [0]), price=price).alone_a.item() for price in (-1.1, -0.9)]
    assert shares[0] > 0.9 > 0.1 > shares[1]


def test_confidence_tells_right_from_wrong():
    """Noisy copies in sets of ten: as many pairs are right as the confidences say, overall and of the surer half."""
    rng = np.random.default_rng(3)
    z_a = rng.normal(size=(400, 8))
    z_b = z_a + 1.5 * rng.normal(size=z_a.shape)
    sets = np.arange(400) // 10
    found = sw.align(z_a, z_b, sets=(sets, sets), temperature=0.1)
    right = (found.partner == torch.arange(400)).double()
    assert float(right.mean()) == pytest.approx(float(found.confidence.mean()), abs=0.1)
    surer = found.confidence > found.confidence.median()
    assert right[surer].mean() > right[~surer].mean() + 0.2


def test_ties_are_not_won():
    sets = np.repeat(np.arange(20), 10)
    found = sw.align(torch.ones(200, 2), torch.ones(200, 2), sets=(sets, sets))
    assert (found.partner == torch.arange(200)).double().mean() < 0.4
    torch.testing.assert_close(found.confidence, torch.full((200,), 0.1, dtype=torch.float64))


def test_names_of_sets_and_kinds_of_arrays():
    z_a, z_b, sets = drawn(4, [3, 2], [2, 3])
    plain = sw.align(z_a, z_b, sets=sets)
    names = [[("b", "a")[k] for k in one] for one in sets]
    for found in (
        sw.align(torch.from_numpy(z_a), torch.from_numpy(z_b), sets=names),
        sw.align(z_a, z_b, sets=[torch.from_numpy(7 - 3 * one) for one in sets]),
    ):
        assert torch.equal(found.partner, plain.partner)
        torch.testing.assert_close(found.confidence, plain.confidence, equal_nan=True)
    far = sw.align(10 * z_a, z_b, sets=sets, similarity="euclidean", temperature=1.0)
    assert (far.partner >= 0).sum() == 4
    none = sw.align(z_a, z_b, sets=(np.zeros(5, int), np.ones(5, int)))
    assert repr(none) == "Alignment(0 pairs of 5 x 5 in 0 sets)"
    assert repr(plain).startswith("Alignment(4 pairs of 5 x 5 in 2 sets, mean confidence ")


def test_a_cold_temperature_is_sure():
    z_a, z_b, sets = drawn(5, [20, 20], [20, 20])
    for temperature in (1e-3, 1e-5):
        assert sw.align(z_a, z_b, sets=sets, temperature=temperature).confidence.min() > 0.5


def test_the_table():
    pytest.importorskip("pandas", reason="needs pandas")
    z_a, z_b, sets = drawn(6, [3, 2], [2, 3])
    table = sw.align(z_a, z_b, sets=sets).to_dataframe()
    assert list(table.columns) == ["partner", "confidence"]
    found = sw.align(z_a, z_b, sets=sets, price=0.0)
    table = found.to_dataframe()
    assert table["partner"].tolist() == found.partner.tolist()
    assert table["alone"].tolist() == found.alone_a.tolist()


def test_what_is_refused():
    z, sets = torch.randn(3, 2), [0, 0, 1]
    for options, message in (
        ({"sets": (sets, sets[:2])}, "expected sets_b to be 3 integers or strings"),
        ({"sets": (sets, [0.0, 1.0, 2.0])}, "expected sets_b to be 3 integers or strings"),
        ({"sets": (sets, ["a", "b", "c"])}, "expected sets_a and sets_b of one kind"),
        ({"sets": torch.tensor(sets)}, r"expected sets=\(sets_a, sets_b\)"),
        ({"sets": (sets, sets), "temperature": 0.0}, "expected temperature to be a finite number above 0"),
        ({"sets": (sets, sets), "price": float("nan")}, "expected price to be a finite number"),
        ({"sets": (sets, sets), "similarity": "dot"}, "similarity"),
    ):
        with pytest.raises(ValueError, match=message):
            sw.align(z, z, **options)
    with pytest.raises(ValueError, match="expected z_b of shape"):
        sw.align(z, torch.randn(3, 4), sets=(sets, sets))
