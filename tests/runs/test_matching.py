"""Instance matching from a recipe to its record and page: CUHK-03's own files, halves, resuming."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from scipy.optimize import linear_sum_assignment

import setwise.records as records
import setwise.runs as runs
from setwise import methods
from setwise.cli import main
from setwise.data import load_matched, split_sizes
from setwise.evaluation import load_encoder
from setwise.paper.recipes import recipe as find
from setwise.recipe import Recipe
from setwise.runs import matching
from setwise.training import checkpoint
from setwise.training.engine import Engine
from setwise.training.loop import RunOptions

CPU = torch.device("cpu")
QUICK = ["--device", "cpu", "--quiet"]


def test_cuhk03_from_its_file_to_the_page(tmp_path, write_mat):
    source = tmp_path / "cuhk-03.mat"
    rng = np.random.default_rng(0)
    people = rng.integers(0, 255, (5, 8, 10, 48, 20, 3), dtype=np.uint8)  # 8 before each of 5 pairs of cameras
    write_mat(source, {"labeled": [[list(shots) for shots in pair] for pair in people]})
    words = ["--recipe", "paper/cuhk03-matching-infonce-qare", "--data", str(source), "--root", str(tmp_path / "cache")]
    main(["match", *words, "--epochs", "2", "--batch", "12", *QUICK, "--out", str(tmp_path / "run")])
    record = records.read(tmp_path / "run")
    assert record["data"] == {"name": "cuhk03", "train": 28, "val": 6, "test": 6, "held_out_sets": 0}
    assert record["epochs"]["epoch"] == [1, 2]
    assert {"test_accuracy", "quadratic_test_accuracy", "rank1", "mean_average_precision"} <= set(record["final"])
    page = (tmp_path / "run" / "index.html").read_text()
    assert page.count("data:image/png;base64,") >= 3
    assert "://" not in page


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("matching") / "run"
    words = ["--recipe", "paper/digits-matching-infonce-qare", "--instances", "400", "--epochs", "6", "--batch", "64"]
    main(["match", *words, *QUICK, "--out", str(folder), "--seed", "2"])
    return folder


def test_the_best_epoch_is_chosen_by_validation_and_its_weights_are_kept(run):
    record = records.read(run)
    values, final = record["epochs"]["val_accuracy"], record["final"]
    assert final["best_epoch"] == 1 + values.index(max(values))
    assert final["val_accuracy"] == pytest.approx(max(values), rel=1e-5)
    assert final["test_accuracy"] > 0.05  # of 60; guessing gets 1.7 %
    assert record["data"] == {"name": "digits-halves", "train": 280, "val": 60, "test": 60, "held_out_sets": 8}
    assert 0 < final["held_out_accuracy"] <= 1


def test_the_test_accuracy_by_other_means(run):
    """Embeddings by hand from the kept weights, scipy's assignment of numpy's distances."""
    recipe = Recipe.read(records.read(run)["recipe"])
    data = load_matched("digits", split="test", seed=0, instances=400)
    method = methods.create(recipe, data)
    method.load_state_dict(load_file(run / matching.BEST))
    method.eval()
    z = []
    for images in (data.first_a, data.first_b):
        x = (images / 255 - torch.tensor(data.mean).view(-1, 1, 1)) / torch.tensor(data.std).view(-1, 1, 1)
        with torch.no_grad():
            features = method.project(method.encoder(x)).double().numpy()
        z.append(features / np.linalg.norm(features, axis=1, keepdims=True))
    distances = np.linalg.norm(z[0][:, None] - z[1][None], axis=2)
    columns = linear_sum_assignment(distances)[1]
    assert records.read(run)["final"]["test_accuracy"] == pytest.approx((columns == np.arange(60)).mean())
    ranks = (distances <= np.diag(distances)[:, None]).sum(1)
    assert records.read(run)["final"]["rank5"] == pytest.approx((ranks <= 5).mean())


def test_a_stopped_run_ends_like_a_whole_one(run, tmp_path, monkeypatch):
    recipe = Recipe.read(records.read(run)["recipe"])
    data = matching.matching_data(recipe, None)
    original = matching.match
    calls = 0

    def stop(*arguments, **options):
        nonlocal calls
        calls += 1
        if calls == 4:
            raise KeyboardInterrupt
        return original(*arguments, **options)

    assert len(data.train) == 280
    monkeypatch.setattr(matching, "match", stop)
    with pytest.raises(KeyboardInterrupt):
        matching.run_matching(
            recipe, tmp_path, name="x", seed=2, how=RunOptions(CPU, quiet=True, checkpoint_seconds=0.0)
        )
    monkeypatch.setattr(matching, "match", original)
    record = matching.run_matching(recipe, tmp_path, name="x", seed=2, how=RunOptions(CPU, quiet=True, resume=True))
    assert record["final"] == records.read(run)["final"]


def test_export_and_probe_take_the_chosen_epoch(run, tmp_path):
    found = checkpoint.load(run)
    last = {name: x + 1 for name, x in found.tensors.items() if name.startswith("model.encoder.")}
    assert last
    checkpoint.save(tmp_path / "checkpoint.safetensors", replace(found, tensors=found.tensors | last))
    main(["export", str(tmp_path), "--out", str(tmp_path / "out"), "--no-onnx"])
    best = {
        name.removeprefix("encoder."): x
        for name, x in load_file(run / matching.BEST).items()
        if name.startswith("encoder.")
    }
    probed = runs.encoder_of(checkpoint.load(tmp_path), tmp_path)
    for encoder in (load_encoder(tmp_path / "out"), probed):
        assert encoder.state_dict().keys() == best.keys()
        assert all(torch.equal(x, best[name]) for name, x in encoder.state_dict().items())
    assert runs.probe(tmp_path, device=CPU)["probe_accuracy"] == runs.probe(run, device=CPU)["probe_accuracy"]


SMALL = ["match", "--recipe", "paper/digits-matching-infonce-qare", *QUICK, "--batch", "2"]


@pytest.mark.parametrize("instances", range(1, matching.LEAST))
def test_too_few_identities_are_refused_before_training(tmp_path, instances):
    said = rf"expected at least 6 identities in digits, .* got {instances}; give more images, or a larger --instances"
    with pytest.raises(SystemExit, match=said):
        main([*SMALL, "--instances", str(instances), "--epochs", "1", "--out", str(tmp_path / "run")])
    assert not (tmp_path / "run").exists()


def test_six_identities_are_enough(tmp_path):
    assert all(all(split_sizes(n)) == (n >= matching.LEAST) for n in range(2000))
    main([*SMALL, "--instances", "6", "--epochs", "1", "--out", str(tmp_path)])

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    record = json.loads((tmp_path / records.FILE).read_text(), parse_constant=refuse)
    assert record["data"] == {"name": "digits-halves", "train": 4, "val": 1, "test": 1, "held_out_sets": 20}
    assert record["final"]["margin"] is None  # of one identity there is no second-best assignment
    assert record["final"]["test_accuracy"] == 1


def test_no_epochs_measure_the_untrained_encoder(tmp_path, capsys):
    main([*SMALL, "--no-quiet", "--instances", "100", "--epochs", "0", "--out", str(tmp_path), "--seed", "3"])
    assert "digits-halves: 70 / 15 / 15 items" in capsys.readouterr().out
    record = records.read(tmp_path)
    assert (record["epochs"], record["final"]["best_epoch"]) == ({}, 0)
    recipe = Recipe.read(record["recipe"])
    data = matching.matching_data(recipe, None)
    found = matching.match(*matching.embed(matching.untrained(recipe, data.train, 3), data.test, CPU))
    assert record["final"]["rank10"] == found.rank[10]
    assert record["final"]["test_accuracy"] == found.accuracy
    assert (tmp_path / "index.html").exists()


@pytest.mark.parametrize("name", ["photos", "cuhk03-or-so"])
@pytest.mark.parametrize(
    ("splits", "held_out"), [({"train": 20}, 0), ({"train": 20, "test": 7}, 2), ({"train": 20, "val": 10}, 3)]
)
def test_held_out_sets_are_those_of_the_folder_whatever_its_name(tmp_path, name, splits, held_out):
    source = tmp_path / name
    rng = np.random.default_rng(0)
    for split, count in splits.items():
        (source / split / "a").mkdir(parents=True)
        for i in range(count):
            Image.fromarray(rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(source / split / "a" / f"{i}.png")
    recipe = find("paper/cifar10-matching-infonce").changed({"data": str(source), "instances": None})
    data = matching.matching_data(recipe, None)
    assert [len(one) for one in data.held_out] == [len(data.test)] * held_out


def test_a_damaged_test_folder_is_not_taken_for_none(tmp_path):
    for split in ("train", "test"):
        (tmp_path / split / "a").mkdir(parents=True)
    for i in range(6):
        Image.new("RGB", (8, 8)).save(tmp_path / "train" / "a" / f"{i}.png")
    recipe = find("paper/cifar10-matching-infonce").changed({"data": str(tmp_path), "instances": None})
    with pytest.raises(ValueError, match="expected images as .*test"):
        matching.matching_data(recipe, None)


def test_commands_and_recipes_fit(tmp_path):
    with pytest.raises(SystemExit, match=r"expected a recipe for `setwise pretrain`, got method 'matching'"):
        main(["pretrain", "--recipe", "paper/digits-matching-infonce", "--out", str(tmp_path)])
    with pytest.raises(SystemExit, match=r"expected a recipe for `setwise match`, got method 'contrastive'"):
        main(["match", "--recipe", "paper/digits-conv4-simclr", "--out", str(tmp_path)])


def test_of_equal_epochs_the_first_is_kept(tmp_path, monkeypatch):
    kept, keep = [], Engine.keep
    monkeypatch.setattr(matching, "matching_accuracy", lambda *pair: 0.5)
    monkeypatch.setattr(Engine, "keep", lambda engine: (kept.append(engine.epoch + 1), keep(engine)))
    recipe = find("paper/digits-matching-infonce").changed({"epochs": 2, "batch": 32, "instances": 100})
    record = matching.run_matching(recipe, tmp_path, name="x", seed=1, how=RunOptions(CPU, quiet=True))
    assert kept == [record["final"]["best_epoch"]] == [1]
