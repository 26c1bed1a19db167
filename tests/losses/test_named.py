"""The named losses against formulas written out here and against other people's packages."""

import math

import entmax
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import setwise as sw
from setwise.assignment.smoothing import ASSIGNMENT_SMOOTHINGS, _subsets
from setwise.assignment.spectrum import _random_block
from setwise.losses.controls import FrobeniusProduct, StructuralDifference, frobenius_product, structural_difference

SIMILARITIES = ["cosine", "euclidean", "sqeuclidean"]


def score(a: Tensor, b: Tensor, similarity: str) -> Tensor:
    if similarity == "cosine":
        return F.cosine_similarity(a[:, None], b[None], dim=-1)
    d = (a[:, None] - b[None]).norm(dim=-1)
    return -d if similarity == "euclidean" else -(d**2)


def among_all(z_a: Tensor, z_b: Tensor, similarity: str) -> tuple[Tensor, Tensor]:
    """Scores of each of 2N views against the 2N - 1 others (itself cut out) and the column of its partner."""
    n = len(z_a)
    z = torch.cat([z_a, z_b])
    s = score(z, z, similarity)
    keep = ~torch.eye(2 * n, dtype=torch.bool)
    partner = torch.arange(2 * n).roll(n)
    column = partner - (partner > torch.arange(2 * n)).long()
    return s[keep].reshape(2 * n, 2 * n - 1), column


@pytest.mark.parametrize("similarity", SIMILARITIES)
@pytest.mark.parametrize("temperature", [0.05, 0.5])
def test_nt_xent(views, similarity, temperature):
    z_a, z_b = views(6, 4)
    logits, partner = among_all(z_a, z_b, similarity)
    losses = F.cross_entropy(logits / temperature, partner, reduction="none")
    got = sw.NTXent(temperature=temperature, similarity=similarity)(z_a, z_b)
    torch.testing.assert_close(got, losses.mean())
    got = sw.NTXent(temperature=temperature, similarity=similarity, reduction="log-mean")(z_a, z_b)
    torch.testing.assert_close(got, -torch.exp(-losses).mean().log())


def test_functions_have_the_defaults_of_the_losses(views):
    z_a, z_b = views(6, 4)
    for loss, function in (
        (sw.AssignmentLoss(), sw.functional.assignment_loss),
        (sw.InfoNCE(temperature=0.05, similarity="cosine"), sw.functional.info_nce),
        (sw.NTXent(temperature=0.5, similarity="cosine"), sw.functional.nt_xent),
        (sw.SparseCLR(margin=1.0, candidates="all", similarity="cosine"), sw.functional.sparse_clr),
        (sw.TripletMargin(margin=0.5, similarity="euclidean"), sw.functional.triplet_margin),
        (sw.NTLogistic(temperature=0.05, similarity="cosine", negatives="mean"), sw.functional.nt_logistic),
        (sw.QARe(similarity="cosine", normalization="n2", shift=1.0), sw.functional.qare),
        (FrobeniusProduct(similarity="cosine", shift=1.0), frobenius_product),
        (StructuralDifference(similarity="cosine"), structural_difference),
    ):
        assert loss(z_a, z_b) == type(loss)()(z_a, z_b) == function(z_a, z_b) > 0


def test_clamp_bounds_similarities_not_logits(views):
    z_a, z_b = views(6, 4)
    s, partner = among_all(z_a, z_b, "cosine")
    logits = s.clamp_min(0.2) / 0.1
    torch.testing.assert_close(sw.NTXent(temperature=0.1, clamp=0.2)(z_a, z_b), F.cross_entropy(logits, partner))
    got = sw.SparseCLR(temperature=0.1, clamp=0.2, margin=0.0)(z_a, z_b)
    torch.testing.assert_close(got, entmax.sparsemax_loss(logits, partner).mean())


@pytest.mark.parametrize("similarity", ["euclidean", "sqeuclidean"])
def test_a_negative_clamp_is_the_largest_distance(views, similarity):
    z_a, z_b = views(6, 4)
    s, partner = among_all(z_a, z_b, similarity)
    loss = sw.NTXent(temperature=0.1, clamp=-2.0, similarity=similarity)
    torch.testing.assert_close(loss(z_a, z_b), F.cross_entropy(s.clamp_min(-2.0) / 0.1, partner))
    # QARe compares the distances themselves, of which a clamp is the smallest.
    loss = sw.QARe(clamp=0.5, similarity=similarity, normalization="none")
    up, down = (torch.linalg.eigvalsh((-score(z, z, similarity)).clamp_min(0.5)) for z in (z_a, z_b))
    torch.testing.assert_close(loss(z_a, z_b), -(up @ down.flip(0)))


def test_nt_xent_equals_pytorch_metric_learning(views):
    z_a, z_b = views(8, 5)
    labels = torch.arange(8).repeat(2)
    losses = pytest.importorskip("pytorch_metric_learning.losses")
    reference = losses.NTXentLoss(temperature=0.3)(torch.cat([z_a, z_b]), labels)
    ours = sw.NTXent(temperature=0.3)(z_a, z_b)
    torch.testing.assert_close(ours, reference)
    torch.testing.assert_close(*(torch.autograd.grad(x, z_a)[0] for x in (ours, reference)))


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_sparse_clr(views, similarity):
    z_a, z_b = views(6, 4)
    rows = torch.arange(6)
    s = score(z_a, z_b, similarity) - 0.7 * torch.eye(6)
    got = sw.SparseCLR(margin=0.7, candidates="cross", similarity=similarity)(z_a, z_b)
    torch.testing.assert_close(got, entmax.sparsemax_loss(s, rows).mean())
    # Eq. (14) as the notes write it: ½ Σ_{j in support} (s² - T²) - s_ii + ½.
    p = entmax.sparsemax(s, -1)
    support = p > 0
    threshold = ((s * support).sum(1) - 1) / support.sum(1)
    printed = 0.5 * ((s**2 - threshold[:, None] ** 2) * support).sum(1) - s.diagonal() + 0.5
    torch.testing.assert_close(got, printed.mean())
    s, partner = among_all(z_a, z_b, similarity)
    s = s - 0.7 * F.one_hot(partner, s.shape[1])
    got = sw.SparseCLR(margin=0.7, similarity=similarity)(z_a, z_b)
    torch.testing.assert_close(got, entmax.sparsemax_loss(s, partner).mean())


@pytest.mark.parametrize("similarity", SIMILARITIES)
@pytest.mark.parametrize("negatives", ["mean", "sum", "hardest"])
@pytest.mark.parametrize("n", [1, 5])
def test_nt_logistic(views, similarity, negatives, n):
    z_a, z_b = views(n, 4)
    x = score(z_a, z_b, similarity) / 0.4
    rows = []
    for i in range(n):
        others = F.softplus(x[i][torch.arange(n) != i])
        term = {"mean": torch.mean, "sum": torch.sum, "hardest": torch.max}[negatives](others) if n > 1 else 0
        rows.append(F.softplus(-x[i, i]) + term)
    loss = sw.NTLogistic(temperature=0.4, similarity=similarity, negatives=negatives)
    torch.testing.assert_close(loss(z_a, z_b), torch.stack(rows).mean())
    assert torch.autograd.gradcheck(loss, (z_a, z_b))


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_triplet(views, similarity):
    z_a, z_b = views(6, 4)
    d = -score(z_a, z_b, similarity)
    others = d + torch.diag(torch.full((6,), math.inf))
    expected = F.relu(0.5 + d.diagonal() - others.amin(1)).mean()
    torch.testing.assert_close(sw.TripletMargin(similarity=similarity)(z_a, z_b), expected)


def test_extra_negatives(views):
    z_a, z_b = views(5, 4)
    bank = views(7, 4, seed=5)[0].detach().requires_grad_()
    s = score(z_a, torch.cat([z_b, bank]), "cosine") / 0.1
    torch.testing.assert_close(sw.InfoNCE(temperature=0.1)(z_a, z_b, bank), F.cross_entropy(s, torch.arange(5)))
    logits, partner = among_all(z_a, z_b, "cosine")
    logits = torch.cat([logits, score(torch.cat([z_a, z_b]), bank, "cosine")], 1)
    torch.testing.assert_close(sw.NTXent()(z_a, z_b, bank), F.cross_entropy(logits / 0.5, partner))
    x = score(z_a, torch.cat([z_b, bank]), "cosine")
    hardest = torch.stack([torch.cat([x[i, :i], x[i, i + 1 :]]).max() for i in range(5)])
    expected = F.relu(0.5 - x.diagonal() + hardest).mean()
    torch.testing.assert_close(sw.TripletMargin(similarity="cosine")(z_a, z_b, bank), expected)
    others = torch.stack([F.softplus(torch.cat([x[i, :i], x[i, i + 1 :]])).mean() for i in range(5)])
    expected = (F.softplus(-x.diagonal()) + others).mean()
    torch.testing.assert_close(sw.NTLogistic(temperature=1.0)(z_a, z_b, bank), expected)
    for loss in (sw.InfoNCE(), sw.NTXent(), sw.SparseCLR(), sw.SparseCLR(candidates="cross"), sw.NTLogistic()):
        (grad,) = torch.autograd.grad(loss(z_a, z_b, bank), bank)
        assert grad.isfinite().all()
        torch.testing.assert_close(loss(z_a, z_b, bank[:0]), loss(z_a, z_b))  # an empty bank is no bank


@pytest.mark.parametrize("similarity", SIMILARITIES)
@pytest.mark.parametrize("block_size", [1, 4, 7, 100])
@pytest.mark.parametrize(
    "loss",
    [
        lambda **o: sw.InfoNCE(symmetric=True, **o),
        lambda **o: sw.NTXent(reduction="log-mean", clamp=0.0 if o["similarity"] == "cosine" else -2.0, **o),
        lambda **o: sw.SparseCLR(**o),
        lambda **o: sw.SparseCLR(candidates="cross", **o),
    ],
)
def test_block_by_block_has_the_same_value_and_gradient(views, loss, block_size, similarity):
    z_a, z_b = views(7, 4)
    bank = views(3, 4, seed=5)[0].detach()
    whole = loss(similarity=similarity)(z_a, z_b, bank)
    blocks = loss(similarity=similarity, block_size=block_size)(z_a, z_b, bank)
    torch.testing.assert_close(blocks, whole, rtol=1e-12, atol=1e-12)
    gradients = (torch.autograd.grad(value, (z_a, z_b)) for value in (blocks, whole))
    torch.testing.assert_close(*gradients, rtol=1e-11, atol=1e-13)


def test_blocks_keep_no_matrix_of_all_pairs(views):
    z_a, z_b = views(64, 4)
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            made = out if isinstance(out, tuple) else (out,)
            largest = max([largest, *(x.numel() for x in made if isinstance(x, Tensor))])
            return out

    with Watch():
        sw.NTXent(block_size=8)(z_a, z_b).backward()
    assert largest <= 8 * 128


def test_an_export_leaves_nothing_behind_in_the_process(views):
    loss, (z_a, z_b) = sw.QARe(similarity="euclidean", spectrum="topk", k=2), views(64, 4)
    expected = loss(z_a, z_b)
    _random_block.cache_clear()
    exported = torch.export.export(loss, (z_a.detach(), z_b.detach())).module()
    for found in (loss(z_a, z_b), exported(z_a.detach(), z_b.detach())):
        torch.testing.assert_close(found.detach(), expected.detach())


@pytest.mark.parametrize(
    ("loss", "items"),
    [
        *((sw.AssignmentLoss(mining="one-to-one", smoothing=smoothing), 6) for smoothing in ASSIGNMENT_SMOOTHINGS),
        (sw.QARe(similarity="euclidean", spectrum="topk", k=2), 64),
    ],
)
def test_another_default_device(views, loss, items):
    z_a, z_b = views(items, 4)
    expected = loss(z_a, z_b)
    _subsets.cache_clear()
    _random_block.cache_clear()
    with torch.device("meta"):
        torch.testing.assert_close(loss(z_a, z_b), expected)
