"""pytorch-metric-learning: the regulariser's gradient arrives as computed by hand, labelled batches are paired."""

import pytest
import torch
from pytorch_metric_learning.losses import ContrastiveLoss, NTXentLoss, SelfSupervisedLoss, TripletMarginLoss
from torch import nn

import setwise as sw
from setwise.adapters.metric_learning import QAReRegularizer, SetLoss, label_pairs

WEIGHT = 0.7


def halves(a, b):
    return torch.cat([a, b])


def interleaved(a, b):
    return torch.stack([a, b], 1).flatten(0, 1)


def dense_qare(a, b):
    """Eq. (17) from its definition: sorted eigenvalues of the shifted cosines, over N²."""
    spectra = [torch.linalg.eigvalsh(1 + (u := z / z.norm(dim=1, keepdim=True)) @ u.T) for z in (a, b)]
    return (spectra[0] * spectra[1]).sum() / len(a) ** 2


@pytest.mark.parametrize(("layout", "lay"), [("halves", halves), ("interleaved", interleaved)])
@pytest.mark.parametrize("pairwise", [NTXentLoss, TripletMarginLoss, ContrastiveLoss])
def test_gradient_is_that_of_qare_times_the_weight(views, layout, lay, pairwise):
    a, b = views(7, 3)
    labels = lay(*2 * [torch.arange(7)])
    plain = pairwise()
    whole = pairwise(embedding_regularizer=QAReRegularizer(layout=layout), embedding_reg_weight=WEIGHT)
    difference = whole(lay(a, b), labels) - plain(lay(a, b), labels)
    torch.testing.assert_close(difference, WEIGHT * dense_qare(a, b))
    got = torch.autograd.grad(difference, (a, b))
    torch.testing.assert_close(got, torch.autograd.grad(WEIGHT * sw.functional.qare(a, b), (a, b)))
    assert all(g.abs().max() > 1e-4 for g in got)


def test_any_term_can_be_given(views):
    a, b = views(6, 3)
    term = sw.QARe(similarity="euclidean", reference="truth")
    assert "euclidean" in repr(QAReRegularizer(term))
    torch.testing.assert_close(QAReRegularizer(term)(halves(a, b)), term(a, b))
    torch.testing.assert_close(QAReRegularizer(term)(halves(a, a)), term(a, a))


def test_one_view_alone_is_an_error_that_says_so(views):
    a, b = views(6, 3)
    loss = NTXentLoss(embedding_regularizer=QAReRegularizer())
    with pytest.raises(
        ValueError, match=r"expected a batch of two views.*3 of 3 pairs with different labels.*given as ref_emb"
    ):
        loss(a, torch.arange(6), ref_emb=b, ref_labels=torch.arange(6))
    with pytest.raises(ValueError, match=r"symmetric=False\), which hands a regulariser the first view alone"):
        SelfSupervisedLoss(loss, symmetric=False)(a, b)
    with pytest.raises(ValueError, match="the first view alone"):
        SelfSupervisedLoss(loss, symmetric=False)(a[:5], b[:5])
    SelfSupervisedLoss(loss)(a, b)
    SelfSupervisedLoss(NTXentLoss(), symmetric=False)(a, b)


def test_a_batch_laid_out_otherwise_is_an_error(views):
    a, b = views(6, 3)
    labels = torch.arange(6)
    for layout, lay in (("halves", interleaved), ("interleaved", halves)):
        loss = NTXentLoss(embedding_regularizer=QAReRegularizer(layout=layout))
        with pytest.raises(ValueError, match=f"laid out as {layout!r}, got [56] of 6 pairs.*choose the other layout"):
            loss(lay(a, b), lay(labels, labels))


def test_bad_input():
    with pytest.raises(ValueError, match=r"expected layout to be one of 'halves', 'interleaved'"):
        QAReRegularizer(layout="half")
    with pytest.raises(ValueError, match=r"expected term to be a loss, got the class QARe; QARe\(\) is one"):
        QAReRegularizer(sw.QARe)
    with pytest.raises(ValueError, match=r"expected loss to be a loss, got the class InfoNCE; InfoNCE\(\) is one"):
        SetLoss(sw.InfoNCE)
    for shape in ((5, 3), (0, 3), (4,)):
        with pytest.raises(ValueError, match=r"expected embeddings of shape \(2N, E\)"):
            QAReRegularizer().compute_loss(torch.ones(shape))


@pytest.mark.parametrize("seed", range(5))
def test_label_pairs_against_a_loop(seed):
    labels = torch.randint(0, 6, (23,), generator=torch.Generator().manual_seed(seed))
    expected = set()
    for label in set(labels.tolist()):
        places = [i for i, x in enumerate(labels.tolist()) if x == label]
        expected |= set(zip(places[0::2], places[1::2], strict=False))
    first, second = label_pairs(labels)
    assert len(first) == len(expected)
    assert set(zip(first.tolist(), second.tolist(), strict=True)) == expected


def test_set_loss_by_hand(views):
    z, _ = views(7, 3)
    labels = torch.tensor([5, 2, 5, 9, 2, 5, 2])  # pairs (1, 4) and (0, 2); 3, 5 and 6 are left over
    got = SetLoss(sw.InfoNCE(temperature=0.5))(z, labels)
    unit = z / z.norm(dim=1, keepdim=True)
    scores = unit[[1, 0]] @ unit[[4, 2]].T / 0.5
    torch.testing.assert_close(got, nn.functional.cross_entropy(scores, torch.arange(2)))
    got.backward()
    assert (z.grad.abs().sum(1) > 0).tolist() == [True, True, True, False, True, False, False]


def test_set_loss_of_a_regularizer_too(views):
    z, _ = views(6, 3)
    labels = torch.arange(3).repeat(2)
    options = {"embedding_regularizer": QAReRegularizer(), "embedding_reg_weight": WEIGHT}
    got = SetLoss(sw.InfoNCE(), **options)(z, labels)
    torch.testing.assert_close(got, sw.SetContrastive(sw.InfoNCE(), WEIGHT)(z[:3], z[3:]))


@pytest.mark.parametrize("labels", [[0, 1, 2, 3], [0, 0, 1, 2]])
def test_too_few_pairs_give_zero_with_a_gradient(views, labels):
    z, _ = views(4, 3)
    loss = SetLoss(sw.SetContrastive(sw.InfoNCE()))(z, torch.tensor(labels))  # QARe of one pair is not 0
    assert loss.item() == 0
    loss.backward()
    assert torch.equal(z.grad, torch.zeros_like(z))


def test_set_loss_bad_input(views):
    z, other = views(4, 3)
    labels = torch.tensor([0, 0, 1, 1])
    with pytest.raises(ValueError, match="expected labels, by which items are paired, got None"):
        SetLoss(sw.InfoNCE())(z)
    with pytest.raises(ValueError, match="got indices_tuple or ref_emb"):
        SetLoss(sw.InfoNCE())(z, labels, ref_emb=other, ref_labels=labels)
    with pytest.raises(ValueError, match="got indices_tuple or ref_emb"):
        SetLoss(sw.InfoNCE())(z, labels, tuple(torch.tensor([0]) for _ in range(3)))
