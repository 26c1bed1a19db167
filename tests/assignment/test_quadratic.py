"""solve_quadratic and quadratic_objective against enumeration, QAPLIB's proven optima and invariances."""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import quadratic_assignment
from torch import Tensor

from setwise.assignment import heuristics, proof, quadratic, walks
from setwise.assignment.linear import solve_linear
from setwise.assignment.quadratic import quadratic_objective, solve_quadratic

# Instances of QAPLIB (Burkard, Karisch, Rendl 1997), all symmetric, with their proven optima.
QAPLIB = json.loads(Path(__file__).with_name("qaplib.json").read_text())
SMALL = [name for name, instance in QAPLIB.items() if len(instance["a"]) <= 12]  # small enough for a proof


def problem(n: int, seed: int, *, whole: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Asymmetric a, b and linear in float64; small whole numbers have many ties."""
    generator = torch.Generator().manual_seed(seed)
    if whole:
        return tuple(torch.randint(-2, 3, (3, n, n), generator=generator).double())
    return tuple(torch.randn(3, n, n, generator=generator, dtype=torch.float64))


def loops(a: Tensor, b: Tensor, linear: Tensor, p: tuple[int, ...]) -> float:
    """The objective as the sum it is."""
    n = len(p)
    pairs = sum(float(a[i, j] * b[p[i], p[j]]) for i in range(n) for j in range(n))
    return pairs + sum(float(linear[i, p[i]]) for i in range(n))


def enumerate_values(a: Tensor, b: Tensor, linear: Tensor) -> np.ndarray:
    """The objective of all N! permutations, as traces of permutation matrices."""
    n = len(a)
    y = torch.eye(n, dtype=torch.float64)[torch.tensor(list(permutations(range(n))))]
    return (linear * y + (a @ y @ b.T) * y).sum((1, 2)).numpy()


def qaplib(name: str) -> tuple[Tensor, Tensor, int]:
    instance = QAPLIB[name]
    return torch.tensor(instance["a"]).double(), torch.tensor(instance["b"]).double(), instance["optimum"]


# --- the objective


def test_objective_gradient() -> None:
    a, b, linear = (x.requires_grad_() for x in problem(4, 1))
    p = torch.tensor([2, 0, 3, 1])
    assert torch.autograd.gradcheck(lambda a, b, c: quadratic_objective(a, b, p, c), (a, b, linear))
    quadratic_objective(a, b, p, linear).backward()
    assert torch.equal(linear.grad, torch.eye(4, dtype=torch.float64)[p])


# --- exact


@settings(max_examples=60)
@given(
    n=st.integers(1, 6),
    seed=st.integers(0, 10**6),
    maximize=st.booleans(),
    whole=st.booleans(),
    with_linear=st.booleans(),
    symmetric=st.sampled_from(["none", "a", "b", "both"]),
    scale=st.sampled_from([1e-4, 1.0, 1e4]),
)
def test_exact_is_enumeration(n, seed, maximize, whole, with_linear, symmetric, scale) -> None:
    a, b, linear = (scale * x for x in problem(n, seed, whole=whole))
    if symmetric in ("a", "both"):
        a = a + a.T
    if symmetric in ("b", "both"):
        b = b + b.T
    if not with_linear:
        linear = torch.zeros_like(linear)
    values = enumerate_values(a, b, linear)
    solution = solve_quadratic(a, b, linear if with_linear else None, maximize=maximize)
    assert solution.optimal
    assert isinstance(solution.value, float)
    near = {"rel": 1e-9, "abs": 1e-9 * scale**2}
    assert solution.value == pytest.approx(values.max() if maximize else values.min(), **near)
    assert loops(a, b, linear, tuple(solution.permutation.tolist())) == pytest.approx(solution.value, **near)
    objective = quadratic_objective(a, b, solution.permutation, linear if with_linear else None)
    assert objective.item() == pytest.approx(solution.value, **near)


@pytest.mark.parametrize("chunk", [3, proof.CHUNK])
@pytest.mark.parametrize("seed", range(20))
def test_search_finds_the_optimum_from_the_worst_start(monkeypatch: pytest.MonkeyPatch, seed: int, chunk: int) -> None:
    # solve_quadratic hands over a start that is nearly always optimal; here the tree has to do the work.
    monkeypatch.setattr(proof, "CHUNK", chunk)
    n = 4 + seed % 4
    a, b, linear = problem(n, seed, whole=seed % 2 == 0)
    values = enumerate_values(a, b, linear)
    worst = np.array(list(permutations(range(n)))[values.argmax()])
    found = proof.branch_and_bound(a.numpy(), b.numpy(), linear.numpy(), worst)
    assert loops(a, b, linear, tuple(found)) == pytest.approx(values.min(), abs=1e-9)


@pytest.mark.parametrize(("name", "method"), [*((x, "exact") for x in SMALL), *((x, "tabu") for x in QAPLIB)])
def test_qaplib_optimum_is_proved_or_reached(name: str, method: str) -> None:
    a, b, optimum = qaplib(name)
    solution = solve_quadratic(a, b, method=method)
    assert solution.optimal == (method == "exact")
    assert solution.value == optimum
    assert loops(a, b, torch.zeros_like(a), tuple(solution.permutation.tolist())) == optimum


# --- heuristics


def planted_tree(n: int, seed: int) -> tuple[Tensor, Tensor, float]:
    """Flows along a random tree, distances without structure, as in QAPLIB's chr, and the optimum.

    The tree has the shortest distances, the heaviest edge the very shortest: no order of the products is cheaper.
    """
    generator = torch.Generator().manual_seed(seed)
    child = torch.arange(1, n)
    parent = (torch.rand(n - 1, generator=generator) * child).long()
    shuffle = torch.randperm(n - 1, generator=generator)
    edges = child[shuffle], parent[shuffle]
    weights = torch.randint(1, 100, (n - 1,), generator=generator).double().sort(descending=True).values
    distances = torch.randint(1, 100, (n * (n - 1) // 2,), generator=generator).double().sort().values
    a, b = torch.zeros(2, n, n, dtype=torch.float64)
    a[edges], b[edges] = weights, distances[: n - 1]
    rest = torch.ones(n, n).tril(-1).bool() & (b == 0)
    b[rest] = distances[n - 1 :][torch.randperm(int(rest.sum()), generator=generator)]
    hidden = torch.randperm(n, generator=generator)
    return a + a.T, (b + b.T)[hidden][:, hidden], 2 * float(weights @ distances[: n - 1])


@pytest.mark.parametrize("seed", range(3))
def test_tabu_finds_a_hidden_tree(seed: int) -> None:
    a, b, optimum = planted_tree(25, 2)  # walks that learn nothing from each other end 74 to 103 % above
    solution = solve_quadratic(a, b, method="tabu", generator=torch.Generator().manual_seed(seed))
    assert solution.value == optimum


def check_no_swap_helps(a: Tensor, b: Tensor, linear: Tensor, p: Tensor) -> None:
    value = quadratic_objective(a, b, p, linear).item()
    for r in range(len(p)):
        for s in range(r):
            swapped = p.clone()
            swapped[[r, s]] = p[[s, r]]
            assert quadratic_objective(a, b, swapped, linear).item() >= value - 1e-9


@pytest.mark.parametrize("name", QAPLIB)
def test_faq_is_near_qaplib_optimum(name: str) -> None:
    a, b, optimum = qaplib(name)
    solution = solve_quadratic(a, b, method="faq")
    assert not solution.optimal
    assert optimum <= solution.value <= 1.15 * optimum  # chr12a, the hardest for descent, is 10 % off
    check_no_swap_helps(a, b, torch.zeros_like(a), solution.permutation)


@pytest.mark.parametrize("seed", range(4))
def test_faq_of_asymmetric_matrices_ends_where_no_swap_helps(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(heuristics, "_frank_wolfe", lambda a, *_: np.arange(len(a)))  # far away: many swaps
    a, b, linear = problem(14, seed)
    check_no_swap_helps(a, b, linear, solve_quadratic(a, b, linear, method="faq").permutation)


@pytest.mark.parametrize("method", ["tabu", "faq"])
@pytest.mark.parametrize("n", [1, 2, 3, 6])
def test_heuristics_on_tiny_problems(method: str, n: int) -> None:
    for seed in range(5):
        a, b, linear = problem(n, seed)
        values = enumerate_values(a, b, linear)
        solution = solve_quadratic(a, b, linear, method=method, maximize=True)
        assert not solution.optimal
        assert sorted(solution.permutation.tolist()) == list(range(n))
        assert solution.value <= values.max() + 1e-9
        if method == "tabu":
            assert solution.value == pytest.approx(values.max())


def test_initial_permutation_is_kept_where_it_is_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heuristics, "_frank_wolfe", lambda a, *_: np.arange(len(a)))  # wherever that may lead
    for seed in range(8):
        a, b, linear = problem(6, seed)
        best = torch.tensor(list(permutations(range(6)))[enumerate_values(a, b, linear).argmin()])
        assert solve_quadratic(a, b, linear, method="faq", initial=best).permutation.tolist() == best.tolist()


def test_tabu_takes_a_forbidden_swap_rather_than_none(monkeypatch: pytest.MonkeyPatch) -> None:
    moves = []
    move = heuristics._Swaps.move

    def record(self, u, v, change) -> None:
        moves.append(bool((u != v).all() and np.isfinite(change).all()))
        move(self, u, v, change)

    monkeypatch.setattr(heuristics._Swaps, "move", record)
    solve_quadratic(*problem(2, 6), method="tabu")  # one swap only, and it is forbidden most of the time
    assert len(moves) > 100
    assert all(moves)


def test_frank_wolfe_sees_the_linear_term() -> None:
    linear = torch.rand(30, 30, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    zero = torch.zeros_like(linear)
    assert solve_quadratic(zero, zero, linear, method="faq").permutation.tolist() == solve_linear(linear).tolist()


def test_large_problem_recovers_a_relabelling() -> None:
    # Above the limit of the tabu search, and its optimum is known: by Cauchy and Schwarz no permutation
    # of two copies of a set has a larger product of distances than the one that undoes the relabelling.
    generator = torch.Generator().manual_seed(7)
    points = torch.randn(260, 3, generator=generator, dtype=torch.float64)
    hidden = torch.randperm(260, generator=generator)
    distances = torch.cdist(points, points)
    solution = solve_quadratic(distances, distances[hidden][:, hidden], maximize=True)
    assert not solution.optimal
    assert hidden[solution.permutation].tolist() == list(range(260))
    assert solution.value == pytest.approx(distances.square().sum().item())


# --- unequal sizes, pairs that are given


def injections(n: int, m: int) -> list[tuple[int, ...]]:
    """All ways to give min(n, m) of n rows a column of their own, -1 for the others."""
    if n <= m:
        return list(permutations(range(m), n))
    found = []
    for rows in permutations(range(n), m):
        p = [-1] * n
        for column, row in enumerate(rows):
            p[row] = column
        found.append(tuple(p))
    return found


def partial_loops(a: Tensor, b: Tensor, linear: Tensor, p: tuple[int, ...]) -> float:
    rows = [i for i in range(len(p)) if p[i] >= 0]
    pairs = sum(float(a[i, j] * b[p[i], p[j]]) for i in rows for j in rows)
    return pairs + sum(float(linear[i, p[i]]) for i in rows)


@pytest.mark.parametrize("method", ["exact", "tabu", "faq"])
@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("given", [0, 1, 2])
@pytest.mark.parametrize(("n", "m"), [(2, 2), (2, 5), (5, 4), (4, 4)])
def test_unequal_sizes_and_given_pairs_are_enumeration(n: int, m: int, given: int, maximize: bool, method: str) -> None:
    for seed in range(2):
        a, b, linear = problem(6, seed)
        a, b, linear = a[:n, :n], b[:m, :m], linear[:n, :m]
        generator = torch.Generator().manual_seed(seed)
        pairs = torch.stack([torch.randperm(size, generator=generator)[:given] for size in (n, m)], 1)
        allowed = [p for p in injections(n, m) if all(p[i] == j for i, j in pairs.tolist())]
        values = [partial_loops(a, b, linear, p) for p in allowed]
        best = max(values) if maximize else min(values)
        solution = solve_quadratic(a, b, linear, maximize=maximize, method=method, partial_match=pairs)
        found = tuple(solution.permutation.tolist())
        assert found in allowed
        assert solution.value == pytest.approx(partial_loops(a, b, linear, found))
        assert quadratic_objective(a, b, solution.permutation, linear).item() == pytest.approx(solution.value)
        assert solution.optimal == (method == "exact")
        if method == "faq":
            start = torch.tensor(allowed[int(np.argmax(values) if maximize else np.argmin(values))])
            options = {"method": "faq", "initial": start, "partial_match": pairs}
            assert solve_quadratic(a, b, linear, maximize=maximize, **options).value == pytest.approx(best)
        else:
            assert solution.value == pytest.approx(best)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("given", [1, 5, 12, 20])
def test_given_pairs_are_kept_and_the_rest_is_as_good_as_scipys(given: int, seed: int) -> None:
    a, b, _ = problem(20, seed)
    generator = torch.Generator().manual_seed(seed)
    pairs = torch.stack([torch.randperm(20, generator=generator)[:given] for _ in range(2)], 1)
    ours = solve_quadratic(a, b, partial_match=pairs)
    assert ours.permutation[pairs[:, 0]].tolist() == pairs[:, 1].tolist()
    assert sorted(ours.permutation.tolist()) == list(range(20))
    in_order = pairs[pairs[:, 0].argsort()].numpy()  # scipy 1.17's 2opt loses pairs whose rows do not ascend
    for method in ("faq", "2opt"):
        options = {"partial_match": in_order, "rng": np.random.default_rng(seed)}
        theirs = quadratic_assignment(a.numpy(), b.numpy(), method=method, options=options)
        assert theirs.col_ind[in_order[:, 0]].tolist() == in_order[:, 1].tolist()
        assert ours.value <= theirs.fun + 1e-9


@pytest.mark.parametrize(("n", "m"), [(6, 6), (4, 6), (6, 4)])
def test_initial_permutation_of_a_part_is_the_start(monkeypatch: pytest.MonkeyPatch, n: int, m: int) -> None:
    monkeypatch.setattr(quadratic, "descend", lambda a, b, linear, rng, start: start)
    a, b, linear = problem(6, 0)
    for p in injections(n, m)[::37]:
        pairs = torch.tensor([[i, j] for i, j in enumerate(p) if j in (1, 2)]).reshape(-1, 2)
        options = {"method": "faq", "initial": torch.tensor(p), "partial_match": pairs}
        assert solve_quadratic(a[:n, :n], b[:m, :m], linear[:n, :m], **options).permutation.tolist() == list(p)


# --- invariances, ties, precision


@pytest.mark.parametrize("n", [7, 20])
def test_result_is_repeatable_and_leaves_the_global_generators_alone(n: int) -> None:
    a, b, linear = problem(n, 8)
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()
    first, second = (solve_quadratic(a, b, linear) for _ in range(2))
    assert first.permutation.tolist() == second.permutation.tolist()
    assert first.value == second.value
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert (np.random.get_state()[1] == numpy_state).all()


def test_generator_draws_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quadratic, "TABU_STEPS", 1)  # short walks end where they start
    a, b, linear = problem(40, 9)

    def values(seed: int) -> list[float]:
        generator = torch.Generator().manual_seed(seed)
        return [solve_quadratic(a, b, linear, method="tabu", generator=generator).value for _ in range(3)]

    assert values(1) == values(1)
    assert len({*values(1), *values(2)}) > 1


@pytest.mark.parametrize("method", ["exact", "tabu", "faq"])
@pytest.mark.parametrize("fill", [0.0, 1.0, 0.1])
def test_identical_entries(method: str, fill: float) -> None:
    x = torch.full((12, 12), fill)
    solution = solve_quadratic(x, x, x, method=method)  # must end at once, not search 12! equal leaves
    assert sorted(solution.permutation.tolist()) == list(range(12))
    assert solution.value == pytest.approx(144 * fill**2 + 12 * fill)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_dtypes_and_gradients(dtype: torch.dtype) -> None:
    a, b, linear = (x.to(dtype).requires_grad_() for x in problem(6, 13))
    solution = solve_quadratic(a, b, linear)
    wide = solve_quadratic(a.double(), b.double(), linear.double())
    assert solution.permutation.dtype == torch.long
    assert solution.permutation.tolist() == wide.permutation.tolist()
    assert solution.value == wide.value
    assert quadratic_objective(a, b, solution.permutation, linear).dtype == dtype


@pytest.mark.gpu
def test_device_is_kept() -> None:
    a, b, linear = (x.cuda() for x in problem(6, 14))
    generator = torch.Generator("cuda").manual_seed(0)
    solution = solve_quadratic(a, b, linear, generator=generator)
    assert solution.permutation.device == a.device
    assert solution.value == pytest.approx(quadratic_objective(a, b, solution.permutation, linear).item())
    with pytest.raises(ValueError, match="expected b to be finite"):
        solve_quadratic(a, b / 0)


# --- many walks at once in torch, which a GPU takes


CPU = torch.device("cpu")


@pytest.fixture
def walked(monkeypatch: pytest.MonkeyPatch) -> None:
    """``solve_quadratic`` takes the way of a GPU, on the CPU, with fewer walks."""
    monkeypatch.setattr(walks, "WALKS", 24)
    monkeypatch.setattr(quadratic, "tabu", lambda a, b, linear, rng, steps: walks.tabu_walks(a, b, linear, rng, CPU))


def whole_problem(n: int, symmetric: bool, with_linear: bool) -> tuple[np.ndarray, ...]:
    """Whole numbers: no sum is rounded, and ties are many."""
    a, b, linear = (x.numpy() for x in problem(n, 3, whole=True))
    if symmetric:
        a, b = a + a.T, b + b.T
    return a, b, linear * with_linear


def check_run(device: torch.device, n: int, symmetric: bool, with_linear: bool) -> None:
    a, b, linear = whole_problem(n, symmetric, with_linear)
    p = np.stack([np.random.default_rng(seed).permutation(n) for seed in range(16)])
    ours, penalty = walks._Walks(a, b, linear, len(p), device), 4 * heuristics.scale(a, b, linear)
    for seed in range(3):  # a second walk must know nothing of the first
        expected = heuristics._walk(heuristics._Swaps(a, b, linear, p), 10 * n, penalty, np.random.default_rng(seed))
        found = ours.run(p, 10 * n, np.random.default_rng(seed))
        assert (found[0] == expected[0]).all()
        assert (found[1] == expected[1]).all()
        assert found[1].tolist() == [loops(*map(torch.from_numpy, (a, b, linear)), tuple(q)) for q in found[0]]
        p = found[0][::-1].copy()


@pytest.mark.parametrize("with_linear", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("n", [2, 5, 12])
def test_walks_are_those_of_the_cpu_step_by_step(n: int, symmetric: bool, with_linear: bool) -> None:
    check_run(CPU, n, symmetric, with_linear)


@pytest.mark.gpu
@pytest.mark.parametrize("with_linear", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
def test_walks_of_a_gpu_are_those_of_the_cpu_step_by_step(symmetric: bool, with_linear: bool) -> None:
    check_run(torch.device("cuda"), 12, symmetric, with_linear)


@pytest.mark.parametrize("symmetric", [False, True])
def test_what_swaps_change_stays_exact(symmetric: bool) -> None:
    a, b, linear = problem(7, 5)
    if symmetric:
        a, b = a + a.T, b + b.T
    p = np.stack([np.random.default_rng(seed).permutation(7) for seed in range(3)])
    ours = walks._Walks(a.numpy(), b.numpy(), linear.numpy(), 3, CPU)
    ours.run(p, 60, np.random.default_rng(0))
    for q, value, delta in zip(ours.p, ours.value, ours.delta, strict=True):
        assert value.item() == pytest.approx(quadratic_objective(a, b, q, linear).item())
        for r in range(7):
            for s in range(r):
                swapped = q.clone()
                swapped[[r, s]] = q[[s, r]]
                change = quadratic_objective(a, b, swapped, linear) - value
                assert delta[r, s].item() == pytest.approx(change.item(), abs=1e-10)
                assert delta[s, r].item() == pytest.approx(change.item(), abs=1e-10)


@pytest.mark.usefixtures("walked")
@pytest.mark.parametrize("n", [1, 2, 3, 6])
def test_walks_of_tiny_problems_are_enumeration(n: int) -> None:
    for seed in range(3):
        a, b, linear = problem(n, seed)
        solution = solve_quadratic(a, b, linear, method="tabu", maximize=True)
        assert solution.value == pytest.approx(enumerate_values(a, b, linear).max())
        assert not solution.optimal


@pytest.mark.usefixtures("walked")
@pytest.mark.parametrize("name", [name for name in QAPLIB if name != "nug20"])  # 20 rows take a second more
def test_walks_reach_qaplibs_optimum(name: str) -> None:
    a, b, optimum = qaplib(name)
    assert solve_quadratic(a, b, method="tabu").value == optimum


@pytest.mark.usefixtures("walked")
@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize(("n", "m", "given"), [(2, 5, 0), (5, 4, 1), (4, 4, 2)])
def test_walks_of_unequal_sizes_and_given_pairs_are_enumeration(n: int, m: int, given: int, maximize: bool) -> None:
    a, b, linear = problem(6, 1)
    a, b, linear = a[:n, :n], b[:m, :m], linear[:n, :m]
    pairs = torch.stack([torch.arange(given), torch.arange(given).flip(0)], 1)
    values = {p: partial_loops(a, b, linear, p) for p in injections(n, m) if all(p[i] == j for i, j in pairs.tolist())}
    solution = solve_quadratic(a, b, linear, maximize=maximize, method="tabu", partial_match=pairs)
    assert solution.value == pytest.approx((max if maximize else min)(values.values()))
    assert values[tuple(solution.permutation.tolist())] == pytest.approx(solution.value)


@pytest.mark.usefixtures("walked")
def test_walks_of_a_seed_give_one_result_no_worse_than_scipys() -> None:
    a, b, _ = problem(13, 4)

    def solved(seed: int) -> tuple[list[int], float]:
        found = solve_quadratic(a, b, method="tabu", generator=torch.Generator().manual_seed(seed))
        return found.permutation.tolist(), found.value

    first = solved(1)
    assert solved(1) == first
    for method in ("faq", "2opt"):
        theirs = quadratic_assignment(a.numpy(), b.numpy(), method=method, options={"rng": np.random.default_rng(0)})
        assert first[1] <= theirs.fun + 1e-9


@pytest.mark.gpu
@pytest.mark.parametrize("name", QAPLIB)
def test_a_gpu_reaches_qaplibs_optimum(name: str) -> None:
    a, b, optimum = qaplib(name)
    found = [solve_quadratic(a.cuda(), b.cuda(), method="tabu") for _ in range(2)]
    assert found[0].permutation.is_cuda
    assert found[0].value == optimum
    assert found[0].permutation.tolist() == found[1].permutation.tolist()


@pytest.mark.gpu
def test_a_gpu_finds_a_hidden_tree_and_never_waits_within_a_walk() -> None:
    a, b, optimum = planted_tree(30, 2)
    assert solve_quadratic(a.cuda(), b.cuda()).value == optimum
    ours = walks._Walks(a.numpy(), b.numpy(), np.zeros((30, 30)), 16, torch.device("cuda"))
    ours.run(np.tile(np.arange(30), (16, 1)), 5, np.random.default_rng(0))
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(5):
            ours._step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


# --- what Eq. (5) does to distances


def test_equation_5_points_the_wrong_way_for_distances() -> None:
    # Share of true partners found in noisy copies of small sets, by the linear part alone, by Eq. (5) as
    # printed, and with the sign of the quadratic part turned, at weight 1 and 1/N.
    n, draws = 6, 80
    generator = torch.Generator().manual_seed(16)
    hits = torch.zeros(4)
    for _ in range(draws):
        x = torch.randn(n, 2, generator=generator, dtype=torch.float64)
        hidden = torch.randperm(n, generator=generator)
        y = (x + 0.5 * torch.randn(n, 2, generator=generator, dtype=torch.float64))[hidden]
        s, s_a, s_b = torch.cdist(x, y), torch.cdist(x, x), torch.cdist(y, y)
        found = [solve_linear(s)]
        found += [solve_quadratic(weight * s_a, s_b, s).permutation for weight in (1.0, -1.0, -1 / n)]
        hits += torch.stack([(p == torch.argsort(hidden)).float().mean() for p in found])
    linear, printed, turned, light = (hits / draws).tolist()
    assert linear > 0.7
    assert printed < 0.4  # chance is 1/6
    assert turned > linear - 0.15
    assert light > linear - 0.05


# --- errors


def test_errors() -> None:
    x, large, swap = torch.rand(4, 4), torch.rand(17, 17), torch.tensor([1, 0, 2, 3])
    for call, message in (
        (lambda: solve_quadratic(x[:, :3], x), r"expected a to be square, of shape \(\.\.\., N, N\), got \(4, 3\)"),
        (lambda: solve_quadratic(x, x[:, :3]), r"expected b to be square"),
        (lambda: solve_quadratic(x, x, x[:3, :3]), r"expected linear of shape \(4, 4\) like a and b, got \(3, 3\)"),
        (lambda: solve_quadratic(x, x, partial_match=swap), r"expected partial_match of shape \(K, 2\)"),
        (
            lambda: solve_quadratic(x, x, partial_match=[(0, 1)]),
            r"expected partial_match of shape \(K, 2\) .* got list",
        ),
        (lambda: solve_quadratic(x, x, partial_match=torch.tensor([[0, 4]])), r"columns of 0\.\.3, each at most once"),
        (lambda: solve_quadratic(x, x, partial_match=torch.tensor([[2, 1], [2, 0]])), r"rows of 0\.\.3, each at most"),
        (
            lambda: solve_quadratic(x, x, method="faq", initial=swap, partial_match=torch.tensor([[0, 0]])),
            "expected initial to have the pairs of partial_match",
        ),
        (lambda: quadratic_objective(x, x[:3, :3], swap), r"columns of 0\.\.2, each at most once, and 1 of -1"),
        (lambda: quadratic_objective(x[:3, :3], x, swap[:3] - 1), r"columns of 0\.\.3, each at most once, got"),
        (lambda: solve_quadratic(x.expand(2, 4, 4), x), r"one problem at a time, got \(2, 4, 4\)"),
        (lambda: solve_quadratic(x, x.double()), "expected b of dtype torch.float32 like a"),
        (lambda: solve_quadratic(x.long(), x), "expected a of a floating-point dtype, got torch.int64"),
        (lambda: solve_quadratic(x, x, x / 0), "expected linear to be finite"),
        (lambda: solve_quadratic(x[:0, :0], x[:0, :0]), "at least one row"),
        (lambda: solve_quadratic(x, x, method="exactly"), "expected method to be one of .* did you mean 'exact'"),
        (lambda: solve_quadratic(large, large, method="exact"), "N <= 16 for method 'exact', got 17; use 'tabu' or"),
        (lambda: solve_quadratic(x, x, initial=swap), "expected initial with method 'faq' only, got it with 'exact'"),
        (lambda: solve_quadratic(x, x, method="faq", initial=swap // 2), r"initial to hold each of 0\.\.3 once, got"),
        (lambda: quadratic_objective(x, x, swap[:3]), r"expected permutation of shape \(4,\) and dtype torch.int64"),
        (lambda: quadratic_objective(x, x, swap // 2 * 2), r"to hold each of 0\.\.3 once, got \[0, 0, 2, 2\]"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
