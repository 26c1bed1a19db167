"""Pairs: two encoders or one, symmetric loss, learned temperature; what is computed, by hand."""

import math
import tomllib
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, normalize

import setwise as sw
from setwise.data import PairSet, Side
from setwise.recipe import Recipe, to_toml
from setwise.training.engine import Engine

CPU = torch.device("cpu")
UNPAIRED = ["qare", "frobenius", "coding-rate", "variance", "covariance", "uniformity"]
CLIP = {"loss": "info-nce", "temperature": 0.2, "symmetric": True}


def ids(seed: int, count: int = 40) -> Side:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(1, 30, (count, 6), dtype=torch.int32, generator=generator)
    values[torch.arange(6) >= torch.randint(1, 7, (count, 1), generator=generator)] = 0
    return Side(values, 30)


def vectors(seed: int, count: int = 40, width: int = 5) -> Side:
    return Side(torch.randn(count, width, generator=torch.Generator().manual_seed(seed)))


def images(count: int = 40) -> Side:
    digits = sw.data.load("digits")
    return Side(digits.images[:count], mean=digits.mean, std=digits.std)


def recipe_of(**tree) -> Recipe:
    method = {"name": "pairs"} | tree.pop("method", {})
    base = {"objective": CLIP, "encoder": "bag", "views": "none", "epochs": 2, "batch": 16, "precision": "float64"}
    return Recipe.read(base | tree | {"method": method})


def batch_of(pairs: PairSet, dtype: torch.dtype = torch.float64) -> sw.Batch:
    rows, zero = torch.arange(len(pairs)), torch.tensor(0)
    labels = rows if pairs.labels is None else pairs.labels
    second = pairs.second.take(rows)
    return sw.Batch(pairs.first.take(rows), rows, labels, zero, zero, dtype, second=second, sets=pairs.sets)


def clip_loss(z_a, z_b, temperature):
    logits = normalize(z_a) @ normalize(z_b).T / temperature
    rows = torch.arange(len(logits))
    return (cross_entropy(logits, rows) + cross_entropy(logits.T, rows)) / 2


def trained(recipe: Recipe, pairs: PairSet) -> Engine:
    engine = Engine(recipe, pairs, seed=1, device=CPU)
    for epoch in range(recipe.epochs):
        engine.begin(epoch)
        for _ in range(engine.steps):
            engine.step()
    return engine


def test_a_bag_is_the_mean_over_the_ids_of_a_text():
    bag, side = sw.encoders.create("bag", channels=30, features=3, spread=0.5), ids(0)
    table = bag.vectors.weight.detach().numpy()
    expected = [np.mean([table[k] for k in row if k], axis=0) for row in side.values.numpy()]
    np.testing.assert_allclose(bag(side.values).detach().numpy(), expected, rtol=1e-5, atol=1e-6)
    torch.manual_seed(0)
    large = sw.encoders.create("bag", channels=5000, spread=0.5).vectors.weight
    assert large[1:].std().item() == pytest.approx(0.5, rel=0.01)
    with pytest.raises(ValueError, match="expected spread to be a finite number above 0"):
        sw.encoders.create("bag", channels=30, spread=0.0)


@pytest.mark.parametrize("head", ["none", "linear", "mlp"])
def test_the_loss_is_clips(head):
    pairs = PairSet("a", "train", ids(0), ids(1))
    method = sw.methods.create(recipe_of(method={"head": head}), pairs).double()
    z_a = method.head(method.encoder(pairs.first.values))
    z_b = method.second_head(method.second_encoder(pairs.second.values))
    terms = method(batch_of(pairs))
    torch.testing.assert_close(terms["loss"], clip_loss(z_a, z_b, 0.2))
    assert z_a.shape[1] == (128 if head == "none" else 64)
    assert not torch.equal(method.encoder.vectors.weight, method.second_encoder.vectors.weight)


def test_terms_see_the_embeddings_or_the_features():
    pairs = PairSet("a", "train", vectors(0), vectors(1, width=7))
    for on in ("embeddings", "features"):
        objective = CLIP | {"terms": [{"term": "gap", "weight": 3.0, "on": on}]}
        method = sw.methods.create(recipe_of(objective=objective, encoder="mlp"), pairs).double()
        h = method.encoder(pairs.first.values.double()), method.second_encoder(pairs.second.values.double())
        z = method.head(h[0]), method.second_head(h[1])
        terms = method(batch_of(pairs))
        torch.testing.assert_close(terms["regularizer"], sw.QARe(reference="truth")(*(z if on == "embeddings" else h)))
        torch.testing.assert_close(terms["loss"], clip_loss(*z, 0.2) + 3 * terms["regularizer"])


def test_one_shared_encoder():
    pairs = PairSet("a", "train", ids(0), ids(1))
    method = sw.methods.create(recipe_of(method={"shared": True, "head": "mlp"}), pairs).double()
    swapped = PairSet("a", "train", pairs.second, pairs.first)
    torch.testing.assert_close(method(batch_of(pairs))["loss"], method(batch_of(swapped))["loss"])
    assert {name.partition(".")[0] for name in method.state_dict()} == {"encoder", "head"}
    for sides in ((ids(0), vectors(1)), (vectors(0), vectors(1, width=7))):
        encoder = {"encoder": "bag" if sides[0].kind == "ids" else "mlp"}
        with pytest.raises(ValueError, match="expected two sides of one kind"):
            sw.methods.create(recipe_of(method={"shared": True}, **encoder), PairSet("a", "train", *sides))


def test_a_learned_temperature_is_clips_and_stays_in_bounds():
    pairs = PairSet("a", "train", ids(0), ids(1))
    options = {"learn_temperature": True, "least_temperature": 0.1, "most_temperature": 0.21}
    method = sw.methods.create(recipe_of(method=options), pairs).double()
    method(batch_of(pairs))["loss"].backward()
    (own,) = (p for name, p in method.named_parameters() if name.endswith("original"))
    logarithm = torch.tensor(math.log(0.2), dtype=torch.float64, requires_grad=True)
    z_a, z_b = (z.detach() for z in method.embed(method.encode(batch_of(pairs))))
    clip_loss(z_a, z_b, logarithm.exp()).backward()
    torch.testing.assert_close(own.grad, logarithm.grad)
    assert method.groups()[1] == {"params": [own], "weight_decay": 0.0}
    assert all(p is not own for p in method.groups()[0]["params"])
    for lr, objective in ((0.3, CLIP), (0.3, CLIP | {"terms": ["qare"]})):
        recipe = recipe_of(method=options, optimizer={"name": "adam", "lr": lr}, objective=objective)
        engine = trained(recipe, pairs)
        learned = engine.method.pairwise.temperature.item()
        assert learned in (pytest.approx(0.1), pytest.approx(0.21)), "large steps lead to a bound"
        assert 0.0999 <= engine.means()["temperature"] <= 0.2101
    for changes, message in (
        ({"objective.temperature": 0.5}, "expected a temperature from 0.1 to 0.21"),
        ({"objective.loss": "triplet"}, "expected a loss with a temperature to learn"),
    ):
        with pytest.raises(ValueError, match=message):
            sw.methods.create(recipe_of(method=options).changed(changes), pairs)


def test_a_batch_in_parts_is_the_whole():
    pairs = PairSet("a", "train", images(), ids(1))
    made = [trained(recipe_of(encoder="mlp-of-images", second_encoder="bag", parts=n), pairs) for n in (1, 3)]
    for name, x in made[0].tensors().items():
        torch.testing.assert_close(made[1].tensors()[name], x, msg=name)


def labelled() -> PairSet:
    """Fifteen images of 40 captions: one, two, three or four each."""
    numbers = torch.randint(15, (40,), generator=torch.Generator().manual_seed(5))
    side = images(15)
    return PairSet("a", "train", Side(side.values, mean=side.mean, std=side.std, rows=numbers), ids(1), labels=numbers)


@pytest.mark.parametrize("term", [False, True])
def test_rows_of_one_label_are_partners(term):
    """The mean of -log p over all of them, rows and columns, as SupCon has it."""
    pairs = PairSet("a", "train", vectors(0), ids(1), labels=labelled().labels)  # equal items would hide it
    objective = CLIP | ({"terms": [{"term": "gap", "weight": 3.0}]} if term else {})
    recipe = recipe_of(encoder="mlp", second_encoder="bag", objective=objective)
    method = sw.methods.create(recipe, pairs).double()
    terms = method(batch_of(pairs))
    z_a, z_b = method.embed(method.encode(batch_of(pairs)))
    logits = normalize(z_a) @ normalize(z_b).T / 0.2
    same = (pairs.labels[:, None] == pairs.labels).double()
    share = same / same.sum(1, keepdim=True)
    expected = -((share * logits.log_softmax(1)).sum(1) + (share * logits.T.log_softmax(1)).sum(1)).mean() / 2
    torch.testing.assert_close(terms["pairwise" if term else "loss"], expected)


def test_a_batch_has_the_labels_of_its_pairs():
    pairs = labelled()
    engine = Engine(recipe_of(encoder="mlp-of-images", second_encoder="bag"), pairs, seed=1, device=CPU)
    samples = torch.tensor([31, 0, 7])
    batch = engine.batch(samples)
    assert torch.equal(batch.labels, pairs.labels[samples])
    assert torch.equal(batch.images, pairs.first.values[pairs.labels[samples]])
    plain = PairSet("a", "train", pairs.second, pairs.second)
    assert torch.equal(Engine(recipe_of(), plain, seed=1, device=CPU).batch(samples).labels, samples)


@pytest.mark.parametrize("loss", ["triplet", "nt-logistic", "own"])
def test_a_loss_without_labels_is_refused(loss, registries):
    @sw.register.loss("own", about="A test's.")
    def own(z_a, z_b):
        return (z_a - z_b).square().mean()

    for objective in ({"loss": loss}, {"loss": loss, "terms": ["qare"]}):
        recipe = recipe_of(encoder="mlp-of-images", second_encoder="bag", objective=objective)
        with pytest.raises(ValueError, match="expected a loss that takes labels for pairs with labels"):
            sw.methods.create(recipe, labelled())


@pytest.mark.parametrize("loss", ["info-nce", "nt-xent", "sparse-clr"])
def test_a_labelled_batch_in_parts_is_the_whole(loss):
    recipes = [
        recipe_of(encoder="mlp-of-images", second_encoder="bag", objective={"loss": loss}, parts=n) for n in (1, 3)
    ]
    made = [trained(recipe, labelled()) for recipe in recipes]
    for name, x in made[0].tensors().items():
        torch.testing.assert_close(made[1].tensors()[name], x, msg=name)


def in_sets(size: int = 4) -> PairSet:
    return PairSet("a", "train", vectors(0), ids(1), sets=torch.arange(40) // size)


@pytest.mark.parametrize("term", [False, True])
def test_rows_of_one_set_share_what_is_known(term):
    """MIL-NCE, rows and columns: -log of the probability that a row gives to its set."""
    pairs = in_sets()
    objective = CLIP | ({"terms": [{"term": "qare", "weight": 3.0}]} if term else {})
    recipe = recipe_of(encoder="mlp", second_encoder="bag", objective=objective)
    method = sw.methods.create(recipe, pairs).double()
    terms = method(batch_of(pairs))
    z_a, z_b = method.embed(method.encode(batch_of(pairs)))
    logits = normalize(z_a) @ normalize(z_b).T / 0.2
    same = pairs.sets[:, None] == pairs.sets
    inside = logits.masked_fill(~same, -math.inf)
    expected = sum((logits.logsumexp(k) - inside.logsumexp(k)).mean() for k in (0, 1)) / 2
    torch.testing.assert_close(terms["pairwise" if term else "loss"], expected)
    if not term:
        hidden = method(batch_of(pairs.shuffled(seed=3)))
        torch.testing.assert_close(hidden["loss"], terms["loss"], msg="no order inside a set is known")
        alone = replace(pairs, sets=torch.arange(40))
        torch.testing.assert_close(method(batch_of(alone))["loss"], clip_loss(z_a, z_b, 0.2))


@pytest.fixture
def seen(registries):
    """The sets that a loss named "own" was called with."""
    seen = []

    @sw.register.loss("own", about="A test's.")
    class Own(torch.nn.Module):
        def forward(self, z_a, z_b, sets):
            seen.append(sets)
            return (z_a - z_b).square().mean()

    return seen


def test_the_loss_has_the_sets_of_its_batch(seen):
    pairs = in_sets()
    recipe = recipe_of(encoder="mlp", second_encoder="bag", objective={"loss": "own"})
    engine = trained(recipe, pairs)
    assert engine.sizes == [16, 16, 8]
    assert [len(a) for a, _ in seen] == [16, 16, 8] * 2
    for first, second in seen:
        assert torch.equal(first, second)
        assert first.unique(return_counts=True)[1].tolist() == [4] * (len(first) // 4), "whole sets"
    assert sorted(torch.cat([a for a, _ in seen[:3]]).tolist()) == pairs.sets.tolist()
    with pytest.raises(ValueError, match="expected a loss that takes sets for pairs with sets, got NTLogistic"):
        sw.methods.create(recipe_of(encoder="mlp", second_encoder="bag", objective={"loss": "nt-logistic"}), pairs)
    paired = [[name] for name in ("gap", "structural-difference", "cross-correlation", "cka", "nuclear-norm")]
    for terms in (*paired, ["qare", "gap"], [{"term": "qare", "reference": "truth"}]):
        recipe = recipe_of(encoder="mlp", second_encoder="bag", objective=CLIP | {"terms": terms})
        with pytest.raises(ValueError, match="expected terms that need no pairs, since only sets are known"):
            sw.methods.create(recipe, pairs)
    fine = recipe_of(encoder="mlp", second_encoder="bag", objective=CLIP | {"terms": UNPAIRED})
    sw.methods.create(fine, pairs)


@pytest.mark.parametrize(("anneal", "first"), [(0.5, 3), (0.0, 0), (0.7, 5), (1.0, 6)])
def test_the_truth_changes_when_its_share_of_training_is_done(seen, anneal, first):
    method = {"name": "pairs", "truth": "one-to-one", "anneal": anneal}
    trained(recipe_of(encoder="mlp", second_encoder="bag", objective={"loss": "own"}, method=method), in_sets())
    assert [sw.Sets(*sets).truth for sets in seen] == ["same"] * first + ["one-to-one"] * (6 - first)
    seen.clear()
    method = {"name": "pairs", "price": 0.3, "anneal": anneal}
    trained(recipe_of(encoder="mlp", second_encoder="bag", objective={"loss": "own"}, method=method), in_sets())
    assert [sw.Sets(*sets)[2:4] for sets in seen] == [("same", None)] * first + [("same", 0.3)] * (6 - first)


@pytest.mark.parametrize(("anneal", "share"), [(0.5, 0.5), (0.0, 0.0), (1 / 3, 1 / 3)])
def test_the_truth_begins_as_soft_as_the_loss_and_hardens_by_equal_factors(registries, anneal, share):
    seen = []

    @sw.register.loss("own", about="A test's.")
    class Own(torch.nn.Module):
        def forward(self, z_a, z_b, sets):
            seen.append(float(sw.Sets(*sets).softness))
            return (z_a - z_b).square().mean()

    method = {"name": "pairs", "truth": "one-to-one", "anneal": anneal, "softness": 0.1}
    recipe = recipe_of(encoder="mlp", second_encoder="bag", objective={"loss": "own"}, method=method)
    engine = trained(recipe, in_sets())
    first = round(share * 6)
    assert seen[:first] == [0.0] * first
    late = [0.1 ** ((step / 6 - anneal) / (1 - anneal)) for step in range(first, 6)]
    assert seen[first:] == pytest.approx(late, rel=1e-5)
    assert engine.method.softness.item() == pytest.approx(0.1), "a checkpoint has where it is"
    assert "model.softness" in engine.tensors()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"truth": "hard", "softness": 2.0}, "expected softness from 0 to 1, got 2.0"),
        ({"softness": 0.1}, "expected --method.truth hard or one-to-one with a softness, got same"),
    ],
)
def test_a_softness_that_makes_no_sense(options, message):
    recipe = recipe_of(encoder="mlp", second_encoder="bag", method={"name": "pairs", **options})
    with pytest.raises(ValueError, match=message):
        sw.methods.create(recipe, in_sets())


def test_truth_and_price_are_for_sets():
    known = PairSet("a", "train", vectors(0), ids(1))
    for option in ({"truth": "hard"}, {"price": 0.3}):
        recipe = recipe_of(encoder="mlp", second_encoder="bag", method={"name": "pairs", **option})
        with pytest.raises(ValueError, match="expected sets for --method.truth and --method.price"):
            sw.methods.create(recipe, known)


@pytest.mark.parametrize("loss", ["info-nce", "nt-xent", "sparse-clr", "triplet"])
def test_sets_in_parts_are_the_whole(loss):
    recipes = [recipe_of(encoder="mlp", second_encoder="bag", objective={"loss": loss}, parts=n) for n in (1, 3)]
    made = [trained(recipe, in_sets(3)) for recipe in recipes]
    for name, x in made[0].tensors().items():
        torch.testing.assert_close(made[1].tensors()[name], x, msg=name)


@pytest.fixture(autouse=True)
def own_encoder(registries):
    @sw.register.encoder("mlp-of-images", about="A test's.")
    class Flat(torch.nn.Module):
        def __init__(self, channels, image_size):
            super().__init__()
            self.features, self.layer = 4, torch.nn.Linear(channels * image_size[0] * image_size[1], 4)

        def forward(self, x):
            return self.layer(x.flatten(1))


def test_sides_of_any_kind_and_encoders_that_fit():
    sides = {"ids": ids(0), "features": vectors(0), "images": images()}
    encoders = {"ids": "bag", "features": "mlp", "images": "conv4"}
    for first in sides:
        for second in sides:
            recipe = recipe_of(encoder=encoders[first], second_encoder=encoders[second])
            engine = trained(recipe, PairSet("a", "train", sides[first], sides[second]))
            assert math.isfinite(engine.means()["loss"])
    pairs = PairSet("a", "train", sides["ids"], sides["images"])
    with pytest.raises(ValueError, match=r"expected an encoder of images \(conv4, .*got 'bag', which is for ids"):
        sw.methods.create(recipe_of(), pairs)
    with pytest.raises(ValueError, match="expected as many features from both encoders without heads, got 128 and 64"):
        sw.methods.create(recipe_of(second_encoder="conv4", method={"head": "none"}), pairs)
    with pytest.raises(ValueError, match="expected pairs for method 'pairs', got ImageSet"):
        sw.methods.create(recipe_of(), sw.data.load("digits"))
    with pytest.raises(ValueError, match="expected labelled images for method 'contrastive', got PairSet"):
        sw.methods.create(Recipe.read({}), pairs)


def test_the_views_of_two_images_are_drawn_apart():
    side = images()
    method = sw.methods.create(recipe_of(encoder="conv4", views="self-supervised"), PairSet("a", "train", side, side))
    batch = batch_of(PairSet("a", "train", side, side))
    first, second = (method._items(batch, k) for k in (0, 1))
    keys = {"samples": batch.samples, "seed": 0, "epoch": 0}
    views = sw.views.preset("self-supervised", mean=side.mean, std=side.std)
    for view, x in enumerate((first, second)):
        torch.testing.assert_close(x, views(side.values, view=view, **keys).double())
    assert not torch.equal(first, second)


def test_recipes_of_pairs_are_read_and_written():
    recipe = recipe_of(encoder="conv4", second_encoder={"name": "bag", "features": 32}, data={"instances": 5})
    assert Recipe.read(tomllib.loads(to_toml(recipe.tree()))) == recipe
    assert recipe.changed({"second_encoder.features": 16}).second_encoder["features"] == 16
    assert recipe.changed({"second_encoder": "mlp"}).second_encoder.name == "mlp"
    assert recipe.changed({"second_encoder": "none"}).second_encoder is None
    assert "second_encoder" not in Recipe.read({}).tree()
    with pytest.raises(ValueError, match="expected a second encoder for method 'pairs' only"):
        recipe.changed({"method": "contrastive", "data.instances": None})
