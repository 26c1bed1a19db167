"""Contrastive methods: two views, or the mean over all pairs of more."""

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


def test_the_number_of_views_is_an_option():
    data = sw.data.load("digits")
    recipe = Recipe.read({"method": {"name": "contrastive", "views": 4}})
    assert sw.methods.create(recipe, data).count == 4
    with pytest.raises(ValueError, match="expected at least two views to contrast, got 1"):
        sw.methods.create(recipe.changed({"method.views": 1}), data)
