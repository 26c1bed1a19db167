"""Processes with a part of the batch each are one process with all of it: losses, weights, statistics of BatchNorm."""

import copy
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from tempfile import NamedTemporaryFile
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

import setwise.register as register
from setwise import encoders, methods
from setwise.data import ImageSet, PairSet, Side, load, matched_halves
from setwise.data.pixels import StoredPixels
from setwise.losses.modules import InfoNCE
from setwise.losses.parallel import Processes
from setwise.losses.presets import objective_of
from setwise.recipe import Recipe
from setwise.training import checkpoint, loop
from setwise.training.engine import Engine
from setwise.training.errors import Interrupted
from setwise.training.loop import RunOptions, train
from setwise.training.processes import join, leave, share_norms

CPU = torch.device("cpu")
EPOCHS = 2
QARE = {"loss": "info-nce", "terms": [{"term": "qare", "weight": 0.5}]}
TERM = QARE | {"loss": "built-in"}


class Silent(methods.Method):
    """Compares the samples of a batch, and says nothing of many processes."""

    processes = None

    def __init__(self, parts):
        super().__init__()
        self.encoder = nn.Linear(64, 8)

    def forward(self, batch):
        z = self.encoder(batch.images.flatten(1).to(batch.dtype))
        z = z if self.processes is None else self.processes.gather(z)
        return {"loss": torch.cov(z.T).square().mean().log()}


class Gathering(Silent):
    """The same, but it gathers them."""

    def share(self, processes):
        self.processes = processes


class Few(nn.Module):
    """Two layers without BatchNorm, which in parts would see other images on two processes than on one."""

    features = 8

    def __init__(self, channels):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64 * channels, 16), nn.ReLU(), nn.Linear(16, 8))

    def forward(self, images):
        return self.layers(images)


def learned():
    """A temperature that is trained too."""
    return InfoNCE(nn.Parameter(torch.tensor(0.2)))


OWN = {"silent": Silent, "gathering": Gathering}
TREES = {
    "simclr-qare": {"objective": QARE},
    "released-simclr-qare": {"objective": objective_of("released/simclr-qare", 0.5).tree()},
    "features": {"objective": objective_of("ablation/simclr-features", 0.5).tree()},
    "sparseclr": {"objective": "sparse-clr"},
    "terms": {"objective": QARE | {"terms": [*QARE["terms"], {"term": "gap", "weight": 3.0}]}},
    "three-views": {"objective": QARE, "method": {"name": "contrastive", "views": 3}},
    "small-views": {"objective": QARE, "method": {"name": "contrastive", "small": 1, "small_side": 1.0}},
    "small-parts": {
        "objective": QARE,
        "method": {"name": "contrastive", "views": 3, "against": "mean"},
        "encoder": {"name": "quick", "widths": (6, 6, 8), "depth": 2},
        "views": {"preset": "patches", "crop": "part", "size": (8, 8)},
        "head": {"layers": 3},
    },
    "resnet8": {"objective": QARE, "encoder": "resnet8"},
    "neighbours": {"method": {"name": "neighbours", "views": 3, "start": 0.0}, "objective": QARE},
    "supervised": {"method": "supervised", "optimizer": {"name": "sgd", "lr": 0.05}},
    "rotation": {"method": "rotation"},
    "matching": {
        "method": "matching",
        "objective": objective_of("paper/matching-infonce-qare", 0.5).tree(),
        "encoder": "resnet8",
    },
    "byol": {"method": "byol", "objective": TERM, "ema": 0.9},
    "simsiam": {"method": "simsiam", "objective": TERM},
    "many-patches": {"method": {"name": "many-patches", "patches": 3}, "objective": TERM},
    "mocov3": {"method": "mocov3"},
    "swav": {"method": {"name": "swav", "prototypes": 12, "small": 1, "small_side": 1.0}},
    "dino": {"method": {"name": "dino", "prototypes": 12, "small": 1, "small_side": 1.0}, "objective": TERM},
    "deepcluster": {"method": "deepcluster"},
    "deepinfomax": {"method": "deepinfomax"},
    "gathering": {"method": "gathering"},
    "stored": {"objective": QARE},  # its images stay in a file
    "parts": {"objective": QARE, "encoder": "few", "parts": 3},
    "parts-learned": {"objective": "learned", "encoder": "few", "parts": 2},
    "pairs": {
        "method": {"name": "pairs", "head": "mlp", "learn_temperature": True},
        "objective": QARE | {"symmetric": True},
        "encoder": "few",
        "second_encoder": "bag",
    },
    "pairs in sets": {
        "method": "pairs",
        "objective": QARE | {"symmetric": True},
        "encoder": "few",
        "second_encoder": "bag",
    },
    "labelled pairs": {
        "method": "pairs",
        "objective": QARE | {"symmetric": True},
        "encoder": "few",
        "second_encoder": "bag",
    },
}
BFLOAT16 = ("simclr-qare", "deepinfomax")
NORMS = {
    "own numbers": {"eps": 0.1, "momentum": 0.3},
    "no weights": {"affine": False},
    "mean of all batches": {"momentum": None},
    "no statistics kept": {"track_running_stats": False},
}


def few(count: int = 94) -> ImageSet:
    """4 x 20 and 14 over."""
    whole = load("digits")
    return replace(whole, images=whole.images[:count], labels=whole.labels[:count])


def stored(data: ImageSet) -> ImageSet:
    """The same images in a file, of which each process reads its part."""
    with NamedTemporaryFile() as file:
        data.images.numpy().tofile(file.name)
        pixels = StoredPixels(Path(file.name), data.images.shape)  # which stays open
    return replace(data, images=data.images.to("meta"), pixels=pixels)


@contextmanager
def registered():
    """With the methods above, for as long as it lasts."""
    with ExitStack() as kept:
        for registry in (register.method, register.encoder, register.loss):
            kept.enter_context(mock.patch.dict(registry._entries))
        for name, method in OWN.items():
            register.method(name, about="A test's.")(method)
        register.encoder("few", about="A test's.")(Few)
        register.loss("learned", about="A test's.")(learned)
        yield


def run(name: str, processes: Processes, precision: str = "float64", count: int = 94) -> dict[str, torch.Tensor]:
    data = few(count)
    if name == "matching":
        data = matched_halves(data)
    if TREES[name].get("second_encoder"):
        ids = torch.randint(50, (count, 7), dtype=torch.int32, generator=torch.Generator().manual_seed(0))
        known = {"labelled pairs": {"labels": data.labels}, "pairs in sets": {"sets": torch.arange(count) // 2}}
        data = PairSet(
            "pairs", "train", Side(data.images, mean=data.mean, std=data.std), Side(ids, 50), **known.get(name, {})
        )
    if name == "deepcluster":  # fewer clusters than images, so that weights differ
        data = replace(data, labels=torch.zeros_like(data.labels), classes=("digit",))
    if name == "stored" and processes.size > 1:
        data = stored(data)
    with registered():
        recipe = Recipe.read(TREES[name] | {"batch": 20, "precision": precision, "epochs": EPOCHS})
        engine = Engine(recipe, data, seed=1, device=CPU, processes=processes)
    assert engine.sizes == [20] * (count // 20) + [count % 20]
    for epoch in range(EPOCHS):
        engine.begin(epoch)
        for _ in range(engine.steps):
            engine.step()
    engine.close()
    return {name: x.clone() for name, x in engine.tensors().items() if not name.startswith("total")} | {
        f"mean.{name}": torch.tensor(value, dtype=torch.float64) for name, value in engine.means().items()
    }


def loops(processes: Processes, folder: Path) -> dict[str, object]:
    """The loop, where for the second process alone it is time to stop, later for both; and to save, or to look."""
    loop.AGREE_STEPS, loop.LOOK_SECONDS = 2, 1e9 if processes.first else 0.0
    recipe = Recipe.read(TREES["supervised"] | {"batch": 20, "precision": "float64", "epochs": 2})
    how = RunOptions(CPU, True, processes, checkpoint_seconds=1e9 if processes.first else 0.0)
    saved, save, step = [], checkpoint.save, Engine.step
    checkpoint.save = lambda path, it: (saved.append((it.epoch, it.step)), save(path, it))

    def signalled(engine: Engine) -> None:
        step(engine)
        place = engine.epoch, engine.step_in_epoch
        if place == (1, 2) or (place == (0, 2) and not processes.first):
            os.kill(os.getpid(), signal.SIGINT if processes.first else signal.SIGTERM)

    Engine.step, stopped = signalled, []
    for _ in range(3):
        dist.barrier()  # the first one may be writing still
        try:
            engine, _ = train(recipe, few(95), folder / "shared", seed=1, how=how)
        except Interrupted as error:
            stopped.append(error.signal)
    Engine.step = step
    found = {"stopped": stopped, "saved": saved, "sizes": engine.sizes}
    unfinished = folder / f"own-{processes.rank}" / ".checkpoint.safetensors.abcd1234"
    unfinished.parent.mkdir()
    unfinished.touch()
    train(recipe, few(95), unfinished.parent, seed=1, how=how)
    return found | {"written": sorted(path.name for path in unfinished.parent.iterdir())}


def norm(name: str) -> tuple[nn.Module, torch.Tensor]:
    """A BatchNorm of NORMS, and images in bfloat16 for it."""
    generator = torch.Generator().manual_seed(0)
    layer = nn.BatchNorm2d(3, **NORMS[name])
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(generator=generator)
    return nn.Sequential(nn.Sequential(layer)), (torch.randn(256, 3, 2, 2, generator=generator) + 9).bfloat16()


def normed(processes: Processes, device: torch.device) -> dict[str, tuple[object, ...]]:
    """Two batches in training and one in eval mode through each of NORMS, and its state after them."""
    found = {}
    for name in NORMS:
        layer, x = norm(name)
        share_norms(layer.to(device), device)
        part = x.chunk(processes.size)[processes.rank].to(device)
        found[name] = (layer(part + 1), layer(part), layer.eval()(part), layer.state_dict())
    return found


def clusters(processes: Processes) -> torch.Tensor:
    """DeepCluster's, where each process finds others."""
    mine = SimpleNamespace(labels=torch.full((94,), processes.rank))
    with mock.patch("setwise.methods.deepcluster.kmeans", return_value=mine):
        return run("deepcluster", processes)["model.clusters"]


def joined(rank: int, size: int, folder: str) -> Processes:
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "WORLD_SIZE": str(size)}
    torch.set_num_threads(1)
    limit = timedelta(minutes=5)  # instead of half an hour, should they wait for different things
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=size, timeout=limit
    )
    processes, device = join(CPU)  # as they are already
    assert (processes.rank, processes.size, device) == (rank, size, CPU)
    return processes


def one_of_four(rank: int, size: int, folder: str) -> None:
    torch.save(run("deepinfomax", joined(rank, size, folder), count=44), f"{folder}/{rank}.pt")
    leave()


def fused(name: str, processes: Processes) -> list[torch.Tensor]:
    """One process's part of an encoder's output, and its gradients: the mean over processes, as DDP takes it."""
    torch.manual_seed(0)
    encoder = encoders.create(name).to("cuda", memory_format=torch.channels_last)
    images, grad = torch.randn(64, 3, 32, 32), torch.randn(64, 64)
    if processes.size > 1:
        share_norms(encoder, torch.device("cuda"))
    part, grad_part = (x.chunk(processes.size)[processes.rank].cuda() for x in (images, grad))
    with torch.autocast("cuda", torch.bfloat16):
        y = encoder(part.to(memory_format=torch.channels_last))
    y.backward(processes.size * grad_part.to(y.dtype))
    gradients = [processes.mean(p.grad.float()) for p in encoder.parameters()]
    return [y.detach().float(), *gradients, *(x.float() for x in encoder.buffers())]


def one_of_two_on_a_gpu(rank: int, size: int, folder: str) -> None:
    processes = joined(rank, size, folder)
    found = normed(processes, torch.device("cuda")) | {name: fused(name, processes) for name in ("conv4", "resnet8")}
    torch.save(found, f"{folder}/{rank}.pt")
    leave()


def one_of_two(rank: int, size: int, folder: str) -> None:
    processes = joined(rank, size, folder)
    with (Path(folder) / f"stderr-{rank}").open("w") as sys.stderr:
        looped = loops(processes, Path(folder))
    sys.stderr = sys.__stderr__
    found = {name: run(name, processes) for name in TREES}
    found |= {("bfloat16", name): run(name, processes, "bfloat16") for name in BFLOAT16}
    found["clusters"] = clusters(processes)
    found |= normed(processes, CPU)
    found["loops"] = looped | {"stderr": (Path(folder) / f"stderr-{rank}").read_text()}
    torch.save(found, f"{folder}/{rank}.pt")
    leave()
    leave()
    assert not dist.is_initialized()


def started(worker, size: int, folder: Path) -> list[dict[str, object]]:
    """What each of ``size`` processes found; they are forked from one that has imported what takes seconds."""
    multiprocessing.set_forkserver_preload(["setwise.training.loop", "sklearn.datasets", "torch._dynamo"])
    mp.start_processes(worker, (size, str(folder)), nprocs=size, start_method="forkserver")
    return [torch.load(folder / f"{rank}.pt", map_location="cpu") for rank in range(size)]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    results = started(one_of_two, 2, folder)
    results[0]["loops"]["checkpoints"] = [checkpoint.load(folder / name) for name in ("shared", "own-0")]
    return results


def assert_same(many, alone):
    assert many.keys() == alone.keys()
    for key, x in alone.items():
        torch.testing.assert_close(many[key], x, rtol=1e-8, atol=1e-8, msg=lambda m, key=key: f"{key}: {m}")


@pytest.mark.parametrize("name", TREES)
def test_two_processes_are_one(found, name):
    alone = run(name, Processes())
    for both in found:
        assert_same(both[name], alone)


def test_four_processes_with_one_image_each_are_one(tmp_path):
    """Deep InfoMax's last batch is of four images: each is compared with one of another process."""
    alone = run("deepinfomax", Processes(), count=44)
    for all_four in started(one_of_four, 4, tmp_path):
        assert_same(all_four, alone)


def test_two_processes_decide_together_and_one_writes(found):
    first, second = (both["loops"] for both in found)
    assert first["stopped"] == second["stopped"] == [signal.SIGTERM, signal.SIGTERM]
    # They ask each other after the first, third and fifth step; the signals came after the second.
    before, after = [(0, 1), (0, 3), (1, 0), (1, 1), (1, 3)], [(2, 0), (2, 0)]
    assert first["saved"] == [*before, *after, *before, *after]
    assert (second["saved"], second["written"], second["stderr"]) == ([], [".checkpoint.safetensors.abcd1234"], "")
    assert first["sizes"] == [20, 20, 20, 20, 14], "one image is left out, the processes hold equal parts"
    assert first["written"] == [".lock", "checkpoint.safetensors", "metrics.csv", "metrics.jsonl"]
    assert first["stderr"].startswith("training: epoch 2/2  loss ")
    stopped, whole = first["checkpoints"]
    assert stopped.tensors.keys() == whole.tensors.keys()
    for name, x in whole.tensors.items():
        torch.testing.assert_close(
            stopped.tensors[name], x, rtol=1e-12, atol=0, msg=lambda m, name=name: f"{name}: {m}"
        )
    for row, other in zip(stopped.history, whole.history, strict=True):
        assert row["loss"] == pytest.approx(other["loss"], rel=1e-12)
        assert row["accuracy"] == pytest.approx(other["accuracy"], rel=1e-12)


def test_all_processes_take_the_first_ones_clusters(found):
    assert all((both["clusters"] == 0).all() for both in found)


def assert_normed(found, name):
    layer, x = norm(name)
    trained = [layer(x + 1).chunk(2), layer(x).chunk(2)]
    layer.eval()
    for rank, part in enumerate(x.chunk(2)):
        *got, state = found[rank][name]
        for mine, expected in zip(got, (trained[0][rank], trained[1][rank], layer(part)), strict=True):
            torch.testing.assert_close(mine, expected, rtol=0.01, atol=0.01)  # bfloat16, both
        torch.testing.assert_close(state, layer.state_dict(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NORMS)
def test_a_norm_is_over_the_images_of_all_processes_with_its_own_numbers(found, name):
    assert_normed(found, name)


@pytest.mark.gpu
def test_norms_on_a_gpu_are_over_the_images_of_all_processes(tmp_path):
    found = started(one_of_two_on_a_gpu, 2, tmp_path)
    for name in NORMS:
        assert_normed(found, name)
    for name in ("conv4", "resnet8"):  # whose convolutions are our kernels
        alone = [x.cpu() for x in fused(name, Processes())]
        joint = torch.cat([both[name][0] for both in found])
        for got, expected in zip([joint, *found[0][name][1:]], alone, strict=True):
            assert (got - expected).norm() <= 0.02 * expected.norm()


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("encoder", "parts"),
    [("conv4", 1), ("resnet32", 1), ("resnet18", 1), ("conv4", 4)],
    ids=["conv4", "resnet32", "resnet18", "parts"],
)
def test_a_step_with_ddp_is_captured_and_the_same(encoder, parts):
    """A process group of one, on NCCL."""
    recipe = Recipe.read({"objective": QARE, "encoder": encoder, "batch": 64, "epochs": 2, "parts": parts})
    pixels = torch.randint(0, 256, (300, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    data = ImageSet("noise", "train", pixels, torch.full((300,), -1), ())
    device, found = torch.device("cuda", 0), []
    for joins in (False, True):
        if joins:
            dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=device)
        try:
            engine = Engine(recipe, data, seed=1, device=device)
            assert isinstance(engine.model, nn.parallel.DistributedDataParallel) is joins
            for epoch in range(2):
                engine.begin(epoch)
                for _ in range(engine.steps):
                    engine.step()
            assert set(engine._graphs) == {(64, None, 0.0), (44, None, 0.0)}
            found.append({name: x.double().cpu() for name, x in engine.method.state_dict().items()})
        finally:
            leave()
    for name, x in found[0].items():
        torch.testing.assert_close(found[1][name], x, rtol=1e-2, atol=2e-3, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_shared_norm_stays_what_it_was(device):
    class Still(nn.BatchNorm1d):
        def train(self, mode=True):
            return super().train(False)

    model = nn.Sequential(nn.BatchNorm2d(3).double().requires_grad_(False).eval(), Still(3, affine=False))
    model.append(model[0])
    model[0].register_forward_hook(lambda *_: None)
    before = [(module, dict(vars(module))) for module in model.modules()]
    parts = [*model.parameters(), *model.buffers()]
    share_norms(model, torch.device(device))
    assert all(vars(module) == kept for module, kept in before)
    assert [module for module, _ in before] == list(model.modules())
    assert all(mine is part for mine, part in zip([*model.parameters(), *model.buffers()], parts, strict=True))
    assert isinstance(model[0], nn.BatchNorm2d)
    assert isinstance(model[0], nn.SyncBatchNorm) is (device == "cuda")
    assert not model.train()[1].training
    assert copy.deepcopy(model)[0].weight.dtype == torch.float64


def test_a_norm_that_computes_something_else_is_refused():
    class Rectified(nn.BatchNorm2d):
        def forward(self, input):
            return super().forward(input).relu()

    with pytest.raises(ValueError, match=r"expected every BatchNorm .* got Rectified with a forward of its own.*; put"):
        share_norms(nn.Sequential(Rectified(3)), CPU)


@contextmanager
def one_of(size: int) -> Iterator[Processes]:
    """The first of many processes, of which the others are not there: nothing that is sent arrives."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
    try:
        yield Processes()
    finally:
        leave()


def test_a_method_that_says_nothing_of_many_processes_is_refused(digits):
    with registered():
        recipe = Recipe.read({"method": "silent", "batch": 20})
        with one_of(2) as both, pytest.raises(ValueError, match="got Silent without share.*; add share"):
            Engine(recipe, digits, seed=1, device=CPU, processes=both)
        Engine(recipe, digits, seed=1, device=CPU)


@pytest.mark.parametrize("name", BFLOAT16)
def test_two_processes_in_bfloat16(found, name):
    alone = run(name, Processes(), "bfloat16")
    for both in found:
        mine = both["bfloat16", name]
        torch.testing.assert_close(mine["mean.loss"], alone["mean.loss"], rtol=0.02, atol=0)
        norm = "model.encoder.blocks.1.running_var"
        torch.testing.assert_close(mine[norm], alone[norm], rtol=0.02, atol=1e-4)


def test_a_batch_that_cannot_be_shared(digits, recipe):
    with one_of(7) as seven, pytest.raises(ValueError, match="expected a batch that 7 processes can .*, got 60"):
        Engine(recipe, digits, seed=1, device=CPU, processes=seven)
