"""Terms of whole sets: by their formulas in numpy, at the edges, against lightly, in training."""

import math

import numpy
import pytest
import torch

import setwise as sw
import setwise.register as register
from setwise.losses import controls, gram
from setwise.losses.controls import FrobeniusProduct, StructuralDifference
from setwise.losses.gram import CKA, CodingRate, Covariance, NuclearNorm, Uniformity, Variance
from setwise.losses.objective import Objective, build


def unit(z):
    return z / numpy.linalg.norm(z, axis=1, keepdims=True)


def coding_rate(a, b, distortion=0.2):
    n, e = a.shape
    whole = [numpy.eye(e) + e / (n * distortion) * unit(z).T @ unit(z) for z in (a, b)]
    return -numpy.mean([0.5 * numpy.linalg.slogdet(x)[1] for x in whole])


def nuclear_norm(a, b):
    return -numpy.linalg.svd((unit(a) + unit(b)) / 2, compute_uv=False).sum()


def variance(a, b, target=1.0, epsilon=1e-4):
    return numpy.mean([numpy.maximum(0, target - numpy.sqrt(z.var(0, ddof=1) + epsilon)) for z in (a, b)])


def covariance(a, b):
    off = [c - numpy.diag(numpy.diag(c)) for c in (numpy.atleast_2d(numpy.cov(z.T)) for z in (a, b))]
    return sum((c**2).sum() for c in off) / a.shape[1]


def vicreg(a, b, invariance=25, spread=25, apart=1):
    return invariance * ((a - b) ** 2).mean() + spread * variance(a, b) + apart * covariance(a, b)


def barlow_twins(a, b, redundancy=0.005, epsilon=1e-5):
    a, b = ((z - z.mean(0)) / numpy.sqrt(z.var(0) + epsilon) for z in (a, b))
    c = numpy.einsum("ni,nj->ij", a, b) / len(a)
    weights = redundancy + (1 - redundancy) * numpy.eye(len(c))
    return (weights * (c - numpy.eye(len(c))) ** 2).sum()


def cka(a, b):
    k, m = ((z - z.mean(0)) @ (z - z.mean(0)).T for z in (a, b))
    return 1 - (k * m).sum() / numpy.sqrt((k * k).sum() * (m * m).sum())


def uniformity(a, b, t=2.0):
    def one(x):
        pairs = [(i, j) for i in range(len(x)) for j in range(i)]
        return math.log(numpy.mean([math.exp(-t * ((x[i] - x[j]) ** 2).sum()) for i, j in pairs]))

    return (one(unit(a)) + one(unit(b))) / 2


def cosines(z):
    return unit(z) @ unit(z).T


FORMULAS = [
    (CodingRate(), coding_rate),
    (CodingRate(distortion=0.05), lambda a, b: coding_rate(a, b, 0.05)),
    (NuclearNorm(), nuclear_norm),
    (Variance(), variance),
    (Variance(target=2.0, epsilon=0.1), lambda a, b: variance(a, b, 2.0, 0.1)),
    (Covariance(), covariance),
    (Uniformity(), uniformity),
    (Uniformity(sharpness=300.0), lambda a, b: uniformity(a, b, 300.0)),
    (CKA(), cka),
    (sw.BarlowTwins(), barlow_twins),
    (sw.BarlowTwins(redundancy=0.4, epsilon=0.2), lambda a, b: barlow_twins(a, b, 0.4, 0.2)),
    (sw.VICReg(), vicreg),
    (sw.VICReg(invariance=3, variance=0, covariance=2), lambda a, b: vicreg(a, b, 3, 0, 2)),
]
TERMS = [CodingRate(), NuclearNorm(), Variance(), Covariance(), Uniformity(), CKA(), sw.BarlowTwins(), sw.VICReg()]


def name_of(x):
    return repr(x) if isinstance(x, torch.nn.Module) else ""


@pytest.mark.parametrize(("loss", "formula"), FORMULAS, ids=name_of)
@pytest.mark.parametrize("shape", [(9, 4), (5, 8), (2, 3), (40, 1)], ids=str)
def test_by_the_formula(views, loss, formula, shape):
    pair = [z.detach() * 0.7 + 0.3 for z in views(*shape)]
    expected = formula(*(z.numpy() for z in pair))
    assert loss(*pair).item() == pytest.approx(expected, rel=1e-10, abs=1e-10)
    single = [z.float() for z in pair]
    assert loss(*single).item() == pytest.approx(formula(*(z.double().numpy() for z in single)), rel=1e-5, abs=2e-6)


@pytest.mark.parametrize("loss", [CodingRate(), NuclearNorm(), CKA()], ids=name_of)
def test_the_gradient_where_there_are_fewer_items_than_dimensions(views, loss):
    assert torch.autograd.gradcheck(loss, views(4, 7))


def test_the_coding_rate_by_eigenvalues(views, monkeypatch):
    """As a GPU has it."""
    monkeypatch.setattr(gram, "_has_kernel", lambda core: True)
    for shape in ((9, 4), (4, 7)):
        pair = views(*shape)
        assert CodingRate()(*pair).item() == pytest.approx(coding_rate(*(z.detach().numpy() for z in pair)), rel=1e-12)
        assert torch.autograd.gradcheck(CodingRate(), pair)


def test_by_hand():
    eye = torch.eye(4, dtype=torch.float64)
    assert CodingRate()(eye, 3 * eye).item() == pytest.approx(-2 * math.log(6))  # four eigenvalues of 1 + 1 / 0.2
    assert NuclearNorm()(eye, 2 * eye).item() == pytest.approx(-4)
    assert CKA()(eye, 5 - 3 * eye).item() == pytest.approx(0)  # turned round, scaled and moved
    assert Uniformity(sharpness=0.5)(eye, eye).item() == pytest.approx(-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_item_and_collapsed_sets(dtype):
    """What the docstrings say of them; 0.1 is no binary fraction, so that means are off by rounding."""
    values = {
        gram.coding_rate: -0.5 * math.log(1 + 3 / 0.2),
        gram.variance: 1 - 0.01,
        gram.covariance: 0.0,
        gram.uniformity: 0.0,
        gram.cka: 1.0,
        gram.barlow_twins: 3.0,
        gram.vicreg: 25 * (1 - 0.01),
    }
    for n in (1, 7, 1000):
        pair = [torch.full((n, 3), 0.1, dtype=dtype).requires_grad_() for _ in "ab"]
        found = {function: function(*pair) for function in values}
        for function, expected in values.items():
            assert found[function].item() == pytest.approx(expected, rel=1e-6, abs=1e-6), function
            for grad in torch.autograd.grad(found[function], pair):
                assert grad.abs().max() < 1e-6, function
        norm = gram.nuclear_norm(*pair)
        assert norm.item() == pytest.approx(-math.sqrt(n), rel=1e-6)
        assert max(grad.abs().max() for grad in torch.autograd.grad(norm, pair)) < 1e-6


@pytest.mark.parametrize("loss", [*TERMS[:2], Uniformity()], ids=name_of)
def test_zero_rows_have_no_direction_and_no_gradient(views, loss):
    a, b = (z.detach().clone() for z in views(6, 4))
    a[2] = b[4] = 0
    a.requires_grad_(), b.requires_grad_()
    loss(a, b).backward()
    assert a.grad[2].abs().max() == b.grad[4].abs().max() == 0
    assert a.grad[1].abs().max() > 0
    zero = torch.zeros(3, 4, requires_grad=True)
    value = loss(zero, zero)
    value.backward()
    assert value.item() == pytest.approx(0, abs=1e-12)
    assert zero.grad.abs().max() == 0


def test_a_dimension_that_is_collapsed(views):
    a, b = (z.detach().clone() for z in views(9, 4))
    a[:, 1] = b[:, 1] = 0.1
    a.requires_grad_(), b.requires_grad_()
    for loss, formula in FORMULAS:
        value = loss(a, b)
        assert value.item() == pytest.approx(formula(a.detach().numpy(), b.detach().numpy()), rel=1e-9), loss
        assert all(grad.isfinite().all() for grad in torch.autograd.grad(value, (a, b)))


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e12])
def test_scale_is_nothing_to_cosines_and_to_cka(views, scale):
    pair = [z.detach().float() for z in views(6, 4)]
    for loss in (CodingRate(), NuclearNorm(), Uniformity(), *([CKA()] if scale > 1e-15 else [])):
        torch.testing.assert_close(loss(*(scale * z for z in pair)), loss(*pair))


# The controls by sums over items: what the matrices of N x N numbers give, which few items take.

BY_SUMS = [FrobeniusProduct(), FrobeniusProduct(shift=0.0), FrobeniusProduct(shift=0.3), StructuralDifference()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("loss", BY_SUMS, ids=name_of)
def test_controls_by_sums_over_items(views, monkeypatch, loss, dtype):
    pair = views(30, 4, dtype=dtype)
    found = []
    for most in (2048, 0):
        monkeypatch.setattr(controls, "MANY_ITEMS", most)
        value = loss(*pair)
        found.append((value, *torch.autograd.grad(value, pair)))
    torch.testing.assert_close(*found)
    a, b = (cosines(z.detach().double().numpy()) for z in pair)
    if isinstance(loss, StructuralDifference):
        expected = 0.5 * ((a - b) ** 2).mean()
    else:
        shift = loss.options["shift"]
        expected = numpy.linalg.norm(shift + a) * numpy.linalg.norm(shift + b) / 900
    assert found[1][0].item() == pytest.approx(expected, rel=1e-5 if dtype == torch.float32 else 1e-12)


def test_many_items_take_sums_and_few_the_matrices(monkeypatch):
    seen = []
    monkeypatch.setattr(controls, "gram", lambda rows: seen.append(len(rows)) or gram.gram(rows))
    monkeypatch.setattr(controls, "MANY_ITEMS", 32)
    for n, e, sums in ((32, 2, False), (33, 2, True), (33, 9, False)):
        z_a, z_b = torch.randn(2, n, e, generator=torch.Generator().manual_seed(0)).unbind()
        seen.clear()
        by_sums = StructuralDifference()(z_a, z_b), FrobeniusProduct()(z_a, z_b)
        assert bool(seen) == sums
        if sums:
            a, b = cosines(z_a.double().numpy()), cosines(z_b.double().numpy())
            assert by_sums[0].item() == pytest.approx(0.5 * ((a - b) ** 2).mean(), rel=1e-5)
            product = numpy.linalg.norm(1 + a) * numpy.linalg.norm(1 + b) / n**2
            assert by_sums[1].item() == pytest.approx(product, rel=1e-5)


def test_nearly_equal_and_rotated_sets_by_sums(monkeypatch, views):
    """A small difference is no rounding of the large numbers that it is made of."""
    monkeypatch.setattr(controls, "MANY_ITEMS", 0)
    z = views(40, 4)[0].detach().float()
    near = z + 1e-4 * views(40, 4, seed=1)[0].detach().float()
    a, b = (cosines(x.double().numpy()) for x in (z, near))
    assert StructuralDifference()(z, near).item() == pytest.approx(0.5 * ((a - b) ** 2).mean(), rel=1e-3)
    for turned in torch.linalg.qr(torch.randn(20, 4, 4, generator=torch.Generator().manual_seed(0)))[0]:
        assert 0 <= StructuralDifference()(z, z @ turned).item() < 1e-13


# Against lightly, whose losses are the papers' authors' in another's hands


def test_barlow_twins_and_vicreg_of_lightly(package, views):
    theirs = package("lightly.loss")
    check_lightly_pairs(views, theirs.BarlowTwinsLoss, theirs.VICRegLoss)


def test_terms_of_lightly(package, views):
    check_lightly_terms(
        views,
        package("lightly.loss.mmcr_loss").MMCRLoss,
        package("lightly.loss.emp_ssl_loss").tcr_loss,
        package("lightly.loss.hypersphere_loss").HypersphereLoss,
    )


def check_lightly_pairs(views, barlow, vicreg):
    pair = views(9, 4)
    for ours, other in (
        (sw.BarlowTwins(), barlow()),
        (sw.BarlowTwins(redundancy=0.1), barlow(lambda_param=0.1)),
        (sw.VICReg(), vicreg()),
        (sw.VICReg(invariance=1, variance=2, covariance=3), vicreg(1, 2, 3)),
    ):
        values = [loss(*pair) for loss in (ours, other)]
        torch.testing.assert_close(*values)
        torch.testing.assert_close(*(torch.autograd.grad(value, pair) for value in values))


def check_lightly_terms(views, mmcr, tcr, hypersphere):
    def normal(z):
        return torch.nn.functional.normalize(z)

    pair = views(9, 4)
    alignment = (normal(pair[0]) - normal(pair[1])).square().sum(1).mean()
    values = [
        (NuclearNorm()(*pair), mmcr(lmda=0.0)(*(normal(z)[:, None] for z in pair))),
        # lightly minimises its coding rate: here is the sign of the paper.
        (CodingRate(distortion=0.3)(*pair), -tcr(torch.stack([normal(z) for z in pair]), eps=0.3)),
        (Uniformity(sharpness=1.5)(*pair) + alignment, hypersphere(t=1.5)(*pair)),
    ]
    for ours, other in values:
        torch.testing.assert_close(ours, other)
        torch.testing.assert_close(*(torch.autograd.grad(value, pair) for value in (ours, other)))


# In training


NAMES = ("coding-rate", "nuclear-norm", "variance", "covariance", "cross-correlation", "uniformity", "cka")


def test_every_name_is_registered(views):
    pair = [z.detach() for z in views(9, 4)]
    for name, term in zip((*NAMES, "barlow-twins", "vicreg"), (*TERMS[:4], TERMS[6], *TERMS[4:]), strict=True):
        registry = register.loss if name in ("barlow-twins", "vicreg") else register.term
        assert registry[name].make()(*pair) == term(*pair), name


@pytest.mark.parametrize("loss", ["barlow-twins", "vicreg"])
def test_pretraining_with_every_term(tmp_path, loss):
    changes = {"objective.loss": loss, "epochs": 2}
    run = sw.pretrain("digits", terms=dict.fromkeys(NAMES, 0.1), changes=changes, evaluate=False, out=tmp_path)
    first, last = run.record["epochs"]["loss"]
    assert last < first


@pytest.mark.parametrize("objective", ["barlow-twins", "vicreg", *NAMES])
def test_a_small_network_learns_digits_by_it(objective):
    """A few steps of two views, digits and noise: the loss falls, and items stay apart."""
    torch.manual_seed(0)
    images = sw.data.load("digits", split="train").images[:256].flatten(1).float() / 255
    network = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))
    table = objective if objective in ("barlow-twins", "vicreg") else {"loss": "info-nce", "terms": [objective]}
    loss, optimizer = build(Objective.read(table)), torch.optim.Adam(network.parameters(), 3e-3)
    values = []
    for _ in range(60):
        z_a, z_b = network(images + 0.2 * torch.randn(2, *images.shape)).unbind()
        value = loss(z_a, z_b)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        values.append(value.item())
    assert sum(values[-5:]) < sum(values[:5])
    assert sw.matching_accuracy(z_a, z_b) > 0.15  # chance is 1 of 256
