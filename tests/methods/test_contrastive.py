"""Contrastive methods: two views, or the mean over all pairs of more."""

from dataclasses import replace
from itertools import combinations

import pytest
import torch

import setwise as sw
from setwise.recipe import Recipe

FEATURES = [{"term": "qare", "weight": 2.0, "on": "features"}]
OBJECTIVES = {"plain": "nt-xent", "terms": {"loss": "info-nce", "terms": ["qare", "gap"]}}
OBJECTIVES["features"] = {"loss": "info-nce", "terms": FEATURES}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_three_views_are_the_mean_over_their_pairs(name):
    data, rows, keys = sw.data.load("digits"), torch.arange(12), {"seed": torch.tensor(1), "epoch": torch.tensor(2)}
    recipe = Recipe.read({"method": {"name": "contrastive", "views": 3}, "objective": OBJECTIVES[name]})
    method = sw.methods.create(recipe, data)
    views, loss = method.views, method.loss
    terms = method.double()(sw.Batch(data.images[rows], rows, data.labels[rows], **keys, dtype=torch.float64))
    x = views.several(data.images[rows], 3, samples=rows, **keys).double()
    h = method.encoder(x.flatten(0, 1))  # as one batch
    sets = list(zip(method.head(h).chunk(3), h.chunk(3), strict=True))
    pairs = [
        loss(z_a, z_b, (h_a, h_b)) if name == "features" else loss(z_a, z_b)
        for (z_a, h_a), (z_b, h_b) in combinations(sets, 2)
    ]
    torch.testing.assert_close(terms["loss"], sum(pairs) / 3)
    assert terms.keys() == ({"loss"} if name == "plain" else {"loss", "pairwise", "regularizer"})


@pytest.mark.parametrize("name", OBJECTIVES)
def test_small_views_are_compared_with_large_ones(name):
    data, rows, keys = sw.data.load("digits"), torch.arange(12), {"seed": torch.tensor(1), "epoch": torch.tensor(2)}
    small = {"small": 2, "small_side": 0.75, "small_area": [0.1, 0.5]}
    tree = {"method": {"name": "contrastive", **small}, "encoder": "resnet8", "objective": OBJECTIVES[name]}
    method = sw.methods.create(Recipe.read(tree), data).double()
    terms = method(sw.Batch(data.images[rows], rows, data.labels[rows], **keys, dtype=torch.float64))
    parts = replace(method.views, crop="resized", area=(0.1, 0.5), size=(6, 6))
    sizes = [
        views.several(data.images[rows], 2, samples=rows, first=first, **keys).double().flatten(0, 1)
        for views, first in ((method.views, 0), (parts, 2))
    ]
    h = torch.cat([method.encoder(x) for x in sizes])  # each size as one batch, the head sees both
    sets = list(zip(method.head(h).chunk(4), h.chunk(4), strict=True))
    pairs = [
        method.loss(sets[i][0], sets[j][0], *([(sets[i][1], sets[j][1])] if name == "features" else []))
        for i, j in ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3))
    ]
    torch.testing.assert_close(terms["loss"], sum(pairs) / 5)


@pytest.mark.parametrize("small", [0, 2])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_each_view_against_the_mean_of_the_others(name, small):
    data, rows, keys = sw.data.load("digits"), torch.arange(12), {"seed": torch.tensor(1), "epoch": torch.tensor(2)}
    own = {"name": "contrastive", "views": 3, "small": small, "small_side": 0.75, "against": "mean"}
    method = sw.methods.create(
        Recipe.read({"method": own, "encoder": "resnet8", "objective": OBJECTIVES[name]}), data
    ).double()
    batch = sw.Batch(data.images[rows], rows, data.labels[rows], **keys, dtype=torch.float64)
    joined = method.crops.joined(method.encode(batch))
    unit = [x / x.norm(dim=1, keepdim=True) for x in (*method.head(joined).chunk(3 + small), *joined.chunk(3 + small))]
    z, h = unit[: 3 + small], unit[3 + small :]
    losses = []
    for i in range(3 + small):
        others = [j for j in range(3) if j != i]
        mean_z, mean_h = (sum(x[j] for j in others) / len(others) for x in (z, h))
        more = [(h[i], mean_h)] if name == "features" else []
        losses.append(method.loss(z[i], mean_z, *more))
    torch.testing.assert_close(method.compare(method.encode(batch), batch)["loss"], sum(losses) / (3 + small))


def test_of_two_views_the_mean_is_the_other_one():
    data, rows, keys = sw.data.load("digits"), torch.arange(12), {"seed": torch.tensor(1), "epoch": torch.tensor(2)}
    batch = sw.Batch(data.images[rows], rows, data.labels[rows], **keys, dtype=torch.float64)
    found = {}
    for against in ("each", "mean"):
        tree = {"method": {"name": "contrastive", "against": against}, "objective": "nt-xent"}
        torch.manual_seed(0)
        found[against] = sw.methods.create(Recipe.read(tree), data).double()(batch)["loss"]
    torch.testing.assert_close(found["mean"], found["each"])  # whose two sides are alike


def test_the_number_of_views_is_an_option():
    data = sw.data.load("digits")
    recipe = Recipe.read({"method": {"name": "contrastive", "views": 4}})
    assert sw.methods.create(recipe, data).crops.count == 4
    with pytest.raises(ValueError, match="expected at least two large views .* got 1 and 0"):
        sw.methods.create(recipe.changed({"method.views": 1}), data)
