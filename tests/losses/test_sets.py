"""Losses that know only the sets: against enumeration, plain loops, MIL-NCE's formula, labels and the paired losses."""

import math
from itertools import permutations, product

import entmax
import numpy as np
import pytest
import scipy.optimize
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import setwise as sw
from setwise.assignment.smoothing import best_partial
from setwise.losses import large, structured

SETS = torch.tensor([4, 4, -1, 9, 4, 9, 7]), torch.tensor([9, 4, 4, -1, 9, 3])  # 7 and 3 have no partner
TRUTHS = ["same", "hard", "one-to-one"]


def one_score(a: Tensor, b: Tensor, similarity: str) -> Tensor:
    if similarity == "cosine":
        return F.cosine_similarity(a, b, dim=0)
    d = (a - b).norm()
    return -d if similarity == "euclidean" else -(d**2)


def smooth_maximum(theta: Tensor, smoothing: str) -> Tensor:
    if smoothing == "none":
        return theta.max()
    if smoothing == "entropy":
        return torch.logsumexp(theta, 0)
    p = entmax.sparsemax(theta, dim=0)
    return theta @ p - p @ p / 2


def partners(scores: Tensor, sets, price: float | None) -> dict[int, int]:
    """The best one-to-one assignment inside each pair of sets, by trying all of them."""
    found = {}
    for one in {*sets[0].tolist()} & {*sets[1].tolist()}:
        i, j = ((x == one).nonzero()[:, 0].tolist() for x in sets)
        ways = [[*zip(i, x, strict=False)] for x in permutations(j, min(len(i), len(j)))]
        if len(i) > len(j):
            ways = [[*zip(x, j, strict=False)] for x in permutations(i, len(j))]
        if price is not None:
            ways = [[pair for pair in way if scores[pair] > -price] for way in ways]
        worth = [sum(scores[pair].item() + (price or 0) for pair in way) for way in ways]
        found |= dict(ways[worth.index(max(worth))])
    return found


def reference(loss, z_a: Tensor, z_b: Tensor, extra: Tensor | None, sets, truth="same", price=None) -> Tensor:
    """The row-wise loss, one row and one candidate at a time."""
    options = loss.options
    smoothing = options.get("smoothing", "none")
    if isinstance(loss, (sw.InfoNCE, sw.NTXent)):
        smoothing = "entropy"
    elif isinstance(loss, sw.SparseCLR):
        smoothing = "sparse"
    all_views = isinstance(loss, sw.NTXent) or options.get("candidates") == "all"
    a = [(0, i) for i in range(len(z_a))]
    b = [(1, j) for j in range(len(z_b))]
    z = (z_a, z_b)
    cross = torch.tensor([[one_score(x, y, options["similarity"]).item() for y in z_b] for x in z_a])
    matched = partners(cross, sets, price)
    matched = {(0, i): (1, j) for i, j in matched.items()} | {(1, j): (0, i) for i, j in matched.items()}
    rows = a + b if all_views or options.get("symmetric") else a
    losses = []
    for row in rows:
        side, i = row
        columns = [x for x in a + b if x != row] if all_views else (b, a)[side]
        theta = [one_score(z[side][i], z[s][j], options["similarity"]) for s, j in columns]
        true = [s != side and bool(sets[s][j] == sets[side][i]) for s, j in columns]
        if truth == "one-to-one":
            true = [matched.get(row) == x for x in columns]
        if extra is not None:
            more = extra if extra.ndim == 2 else extra[i]
            theta += [one_score(z[side][i], x, options["similarity"]) for x in more]
            true += [False] * len(more)
        values, flags = torch.stack(theta), torch.tensor(true)
        if options.get("clamp") is not None:
            values = values.clamp_min(options["clamp"])
        if price is not None:
            values = torch.cat([values, values.new_tensor([-price])])
            flags = torch.cat([flags, torch.tensor([True])])
        if truth != "same" and flags.any():
            best = values.detach().masked_fill(~flags, -math.inf).argmax()
            flags = torch.arange(len(flags)) == best
        if not flags.any():
            continue
        values = (values - options.get("margin", 0.0) * flags) / options.get("temperature", 1.0)
        losses.append(smooth_maximum(values, smoothing) - smooth_maximum(values[flags], smoothing))
    return torch.stack(losses).mean()


def learned(value: float) -> nn.Parameter:
    return nn.Parameter(torch.tensor(value, dtype=torch.float64))


ROWS = {
    "info-nce": lambda: sw.InfoNCE(0.3),
    "info-nce, both ways": lambda: sw.InfoNCE(0.3, symmetric=True, similarity="euclidean"),
    "info-nce, learned": lambda: sw.InfoNCE(learned(0.3), symmetric=True, similarity="sqeuclidean"),
    "info-nce, blocks": lambda: sw.InfoNCE(learned(0.3), symmetric=True, block_size=2),
    "nt-xent": lambda: sw.NTXent(0.4),
    "nt-xent, clamped": lambda: sw.NTXent(0.4, clamp=0.1, block_size=3),
    "nt-xent, learned": lambda: sw.NTXent(learned(0.4), similarity="euclidean"),
    "sparse-clr": lambda: sw.SparseCLR(),
    "sparse-clr, cross, learned": lambda: sw.SparseCLR(0.4, candidates="cross", temperature=learned(0.7)),
    "sparse-clr, blocks": lambda: sw.SparseCLR(0.4, temperature=0.7, block_size=2),
    "triplet": lambda: sw.TripletMargin(),
    "triplet, both ways": lambda: sw.TripletMargin(0.3, similarity="cosine", symmetric=True),
    "assignment, hard": lambda: sw.AssignmentLoss(margin=0.2, symmetric=True),
    "assignment, entropy": lambda: sw.AssignmentLoss(smoothing="entropy", temperature=0.5, margin=0.2),
    "assignment, sparse": lambda: sw.AssignmentLoss(smoothing="sparse", temperature=learned(0.5), margin=0.2),
}
CELLS = [
    sw.AssignmentLoss(
        mining="one-to-one", smoothing=smoothing, temperature=temperature, margin=0.3, similarity="cosine"
    )
    for smoothing, temperature in (
        *(("none", 1.0), ("entropy", 0.4), ("sparse", 0.4), ("sinkhorn", 0.4), ("sparsemap", 0.4)),
        ("entropy", learned(0.4)),
    )
]
EXACT = [x for x in CELLS if x.options["smoothing"] in ("none", "entropy", "sparse")]


def both_sides(n=7, m=6, e=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(x, e, generator=generator, dtype=torch.float64).requires_grad_() for x in (n, m)]


def negatives(kind: str) -> Tensor | None:
    shape = {"none": None, "bank": (3, 4), "own": (7, 2, 4)}[kind]
    generator = torch.Generator().manual_seed(9)
    return None if shape is None else torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()


def both_choose(loss) -> bool:
    return bool(loss.options.get("symmetric", loss.options.get("candidates", "all") == "all"))


def value_and_gradients(find, loss: nn.Module, *tensors: Tensor | None) -> list[Tensor]:
    value = find(*tensors)
    leaves = [x for x in (*tensors, *loss.parameters()) if x is not None]
    return [value.detach(), *torch.autograd.grad(value, leaves)]


@pytest.mark.parametrize("price", [None, 0.6, -0.2])
@pytest.mark.parametrize("truth", TRUTHS)
@pytest.mark.parametrize("kind", ["none", "bank", "own"])
@pytest.mark.parametrize("name", ROWS)
def test_rows_equal_a_loop_over_rows_and_candidates(name, kind, truth, price):
    loss, extra = ROWS[name](), negatives(kind)
    z_a, z_b = both_sides()
    sets = sw.Sets(*SETS, truth, price)
    if kind == "own" and both_choose(loss):
        with pytest.raises(ValueError, match=r"expected extra_negatives of shape \(K, E\) where both sides choose"):
            loss(z_a, z_b, extra, sets=sets)
        return
    expected = value_and_gradients(lambda *x: reference(loss, *x, SETS, truth, price), loss, z_a, z_b, extra)
    torch.testing.assert_close(value_and_gradients(lambda *x: loss(*x, sets=sets), loss, z_a, z_b, extra), expected)


def pairs_in_sets(n=5):
    """Rows of z_b in another order; the ids say which is whose partner."""
    z_a, z_b = both_sides(n, n)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(1))
    ids = 5 * torch.arange(n) - 3
    return z_a, z_b, order, (ids, ids[order])


@pytest.mark.parametrize("truth", TRUTHS)
@pytest.mark.parametrize("loss", [*(make() for make in ROWS.values()), *CELLS], ids=repr)
def test_sets_of_one_item_give_the_loss_of_pairs(loss, truth):
    z_a, z_b, order, sets = pairs_in_sets()
    if truth == "hard" and loss.options.get("mining") == "one-to-one":
        return
    expected = value_and_gradients(loss, loss, z_a, z_b)
    found = value_and_gradients(lambda a, b: loss(a, b[order], sets=sw.Sets(*sets, truth)), loss, z_a, z_b)
    torch.testing.assert_close(found, expected)


def test_info_nce_is_mil_nce():
    z_a, z_b = both_sides(6, 6)
    sets = torch.tensor([0, 0, 1, 1, 2, 2]), torch.tensor([2, 1, 0, 0, 1, 2])
    scores = (F.normalize(z_a) @ F.normalize(z_b).T / 0.2).exp()
    inside = (scores * (sets[0][:, None] == sets[1])).sum(1)
    torch.testing.assert_close(sw.InfoNCE(0.2)(z_a, z_b, sets=sets), -(inside / scores.sum(1)).log().mean())


def test_labels_average_over_partners_and_sets_take_their_maximum():
    z_a, z_b = both_sides(6, 6)
    ids = torch.tensor([0, 0, 1, 1, 2, 2])
    for loss in (sw.InfoNCE(0.2), sw.SparseCLR(0.2, candidates="cross"), sw.InfoNCE(0.2, symmetric=True)):
        assert loss(z_a, z_b, sets=(ids, ids)) < loss(z_a, z_b, labels=ids)
        alone = torch.arange(6)
        torch.testing.assert_close(loss(z_a, z_b, sets=(alone, alone)), loss(z_a, z_b, labels=alone))
    # Entropic, with two partners: labels have the mean of their scores, sets the log of the sum of their exponentials.
    theta = F.normalize(z_a) @ F.normalize(z_b).T / 0.2
    inside = theta.masked_fill(ids[:, None] != ids, -math.inf)
    gap = torch.logsumexp(inside, 1).mean() - theta[ids[:, None] == ids].mean()
    loss = sw.InfoNCE(0.2)
    torch.testing.assert_close(loss(z_a, z_b, labels=ids) - loss(z_a, z_b, sets=(ids, ids)), gap)


def partial_matchings(n: int, m: int) -> list[tuple[int | None, ...]]:
    every = product([*range(m), None], repeat=n)
    return [x for x in every if all(x.count(j) <= 1 for j in range(m))]


def one_to_one_reference(loss, z_a, z_b, sets, truth, price, extra=None) -> Tensor:
    """Every assignment, one at a time."""
    options = loss.options
    columns = z_b if extra is None else torch.cat([z_b, extra])
    scores = F.normalize(z_a) @ F.normalize(columns).T
    allowed = F.pad(sets[0][:, None] == sets[1], (0, len(columns) - len(z_b)))
    if truth == "one-to-one":
        matched = partners(scores.detach(), sets, price)
        allowed = torch.tensor([[matched.get(i) == j for j in range(len(columns))] for i in range(len(z_a))])
    scores = scores - options["margin"] * allowed
    n, m = scores.shape
    ways = list(permutations(range(m), n)) if price is None else partial_matchings(n, m)
    totals, admissible = [], []
    for way in ways:
        pairs = [(i, j) for i, j in enumerate(way) if j is not None]
        total = sum((scores[pair] for pair in pairs), start=scores.new_zeros(()))
        totals.append(total - (price or 0) * (n - len(pairs)))
        admissible.append(all(bool(allowed[pair]) for pair in pairs))
        if truth == "one-to-one":
            admissible[-1] = admissible[-1] and len(pairs) == allowed.sum()
    theta, true = torch.stack(totals) / options["temperature"], torch.tensor(admissible)
    smoothing = options["smoothing"]
    return (smooth_maximum(theta, smoothing) - smooth_maximum(theta[true], smoothing)) / n


@pytest.mark.parametrize("truth", ["same", "one-to-one"])
@pytest.mark.parametrize("loss", EXACT, ids=repr)
def test_one_to_one_equals_enumeration(loss, truth):
    z_a, z_b = both_sides(5, 5)
    sets = torch.tensor([0, 0, 1, 1, 1]), torch.tensor([1, 0, 1, 0, 1])
    expected = value_and_gradients(lambda a, b: one_to_one_reference(loss, a, b, sets, truth, None), loss, z_a, z_b)
    found = value_and_gradients(lambda a, b: loss(a, b, sets=sw.Sets(*sets, truth)), loss, z_a, z_b)
    torch.testing.assert_close(found, expected)
    assert found[0] >= 0


@pytest.mark.parametrize("price", [0.4, -0.2, -0.6, 3.0])
@pytest.mark.parametrize("truth", ["same", "one-to-one"])
@pytest.mark.parametrize("sizes", [(4, 5), (5, 3), (4, 4)], ids=str)
@pytest.mark.parametrize("loss", EXACT, ids=repr)
def test_one_to_one_at_a_price_equals_enumeration(loss, sizes, truth, price):
    z_a, z_b = both_sides(*sizes)
    sets = torch.tensor([0, 0, 1, 1, 2])[: sizes[0]], torch.tensor([1, 0, 5, 1, 1])[: sizes[1]]
    expected = value_and_gradients(lambda a, b: one_to_one_reference(loss, a, b, sets, truth, price), loss, z_a, z_b)
    found = value_and_gradients(lambda a, b: loss(a, b, sets=sw.Sets(*sets, truth, price)), loss, z_a, z_b)
    torch.testing.assert_close(found, expected)


def hull_maximum(theta: Tensor, allowed: Tensor, smoothing: str) -> float:
    """max <θ, Y> - Ω(Y) over doubly stochastic Y, by Dykstra's projections or Sinkhorn's scaling."""
    n = len(theta)
    if smoothing == "sinkhorn":
        work = theta.masked_fill(~allowed, -math.inf)
        plan = work
        for _ in range(5000):
            plan = plan - torch.logsumexp(plan, 1, keepdim=True)
            plan = plan - torch.logsumexp(plan, 0, keepdim=True)
        inside = allowed & (plan > -200)
        return float((plan.exp()[inside] * (theta - plan)[inside]).sum())
    i, j = allowed.nonzero().T
    equal = torch.zeros(2 * n, len(i), dtype=theta.dtype)
    equal[i, torch.arange(len(i))] = 1
    equal[n + j, torch.arange(len(i))] = 1
    back = torch.linalg.pinv(equal)
    y, push = theta[i, j], torch.zeros(len(i), dtype=theta.dtype)
    for _ in range(20000):  # Dykstra: the nearest point to θ with sums of 1 and nothing below 0
        sums = y + back @ (1 - equal @ y)
        y = (sums + push).clamp_min(0)
        push = sums + push - y
    return float(theta[i, j] @ y - y @ y / 2)


@pytest.mark.parametrize("smoothing", ["sinkhorn", "sparsemap"])
def test_relaxed_assignments_equal_another_solver(smoothing):
    z_a, z_b = (z.detach() for z in both_sides(5, 5))
    sets = torch.tensor([0, 0, 1, 1, 1]), torch.tensor([1, 0, 1, 0, 1])
    loss = sw.AssignmentLoss(mining="one-to-one", smoothing=smoothing, temperature=0.4, similarity="cosine")
    theta, allowed = F.normalize(z_a) @ F.normalize(z_b).T / 0.4, sets[0][:, None] == sets[1]
    every = torch.ones_like(allowed)
    expected = (hull_maximum(theta, every, smoothing) - hull_maximum(theta, allowed, smoothing)) / 5
    assert loss(z_a, z_b, sets=sets).item() == pytest.approx(expected, abs=1e-6)


def partial_hull_maximum(theta: Tensor, allowed: Tensor, smoothing: str) -> float:
    """The same where rows and columns may stay alone, a row at a score of 0, by scipy or plain scaling."""
    if smoothing == "sinkhorn":
        work, columns = theta.masked_fill(~allowed, -math.inf), torch.zeros(theta.shape[1], dtype=theta.dtype)
        for _ in range(5000):  # every row sums to 1 with what it leaves alone, no column to more than 1
            rows = torch.logsumexp(F.pad(work - columns, (0, 1)), 1)[:, None]
            columns = torch.logsumexp(work - rows, 0).clamp_min(0)
        plan, alone = (work - rows - columns).exp(), (-rows).exp()
        omega = torch.special.xlogy(plan, plan).sum() + torch.special.xlogy(alone, alone).sum()
        return float((theta * plan).sum() - omega)
    i, j = allowed.nonzero().T
    scores, (n, m) = theta[i, j].numpy(), theta.shape
    sums = np.zeros((n + m, len(i)))
    sums[i, range(len(i))] = sums[n + j, range(len(i))] = 1
    best = scipy.optimize.minimize(
        lambda y: (y @ y + ((1 - sums[:n] @ y) ** 2).sum()) / 2 - scores @ y,
        np.full(len(i), 0.1),
        jac=lambda y: y - sums[:n].T @ (1 - sums[:n] @ y) - scores,
        bounds=[(0, 1)] * len(i),
        constraints={"type": "ineq", "fun": lambda y: 1 - sums @ y, "jac": lambda y: -sums},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 2000},
    )
    return float(-best.fun)


@pytest.mark.parametrize("price", [0.5, -0.3])
@pytest.mark.parametrize("smoothing", ["sinkhorn", "sparsemap"])
def test_relaxed_assignments_at_a_price_equal_another_solver(smoothing, price):
    z_a, z_b = (z.detach() for z in both_sides(4, 5))
    sets = torch.tensor([0, 0, 0, 1]), torch.tensor([1, 0, 2, 0, 1])
    loss = sw.AssignmentLoss(mining="one-to-one", smoothing=smoothing, temperature=0.3, similarity="cosine")
    theta, allowed = (F.normalize(z_a) @ F.normalize(z_b).T + price) / 0.3, sets[0][:, None] == sets[1]
    every = torch.ones_like(allowed)
    expected = (partial_hull_maximum(theta, every, smoothing) - partial_hull_maximum(theta, allowed, smoothing)) / 4
    assert loss(z_a, z_b, sets=sw.Sets(*sets, price=price)).item() == pytest.approx(expected, abs=1e-6)
    matched = partners((theta * 0.3 - price), sets, price)
    truth = sum(theta[pair].item() for pair in matched.items()) - (2 if smoothing == "sparsemap" else 0)
    expected = (partial_hull_maximum(theta, every, smoothing) - truth) / 4
    assert loss(z_a, z_b, sets=sw.Sets(*sets, "one-to-one", price)).item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("deviation", [1.0, 10.0, 100.0])
@pytest.mark.parametrize("smoothing", ["sinkhorn", "sparsemap"])
def test_relaxed_assignments_at_a_price_converge(smoothing, deviation):
    generator = torch.Generator().manual_seed(0)
    for n, m in ((40, 30), (30, 40), (32, 32)):
        theta = deviation * torch.randn(n, m, generator=generator, dtype=torch.float64)
        best = best_partial(theta, smoothing=smoothing)
        assert best.converged
        full = torch.cat([best.argmax, 1 - best.argmax.sum(1, keepdim=True)], 1)
        assert full.amin() > -1e-9
        assert best.argmax.sum(0).amax() < 1 + 1e-9
        full = full.clamp_min(0)
        omega = (full**2).sum() / 2 if smoothing == "sparsemap" else torch.special.xlogy(full, full).sum()
        torch.testing.assert_close((theta * best.argmax).sum() - omega, best.value)  # which bounds it from above
        hard = best_partial(theta, smoothing="none").value
        assert hard - best.truth <= best.value + 1e-9


@pytest.mark.parametrize("price", [None, -0.1])
@pytest.mark.parametrize("loss", [*(make() for make in ROWS.values()), *CELLS], ids=repr)
def test_gradients_by_differences(loss, price):
    n = 6 if price is None or loss.options.get("smoothing") != "sparse" else 5
    z_a, z_b = both_sides(n, n)
    sets = torch.tensor([0, 0, 1, 1, 1, 2])[:n], torch.tensor([1, 0, 2, 1, 0, 1])[:n]
    assert torch.autograd.gradcheck(lambda a, b: loss(a, b, sets=sw.Sets(*sets, price=price)), (z_a, z_b))


def test_extra_negatives_of_assignments():
    z_a, z_b = both_sides(4, 4)
    extra = both_sides(2, 2, seed=5)[0]
    sets = torch.tensor([0, 0, 1, 1]), torch.tensor([1, 0, 1, 0])
    loss = CELLS[0]
    for price in (None, 0.4):
        expected = one_to_one_reference(loss, z_a, z_b, sets, "same", price, extra)
        torch.testing.assert_close(loss(z_a, z_b, extra, sets=sw.Sets(*sets, price=price)), expected)


def test_rows_may_be_fewer_than_columns_where_columns_stay_free():
    z_a, z_b = both_sides(3, 5)
    sets = torch.tensor([0, 0, 1]), torch.tensor([1, 0, 1, 0, 0])
    loss = CELLS[0]
    torch.testing.assert_close(
        loss(z_a, z_b, sets=sets), one_to_one_reference(loss, z_a, z_b, sets, "same", None), rtol=1e-6, atol=1e-6
    )


def test_a_sum_is_of_all_rows_and_both_ways():
    z_a, z_b = both_sides()
    for symmetric in (False, True):
        rows = [sw.AssignmentLoss(smoothing="entropy", reduction=x, symmetric=symmetric) for x in ("mean", "sum")]
        mean, total = (loss(z_a, z_b, sets=SETS) for loss in rows)
        torch.testing.assert_close(total, mean * (11 / 2 if symmetric else 6))  # of 13 rows 2 have no partner
        cells = [
            sw.AssignmentLoss(mining="one-to-one", reduction=x, symmetric=symmetric, similarity="cosine")
            for x in ("mean", "sum")
        ]
        mean, total = (loss(z_a, z_b, sets=sw.Sets(*SETS, price=0.3)) for loss in cells)
        torch.testing.assert_close(total, mean * (13 / 2 if symmetric else 7))


@pytest.mark.parametrize("name", ["info-nce, both ways", "nt-xent", "sparse-clr"])
def test_a_row_without_a_partner_has_no_term_and_is_a_negative(name):
    loss = ROWS[name]()
    z_a, z_b = both_sides()
    value = loss(z_a, z_b, sets=SETS)
    other = SETS[0].clone()
    other[6] = 12  # another set without a partner
    assert torch.equal(loss(z_a, z_b, sets=(other, SETS[1])), value)
    (gradient,) = torch.autograd.grad(value, z_b)
    assert bool(gradient[5].any())  # pushed away by others


@pytest.mark.parametrize("make", [lambda: sw.InfoNCE(0.3), lambda: sw.NTXent(), lambda: sw.TripletMargin()])
def test_a_combination_gives_its_pairwise_loss_the_sets(make):
    z_a, z_b = both_sides(6, 6)
    sets = sw.Sets(torch.arange(6) // 2, torch.arange(6) // 3, "hard")
    pairwise = make()
    terms = sw.SetContrastive(pairwise, beta=0.5, regularizer=sw.QARe()).terms(z_a, z_b, sets=sets)
    torch.testing.assert_close(terms["pairwise"], pairwise(z_a, z_b, sets=sets))
    torch.testing.assert_close(terms["loss"], terms["pairwise"] + 0.5 * sw.QARe()(z_a, z_b))
    loss = sw.SetContrastive(pairwise, beta=0.5, regularizer=sw.QARe())
    torch.testing.assert_close(loss(z_a, z_b, sets=sets), terms["loss"])


def test_functions_take_the_same():
    z_a, z_b = both_sides()
    for loss, function in (
        (sw.InfoNCE(), sw.functional.info_nce),
        (sw.NTXent(), sw.functional.nt_xent),
        (sw.SparseCLR(), sw.functional.sparse_clr),
        (sw.TripletMargin(), sw.functional.triplet_margin),
        (sw.AssignmentLoss(), sw.functional.assignment_loss),
    ):
        assert torch.equal(function(z_a, z_b, sets=SETS), loss(z_a, z_b, sets=SETS))
        assert torch.equal(function(z_a, z_b, sets=[*SETS]), loss(z_a, z_b, sets=sw.Sets(*SETS)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_gives_float32(dtype):
    z_a, z_b = (z.detach().to(dtype) for z in both_sides())
    for truth in TRUTHS:
        sets = sw.Sets(*SETS, truth, 0.2)
        value = sw.NTXent()(z_a, z_b, sets=sets)
        assert value.dtype == torch.float32
        torch.testing.assert_close(value, sw.NTXent()(z_a.float(), z_b.float(), sets=sets))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # Dynamo's own
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("truth", ["same", "hard"])
@pytest.mark.parametrize("name", ["info-nce, learned", "nt-xent", "triplet"])
def test_compiles(name, truth):
    torch.compiler.reset()
    loss = ROWS[name]()
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    sets = sw.Sets(*SETS, truth, 0.2)
    tensors = both_sides()
    expected = value_and_gradients(lambda *x: loss(*x, sets=sets), loss, *tensors)
    torch.testing.assert_close(value_and_gradients(lambda *x: compiled(*x, sets=sets), loss, *tensors), expected)


def test_large_batches_with_sets_store_their_scores(monkeypatch):
    monkeypatch.setattr(structured, "LARGE", 0)
    monkeypatch.setattr(structured.scores, "serves", lambda z: True)
    for name in ("cross_losses", "all_losses"):
        monkeypatch.setattr(large, name, None)
    z_a, z_b = both_sides()
    for loss in (sw.InfoNCE(), sw.NTXent()):
        torch.testing.assert_close(loss(z_a, z_b, sets=SETS), reference(loss, z_a, z_b, None, SETS))


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (SETS[0], r"expected sets to be a pair \(sets_a, sets_b\) of tensors, or sw.Sets"),
        ((*SETS, SETS[0]), "expected sets to be a pair .* got tuple of 3"),
        (([4, 4], SETS[1]), "expected sets_a to be a torch.Tensor, got list"),
        ((SETS[0].float(), SETS[1]), "expected sets_a of dtype torch.int64, got torch.float32; number the sets"),
        ((SETS[0], SETS[0]), r"expected sets_b of shape \(6,\), the set of each row of z_b, got \(7,\)"),
        ((SETS[0], SETS[1].to("meta")), "expected sets_b on device cpu like z_b, got meta"),
        (sw.Sets(*SETS, "soft"), "expected truth to be one of 'same', 'hard', 'one-to-one', 'quadratic', got 'soft'"),
        (sw.Sets(*SETS, price=math.inf), "expected price to be a finite number"),
        (sw.Sets(*SETS, structure=math.nan), "expected structure to be a finite number"),
        ((SETS[0], SETS[1] + 100), "expected a set with rows on both sides, got none: no row has a partner"),
    ],
)
def test_bad_sets(sets, message):
    z_a, z_b = both_sides()
    with pytest.raises(ValueError, match=message):
        sw.InfoNCE()(z_a, z_b, sets=sets)
    with pytest.raises(ValueError, match=message):
        sw.functional.info_nce(z_a, z_b, sets=sets)


def test_what_does_not_go_together():
    z_a, z_b = both_sides(6, 6)
    ids = torch.arange(6) // 2
    with pytest.raises(ValueError, match="expected labels or sets, got both"):
        sw.InfoNCE()(z_a, z_b, labels=ids, sets=(ids, ids))
    with pytest.raises(ValueError, match='expected reduction="mean" with sets'):
        sw.NTXent(reduction="log-mean")(z_a, z_b, sets=(ids, ids))
    for loss in (sw.NTLogistic(), sw.QARe()):
        with pytest.raises(ValueError, match=f"expected no sets for {type(loss).__name__}"):
            loss(z_a, z_b, sets=(ids, ids))
    for loss in (sw.InfoNCE(), sw.SetContrastive(sw.InfoNCE())):
        with pytest.raises(ValueError, match="expected two sides with sets"):
            loss([z_a, z_b, z_a], sets=(ids, ids))
    with pytest.raises(ValueError, match=r"expected z_b of shape \(6, 4\) like z_a, got \(6, 3\)"):
        sw.InfoNCE()(z_a, z_b[:, :3], sets=(ids, ids))
    with pytest.raises(ValueError, match="expected z_b of dtype torch.float64"):
        sw.InfoNCE()(z_a, z_b.float(), sets=(ids, ids))
    with pytest.raises(ValueError, match=r"expected z_b of shape \(6, 4\) like z_a, got \(5, 4\)"):
        sw.InfoNCE()(z_a, z_b[:5])  # without sets row i of both is the same item


def test_assignments_that_do_not_exist():
    z_a, z_b = both_sides(6, 6)
    ids, other = torch.tensor([0, 0, 0, 1, 1, 2]), torch.tensor([0, 0, 1, 1, 1, 2])
    hard, entropy, relaxed = CELLS[0], CELLS[1], CELLS[3]
    for loss in (hard, entropy, relaxed):
        with pytest.raises(ValueError, match=r"got row 0 whose set has 3 rows on its side and 2 on the other; give"):
            loss(z_a, z_b, sets=(ids, other))
        with pytest.raises(ValueError, match="expected a partner for every row in its set, got row 5"):
            loss(z_a, z_b, sets=(ids, torch.tensor([0, 0, 0, 1, 1, 3])))
        with pytest.raises(ValueError, match='expected truth "same", "one-to-one" or "quadratic" with mining='):
            loss(z_a, z_b, sets=sw.Sets(ids, ids, "hard"))
    with pytest.raises(ValueError, match="expected as many rows of both sides .* got 6 and 5; give a price"):
        entropy(z_a, z_b[:5], sets=(ids, other[:5]))
    with pytest.raises(ValueError, match="expected at most 5 rows"):
        CELLS[2](z_a, z_b, sets=sw.Sets(ids, other, price=0.5))
