"""The paper's numbers, typed here a second time from its tables and supplement; names and how they fail."""

import json
from pathlib import Path

import numpy as np
import pytest

from setwise.paper.objectives import preset_of, weight_of
from setwise.paper.recipes import CELLS, recipe
from setwise.recipe import Recipe

# Table 4: conv4 then resnet32, each on CIFAR-10, CIFAR-100, tiny-ImageNet.
SIMCLR_BETA = (0.5, 0.375, 0.875, 1.125, 1.125, 1.125)
SPARSECLR_BETA = (0.125, 1.25, 0.5, 1.0, 0.875, 1.25)
PLACES = [(encoder, data) for encoder in ("conv4", "resnet32") for data in ("cifar10", "cifar100", "tiny-imagenet")]
FLAT = json.loads(Path(__file__).with_name("record-1.json").read_text())["recipe"]  # as version 0.1 wrote it


@pytest.mark.parametrize("form", ["paper", "released"])
def test_table_4(form):
    for betas, method in ((SIMCLR_BETA, "simclr"), (SPARSECLR_BETA, "sparseclr")):
        for (encoder, data), beta in zip(PLACES, betas, strict=True):
            found = recipe(f"{form}/{data}-{encoder}-{method}-qare")
            assert (weight_of(found), preset_of(found)) == (beta, f"{form}/{method}-qare")
            assert weight_of(recipe(f"{form}/{data}-{encoder}-{method}")) is None


def test_section_4_2_and_the_supplement():
    for name, cell in CELLS.items():
        found = recipe(name)
        if cell.form in ("modern", "speedrun") or found.matched or found.pairs:
            continue
        assert (found.batch, found.head.hidden, found.head.out) == (128, 256, 64)
        probe = found.evaluation.probe
        assert (probe.epochs, probe.batch, probe.lr) == (100, 128, 1e-3)
        assert found.epochs == (0 if cell.base == "random" else 200)
        assert found.encoder["weights"] == ("xavier" if cell.form == "paper" else "released")
        if cell.base in ("simclr", "sparseclr", "rotation", "deepcluster"):
            assert (found.optimizer.name, found.optimizer["lr"], found.optimizer["weight_decay"]) == ("adam", 1e-3, 0)
            assert (found.schedule.name, found.drop_last) == ("constant", False)
        if cell.base in ("simclr", "sparseclr"):
            assert (found.method.name, found.views.name) == ("contrastive", "self-supervised")
    supervised = recipe("released/tiny-imagenet-resnet32-supervised")
    sgd = supervised.optimizer
    assert (sgd.name, sgd["lr"], sgd["momentum"]) == ("sgd", 0.1, 0.9)
    assert (supervised.schedule.name, supervised.views.name, supervised.views["padding"]) == ("steps", "supervised", 8)
    infomax = recipe("paper/cifar10-conv4-deepinfomax")
    assert (infomax.optimizer["lr"], infomax.views.name, infomax.drop_last) == (1e-4, "flip", True)
    assert infomax.method["adversarial"]
    assert not recipe("released/cifar10-conv4-deepinfomax").method["adversarial"]


def test_table_1():
    weights = {"triplet": 0.4, "infonce": 0.5, "nt-logistic": 0.2, "sparseclr": 0.3}
    for loss, weight in weights.items():
        for end in ("", "-qare"):
            found = recipe(f"paper/cuhk03-matching-{loss}{end}")
            assert (preset_of(found), weight_of(found)) == (f"paper/matching-{loss}{end}", weight if end else None)
            assert found.objective.weight == (1 - weight if end else 1)
            assert (found.encoder.name, found.encoder["stem"], found.head.out) == ("resnet18", "imagenet", 64)
            assert (found.views.name, found.schedule.name, found.drop_last) == ("matching", "cosine", True)
            assert (found.epochs, found.batch, found.optimizer.name, found.optimizer["lr"]) == (50, 128, "adam", 0.01)
        halves = recipe(f"paper/cifar10-matching-{loss}")
        assert (halves.encoder["stem"], halves.data.instances) == ("cifar", 1467)
        assert preset_of(recipe(f"setwise/cifar10-matching-{loss}-gap")) == f"setwise/matching-{loss}-gap"


def test_every_method_is_there_for_every_cell():
    methods = {
        *("simclr", "simclr-qare", "sparseclr", "sparseclr-qare"),
        *("supervised", "random", "rotation", "deepcluster", "deepinfomax"),
    }
    names = {f"{form}/{data}-{e}-{m}" for form in ("paper", "released") for e, data in PLACES for m in methods}
    assert names <= set(CELLS)


def tables(tree, before=()):
    """Where every value of a recipe's tables stands."""
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        yield (*before, key)
        if isinstance(value, (dict, list)):
            yield from tables(value, (*before, key))


@pytest.mark.parametrize("tree", [FLAT, recipe("paper/digits-conv4-simclr-qare").tree()], ids=["0.1", "now"])
def test_what_is_no_recipe_is_refused_as_such(tree):
    for way in tables(tree):
        for value in (None, [], [3], {"name": ["x"]}, {"terms": 3}, float("inf"), 2**70, "os:system"):
            changed = json.loads(json.dumps(tree))
            table = changed
            for key in way[:-1]:
                table = table[key]
            table[way[-1]] = value
            try:
                Recipe.read(changed)
            except ValueError as error:
                assert "expected" in str(error)  # noqa: PT017
    with pytest.raises(ValueError, match="got list"):
        Recipe.read([])


def test_a_warm_up_ends_with_the_training_at_the_latest():
    modern = recipe("modern/cifar10-resnet18-simclr")
    assert modern.changed({"epochs": 10}).schedule["warmup"] == 10
    with pytest.raises(ValueError, match="expected warmup of at most the 5 epochs, got 10; give --warmup too"):
        modern.changed({"epochs": 5})


def test_numpy_numbers_become_pythons():
    found = recipe("paper/digits-conv4-simclr").changed({"batch": np.int64(60), "lr": np.float32(0.5)})
    assert json.loads(json.dumps(found.tree()))["batch"] == 60
    assert (type(found.batch), type(found.optimizer["lr"])) == (int, float)


def test_shifts_are_an_eighth_of_the_image():
    assert {recipe(name).views["padding"] for name, cell in CELLS.items() if cell.data == "digits"} == {1}
