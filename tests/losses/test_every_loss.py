"""What holds for every loss: gradients, precision, extremes, torch's modes, one derivative, more than two views."""

import re
from itertools import combinations

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.functional import hvp, jacobian, jvp, vhp, vjp

import setwise as sw
from setwise.assignment.rows import ROW_SMOOTHINGS
from setwise.assignment.smoothing import ASSIGNMENT_SMOOTHINGS, _subsets
from setwise.assignment.spectrum import _random_block
from setwise.losses.combined import Function, WeightedTerms
from setwise.losses.controls import FrobeniusProduct, StructuralDifference
from setwise.losses.gram import CKA, CodingRate, Covariance, NuclearNorm, Uniformity, Variance


def name_of(loss):
    """Its repr without the places of functions in memory, which differ from process to process."""
    return re.sub(" at 0x[0-9a-f]+", "", repr(loss))


NAMED = [
    sw.InfoNCE(),
    sw.InfoNCE(similarity="euclidean", symmetric=True),
    sw.InfoNCE(similarity="sqeuclidean", temperature=1.0),
    sw.NTXent(),
    sw.NTXent(reduction="log-mean", clamp=1e-8),
    sw.NTXent(block_size=3),
    sw.SparseCLR(),
    sw.SparseCLR(candidates="cross"),
    sw.TripletMargin(),
    sw.TripletMargin(similarity="cosine", margin=2.0),
    sw.NTLogistic(),
    sw.NTLogistic(negatives="hardest", symmetric=True),
    sw.QARe(),
    sw.QARe(similarity="euclidean"),
    sw.QARe(similarity="sqeuclidean", bound="best", reference="truth"),
    sw.QARe(spectrum="dense", clamp=0.0),
    sw.QARe(bound="projection"),
    sw.QARe(center=True),
    sw.QARe(spectrum="topk", k=1),
    sw.QARe(similarity="euclidean", spectrum="topk", k=1),
    sw.SetContrastive(sw.NTXent(), beta=0.5),
    FrobeniusProduct(),
    StructuralDifference(),
    CodingRate(),
    CodingRate(distortion=0.01),
    NuclearNorm(),
    Variance(target=3.0),
    Covariance(),
    Uniformity(),
    CKA(),
    sw.BarlowTwins(),
    sw.BarlowTwins(redundancy=1.0),
    sw.VICReg(target=2.0),
    sw.SetContrastive(sw.VICReg(), 0.5, CodingRate()),
]
TWICE = (Variance, sw.BarlowTwins)  # in plain torch, which has every derivative
CELLS = [
    sw.AssignmentLoss(mining=mining, smoothing=smoothing, similarity=similarity, margin=1.0)
    for mining, smoothings in (("batch-hard", ROW_SMOOTHINGS), ("one-to-one", ASSIGNMENT_SMOOTHINGS))
    for smoothing in smoothings
    for similarity in ("cosine", "euclidean", "sqeuclidean")
]
LEARNED = [
    loss(temperature=nn.Parameter(torch.tensor(0.6)), **options)
    for loss, options in (
        (sw.InfoNCE, {}),
        (sw.NTXent, {"reduction": "log-mean", "clamp": 0.1}),
        (sw.SparseCLR, {"candidates": "cross", "clamp": 0.1, "block_size": 4}),
        (sw.NTLogistic, {}),
    )
]


def spread(z_a, z_b):
    return z_a.var() + z_b.var()


OWN = [
    Function(spread),
    WeightedTerms({"qare": (0.5, sw.QARe()), "mine.spread": (2.0, spread)}),  # a name that torch's dictionary refuses
    sw.SetContrastive(spread, 0.5, spread),
    sw.SetContrastive(sw.InfoNCE(), 0.5, on="features"),
]
every_loss = pytest.mark.parametrize("loss", [*NAMED, *CELLS], ids=name_of)


def items(loss) -> int:
    """Few enough for every assignment, or room for leading eigenvalues."""
    return 6 if getattr(loss, "options", {}).get("mining") == "one-to-one" else 48


@every_loss
def test_gradient_and_order(views, loss):
    pair = views(5, 3, seed=3)
    assert torch.autograd.gradcheck(loss, pair)
    order = torch.tensor([3, 0, 1, 4, 2])
    values = loss(*pair), loss(*(z[order] for z in pair))
    torch.testing.assert_close(*values, msg="permuting the batch changes nothing")
    torch.testing.assert_close(*(torch.autograd.grad(value, pair) for value in values))


@pytest.mark.parametrize("loss", NAMED, ids=name_of)
def test_half_precision_and_autocast_agree_with_float64(views, loss):
    z_a, z_b = (z.detach() for z in views(12, 8))
    exact = loss(z_a, z_b)
    for dtype, tolerance in ((torch.bfloat16, 0.05), (torch.float16, 0.01)):
        rounded = [z.to(dtype) for z in (z_a, z_b)]
        got = loss(*rounded)
        assert got.dtype == torch.float32
        # All that is lost is what rounding the embeddings themselves loses.
        torch.testing.assert_close(got.double(), loss(*(z.double() for z in rounded)), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(got.double(), exact, rtol=tolerance, atol=tolerance)
    leaf, b = z_a.float().requires_grad_(), z_b.float()
    plain = loss(leaf, b)
    torch.testing.assert_close(plain.double(), exact, rtol=1e-5, atol=1e-5)
    with torch.autocast("cpu", torch.bfloat16):
        cast = loss(leaf, b)
    torch.testing.assert_close(cast, plain, rtol=0, atol=0)
    torch.testing.assert_close(*(torch.autograd.grad(value, leaf) for value in (cast, plain)), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@every_loss
def test_extreme_rows_in_every_dtype(views, loss, dtype):
    a, b = (z.detach() for z in views(5, 3))
    zero, short, ones = a.clone(), a.clone(), torch.ones(5, 3)
    zero[2], short[2] = 0, torch.tensor([0.0, 1e-42, 0.0])
    few = [(z[:n], w[:n]) for z, w in ((a, b), (ones, ones)) for n in (1, 2)]
    cubic = isinstance(getattr(loss, "pairwise", loss), (sw.QARe, Covariance, sw.VICReg))
    large = 10.0 if cubic else 1e4  # their gradients may grow with the third power
    for z_a, z_b in ((large * a, large * b), (zero, b), (short, b), (ones, ones), *few):
        pair = [z.to(dtype).requires_grad_() for z in (z_a, z_b)]
        value = loss(*pair)
        assert value.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        value.backward()
        assert value.isfinite()
        assert all(z.grad.isfinite().all() for z in pair)
        if getattr(loss, "similarity", None) == "cosine" and z_a is zero and not loss.options.get("center"):
            assert pair[0].grad[2].abs().max() == 0


@pytest.mark.parametrize("loss", CELLS, ids=name_of)
def test_one_row_has_nothing_to_confuse(views, loss):
    pair = views(1, 4)
    value = loss(*pair)
    assert value.item() == pytest.approx(0, abs=1e-12)
    assert all(grad.abs().max() < 1e-12 for grad in torch.autograd.grad(value, pair))


@every_loss
def test_without_gradients_and_with_them_again(views, loss):
    """The same value in inference mode, which Lightning validates in, and without gradients; then gradients as ever."""
    z_a, z_b = views(items(loss), 4)
    _subsets.cache_clear()  # caches filled in inference mode must not harm what comes later
    _random_block.cache_clear()
    with torch.inference_mode():
        values = [loss(z_a, z_b), loss(z_a.clone(), z_b.clone())]
    with torch.no_grad():
        values.append(loss(z_a, z_b))
    after = loss(z_a, z_b)
    after.backward()
    assert z_a.grad.isfinite().all()
    assert z_a.grad.any()
    for value in values:
        assert not value.requires_grad
        torch.testing.assert_close(value, after.detach())


SOLVED = [sw.AssignmentLoss(mining="one-to-one", smoothing=s, margin=0.5) for s in ("none", "sinkhorn")]


# Dynamo's own, when it meets an autograd.Function, and as for scipy, which it cannot trace.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("loss", [*NAMED, *LEARNED, *SOLVED], ids=name_of)
def test_compiles(views, loss):
    torch.compiler.reset()  # all losses have one forward, of which torch compiles no more than eight
    pair = views(6, 4, dtype=torch.float32)
    found = []
    for made in (loss, torch.compile(loss, backend="aot_eager", fullgraph=loss not in SOLVED)):
        value = made(*pair)
        found.append((value.detach(), *torch.autograd.grad(value, (*loss.parameters(), *pair))))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("loss", [x for x in NAMED if isinstance(x, TWICE)], ids=name_of)
def test_two_derivatives_are_right(views, loss):
    assert torch.autograd.gradgradcheck(loss, views(5, 3, seed=3))


@pytest.mark.parametrize("loss", [x for x in [*NAMED, *CELLS] if not isinstance(x, TWICE)], ids=name_of)
def test_one_derivative_is_right_and_another_is_refused(views, loss):
    z, b = (x.detach() for x in views(items(loss), 3))
    refused = "expected one derivative at most|derivative .* is not implemented|'_cdist_backward' is not implemented"
    for product in (jvp, hvp, vhp):
        with pytest.raises(RuntimeError, match=refused):
            product(lambda x: loss(x, b), z, torch.ones_like(z))
    leaf = z.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(leaf, b), leaf)
    value = loss(leaf, b)
    (gradient,) = torch.autograd.grad(value, leaf, create_graph=True)
    torch.testing.assert_close(gradient, expected)
    with pytest.raises(RuntimeError, match=refused):
        torch.autograd.grad(gradient.square().sum(), leaf, allow_unused=True, retain_graph=True)
    with pytest.raises(RuntimeError, match=refused):
        (value + gradient.square().sum()).backward()
    torch.testing.assert_close(vjp(lambda x: loss(x, b), z)[1], expected)
    torch.testing.assert_close(jacobian(lambda x: loss(x, b), z), expected)


def test_the_gradients_of_a_network_have_no_derivative_in_its_weights():
    torch.manual_seed(0)
    network = nn.Linear(3, 2)
    loss = sw.InfoNCE()(network(torch.randn(5, 3)), torch.randn(5, 2))
    gradients = torch.autograd.grad(loss, list(network.parameters()), create_graph=True)
    with pytest.raises(RuntimeError, match="expected one derivative at most"):
        torch.autograd.grad(gradients[0].sum(), list(network.parameters()), allow_unused=True)


# More than two views: the mean over every two of them, in one place for all losses


def embeddings(count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    item, *noise = torch.randn(1 + count, 5, 3, generator=generator, dtype=torch.float64)
    return [(item + 0.5 * x).requires_grad_() for x in noise]


@pytest.mark.parametrize("loss", [*NAMED, *CELLS[::3], *LEARNED, *OWN], ids=name_of)
def test_the_mean_over_every_two_views(loss):
    z, h = embeddings(4), [x.detach().square() for x in embeddings(4)]
    on_features = getattr(loss, "on", None) == "features"

    def pair(i, j):
        return loss(z[i], z[j], (h[i], h[j])) if on_features else loss(z[i], z[j])

    more = {"features": h} if on_features else {}
    expected = sum(pair(i, j) for i, j in combinations(range(4), 2)) / 6
    gradients = torch.autograd.grad(expected, z)
    for views in (z, tuple(z), torch.stack(z)):
        torch.testing.assert_close(loss(views, **more), expected)
        torch.testing.assert_close(torch.autograd.grad(loss(views, **more), z), gradients)
    two = {"features": h[:2]} if on_features else {}
    assert torch.equal(loss(z[:2], **two), pair(0, 1)), "two views: to the bit"


def test_parts_and_extra_negatives_of_three_views():
    z, bank = embeddings(3), embeddings(4)[3].detach()
    loss = sw.SetContrastive(sw.NTXent(), 0.5)
    parts = [loss.terms(a, b) for a, b in combinations(z, 2)]
    for name, value in loss.terms(z).items():
        torch.testing.assert_close(value, sum(part[name] for part in parts) / 3)
    pairs = [sw.InfoNCE()(a, b, bank) for a, b in combinations(z, 2)]
    torch.testing.assert_close(sw.InfoNCE()(z, extra_negatives=bank), sum(pairs) / 3)


@pytest.mark.parametrize("loss", [sw.InfoNCE(), sw.SetContrastive(sw.NTXent(), 0.5), *OWN[:3]], ids=name_of)
def test_views_that_no_loss_can_take(loss):
    z = [x.detach() for x in embeddings(3)]
    for one in (z[:1], z[0][None], ()):
        with pytest.raises(ValueError, match=f"expected at least two views, .* got {len(one)}"):
            loss(one)
    with pytest.raises(ValueError, match="expected z_b to be a torch.Tensor, got NoneType"):
        loss(z[0])
    if loss not in (OWN[0], OWN[2]):  # a function of one's own may take what it will
        with pytest.raises(ValueError, match=r"expected z_b of shape \(5, 3\) like z_a, got \(4, 3\)"):
            loss([z[0], z[1], z[2][:4]])


def test_features_of_every_view():
    z = embeddings(3)
    with pytest.raises(ValueError, match="expected features .* give those of every view"):
        OWN[-1](z, features=z[:2])
    with pytest.raises(ValueError, match='expected features .* for on="features" and only there, got none'):
        OWN[-1](z)
