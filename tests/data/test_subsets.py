"""Few images, long tails and wrong partners: counted by hand, drawn by their seed alone, seen by the method."""

import math
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

import setwise as sw
import setwise.register as register
from setwise.data.subsets import few, long_tailed, partners
from setwise.recipe import Recipe
from setwise.runs.pretraining import splits
from setwise.training.accumulation import divided
from setwise.training.engine import Engine
from setwise.training.loop import RunOptions, train

CPU = torch.device("cpu")
DOUBLE = {"matched", "pairs"}  # data of two sides, with no partner to change
TREE = {"data": "digits", "epochs": 2, "batch": 100, "head": {"hidden": 16, "out": 8}, "encoder": "resnet8"}


def made(labels, classes):
    pixels = torch.arange(len(labels), dtype=torch.uint8)[:, None, None, None].expand(-1, 1, 2, 2).contiguous()
    names = tuple("abcdefghij"[:classes])
    return sw.data.ImageSet("made", "train", pixels, torch.as_tensor(labels), names, (0.5,), (0.25,))


def rows(images):
    """Which images these are: each has its number as its colour."""
    return images.images[:, 0, 0, 0].tolist()


def test_few_are_drawn_by_the_seed():
    whole = made([k % 3 for k in range(60)], 3)
    one, same, other = (few(whole, 20, seed=seed) for seed in (1, 1, 2))
    assert rows(one) == rows(same) == sorted(set(rows(one)))
    assert rows(one) != rows(other)
    assert (len(one), one.labels.tolist()) == (20, [k % 3 for k in rows(one)])
    with pytest.raises(ValueError, match="expected instances of at most the 60 training images, got 61"):
        few(whole, 61, seed=1)


@pytest.mark.parametrize("imbalance", [1.0, 4.0, 100.0])
def test_long_tails_have_the_counts_of_the_formula(imbalance):
    sizes = [45, 40, 50, 45, 3]
    labels = [c for c, n in enumerate(sizes) for _ in range(n)]
    shuffled = [labels[k * 82 % len(labels)] for k in range(len(labels))]
    whole = made(shuffled, len(sizes))
    one, other = (long_tailed(whole, imbalance, seed=seed) for seed in (0, 1))
    # 45 images of the fourth class and imbalance 4: 45 · 4^(-3/4) = 15.9.
    want = {c: max(1, math.floor(n * imbalance ** (-c / 4) + 1e-9)) for c, n in enumerate(sizes)}
    assert Counter(one.labels.tolist()) == want
    assert [shuffled[k] for k in rows(one)] == one.labels.tolist()
    assert rows(one) == sorted(set(rows(one)))
    assert (rows(one) == rows(other)) == (imbalance == 1)
    with pytest.raises(ValueError, match="expected images of two classes or more"):
        long_tailed(made([0] * 4, 1), 2.0, seed=0)


def test_cifar_long_tailed_has_12406_images():
    """The number that papers print for CIFAR-10 with imbalance 100 (Cao et al. 2019)."""
    pixels = torch.zeros(50_000, 1, 1, 1, dtype=torch.uint8)
    whole = sw.data.ImageSet("made", "train", pixels, torch.arange(50_000) % 10, tuple("abcdefghij"), (0.5,), (0.25,))
    assert len(long_tailed(whole, 100.0, seed=0)) == 12_406


@pytest.mark.parametrize("share", [0.05, 0.055, 0.4, 1.0])
def test_wrong_partners_are_others_and_each_is_taken_once(share):
    found, same, other = (partners(200, share, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(found, same)
    assert not torch.equal(found, other)
    assert (found != torch.arange(200)).sum() == round(share * 200)
    assert sorted(found.tolist()) == list(range(200))


def test_one_image_alone_keeps_its_partner():
    assert partners(10, 0.1, seed=0).tolist() == list(range(10))
    assert partners(10, 0.0, seed=0).tolist() == list(range(10))


def test_a_step_sees_the_partners_in_every_view_but_the_first():
    data = sw.data.load("digits", split="train")
    recipe = Recipe.read(TREE | {"data": {"source": "digits", "wrong_partners": 0.3}})
    wrong, right = (Engine(one, data, seed=5, device=CPU) for one in (recipe, recipe.changed({"wrong_partners": 0.0})))
    samples = torch.arange(64)
    batch, plain = wrong.batch(samples), right.batch(samples)
    assert plain.others is None
    whose = partners(len(data), 0.3, seed=5)[samples]
    assert torch.equal(batch.others, data.images[whose])
    views = wrong.method.views
    three = batch.view(views, count=3).chunk(3)
    # View by view, of images that the reference puts there.
    moved = replace(plain, images=data.images[whose])
    assert torch.equal(three[0], plain.view(views))
    for number in (1, 2):
        assert torch.equal(three[number], moved.view(views, first=number))
        assert torch.equal(three[number], batch.view(views, first=number))
    assert not torch.equal(three[1], plain.view(views, first=1))
    kept = whose == samples
    assert torch.equal(three[1][kept], plain.view(views, first=1)[kept])
    parts = torch.cat([torch.stack(part.view(views, count=2).chunk(2)) for part in divided(batch, 3)], 1)
    assert torch.equal(parts, torch.stack(three[:2])), "a batch in parts has the same partners"


@pytest.mark.parametrize("method", [name for name, one in register.method.items() if not DOUBLE & {*one.takes}])
def test_a_method_takes_wrong_partners_if_it_draws_a_second_view(method, monkeypatch):
    recipe = Recipe.read(TREE | {"method": method, "epochs": 0})
    engine = Engine(recipe, sw.data.load("digits", split="train"), seed=5, device=CPU)
    draw, numbers = sw.Batch.view, []

    def counted(batch, views, *, count=1, first=0):
        numbers.append(first + count)
        return draw(batch, views, count=count, first=first)

    monkeypatch.setattr(sw.Batch, "view", counted)
    engine.method(engine.batch(torch.arange(32)))
    with nullcontext() if max(numbers) > 1 else pytest.raises(ValueError, match="for a method that compares views"):
        recipe.changed({"wrong_partners": 0.2})


def test_a_resumed_run_has_the_same_partners(tmp_path):
    data = sw.data.load("digits", split="train")
    data = data.select(torch.arange(200), split="train")
    recipe = Recipe.read(TREE | {"data": {"source": "digits", "wrong_partners": 0.4}})

    class Stop(Exception):
        pass

    def stop(engine, history):
        if engine.epoch == 0 and not (tmp_path / "again").exists():
            (tmp_path / "again").touch()
            raise Stop
        return {}

    how = RunOptions(CPU, quiet=True, resume=True, checkpoint_seconds=0)
    _, whole = train(recipe, data, tmp_path / "whole", seed=1, how=how)
    with pytest.raises(Stop):
        train(recipe, data, tmp_path / "stopped", seed=1, how=how, after_epoch=stop)
    _, resumed = train(recipe, data, tmp_path / "stopped", seed=1, how=how)
    assert all(torch.equal(x, resumed.tensors[name]) for name, x in whole.tensors.items())
    _, other = train(recipe.changed({"wrong_partners": 0.0}), data, tmp_path / "right", seed=1, how=how)
    assert any(not torch.equal(x, other.tensors[name]) for name, x in whole.tensors.items())


def test_what_a_recipe_takes_of_the_training_images_leaves_the_others_alone():
    whole = Recipe.read(TREE | {"data": {"source": "digits", "validation": 100}})
    train_set, kept = splits(whole, None)
    for changes in ({"instances": 50}, {"imbalance": 20.0}, {"imbalance": 20.0, "instances": 50}):
        some, same = splits(whole.changed(changes), None)
        assert torch.equal(same.images, kept.images)
        assert len(some) == (50 if "instances" in changes else sum(Counter(some.labels.tolist()).values()))
        assert len(some) < len(train_set)
        counts = Counter(some.labels.tolist())
        if "imbalance" in changes:
            assert counts[0] > 5 * counts[9]
