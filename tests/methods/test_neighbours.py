"""The nearest other image as a positive: its formula, its table, and what does not count."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.neighbors import NearestNeighbors
from torch.nn.functional import normalize

import setwise as sw
from setwise.recipe import Recipe
from setwise.training.engine import Engine

OBJECTIVES = {"plain": "nt-xent", "term": {"loss": "info-nce", "terms": [{"term": "qare", "weight": 0.5}]}}


def made(objective="nt-xent", **options):
    data = sw.data.load("digits")
    own = {"name": "neighbours", "views": 3, "weight": 2.0} | options
    tree = {"method": own, "encoder": "resnet8", "head": {"hidden": 16, "out": 6}, "objective": objective}
    torch.manual_seed(0)
    method = sw.methods.create(Recipe.read(tree), data).double()
    method.table.copy_(normalize(torch.randn(method.table.shape, dtype=torch.float64)))
    return method, data


def batch_of(data, rows, phase):
    keys = {"seed": torch.tensor(1), "epoch": torch.tensor(2)}
    return sw.Batch(data.images[rows], rows, data.labels[rows], **keys, dtype=torch.float64, phase=phase)


def nearest(table, mean, rows):
    """By scikit-learn, of all rows but each one's own."""
    search = NearestNeighbors(n_neighbors=2, metric="cosine", algorithm="brute").fit(table)
    found = search.kneighbors(mean.detach(), return_distance=False)
    return torch.tensor([next(i for i in line if i != own) for line, own in zip(found, rows.tolist(), strict=True)])


@pytest.mark.parametrize("against", ["each", "mean"])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_loss_and_its_gradient_are_the_formula(name, against):
    method, data = made(OBJECTIVES[name], against=against)
    rows = torch.tensor([5, 40, 7, 300, 12, 8])
    table = method.table.clone()
    batch = batch_of(data, rows, "neighbours")
    h = method.crops.joined(method.encode(batch))
    z = method.head(h).detach().requires_grad_()
    unit = [normalize(x) for x in z.chunk(3)]
    mean = normalize(sum(unit) / 3)
    table[rows] = mean.detach()  # so that each row's own is the nearest one, if it counted
    method.table.copy_(table)
    near = table[nearest(table, mean, rows)]
    pairwise = method.loss.pairwise if name == "term" else method.loss
    pairs = (
        [(z.chunk(3)[i], z.chunk(3)[j]) for i, j in ((0, 1), (0, 2), (1, 2))]
        if against == "each"
        else [(one, (sum(unit) - one) / 2) for one in unit]
    )
    own = sum(pairwise(*pair) for pair in pairs) / 3
    terms = sum(0.5 * sw.QARe()(*pair) for pair in pairs) / 3 if name == "term" else 0.0
    theirs = sum(pairwise(near, view) for view in unit) / 3
    expected = (own + 2.0 * theirs) / 3 + terms
    (gradient,) = torch.autograd.grad(expected, z)

    again = z.detach().clone().requires_grad_()
    method.head = torch.nn.Identity()
    method.crops.joined = lambda encoded: encoded[0]
    found = method.compare((again,), batch)
    torch.testing.assert_close(found["loss"], expected)
    torch.testing.assert_close(found["neighbours"], theirs)
    torch.testing.assert_close(torch.autograd.grad(found["loss"], again)[0], gradient)


def test_at_first_it_is_contrastive():
    method, data = made()
    batch = batch_of(data, torch.arange(9), method.phase(49, 100))
    torch.manual_seed(0)
    tree = {"name": "contrastive", "views": 3}
    plain = sw.methods.create(method_recipe(method, tree), data).double()
    torch.testing.assert_close(method(batch), plain(batch))
    assert [method.phase(step, 100) for step in (0, 49, 50, 99)] == [None, None, "neighbours", "neighbours"]


def method_recipe(method, tree):
    return Recipe.read({"method": tree, "encoder": "resnet8", "head": {"hidden": 16, "out": 6}, "objective": "nt-xent"})


@pytest.mark.parametrize("small", [0, 1])
def test_the_table_holds_the_means_of_the_large_views(small):
    method, data = made(small=small, small_side=0.75)
    rows = torch.tensor([3, 700, 11])
    batch = batch_of(data, rows, None)
    before = method.table.clone()
    method.eval()  # so that a second pass gives the same
    z = method.head(method.crops.joined(method.encode(batch))).detach().numpy()
    unit = (z / np.linalg.norm(z, axis=1, keepdims=True)).reshape(3 + small, 3, -1)[:3]
    mean = unit.mean(0)
    method(batch)
    np.testing.assert_allclose(method.table[rows], mean / np.linalg.norm(mean, axis=1, keepdims=True), rtol=1e-12)
    others = np.setdiff1d(np.arange(len(before)), rows)
    assert torch.equal(method.table[others], before[others])
    assert "table" in method.state_dict()  # so a resumed run has it


def test_an_image_that_was_not_seen_is_no_positive():
    method, data = made()
    method.table.zero_()
    found = method(batch_of(data, torch.arange(6), "neighbours"))
    found["neighbours"].backward()
    assert torch.isfinite(found["loss"])


def test_what_makes_no_sense_is_refused():
    for options, message in (
        ({"start": 1.5}, "expected start from 0 to 1, a share of training, got 1.5"),
        ({"weight": -1}, "expected weight to be a finite number of at least 0, got -1"),
        ({"views": 1}, "expected at least two large views"),
    ):
        with pytest.raises(ValueError, match=message):
            made(**options)


def test_it_learns_digits_without_collapse():
    whole = sw.data.load("digits")
    few = replace(whole, images=whole.images[:512], labels=whole.labels[:512])
    tree = {"method": {"name": "neighbours", "start": 0.3}, "objective": "nt-xent", "batch": 64, "epochs": 3}
    tree |= {"views": {"preset": "supervised", "padding": 1, "flip": 0.0}, "optimizer": {"name": "adam", "lr": 3e-3}}
    engine, losses = Engine(Recipe.read(tree), few, seed=1, device=torch.device("cpu")), []
    for epoch in range(3):
        engine.begin(epoch)
        for _ in range(engine.steps):
            engine.step()
        losses.append(engine.means())
    assert losses[-1]["loss"] < losses[0]["loss"] - 0.5
    assert losses[-1]["neighbours"] < 4.0  # of neighbours drawn at random 4.8, the logarithm of 127 others
    engine.method.eval()
    views = sw.views.preset("none", mean=few.mean, std=few.std)
    with torch.no_grad():
        x = engine.method.encoder(views(few.images, samples=torch.arange(512), seed=0, epoch=0))
    x = normalize(x - x.mean(0))
    assert (few.labels[(x @ x.T).fill_diagonal_(-1).argmax(1)] == few.labels).float().mean() > 0.6
