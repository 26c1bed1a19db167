"""One derivative, backwards: what torch computes by another one is refused, and never silently wrong."""

import pytest
import torch
from torch.autograd.functional import hvp, jacobian, jvp, vhp, vjp

import setwise as sw
from setwise.assignment.smoothing import ASSIGNMENT_SMOOTHINGS, ROW_SMOOTHINGS
from setwise.losses.controls import FrobeniusProduct, StructuralDifference

CELLS = [("batch-hard", smoothing) for smoothing in ROW_SMOOTHINGS]
CELLS += [("one-to-one", smoothing) for smoothing in ASSIGNMENT_SMOOTHINGS]
LOSSES = [
    sw.InfoNCE(),
    sw.InfoNCE(similarity="euclidean"),
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
    *(sw.AssignmentLoss(mining=m, smoothing=s, similarity="cosine", margin=0.5) for m, s in CELLS),
    sw.QARe(),
    sw.QARe(similarity="euclidean"),
    sw.QARe(similarity="sqeuclidean", bound="best", reference="truth"),
    sw.QARe(spectrum="dense", clamp=0.0),
    sw.QARe(center=True),
    sw.QARe(spectrum="topk", k=1),
    sw.QARe(similarity="euclidean", spectrum="topk", k=1),
    sw.SetContrastive(sw.NTXent(), beta=0.5),
    FrobeniusProduct(),
    StructuralDifference(),
]


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_products_with_a_derivative_of_the_gradient_are_refused_and_others_right(views, loss):
    n = 6 if getattr(loss, "options", {}).get("mining") == "one-to-one" else 48  # room for leading eigenvalues
    z, b = (x.detach() for x in views(n, 3))
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
    network = torch.nn.Linear(3, 2)
    loss = sw.InfoNCE()(network(torch.randn(5, 3)), torch.randn(5, 2))
    gradients = torch.autograd.grad(loss, list(network.parameters()), create_graph=True)
    with pytest.raises(RuntimeError, match="expected one derivative at most"):
        torch.autograd.grad(gradients[0].sum(), list(network.parameters()), allow_unused=True)
