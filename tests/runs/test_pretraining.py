"""A run from its recipe to its record, as the command line does it."""

import csv
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.linear_model import RidgeClassifier

import setwise.records as records
import setwise.runs as runs
from setwise import encoders
from setwise.cli import main
from setwise.data import load
from setwise.evaluation import load_encoder
from setwise.evaluation.features import extract
from setwise.evaluation.knn import knn_accuracy
from setwise.recipe import Recipe
from setwise.runs.pretraining import check_classes, splits
from setwise.training import checkpoint, environment

SMALL = ["--device", "cpu", "--quiet", "--epochs", "2", "--probe.epochs", "20"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("run") / "it"
    name = "paper/digits-conv4-simclr-qare"
    main(["pretrain", "--recipe", name, *SMALL, "--seed", "4", "--out", str(out), *("--logger", "tensorboard")])
    return out


def test_a_record_says_everything(folder):
    record = json.loads((folder / "record.json").read_text())
    assert record["name"] == "paper/digits-conv4-simclr-qare (changed)"
    assert (record["seed"], record["recipe"]["epochs"]) == (4, 2)
    assert [(one["term"], one["weight"]) for one in record["recipe"]["objective"]["terms"]] == [("qare", 1.0)]
    assert set(record["versions"]) == {"setwise", "python", "torch", "numpy", "scipy"}
    assert record["hardware"]["device"] == "cpu"
    assert record["data"] == {"name": "digits", "train": 1297, "test": 500}
    epochs = record["epochs"]
    assert (epochs["epoch"], set(epochs)) == ([1, 2], {"epoch", "loss", "pairwise", "regularizer"})
    assert epochs["loss"] == pytest.approx(np.add(epochs["pairwise"], epochs["regularizer"]), rel=1e-5)
    assert set(record["final"]) == {"probe_accuracy", *(f"knn{k}_accuracy" for k in (10, 20, 200))}
    assert all(0.2 < value <= 1 for value in record["final"].values())
    assert record["timings"]["training_seconds"] > 0
    assert records.read(folder) == record
    with (folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    history = checkpoint.load(folder).history
    assert all(row["images_per_second"] > 0 for row in history)
    assert [float(row["loss"]) for row in rows] == [row["loss"] for row in history]
    assert [row["loss"] for row in history] == pytest.approx(epochs["loss"], rel=1e-5)
    assert [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()] == history
    assert list((folder / "tensorboard").glob("events.out.*"))


def test_the_encoder_in_the_checkpoint_is_the_trained_one(folder):
    """Features by hand from the file; a classifier that is not ours finds about as much in them."""
    state = checkpoint.load(folder).encoder_state()
    encoder = encoders.create("conv4", channels=1)
    encoder.load_state_dict(state)
    encoder.eval()
    features = []
    for split in ("train", "test"):
        data = load("digits", split=split)
        x = (data.images / 255 - torch.tensor(data.mean).view(-1, 1, 1)) / torch.tensor(data.std).view(-1, 1, 1)
        features.append((encoder(x).detach().numpy(), data.labels.numpy()))
    (train_x, train_y), (test_x, test_y) = features
    scale = train_x.std(0) + 1e-6  # some features of a barely trained encoder are constant
    reference = RidgeClassifier().fit(train_x / scale, train_y).score(test_x / scale, test_y)
    assert reference > 0.7
    found = json.loads((folder / "record.json").read_text())["final"]
    assert found["knn20_accuracy"] > 0.6
    assert found["probe_accuracy"] < reference + 0.05


def test_probing_again_gives_the_same_numbers_and_fine_tuning_more(folder, capsys):
    found = runs.probe(folder, device=torch.device("cpu"), fine_tune=True, fine_tune_epochs=3, quiet=True)
    record = records.read(folder)
    for name, value in record["final"].items():
        assert found[name] == value
    assert found["fine_tuned_accuracy"] > 0.3
    before = checkpoint.load(folder).tensors
    main(["probe", str(folder), "--device", "cpu"])
    said = capsys.readouterr().out
    assert f"probe accuracy: {100 * found['probe_accuracy']:.2f} %" in said
    after = checkpoint.load(folder).tensors
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_fine_tuning_starts_from_the_checkpoint_that_is_asked_for(folder, tmp_path):
    """Two checkpoints in one folder, another length, and the same again."""
    found = checkpoint.load(folder)
    torch.manual_seed(5)
    fresh = {f"model.encoder.{name}": x for name, x in encoders.create("conv4", channels=1).state_dict().items()}
    other = replace(found, tensors=found.tensors | fresh)
    (tmp_path / "alone").mkdir()
    for path, one in (("a", found), ("b", other), ("alone/b", other)):
        checkpoint.save(tmp_path / f"{path}.safetensors", one)

    def tuned(name, epochs):
        path = tmp_path / f"{name}.safetensors"
        kept = runs.probe(path, device=torch.device("cpu"), fine_tune=True, fine_tune_epochs=epochs, quiet=True)
        return kept["fine_tuned_accuracy"]

    first = tuned("a", 4)  # enough to tell more than one digit
    assert tuned("b", 4) == tuned("alone/b", 4) != first
    assert tuned("a", 5) != first
    assert len(list(tmp_path.glob("fine-tuned-*"))) == 3
    assert tuned("a", 4) == first
    assert len(list(tmp_path.glob("fine-tuned-*"))) == 3


def without(tensors, name):
    return {key: x for key, x in tensors.items() if key != name}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda it: {"tensors": {"total.loss": torch.zeros(())}}, "got none"),
        (lambda it: {"tensors": without(it.tensors, "model.encoder.blocks.0.weight")}, "blocks.0.weight as no such"),
        (lambda it: {"tensors": it.tensors | {"model.encoder.more": torch.zeros(2)}}, r"got more as shape \(2,\), not"),
        (lambda it: {"data": it.data | {"shape": [3, 8, 8]}}, r"\(8, 1, 3, 3\), not shape \(8, 3, 3, 3\)"),
        (lambda it: {"data": it.data | {"shape": [2**40, 8, 8]}}, "got blocks.0.weight as shape"),
        (lambda it: {"data": {}}, "without the shape, mean, std, classes of their images"),
        (lambda it: {"data": without(it.data, "std")}, "without the std of their images"),
        (lambda it: {"data": it.data | {"shape": []}}, r"of shape \[\], not \[C, H, W\]"),
        (lambda it: {"data": it.data | {"shape": [1, 0, 8]}}, r"of shape \[1, 0, 8\], not"),
    ],
)
def test_checkpoints_that_lack_something_are_refused(folder, tmp_path, change, said):
    found = checkpoint.load(folder)
    checkpoint.save(tmp_path / "checkpoint.safetensors", replace(found, **change(found)))
    for command in (["probe", str(tmp_path)], ["export", str(tmp_path), "--out", str(tmp_path / "out")]):
        with pytest.raises(SystemExit, match=f"expected the weights of conv4 in {tmp_path}, .*{said}"):
            main(command)


@pytest.mark.parametrize(
    ("part", "name", "reason"),
    [
        ("encoder", "foreign_module:make", "import nothing"),
        ("method", "foreign_module:make", "import nothing"),
        ("encoder", "resnet-32", "did you mean 'resnet32'"),
        ("method", "unheard-of", "expected the method to be registered"),
    ],
)
def test_a_checkpoint_of_what_is_not_here_is_refused_and_imports_nothing(
    folder, tmp_path, monkeypatch, part, name, reason
):
    (tmp_path / "foreign_module.py").write_text("raise RuntimeError('it was imported')")
    monkeypatch.syspath_prepend(tmp_path)
    found = checkpoint.load(folder)
    tree = found.recipe.tree() | {part: {"name": name}}
    checkpoint.save(tmp_path / "checkpoint.safetensors", replace(found, recipe=SimpleNamespace(tree=lambda: tree)))
    for command in ("probe", "export"):
        with pytest.raises(SystemExit, match=f"cannot read .*{reason}"):
            main([command, str(tmp_path)])


def test_a_checkpoint_that_claims_huge_images_is_not_believed(folder, tmp_path):
    found = checkpoint.load(folder)
    claim = replace(found, data=found.data | {"shape": [1, 2**20, 2**20]})
    checkpoint.save(tmp_path / "checkpoint.safetensors", claim)
    with pytest.raises(SystemExit, match="got 1 x 1048576 x 1048576"):
        main(["export", str(tmp_path)])


def write_images(folder, count, *, size=8):
    """Grey noise, in a folder of one class."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(count)
    for i in range(count):
        Image.fromarray(rng.integers(0, 255, (size, size), dtype=np.uint8)).save(folder / f"{i}.png")


def test_classes_that_were_not_trained_on_are_not_tested_on(tmp_path, capsys):
    people = tmp_path / "people"
    write_images(people, 0)
    rng = np.random.default_rng(0)
    for i in range(10):
        for shot in (0, 1, 5, 6):
            image = Image.fromarray(rng.integers(0, 255, (8, 4, 3), dtype=np.uint8))
            image.save(people / f"{i:03d}_{shot:02d}.png")
    run = ["pretrain", "--data", str(people), "--root", str(tmp_path), *SMALL, "--epochs", "1", "--probe.epochs", "1"]
    out = tmp_path / "run"
    for command in ([*run, "--out", str(out)], ["probe", str(out), "--root", str(tmp_path), "--device", "cpu"]):
        with pytest.raises(SystemExit, match=r"test split of cuhk03 to have the classes .* use `setwise match`"):
            main(command)
        assert (out / "checkpoint.safetensors").exists() == (command[0] == "probe")  # not even begun
        if command[0] == "pretrain":
            main([*run, "--no-evaluate", "--out", str(out)])
    assert records.read(out)["final"] == {}
    main([*run, "--validation", "6", "--out", str(tmp_path / "v")])
    assert "probe accuracy" in capsys.readouterr().out


def test_without_an_evaluation_there_need_not_be_a_test_split(tmp_path):
    write_images(tmp_path / "photos" / "train" / "all", 12)
    run = ["pretrain", str(tmp_path / "photos"), "--device", "cpu", "--epochs", "1", "--batch", "4", "--quiet"]
    main([*run, "--no-evaluate", "--out", str(tmp_path / "run")])
    assert records.read(tmp_path / "run")["data"] == {"name": "photos", "train": 12}
    main([*run, "--out", str(tmp_path / "other")])
    assert records.read(tmp_path / "other")["final"] == {}  # nothing tells one class apart


def test_the_test_folder_of_a_single_class_is_tested_on(tmp_path, capsys):
    for split, count in (("train", 12), ("test", 5)):
        write_images(tmp_path / "photos" / split / "all", count)
    run = ["pretrain", str(tmp_path / "photos"), "--device", "cpu", "--epochs", "1", "--batch", "4"]
    main([*run, "--out", str(tmp_path / "run")])
    record = records.read(tmp_path / "run")
    assert record["data"] == {"name": "photos", "train": 12, "test": 5}
    assert record["final"].keys() == {"view_retrieval_accuracy"}
    assert "5 images to test on: test" in capsys.readouterr().out


def test_a_test_split_may_lack_a_class(tmp_path):
    write_images(tmp_path / "train" / "a", 3)
    write_images(tmp_path / "train" / "b", 3)
    write_images(tmp_path / "test" / "b", 2)
    train_set, test_set = splits(Recipe.read({"data": {"source": str(tmp_path)}}), None)
    check_classes(train_set, test_set)
    assert test_set.labels.tolist() == [1, 1]
    with pytest.raises(ValueError, match="to have the classes of its training split, got others"):
        check_classes(train_set, replace(test_set, classes=("b", "a")))  # labels would mean something else


def test_a_folder_is_not_told_by_its_name(tmp_path):
    data = tmp_path / "tiny-imagenet"
    for split, count in (("train", 4), ("test", 3), ("val", 2)):
        write_images(data / split / "a", count)
    _, test_set = splits(Recipe.read({"data": {"source": str(data)}}), None)
    assert (test_set.split, len(test_set)) == ("test", 3)


def test_export_from_the_command_line(folder, tmp_path, capsys):
    main(["export", str(folder), "--out", str(tmp_path), "--no-onnx"])
    assert "encoder.safetensors" in capsys.readouterr().out
    encoder = load_encoder(tmp_path)
    for name, x in checkpoint.load(folder).encoder_state().items():
        assert torch.equal(encoder.state_dict()[name], x)
    copy = tmp_path / "copy"  # without --out, to the run: two runs do not overwrite each other
    copy.mkdir()
    shutil.copy(folder / "checkpoint.safetensors", copy)
    main(["export", str(copy), "--no-onnx"])
    assert (copy / "encoder" / "encoder.safetensors").exists()


def test_an_export_without_onnx_writes_the_rest_and_says_what_is_missing(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    (tmp_path / "encoder.onnx").write_text("of an earlier export")
    main(["export", str(folder), "--out", str(tmp_path)])
    told = capsys.readouterr()
    assert "encoder.safetensors" in told.out
    assert "pip install onnx onnxruntime onnxscript" in told.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "encoder.safetensors"]


def test_a_probe_of_an_unfinished_run_says_so(folder, tmp_path, capsys):
    found = checkpoint.load(folder)
    earlier = replace(found, epoch=found.epoch - 1, history=found.history[:-1])
    checkpoint.save(tmp_path / "checkpoint.safetensors", earlier)
    runs.probe(tmp_path, device=torch.device("cpu"))
    assert f"the run has not ended: epoch {found.epoch - 1} of {found.epoch}" in capsys.readouterr().err
    runs.probe(folder, device=torch.device("cpu"))
    assert "not ended" not in capsys.readouterr().err


def test_a_run_on_a_folder_is_found_and_checked_from_anywhere(tmp_path, monkeypatch, capsys):
    for split in ("train", "test"):
        for name in ("a", "b"):
            write_images(tmp_path / "photos" / split / name, 6)
    monkeypatch.chdir(tmp_path)
    command = ["pretrain", *SMALL, "--epochs", "1", "--batch", "6", "--out", "run"]
    main([*command, "--data", "photos"])
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert record["recipe"]["data"]["source"] == "photos"
    assert "knn20_accuracy" not in record["final"]  # 12 images have no 20 neighbours
    main([*command, "--data", "photos/", "--resume"])
    monkeypatch.chdir("/")
    main(["probe", str(tmp_path / "run")])
    (tmp_path / "photos").rename(tmp_path / "moved")
    with pytest.raises(
        SystemExit, match=r"a data set at .*photos, got no such .* where it is now; for a run .*--data PATH"
    ):
        main(["probe", str(tmp_path / "run")])
    main(["probe", str(tmp_path / "run"), "--data", str(tmp_path / "moved")])
    (tmp_path / "moved").rename(tmp_path / "photos")
    write_images(tmp_path / "photos" / "train" / "c", 2)
    write_images(tmp_path / "photos" / "test" / "c", 2)
    with pytest.raises(SystemExit, match=r"their count, classes differ\); --data says which"):
        main(["probe", str(tmp_path / "run")])
    main(["probe", str(tmp_path / "run"), "--data", str(tmp_path / "photos")])
    assert capsys.readouterr().out.count("probe accuracy") == 5


def test_data_of_other_channels_are_not_probed_on(folder, tmp_path):
    for split in ("train", "test"):
        write_images(tmp_path / "photos" / split / "a", 4)  # read as colours
    said = rf"expected images of 1 channel, as {folder} was trained on, got 3 \(photos\); give --data .* such images"
    with pytest.raises(SystemExit, match=said):
        main(["probe", str(folder), "--data", str(tmp_path / "photos"), "--device", "cpu"])


def test_a_run_is_evaluated_and_exported_by_the_mean_of_its_weights(tmp_path):
    words = ["--method", "byol", "--term", "gap=0.5", "--ema", "0.9", "--batch", "500", "--evaluation.patches", "2"]
    main(["pretrain", *SMALL, *words, "--out", str(tmp_path)])
    record, found = records.read(tmp_path), checkpoint.load(tmp_path)
    assert set(record["epochs"]) == {"epoch", "loss", "own", "regularizer"}
    encoder = runs.encoder_of(found, tmp_path)
    for name, x in encoder.state_dict().items():
        assert torch.equal(x, found.tensors[f"mean.encoder.{name}"])
    first = "blocks.0.weight"
    assert not torch.equal(encoder.state_dict()[first], found.tensors[f"model.encoder.{first}"])
    known = []
    for split in ("train", "test"):
        one = load("digits", split=split)
        x = [extract(encoder, one, device="cpu", views="patches", view=view) for view in range(2)]
        known += [(x[0] + x[1]) / 2, one.labels]
    expected = knn_accuracy(*known, classes=10)[20]
    assert record["final"]["knn20_accuracy"] == expected
    assert runs.probe(tmp_path, device=torch.device("cpu"), quiet=True)["knn20_accuracy"] == expected
    main(["export", str(tmp_path), "--out", str(tmp_path / "out"), "--no-onnx"])
    assert torch.equal(load_encoder(tmp_path / "out").state_dict()[first], encoder.state_dict()[first])


def test_supervised_and_random_runs(tmp_path):
    name = "released/digits-conv4-supervised"
    main(["pretrain", "--recipe", name, *SMALL, "--epochs", "4", "--out", str(tmp_path / "s")])
    final = records.read(tmp_path / "s")["final"]
    assert final["classifier_accuracy"] > 0.3
    main(
        ["pretrain", "--recipe", "released/digits-conv4-random", *SMALL, "--epochs", "0", "--out", str(tmp_path / "r")]
    )
    record = records.read(tmp_path / "r")
    assert record["epochs"] == {}
    assert "probe_accuracy" in record["final"]
    torch.manual_seed(1)
    fresh = encoders.create("conv4", channels=1)
    state = checkpoint.load(tmp_path / "r").encoder_state()
    assert all(torch.equal(x, state[name]) for name, x in fresh.state_dict().items())


def test_mistakes_are_one_line(tmp_path):
    out = ["--out", str(tmp_path / "x")]
    for words, said in (
        (["pretrain", "--recipe", "paper/digits-conv5-simclr", *out], "did you mean paper/digits-conv4-simclr"),
        (["pretrain", "--method", "rotation", "--term", "qare=1", *out], "expected a method with an objective"),
        (["pretrain", "--data", "cifar11", *out], "did you mean 'cifar10'"),
        (["pretrain", "--device", "gpu", *out], "expected a device such as auto, cpu or cuda, got 'gpu'"),
        (["pretrain", "--device", "meta", *out], "expected a device that this torch can use, got 'meta'"),
        (["probe", str(tmp_path)], "expected a checkpoint at"),
        (["export", str(tmp_path)], "expected a checkpoint at"),
        (["probe", str(tmp_path), "--fine-tune", "--fine-tune-epochs", "0"], "expected fine_tune_epochs to be"),
        (["pretrain", "--split-seed", str(2**70), *out], r"split_seed from 0 to 2\^63 - 1"),
    ):
        with pytest.raises(SystemExit, match=said):
            main(words)
    assert not (tmp_path / "x").exists()
    with pytest.raises(SystemExit, match="expected epochs = 0 for method 'random'"):
        main(["pretrain", "--recipe", "released/digits-conv4-random", "--epochs", "3", *out])
    with pytest.raises(SystemExit, match="out of memory .*; a smaller batch or network needs less"):
        main(["pretrain", "--hidden", str(10**12), "--quiet", "--device", "cpu", *out])


def test_the_command_is_recorded_without_the_machines_paths(monkeypatch):
    words = ["/somewhere/bin/setwise", "pretrain", "photos/train", "--out=/elsewhere/a=b", "--root", "/data/sets"]
    monkeypatch.setattr("sys.argv", words)
    command = environment.environment(torch.device("cpu"))["command"]
    assert command == ["setwise", "pretrain", "photos/train", "--out=a=b", "--root", "sets"]


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_the_commit_is_that_of_the_source(tmp_path, monkeypatch):
    def git(*words):
        who = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false"]
        return subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True).stdout

    def commit(file):
        monkeypatch.setattr(environment, "__file__", str(file))
        return environment.environment(torch.device("cpu"))["commit"]

    folder = tmp_path / "checkout"
    (folder / "room").mkdir(parents=True)
    (folder / "room" / "records.py").write_text("1")
    (folder / "loss.py").write_text("1")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    monkeypatch.delenv("SETWISE_COMMIT", raising=False)
    assert commit(folder / "room" / "records.py") is None, "no checkout"
    monkeypatch.setenv("SETWISE_COMMIT", "0123abc")
    assert commit(folder / "room" / "records.py") == "0123abc"
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "one")
    head = git("rev-parse", "HEAD").strip()
    os.utime(folder / "room" / "records.py", (1, 1))  # which git would note in its index, under a lock
    index = (folder / ".git" / "index").read_bytes()
    assert commit(folder / "room" / "records.py") == head
    assert (folder / ".git" / "index").read_bytes() == index
    (folder / "loss.py").write_text("2")  # in another room of the package
    assert commit(folder / "room" / "records.py") == f"{head}+"
    assert commit(folder / "room" / "installed.py") is None, (
        "a package inside of someone's checkout is not of its commit"
    )
