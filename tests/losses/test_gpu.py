"""On a GPU: the same numbers as on the CPU, no wait for the device, and capture in a CUDA graph."""

import copy

import pytest
import torch

import setwise as sw
from setwise.losses import large, set_level, structured
from setwise.losses.controls import FrobeniusProduct, StructuralDifference
from setwise.losses.gram import CKA, CodingRate, Covariance, NuclearNorm, Uniformity, Variance

pytestmark = pytest.mark.gpu


def labels_of(z: torch.Tensor) -> torch.Tensor:
    return torch.arange(len(z), device=z.device) // 3


def sets_of(z: torch.Tensor, **known) -> sw.Sets:
    ids = torch.arange(len(z), device=z.device)
    return sw.Sets(ids // 8, ids % (len(z) // 8), **known)


def own_of(z: torch.Tensor) -> torch.Tensor:
    return torch.stack([z.flip(0), z.roll(1, 0)], 1)


LOSSES = {
    "infonce": sw.InfoNCE(),
    "infonce-euclidean-symmetric": sw.InfoNCE(similarity="euclidean", symmetric=True),
    "nt-xent": sw.NTXent(),
    "nt-xent-log-mean-sqeuclidean": sw.NTXent(reduction="log-mean", similarity="sqeuclidean", temperature=50.0),
    "nt-xent-blocks": sw.NTXent(block_size=50),
    "sparse-clr": sw.SparseCLR(),
    "labels-infonce": lambda z_a, z_b: sw.InfoNCE()(z_a, z_b, own_of(z_b), labels_of(z_a)),
    "labels-nt-xent": lambda z_a, z_b: sw.NTXent()(z_a, z_b, labels=labels_of(z_a)),
    "labels-sparse-clr": lambda z_a, z_b: sw.SparseCLR(block_size=50)(z_a, z_b, labels=labels_of(z_a)),
    "labels-set": lambda z_a, z_b: sw.SetContrastive(sw.NTXent())(z_a, z_b, labels=labels_of(z_a)),
    "own-nt-xent": lambda z_a, z_b: sw.NTXent()(z_a, z_b, own_of(z_b)),
    "sets-infonce": lambda z_a, z_b: sw.InfoNCE(symmetric=True)(z_a, z_b, sets=sets_of(z_a)),
    "sets-infonce-hard": lambda z_a, z_b: sw.InfoNCE()(z_a, z_b, sets=sets_of(z_a, truth="hard")),
    "sets-nt-xent": lambda z_a, z_b: sw.NTXent(block_size=50)(z_a, z_b, sets=sets_of(z_a, price=-0.2)),
    "sets-sparse-clr": lambda z_a, z_b: sw.SparseCLR()(z_a, z_b, sets=sets_of(z_a)),
    "sets-set": lambda z_a, z_b: sw.SetContrastive(sw.NTXent())(z_a, z_b, sets=sets_of(z_a)),
    "sets-nt-xent-one-to-one": lambda z_a, z_b: sw.NTXent()(z_a, z_b, sets=sets_of(z_a, truth="one-to-one")),
    "sets-one-to-one": lambda z_a, z_b: sw.AssignmentLoss(mining="one-to-one")(z_a, z_b, sets=sets_of(z_a)),
    "sets-infonce-one-to-one": lambda z_a, z_b: sw.InfoNCE()(
        z_a, z_b, sets=sets_of(z_a, truth="one-to-one", price=-0.2)
    ),
    "one-to-one": sw.AssignmentLoss(mining="one-to-one"),
    "triplet": sw.TripletMargin(),
    "nt-logistic": sw.NTLogistic(),
    "qare": sw.QARe(),
    "qare-few": sw.QARe(),
    "qare-gap": sw.QARe(reference="truth"),
    "qare-best": sw.QARe(bound="best"),
    "qare-center": sw.QARe(center=True),
    "qare-released": sw.QARe(clamp=1e-8, normalization="n(n-1)"),
    "qare-euclidean-topk": sw.QARe(similarity="euclidean", spectrum="topk", k=4),
    "coding-rate": CodingRate(),
    "coding-rate-few": CodingRate(),
    "nuclear-norm": NuclearNorm(),
    "nuclear-norm-few": NuclearNorm(),
    "variance": Variance(target=6.0),
    "covariance": Covariance(),
    "uniformity": Uniformity(),
    "cka": CKA(),
    "barlow-twins": sw.BarlowTwins(),
    "vicreg": sw.VICReg(),
    "frobenius": FrobeniusProduct(),
    "structural": StructuralDifference(),
    "set": sw.SetContrastive(sw.NTXent(), beta=0.5),
    "released/simclr-qare": sw.presets("released/simclr-qare", beta=0.5),
}
WAITING = {
    "sets-infonce-quadratic": lambda z_a, z_b: sw.InfoNCE()(z_a, z_b, sets=sets_of(z_a, truth="quadratic")),
    "sinkhorn": sw.AssignmentLoss(mining="one-to-one", smoothing="sinkhorn"),
    "sparsemap": sw.AssignmentLoss(mining="one-to-one", smoothing="sparsemap"),
    "sets-sinkhorn": lambda z_a, z_b: sw.AssignmentLoss(mining="one-to-one", smoothing="sinkhorn")(
        z_a, z_b, sets=sets_of(z_a, price=30.0)
    ),
    "qare-euclidean": sw.QARe(similarity="euclidean", bound="best"),
    "qare-sqeuclidean": sw.QARe(similarity="sqeuclidean"),
}


def embeddings(views, n: int = 128) -> tuple[torch.Tensor, torch.Tensor]:
    return tuple(z.detach().float().cuda().requires_grad_() for z in views(n, 64, noise=3.0))


@pytest.mark.parametrize(
    ("name", "n"),
    [*((x, 48 if "few" in x else 128) for x in (*LOSSES, *WAITING)), ("qare", 20), ("qare", 9000)],
)
def test_same_value_and_gradient_as_float64_on_the_cpu(views, name, n):
    loss = (LOSSES | WAITING)[name]
    here = embeddings(views, n)
    there = [z.detach().cpu().double().requires_grad_() for z in here]
    value, expected = loss(*here), loss(*there)
    torch.testing.assert_close(value.cpu().double(), expected, rtol=1e-5, atol=1e-5)
    for got, want in zip(torch.autograd.grad(value, here), torch.autograd.grad(expected, there), strict=True):
        error = (got.cpu().double() - want).norm() / want.norm()
        assert error < (2e-3 if "euclidean" in name or name == "triplet" else 2e-4), error


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature")
@pytest.mark.parametrize("name", LOSSES)
def test_nothing_waits_for_the_device_and_a_graph_replays_on_new_data(views, name):
    loss = LOSSES[name]
    z_a, z_b = embeddings(views, 48 if "few" in name else 128)

    def step() -> tuple[torch.Tensor, ...]:
        value = loss(z_a, z_b)
        return value.detach(), *torch.autograd.grad(value, (z_a, z_b))

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
        try:
            torch.cuda.set_sync_debug_mode("error")
            step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    with torch.no_grad():
        for z in (z_a, z_b):
            z.copy_(torch.randn_like(z) + z.flip(0))
    graph.replay()
    for got, want in zip(captured, step(), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)


def test_nan_is_not_hidden(views):
    z_a, z_b = embeddings(views)
    z_a.data[3, 5] = float("nan")
    for loss in (sw.QARe(), sw.NTXent(), sw.SetContrastive(sw.InfoNCE(similarity="euclidean"))):
        assert loss(z_a, z_b).isnan()


@pytest.mark.parametrize("name", LOSSES)
def test_autocast_changes_nothing(views, name):
    z_a, z_b = embeddings(views)
    plain = LOSSES[name](z_a, z_b)
    with torch.autocast("cuda", torch.bfloat16):
        torch.testing.assert_close(LOSSES[name](z_a, z_b), plain)
    half = LOSSES[name](z_a.bfloat16(), z_b.bfloat16())
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, plain, rtol=0.05, atol=0.05)


LARGE = {
    "infonce": lambda products: sw.InfoNCE(0.1, products=products),
    "infonce-symmetric": lambda products: sw.InfoNCE(0.1, symmetric=True, products=products),
    "infonce-learned": lambda products: sw.InfoNCE(learned(), symmetric=True, products=products),
    "infonce-cold": lambda products: sw.InfoNCE(0.01, symmetric=True, products=products),
    "nt-xent": lambda products: sw.NTXent(0.5, products=products),
    "nt-xent-learned": lambda products: sw.NTXent(learned(), reduction="log-mean", products=products),
    "set": lambda products: sw.SetContrastive(sw.InfoNCE(0.1, products=products), beta=0.5),
}
MORE = {
    "plain": lambda z_a, z_b: {},
    "labels": lambda z_a, z_b: {"labels": labels_of(z_a)},
    "own": lambda z_a, z_b: {"extra_negatives": own_of(z_b)},
    "bank": lambda z_a, z_b: {"extra_negatives": z_b[:77].flip(1).detach()},
}


def learned() -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.tensor(0.2))


def value_and_gradients(loss: torch.nn.Module, *pair: torch.Tensor, **more: torch.Tensor) -> list[torch.Tensor]:
    value = loss(*pair, **more)
    return [value.detach(), *torch.autograd.grad(value, [*pair, *loss.parameters()])]


@pytest.mark.parametrize("more", MORE)
@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize(
    ("products", "most"), [("float32", 2e-5), ("float16", 2e-3), ("bfloat16", 2e-2)], ids=["32", "16", "bf16"]
)
def test_scores_that_are_not_stored(views, monkeypatch, name, more, products, most):
    if more == "labels" and name == "nt-xent-learned":
        pytest.skip("log-mean has no labels")
    here = tuple(z.detach().float().cuda().requires_grad_() for z in views(701, 100, noise=3.0))
    there = [z.detach().cpu().double().requires_grad_() for z in here]
    monkeypatch.setattr(structured, "LARGE", 0)
    monkeypatch.setattr(large, "TALL", 384)
    monkeypatch.setattr(large, "WIDE", 512)
    loss = LARGE[name](products).cuda()
    with monkeypatch.context() as many:
        many.setattr(set_level, "MANY", 256)
        got = value_and_gradients(loss, *here, **MORE[more](*here))
    wanted = value_and_gradients(copy.deepcopy(loss).cpu().double(), *there, **MORE[more](*there))
    for ours, exact in zip(got, wanted, strict=True):
        error = (ours.cpu().double() - exact).norm() / exact.norm()
        assert error < most, error


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("name", LARGE)
def test_scores_that_are_not_stored_captured_and_compiled(views, monkeypatch, name):
    monkeypatch.setattr(structured, "LARGE", 0)
    loss = LARGE[name]("float16").cuda()
    z_a, z_b = embeddings(views, 300)
    plain = value_and_gradients(loss, z_a, z_b)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        value_and_gradients(loss, z_a, z_b)
        try:
            torch.cuda.set_sync_debug_mode("error")
            value_and_gradients(loss, z_a, z_b)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = value_and_gradients(loss, z_a, z_b)
    graph.replay()
    torch.testing.assert_close(captured, plain)
    if name != "set":
        torch.compiler.reset()  # all losses have one forward, of which torch compiles no more than eight
        compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(value_and_gradients(compiled, z_a, z_b), plain)
