"""Looks at the structure of a set: from a history to a record's columns and back, against scipy; what cannot be."""

import math

import numpy as np
import pytest
from scipy.stats import entropy

from setwise.records.structure import Structure, columns_of_looks, effective_rank, read_structures


def test_effective_rank_is_that_of_scipys_entropy():
    values = np.random.default_rng(0).gamma(1.0, size=64)
    assert effective_rank(values.tolist()) == pytest.approx(math.exp(entropy(values)), rel=1e-12)
    assert effective_rank([2.0] * 5) == pytest.approx(5)
    assert effective_rank([3.0, 0.0, -1e-17]) == pytest.approx(1), "below zero is rounding"
    assert effective_rank([]) is effective_rank([0.0, -1.0]) is None


def test_a_look_is_the_mean_of_both_views_and_the_last_one_has_its_spectrum():
    views = np.sort(np.random.default_rng(1).gamma(1.0, size=(3, 2, 16)))[..., ::-1]
    more = {"rows": 128, "support": 20.0, "negatives": 254.0, "same_class": 0.1, "same_class_weight": 0.18}
    history = [{"epoch": epoch, "loss": 1.0} for epoch in (1, 2, 3, 4)]
    for epoch, eigenvalues in zip((1, 2, 4), views.tolist(), strict=True):
        history[epoch - 1]["structure"] = {"eigenvalues": eigenvalues, **more}
    columns = columns_of_looks(history)
    assert (columns["epoch"], columns["rows"]) == ([1, 2, 4], [128] * 3)
    assert columns["eigenvalues"] == views[-1].tolist()
    found = read_structures(columns)
    assert list(found) == [1, 2, 4]
    for look, those in zip(found.values(), views, strict=True):
        assert look.effective_rank == pytest.approx(np.exp(entropy(those, axis=1)).mean())
        assert look.largest == pytest.approx(those.max(1).mean())
        assert (look.support, look.negatives, look.feature_rank) == (20, 254, None)
        assert (look.same_class_weight, look.same_class) == (pytest.approx(18), pytest.approx(10))
    assert found[4].spectrum == pytest.approx(views[-1].mean(0).tolist())
    assert found[1].spectrum == found[2].spectrum == ()


@pytest.mark.parametrize(
    ("structure", "left"),
    [
        (None, set()),
        ("words", set()),
        ([], set()),
        ({}, set()),
        ({"eigenvalues": [[3.0, 1.0]]}, {"spectrum", "effective_rank", "largest"}),
        ({"eigenvalues": [[3.0, 1.0], [3.0, math.nan]]}, {"spectrum", "effective_rank", "largest"}),
        ({"eigenvalues": [[3.0, "1"], [math.inf], [1e308, 1e308], None, 4]}, set()),
        ({"eigenvalues": {"a": [1.0]}, "support": True, "negatives": "254"}, set()),
        ({"eigenvalues": [[0.0, 0.0]]}, {"spectrum", "largest"}),
        ({"support": 300.0, "negatives": 254.0, "same_class": -0.1, "same_class_weight": 1.5}, {"negatives"}),
        ({"support": 10**400, "negatives": math.nan, "same_class": 0.1}, {"same_class"}),
        ({"feature_rank": 3.5}, {"feature_rank"}),
        ({"feature_rank": -1.0}, set()),
    ],
)
def test_what_cannot_be_is_left_out(structure, left):
    found = read_structures(columns_of_looks([{"epoch": 1, "structure": structure}]))
    look = found.get(1, Structure())
    assert {name for name, value in vars(look).items() if value not in (None, ())} == left
    if "spectrum" in left:
        assert look.largest == look.spectrum[0] in (3.0, 0.0)


@pytest.mark.parametrize("columns", [None, [], {"support": [1.0]}, {"epoch": "1"}, {"epoch": [None, {}]}])
def test_columns_of_nothing_are_no_looks(columns):
    assert read_structures(columns) == {}
    assert list(read_structures({"epoch": [1, 2], "support": [3.0]})) == [1], "a column that is too short"
