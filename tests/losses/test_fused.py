"""Row-wise losses with the kernel that computes them at once, whose place is taken here by its formula in float64."""

import copy
import math

import pytest
import torch
from torch import nn

import setwise as sw
from setwise.assignment.rows import row_maximum
from setwise.losses import structured

LOSSES = {
    "infonce": sw.InfoNCE(temperature=0.2),
    "infonce, both ways, by blocks": sw.InfoNCE(temperature=0.2, symmetric=True, block_size=3),
    "infonce, euclidean": sw.InfoNCE(temperature=0.5, similarity="euclidean"),
    "nt-xent, clamped": sw.NTXent(clamp=1e-8, reduction="log-mean"),
    "nt-xent, by blocks": sw.NTXent(block_size=5),
    "sparseclr": sw.SparseCLR(temperature=0.5),
    "sparseclr, clamped, by blocks": sw.SparseCLR(clamp=0.1, block_size=4),
    "sparseclr, cross": sw.SparseCLR(candidates="cross", margin=0.3),
    "infonce, learned": sw.InfoNCE(temperature=nn.Parameter(torch.tensor(0.2))),
    "nt-xent, learned, clamped, by blocks": sw.NTXent(nn.Parameter(torch.tensor(0.5)), clamp=0.1, block_size=5),
    "sparseclr, learned": sw.SparseCLR(margin=0.3, temperature=nn.Parameter(torch.tensor(0.5))),
}


def formula(theta, partner, itself, sparse, margin, least):
    scores = theta if least is None else theta.clamp_min(least)
    scores = scores.scatter_add(1, partner[:, None], scores.new_full((len(scores), 1), -margin))
    if itself is not None:
        scores.diagonal(itself).fill_(-math.inf)
    best = row_maximum(scores, smoothing="sparse" if sparse else "entropy")
    gradient = best.argmax.scatter_add(1, partner[:, None], scores.new_full((len(scores), 1), -1.0))
    if least is not None:
        gradient = gradient.masked_fill(theta < least, 0.0)
    return best.value - scores.gather(1, partner[:, None])[:, 0] + best.truth, gradient


@pytest.mark.parametrize("more", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_the_same_with_and_without_the_kernel(views, monkeypatch, name, more):
    calls = []

    def row_losses(*arguments):
        calls.append(arguments)
        return formula(*arguments)

    found = []
    for fused in (False, True):
        z_a, z_b = views(7, 4)
        extra = torch.linspace(-1, 1, 12, dtype=z_a.dtype).reshape(3, 4).requires_grad_()
        if fused:
            monkeypatch.setattr(structured.kernels, "have_row_losses", lambda theta: True)
            monkeypatch.setattr(structured.kernels, "row_losses", row_losses)
        module = copy.deepcopy(LOSSES[name])
        loss = module(z_a, z_b, extra) if more else module(z_a, z_b)
        loss.backward()
        learned = [x.grad for x in module.parameters()]
        found.append([loss.detach(), z_a.grad, z_b.grad, *learned, *([extra.grad] if more else [])])
    assert calls
    for without, with_it in zip(*found, strict=True):
        torch.testing.assert_close(with_it, without)


def formula_of_sets(theta, ids, others, alone, itself, sparse, margin, least):
    smoothing = "sparse" if sparse else "entropy"
    true = torch.zeros(theta.shape, dtype=torch.bool)
    true[:, : len(others)] = ids[:, None] == others
    bound = torch.full_like(theta, -math.inf if least is None else least)
    if alone:
        true[:, -1], bound[:, -1] = True, -math.inf
    scores = torch.maximum(theta, bound) - margin * true
    partnered = true.any(1)
    true[~partnered] = True  # such a row has no loss
    inside = row_maximum(scores.masked_fill(~true, -math.inf), smoothing=smoothing)
    if itself is not None:
        scores.diagonal(itself).fill_(-math.inf)
    best = row_maximum(scores, smoothing=smoothing)
    losses, gradient = (best.value - inside.value) * partnered, (best.argmax - inside.argmax) * partnered[:, None]
    return losses, gradient.masked_fill(theta < bound, 0.0), partnered


FIXED = [
    name for name, loss in LOSSES.items() if not [*loss.parameters()] and loss.options.get("reduction") != "log-mean"
]


@pytest.mark.parametrize("price", [None, -0.1])
@pytest.mark.parametrize("name", FIXED)
def test_sets_with_and_without_the_kernel(views, monkeypatch, name, price):
    calls = []

    def set_losses(*arguments):
        calls.append(arguments)
        return formula_of_sets(*arguments)

    found = []
    sets = sw.Sets(torch.tensor([0, 0, 3, 3, 3, 5, 9]), torch.tensor([3, 0, 3, 5, 0, 8, 3]), price=price)
    for fused in (False, True):
        z_a, z_b = views(7, 4)
        if fused:
            monkeypatch.setattr(structured.kernels, "have_row_losses", lambda theta: True)
            monkeypatch.setattr(structured.kernels, "set_losses", set_losses)
        loss = LOSSES[name](z_a, z_b, sets=sets)
        loss.backward()
        found.append([loss.detach(), z_a.grad, z_b.grad])
    assert calls
    for without, with_it in zip(*found, strict=True):
        torch.testing.assert_close(with_it, without)
