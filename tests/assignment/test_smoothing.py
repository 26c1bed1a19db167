"""Every cell of the grid against enumeration, scipy, entmax or POT."""

import math
from functools import partial
from itertools import permutations, product

import entmax
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from setwise.assignment import assignment_maximum, row_maximum, sparsemax
from setwise.assignment.hull import _reached, unwatched_hull_maximum

NO = -math.inf


def theta(n: int, m: int | None = None, *, scale: float = 1.0, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(n, n if m is None else m, generator=generator, dtype=torch.float64)


def totals_of(t: Tensor) -> tuple[list[tuple[int, ...]], Tensor]:
    """All one-to-one assignments and their totals."""
    choices = list(permutations(range(t.shape[1]), len(t)))
    return choices, torch.stack([t[range(len(t)), list(p)].sum() for p in choices])


def simplex_quadratic_maximum(x: Tensor) -> float:
    """max_p <p, x> - ½|p|² over the simplex by scipy's SLSQP, an independent solver."""
    v = x.numpy()
    start = np.full(len(v), 1 / len(v))
    solution = minimize(
        lambda p: 0.5 * p @ p - p @ v,
        start,
        jac=lambda p: p - v,
        bounds=[(0, 1)] * len(v),
        constraints={"type": "eq", "fun": lambda p: p.sum() - 1, "jac": lambda p: np.ones_like(p)},
        options={"ftol": 1e-14, "maxiter": 1000},
    )
    return -solution.fun


@pytest.mark.parametrize("smoothing", ["none", "entropy", "sparse"])
def test_row_maxima(smoothing):
    t = theta(5, 7, scale=2)
    best = row_maximum(t, smoothing=smoothing)
    expected = {
        "none": lambda: t.max(1).values,
        "entropy": lambda: torch.log(torch.exp(t).sum(1)),
        "sparse": lambda: torch.tensor([simplex_quadratic_maximum(row) for row in t], dtype=t.dtype),
    }[smoothing]()
    torch.testing.assert_close(best.value, expected, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(best.argmax.sum(1), torch.ones(5, dtype=t.dtype))


def test_row_log_sum_exp_is_the_sum_over_all_free_choices():
    # What makes Eq. (13) exactly Eq. (4) on the larger domain.
    t = theta(3)
    all_choices = torch.stack([t[range(3), list(c)].sum() for c in product(range(3), repeat=3)])
    torch.testing.assert_close(row_maximum(t, smoothing="entropy").value.sum(), torch.logsumexp(all_choices, 0))


def test_log_permanent_of_many_equal_entries_is_log_factorial():
    for n in (1, 8, 12, 16):
        value = assignment_maximum(torch.full((n, n), 0.5, dtype=torch.float64), smoothing="entropy").value
        assert value.item() == pytest.approx(0.5 * n + math.lgamma(n + 1), rel=1e-12)


@given(n=st.integers(1, 6), scale=st.floats(0.05, 20), seed=st.integers(0, 10_000))
@settings(max_examples=60)
def test_the_sandwich_of_eq_4_and_its_sinkhorn_form(n, scale, seed):
    t = theta(n, scale=scale, seed=seed)
    _, totals = totals_of(t)
    exact = torch.logsumexp(totals, 0).item()
    relaxed = assignment_maximum(t, smoothing="sinkhorn").value.item()
    slack = 1e-9 * (1 + abs(exact))
    assert exact - slack <= relaxed <= exact + n * math.log(n) - math.lgamma(n + 1) + slack


def birkhoff_projection(t: np.ndarray) -> np.ndarray:
    """argmin |Y - θ|² over doubly stochastic Y by Dykstra's alternating projections, an independent method.

    Y is 0 where θ is -inf.
    """
    n, allowed = len(t), np.isfinite(t)
    y, correction = np.where(allowed, t, 0.0), np.zeros_like(t)
    for _ in range(20_000):
        row = y.sum(1, keepdims=True) - 1
        affine = y - row / n - (y.sum(0, keepdims=True) - 1) / n + row.sum() / n**2  # onto row and column sums 1
        y, previous = np.where(allowed, np.maximum(affine + correction, 0), 0.0), y
        correction = affine + correction - y
        if np.abs(y - previous).max() < 1e-14:
            break
    return y


@pytest.mark.parametrize("smoothing", ["sinkhorn", "sparsemap"])
@pytest.mark.parametrize(
    ("forbidden", "scale"),
    [*((0.0, x) for x in (1e-2, 1.0, 1e2, 1e4)), (0.2, 0.1), (0.2, 10.0), (0.9, 0.1), (0.9, 10.0)],
)
def test_hull_solvers_converge_at_any_size_and_scale(smoothing, forbidden, scale):
    for n in (3, 40, 100):
        t = theta(n, scale=scale, seed=n)
        t[(torch.rand(t.shape, generator=torch.Generator().manual_seed(3)) < forbidden) & ~torch.eye(n).bool()] = NO
        best = assignment_maximum(t, smoothing=smoothing)
        assert best.converged
        assert (best.argmax[t == NO] == 0).all()
        for axis in (0, 1):
            torch.testing.assert_close(best.argmax.sum(axis), torch.ones(n, dtype=t.dtype), rtol=0, atol=1e-9)


def test_a_hull_solver_that_runs_out_of_steps_says_so(monkeypatch):
    monkeypatch.setattr("setwise.assignment.hull.NEWTON_STEPS", 1)
    assert not assignment_maximum(theta(30, scale=3), smoothing="sparsemap").converged


FORBIDDEN = [
    [[0, 0, 0, 0], [0, NO, 0, 0], [0, 0, 0, NO], [NO, 0, 0, 0]],
    [[0, NO, NO, NO], [0, 0, NO, NO], [0, 0, 0, NO], [0, 0, 0, 0]],  # the identity alone is left
    [[NO, 0, NO, NO], [0, NO, NO, NO], [0, 0, 0, 0], [NO, 0, 0, 0]],  # two parts that have nothing in common
]


@pytest.mark.parametrize("smoothing", ["none", "entropy", "sparse"])
@pytest.mark.parametrize("forbidden", FORBIDDEN)
def test_rows_with_forbidden_pairs(smoothing, forbidden):
    t = theta(4) + torch.tensor(forbidden)
    best = row_maximum(t, smoothing=smoothing)
    assert (best.argmax[t == NO] == 0).all()
    for row, value, argmax in zip(t, best.value, best.argmax, strict=True):
        alone = row_maximum(row[row > NO][None], smoothing=smoothing)
        torch.testing.assert_close(value, alone.value[0])
        torch.testing.assert_close(argmax[row > NO], alone.argmax[0])


def reference(t: Tensor, smoothing: str) -> tuple[Tensor, Tensor]:
    """Plan and value: over all assignments, by POT or by Dykstra's projections."""
    choices, totals = totals_of(t)
    finite = t.masked_fill(t == NO, 0)
    if smoothing == "sinkhorn":
        ot = pytest.importorskip("ot")  # POT
        in_one = torch.zeros_like(t, dtype=torch.bool)  # pairs that some assignment has; Sinkhorn's scaling needs these
        for total, choice in zip(totals, choices, strict=True):
            in_one[range(len(t)), list(choice)] |= total > NO
        cost, ones = -t.masked_fill(~in_one, NO).numpy(), np.ones(len(t))
        plan = torch.from_numpy(
            ot.sinkhorn(ones, ones, cost, 1.0, method="sinkhorn_log", numItermax=100_000, stopThr=1e-13)
        )
        return plan, (plan * finite).sum() - torch.special.xlogy(plan, plan).sum()
    if smoothing == "sparsemap":
        plan = torch.from_numpy(birkhoff_projection(t.numpy()))
        return plan, (plan * finite).sum() - 0.5 * plan.square().sum()
    p, value = {
        "none": lambda: (torch.nn.functional.one_hot(totals.argmax(), len(totals)).to(t), totals.max()),
        "entropy": lambda: (torch.softmax(totals, 0), torch.logsumexp(totals, 0)),
        "sparse": lambda: (entmax.sparsemax(totals, -1), simplex_quadratic_maximum(totals[totals > NO])),
    }[smoothing]()
    plan = torch.zeros_like(t)
    for weight, choice in zip(p, choices, strict=True):
        plan[range(len(t)), list(choice)] += weight
    return plan, torch.as_tensor(value, dtype=t.dtype)


SCORES = [
    *(theta(n, seed=n) for n in (1, 2, 3, 5)),
    *(theta(6, scale=scale, seed=9) for scale in (0.1, 5.0)),
    torch.zeros(4, 4, dtype=torch.float64),  # ties everywhere
    *(theta(4, seed=1) + torch.tensor(forbidden) for forbidden in FORBIDDEN),
]


@pytest.mark.parametrize("smoothing", ["none", "entropy", "sinkhorn", "sparse", "sparsemap"])
@pytest.mark.parametrize("t", SCORES, ids=range(len(SCORES)))
def test_one_to_one_maxima_equal_enumeration(smoothing, t):
    plan, value = reference(t, smoothing)
    best = assignment_maximum(t, smoothing=smoothing)
    torch.testing.assert_close(best.value, value, rtol=1e-7, atol=1e-7)
    if smoothing != "none" or t.any():  # else all plans are as good
        torch.testing.assert_close(best.argmax, plan, rtol=0, atol=1e-7)
    assert (best.argmax[t == NO] == 0).all()
    assert best.converged


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("t", [*SCORES, theta(40, scale=10)], ids=range(len(SCORES) + 1))
def test_the_relaxed_maximum_that_nothing_waits_for(t, device):
    if len(t) < 7:
        plan, value = reference(t, "sinkhorn")
    else:
        expected = assignment_maximum(t, smoothing="sinkhorn")
        plan, value = expected.argmax, expected.value
    best = unwatched_hull_maximum(t.to(device))
    torch.testing.assert_close(best.value.cpu(), value, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(best.argmax.cpu(), plan, rtol=0, atol=1e-7)


def test_paths_of_any_length():
    edges = torch.rand(200, 200, generator=torch.Generator().manual_seed(0)) < 0.006
    group = torch.from_numpy(connected_components(edges.numpy(), connection="strong")[1])
    reached = _reached(edges)
    assert 1 < len(group.unique()) < 200
    assert ((group[:, None] == group) == (reached & reached.mT)).all()
    assert _reached(torch.eye(33).roll(1, 0).bool()).all()  # one circle: paths as long as can be


@pytest.mark.parametrize("smoothing", ["none", "entropy", "sinkhorn", "sparse", "sparsemap"])
def test_nothing_is_left_to_choose(smoothing):
    with pytest.raises(ValueError, match="got row 1 with every pair forbidden"):
        assignment_maximum(torch.tensor([[0.0, 0.0], [NO, NO]]), smoothing=smoothing)
    with pytest.raises(ValueError, match="to allow an assignment, got rows that share too few"):
        assignment_maximum(torch.tensor([[0.0, NO, NO], [0.0, NO, NO], [0.0, 0.0, 0.0]]), smoothing=smoothing)
    if smoothing in ("none", "entropy", "sparse"):
        with pytest.raises(ValueError, match="got row 1 with every pair forbidden"):
            row_maximum(torch.tensor([[0.0, 0.0], [NO, NO]]), smoothing=smoothing)


DOORS = [
    sparsemax,
    *(partial(row_maximum, smoothing=s) for s in ("none", "entropy", "sparse")),
    *(partial(assignment_maximum, smoothing=s) for s in ("none", "entropy", "sinkhorn", "sparse", "sparsemap")),
]


@pytest.mark.parametrize("door", DOORS)
def test_scores_that_are_refused(door):
    with pytest.raises(ValueError, match="theta of a floating-point dtype, got torch.int64; convert"):
        door(torch.eye(3, dtype=torch.long))
    for value in (math.nan, math.inf):
        t = theta(3)
        t[1, 2] = value
        with pytest.raises(ValueError, match="expected theta to be finite or -inf"):
            door(t)
    if door is not sparsemax:
        with pytest.raises(ValueError, match=r"theta of shape \(N, M\), got \(1, 3, 3\)"):
            door(theta(3)[None])


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("smoothing", ["none", "entropy", "sparse"])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_where_values_are_not_looked_at_nan_comes_out(device, smoothing, value):
    t = theta(3).to(device)
    t[1, 2] = value
    rows = torch.compile(partial(row_maximum, smoothing=smoothing), backend="eager", fullgraph=True)
    for find in [rows] if device == "cpu" else [rows, partial(row_maximum, smoothing=smoothing)]:
        best = find(t)
        assert best.value.isnan().tolist() == [False, True, False]
        assert best.argmax.isnan().any(1).tolist() == [False, True, False]


@pytest.mark.parametrize("width", [1, 7, 300])
def test_sparsemax_equals_entmax(monkeypatch, width):
    """By passes, eager, and by sorting, compiled; rows with ties, of one choice, of all, that take many passes."""
    monkeypatch.setattr("setwise.assignment.rows.CACHED_SCORES", 3 * width)  # three rows at a time
    t = theta(8, width)
    t[1], t[2], t[3] = 0.5, 100 * t[2], 1e-6 * t[3]
    t[4] = -(0.6 ** torch.arange(width))
    t[5] = 1e6 + (t[5] * 4).round() / 4
    t[6, 1:] = NO
    t[7] = t[7].where(t[7] > 0, NO)
    t[7, 0] = 0
    expected = entmax.sparsemax(t, -1)
    for found in (sparsemax(t), torch.compile(sparsemax, backend="eager", fullgraph=True)(t)):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
        assert ((found > 0) == (expected > 0)).all()
    torch.testing.assert_close(sparsemax(t[:5].bfloat16()), entmax.sparsemax(t[:5].bfloat16().double(), -1).bfloat16())


def test_bad_options():
    with pytest.raises(ValueError, match="expected at most 16 rows .* got 17; 'sinkhorn' is the related form"):
        assignment_maximum(theta(17), smoothing="entropy")
    with pytest.raises(ValueError, match="expected at most 7 rows .* got 8; 'sparsemap' is the related form"):
        assignment_maximum(theta(8), smoothing="sparse")
    with pytest.raises(ValueError, match="expected as many columns as rows"):
        assignment_maximum(theta(3, 5), smoothing="sparsemap")
    with pytest.raises(ValueError, match="did you mean 'entropy'"):
        row_maximum(theta(3), smoothing="entropic")
