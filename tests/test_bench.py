"""`setwise bench`: what it measures, counts and writes."""

import json
import time
from types import SimpleNamespace

import pytest
import torch

import setwise.register as register
from setwise.bench import large
from setwise.bench.step import RECIPES
from setwise.cli import main
from setwise.paper.recipes import recipe
from setwise.paper.reproduce import run_steps
from setwise.recipe import Recipe


def test_bench_qare_measures_and_draws(tmp_path):
    main(["bench", "qare", "--device", "cpu", "--sizes", "16", "96", "--seconds", "0.05", "--out", str(tmp_path)])
    record = json.loads((tmp_path / "bench-qare.json").read_text())
    assert [row["n"] for row in record["rows"]] == [16, 96]
    assert all(row["plain_ms"] > 0 and row["dense_term_ms"] > 0 for row in record["rows"])
    assert record["terms"]["ms"]["dense"] > 20 * record["terms"]["ms"]["lowrank"]
    assert record["terms"]["euclidean_top8_relative_error"] < 0.05
    assert (tmp_path / "bench-qare.html").read_text().count('<svg viewBox="0 0 400') == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("qare --sizes 0", "expected batch sizes of at least 1, got .0"),
        ("qare --sizes", "expected batch sizes of at least 1, got"),
        ("qare --out FILE", "expected to use .*file"),
        ("step --out FILE", "expected to use .*file"),
        ("step --concurrent 0", "expected concurrent to be"),
    ],
)
def test_bench_says_before_it_measures_what_it_cannot(tmp_path, words, message):
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit, match=message):
        main(["bench", *words.replace("FILE", str(tmp_path / "file")).split(), "--device", "cpu"])


def test_runs_an_hour_are_of_the_recipes_steps():
    steps = {name: run_steps(recipe(found)) for name, found in RECIPES.items()}
    assert steps["conv4"] == 200 * 391
    assert steps["resnet18"] == 1000 * 97  # of 512, the last 336 images left out
    assert steps["matching"] == 50 * 8  # 1,026 of 1,467 halves are for training


def test_bench_step_measures_a_step_with_and_without_qare(tmp_path, capsys, monkeypatch):
    # A processor's time, of which others take nothing: a busy machine gives each stretch another share.
    monkeypatch.setattr("setwise.bench.step.time", SimpleNamespace(perf_counter=time.process_time))
    command = ["bench", "step", "--encoders", "conv4", "--device", "cpu", "--seconds", "0.05", "--no-compare"]
    main([*command, "--out", str(tmp_path)])
    row = json.loads((tmp_path / "bench-step.json").read_text())["encoders"]["conv4"]
    assert row["recipe"] == "paper/cifar10-conv4-simclr-qare"
    assert 0 < 0.3 * row["without_qare_ms"] < row["setwise_ms"] < 3 * row["without_qare_ms"]
    assert row["epoch_seconds"] > 0.3 * 391 * row["setwise_ms"] / 1e3
    assert "an epoch" in " ".join(capsys.readouterr().out.split())


def test_bench_step_measures_other_methods(tmp_path, monkeypatch):
    met = []
    monkeypatch.setattr("setwise.bench.step.epoch_seconds", lambda recipe, data, device: met.append(recipe) or 0.5)
    monkeypatch.setattr("setwise.bench.step.our_steps", lambda *given: [1.0])
    command = ["bench", "step", "--encoders", "conv4", "matching", "--device", "cpu", "--seconds", "0", "--methods"]
    main([*command, "--no-compare", "--out", str(tmp_path)])
    rows = json.loads((tmp_path / "bench-step.json").read_text())["encoders"]
    methods = ["supervised", "rotation", "deepcluster", "deepinfomax"]
    assert rows["conv4"]["methods"] == {f"paper/cifar10-conv4-{name}": 0.5 * 50_000 / 2000 for name in methods}
    assert rows["matching"]["methods"] == {}
    assert [it.method.name for it in met] == ["contrastive", *methods, "matching"]


def test_bench_step_counts_images_and_operations_of_large_networks(tmp_path, monkeypatch, capsys, registries):
    class Flat(torch.nn.Linear):
        features = 5

        def __init__(self, channels):
            super().__init__(channels * 16 * 16, 5, bias=False)

        def forward(self, images):
            return super().forward(images.flatten(1))

    register.encoder("flat", about="A test's.")(Flat)
    recipe = Recipe.read({"encoder": "flat", "batch": 8, "head": {"hidden": 4, "out": 3}, "objective": "nt-xent"})
    monkeypatch.setattr("setwise.bench.large.RECIPES", {"vit-s16": recipe})
    monkeypatch.setattr("setwise.bench.large.IMAGES", 24)
    monkeypatch.setattr("setwise.bench.large.SIZE", 16)
    monkeypatch.setattr("setwise.bench.large.peak", lambda device: 1e9)
    met = []

    def ours(recipe, data, device, seconds, *, compile=False):
        met.append((recipe.parts, compile, tuple(data.images.shape)))
        return [2.0]

    monkeypatch.setattr("setwise.bench.step.our_steps", ours)
    command = ["bench", "step", "--encoders", "vit-s16", "--device", "cpu", "--seconds", "0.05", "--no-compare"]
    main([*command, "--out", str(tmp_path)])
    record = json.loads((tmp_path / "bench-step.json").read_text())
    found = record["large"]["vit-s16"]
    assert record["encoders"] == {}
    assert met == [(1, False, (24, 3, 16, 16)), (1, True, (24, 3, 16, 16)), (4, True, (24, 3, 16, 16))]
    forward = 2 * (768 * 5 + 5 * 4 + 4 * 3)  # a multiplication and an addition for each weight
    assert found["step_flops"] == 16 * 3 * forward
    row = found["ways"]["setwise, compiled"]
    assert row["images_per_second"] == 4000, "images, not views"
    assert row["share_of_peak"] == pytest.approx(16 * 3 * forward / 2e-3 / 1e9)
    plain = found["ways"]["plain torch, nothing loaded"]
    assert 0 < plain["ms"] < 1000
    assert len(found["ways"]) == 4
    assert "4,000" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "peak"),
    [("NVIDIA H200", 989e12), ("NVIDIA A100-SXM4-80GB", 312e12), ("NVIDIA H100 PCIe", None), ("Tesla T4", None)],
)
def test_only_known_devices_have_a_peak(monkeypatch, name, peak):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    assert large.peak(torch.device("cuda")) == peak
    assert large.peak(torch.device("cpu")) is None
