"""Nothing is lost: killed, stopped, out of space, diverged, in the wrong folder."""

import copy
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest import mock

import pytest
import torch
from filelock import FileLock

import setwise.register as register
from setwise import methods
from setwise.cli import main
from setwise.recipe import Recipe
from setwise.records.record import of_run
from setwise.training import checkpoint, loop
from setwise.training.engine import Engine
from setwise.training.errors import Interrupted
from setwise.training.loop import RunOptions, train

CPU = torch.device("cpu")
RUN = ["--recipe", "paper/digits-conv4-simclr", "--no-evaluate", "--device", "cpu", "--batch", "100"]


def trained(recipe, data, folder, *, seed=1, **options):
    """The run in this folder, without a word."""
    return train(recipe, data, folder, seed=seed, how=RunOptions(CPU, quiet=True, **options))


def without_times(history):
    return [{name: value for name, value in row.items() if "second" not in name} for row in history]


@pytest.mark.parametrize("method", ["contrastive", "deepcluster"])
def test_ten_kills_change_nothing(tmp_path, method):
    script = Path(__file__).with_name("zygote.py")
    run = subprocess.run([sys.executable, script, tmp_path, method], capture_output=True, text=True, timeout=240)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "10"
    whole, killed = (checkpoint.load(tmp_path / name) for name in ("whole", "killed"))
    assert (whole.epoch, whole.step) == (killed.epoch, killed.step) == (6, 0)
    assert whole.tensors.keys() == killed.tensors.keys()
    for name, x in whole.tensors.items():
        assert torch.equal(x, killed.tensors[name]), name
    assert without_times(killed.history) == without_times(whole.history)
    lines = (tmp_path / "killed" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == killed.history
    rows = (tmp_path / "killed" / "metrics.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows] == ["epoch", *(str(i) for i in range(1, 7))]
    left = {path.name for path in (tmp_path / "killed").iterdir() if not path.name.startswith(".checkpoint")}
    assert left == {".lock", "checkpoint.safetensors", "metrics.csv", "metrics.jsonl"}


def test_a_run_whose_views_grow_goes_on_with_the_same_bits(tmp_path, digits, recipe):
    """It is stopped within each part of training: at steps 2, 7 and 13 of 16, which change at 4 and 12."""
    recipe = recipe.changed({"encoder": "resnet8", "epochs": 4, "views.early": (4, 6), "views.until": (0.25, 0.7)})
    recipe = recipe.changed({"views.blur": (1.0, 0.1), "views.solarize": 0.2})
    _, whole = trained(recipe, digits, tmp_path / "whole")
    plain = Engine.step
    for stop in (2, 7, 13):

        def step(self, stop=stop):
            plain(self)
            if self.epoch * self.steps + self.step_in_epoch == stop:
                os.kill(os.getpid(), signal.SIGTERM)

        with mock.patch.object(Engine, "step", step), pytest.raises(Interrupted):
            trained(recipe, digits, tmp_path / "stopped", resume=True)
        found = checkpoint.load(tmp_path / "stopped")
        assert found.epoch * 4 + found.step == stop
    _, last = trained(recipe, digits, tmp_path / "stopped", resume=True)
    assert without_times(last.history) == without_times(whole.history)
    for name, x in whole.tensors.items():
        assert torch.equal(x, last.tensors[name]), name


def test_a_command_that_gets_a_signal_ends_after_a_checkpoint(tmp_path):
    """A lost terminal's; the other signals are in test_loop."""
    command = [sys.executable, "-m", "setwise.cli", "pretrain", *RUN, "--epochs", "400", "--out", str(tmp_path)]
    heard = partial(signal.signal, signal.SIGHUP, signal.SIG_DFL)  # also where the tests themselves run under nohup
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=heard)
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "metrics.csv").exists() or len((tmp_path / "metrics.csv").read_text()) < 200:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGHUP)
        message = process.communicate(timeout=30)[1]
    finally:
        process.kill()
    assert process.returncode == 128 + signal.SIGHUP
    assert "stopped by SIGHUP after writing" in message
    assert "Traceback" not in message
    found = checkpoint.load(tmp_path)
    assert 0 < found.epoch == len(found.history) < 400


def test_who_trained_a_part_of_it_is_known(tmp_path, monkeypatch, digits, recipe):
    recipe = replace(recipe, epochs=4)

    def go_on(command, until):
        def after_epoch(engine, history):
            if len(history) + 1 == until:
                raise KeyboardInterrupt
            return {}

        monkeypatch.setattr("sys.argv", ["setwise", command])
        how = RunOptions(CPU, resume=True, quiet=True, checkpoint_seconds=0)
        return train(recipe, digits, tmp_path, seed=1, how=how, after_epoch=after_epoch)

    for command, until in (("first", 2), ("second", 3), ("second", 4)):
        with pytest.raises(KeyboardInterrupt):
            go_on(command, until)
    engine, last = go_on("third", None)
    trainers = [(one["epoch"], one["command"][1]) for one in last.resumptions]
    assert trainers == [(1, "first"), (2, "second"), (4, "third")]
    assert last.resumptions[0]["versions"]["torch"] == torch.__version__
    record = of_run("name", engine, last, {})
    assert (record["command"], record["earlier"]) == (["setwise", "third"], last.resumptions[:2])
    again, last = go_on("another", None)
    assert len(last.resumptions) == 3, "it had no step to make"
    record = of_run("name", again, last, {})
    assert (record["command"], record["earlier"]) == (["setwise", "another"], last.resumptions)
    checkpoint.save(tmp_path / loop.FILE, replace(last, epoch=3, history=last.history[:3], resumptions=[]))
    _, last = go_on("fourth", None)
    assert [(one["epoch"], one.get("command")) for one in last.resumptions] == [(1, None), (4, ["setwise", "fourth"])]


class Momentum(methods.Supervised):
    """A slow copy of the classifier, moved less and less; and the steps it counted."""

    def __init__(self, parts):
        super().__init__(parts)
        self.slow = copy.deepcopy(self.classifier).requires_grad_(False)
        self.counted = []

    def after_step(self, step, total):
        self.counted.append((step.item(), total))
        for slow, fast in zip(self.slow.parameters(), self.classifier.parameters(), strict=True):
            slow.lerp_(fast, 0.5 * (1 - step / total))


@pytest.mark.usefixtures("registries")
def test_after_step_counts_on_and_a_momentum_encoder_survives(tmp_path, digits):
    register.method("momentum", about="A test's.")(Momentum)
    recipe, step = Recipe.read({"method": "momentum", "epochs": 3, "batch": 60, "optimizer": "sgd"}), Engine.step
    whole, _ = trained(recipe, digits, tmp_path / "whole")
    every = [(n, 12) for n in range(1, 13)]
    assert whole.method.counted == every
    assert not any(p.requires_grad for p in whole.method.slow.parameters())

    def stopped(engine):
        step(engine)
        if (engine.epoch, engine.step_in_epoch) == (1, 2):
            os.kill(os.getpid(), signal.SIGTERM)

    with mock.patch.object(Engine, "step", stopped), pytest.raises(Interrupted):
        trained(recipe, digits, tmp_path / "parts")
    parts, _ = trained(recipe, digits, tmp_path / "parts", resume=True)
    assert parts.method.counted == every[6:]
    for name, x in whole.tensors().items():
        assert torch.equal(parts.tensors()[name], x), name
    slow, fast = (part.weight for part in (parts.method.slow, parts.method.classifier))
    assert not torch.equal(slow, fast)


def test_a_full_disk_is_an_error_and_leaves_no_half_checkpoint(tmp_path):
    main(["pretrain", *RUN, "--epochs", "1", "--out", str(tmp_path / "a"), "--quiet"])
    size = (tmp_path / "a" / "checkpoint.safetensors").stat().st_size
    # No room for a checkpoint in this process: a limit on the size of files fails a write as a full disk does.
    code = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({size // 2}, {size // 2}))\n"
    code += "import sys; from setwise.cli import main; main(sys.argv[1:])"
    words = ["pretrain", *RUN, "--epochs", "3", "--out", str(tmp_path / "b"), "--quiet"]
    run = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert run.returncode == 1
    assert "could not write the checkpoint" in run.stderr
    assert "Traceback" not in run.stderr
    assert not list((tmp_path / "b").glob("*checkpoint*"))


def test_the_wrong_folder_or_data(tmp_path, digits, recipe):
    path = tmp_path / "checkpoint.safetensors"
    with checkpoint.replacing(path) as left:  # what a killed process left half written goes, and nothing else
        pass
    path.rename(left)
    mine = tmp_path / ".checkpoint.safetensors.mine"
    mine.touch()
    trained(recipe, digits, tmp_path)
    assert (left.exists(), mine.exists()) == (False, True)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"expected no run in .*add --resume"):
        trained(recipe, digits, tmp_path)
    with pytest.raises(ValueError, match=r"it has optimizer.lr 0.001, not 0.5; seed 1, not 2"):
        trained(recipe.changed({"lr": 0.5}), digits, tmp_path, seed=2, resume=True)
    fewer = replace(digits, images=digits.images[:150], labels=digits.labels[:150])
    with pytest.raises(ValueError, match=r"\(200 of 1 x 8 x 8\), got others \(150 of 1 x 8 x 8; their count"):
        trained(recipe, fewer, tmp_path, resume=True)
    for name, value in (
        ("mean", (0.9,)),
        ("mean", (digits.mean[0] * (1 + 1e-6),)),
        ("std", (0.9,)),
        ("name", "other digits"),
        ("classes", (*digits.classes, "ten")),
        ("classes", (*digits.classes[:9], "ten")),
    ):
        with pytest.raises(ValueError, match=rf"their {name} differ\); give another --out"):
            trained(recipe, replace(digits, **{name: value}), tmp_path, resume=True)
    rounded = replace(digits, mean=(digits.mean[0] * (1 + 4e-16),), std=(digits.std[0] * (1 - 4e-13),))
    assert rounded.mean != digits.mean, "as another number of threads adds them up"
    _, last = trained(recipe, rounded, tmp_path, resume=True)
    assert last.epoch == 3
    assert path.read_bytes() == before, "it was finished"
    del last.data["classes"]  # a checkpoint that says less of its data
    checkpoint.save(path, last)
    trained(recipe, digits, tmp_path, resume=True)
    raw = bytearray(before)
    raw[4] ^= 255
    path.write_bytes(raw)
    with pytest.raises(ValueError, match="damaged or of another kind"):
        trained(recipe, digits, tmp_path, resume=True)
    assert path.read_bytes() == raw


def test_bad_options(tmp_path, digits, recipe):
    with pytest.raises(ValueError, match="expected checkpoint_seconds to be a finite number of at least 0, got nan"):
        trained(recipe, digits, tmp_path, checkpoint_seconds=float("nan"))
    with pytest.raises(ValueError, match="expected encoder to be weights.*, got Linear"):
        train(recipe, digits, tmp_path, seed=1, how=RunOptions(CPU), encoder=torch.nn.Linear(2, 2))
    with FileLock(tmp_path / ".lock"), pytest.raises(ValueError, match=r"for this run alone.*another --out"):
        trained(recipe, digits, tmp_path)
