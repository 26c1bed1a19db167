"""Batches whose scores are not stored: the same losses and gradients as with all scores, in tiles, over processes."""

import pytest
import torch

from setwise.losses import large, structured

N, E = 13, 5


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setattr(large, "TALL", 5)
    monkeypatch.setattr(large, "WIDE", 4)


def inputs(*, n: int = N, more: int = 0) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(n, E, generator=generator, dtype=torch.float64)
    z_b = z + torch.randn(n, E, generator=generator, dtype=torch.float64)
    extra = torch.randn(more, E, generator=generator, dtype=torch.float64)
    return tuple(x.requires_grad_() for x in (z, z_b, extra))


LABELS = torch.arange(N) % 4
CASES = {
    "cross": {},
    "cross-symmetric": {"symmetric": True},
    "cross-shared": {"shared": True},
    "cross-shared-symmetric": {"shared": True, "symmetric": True},
    "cross-own": {"own": True, "symmetric": True},
    "cross-labels": {"labels": True},
    "cross-labels-symmetric": {"labels": True, "symmetric": True},
    "cross-labels-shared": {"labels": True, "shared": True},
    "all": {"every": True},
    "all-shared": {"every": True, "shared": True},
    "all-own": {"every": True, "own": True},
    "all-labels": {"every": True, "labels": True},
    "all-labels-shared": {"every": True, "labels": True, "shared": True},
}


def both_ways(case: dict, temperature) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    z_a, z_b, extra = inputs(more=7 if case.get("shared") else 0)
    own = torch.stack([z_a.detach().flip(0), z_b.detach().roll(1, 0)], 1).requires_grad_() if case.get("own") else None
    labels = LABELS if case.get("labels") else None
    shared = extra if case.get("shared") else None
    given = shared if own is None else own
    symmetric = case.get("symmetric", False)
    if case.get("every"):
        ours = large.all_losses(z_a, z_b, shared, own, temperature, "float32", None, labels)
        theirs = structured.all_losses(z_a, z_b, given, "cosine", "entropy", temperature, labels=labels)
    else:
        ours = large.cross_losses(z_a, z_b, shared, own, symmetric, temperature, "float32", None, labels)
        theirs = structured.cross_losses(z_a, z_b, given, symmetric, "cosine", "entropy", temperature, labels=labels)
    leaves = [z_a, z_b, *([] if given is None else [given])]
    leaves += [temperature] if isinstance(temperature, torch.Tensor) else []
    weights = torch.linspace(-1, 2, len(ours), dtype=torch.float64)
    return tuple([x.detach(), *torch.autograd.grad(x @ weights, leaves)] for x in (ours, theirs))


@pytest.mark.parametrize("learned", [False, True], ids=["fixed", "learned"])
@pytest.mark.parametrize("name", CASES)
def test_equal_to_the_losses_of_stored_scores(name, learned):
    temperature = torch.tensor(0.3, dtype=torch.float64, requires_grad=True) if learned else 0.3
    for ours, theirs in zip(*both_ways(CASES[name], temperature), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
