"""Objectives: what their tables say, what is built of them, terms of several kinds and functions of one's own."""

import pytest
import torch
import torch.nn.functional as F

import setwise as sw
import setwise.register as register
from setwise.losses.combined import Function, WeightedTerms
from setwise.losses.objective import Objective, build


def spread(z_a, z_b, *, scale: float = 1.0):
    return scale * (z_a.var() + z_b.var())


@pytest.mark.usefixtures("registries")
def test_functions_and_terms_add_up(views):
    register.term("spread", about="Variances.")(spread)
    register.loss("mse", about="Squares.")(lambda z_a, z_b: F.mse_loss(z_a, z_b))
    z_a, z_b = views(6, 4)
    table = {"loss": "mse", "weight": 0.5, "terms": [{"term": "spread", "weight": 2.0, "scale": 3}, "qare", "gap"]}
    objective = Objective.read(table)
    assert Objective.read(objective.tree()) == objective
    loss = build(objective)
    expected = 0.5 * F.mse_loss(z_a, z_b) + 2 * spread(z_a, z_b, scale=3.0)
    expected = expected + sw.QARe()(z_a, z_b) + sw.QARe(reference="truth")(z_a, z_b)
    torch.testing.assert_close(loss(z_a, z_b), expected)
    grads = [torch.autograd.grad(x, (z_a, z_b)) for x in (loss(z_a, z_b), expected)]
    torch.testing.assert_close(*grads)
    assert "weights={'spread': 2.0, 'qare': 1.0, 'gap': 1.0}" in repr(loss)
    alone = build(Objective.read("mse"))
    assert isinstance(alone, Function)
    torch.testing.assert_close(alone(z_a, z_b), F.mse_loss(z_a, z_b))
    one = build(Objective.read({"loss": "info-nce", "terms": ["spread"]}))
    torch.testing.assert_close(one(z_a, z_b), sw.InfoNCE()(z_a, z_b) + spread(z_a, z_b))


def test_a_weight_alone(views):
    z_a, z_b = views(6, 4)
    loss = build(Objective.read({"loss": "nt-xent", "weight": 0.25}))
    torch.testing.assert_close(loss(z_a, z_b), 0.25 * sw.NTXent()(z_a, z_b))
    assert loss.terms(z_a, z_b)["regularizer"] == 0


def test_terms_that_make_no_number(views):
    z_a, z_b = views(6, 4)
    terms = WeightedTerms({"qare": (1.0, sw.QARe()), "rows": (1.0, lambda z_a, z_b: (z_a - z_b).norm(dim=1))})
    with pytest.raises(ValueError, match=r"expected the term 'rows' to return a scalar, got shape \(6,\)"):
        terms(z_a, z_b)
    with pytest.raises(ValueError, match="expected weight to be a finite number of at least 0, got -1"):
        WeightedTerms({"qare": (-1, sw.QARe())})


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("info-nec", "expected the loss to be registered.*did you mean 'info-nce'"),
        (3, "expected the loss by its name, or a table with 'loss', got 3"),
        ({"temperature": 0.1}, "expected the loss by its name"),
        ({"loss": "info-nce", "temprature": 0.1}, "expected an option of 'info-nce'.*did you mean 'temperature'"),
        ({"loss": "info-nce", "temperature": -1}, "expected temperature to be a finite number above 0, got -1"),
        ({"loss": "info-nce", "terms": "qare"}, "expected terms to be a list"),
        ({"loss": "info-nce", "terms": ["qrae"]}, "expected the set-level term to be registered.*mean 'qare'"),
        ({"loss": "info-nce", "terms": [{"term": "qare", "on": "feature"}]}, "expected on.*did you mean 'features'"),
        ({"loss": "info-nce", "terms": [{"term": "qare", "weight": "x"}]}, "expected weight to be a number, got 'x'"),
        ({"loss": "info-nce", "terms": ["qare", "qare"]}, "expected every set-level term once, got qare, qare"),
        ({"loss": "info-nce", "terms": ["qare", {"term": "gap", "on": "features"}]}, "all on the features, got both"),
    ],
)
def test_bad_tables(table, message):
    with pytest.raises(ValueError, match=message):
        build(Objective.read(table))
