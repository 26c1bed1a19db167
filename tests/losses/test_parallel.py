"""Over 2 and 4 real processes (gloo): value and gradient of the whole batch, DDP's averaging, message sizes."""

import copy
import functools
import os
import pickle
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.testing._internal.distributed.fake_pg import FakeStore

import setwise as sw
from setwise.kernels import scores as kernels
from setwise.losses import large, structured
from setwise.losses.combined import Function, WeightedTerms
from setwise.losses.controls import FrobeniusProduct, StructuralDifference
from setwise.losses.gram import CKA, CodingRate, Covariance, NuclearNorm, Uniformity, Variance
from setwise.losses.parallel import Processes

TOTAL, DIMENSIONS = 12, 3
MEANS = 2 * DIMENSIONS + 2 * 2 * DIMENSIONS  # of both sets, gathered; the gradients of those of two processes


class ThreeViews(nn.Module):
    """A loss of three views, the third of which is made of the others."""

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, z_a: Tensor, z_b: Tensor) -> Tensor:
        return self.loss([z_a, z_b, 2 * z_a - z_b])


class Labelled(nn.Module):
    """A loss with labels and with two negatives of each row, both of them made of the row."""

    def __init__(self, loss: nn.Module, *, own: bool = True) -> None:
        super().__init__()
        self.loss, self.own = loss, own

    def forward(self, z_a: Tensor, z_b: Tensor) -> Tensor:
        more = {"extra_negatives": torch.stack([2 * z_a - z_b, z_b.flip(1)], 1)} if self.own else {}
        return self.loss(z_a, z_b, labels=(2 * z_a[:, 0]).long(), **more)


class InSets(nn.Module):
    """A loss that knows only the sets, which reach over processes; here a row's set is made of the row."""

    def __init__(self, loss: nn.Module, **known) -> None:
        super().__init__()
        self.loss, self.known = loss, known

    def forward(self, z_a: Tensor, z_b: Tensor) -> Tensor:
        sets = sw.Sets((z_a[:, 0] > 0).long(), z_b[:, 1].sign().long().clamp_min(0), **self.known)
        return self.loss(z_a, z_b, sets=sets)


LOSSES = {
    "infonce": lambda: sw.InfoNCE(temperature=0.3),
    "infonce-symmetric-blocks": lambda: sw.InfoNCE(temperature=0.3, symmetric=True, block_size=2),
    "infonce-euclidean": lambda: sw.InfoNCE(temperature=0.3, similarity="euclidean"),
    "nt-xent": lambda: sw.NTXent(),
    "nt-xent-blocks": lambda: sw.NTXent(block_size=3),
    "nt-xent-log-mean": lambda: sw.NTXent(reduction="log-mean", similarity="sqeuclidean"),
    "sparse-clr": lambda: sw.SparseCLR(),
    "sparse-clr-cross": lambda: sw.SparseCLR(candidates="cross"),
    "qare": lambda: sw.QARe(),
    "qare-gap": lambda: sw.QARe(reference="truth"),
    "qare-center": lambda: sw.QARe(center=True),
    "qare-center-projection": lambda: sw.QARe(center=True, bound="projection"),
    "qare-no-shift": lambda: sw.QARe(shift=0.0),
    "qare-projection": lambda: sw.QARe(bound="projection"),
    "qare-euclidean": lambda: sw.QARe(similarity="euclidean"),
    "qare-sqeuclidean": lambda: sw.QARe(similarity="sqeuclidean", bound="best"),
    "qare-clamp": lambda: sw.QARe(clamp=1e-8, normalization="n(n-1)"),
    "coding-rate": lambda: CodingRate(),
    "nuclear-norm": lambda: NuclearNorm(),
    "variance": lambda: Variance(target=2.0),
    "covariance": lambda: Covariance(),
    "uniformity": lambda: Uniformity(),
    "cka": lambda: CKA(),
    "barlow-twins": lambda: sw.BarlowTwins(redundancy=0.3),
    "vicreg": lambda: sw.VICReg(target=2.0),
    "frobenius": lambda: FrobeniusProduct(),
    "frobenius-shift": lambda: FrobeniusProduct(shift=0.0),
    "frobenius-below": lambda: FrobeniusProduct(shift=-0.5),
    "frobenius-euclidean": lambda: FrobeniusProduct(similarity="euclidean"),
    "structural": lambda: StructuralDifference(),
    "structural-euclidean": lambda: StructuralDifference(similarity="euclidean"),
    "set": lambda: sw.SetContrastive(sw.NTXent(), beta=0.7),
    "set-vicreg": lambda: sw.SetContrastive(sw.VICReg(), 0.7, terms(rate=(2.0, CodingRate()), cka=(1.0, CKA()))),
    "three-views": lambda: ThreeViews(sw.SetContrastive(sw.InfoNCE(0.3), beta=0.7)),
    "terms": lambda: sw.SetContrastive(sw.NTXent(), 0.5, terms(gap=(3.0, sw.QARe(reference="truth")))),
    "wide-qare": lambda: sw.QARe(),  # on more dimensions than items
    "wide-gap": lambda: sw.QARe(reference="truth"),
    "wide-coding-rate": lambda: CodingRate(),
    "wide-nuclear-norm": lambda: NuclearNorm(),
    "wide-cka": lambda: CKA(),
    "wide-structural": lambda: StructuralDifference(),
    "labels-infonce": lambda: Labelled(sw.InfoNCE(temperature=0.3)),
    "labels-nt-xent-blocks": lambda: Labelled(sw.NTXent(block_size=3)),
    "labels-sparse-clr": lambda: Labelled(sw.SparseCLR()),
    "labels-set": lambda: Labelled(sw.SetContrastive(sw.NTXent(), beta=0.7), own=False),
    "labels-learned-infonce": lambda: Labelled(sw.InfoNCE(learned(), symmetric=True, block_size=2)),
    "sets-infonce": lambda: InSets(sw.InfoNCE(learned(), symmetric=True, block_size=2)),
    "sets-nt-xent-hard": lambda: InSets(sw.NTXent(), truth="hard", price=-0.2),
    "sets-sparse-clr-one-to-one": lambda: InSets(sw.SparseCLR(), truth="one-to-one"),
    "sets-infonce-soft": lambda: InSets(
        sw.InfoNCE(learned(), symmetric=True, block_size=2), truth="one-to-one", price=0.1, softness=0.4
    ),
    "sets-nt-xent-soft": lambda: InSets(sw.NTXent(), truth="one-to-one", softness=0.4),
    "sets-set": lambda: InSets(sw.SetContrastive(sw.InfoNCE(0.3), beta=0.7), truth="one-to-one", price=0.1),
    "learned-infonce": lambda: sw.InfoNCE(learned(), symmetric=True, block_size=2),
    "learned-nt-xent": lambda: sw.NTXent(learned(), reduction="log-mean", clamp=0.1),
    "learned-sparse-clr": lambda: sw.SparseCLR(temperature=learned()),
    "learned-set": lambda: sw.SetContrastive(sw.NTXent(learned()), beta=0.7),
}
RING = {
    "infonce": LOSSES["infonce"],
    "infonce-symmetric": lambda: sw.InfoNCE(temperature=0.3, symmetric=True),
    "nt-xent": LOSSES["nt-xent"],
    "nt-xent-log-mean": lambda: sw.NTXent(reduction="log-mean"),
    "labels-infonce": LOSSES["labels-infonce"],
    "labels-infonce-symmetric": lambda: Labelled(sw.InfoNCE(temperature=0.3, symmetric=True), own=False),
    "labels-nt-xent": lambda: Labelled(sw.NTXent()),
    "learned-infonce": lambda: sw.InfoNCE(learned()),
    "learned-infonce-symmetric": lambda: sw.InfoNCE(learned(), symmetric=True),
    "learned-nt-xent": lambda: sw.NTXent(learned(), reduction="log-mean"),
    "labels-learned-nt-xent": lambda: Labelled(sw.NTXent(learned())),
    "set": LOSSES["set"],
}  # losses whose scores need not be stored: blocks of rows go round a ring
GROUPED = (  # over half of the processes
    *("infonce", "nt-xent", "sparse-clr", "qare", "qare-center", "qare-euclidean"),
    *("coding-rate", "nuclear-norm", "variance", "uniformity", "cka", "barlow-twins", "vicreg", "structural"),
)
SUMS = {  # numbers that a process sends at once, whatever N: with R = 2 those of the means are sent, and come back
    "qare": 2 * (DIMENSIONS + 1) ** 2,
    "qare-gap": 3 * (DIMENSIONS + 1) ** 2,
    "coding-rate": 2 * DIMENSIONS**2,
    "nuclear-norm": DIMENSIONS**2,
    "variance": 2 * DIMENSIONS + MEANS,
    "covariance": 2 * DIMENSIONS**2 + MEANS,
    "cka": 3 * DIMENSIONS**2 + MEANS,
    "barlow-twins": DIMENSIONS**2 + 2 * DIMENSIONS + MEANS,
    "vicreg": 2 * DIMENSIONS**2 + MEANS,  # and one number, which is not counted
    "frobenius": 2 * (DIMENSIONS + 1) ** 2,
    "structural": 3 * DIMENSIONS**2,
}


def terms(**others) -> WeightedTerms:
    return WeightedTerms({"qare": (0.7, sw.QARe()), **others})


def learned() -> nn.Parameter:
    return nn.Parameter(torch.tensor(0.4, dtype=torch.float64))


def embeddings(name: str) -> Tensor:
    generator, dimensions = torch.Generator().manual_seed(0), 2 * TOTAL if name.startswith("wide") else DIMENSIONS
    z, noise = torch.randn(2, TOTAL, dimensions, generator=generator, dtype=torch.float64)
    return torch.stack([z, z + 0.5 * noise])


def network(dimensions: int) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(dimensions, 5), nn.Tanh(), nn.Linear(5, dimensions)).double()


def value_and_gradients(loss: nn.Module, pair: Tensor) -> list[Tensor]:
    """The loss, and its gradients in both views and in its own parameters."""
    z_a, z_b = (z.clone().requires_grad_() for z in pair)
    value = loss(z_a, z_b)
    return [value.detach(), *torch.autograd.grad(value, (z_a, z_b, *loss.parameters()))]


def start(rank: int, size: int, folder: str) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    # Meeting in a file: a port that was free a moment ago may be another test's now.
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size)


def worker(rank: int, size: int, folder: str) -> None:
    start(rank, size, folder)
    results = {}
    half = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])][rank // 2] if size == 4 else None
    for name, make in LOSSES.items():
        pair = embeddings(name).chunk(size, 1)[rank]
        for gradient in ("average", "sum"):
            results[name, gradient] = value_and_gradients(sw.distributed(make(), gradient=gradient), pair)
        if half is not None and name in GROUPED:
            results[name, "group"] = value_and_gradients(sw.distributed(make(), group=half), pair)
        model = nn.parallel.DistributedDataParallel(network(pair.shape[-1]))
        sw.distributed(make())(*model(pair)).backward()
        results[name, "ddp"] = [p.grad for p in model.parameters()]
    torch.save(results, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def never_store_scores() -> None:
    """Take the way of large batches, in tiles of a few rows."""
    structured.LARGE, kernels.serves, large.TALL, large.WIDE = 0, lambda z: True, 2, 2


def ring_worker(rank: int, size: int, folder: str) -> None:
    start(rank, size, folder)
    never_store_scores()
    half = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])][rank // 2] if size == 4 else None
    results = {}
    for name, make in RING.items():
        pair = embeddings(name).chunk(size, 1)[rank]
        for gradient in ("average", "sum"):
            results[name, gradient] = value_and_gradients(sw.distributed(make(), gradient=gradient), pair)
        if half is not None:
            results[name, "group"] = value_and_gradients(sw.distributed(make(), group=half), pair)
    torch.save(results, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def counting_worker(rank: int, size: int, folder: str) -> None:
    start(rank, size, folder)
    sent = []
    originals = {name: getattr(dist, name) for name in ("all_reduce", "all_gather")}

    def count_reduce(x: Tensor, *args, **kwargs):
        sent.append(x.numel())
        return originals["all_reduce"](x, *args, **kwargs)

    def count_gather(parts: list[Tensor], x: Tensor, *args, **kwargs):
        sent.append(x.numel())
        return originals["all_gather"](parts, x, *args, **kwargs)

    dist.all_reduce, dist.all_gather = count_reduce, count_gather
    results = {}
    for name in (*SUMS, "nt-xent", "uniformity"):
        for n in (8, 64, 512):
            sent.clear()
            z = torch.randn(n, DIMENSIONS, generator=torch.Generator().manual_seed(rank), requires_grad=True)
            sw.distributed(LOSSES[name]())(z, z + 0.1).backward()
            results[name, n] = sum(x for x in sent if x > 1)  # one number is the check of equal parts
    # Two that are added get the same gradient, each to be summed once; rows need not lie together in memory.
    x, y = (torch.randn(3, 4)[:, ::2].requires_grad_() for _ in range(2))
    weight = torch.arange(6.0 * size).reshape(3 * size, 2)
    ((Processes().gather(x) + Processes().gather(y)) * weight).sum().backward()
    z = torch.full((2,), float(rank + 1))
    results["total"] = (Processes().total(z).tolist(), z.tolist())
    results["mean"] = (Processes().mean(z).tolist(), Processes().largest(rank, z.device), Processes().first)
    results["grads"] = (x.grad, y.grad, size * weight[3 * rank : 3 * rank + 3])
    with pytest.raises(ValueError, match=r"expected as many rows on every process, got \[4, 5\]; drop the last"):
        sw.distributed(sw.NTXent())(torch.ones(4 + rank, 2), torch.ones(4 + rank, 2))
    torch.save(results, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def compiling_worker(rank: int, size: int, folder: str) -> None:
    start(rank, size, folder)
    results = {}
    for name in ("infonce", "nt-xent", "qare", "set", "set-vicreg", "labels-sparse-clr"):
        z_a, z_b = (z.chunk(size)[rank].clone().requires_grad_() for z in embeddings(name))
        loss = sw.distributed(LOSSES[name]())
        for made in (loss, torch.compile(loss, backend="aot_eager", fullgraph=True)):
            value = made(z_a, z_b)
            results.setdefault(name, []).append((value.detach(), *torch.autograd.grad(value, (z_a, z_b))))
    torch.save(results, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def test_one_graph_over_two_processes(tmp_path):
    for results in spawn(compiling_worker, 2, tmp_path):
        for eager, compiled in results.values():
            torch.testing.assert_close(compiled, eager)


def spawn(target, size: int, folder: Path) -> list[dict]:
    mp.spawn(target, args=(size, str(folder)), nprocs=size)
    return [torch.load(folder / f"{rank}.pt") for rank in range(size)]


def check(got: list[Tensor], expected: list[Tensor], *, factor: int, size: int, rank: int) -> None:
    """``rank``'s part of the gradients, times ``factor``; those of a parameter are the same on every process."""
    value, grad_a, grad_b, *parameters = expected
    parts = [factor * grad.chunk(size)[rank] for grad in (grad_a, grad_b)]
    wanted = [value, *parts, *(factor / size * grad for grad in parameters)]
    torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("size", [2, 4])
def test_value_and_gradient_equal_those_of_one_process_with_the_whole_batch(size, tmp_path):
    results = spawn(worker, size, tmp_path)
    for name, make in LOSSES.items():
        pair = embeddings(name)
        expected = value_and_gradients(make(), pair)
        model = network(pair.shape[-1])
        make()(*model(pair)).backward()
        for rank, result in enumerate(results):
            for gradient, factor in (("average", size), ("sum", 1)):
                check(result[name, gradient], expected, factor=factor, size=size, rank=rank)
            if size == 4 and name in GROUPED:
                half = value_and_gradients(make(), pair.chunk(2, 1)[rank // 2])
                check(result[name, "group"], half, factor=2, size=2, rank=rank % 2)
            # DDP's average is the gradient of one process, with no factor left over.
            wanted = [p.grad for p in model.parameters()]
            torch.testing.assert_close(result[name, "ddp"], wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("size", [2, 4])
def test_a_ring_of_processes_equals_one_that_stores_all_scores(size, tmp_path):
    results = spawn(ring_worker, size, tmp_path)
    for name, make in RING.items():
        pair = embeddings(name)
        expected = value_and_gradients(make(), pair)
        for rank, result in enumerate(results):
            for gradient, factor in (("average", size), ("sum", 1)):
                check(result[name, gradient], expected, factor=factor, size=size, rank=rank)
            if size == 4:
                half = value_and_gradients(make(), pair.chunk(2, 1)[rank // 2])
                check(result[name, "group"], half, factor=2, size=2, rank=rank % 2)


def test_what_is_sent(tmp_path):
    for rank, result in enumerate(spawn(counting_worker, 2, tmp_path)):
        # Sums over items once, whatever N; embeddings and losses grow with it.
        for name, numbers in SUMS.items():
            assert {result[name, n] for n in (8, 64, 512)} == {numbers}, name
        assert result["total"] == ([3.0, 3.0], [rank + 1.0] * 2), "what was summed stays"
        assert result["mean"] == ([1.5, 1.5], 1, rank == 0)
        for got in result["grads"][:2]:
            assert torch.equal(got, result["grads"][2])
        for name in ("nt-xent", "uniformity"):
            assert result[name, 512] > 8 * result[name, 8]


def test_one_process_exchanges_nothing():
    alone, x = Processes(), torch.arange(3.0)
    assert (alone.rank, alone.size, alone.first) == (0, 1, True)
    assert all(give(x) is x for give in (alone.gather, alone.total, alone.mean, alone.finish))
    assert alone.largest(3, x.device) == 3
    alone.check_equal_parts(x)


def test_one_process_has_the_loss_itself(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"expected loss to be a loss, got the class NTXent; NTXent\(\) is one"):
        sw.distributed(sw.NTXent)
    with pytest.raises(ValueError, match="expected gradient to be one of 'average', 'sum'"):
        sw.distributed(sw.NTXent(), gradient="mean")
    losses = (sw.SetContrastive(sw.NTXent()), sw.TripletMargin(), sw.functional.info_nce)
    assert [sw.distributed(loss) for loss in losses] == [*losses]
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        assert [sw.distributed(loss) for loss in losses] == [*losses]
    finally:
        dist.destroy_process_group()
    monkeypatch.setenv("WORLD_SIZE", "2")  # torchrun's: there are others, which have not met
    with pytest.raises(ValueError, match="expected torch.distributed to be initialised"):
        sw.distributed(sw.NTXent())


@pytest.fixture
def two_processes():
    """A group of two, of which the other is not there: nothing that is sent arrives."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("two_processes")
def test_a_loss_without_a_form_over_processes():
    with pytest.raises(ValueError, match="expected InfoNCE, .* got TripletMargin, which has no form"):
        sw.distributed(sw.SetContrastive(sw.TripletMargin()))
    # A function is no child of a module, and would stay each process's own.
    function = sw.functional.info_nce
    for loss in (function, sw.SetContrastive(function), sw.SetContrastive(function, 0.5, sw.functional.qare)):
        with pytest.raises(ValueError, match="expected InfoNCE, .* got info_nce, which has no form over many"):
            sw.distributed(loss)
    with pytest.raises(ValueError, match=r"got functools.partial\(.*, which has no form"):
        sw.distributed(sw.SetContrastive(functools.partial(function, temperature=0.5)))
    with pytest.raises(ValueError, match="got qare, which has no form"):
        sw.distributed(sw.SetContrastive(sw.InfoNCE(), 0.5, sw.functional.qare))
    for own in (torch.nn.MSELoss(), torch.nn.functional.mse_loss):
        name = getattr(own, "__name__", "MSELoss")
        for loss in (Function(own), sw.SetContrastive(sw.InfoNCE(), 1.0, terms(own=(1.0, own)))):
            with pytest.raises(ValueError, match=f"got {name}, which has no form over many"):
                sw.distributed(loss)
    z = torch.ones(3, 2)
    with pytest.raises(ValueError, match="expected no extra_negatives"):
        sw.distributed(sw.NTXent())(z, z, z)


@pytest.mark.usefixtures("two_processes")
def test_a_second_derivative_is_refused():
    for over in (Processes().gather, Processes().total):
        x = torch.ones(3, 2, requires_grad=True)
        (grad,) = torch.autograd.grad(over(x).square().sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="expected one derivative at most"):
            grad.sum().backward()


@pytest.mark.usefixtures("two_processes")
def test_a_loss_over_a_group_can_be_copied_and_made_again():
    group = dist.new_group([0, 1])
    plain = sw.SetContrastive(sw.NTXent(nn.Parameter(torch.tensor(0.5))))
    loss = sw.distributed(plain, group=group)
    again = sw.distributed(loss, gradient="sum")
    assert copy.deepcopy(loss).pairwise.options["peers"].group is group
    assert again.pairwise.options["peers"] == Processes(None, "sum")
    assert loss.pairwise.options["peers"] == Processes(group, "average")  # the copy is what is changed
    assert plain.pairwise.options["peers"] is None
    assert pickle.loads(pickle.dumps(again)).pairwise.options["peers"] == Processes(None, "sum")
    assert [*again.parameters()] == [*plain.parameters()], "an optimiser that has the one has the other"
