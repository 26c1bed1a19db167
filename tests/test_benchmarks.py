"""Scripts in benchmarks/ that will run on a GPU: here at a tiny size, so that nothing is wasted there."""

import importlib.util
import json
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from PIL import Image

from setwise.bench.step import images
from setwise.data import load
from setwise.kernels import conv
from setwise.kernels import views as view_kernels
from setwise.paper import reproduce
from setwise.paper.recipes import recipe
from setwise.recipe import to_toml
from setwise.training.operations import training_operations

ROOT = Path(__file__).parent.parent
CPU = torch.device("cpu")


@pytest.fixture
def script(monkeypatch):
    """Imports a script by its name."""

    def load(name):
        specification = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
        module = importlib.util.module_from_spec(specification)
        monkeypatch.setitem(sys.modules, name, module)
        specification.loader.exec_module(module)
        return module

    return load


def test_every_way_of_a_step_is_a_recipe_and_switches_what_it_says(script):
    steps = script("resnet18_step")
    assert len({way.name for way in steps.WAYS}) == len(steps.WAYS)
    for way in steps.WAYS:
        it = steps.recipe_of(way, "resnet18")
        assert (it.batch, it.views["size"]) == (way.batch, way.size and (way.size, way.size))
        assert bool(it.objective.terms) == way.qare
        with steps.kernels_of(way):
            assert (conv.usable is view_kernels.usable) == (way.kernels == way.view_kernel)
    with steps.kernels_of(steps.Way("none", kernels=False, view_kernel=False)):
        assert conv.usable(torch.zeros(1)) is view_kernels.usable(torch.zeros(1)) is False


def test_ways_of_a_step_are_measured_and_failures_are_told(script):
    steps, data = script("resnet18_step"), images(8, 8)
    options = {"seconds": 0, "encoder": "resnet8", "backend": "eager"}
    ways = ("as setwise pretrain", "SGD not fused")
    for way in (replace(way, batch=4) for way in steps.WAYS if way.name in ways):
        row = steps.measure(way, data, CPU, **options)
        assert "failed" not in row, row
        operations = training_operations(steps.recipe_of(way, "resnet8"), data) / 2  # of two batches
        assert row["tflop_per_second"] * 1e12 * row["ms"] / 1e3 == pytest.approx(operations)
        assert way.name in steps.shown(row)
    row = steps.measure(steps.Way("too many", batch=16), data, CPU, **options)
    assert "IndexError" in row["failed"]
    assert "failed: IndexError" in steps.shown(row)


def test_ways_that_are_measured_are_kept_and_each_visit_measures_the_first(script, tmp_path, monkeypatch):
    steps, out = script("resnet18_step"), tmp_path / "ways.json"
    seen = []
    monkeypatch.setattr(steps, "measure", lambda way, *_, **__: (seen.append(way.name), {"name": way.name})[1])
    monkeypatch.setattr(steps, "shown", lambda row: row["name"])
    first, rest = steps.WAYS[0].name, [way.name for way in steps.WAYS[1:]]
    options = ["--device", "cpu", "--out", str(out)]
    steps.main([*options, "--only", rest[0]])
    assert seen == [name for name in rest if rest[0] in name]
    seen.clear()
    steps.main(options)
    record = json.loads(out.read_text())
    assert seen[0] == first
    assert set(seen) == {way.name for way in steps.WAYS} - {name for name in rest if rest[0] in name}
    assert [row["visit"] for row in record["ways"]] == sorted(row["visit"] for row in record["ways"])
    assert {row["visit"] for row in record["ways"] if row["name"] in seen} == {2}
    assert len(record["visits"]) == 2
    seen.clear()
    steps.main(options)
    assert not seen


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # of torch's own compiler
def test_a_compiled_step_computes_what_a_plain_one_does(script):
    steps, data = script("resnet18_step"), images(8, 8)
    losses = {}
    for compiled in ("", "encoder", "later"):
        way = steps.Way("one", batch=4, compile=compiled)
        with pytest.MonkeyPatch.context() as patch:
            seen = losses.setdefault(compiled, [])
            plain = torch.Tensor.backward
            patch.setattr(torch.Tensor, "backward", lambda x, plain=plain, seen=seen: (seen.append(x.item()), plain(x)))
            step = steps.step_of(way, steps.recipe_of(way, "resnet8"), data, CPU, "eager")
            for _ in range(2):
                step()
    assert losses["encoder"] == pytest.approx(losses[""], rel=1e-4)
    assert losses["later"] == pytest.approx(losses[""], rel=1e-4)
    assert len(set(losses[""])) == 2


def test_a_start_tells_when_it_passed_what(script, tmp_path):
    for name, image in zip("abcdefgh", images(8, 16).images, strict=True):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(tmp_path / f"{name}.png")
    options = ["start", str(tmp_path), "--again", "0", "--device", "cpu", "--out", str(tmp_path / "start.json")]
    starts = script("start")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", options)
        starts.main()
    found = json.loads((tmp_path / "start.json").read_text())
    assert found["files"] == 8
    times = found["first"]
    assert list(times) == ["torch", "setwise", "device", "listed", "read", "network", "prepared", "step"]
    assert sorted(times.values()) == list(times.values())


def test_a_folder_of_jpegs_is_made(script, tmp_path):
    starts = script("start")
    for k in range(starts.CLASSES):
        (tmp_path / f"class-{k}").mkdir()
    for number in (0, 1, 11):
        starts.write(tmp_path, number)
    files = sorted(tmp_path.rglob("*.jpg"))
    assert [file.parent.name for file in files] == ["class-0", "class-1", "class-1"]
    assert len({file.read_bytes() for file in files}) == 3
    for file in files:
        with Image.open(file) as image:
            assert (image.format, image.size, image.mode) == ("JPEG", (starts.SIDE, starts.SIDE), "RGB")


def test_trials_are_recipes_around_the_first_that_differ_in_all_that_counts(script):
    search = script("speedrun_search")
    start = recipe("speedrun/cifar10")
    assert search.tried(start, 1) == start
    made = [search.tried(start, number) for number in range(2, 66)]
    assert made[:9] == [search.tried(start, number) for number in range(2, 11)]
    for part in ("batch", "method", "views", "optimizer", "objective", "encoder", "head"):
        assert len({repr(getattr(it, part)) for it in made}) > 2, part
    assert {it.views["size"] for it in made} == {(14, 14), (16, 16), (18, 18)}
    assert {it.encoder["widths"] for it in made} == {(96, 288, 384), (128, 384, 512), (160, 480, 640)}
    assert {it.batch * it.method["views"] for it in made} == {1024, 2048, 4096}
    rates = [it.optimizer["lr"] / (it.batch * it.method["views"] / 2048) ** 0.5 / start.optimizer["lr"] for it in made]
    assert 0.4 <= min(rates) + 0.02 < 0.5
    assert 2 < max(rates) - 0.02 <= 2.5
    assert search.tried(recipe("speedrun/digits-resnet8"), 5).views["size"] is None, "crops stay crops"


def test_trials_cost_alike(script):
    search = script("speedrun_search")
    start, data = recipe("speedrun/digits-resnet8"), load("digits")
    wanted = training_operations(start.changed({"epochs": 40}), data) / search.PFLOP
    for number in (1, 2, 3, 4):
        trial = search.costing(wanted, search.tried(start.changed({"epochs": 60}), number), data)
        assert training_operations(trial, data) / search.PFLOP == pytest.approx(wanted, rel=0.05)
        assert 8 < trial.epochs < 120, "of eight views a quarter"


def test_the_frontier_has_what_no_cheaper_trial_beats(script):
    search = script("speedrun_search")
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randint(0, 8, (40, 2), generator=generator).tolist()
    trials = [search.Trial(i, float(a), float(cost), 1.0) for i, (a, cost) in enumerate(numbers)]
    kept = search.frontier(trials)
    for trial in trials:
        beaten = any(o.pflop <= trial.pflop and o.accuracy >= trial.accuracy and o[1:3] != trial[1:3] for o in trials)
        assert beaten == (trial[1:3] not in [one[1:3] for one in kept]), trial
    assert all(a.pflop < b.pflop and a.accuracy < b.accuracy for a, b in pairwise(kept))


def test_a_search_goes_on_where_it_was_and_stops_in_time(script, tmp_path, monkeypatch, capsys):
    search = script("speedrun_search")
    small = recipe("speedrun/digits-resnet8").changed({"epochs": 1, "warmup": 0, "probe.epochs": 1})
    monkeypatch.chdir(tmp_path)
    Path("small.toml").write_text(to_toml(small.tree()))
    options = ["--recipe", "small.toml", "--results", "found", "--device", "cpu", "--pflop", "1e-6"]
    first = search.main([*options, "--trials", "1"])
    assert [trial.number for trial in first] == [1]
    assert "trial 1: " in capsys.readouterr().out
    tried, plain = [], reproduce.record_of
    monkeypatch.setattr(reproduce, "record_of", lambda job, *rest: (tried.append(job.variant), plain(job, *rest))[1])
    assert [trial.number for trial in search.main([*options, "--trials", "2"])] == [1, 2]
    assert tried == ["1e-06-pflop-trial-002"], "none is made twice"
    found = search.main([*options, "--trials", "40", "--minutes", "0.01"])
    assert 2 <= len(found) < 40
    assert "of 40 trials" in capsys.readouterr().out
    assert not list(Path("found").rglob("*.failed"))


def test_kernels_are_told_apart_by_their_names(script):
    kernels = script("step_kernels")
    for name, kind in (
        ("sm90_xmma_dgrad_implicit_gemm_bf16bf16_bf16f32", "convolutions"),
        ("void convolve_common_engine_float_NHWC<__nv_bfloat16", "convolutions"),
        ("triton_poi_fused_add_convolution_backward_native_batch_norm_backward_29", "compiled: norms"),
        ("nvjet_sm90_tst_64x48_64x15_2x4_h_bx_NNT", "matrix products"),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_nt_align1>", "matrix products"),
        ("memcpy32_post", "copies"),
        ("void at::native::(anonymous namespace)::lerp_scalar_kernel(at::TensorIteratorBase&", "torch's elementwise"),
        ("row_losses", "ours"),
    ):
        assert kernels.kind_of(name).startswith(kind), name
    found = kernels.by_kind([("nvjet_a", 40.0, 2), ("nvjet_b", 8.0, 4), ("eigh", 300.0, 2)], steps=2)
    assert found["kinds"] == {
        kernels.OURS: {"ms": 0.15, "launches": 1.0},
        "matrix products": {"ms": pytest.approx(0.024), "launches": 3.0},
    }
    assert found["small"] == {"ms": 0.004, "launches": 2.0}


def test_a_step_is_seen_in_parts(script, tmp_path, capsys, monkeypatch):
    kernels, out = script("step_kernels"), tmp_path / "steps.json"
    monkeypatch.setattr(kernels, "COUNT", 256)
    words = ["--device", "cpu", "--steps", "2", "--out", str(out)]
    kernels.main(["paper/cifar10-conv4-simclr", *words])
    kernels.main(["paper/cifar10-conv4-simclr-qare", *words])
    steps = json.loads(out.read_text())["steps"]
    assert list(steps) == ["paper/cifar10-conv4-simclr", "paper/cifar10-conv4-simclr-qare"]
    for step in steps.values():
        assert step["kinds"]["convolutions"]["launches"] >= 8, "four layers, forwards and backwards"
        assert 0 < sum(kind["ms"] for kind in step["kinds"].values()) < 20 * step["ms"]
    assert "launches below" in capsys.readouterr().out
