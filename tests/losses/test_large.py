"""Batches whose scores are not stored: the same losses and gradients as with all scores, in tiles, over processes."""

import pytest
import torch

import setwise as sw
from setwise.kernels import scores as kernels
from setwise.losses import large, set_level, structured

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


@pytest.mark.parametrize("pairwise", [sw.InfoNCE(0.3), sw.InfoNCE(0.3, symmetric=True), sw.NTXent(0.3)], ids=str)
@pytest.mark.parametrize("reference", ["none", "truth"])
def test_qare_adds_its_gradient_to_that_of_tiles(pairwise, reference, monkeypatch):
    z_a, z_b, _ = inputs()
    loss = sw.SetContrastive(pairwise, 0.7, sw.QARe(reference=reference))
    wanted = [loss(z_a, z_b), *torch.autograd.grad(loss(z_a, z_b), (z_a, z_b))]
    monkeypatch.setattr(structured, "_is_large", lambda *options: True)
    monkeypatch.setattr(set_level, "MANY", 4)
    value = loss(z_a, z_b)
    for _ in range(2):
        got = [value, *torch.autograd.grad(value, (z_a, z_b), retain_graph=True)]
        torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated")
@pytest.mark.parametrize("name", ["infonce", "symmetric", "nt-xent", "labels", "learned"])
def test_one_graph_when_compiled(name, monkeypatch):
    monkeypatch.setattr(structured, "LARGE", 0)
    monkeypatch.setattr(kernels, "serves", lambda z: True)
    temperature = torch.nn.Parameter(torch.tensor(0.3, dtype=torch.float64)) if name == "learned" else 0.3
    loss = sw.NTXent(temperature) if name == "nt-xent" else sw.InfoNCE(temperature, symmetric=name == "symmetric")
    z_a, z_b, _ = inputs()
    more = {"labels": LABELS} if name == "labels" else {}
    leaves = [z_a, z_b, *loss.parameters()]
    results = []
    for made in (loss, torch.compile(loss, backend="aot_eager", fullgraph=True)):
        value = made(z_a, z_b, **more)
        results.append([value.detach(), *torch.autograd.grad(value, leaves)])
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize(
    ("dtype", "parts", "most"), [("float16", 2, 3e-6), ("float16", 1, 1e-3), ("bfloat16", 1, 8e-3)]
)
def test_rows_in_half_precision_lose_as_much_as_stated(dtype, parts, most, monkeypatch):
    """The arithmetic of the GPU in plain torch: rows and weights in parts of half precision."""
    whole, half = kernels.store, getattr(torch, dtype)
    z_a, z_b = (z.detach().float().requires_grad_() for z in inputs(n=40)[:2])
    exact = sw.InfoNCE(0.1, symmetric=True)(z_a.double(), z_b.double())
    wanted = torch.autograd.grad(exact, (z_a, z_b))
    monkeypatch.setattr(kernels, "store", lambda z, products: kernels.split(whole(z, products), half, parts))
    losses = large.cross_losses(z_a, z_b, None, None, True, 0.1, "float32", None, None)
    torch.testing.assert_close(losses.mean().double(), exact, rtol=most, atol=0)
    for got, want in zip(torch.autograd.grad(losses.mean(), (z_a, z_b)), wanted, strict=True):
        assert ((got - want).norm() / want.norm()).item() < most
