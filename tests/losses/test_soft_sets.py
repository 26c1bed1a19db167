"""A truth that shares a row out among the partners its set allows: against scipy's dual, POT, and one row at a time."""

import math

import numpy as np
import pytest
import scipy.optimize
import torch
import torch.nn.functional as F
from torch import nn

import setwise as sw
from setwise.assignment import scaling
from setwise.losses.shares import shares_inside

SETS = torch.tensor([4, 4, -1, 9, 4, 9, 7]), torch.tensor([9, 4, 4, -1, 9, 3])  # 7 and 3 have no partner
EQUAL = torch.tensor([0, 0, 1, 1, 1, 2]), torch.tensor([1, 0, 2, 1, 1, 0])


@pytest.fixture
def many_passes(monkeypatch):
    monkeypatch.setattr(scaling, "PASSES", 2000)


def both_sides(n=7, m=6, e=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(x, e, generator=generator, dtype=torch.float64).requires_grad_() for x in (n, m)]


def by_duality(s, t, alone=None):
    """max <s, Y> + t Σ Y (1 - log Y) by its dual, with at most 1 for the larger side, or an entry for none."""
    n, m = s.shape

    def dual(x):
        a, b = x[:n, None], x[None, n:]
        y = np.exp((s - a - b) / t)
        value, rows, columns = x.sum() + t * y.sum(), y.sum(1), y.sum(0)
        if alone is not None:
            none = np.exp((alone - x) / t)
            value, rows, columns = value + t * none.sum(), rows + none[:n], columns + none[n:]
        return value, 1 - np.concatenate([rows, columns])

    free, spare = (None, None), (0, None)
    bounds = [spare if n > m and alone is None else free] * n + [spare if m > n and alone is None else free] * m
    start = np.full(n + m, s.max())
    found = scipy.optimize.minimize(
        dual, start, jac=True, bounds=bounds, options={"maxiter": 100_000, "maxfun": 10**6, "ftol": 0, "gtol": 1e-11}
    ).x
    return np.exp((s - found[:n, None] - found[None, n:]) / t)


def scores_of(z_a, z_b, similarity="cosine"):
    if similarity == "cosine":
        return F.normalize(z_a) @ F.normalize(z_b).T
    return -torch.cdist(z_a, z_b, compute_mode="donot_use_mm_for_euclid_dist")


def shares_by_duality(z_a, z_b, ids, truth, t, price, similarity="cosine", clamp=None):
    """The shares of both sides, [N, M + 1] and [M, N + 1], the last column for "none"."""
    s = scores_of(z_a, z_b, similarity).detach()
    found = [torch.zeros(len(x), len(y) + 1, dtype=torch.float64) for x, y in ((z_a, z_b), (z_b, z_a))]
    if truth == "hard":
        s = s if clamp is None else s.clamp_min(clamp)
        for side, (scores, own, other) in enumerate(((s, *ids), (s.T, ids[1], ids[0]))):
            for i, row in enumerate(scores):
                allowed = [*(row[j] for j in range(len(row)) if other[j] == own[i])]
                places = [j for j in range(len(row)) if other[j] == own[i]]
                if price is not None:
                    allowed, places = [*allowed, torch.tensor(-price)], [*places, len(row)]
                if places:
                    found[side][i, places] = torch.softmax(torch.stack(allowed).double() / t, 0)
        return found
    for one in {*ids[0].tolist()} & {*ids[1].tolist()}:
        i, j = ((x == one).nonzero()[:, 0] for x in ids)
        y = torch.from_numpy(by_duality(s[i[:, None], j].numpy(), t, None if price is None else -price / 2))
        found[0][i[:, None], j], found[1][j[:, None], i] = y, y.T
    if price is not None:
        for side in found:
            side[:, -1] = 1 - side[:, :-1].sum(1)
    return found


@pytest.mark.parametrize("price", [None, 0.3, -0.4])
@pytest.mark.parametrize("softness", [0.3, 1.0])
@pytest.mark.parametrize("ids", [SETS, EQUAL], ids=["unequal", "equal"])
def test_shares_equal_the_dual_of_scipy(many_passes, ids, softness, price):
    z_a, z_b = both_sides(len(ids[0]), len(ids[1]))
    sets = sw.Sets(*ids, "one-to-one", price, softness=softness)
    found = shares_inside(z_a, z_b, sets, "cosine", 0.5)
    expected = shares_by_duality(z_a, z_b, ids, "one-to-one", 0.5 * softness, price)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(
            ours, theirs if price is not None else theirs[:, :-1], rtol=0, atol=3e-5
        )  # scipy's own error


def test_blocks_and_whole_matrices_have_the_same_shares(monkeypatch):
    ids = torch.arange(48) // 4, torch.arange(40) % 10  # twelve sets of 4, ten of 4
    z_a, z_b = both_sides(48, 40)
    for price in (None, 0.2):
        sets = sw.Sets(*ids, "one-to-one", price, softness=0.2)
        blocks = shares_inside(z_a, z_b, sets, "cosine", 0.2)
        with monkeypatch.context() as patch:
            patch.setattr("setwise.losses.shares._blocks", lambda sets: None)  # as on a GPU
            torch.testing.assert_close(shares_inside(z_a, z_b, sets, "cosine", 0.2), blocks)


@pytest.mark.parametrize("softness", [0.05, 0.2, 1.0])
def test_thirty_passes_are_nearly_pots_sinkhorn(softness):
    ot = pytest.importorskip("ot")  # POT
    z_a, z_b = both_sides(32, 32, 16)
    z_b = z_a + 0.7 * z_b
    ids = torch.zeros(32, dtype=torch.int64)
    found = shares_inside(z_a, z_b, sw.Sets(ids, ids, "one-to-one", softness=softness), "cosine", 0.1)[0]
    cost, ones = -scores_of(z_a, z_b).detach().numpy(), np.ones(32)
    options = {"method": "sinkhorn_log", "numItermax": 5000, "stopThr": 1e-9, "warn": False}
    plan = ot.sinkhorn(ones, ones, cost, 0.1 * softness, **options)
    assert np.abs(plan.sum(0) - 1).max() < 1e-3, "a good reference"
    assert np.abs(found.numpy() - plan).sum(1).mean() < 0.02
    torch.testing.assert_close(found.sum(1), torch.ones(32, dtype=torch.float64))


def learned(value):
    return nn.Parameter(torch.tensor(value, dtype=torch.float64))


LOSSES = {
    "info-nce": lambda: sw.InfoNCE(0.3),
    "info-nce, both ways": lambda: sw.InfoNCE(0.3, symmetric=True, similarity="euclidean"),
    "info-nce, learned, blocks": lambda: sw.InfoNCE(learned(0.3), symmetric=True, block_size=2),
    "nt-xent": lambda: sw.NTXent(0.4, clamp=0.1),
    "sparse-clr": lambda: sw.SparseCLR(0.4, temperature=0.7),
    "sparse-clr, cross, learned": lambda: sw.SparseCLR(0.4, candidates="cross", temperature=learned(0.7)),
    "triplet": lambda: sw.TripletMargin(0.3, similarity="cosine", symmetric=True),
}


def row_at_a_time(loss, z_a, z_b, extra, shares, price):
    """Σ_i m_i (smoothed maximum - <θ, shares> [+ ½|shares|²]) / Σ m, margins taken off by shares."""
    options, total, weight = loss.options, 0.0, 0.0
    sparse, smooth = isinstance(loss, sw.SparseCLR), not isinstance(loss, sw.TripletMargin)
    views = isinstance(loss, sw.NTXent) or options.get("candidates") == "all"
    z = (z_a, z_b)
    for side in (0, 1) if views or options.get("symmetric") else (0,):
        for i in range(len(z[side])):
            x, given = z[side][i : i + 1], shares[side][i]
            m = given.sum()
            if m == 0:
                continue
            others = [z[1 - side]]
            if views:
                others.append(torch.cat([z[side][:i], z[side][i + 1 :]]))
            if extra is not None:
                others.append(extra)
            theta = scores_of(x, torch.cat(others), options["similarity"])[0]
            if options.get("clamp") is not None:
                theta = theta.clamp_min(options["clamp"])
            part = torch.cat([given[:-1] / m, torch.zeros(len(theta) - len(given) + 1)])
            if price is not None:
                theta, part = torch.cat([theta, theta.new_tensor([-price])]), torch.cat([part, given[-1:] / m])
            theta = (theta - options.get("margin", 0.0) * part) / options.get("temperature", 1.0)
            if sparse:
                p = by_projection(theta.detach())
                best = theta @ p - p @ p / 2 + part @ part / 2
            else:
                best = torch.logsumexp(theta, 0) if smooth else theta.max()
            total, weight = total + m * (best - theta @ part), weight + m
    return total / weight


def by_projection(theta):
    """Sparsemax: the nearest point of the simplex, by bisection of its threshold."""
    low, high = float(theta.min()) - 1, float(theta.max())
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if (theta - middle).clamp_min(0).sum() > 1 else (low, middle)
    return (theta - low).clamp_min(0)


@pytest.mark.parametrize("price", [None, 0.3])
@pytest.mark.parametrize("truth", ["hard", "one-to-one"])
@pytest.mark.parametrize("name", LOSSES)
def test_losses_equal_a_loop_over_rows(many_passes, name, truth, price):
    loss = LOSSES[name]()
    z_a, z_b = both_sides()
    extra = torch.randn(3, 4, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    t = loss.options.get("temperature", 1.0)
    t = float(t.detach() if isinstance(t, torch.Tensor) else t) * 0.5
    how = (loss.options["similarity"], loss.options.get("clamp"))
    shares = shares_by_duality(z_a, z_b, SETS, truth, t, price, *how)
    expected = row_at_a_time(loss, z_a, z_b, extra, shares, price)
    found = loss(z_a, z_b, extra, sets=sw.Sets(*SETS, truth, price, softness=torch.tensor(0.5)))
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-5)
    assert found >= 0
    leaves = [z_a, z_b, *loss.parameters()]
    for ours, theirs in zip(*(torch.autograd.grad(x, leaves) for x in (found, expected)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-5)


def test_softness_goes_from_the_sets_own_maximum_to_a_single_partner(many_passes):
    z_a, z_b = both_sides(6, 6)
    for loss in (sw.InfoNCE(0.3, symmetric=True), sw.NTXent(0.3)):
        gradient = [
            torch.autograd.grad(loss(z_a, z_b, sets=sets), [z_a, z_b])
            for sets in (EQUAL, sw.Sets(*EQUAL, "hard", softness=1.0))
        ]
        torch.testing.assert_close(gradient[0], gradient[1])
        for truth in ("hard", "one-to-one"):
            values = [loss(z_a, z_b, sets=sw.Sets(*EQUAL, truth, softness=x)) for x in (1e-4, 0)]
            torch.testing.assert_close(values[0], values[1])
    for truth in ("hard", "one-to-one"):  # with one row of a set on each side there is nothing to doubt
        alone = torch.arange(6)
        torch.testing.assert_close(
            sw.InfoNCE(0.3)(z_a, z_b, sets=sw.Sets(alone, alone, truth, softness=0.5)), sw.InfoNCE(0.3)(z_a, z_b)
        )


def test_one_to_one_at_softness_one_is_the_difference_of_two_maxima(many_passes):
    ids, loss = EQUAL, sw.InfoNCE(0.5)
    z_a, z_b = both_sides(6, 6)

    def difference(z):
        theta = scores_of(z, z_b.detach()) / 0.5
        true = 0.0
        for one in range(3):
            i, j = ((x == one).nonzero()[:, 0] for x in ids)
            block = theta[i[:, None], j].detach().numpy()
            y = by_duality(block, 1.0)
            true += (block * y).sum() - (y * np.log(y)).sum()
        return (float(torch.logsumexp(theta, 1).sum()) - true) / 6

    found = torch.autograd.grad(loss(z_a, z_b, sets=sw.Sets(*ids, "one-to-one", softness=1.0)), z_a)[0]
    for place in ((0, 1), (3, 2), (5, 0)):
        step = torch.zeros_like(z_a)
        step[place] = 1e-4
        slope = (difference(z_a.detach() + step) - difference(z_a.detach() - step)) / 2e-4
        assert found[place].item() == pytest.approx(slope, abs=1e-5)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # Dynamo's own
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_compiles():
    torch.compiler.reset()
    loss = sw.InfoNCE(0.3, symmetric=True)
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    z_a, z_b = both_sides()
    sets = sw.Sets(*SETS, "one-to-one", softness=torch.tensor(0.3))
    torch.testing.assert_close(compiled(z_a, z_b, sets=sets), loss(z_a, z_b, sets=sets))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"truth": "hard", "softness": 1.5}, "expected softness from 0 to 1, got 1.5"),
        ({"truth": "hard", "softness": math.nan}, "expected softness from 0 to 1, got nan"),
        ({"truth": "hard", "softness": "0.5"}, "expected softness from 0 to 1, got '0.5'"),
        ({"truth": "hard", "softness": torch.ones(1)}, r"floating-point tensor of shape \(\) on cpu, got .* \(1,\)"),
        ({"softness": 0.5}, 'expected truth "hard" or "one-to-one" .* with a softness, got truth \'same\''),
        ({"truth": "quadratic", "softness": 0.5}, "with a softness, got truth 'quadratic'"),
    ],
)
def test_what_has_no_softness(options, message):
    z_a, z_b = both_sides(6, 6)
    with pytest.raises(ValueError, match=message):
        sw.InfoNCE()(z_a, z_b, sets=sw.Sets(*EQUAL, **options))


def test_assignments_of_the_whole_batch_have_no_softness():
    z_a, z_b = both_sides(6, 6)
    with pytest.raises(ValueError, match=r'whose rows choose freely with a softness, got mining="one-to-one"'):
        sw.AssignmentLoss(mining="one-to-one")(z_a, z_b, sets=sw.Sets(*EQUAL, "one-to-one", softness=0.5))
