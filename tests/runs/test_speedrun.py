"""Runs under the clock: what it counts, which images are read when, what is written, and ten neighbours."""

import json
import time
import tomllib

import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier

import setwise.records as records
from setwise import runs
from setwise.cli import main
from setwise.data import load
from setwise.evaluation import extract
from setwise.paper.recipes import recipe as named
from setwise.recipe import Recipe
from setwise.report.speedrun import MARKS, speedrun_chart, speedrun_tables
from setwise.runs import speedrun
from setwise.training import checkpoint
from setwise.training.engine import Engine
from setwise.training.loop import RunOptions

CPU = torch.device("cpu")
HOW = RunOptions(CPU, quiet=True)
QUICK = {"epochs": 2, "probe.epochs": 1, "warmup": 0}
SMALL = named("speedrun/digits-resnet8").changed(QUICK)


@pytest.fixture
def splits(monkeypatch):
    """Which splits are read, among which epochs."""
    seen = []

    def reading(*args, split, **options):
        seen.append(split)
        return load(*args, split=split, **options)

    means = Engine.means

    def ended(self):
        if self.step_in_epoch == self.steps:
            seen.append(f"epoch {self.epoch + 1}")
        return means(self)

    monkeypatch.setattr(speedrun, "load", reading)
    monkeypatch.setattr(Engine, "means", ended)
    return seen


def test_for_choosing_the_test_images_are_not_read(tmp_path, splits):
    record = runs.timed_run(SMALL, tmp_path, name="mine", seed=1, how=HOW)
    assert "test" not in splits
    assert record["data"] == {"name": "digits", "train": 1168, "test": 129}
    assert record["recipe"]["data"]["validation"] == 129
    assert record["speedrun"]["images"] == "validation"
    assert records.read(tmp_path) == json.loads(json.dumps(record))
    plain = SMALL.changed({"data.validation": 129})
    runs.pretrain(plain, tmp_path / "plain", name="mine", seed=1, how=HOW)
    ours, theirs = (checkpoint.load(place).tensors for place in (tmp_path, tmp_path / "plain"))
    assert all(torch.equal(x, theirs[key]) for key, x in ours.items()), "a run is a run"
    final = records.read(tmp_path / "plain")["final"]
    assert {key: record["final"][key] for key in final} == final


def test_a_recipe_of_few_images_trains_on_these_alone(tmp_path):
    record = runs.timed_run(SMALL.changed({"data.instances": 200}), tmp_path, name="mine", seed=1, how=HOW)
    assert record["data"] == {"name": "digits", "train": 200, "test": 129}


def test_the_test_images_are_read_when_the_weights_are_final_and_ten_neighbours_are_scikit_learns(tmp_path, splits):
    record = runs.timed_run(SMALL, tmp_path, name="mine", seed=1, how=HOW, test=True)
    assert splits[0] == "train"
    assert splits.index("test") > splits.index("epoch 2")
    encoder = runs.encoder_of(checkpoint.load(tmp_path), tmp_path).eval()
    train, test = (load("digits", split=split) for split in ("train", "test"))
    train_x, test_x = (extract(encoder, one, device="cpu").double().numpy() for one in (train, test))
    reference = KNeighborsClassifier(n_neighbors=10, metric="cosine").fit(train_x, train.labels.numpy())
    assert record["speedrun"]["knn10"] == reference.score(test_x, test.labels.numpy()) > 0.5
    assert record["final"]["knn10_accuracy"] == record["speedrun"]["knn10"]


def test_the_clock_counts_data_network_kernels_and_training_and_no_evaluation(tmp_path, monkeypatch):
    def slow(place, name, seconds):
        plain = getattr(place, name)

        def wait(*args, **options):
            time.sleep(seconds)
            return plain(*args, **options)

        monkeypatch.setattr(place, name, wait)

    slow(speedrun, "load", 0.3)
    slow(Engine, "_prepare", 0.4)
    slow(Engine, "begin", 0.25)  # of each of two epochs
    slow(speedrun, "evaluate_encoder", 0.5)
    slow(speedrun, "training_operations", 0.5)
    began = time.perf_counter()
    record = runs.timed_run(SMALL, tmp_path, name="mine", seed=1, how=HOW)
    whole, clock = time.perf_counter() - began, record["speedrun"]["clock"]
    assert clock["seconds"] == pytest.approx(sum(clock[part] for part in ("data", "network", "kernels", "training")))
    assert clock["data"] >= 0.3
    assert clock["kernels"] >= 0.4
    assert clock["training"] >= 0.5
    assert clock["network"] >= 0
    assert clock["seconds"] <= whole - 1.0
    assert record["final"]["minutes"] == clock["seconds"] / 60
    assert record["final"]["pflop"] > 0


def test_a_command_makes_records_that_the_report_shows_and_looks_at_test_images_once(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ideas.py").write_text("import setwise as sw\n")
    words = ["--change", "epochs=1", "warmup=0", "probe.epochs=1", "--results", "results", "--use", "ideas.py"]
    command = [
        "speedrun",
        "--recipe",
        "speedrun/digits-resnet8",
        "--test",
        "--seeds",
        "1,2",
        "--target",
        "0.05",
        *words,
    ]
    stopped = tmp_path / "runs" / "speedrun" / "digits-resnet8" / "test" / "seed-1" / "checkpoint.safetensors"
    stopped.parent.mkdir(parents=True)
    stopped.write_text("of a run that was stopped: it begins anew")
    main(command)
    said = capsys.readouterr().out
    place = tmp_path / "results" / "speedrun" / "digits-resnet8" / "test"
    assert sorted(path.name for path in place.iterdir()) == ["ideas.py", "recipe.toml", "seed-1.json", "seed-2.json"]
    found = records.read(place / "seed-2.json")
    assert f"seed 2: {100 * found['speedrun']['knn10']:.2f} % by 10 neighbours on test images" in said
    assert "mean of 2 seeds, of the 10 that make a record" in said
    assert "at or above the target of 5.0 %" in said
    written = Recipe.read(tomllib.loads((place / "recipe.toml").read_text()))
    assert written == records.recipe_of(found)
    with pytest.raises(SystemExit, match="got one: the test images are looked at once; give another --name or --out"):
        main(command)
    main(["report", "results", "--out", "page"])
    table = (tmp_path / "page" / "speedrun.md").read_text()
    assert "| speedrun/digits-resnet8 (changed) | test | 2 |" in table
    assert "yes, with 2 of 10 seeds" in table
    assert "Runs under the clock" in (tmp_path / "page" / "index.html").read_text()


@pytest.mark.parametrize(("words", "terms"), [(["qare=0.25", "gap"], {"qare": 0.25, "gap": 1.0}), ([], {})])
def test_terms_are_given_as_for_other_commands(tmp_path, monkeypatch, words, terms):
    monkeypatch.chdir(tmp_path)
    change = ["--change", "epochs=1", "warmup=0", "probe.epochs=1", "data.instances=60", "batch=30"]
    main(["speedrun", "--recipe", "speedrun/digits-resnet8", *change, *(["--term", *words] if words else [])])
    record = records.read(tmp_path / "runs" / "speedrun" / "digits-resnet8" / "validation" / "seed-1")
    assert {one["term"]: one["weight"] for one in record["recipe"]["objective"]["terms"]} == terms


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--test", "--validation"], "expected --validation or --test, got both"),
        (["--change", "epochs"], "expected --change FIELD=VALUE, got 'epochs'"),
        (["--change", "epochs=0", "warmup=0"], "expected a recipe that trains an encoder .* of 0 epochs"),
        (["--change", "method=supervised"], "without their labels, got method 'supervised'"),
        (["--change", "data.validation=7"], "expected a recipe without data.validation, which --validation sets"),
    ],
)
def test_what_is_no_speed_record_is_refused(tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=message):
        main(["speedrun", "--recipe", "speedrun/digits-resnet8", *words])


def fake(seed, knn10, seconds, *, images="test", name="a"):
    clock = {"seconds": seconds, "data": 1.0, "network": 1.0, "kernels": 30.0, "training": seconds - 32.0}
    part = {"images": images, "target": 0.9, "clock": clock, "pflop": 50.0, "gpu": "a GPU", "knn10": knn10}
    record = {
        "name": name,
        "recipe": SMALL.tree(),
        "seed": seed,
        "final": {"knn10_accuracy": knn10},
        "commit": 40 * "a",
    }
    return records.Run.of(f"{name}/seed-{seed}.json", record | {"speedrun": part})


def test_the_table_and_the_picture_are_of_the_records():
    assert speedrun_tables([]) == []
    picture = speedrun_chart([])
    assert all(mark.name in picture for mark in MARKS)
    ten = [fake(seed, 0.9 + 0.002 * (seed % 2), 240.0) for seed in range(1, 11)]
    other = fake(1, 0.895, 180.0, images="validation", name="b")
    (table,) = speedrun_tables([*ten, other])
    text = table.markdown()
    assert [row[:3] for row in table.rows] == [["b", "validation", 1], ["a", "test", 10]], "the fastest first"
    assert "| a | test | 10 | 90.10 ± 0.11 | yes | 4.00 ± 0.00 | 3.50 ± 0.00 |" in text
    assert "| b | validation | 1 | 89.50 | no, with 1 of 10 seeds | 3.00 | 2.50 |" in text
    picture = speedrun_chart([*ten, other])
    assert "a, a GPU, n = 10" in picture
    assert 'data-v="4,90.1"' in picture
    assert "b, a GPU" not in picture, "validation images are no mark"
    assert "mean of 10 seeds: 90.10 % in 4.00 minutes" in speedrun.summary([run.record for run in ten])
    broken = fake(1, 0.9, 240.0)
    broken.record["speedrun"]["clock"] = None
    assert speedrun_tables([broken]) == []
