"""What a table expands to, and the time that it takes."""

import json
from pathlib import Path

import pytest
import torch

from setwise.data import load
from setwise.paper.jobs import expand
from setwise.paper.objectives import preset_of, weight_of
from setwise.paper.recipes import recipe as find
from setwise.paper.reproduce import IMAGES, estimate, listing, reproduce
from setwise.recipe import flat
from setwise.runs.pretraining import splits

CPU = torch.device("cpu")


def test_table_1_has_all_rows_and_more_seeds_of_infonce():
    jobs = expand("table1", data="cifar10", seeds=(1, 2, 3))
    names = {job.name for job in jobs}
    for loss in ("triplet", "infonce", "nt-logistic", "sparseclr"):
        for name in (f"paper/cifar10-matching-{loss}", f"paper/cifar10-matching-{loss}-qare"):
            assert sorted(job.seed for job in jobs if job.name == name) == list(
                range(1, 11 if loss == "infonce" else 4)
            )
        assert f"setwise/cifar10-matching-{loss}-gap" in names
        assert f"setwise/cifar10-matching-{loss}-control" in names
    assert len({job.record(Path("x")) for job in jobs}) == len(jobs)
    assert {job.seed for job in expand("table1", data="cifar10", seeds=(1,))} == {1}, "what was asked for, no more"
    large = expand("table1", data="cifar10", seeds=(1,), instances=10_000, only=("triplet",))
    assert {job.recipe.data.instances for job in large} == {10_000}
    assert not {job.record(Path("x")) for job in large} & {job.record(Path("x")) for job in jobs}


def test_the_other_tables_and_the_time_they_take(tmp_path):
    names = {job.name for job in expand("table2", data="cifar10")} | {
        job.name for job in expand("table3", data="cifar10")
    }
    assert len(names) == 2 * 2 * 9  # forms, encoders, methods
    beta = expand("fig-beta", data="cifar10", seeds=(1, 2, 3))
    assert sorted({weight_of(job.recipe) for job in beta}) == [i / 8 for i in range(16)]
    assert len(beta) == 2 * 16 * 3
    for data in ("cifar10", "cifar100", "tiny-imagenet"):  # each has weights of its own
        whole = expand(("table2", "table3", "fig-beta", "accuracy-gap", "ablation"), data=data)
        assert len({(str(job.recipe), job.seed) for job in whole}) == len(whole), "no run is made under two names"
    ablation = expand("ablation", data="cifar10")
    for job in ablation:
        assert (job.recipe.data.validation, job.recipe.encoder.name) == (5000, "conv4")
        kind, weight = job.variant.removeprefix("validation").strip("-"), weight_of(job.recipe)
        loss = {"": "released/simclr", "clamp-qare": "released/simclr-qare"}
        kind = kind if weight is None else kind.removesuffix(f"-{weight:g}")
        assert preset_of(job.recipe) == loss.get(kind, f"ablation/simclr-{kind}")
    assert {job.seed for job in ablation} == {1, 2, 3, 4, 5}
    assert len({str(job.recipe) for job in ablation}) == len(ablation) / 5, "no recipe under two names"
    both = expand(("table2", "table3"), data="cifar10")
    assert {job.name for job in both} == names
    controls = [job for job in both if job.variant == "beta-0"]
    assert {job.name for job in controls} == {f"released/cifar10-{x}-sparseclr-qare" for x in ("conv4", "resnet32")}
    assert {weight_of(job.recipe) for job in controls} == {0.0}
    assert len(both) == 3 * (len(names) + 2), "what two tables share is run once"
    assert [job.seed for job in both[: 3 * 28]] == [1] * 28 + [2] * 28 + [3] * 28, "the first table first"
    with pytest.raises(ValueError, match="expected runs with 'conv5' in their name, got none"):
        expand("table2", only=("conv4", "conv5"))
    jobs = expand("table2", data="cifar10", seeds=(1,), only=("conv4-simclr",))
    assert estimate(jobs, tmp_path) == [None] * 4
    assert listing(jobs, tmp_path)[-1] == "4 of 4 runs to make"
    row = {"recipe": "paper/cifar10-conv4-simclr-qare", "setwise_ms": 0.5}
    (tmp_path / "bench-step-x.json").write_text(json.dumps({"encoders": {"conv4": row}}))
    assert estimate(jobs, tmp_path) == pytest.approx([200 * 391 * 0.5e-3] * 4)
    assert estimate(expand("table2", data="cifar10", only=("conv4-random",)), tmp_path) == [0] * 6
    others = expand("table2", data="cifar10", seeds=(1,), only=("paper/cifar10-conv4-deepinfomax", "conv4-rotation"))
    assert [job.recipe.method.name for job in others] == ["rotation", "rotation", "deepinfomax"]
    assert estimate(others, tmp_path) == [None] * 3, "another method takes another time"
    row["methods"] = {"paper/cifar10-conv4-deepinfomax": 0.7, "paper/cifar10-conv4-rotation": 0.25}  # an epoch
    (tmp_path / "bench-step-x.json").write_text(json.dumps({"encoders": {"conv4": row}}))
    assert estimate(others, tmp_path) == pytest.approx([200 * 0.25] * 2 + [200 * 0.7])
    assert estimate(ablation[:1], tmp_path) == pytest.approx([200 * 352 * 0.5e-3]), "5,000 images are kept apart"
    assert IMAGES["digits"][0] == len(load("digits"))
    tiny = expand("table2", data="tiny-imagenet", seeds=(1,), only=("conv4-simclr",))
    assert estimate(tiny, tmp_path) == pytest.approx([4 * 200 * 782 * 0.5e-3] * 4)
    halves = expand("table1", data="cifar10", seeds=(1,), instances=10_000, only=("paper/cifar10-matching-triplet/",))
    assert estimate(halves, tmp_path) == [None]
    for i, words in enumerate(("{", "[]", '{"encoders": {"x": {"recipe": "gone", "setwise_ms": 1}}}')):
        (tmp_path / f"bench-step-bad{i}.json").write_text(words)
    assert estimate(halves, tmp_path) == [None]
    with pytest.raises(ValueError, match="expected no instances for cuhk03"):
        expand("table1", data="cuhk03", instances=100)
    with pytest.raises(ValueError, match="expected data of table1 to be one of 'cuhk03', .*, got 'photos'"):
        expand("table1", data="photos")
    with pytest.raises(ValueError, match="expected data of table1 to be one of .*, got 'tiny-imagenet'"):
        expand(("table2", "table1"), data="tiny-imagenet")
    with pytest.raises(ValueError, match="expected data of table3 to be one of .*'tiny-imagenet', got 'cuhk03'"):
        expand("table3", data="cuhk03")
    with pytest.raises(ValueError, match="expected at least one seed, got none"):
        expand("table1", seeds=())
    with pytest.raises(ValueError, match="expected at_once"):
        reproduce(halves, results=tmp_path, scratch=tmp_path, device=CPU, at_once=0)
    said = listing([*jobs, *halves], tmp_path)
    assert said[0] == f"{jobs[0].record(tmp_path)}  39 s"
    assert said[-1] == "5 of 5 runs to make, 3 minutes of training one after the other, 1 of them not measured"
    row = {"recipe": "paper/cifar10-matching-infonce-qare", "setwise_ms": 3.0}
    (tmp_path / "bench-step-y.json").write_text(json.dumps({"encoders": {"matching": row}}))
    assert estimate(halves, tmp_path) == pytest.approx([50 * (7000 // 128) * 3e-3])


def test_the_best_of_an_ablation_is_confirmed_on_fresh_seeds(tmp_path, keep):
    name = "released/cifar10-conv4-simclr"
    with pytest.raises(ValueError, match="records of `setwise reproduce ablation --data cifar10` below .*, got none"):
        expand("confirm", results=tmp_path / "results")
    gains = {"": 0.0, "mean": 0.03, "cold": -0.1, "gap": 0.02, "noshift": 0.01}
    for word, gain in gains.items():
        changes = {"loss": f"ablation/simclr-{word}"} if word else {}
        changes |= {"beta": 10.0} if word in ("gap", "noshift") else {}
        for seed in (1, 2):
            final = {"probe_accuracy": 0.5 + gain + seed / 1000}
            keep(name, seed, final, variant=f"validation-{word}", validation=5000, **changes)
    for seed in (1, 2):  # of another length: what is best there is not what the whole recipe is confirmed with
        for word, accuracy in (("", 0.3), ("cold", 0.4 + seed / 1000)):
            changes = {"loss": f"ablation/simclr-{word}"} if word else {}
            final, short = {"probe_accuracy": accuracy}, {"epochs": 4, "validation": 5000}
            keep(name, seed, final, variant=f"short-{word}", **short, **changes)
    jobs = expand("confirm", seeds=(1, 2), results=tmp_path / "results")
    found = {(job.recipe.encoder.name, preset_of(job.recipe), weight_of(job.recipe)) for job in jobs}
    losses = {("released/simclr", None), ("ablation/simclr-mean", None), ("ablation/simclr-gap", 10.0)}
    assert found == {(encoder, *loss) for encoder in ("conv4", "resnet32") for loss in losses}
    seeds = {name: {job.seed for job in jobs if job.recipe.encoder.name == name} for name in ("conv4", "resnet32")}
    assert seeds == {"conv4": {11, 12}, "resnet32": {1, 2}}, "no run of ResNet-32 has chosen anything"
    assert {job.recipe.data.validation for job in jobs} == {0}
    assert len({job.record(tmp_path) for job in jobs}) == len(jobs) == 12
    with pytest.raises(ValueError, match="expected records of `setwise reproduce ablation --data cifar100` below"):
        expand("confirm", data="cifar100", results=tmp_path / "results")


def test_what_could_keep_resnet32_below_the_paper():
    jobs = expand("accuracy-gap", seeds=(1,))
    assert jobs == expand("shortfall", seeds=(1,)), "its old name"
    plain = find("released/cifar10-resnet32-simclr")
    assert jobs[0].recipe == plain
    before = flat(plain.tree())
    different = [{path for path, x in flat(job.recipe.tree()).items() if before[path] != x} for job in jobs[1:]]
    assert different == [
        {"objective.reduction"},
        {"epochs"},
        *({"epochs", name} for name in ("objective.reduction", "encoder.weights", "drop_last")),
        {"epochs", *(f"views.{name}" for name in ("preset", "brightness", "contrast", "saturation", "hue"))},
        *({"epochs"}, {"epochs", "precision"}),
    ]
    assert {job.recipe.epochs for job in jobs} == {200, 50, 20}


def test_choosing_on_a_part_of_the_training_set():
    kept = find("released/digits-conv4-simclr").changed({"validation": 100})
    train, test = splits(kept, None)
    whole, _ = splits(find("released/digits-conv4-simclr"), None)
    assert (len(train), len(test)) == (1197, 100)
    assert torch.equal(torch.cat([train.images, test.images]).long().sum((0, 1)), whole.images.long().sum((0, 1)))
    again, _ = splits(kept, None)
    assert torch.equal(train.labels, again.labels)
    with pytest.raises(ValueError, match="expected validation below the 1297 images, got 1297"):
        splits(kept.changed({"validation": 1297}), None)
