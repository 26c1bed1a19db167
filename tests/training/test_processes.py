"""Two processes with half the batch each are one process with all of it: losses, weights, statistics of BatchNorm."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from setwise.data import ImageSet, load, matched_halves
from setwise.recipe import Recipe
from setwise.training import checkpoint, loop
from setwise.training.engine import Engine
from setwise.training.errors import Interrupted
from setwise.training.loop import How, train
from setwise.training.processes import Processes, join, leave, share_norms

CPU = torch.device("cpu")
STEPS = 10
RECIPES = {
    "simclr-qare": Recipe(loss="paper/simclr-qare", beta=0.5),
    "released-simclr-qare": Recipe(loss="released/simclr-qare", beta=0.5),
    "features": Recipe(loss="ablation/simclr-features", beta=0.5),
    "sparseclr": Recipe(method="sparseclr", loss="released/sparseclr"),
    "resnet8": Recipe(loss="paper/simclr-qare", beta=0.5, encoder="resnet8"),
    "supervised": Recipe(method="supervised", optimizer="sgd", lr=0.05),
    "rotation": Recipe(method="rotation"),
    "matching": Recipe(method="matching", loss="paper/matching-infonce-qare", beta=0.5, encoder="resnet8"),
}


def few(count: int = 94) -> ImageSet:
    """4 x 20 and 14 over."""
    whole = load("digits")
    return replace(whole, images=whole.images[:count], labels=whole.labels[:count])


def run(name: str, processes: Processes, precision: str = "float64") -> dict[str, torch.Tensor]:
    recipe = replace(RECIPES[name], batch=20, precision=precision, epochs=2)
    data = matched_halves(few()) if name == "matching" else few()
    engine = Engine(recipe, data, seed=1, device=CPU, processes=processes)
    assert engine.sizes == [20, 20, 20, 20, 14]
    for epoch in range(STEPS // 5):
        engine.begin(epoch)
        for _ in range(5):
            engine.step()
    return {name: x.clone() for name, x in engine.tensors().items() if not name.startswith("total")} | {
        f"mean.{name}": torch.tensor(value, dtype=torch.float64) for name, value in engine.means().items()
    }


def loops(processes: Processes, folder: Path) -> dict[str, object]:
    """The loop, where for the second process alone it is time to stop, later for both; and to save, or to look."""
    loop.AGREE_STEPS, loop.LOOK_SECONDS = 2, 1e9 if processes.first else 0.0
    recipe, found = replace(RECIPES["supervised"], batch=20, precision="float64", epochs=2), {}
    how = How(CPU, True, processes, checkpoint_seconds=1e9 if processes.first else 0.0)
    saved, save, step = [], checkpoint.save, Engine.step
    checkpoint.save = lambda path, it: (saved.append((it.epoch, it.step)), save(path, it))

    def told(engine: Engine) -> None:
        step(engine)
        place = engine.epoch, engine.step_in_epoch
        if place == (1, 2) or (place == (0, 2) and not processes.first):
            os.kill(os.getpid(), signal.SIGINT if processes.first else signal.SIGTERM)

    Engine.step, stopped = told, []
    for _ in range(3):
        dist.barrier()  # the first one may be writing still
        try:
            engine, _ = train(recipe, few(95), folder / "shared", seed=1, how=how)
        except Interrupted as error:
            stopped.append(error.signal)
    Engine.step = step
    found |= {"stopped": stopped, "saved": saved, "sizes": engine.sizes}
    unfinished = folder / f"own-{processes.rank}" / ".checkpoint.safetensors.x"
    unfinished.parent.mkdir()
    unfinished.touch()
    train(recipe, few(95), unfinished.parent, seed=1, how=how)
    return found | {"written": sorted(path.name for path in unfinished.parent.iterdir())}


def norm() -> tuple[nn.Module, torch.Tensor]:
    """A BatchNorm with numbers of its own, and images in bfloat16 for it."""
    generator = torch.Generator().manual_seed(0)
    layer = nn.BatchNorm2d(3, eps=0.1, momentum=0.3)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(generator=generator)
    return nn.Sequential(nn.Sequential(layer)), (torch.randn(256, 3, 2, 2, generator=generator) + 9).bfloat16()


def worker(rank: int, size: int, folder: str) -> None:
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "WORLD_SIZE": str(size)}
    torch.set_num_threads(1)
    limit = timedelta(minutes=5)  # instead of half an hour, should they wait for different things
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size, timeout=limit)
    assert join(CPU) == (Processes(rank, size), CPU)  # as they are already
    with (Path(folder) / f"said-{rank}").open("w") as sys.stderr:
        told = loops(Processes(rank, size), Path(folder))
    sys.stderr = sys.__stderr__
    found = {name: run(name, Processes(rank, size)) for name in RECIPES}
    found["bfloat16"] = run("simclr-qare", Processes(rank, size), "bfloat16")
    layer, x = norm()
    shared, part = share_norms(layer, CPU), x.chunk(size)[rank]
    found["norm"] = (shared(part), shared.eval()(part), shared.state_dict())
    found["loops"] = told | {"said": (Path(folder) / f"said-{rank}").read_text()}
    torch.save(found, f"{folder}/{rank}.pt")
    leave()
    leave()
    assert not dist.is_initialized()


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    mp.spawn(worker, (2, str(folder)), nprocs=2)
    results = [torch.load(folder / f"{rank}.pt") for rank in range(2)]
    results[0]["loops"]["checkpoints"] = [checkpoint.load(folder / name) for name in ("shared", "own-0")]
    return results


@pytest.mark.parametrize("name", RECIPES)
def test_two_processes_are_one(found, name):
    alone = run(name, Processes())
    for rank in range(2):
        both = found[rank][name]
        assert both.keys() == alone.keys()
        for key, x in alone.items():
            torch.testing.assert_close(both[key], x, rtol=1e-8, atol=1e-8, msg=lambda m, key=key: f"{key}: {m}")


def test_two_processes_decide_together_and_one_writes(found):
    first, second = (both["loops"] for both in found)
    assert first["stopped"] == second["stopped"] == [signal.SIGTERM, signal.SIGTERM]
    # They ask each other after the first, third and fifth step; the signals came after the second.
    before, after = [(0, 1), (0, 3), (1, 0), (1, 1), (1, 3)], [(2, 0), (2, 0)]
    assert first["saved"] == [*before, *after, *before, *after]
    assert (second["saved"], second["written"], second["said"]) == ([], [".checkpoint.safetensors.x"], "")
    assert first["sizes"] == [20, 20, 20, 20, 14], "one image is left out, the processes hold equal parts"
    assert first["written"] == [".lock", "checkpoint.safetensors", "metrics.csv", "metrics.jsonl"]
    assert first["said"].startswith("training: epoch 2/2  loss ")
    stopped, whole = first["checkpoints"]
    assert stopped.tensors.keys() == whole.tensors.keys()
    for name, x in whole.tensors.items():
        torch.testing.assert_close(
            stopped.tensors[name], x, rtol=1e-12, atol=0, msg=lambda m, name=name: f"{name}: {m}"
        )
    for row, other in zip(stopped.history, whole.history, strict=True):
        assert row["loss"] == pytest.approx(other["loss"], rel=1e-12)
        assert row["accuracy"] == pytest.approx(other["accuracy"], rel=1e-12)


def test_a_norm_is_over_the_images_of_all_processes_with_its_own_numbers(found):
    layer, x = norm()
    trained, frozen, state = layer(x), layer.eval()(x), layer.state_dict()
    for both, *parts in zip(found, trained.chunk(2), frozen.chunk(2), strict=True):
        for got, expected in zip(both["norm"][:2], parts, strict=True):
            torch.testing.assert_close(got, expected, rtol=0.01, atol=0.01)  # bfloat16, both
        torch.testing.assert_close(both["norm"][2], state, rtol=1e-5, atol=1e-6)


def test_two_processes_in_bfloat16(found):
    alone = run("simclr-qare", Processes(), "bfloat16")
    for both in found:
        torch.testing.assert_close(both["bfloat16"]["mean.loss"], alone["mean.loss"], rtol=0.02, atol=0)
        norm = "model.encoder.blocks.1.running_var"
        torch.testing.assert_close(both["bfloat16"][norm], alone[norm], rtol=0.02, atol=1e-4)


def test_torchrun_on_the_command_line(tmp_path):
    """As a person would start it, and the same as one process to the precision of float32."""
    words = ["pretrain", "--recipe", "paper/digits-conv4-simclr-qare", "--epochs", "1", "--no-evaluate"]
    words += ["--device", "cpu"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    for start, out in (([*torchrun, "-m", "setwise.cli"], "two"), ([sys.executable, "-m", "setwise.cli"], "one")):
        done = subprocess.run(
            [*start, *words, "--out", str(tmp_path / out)], env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("written to") == 1  # one of them talks
    one, two = (checkpoint.load(Path(tmp_path) / name) for name in ("one", "two"))
    # 1,297 digits: the last batch of 17 is cut to 16 for two processes, so that only the earlier steps are the same.
    assert two.history[0]["loss"] == pytest.approx(one.history[0]["loss"], rel=0.01)
    assert two.tensors.keys() == one.tensors.keys()


def test_a_batch_that_cannot_be_shared(digits, recipe):
    with pytest.raises(ValueError, match="expected a batch that 7 processes can share equally, got 60"):
        Engine(recipe, digits, seed=1, device=CPU, processes=Processes(0, 7))
