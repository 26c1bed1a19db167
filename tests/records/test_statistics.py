"""Means and paired differences: against scipy and numpy, by hand, at their edges."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_rel

from setwise.paper import numbers as paper_numbers
from setwise.records.statistics import PairedDifference, holm, mean_std, number, numbers, paired_difference

VALUES = st.floats(0, 100)


@given(st.lists(VALUES, min_size=2, max_size=12))
def test_mean_and_sample_deviation_are_numpys(values):
    found = mean_std(values)
    assert found.mean == pytest.approx(np.mean(values), abs=1e-9)
    assert found.std == pytest.approx(np.std(values, ddof=1), abs=1e-9)
    assert found.n == len(values)


def test_one_value_has_no_deviation_and_none_no_mean():
    assert (mean_std([3.5]).mean, mean_std([3.5]).std, mean_std([3.5]).n) == (3.5, None, 1)
    with pytest.raises(ValueError, match="expected at least one value"):
        mean_std([])


@given(st.lists(st.tuples(VALUES, VALUES), min_size=2, max_size=12))
def test_the_interval_is_that_of_the_paired_t_test(pairs):
    a, b = (np.array(side) for side in zip(*pairs, strict=True))
    if np.std(a - b) < 1e-6:
        return  # scipy gives nan where all differences are equal
    expected = ttest_rel(a, b).confidence_interval(0.95)
    found = paired_difference(dict(enumerate(a)), dict(enumerate(b)))
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-9, abs=1e-9)
    assert found.mean == pytest.approx(float(np.mean(a - b)), abs=1e-9)
    assert found.p == pytest.approx(ttest_rel(a, b).pvalue, rel=1e-6, abs=1e-12)


def test_holms_correction_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []
    assert paired_difference({1: 2.0, 2: 3.0}, {1: 2.0, 2: 3.0}).p == 1


def test_by_hand_over_the_shared_seeds_only():
    found = paired_difference({3: 56.0, 1: 53.0, 2: 53.0, 9: 0.0}, {1: 50.0, 2: 52.0, 3: 54.0, 7: 99.0})
    t = 0.95 / math.sqrt(2 * 0.975 * 0.025)  # closed form for two degrees of freedom
    half = t / math.sqrt(3)  # differences 3, 1, 2: mean 2, deviation 1
    assert (found.mean, found.n, found.seeds) == (pytest.approx(2.0), 3, (1, 2, 3))
    assert (found.low, found.high) == pytest.approx((2 - half, 2 + half), rel=1e-9)


def test_too_few_seeds():
    assert paired_difference({1: 2.0}, {2: 1.0}) is None
    assert paired_difference({}, {}) is None
    assert paired_difference({1: 2.0, 2: 5.0}, {1: 1.5}) == PairedDifference(0.5, None, None, 1, (1,))


@pytest.mark.parametrize(
    ("low", "high", "side"),
    [(0.1, 2.0, "above"), (-1.0, 1.0, "around"), (0.0, 1.0, "around"), (-1.0, 0.0, "around"), (-2.0, -0.1, "below")],
)
def test_where_an_interval_lies(low, high, side):
    assert PairedDifference((low + high) / 2, low, high, 3, (1, 2, 3)).side == side


def test_differences_that_agree_to_the_digit_tell_nothing():
    shares = {1: 0.5929, 2: 0.6002}, {1: 0.5910, 2: 0.5983}  # both +0.19 points, but for rounding of floats
    a, b = ({seed: 100 * share for seed, share in side.items()} for side in shares)
    assert 0 < np.std([a[seed] - b[seed] for seed in a]) < 1e-12
    found = paired_difference(a, b)
    assert (found.mean, found.n, found.p, found.side) == (pytest.approx(0.19), 2, 1.0, "around")
    assert (found.low, found.high) == (-math.inf, math.inf)
    for equal in ({1: 1.0, 2: 2.0}, {1: 2.0, 2: 3.0}):
        assert paired_difference({1: 2.0, 2: 3.0}, equal).side == "around"
    assert paired_difference({1: 3.0}, {1: 4.0}).side == "unknown"


def test_numbers_of_a_record():
    mixed = (1, 0.5, True, None, "1", math.nan, math.inf, [1], 10**400)
    assert list(map(number, mixed)) == numbers(mixed) == [1.0, 0.5, *[None] * 7]
    assert numbers([1.5, math.nan, -math.inf]) == [1.5, None, None]
    assert numbers([1e308, 1e308]) == [1e308, 1e308]


def test_the_papers_numbers_are_complete():
    losses = {loss for loss, _ in paper_numbers.MATCHING}
    assert losses == {"triplet", "infonce", "nt-logistic", "sparseclr"}
    assert len(paper_numbers.MATCHING) == 8
    encoders, data, methods = ({key[i] for key in paper_numbers.CLASSIFICATION} for i in range(3))
    assert (encoders, data) == ({"conv4", "resnet32"}, {"cifar10", "cifar100", "tiny-imagenet"})
    assert len(methods) == 9
    assert len(paper_numbers.CLASSIFICATION) == 2 * 3 * 9
    for found in [*paper_numbers.MATCHING.values(), *paper_numbers.CLASSIFICATION.values()]:
        assert 3 < found.mean < 91
        assert 0 < found.std < 2
        assert found.n == 3


def test_some_of_the_papers_numbers():
    for key, expected in {
        ("infonce", "qare"): (61.96, 1.38),
        ("nt-logistic", ""): (40.30, 0.42),
        ("conv4", "cifar10", "simclr-qare"): (61.54, 1.17),
        ("resnet32", "cifar10", "sparseclr"): (70.37, 0.12),
        ("resnet32", "tiny-imagenet", "sparseclr-qare"): (27.03, 0.40),
        ("conv4", "tiny-imagenet", "random"): (6.19, 0.13),
    }.items():
        found = (paper_numbers.MATCHING | paper_numbers.CLASSIFICATION)[key]
        assert (found.mean, found.std) == expected
    # The gains that its text names: 3.6 and 4.1 of matching, 1.9 and 1.6 of SimCLR.
    gain = {
        loss: paper_numbers.MATCHING[loss, "qare"].mean - paper_numbers.MATCHING[loss, ""].mean
        for loss, _ in paper_numbers.MATCHING
    }
    assert (round(gain["triplet"], 1), round(gain["infonce"], 1)) == (3.6, 4.1)


def test_names_are_written_as_the_paper_does():
    names = {"infonce": "InfoNCE", "conv4": "Conv-4", "resnet32": "ResNet-32", "cifar100": "CIFAR-100", "own": "own"}
    assert {name: paper_numbers.word(name) for name in names} == names
