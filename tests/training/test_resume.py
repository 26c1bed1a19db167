"""Nothing is lost: killed, told to stop, out of space, diverged, in the wrong folder."""

import copy
import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import torch

import setwise.register as register
from setwise import methods
from setwise.cli import main
from setwise.recipe import Recipe
from setwise.records.record import of_run
from setwise.training import checkpoint, loop
from setwise.training.engine import Engine
from setwise.training.errors import Interrupted, TrainingError
from setwise.training.loop import How, train

CPU = torch.device("cpu")
RUN = ["--recipe", "paper/digits-conv4-simclr", "--no-evaluate", "--device", "cpu", "--batch", "100"]


def cli(*words: str) -> list[str]:
    return [sys.executable, "-m", "setwise.cli", "pretrain", *RUN, *words]


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
    told = [{k: v for k, v in row.items() if "second" not in k} for row in killed.history]
    assert told == [{k: v for k, v in row.items() if "second" not in k} for row in whole.history]
    lines = (tmp_path / "killed" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == killed.history
    rows = (tmp_path / "killed" / "metrics.csv").read_text().splitlines()
    assert rows[0].split(",")[:2] == ["epoch", "loss"]
    assert [row.split(",")[0] for row in rows[1:]] == [str(i) for i in range(1, 7)]
    left = {path.name for path in (tmp_path / "killed").iterdir() if not path.name.startswith(".checkpoint")}
    assert left == {".lock", "checkpoint.safetensors", "metrics.csv", "metrics.jsonl"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_stops_after_a_checkpoint_and_the_run_goes_on(tmp_path, number):
    command = cli("--epochs", "400", "--out", str(tmp_path))
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "metrics.csv").exists() or len((tmp_path / "metrics.csv").read_text()) < 200:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(number)
        said = process.communicate(timeout=30)[1]
    finally:
        process.kill()
    assert process.returncode == 128 + number
    assert f"stopped by {number.name} after writing" in said
    assert "--resume" in said
    assert "Traceback" not in said
    found = checkpoint.load(tmp_path)
    assert 0 < found.epoch < 400
    assert len(found.history) == found.epoch


def test_who_trained_a_part_of_it_is_known(tmp_path, monkeypatch, digits, recipe):
    recipe = replace(recipe, epochs=4)

    def go_on(command, until, **changes):
        def after_epoch(engine, history):
            if len(history) + 1 == until:
                raise KeyboardInterrupt
            return {}

        monkeypatch.setattr("sys.argv", ["setwise", command])
        how = How(CPU, resume=True, quiet=True, checkpoint_seconds=0)
        return train(recipe, digits, tmp_path, seed=1, how=how, after_epoch=after_epoch)

    for command, until in (("first", 2), ("second", 3), ("second", 4)):
        with pytest.raises(KeyboardInterrupt):
            go_on(command, until)
    engine, last = go_on("third", None)
    assert [(one["epoch"], one["command"][1]) for one in last.sittings] == [(1, "first"), (2, "second"), (4, "third")]
    assert last.sittings[0]["versions"]["torch"] == torch.__version__
    record = of_run("name", engine, last, {})
    assert (record["command"], record["earlier"]) == (["setwise", "third"], last.sittings[:2])
    again, last = go_on("another", None)
    assert len(last.sittings) == 3, "it had no step to make"
    record = of_run("name", again, last, {})
    assert (record["command"], record["earlier"]) == (["setwise", "another"], last.sittings)
    checkpoint.save(tmp_path / loop.FILE, replace(last, epoch=3, history=last.history[:3], sittings=[]))
    _, last = go_on("fourth", None)
    assert [(one["epoch"], one.get("command")) for one in last.sittings] == [(1, None), (4, ["setwise", "fourth"])]


class Momentum(methods.Supervised):
    """A slow copy of the classifier, moved less and less; and the steps it was told of."""

    def __init__(self, parts):
        super().__init__(parts.encoder, parts.features, parts.classes, parts.views)
        self.slow = copy.deepcopy(self.classifier).requires_grad_(False)
        self.told = []

    def after_step(self, step, total):
        self.told.append((step.item(), total))
        for slow, fast in zip(self.slow.parameters(), self.classifier.parameters(), strict=True):
            slow.lerp_(fast, 0.5 * (1 - step / total))


def test_after_step_counts_on_and_a_momentum_encoder_survives(tmp_path, digits, monkeypatch):
    len(register.method)  # it has its own entries now
    monkeypatch.setattr(register.method, "_entries", dict(register.method._entries))
    register.method("momentum", about="A test's.")(Momentum)
    recipe, step = Recipe.read({"method": "momentum", "epochs": 3, "batch": 60, "optimizer": "sgd"}), Engine.step
    whole, _ = train(recipe, digits, tmp_path / "whole", seed=1, how=How(CPU, quiet=True))
    every = [(n, 12) for n in range(1, 13)]
    assert whole.method.told == every
    assert not any(p.requires_grad for p in whole.method.slow.parameters())

    def stopped(engine):
        step(engine)
        if (engine.epoch, engine.step_in_epoch) == (1, 2):
            os.kill(os.getpid(), signal.SIGTERM)

    how = How(CPU, resume=True, quiet=True)
    with mock.patch.object(Engine, "step", stopped), pytest.raises(Interrupted):
        train(recipe, digits, tmp_path / "parts", seed=1, how=how)
    parts, _ = train(recipe, digits, tmp_path / "parts", seed=1, how=how)
    assert parts.method.told == every[6:]
    for name, x in whole.tensors().items():
        assert torch.equal(parts.tensors()[name], x), name
    slow, fast = (part.weight for part in (parts.method.slow, parts.method.classifier))
    assert not torch.equal(slow, fast)


def test_one_signal_may_come_twice(monkeypatch):
    """From the terminal, and from the process that started this one and heard it too."""
    with loop._Signals() as signals:
        try:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
                os.kill(os.getpid(), number)
        except KeyboardInterrupt:
            pytest.fail("obeyed at once, without a checkpoint")
        assert signals.seen == signal.SIGTERM
        monkeypatch.setattr(loop, "ONE_SIGNAL_SECONDS", 0.0)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_full_disk_is_told_and_the_last_checkpoint_lasts(tmp_path):
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


def test_a_diverged_run_stops_and_keeps_the_last_good_checkpoint(tmp_path, digits, recipe):
    train(recipe, digits, tmp_path, seed=1, how=How(CPU, quiet=True))
    good = (tmp_path / "checkpoint.safetensors").read_bytes()
    wild = Engine.step

    def diverge(engine: Engine) -> None:
        wild(engine)
        with torch.no_grad():
            next(engine.method.parameters()).fill_(float("nan"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine, "step", diverge)
        (tmp_path / "two").mkdir()
        with pytest.raises(TrainingError, match=r"epoch 1, step 2 of 4: expected z_a to be finite.*intact.*lower lr"):
            train(recipe, digits, tmp_path / "two", seed=1, how=How(CPU, quiet=True))
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == good
    assert not (tmp_path / "two" / "checkpoint.safetensors").exists()


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory."), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_out_of_memory_is_told(tmp_path, digits, recipe, error, monkeypatch):
    def fail(engine: Engine) -> None:
        raise error

    monkeypatch.setattr(Engine, "step", fail)
    with pytest.raises(TrainingError, match=r"out of memory .*a batch below 60 needs less"):
        train(recipe, digits, tmp_path, seed=1, how=How(CPU, quiet=True))


def test_the_wrong_folder(tmp_path, digits, recipe):
    train(recipe, digits, tmp_path, seed=1, how=How(CPU, quiet=True))
    with pytest.raises(ValueError, match=r"expected no run in .*add --resume"):
        train(recipe, digits, tmp_path, seed=1, how=How(CPU, quiet=True))
    with pytest.raises(ValueError, match=r"it has optimizer.lr 0.001, not 0.5; seed 1, not 2"):
        train(recipe.changed({"lr": 0.5}), digits, tmp_path, seed=2, how=How(CPU, resume=True, quiet=True))
    before = (tmp_path / "checkpoint.safetensors").read_bytes()
    _, last = train(recipe, digits, tmp_path, seed=1, how=How(CPU, resume=True, quiet=True))  # it is finished
    assert last.epoch == 3
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == before
    raw = bytearray(before)
    raw[4] ^= 255
    (tmp_path / "checkpoint.safetensors").write_bytes(raw)
    with pytest.raises(ValueError, match="damaged or of another kind"):
        train(recipe, digits, tmp_path, seed=1, how=How(CPU, resume=True, quiet=True))
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == raw


def test_other_data_in_the_same_place(tmp_path, digits, recipe):
    train(recipe, digits, tmp_path, seed=1, how=How(CPU, quiet=True))
    fewer = replace(digits, images=digits.images[:150], labels=digits.labels[:150])
    again = How(CPU, resume=True, quiet=True)
    with pytest.raises(
        ValueError, match=r"began with \(200 of 1 x 8 x 8\), got others \(150 of 1 x 8 x 8; their count"
    ):
        train(recipe, fewer, tmp_path, seed=1, how=again)
    for name, value in (
        ("mean", (0.9,)),
        ("mean", (digits.mean[0] * (1 + 1e-6),)),
        ("std", (0.9,)),
        ("name", "other digits"),
        ("classes", (*digits.classes, "ten")),
        ("classes", (*digits.classes[:9], "ten")),
    ):
        with pytest.raises(ValueError, match=rf"their {name} differ\); give another --out"):
            train(recipe, replace(digits, **{name: value}), tmp_path, seed=1, how=again)
    rounded = replace(digits, mean=(digits.mean[0] * (1 + 4e-16),), std=(digits.std[0] * (1 - 4e-13),))
    assert rounded.mean != digits.mean, "as another number of threads adds them up"
    train(recipe, rounded, tmp_path, seed=1, how=again)
    found = checkpoint.load(tmp_path)
    del found.data["classes"]  # a checkpoint that says less of its data
    checkpoint.save(tmp_path / "checkpoint.safetensors", found)
    train(recipe, digits, tmp_path, seed=1, how=again)


def test_what_a_killed_process_left_half_written_goes(tmp_path, digits, recipe):
    with checkpoint.replacing(tmp_path / "checkpoint.safetensors") as left:
        pass
    (tmp_path / "checkpoint.safetensors").rename(left)
    mine = tmp_path / ".checkpoint.safetensors.mine"
    mine.touch()
    train(recipe, digits, tmp_path, seed=1, how=How(torch.device("cpu"), quiet=True))
    assert (left.exists(), mine.exists()) == (False, True)
    with pytest.raises(ValueError, match="expected checkpoint_seconds to be a finite number of at least 0, got nan"):
        train(recipe, digits, tmp_path, seed=1, how=How(torch.device("cpu"), checkpoint_seconds=float("nan")))


def test_a_network_is_not_taken_for_weights(tmp_path, digits, recipe):
    with pytest.raises(ValueError, match="expected encoder to be weights, a state_dict of the recipe's .*, got Linear"):
        train(recipe, digits, tmp_path, seed=1, how=How(CPU, quiet=True), encoder=torch.nn.Linear(2, 2))


def test_two_runs_in_one_folder(tmp_path, digits, recipe):
    from filelock import FileLock

    with FileLock(tmp_path / ".lock"), pytest.raises(ValueError, match=r"for this run alone.*another --out"):
        train(recipe, digits, tmp_path, seed=1, how=How(CPU, quiet=True))


def test_a_network_folder_without_locks(tmp_path, digits, recipe, monkeypatch):
    def flock(*given: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(OSError, match=r"No locks available.*local disk, by --out"):
        train(recipe, digits, tmp_path, seed=1, how=How(CPU, quiet=True))


def test_the_last_epoch_is_told_unless_all_is_quiet(tmp_path, digits, recipe, capsys):
    short = replace(recipe, epochs=3)
    train(short, digits, tmp_path / "quiet", seed=1, how=How(CPU, quiet=True))
    assert capsys.readouterr().err == ""
    _, last = train(short, digits, tmp_path / "told", seed=1, how=How(CPU))
    assert f"training: epoch 3/3  loss {last.history[-1]['loss']:.4f}" in capsys.readouterr().err
