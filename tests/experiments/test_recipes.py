"""The paper's numbers, typed here a second time from its tables and supplement; names and how they fail."""

import json
from dataclasses import replace

import numpy as np
import pytest

from setwise.experiments.recipes import RECIPES, recipe
from setwise.recipe import Recipe

# Table 4: conv4 then resnet32, each on CIFAR-10, CIFAR-100, tiny-ImageNet.
SIMCLR_BETA = (0.5, 0.375, 0.875, 1.125, 1.125, 1.125)
SPARSECLR_BETA = (0.125, 1.25, 0.5, 1.0, 0.875, 1.25)
CELLS = [(encoder, data) for encoder in ("conv4", "resnet32") for data in ("cifar10", "cifar100", "tiny-imagenet")]


@pytest.mark.parametrize("form", ["paper", "released"])
def test_table_4(form):
    for betas, method in ((SIMCLR_BETA, "simclr"), (SPARSECLR_BETA, "sparseclr")):
        for (encoder, data), beta in zip(CELLS, betas, strict=True):
            found = recipe(f"{form}/{data}-{encoder}-{method}-qare")
            assert (found.beta, found.loss, found.method) == (beta, f"{form}/{method}-qare", method)
            assert recipe(f"{form}/{data}-{encoder}-{method}").beta is None


def test_section_4_2_and_the_supplement():
    for name, found in RECIPES.items():
        if name.startswith("modern") or found.method == "matching":
            continue
        assert found.batch == 128
        assert (found.probe_epochs, found.probe_batch, found.probe_lr) == (100, 128, 1e-3)
        assert (found.hidden, found.embedding) == (256, 64)
        assert found.epochs == (0 if found.method == "random" else 200)
        assert found.initial == ("xavier" if name.startswith("paper/") else "released")
        if found.method in ("simclr", "sparseclr", "rotation", "deepcluster"):
            assert (found.optimizer, found.lr, found.schedule, found.weight_decay) == ("adam", 1e-3, "constant", 0)
            assert not found.drop_last
        if found.method in ("simclr", "sparseclr"):
            assert found.views == "self-supervised"
    supervised = recipe("released/tiny-imagenet-resnet32-supervised")
    assert (supervised.optimizer, supervised.lr, supervised.momentum, supervised.schedule) == ("sgd", 0.1, 0.9, "steps")
    assert (supervised.views, supervised.padding) == ("supervised", 8)
    infomax = recipe("paper/cifar10-conv4-deepinfomax")
    assert (infomax.lr, infomax.views, infomax.drop_last, infomax.adversarial) == (1e-4, "flip", True, True)
    assert not recipe("released/cifar10-conv4-deepinfomax").adversarial


def test_table_1():
    for loss in ("triplet", "infonce", "nt-logistic", "sparseclr"):
        for end in ("", "-qare"):
            found = recipe(f"paper/cuhk03-matching-{loss}{end}")
            assert (found.loss, found.beta) == (
                f"paper/matching-{loss}{end}",
                None,
            )  # the preset has the paper's weight
            assert (found.encoder, found.stem, found.embedding, found.views) == ("resnet18", "imagenet", 64, "matching")
            assert (found.epochs, found.batch, found.lr, found.optimizer) == (50, 128, 0.01, "adam")
            assert (found.schedule, found.drop_last) == ("cosine", True)
        halves = recipe(f"paper/cifar10-matching-{loss}")
        assert (halves.stem, halves.instances) == ("cifar", 1467)
        assert recipe(f"setwise/cifar10-matching-{loss}-gap").loss == f"setwise/matching-{loss}-gap"


def test_every_method_is_there_for_every_cell():
    for form in ("paper", "released"):
        for encoder, data in CELLS:
            methods = {name.split(f"{data}-{encoder}-")[1] for name in RECIPES if f"{form}/{data}-{encoder}-" in name}
            assert methods == {
                *("simclr", "simclr-qare", "sparseclr", "sparseclr-qare"),
                *("supervised", "random", "rotation", "deepcluster", "deepinfomax"),
            }


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(
        ValueError, match=r"got 'paper/cifar10-conv4-simclr-qaer'; did you mean paper/cifar10-conv4-simclr-qare"
    ):
        recipe("paper/cifar10-conv4-simclr-qaer")
    with pytest.raises(ValueError, match="`setwise recipes` lists"):
        recipe("")


def test_recipes_go_through_json():
    for found in RECIPES.values():
        assert Recipe.from_json(found.as_json()) == found


def test_an_older_recipe_has_defaults_and_a_newer_one_is_refused_by_name():
    found = replace(recipe("paper/digits-conv4-simclr"), padding=Recipe.padding)
    older = {name: value for name, value in found.as_json().items() if name not in ("lr", "padding")}
    assert Recipe.from_json(older) == found
    with pytest.raises(ValueError, match=r"got 'learning', 'epoch' too; .*\bepochs\b"):
        Recipe.from_json(found.as_json() | {"learning": 1, "epoch": 2})
    with pytest.raises(ValueError, match="got list"):
        Recipe.from_json([])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "simclrr"}, "did you mean 'simclr'"),
        ({"encoder": "resnet-32"}, "did you mean 'resnet32'"),
        ({"loss": "paper/simcrl"}, "did you mean 'paper/simclr'"),
        ({"loss": None}, "expected loss for method 'simclr'"),
        ({"beta": None}, "expected beta with a loss that has a set-level term"),
        ({"loss": "paper/simclr"}, "expected beta with a loss that has a set-level term and only there, got 0.5"),
        ({"loss": "paper/simclr"}, "; give --beta None"),
        ({"method": "sparseclr"}, "expected a loss of sparseclr for method 'sparseclr', got 'paper/simclr-qare'; give"),
        ({"loss": "paper/matching-infonce", "beta": None}, "expected a loss of simclr for method 'simclr'"),
        ({"batch": 1}, "expected a batch of at least 2, whose items are contrasted, got 1"),
        ({"method": "rotation"}, "expected no loss and no beta for method 'rotation'"),
        ({"instances": 100}, "expected instances for matching only, got 100 with method 'simclr'; --validation N"),
        ({"method": "random", "loss": None, "beta": None}, "expected epochs=0 for method 'random'"),
        ({"lr": 0}, "expected lr to be a finite number above 0"),
        ({"batch": 0}, "expected batch"),
        ({"epochs": -1}, "expected epochs"),
        ({"warmup": -1}, "expected warmup"),
        ({"momentum": 1.0}, "expected momentum below 1"),
        ({"precision": "fp16"}, "expected precision"),
        ({"schedule": "cosin"}, "did you mean 'cosine'"),
    ],
)
def test_bad_fields(change, message):
    with pytest.raises(ValueError, match=message):
        replace(Recipe(loss="paper/simclr-qare", beta=0.5), **change)


def test_a_warm_up_ends_with_the_training_at_the_latest():
    assert replace(recipe("modern/cifar10-resnet18-simclr"), epochs=10).warmup == 10
    with pytest.raises(ValueError, match="expected warmup of at most the 5 epochs, got 10; give --warmup too"):
        replace(recipe("modern/cifar10-resnet18-simclr"), epochs=5)


def test_shifts_are_an_eighth_of_the_image():
    shifts = {name: found.padding for name, found in RECIPES.items() if found.data == "digits"}
    assert set(shifts.values()) == {1}


def test_numpy_numbers_become_pythons():
    found = Recipe(loss="paper/simclr-qare", beta=np.float32(0.5), batch=np.int64(60), lr=np.float64(1e-3))
    assert json.loads(json.dumps(found.as_json()))["batch"] == 60
    assert type(found.beta) is float
    assert type(found.batch) is int
