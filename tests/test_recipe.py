"""A recipe is a value: it goes through a file unchanged, and any field of it can be changed by its name."""

import json
import tomllib
from dataclasses import replace

import pytest

from setwise.paper.recipes import CELLS, recipe
from setwise.recipe import Recipe, flat, to_toml, trust, upgrade

PLAIN, QARE = "paper/digits-conv4-simclr", "released/digits-conv4-simclr-qare"


@pytest.mark.parametrize("name", [*list(CELLS)[::9], *list(CELLS)[-51::5]])
def test_files_and_json_give_a_recipe_back(name):
    found = recipe(name)
    assert Recipe.read(tomllib.loads(to_toml(found.tree()))) == found
    assert Recipe.read(json.loads(json.dumps(found.tree()))) == found


def test_a_file_keeps_any_words():
    found = recipe(PLAIN).changed({"about": 'é \U0001f600 "quoted"\n\\ \x7f \x01', "data": "a/\U0001f600 b"})
    text = to_toml(found.tree())
    assert text.startswith("about = ")
    assert Recipe.read(tomllib.loads(text)) == found


def test_what_is_missing_takes_its_default():
    found = Recipe.read({})
    assert (found.method.name, found.encoder.name, found.objective.loss.name) == ("contrastive", "conv4", "info-nce")
    assert Recipe.read({"encoder": "conv4", "objective": "info-nce", "data": "digits"}) == found
    assert Recipe.read({"method": "rotation"}).objective is None
    assert Recipe.read({"objective": {"loss": "info-nce", "terms": ["qare"]}}).objective.terms[0].weight == 1


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"epoch": 3}, "expected a field of a recipe, .*got 'epoch'; did you mean 'epochs'"),
        ({"encoder": "resnet-32"}, "did you mean 'resnet32'"),
        ({"method": "contrastiv"}, "did you mean 'contrastive'"),
        ({"method": 3}, "expected the method by its name, .*got 3"),
        ({"schedule": "cosin"}, "did you mean 'cosine'"),
        ({"views": {"preset": "modern", "flipp": 1}}, "did you mean 'flip'"),
        ({"encoder": {"name": "conv4", "weights": "xavir"}}, "did you mean 'xavier'"),
        ({"objective": {"loss": "info-nce", "temprature": 1}}, "did you mean 'temperature'"),
        ({"objective": {"loss": "info-nce", "terms": [{"term": "qar"}]}}, "did you mean 'qare'"),
        ({"objective": {"loss": "info-nce", "terms": "qare"}}, "expected terms to be a list of .*got 'qare'"),
        ({"objective": {"loss": "info-nce", "terms": ["qare", "qare"]}}, "term once, got qare, qare"),
        ({"objective": 3}, "expected the loss by its name, .*got 3"),
        ({"objective": {"temperature": 0.1}}, "expected the loss by its name"),
        ({"data": {"sources": "digits"}}, "did you mean 'source'"),
        ({"data": 3}, "expected data to be a table, got 3"),
        ({"evaluation": {"probe": {"epoch": 1}}}, "expected a field of evaluation.probe, .*did you mean 'epochs'"),
        ({"head": 3}, "expected head to be a table, got 3"),
        ({"method": "rotation", "objective": "info-nce"}, "expected no objective for method 'rotation'"),
        ({"objective": None}, "expected an objective for method 'contrastive', got none"),
        ({"objective": "built-in"}, "expected a loss of two views for method 'contrastive', got 'built-in'"),
        (
            {"method": "byol", "objective": "info-nce"},
            "expected its own loss, 'built-in', for method 'byol', got 'info-nce'",
        ),
        ({"ema": 1.0}, "expected ema from 0, .* to below 1, got 1"),
        ({"method": "matching", "ema": 0.9}, "expected ema 0 for method 'matching'"),
        ({"evaluation": {"patches": -1}}, "expected patches to be .* of at least 0, got -1"),
        ({"encoder": "os:getcwd"}, "files import nothing"),
        ({"epochs": "many"}, "expected epochs to be a whole number, got 'many'"),
        ({"data": {"validation": -1}}, "expected validation to be .* got -1"),
        ({"method": "matching", "data": {"validation": 5}}, "expected no validation for matching"),
        ({"data": {"instances": 0}}, "expected instances"),
        ({"data": {"imbalance": 0.5}}, "expected imbalance"),
        ({"data": {"wrong_partners": -0.1}}, "expected wrong_partners"),
        ({"data": {"wrong_partners": 1.5}}, "expected wrong_partners to be a share from 0 to 1, got 1.5"),
        ({"method": "matching", "data": {"imbalance": 10}}, "expected imbalance and wrong_partners for single images"),
        ({"method": "rotation", "data": {"wrong_partners": 0.2}}, "method that compares views, got 0.2 for 'rotation'"),
        ({"batch": 1}, "expected a batch of at least 2"),
        ({"batch": 0}, "expected batch"),
        ({"epochs": -1}, "expected epochs"),
        ({"precision": "fp16"}, "expected precision"),
        ({"schedule": {"name": "cosine", "warmup": -1}}, "expected warmup"),
        ({"optimizer": {"name": "adam", "lr": 0}}, "expected lr"),
        ({"optimizer": {"name": "sgd", "lr": "fast"}}, "got 'fast'"),
        ({"optimizer": {"name": "sgd", "momentum": 1.0}}, "expected momentum below 1"),
        ({"optimizer": {"name": "adam", "momentum": 0.9}}, "expected an option of 'adam'"),
    ],
)
def test_what_is_wrong_raises(tree, message):
    with pytest.raises(ValueError, match=message):
        Recipe.read(tree)


def test_a_field_is_changed_by_its_path_or_the_last_part_of_it():
    found = recipe(QARE)
    for path in ("objective.temperature", "temperature"):
        assert found.changed({path: "0.2"}).objective.loss["temperature"] == 0.2
    assert found.changed({"lr": 0.5}).optimizer["lr"] == 0.5  # not the probe's, which lies deeper
    assert found.changed({"probe.lr": 0.5}).evaluation.probe.lr == 0.5
    assert found.changed({"drop-last": "true"}).drop_last is True
    assert found.changed({"weight": 0.5}).objective.weight == 0.5
    assert found.changed({"data": "cifar10"}).data.source == "cifar10"
    assert found.changed({"padding": 3, "epochs": 2}) == replace(found.changed({"views.padding": 3}), epochs=2)
    assert found.changed({}) == found


def test_a_field_that_is_not_there_or_not_clear_is_told():
    with pytest.raises(ValueError, match="got 'temprature'; did you mean 'temperature'"):
        recipe(PLAIN).changed({"temprature": 1})
    with pytest.raises(ValueError, match="`setwise recipes NAME` shows all"):
        recipe(PLAIN).changed({"zzzzz": 1})
    both = recipe(PLAIN).changed({"terms": [{"term": "qare"}, {"term": "gap", "weight": 2}]})
    with pytest.raises(ValueError, match=r"got 'normalization', which is .* or .*terms\.gap.*; give the whole path"):
        both.changed({"normalization": "none"})
    changed = both.changed({"objective.terms.gap.normalization": "none"}).objective.terms
    assert [term.term["normalization"] for term in changed] == ["n2", "none"]


def test_terms_are_named_in_paths():
    found = recipe(PLAIN).changed({"terms": [{"term": "structural-difference", "weight": 3}]})
    path = "objective.terms.structural-difference.weight"
    assert flat(found.tree())[path] == 3
    for typed in (path, path.replace("-", "_")):
        assert found.changed({typed: 4}).objective.terms[0].weight == 4
    assert found.changed({"terms": []}) == recipe(PLAIN)
    with pytest.raises(ValueError, match="expected a method with an objective for terms"):
        recipe("paper/digits-conv4-rotation").changed({"terms": []})


def test_a_new_name_brings_its_own_options_and_comes_first():
    found = recipe(PLAIN)
    sgd = found.changed({"momentum": 0.5, "optimizer": "sgd"}).optimizer
    assert (sgd.name, sgd["lr"], sgd["momentum"]) == ("sgd", 0.1, 0.5)
    assert found.changed({"stem": "cifar", "encoder": "resnet18"}).encoder["stem"] == "cifar"
    sparse = recipe(QARE).changed({"loss": "sparse-clr"}).objective  # terms stay
    assert (sparse.loss.name, [term.term.name for term in sparse.terms]) == ("sparse-clr", ["qare"])
    timm = found.changed({"encoder": "timm/vit_tiny_patch16_224", "img_size": 32}).encoder
    assert (timm.name, timm["img_size"], timm["pretrained"]) == ("timm/vit_tiny_patch16_224", 32, False)
    for form in ("paper", "released"):  # how weights are drawn is the recipe's, whatever the network
        composed = recipe(f"{form}/digits-conv4-simclr").changed({"encoder": "resnet8"})
        assert composed.encoder == recipe(f"{form}/digits-resnet8-simclr").encoder


def test_another_method_takes_the_objective_or_leaves_it():
    rotation = recipe(QARE).changed({"method": "rotation"})
    assert rotation.objective is None
    back = rotation.changed({"method": "contrastive", "temperature": 0.2})
    assert (back.objective.loss.name, back.objective.loss["temperature"]) == ("info-nce", 0.2)
    assert recipe(QARE).changed({"method": "contrastive"}) == recipe(QARE)
    with pytest.raises(ValueError, match="expected an objective"):
        recipe(QARE).changed({"objective": "none"})
    assert recipe(QARE).changed({"objective": "triplet"}).objective.loss.name == "triplet"


def test_a_method_with_a_loss_of_its_own_brings_it_and_takes_terms():
    byol = recipe(QARE).changed({"method": "byol", "method.momentum": 0.9})
    assert (byol.objective.loss.name, byol.objective.terms, byol.method["momentum"]) == ("built-in", (), 0.9)
    assert Recipe.read({"method": "byol"}).objective == byol.objective
    both = byol.changed({"terms": [{"term": "gap", "weight": 2.0}], "objective.weight": 3})
    assert Recipe.read(tomllib.loads(to_toml(both.tree()))) == both
    assert both.changed({"method": "simsiam"}).objective == both.objective  # terms stay
    assert both.changed({"method": "contrastive"}).objective == Recipe.read({}).objective
    assert both.changed({"method": "rotation"}).objective is None


def test_none_is_a_value_where_there_may_be_none():
    found = recipe("paper/cifar10-matching-infonce")
    assert found.data.instances == 1467
    for none in (None, "none", "None"):
        assert found.changed({"instances": none}).data.instances is None
    with pytest.raises(ValueError, match="expected epochs to be a whole number, got 'none'"):
        found.changed({"epochs": "none"})


@pytest.mark.usefixtures("registries")
def test_a_person_may_name_a_function(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "outside_parts.py").write_text(
        "def net(channels: int, *, width: int = 8): ...\ndef far(z_a, z_b, *, scale: float = 1.0): ...\n"
    )
    wanted = {"encoder": "outside_parts:net", "width": 4, "loss": "outside_parts:far"}
    wanted["terms"] = [{"term": "outside_parts:far", "scale": 2}]
    trust(wanted)
    found = recipe(PLAIN).changed(wanted)
    assert found.encoder["width"] == 4
    assert found.objective.terms[0].term["scale"] == 2.0
    trust({"data": "C:x", "about": "a:b"})  # names of nothing


def test_recipes_of_version_0_1_are_read():
    old = {"data": "digits", "method": "simclr", "encoder": "conv4", "loss": "released/simclr-qare", "beta": 1.0}
    old |= {"initial": "released", "padding": 1, "epochs": 200, "batch": 128, "probe_epochs": 100, "probe_lr": 1e-3}
    old |= {"hidden": 256, "embedding": 64, "lr": 1e-3, "optimizer": "adam", "momentum": 0.9, "weight_decay": 0.0}
    found = Recipe.read(old)
    assert found == replace(recipe(QARE), about="")
    assert Recipe.read(upgrade(old)) == found
    del old["padding"], old["epochs"], old["lr"]  # they are younger than the first recipes
    assert Recipe.read(old) == found.changed({"views.padding": 4})
    with pytest.raises(ValueError, match="got 'epoch'; did you mean 'epochs'"):
        Recipe.read(old | {"epoch": 2})
    matching = {"initial": "released", "method": "matching", "encoder": "resnet18", "stem": "cifar", "instances": 1467}
    matching |= {"data": "cifar10", "views": "matching", "loss": "paper/matching-infonce-qare", "beta": None}
    matching |= {"epochs": 50, "lr": 0.01, "schedule": "cosine", "drop_last": True}
    assert Recipe.read(matching) == replace(recipe("paper/cifar10-matching-infonce-qare"), about="")
    random = {"initial": "xavier", "method": "random", "views": "none", "padding": 1, "epochs": 0, "loss": None}
    assert Recipe.read(random) == replace(recipe("paper/digits-conv4-random"), about="")
    infomax = {"initial": "released", "method": "deepinfomax", "adversarial": False, "optimizer": "sgd"}
    infomax = Recipe.read(infomax | {"momentum": 0.5})
    assert (infomax.method["adversarial"], infomax.optimizer["momentum"]) == (False, 0.5)
