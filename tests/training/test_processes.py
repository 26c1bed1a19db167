"""Two processes with half the batch each are one process with all of it: losses, weights, statistics of BatchNorm."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from setwise.data import load
from setwise.recipe import Recipe
from setwise.training import checkpoint
from setwise.training.engine import Engine
from setwise.training.processes import Processes

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
}


def run(name: str, processes: Processes, precision: str = "float64") -> dict[str, torch.Tensor]:
    whole = load("digits")
    data = replace(whole, images=whole.images[:94], labels=whole.labels[:94])  # 4 x 20 and 14 over
    recipe = replace(RECIPES[name], batch=20, precision=precision, epochs=2)
    engine = Engine(recipe, data, seed=1, device=CPU, processes=processes)
    assert engine.sizes == [20, 20, 20, 20, 14]
    for epoch in range(STEPS // 5):
        engine.begin(epoch)
        for _ in range(5):
            engine.step()
    return {name: x.clone() for name, x in engine.tensors().items() if not name.startswith("total")} | {
        f"mean.{name}": torch.tensor(value, dtype=torch.float64) for name, value in engine.means().items()
    }


def worker(rank: int, size: int, folder: str) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size)
    found = {name: run(name, Processes(rank, size)) for name in RECIPES}
    found["bfloat16"] = run("simclr-qare", Processes(rank, size), "bfloat16")
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    mp.spawn(worker, (2, str(folder)), nprocs=2)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("name", RECIPES)
def test_two_processes_are_one(found, name):
    alone = run(name, Processes())
    for rank in range(2):
        both = found[rank][name]
        assert both.keys() == alone.keys()
        for key, x in alone.items():
            torch.testing.assert_close(both[key], x, rtol=1e-8, atol=1e-8, msg=lambda m, key=key: f"{key}: {m}")


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
