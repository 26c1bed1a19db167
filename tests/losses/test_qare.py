"""QARe: Algorithms 1 and 2, its paths, its bounds, and the chain L_QAP <= split <= spectral."""

from itertools import product

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import setwise as sw
from setwise.assignment.spectrum import compress_leading, ordered_dot
from setwise.kernels.eigh import eigh
from setwise.losses import set_level
from setwise.losses.functional import qare, quadratic_assignment_loss
from setwise.similarity import pairwise

OPTIONS = [
    {"similarity": similarity, "bound": bound, "reference": reference, "shift": shift}
    for similarity, bound, reference, shift in product(
        ("cosine", "sqeuclidean"), ("eigenvalue", "projection", "best"), ("none", "truth"), (None, 0.0, -0.5)
    )
]


def spectra(z_a: Tensor, z_b: Tensor, matrix) -> tuple[Tensor, Tensor]:
    """Eigenvalues of both sets' matrices, ascending, by torch."""
    return torch.linalg.eigvalsh(matrix(z_a)), torch.linalg.eigvalsh(matrix(z_b))


def cosines(z: Tensor) -> Tensor:
    return F.normalize(z) @ F.normalize(z).mT


def algorithm_1(z_a: Tensor, z_b: Tensor) -> Tensor:
    up, down = spectra(z_a, z_b, lambda z: torch.cdist(z, z))
    return -(up @ down.flip(0)) / len(z_a) ** 2


def algorithm_2(z_a: Tensor, z_b: Tensor) -> Tensor:
    return torch.dot(*spectra(z_a, z_b, lambda z: 1 + cosines(z))) / len(z_a) ** 2


def released(z_a: Tensor, z_b: Tensor) -> Tensor:
    clamped = spectra(z_a, z_b, lambda z: 1 + cosines(z).clamp_min(1e-8))
    return torch.dot(*clamped) / (len(z_a) * (len(z_a) - 1))


@pytest.mark.parametrize(
    ("loss", "formula"),
    [
        (sw.QARe(similarity="euclidean"), algorithm_1),
        (sw.QARe(), algorithm_2),
        (sw.QARe(normalization="none"), lambda z_a, z_b: len(z_a) ** 2 * algorithm_2(z_a, z_b)),
        (sw.QARe(clamp=1e-8, normalization="n(n-1)"), released),
    ],
)
def test_the_paper_and_its_released_code(views, loss, formula):
    pair = views(8, 4)
    got, expected = loss(*pair), formula(*pair)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(torch.autograd.grad(got, pair), torch.autograd.grad(expected, pair))


@pytest.mark.parametrize(("n", "e"), [(200, 16), (40, 3), (9, 7), (5, 8), (2, 3), (1, 4)])
@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(map(str, o.values())))
def test_lowrank_equals_dense_in_value_and_gradient(views, options, n, e):
    z_a, z_b = views(n, e)
    dense, low = (qare(z_a, z_b, spectrum=s, **options) for s in ("dense", "lowrank"))
    scale = qare(z_a, z_b, **options | {"reference": "none"}).abs().item() + 1e-6
    torch.testing.assert_close(low, dense, rtol=1e-10, atol=1e-12 * scale)
    gradients = torch.autograd.grad(dense, (z_a, z_b))
    near = {"rtol": 1e-10, "atol": 1e-11 * (scale + max(x.abs().max().item() for x in gradients))}
    torch.testing.assert_close(torch.autograd.grad(low, (z_a, z_b)), gradients, **near)
    alone = torch.autograd.grad(qare(z_a, z_b.detach(), **options), z_a)
    torch.testing.assert_close(alone, gradients[:1], **near)


@pytest.mark.parametrize("apart", [300.0, 1e4])
def test_lowrank_equals_dense_for_far_groups_in_float32(views, apart):
    z_a, z_b = (z.detach().float() for z in views(120, 6))
    for z in (z_a, z_b):
        z[::2, 0] += apart
    exact = z_a.double().requires_grad_()
    expected = qare(exact, z_b.double(), similarity="sqeuclidean", spectrum="dense")
    expected.backward()
    for spectrum in ("dense", "lowrank"):
        leaf = z_a.clone().requires_grad_()
        got = qare(leaf, z_b, similarity="sqeuclidean", spectrum=spectrum)
        got.backward()
        assert got.item() == pytest.approx(expected.item(), rel=1e-5)
        assert (leaf.grad - exact.grad).norm() < 1e-5 * exact.grad.norm()


@pytest.mark.parametrize(
    ("similarity", "n", "e", "largest"),
    [("cosine", 60, 6, 7), ("cosine", 5, 9, 5), ("sqeuclidean", 60, 6, 8), ("euclidean", 20, 6, 20)],
)
def test_auto_takes_the_smallest_exact_eigenvalue_problem(views, monkeypatch, similarity, n, e, largest):
    solved = []

    def record(a: Tensor, **options: bool) -> tuple[Tensor, Tensor]:
        solved.append(a.shape[-1])
        return eigh(a, **options)

    monkeypatch.setattr("setwise.assignment.spectrum.eigh", record)
    sw.QARe(similarity=similarity)(*views(n, e)).backward()
    assert solved == [largest]


@pytest.mark.parametrize(("n", "e"), [(9, 3), (4, 5)])
@pytest.mark.parametrize("similarity", ["cosine", "euclidean", "sqeuclidean"])
@pytest.mark.parametrize("bound", ["eigenvalue", "projection", "best"])
@pytest.mark.parametrize("reference", ["none", "truth"])
def test_gradient(views, similarity, bound, reference, n, e):
    loss = sw.QARe(similarity=similarity, bound=bound, reference=reference)
    assert torch.autograd.gradcheck(loss, views(n, e, seed=1))


@pytest.mark.parametrize("options", [{}, {"spectrum": "dense"}, {"bound": "projection"}, {"reference": "truth"}])
def test_about_the_mean(views, options):
    z_a, z_b = (z.detach() + 5 for z in views(9, 4))
    expected = sw.functional.qare(*(z - z.mean(0) for z in (z_a, z_b)), **options)
    torch.testing.assert_close(sw.functional.qare(z_a, z_b, center=True, **options), expected)
    moved = sw.functional.qare(z_a - 3, z_b + 1, center=True, **options)
    torch.testing.assert_close(moved, expected, msg="where the sets lie says nothing")
    assert (sw.functional.qare(z_a, z_b, **options) - expected).abs() > 0.01
    leaves = [z.clone().requires_grad_() for z in (z_a, z_b)]
    assert torch.autograd.gradcheck(lambda a, b: sw.functional.qare(a, b, center=True, **options), leaves)


def test_one_item_at_the_mean_has_no_direction():
    offsets = torch.randn(2, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    offsets = torch.cat([torch.zeros(1, 4, dtype=torch.float64), offsets, -offsets])
    z = 0.1 + offsets
    assert (z[0] - z.mean(0)).abs().max() > 0  # by rounding, which must not count as a direction
    torch.testing.assert_close(qare(z, z, center=True), qare(offsets, offsets))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [7, 100, 1000])
def test_a_collapsed_set_has_no_directions_about_its_mean(n, dtype):
    row = torch.randn(16, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    for scale in (0.1, 1.0, 1e6):
        z = (scale * row).to(dtype).expand(n, -1).clone().requires_grad_()
        value = qare(z, z.detach(), center=True)
        assert value.item() == pytest.approx(1, rel=1e-6), "the shift alone"
        value.backward()
        assert z.grad.abs().max() == 0


@pytest.mark.parametrize(
    ("dtype", "offset"), [(torch.float32, 1e2), (torch.float32, 1e6), (torch.float32, 1e7), (torch.float64, 1e10)]
)
def test_a_set_far_from_the_origin_is_not_taken_for_collapsed(views, dtype, offset):
    z_a, z_b = ((offset + 3 * z.detach()).to(dtype).requires_grad_() for z in views(100, 6))
    near = [(z.detach().double() - offset).requires_grad_() for z in (z_a, z_b)]  # what is left of them, exactly
    got, expected = qare(z_a, z_b, center=True), qare(*near, center=True)
    assert got.item() == pytest.approx(expected.item(), rel=1e-5)
    (gradient,), (wanted,) = torch.autograd.grad(got, z_a), torch.autograd.grad(expected, near[0])
    assert (gradient.double() - wanted).norm() < 1e-4 * wanted.norm()


@pytest.mark.parametrize("gradient", [False, True])
def test_dead_dimensions_in_float32(gradient):
    for seed in range(10):
        z = torch.randn(2, 256, 64, generator=torch.Generator().manual_seed(seed))
        z_a, z_b = z * torch.where(torch.arange(64) < 5, 1.0, 1e-25)
        expected = qare(z_a.double(), z_b.double()).item()
        assert qare(z_a.requires_grad_(gradient), z_b).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("similarity", ["cosine", "euclidean", "sqeuclidean"])
@pytest.mark.parametrize("bound", ["eigenvalue", "projection"])
def test_the_alignment_gap_is_zero_for_equal_structures_and_positive_otherwise(views, similarity, bound):
    z_a, z_b = views(12, 5)
    gap = sw.QARe(similarity=similarity, bound=bound, reference="truth")
    turn = torch.linalg.qr(torch.randn(5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))).Q
    assert gap(z_a, z_a @ turn).item() == pytest.approx(0, abs=1e-10)
    assert gap(z_a, z_b).item() > 1e-3
    assert gap(z_a, z_a[torch.randperm(12, generator=torch.Generator().manual_seed(0))]).item() > 1e-3


@pytest.mark.parametrize(("fall", "least", "most"), [(0, 0.05, 0.9), (1, 0.001, 0.006)])
def test_the_gradient_of_topk_is_off_by_what_the_docs_say(fall, least, most):
    """docs/how-to/large-batches.md: 10 to 76 % where all directions are alike, 0.3 % where they fall off as 1/i."""
    for seed in (0, 2):
        generator, size = torch.Generator().manual_seed(seed), 1 / torch.arange(1.0, 65) ** fall
        z_a = size * torch.randn(512, 64, generator=generator, dtype=torch.float64)
        z_b = z_a + 0.5 * size * torch.randn(512, 64, generator=generator, dtype=torch.float64)
        z_a.requires_grad_()
        exact, few = (
            torch.autograd.grad(sw.QARe(similarity="euclidean", **o)(F.normalize(z_a), F.normalize(z_b)), z_a)[0]
            for o in ({}, {"spectrum": "topk", "k": 8})
        )
        assert least < (few - exact).norm() / exact.norm() < most


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_topk_of_distances_equals_topk_of_their_matrix(views, dtype):
    z_a, z_b = (z.detach().to(dtype).requires_grad_() for z in views(150, 6))
    z_a.data[3] = z_a.data[4]  # a distance of zero off the diagonal
    s = torch.stack([pairwise(z, z, similarity="euclidean") for z in (z_a, z_b)])
    expected = -ordered_dot(compress_leading(s, 5), largest=False) / 150**2
    got = qare(z_a, z_b, similarity="euclidean", spectrum="topk", k=5)
    tolerance = 1e-9 if dtype == torch.float64 else 2e-4
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=0)
    a, b = (torch.autograd.grad(x, z_a)[0] for x in (got, expected))
    torch.testing.assert_close(a, b, rtol=0, atol=tolerance * b.abs().max().item())


# The chain of Eq. (7) and (17)


def matrices(seed: int, n: int, direction: str) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    z_a = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    z_b = z_a + 0.5 * torch.randn(n, 3, generator=generator, dtype=torch.float64)
    if direction == "distance":
        return torch.cdist(z_a, z_b), torch.cdist(z_a, z_a), torch.cdist(z_b, z_b)
    a, b = F.normalize(z_a), F.normalize(z_b)
    return 1 + a @ b.T, 1 + a @ a.T, 1 + b @ b.T


def enumerated(s: Tensor, s_a: Tensor, s_b: Tensor, direction: str) -> tuple[float, float]:
    from itertools import permutations

    x, y, z = s.numpy(), s_a.numpy(), s_b.numpy()
    rows = np.arange(len(x))
    linear, quadratic = [], []
    for p in map(list, permutations(range(len(x)))):
        linear.append(x[rows, p].sum())
        quadratic.append((y * z[np.ix_(p, p)]).sum())
    linear, quadratic = np.array(linear), np.array(quadratic)
    if direction == "distance":
        return np.trace(x) - (linear + quadratic).min(), np.trace(x) - linear.min() - quadratic.min()
    return (linear + quadratic).max() - np.trace(x), linear.max() - np.trace(x) + quadratic.max()


@given(n=st.integers(1, 7), seed=st.integers(0, 10_000), direction=st.sampled_from(["distance", "similarity"]))
@settings(max_examples=40)
def test_the_chain_holds_and_equals_enumeration(n, seed, direction):
    s, s_a, s_b = matrices(seed, n, direction)
    loss, split = enumerated(s, s_a, s_b, direction)
    for bound in ("eigenvalue", "projection", "best"):
        got = quadratic_assignment_loss(s, s_a, s_b, direction=direction, bound=bound)
        assert got.loss.item() == pytest.approx(loss, abs=1e-9)
        assert got.split.item() == pytest.approx(split, abs=1e-9)
        assert loss <= split + 1e-9
        assert split <= got.spectral.item() + 1e-9


@pytest.mark.parametrize(("direction", "similarity"), [("distance", "euclidean"), ("similarity", "cosine")])
def test_the_bound_is_the_summed_assignment_loss_plus_qare(views, direction, similarity):
    z_a, z_b = views(6, 4)
    if similarity == "cosine":
        a, b = F.normalize(z_a), F.normalize(z_b)
        s, s_a, s_b = a @ b.T, 1 + a @ a.T, 1 + b @ b.T
    else:
        s, s_a, s_b = torch.cdist(z_a, z_b), torch.cdist(z_a, z_a), torch.cdist(z_b, z_b)
    bound = quadratic_assignment_loss(s, s_a, s_b, direction=direction).spectral
    linear = sw.AssignmentLoss(mining="one-to-one", similarity=similarity, reduction="sum")
    loss = sw.SetContrastive(linear, beta=1.0, regularizer=sw.QARe(similarity=similarity, normalization="none"))
    torch.testing.assert_close(loss(z_a, z_b), bound)


@pytest.mark.parametrize("direction", ["distance", "similarity"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_l_qap_of_half_precision_and_under_autocast_is_float32(dtype, direction):
    half = [(100 * m).to(dtype) for m in matrices(0, 6, "distance")]  # products beyond float16's largest number
    whole = [m.float() for m in half]
    for bound in ("eigenvalue", "projection", "best"):
        options = {"direction": direction, "bound": bound}
        expected = quadratic_assignment_loss(*whole, **options)
        assert all(x.dtype == torch.float32 and x.isfinite() for x in expected)
        assert quadratic_assignment_loss(*half, **options) == expected
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert quadratic_assignment_loss(*whole, **options) == expected
    assert expected.spectral.abs() > torch.finfo(torch.float16).max


def test_l_qap_is_differentiable():
    s, s_a, s_b = (x.requires_grad_() for x in matrices(0, 5, "distance"))

    def terms(s: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return torch.stack(quadratic_assignment_loss(s, (a + a.T) / 2, (b + b.T) / 2))

    assert torch.autograd.gradcheck(terms, (s, s_a, s_b))


@pytest.mark.parametrize("options", [{}, {"reference": "truth"}, {"shift": 0.0}, {"normalization": "none"}], ids=str)
def test_many_rows_are_not_stored_and_change_nothing(options, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    pair = [torch.randn(50, 6, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(2)]
    stored = qare(*pair, **options)
    monkeypatch.setattr(set_level, "MANY", 7)
    apart = qare(*pair, **options)
    torch.testing.assert_close(apart, stored, rtol=1e-12, atol=1e-12)
    for got, wanted in zip(torch.autograd.grad(apart, pair), torch.autograd.grad(stored, pair), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("reference", ["none", "truth"])
@pytest.mark.parametrize(
    "pairwise",
    [
        sw.InfoNCE(0.5),
        sw.InfoNCE(0.5, symmetric=True),
        sw.InfoNCE(0.5, block_size=16, symmetric=True),
        sw.InfoNCE(0.5, similarity="euclidean"),
        sw.NTXent(0.5),
    ],
    ids=str,
)
def test_beside_a_loss_many_rows_have_one_gradient(pairwise, reference, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    pair = [torch.randn(50, 6, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(2)]
    loss = sw.SetContrastive(pairwise, 0.3, sw.QARe(reference=reference))
    wanted = loss(*pair)
    of_wanted = torch.autograd.grad(wanted, pair, retain_graph=True)
    monkeypatch.setattr(set_level, "MANY", 7)
    got = loss(*pair)
    torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)
    for _ in range(2):  # the second time over the same graph
        for ours, theirs in zip(torch.autograd.grad(got, pair, retain_graph=True), of_wanted, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    (only,) = torch.autograd.grad(got, pair[:1])
    torch.testing.assert_close(only, of_wanted[0], rtol=1e-10, atol=1e-12)
    alone = sw.SetContrastive(pairwise, 0.3, sw.QARe(reference=reference), alpha=0.0)
    for ours, theirs in zip(
        torch.autograd.grad(alone(*pair), pair), torch.autograd.grad(0.3 * alone.regularizer(*pair), pair), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_beside_a_loss_many_rows_take_the_memory_of_its_gradient(monkeypatch):
    monkeypatch.setattr(set_level, "MANY", 7)
    z_a, z_b = torch.randn(2, 50, 6, generator=torch.Generator().manual_seed(0)).unbind()
    z_a, z_b = z_a.requires_grad_(), z_b.requires_grad_()
    value, of_a, of_b = sw.QARe().beside(z_a, z_b)
    came = [torch.ones(50, 6), torch.ones(50, 6)]
    got = torch.autograd.grad((value, of_a, of_b), (z_a, z_b), (torch.tensor(1.0), *came))
    alone = torch.autograd.grad(sw.QARe()(z_a, z_b), (z_a, z_b))
    for there, ours, theirs in zip(came, got, alone, strict=True):
        assert ours.data_ptr() == there.data_ptr()
        torch.testing.assert_close(ours, 1 + theirs)
    shared = torch.zeros(()).expand(50, 6)  # one number, which is every entry
    got = torch.autograd.grad(sw.QARe().beside(z_a, z_b), (z_a, z_b), (torch.tensor(1.0), shared, shared))
    torch.testing.assert_close(got, alone)
    assert not shared.any()


def test_a_regulariser_that_somebody_hooked_into_is_called(monkeypatch):
    monkeypatch.setattr(set_level, "MANY", 7)
    loss, called = sw.SetContrastive(sw.InfoNCE(0.5)), []
    loss.regularizer.register_forward_hook(lambda module, given, value: called.append(value))
    z_a, z_b = torch.randn(2, 50, 6, generator=torch.Generator().manual_seed(0))
    terms = loss.terms(z_a, z_b)
    assert called == [terms["regularizer"]]
