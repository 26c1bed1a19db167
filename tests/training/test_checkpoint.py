"""Checkpoints: whole or absent, no code run, clear errors about everything else."""

import json
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

from setwise.paper.recipes import recipe
from setwise.recipe import Recipe
from setwise.training import checkpoint
from setwise.training.checkpoint import Checkpoint
from setwise.training.errors import TrainingError

TENSORS = {
    "model.encoder.weight": torch.arange(6.0).reshape(2, 3),
    "model.head.bias": torch.tensor(2.5),
    "optimizer.0.exp_avg": torch.ones(2, 3, dtype=torch.float64),
}
ONE = Checkpoint(
    Recipe.read({"objective": {"loss": "info-nce", "terms": [{"term": "qare", "weight": 0.25}]}}),
    7,
    1,
    11,
    [{"epoch": 1, "loss": 0.5}],
    TENSORS,
    {"shape": [1, 8, 8], "count": 1500},
    2.5,
)


def content(found: Checkpoint) -> tuple[object, ...]:
    """All of it, in what can be compared."""
    tensors = {name: (x.dtype, x.shape, x.reshape(-1).view(torch.uint8).tolist()) for name, x in found.tensors.items()}
    return replace(found, tensors={}), tensors


def test_what_is_saved_is_loaded(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    checkpoint.save(path, ONE)
    for where in (path, tmp_path):
        found = checkpoint.load(where)
        assert content(found) == content(ONE)
    assert list(found.encoder_state()) == ["weight"]
    assert os.listdir(tmp_path) == ["checkpoint.safetensors"]
    with safe_open(path, framework="numpy") as file:  # ordinary safetensors
        assert file.get_tensor("model.encoder.weight").tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts open files as Linux shows them")
def test_no_file_stays_open_and_others_may_read_what_the_user_lets_them(tmp_path):
    path, before = tmp_path / "checkpoint.safetensors", os.umask(0o026)
    try:
        checkpoint.save(path, ONE)
        checkpoint.write_text(tmp_path / "text", "words")
    finally:
        assert os.umask(before) == 0o026
    files = [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
    assert not [file for file in files if str(tmp_path) in file]
    assert [x.stat().st_mode & 0o777 for x in (path, tmp_path / "text")] == [0o640, 0o640]


def test_a_failed_write_leaves_the_old_one_and_no_litter(tmp_path, monkeypatch):
    path = tmp_path / "checkpoint.safetensors"
    checkpoint.save(path, ONE)
    before = path.read_bytes()

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(TrainingError, match=r"No space left.*intact.*--resume"):
        checkpoint.save(path, ONE)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["checkpoint.safetensors"]


def test_a_pickle_is_not_opened(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (Path(tmp_path / "boom").touch, ())

    for name, written in (("plain.pt", pickle.dumps(Bomb())), ("empty", b""), ("short", b"\x10")):
        (tmp_path / name).write_bytes(written)
    torch.save({"bomb": Bomb()}, tmp_path / "torch.pt")
    for name in ("plain.pt", "empty", "short", "torch.pt"):
        with pytest.raises(ValueError, match="damaged or of another kind"):
            checkpoint.load(tmp_path / name)
    assert not (tmp_path / "boom").exists()


def test_foreign_and_missing_files(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):  # a pipe must not be waited for
        with pytest.raises(ValueError, match=r"expected a checkpoint at .*got no file there"):
            checkpoint.load(path)
    about = {"format": checkpoint.OLDER, "recipe": {"rate": 1}, "seed": 0, "epoch": 0, "step": 0, "history": []}
    for metadata, message in ((None, "of another program"), ({"setwise": json.dumps(about)}, "got 'rate'")):
        save_file({"x": torch.zeros(1)}, tmp_path / "other.safetensors", metadata)
        with pytest.raises(ValueError, match=message):
            checkpoint.load(tmp_path / "other.safetensors")


def test_a_changed_bit_changes_nothing_unseen(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    tensors = {
        "a": torch.arange(6.0, dtype=torch.bfloat16).view(2, 3),
        "b": torch.tensor(3),
        "c": torch.tensor([True, False]),
        "d": torch.empty(0),
    }
    checkpoint.save(path, replace(ONE, tensors=tensors, resumptions=[{"epoch": 1}]))
    whole, before = path.read_bytes(), content(checkpoint.load(path))
    assert before[1] == content(replace(ONE, tensors=tensors))[1]
    start = 8 + int.from_bytes(whole[:8], "little")
    assert len(whole) - start == 6 * 2 + 8 + 2
    refused = 0
    for place in (*range(0, start, 4), *range(start, len(whole))):
        for bit in range(8):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
            try:
                assert content(checkpoint.load(path)) == before, f"bit {bit} of byte {place}"
            except ValueError as error:
                assert "put a copy in its place" in str(error)  # noqa: PT017
                refused += 1
    assert refused > 8 * (start // 4), "white space at the header's end may change, and little else"


def test_a_checkpoint_of_the_first_version_is_read(tmp_path):
    path = Path(__file__).with_name("checkpoint-1.safetensors")
    found = checkpoint.load(path)
    assert (found.seed, found.epoch, found.step, found.data["count"]) == (1, 1, 0, 1297)
    assert found.recipe == recipe("paper/digits-conv4-simclr-qare").changed(
        {"about": "", "epochs": 1, "evaluation.probe.epochs": 2}
    )
    assert found.history[0]["loss"] == 9.060595435919721
    assert len(found.tensors) == 12
    whole = path.read_bytes()
    (tmp_path / "bit").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(ValueError, match="whose content has changed"):
        checkpoint.load(tmp_path / "bit")
    (tmp_path / "none").write_bytes(whole.replace(rb"\"crc32\":", rb"\"crc33\":"))
    assert checkpoint.load(tmp_path / "none").epoch == 1, "the very first had no checksum"


def test_a_process_that_has_imported_nothing_else_reads_one():
    path = Path(__file__).with_name("checkpoint-1.safetensors")
    code = f"from setwise.training.checkpoint import load; print(load({str(path)!r}).recipe.method.name)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (run.stdout, run.stderr) == ("contrastive\n", "")


@pytest.mark.parametrize(
    "change",
    [
        {"epoch": 2},
        {"epoch": 0},
        {"step": 12},
        {"step": -1},
        {"recipe": replace(ONE.recipe, epochs=1)},
        {"recipe": replace(ONE.recipe, epochs=0)},
        {"history": [{"epoch": 2}]},
        {"history": [1]},
        {"resumptions": 1},
        {"data": {"shape": 7}},
        {"data": {"shape": None}},
        {"seconds": float("nan")},
    ],
)
def test_what_no_run_can_have_written_is_refused(tmp_path, change):
    checkpoint.save(tmp_path / "checkpoint.safetensors", replace(ONE, **change))
    with pytest.raises(ValueError, match="this version cannot read"):
        checkpoint.load(tmp_path)


@given(st.data())
def test_damaged_files_are_refused_or_read(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("damaged")
    checkpoint.save(folder / "good.safetensors", ONE)
    raw = bytearray((folder / "good.safetensors").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(raw)))
    (folder / "bad.safetensors").write_bytes(raw[:cut] if data.draw(st.booleans()) else raw)
    try:
        found = checkpoint.load(folder / "bad.safetensors")
    except ValueError as error:
        assert "expected" in str(error)  # noqa: PT017
    else:
        assert found.tensors.keys()
