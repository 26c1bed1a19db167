"""Losses of more than two views: the mean over every two of them, in one place for all losses."""

from itertools import combinations

import pytest
import torch

import setwise as sw
from setwise.losses.controls import FrobeniusProduct, StructuralDifference
from setwise.losses.modules import Function, WeightedTerms


def spread(z_a, z_b):
    return z_a.var() + z_b.var()


LOSSES = [
    sw.InfoNCE(0.3),
    sw.InfoNCE(torch.tensor(0.3), symmetric=True),
    sw.NTXent(),
    sw.SparseCLR(),
    sw.TripletMargin(),
    sw.NTLogistic(),
    sw.AssignmentLoss(mining="one-to-one", margin=0.3),
    sw.QARe(),
    FrobeniusProduct(),
    StructuralDifference(),
    Function(spread),
    WeightedTerms({"qare": (0.5, sw.QARe()), "mine.spread": (2.0, spread)}),  # a name that torch's dictionary refuses
    sw.SetContrastive(sw.NTXent(), 0.5),
    sw.SetContrastive(spread, 0.5, spread),
    sw.SetContrastive(sw.InfoNCE(), 0.5, on="features"),
]


def embeddings(count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    item = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    return [
        (item + 0.5 * torch.randn(5, 3, generator=generator, dtype=torch.float64)).requires_grad_()
        for _ in range(count)
    ]


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
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
    assert torch.autograd.gradcheck(lambda *views: loss([*views], **({"features": h[:3]} if more else {})), z[:3])


def test_parts_and_extra_negatives_of_three_views():
    z, bank = embeddings(3), embeddings(4)[3].detach()
    loss = sw.SetContrastive(sw.NTXent(), 0.5)
    parts = [loss.terms(a, b) for a, b in combinations(z, 2)]
    for name, value in loss.terms(z).items():
        torch.testing.assert_close(value, sum(part[name] for part in parts) / 3)
    pairs = [sw.InfoNCE()(a, b, bank) for a, b in combinations(z, 2)]
    torch.testing.assert_close(sw.InfoNCE()(z, extra_negatives=bank), sum(pairs) / 3)


@pytest.mark.parametrize("loss", [*LOSSES[:1], *LOSSES[-5:-1]], ids=lambda loss: type(loss).__name__)
def test_views_that_no_loss_can_take(loss):
    z = [x.detach() for x in embeddings(3)]
    for one in (z[:1], z[0][None], ()):
        with pytest.raises(ValueError, match=f"expected at least two views, .* got {len(one)}"):
            loss(one)
    with pytest.raises(ValueError, match="expected z_b to be a torch.Tensor, got NoneType"):
        loss(z[0])
    if loss not in LOSSES[-5:] or isinstance(loss, WeightedTerms):  # a function of one's own may take what it will
        with pytest.raises(ValueError, match=r"expected z_b of shape \(5, 3\) like z_a, got \(4, 3\)"):
            loss([z[0], z[1], z[2][:4]])


def test_features_of_every_view():
    z = embeddings(3)
    with pytest.raises(ValueError, match="expected features .* give those of every view"):
        LOSSES[-1](z, features=z[:2])
    with pytest.raises(ValueError, match='expected features .* for on="features" and only there, got none'):
        LOSSES[-1](z)
