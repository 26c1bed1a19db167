"""The paper's claims: each verdict from an interval of its own, checked against scipy."""

import numpy as np
import pytest
from scipy.stats import ttest_rel

from setwise.paper.claims import CLAIMS, claims, counted, differences, lead, surviving
from setwise.paper.collected import collect, groups

NAME = "released/cifar10-conv4-simclr"


@pytest.fixture
def found(tmp_path):
    return lambda: groups(collect(tmp_path / "results")[0])


@pytest.fixture
def answers(found):
    """The answers to a claim from all records so far."""
    return lambda claim: CLAIMS[claim].answers(found())


@pytest.fixture
def pair(keep):
    """Keeps runs of a loss at 60 %, and of the same with gains in points, by seed."""

    def write(name, gains, end="-qare", seeds=None, **changes):
        for seed, gain in zip(seeds or range(1, 1 + len(gains)), gains, strict=True):
            keep(name, seed, {"probe_accuracy": 0.6})
            keep(f"{name}{end}", seed, {"probe_accuracy": 0.6 + gain / 100}, **changes)

    return write


def interval(values, others):
    """Bounds and p-value of scipy's paired test, of shares of one in points."""
    test = ttest_rel(100 * np.array(values), 100 * np.array(others))
    return pytest.approx((*test.confidence_interval(0.95), test.pvalue))


def bounds(answer):
    return answer.ours.low, answer.ours.high, answer.ours.p


def test_sparseclr_against_simclr_is_paired_by_seed(keep, found, answers):
    simclr, sparse = (0.59, 0.60, 0.61), (0.600, 0.612, 0.621)
    for seed in (1, 2, 3):
        keep(NAME, seed, {"probe_accuracy": simclr[seed - 1]})
        keep(NAME.replace("simclr", "sparseclr"), seed, {"probe_accuracy": sparse[seed - 1]})
        keep(NAME.replace("conv4-simclr", "resnet32-simclr"), seed, {"probe_accuracy": 0.76})
        keep(NAME.replace("conv4-simclr", "resnet32-sparseclr"), seed, {"probe_accuracy": 0.70 + seed / 1000})
    keep(NAME, 9, {"probe_accuracy": 0.1})
    small, deep = answers("sparse-helps")
    assert (small.where, small.verdict, small.paper) == ("CIFAR-10, Conv-4, released form", "yes", "+0.22")
    assert bounds(small) == interval(sparse, simclr)
    assert (deep.verdict, deep.paper) == ("no", "-6.08")
    (row,) = (row for row in claims(found()).rows if row[0] == CLAIMS["sparse-helps"].words)
    assert row[2:4] == [deep.ours, small.ours], "the lowest and the highest"
    assert surviving([small, deep]) == [small, deep]


@pytest.mark.parametrize(
    ("gains", "verdict"),
    [((1.0, 1.1), "yes"), ((1.0, -1.1), "unclear"), ((-1.0, -1.1), "no"), ((1.0,), "one seed only")],
)
def test_the_verdict_is_where_the_interval_lies(pair, found, answers, gains, verdict):
    pair(NAME, gains)
    (answer,) = answers("helps")
    assert answer.verdict == verdict
    assert answer.ours.mean == pytest.approx(np.mean(gains))
    assert lead(found()).startswith(f"Does QARe help? {verdict.capitalize()}.")


def test_qare_against_the_structural_difference_is_paired_by_seed(keep, found, answers):
    values = {"": (0.60, 0.61, 0.62), "-qare": (0.640, 0.655, 0.651), "-control": (0.62, 0.63, 0.65)}
    for end, accuracies in values.items():
        form, more = ("setwise", {"beta": 3.0}) if end == "-control" else ("paper", {})
        for seed, accuracy in enumerate(accuracies, start=1):
            keep(f"{form}/cifar10-matching-infonce{end}", seed, {"test_accuracy": accuracy}, **more)
    (answer,) = answers("beats-structural")
    assert (answer.where, answer.verdict) == ("InfoNCE: CIFAR-10, 1,467 instances", "unclear")
    assert bounds(answer) == interval(values["-qare"], values["-control"])
    ((_, _, paper, *_),) = differences(found()).rows
    assert paper is None, "the paper matched on CUHK-03 only"


def test_in_an_ablation_the_frobenius_norms_have_the_same_weight(keep, answers):
    for seed, (ours, control) in enumerate(((0.61, 0.60), (0.63, 0.61)), start=1):
        keep(NAME, seed, {"probe_accuracy": 0.6}, variant="validation", validation=5000)
        for loss, weight, accuracy in (("qare", 1.0, ours), ("qare", 10.0, 0.5), ("frobenius", 1.0, control)):
            more = {"validation": 5000, "loss": f"ablation/simclr-{loss}", "beta": weight}
            keep(NAME, seed, {"probe_accuracy": accuracy}, variant=f"validation-{loss}-{weight:g}", **more)
    (answer,) = answers("beats-frobenius")
    assert answer.where.startswith("SimCLR, weight 1: CIFAR-10, Conv-4, released form, 5,000 validation images")
    assert (answer.verdict, answer.ours.mean) == ("unclear", pytest.approx(1.5))


def test_a_probe_is_compared_with_weight_0(pair, keep, answers):
    name = "released/cifar10-conv4-sparseclr"
    pair(name, (2.0, 3.0))
    for seed, control in ((1, 0.59), (2, 0.58)):
        for weight, accuracy in ((0.0, control), (0.3, 0.7)):
            keep(f"{name}-qare", seed, {"probe_accuracy": accuracy}, variant=f"beta-{weight:g}", beta=weight)
    (zero,), (plain,) = answers("beats-zero"), answers("helps")
    assert (zero.where, zero.verdict) == ("SparseCLR: CIFAR-10, Conv-4, released form", "unclear")
    assert (zero.ours.mean, plain.ours.mean) == pytest.approx((4.0, 2.5))


def test_many_settings_are_counted_and_corrected_for(pair, answers, found):
    gains = {"conv4": (1.0, 1.1, 1.0), "resnet32": (1.0, 2.1, 0.0)}
    for encoder, values in gains.items():
        for form in ("paper", "released"):
            for data in ("cifar10", "cifar100"):
                pair(f"{form}/{data}-{encoder}-simclr", values)
    pair("paper/cifar10-conv4-sparseclr", (10.0, 11.0))
    pair("released/cifar10-conv4-sparseclr", (1.0,))
    certain, less, unclear = (ttest_rel(x, [0] * len(x)).pvalue for x in (gains["conv4"], (10, 11), gains["resnet32"]))
    assert 9 * certain < 0.05 < 5 * less
    assert less < 0.05 < unclear
    assert counted(answers("helps")) == (
        "yes in 5 of 10 settings (4 after Holm's correction), unclear in 4, one seed only in 1"
    )
    assert lead(found()).startswith("Does QARe help? Yes in 5 of 10 settings")
    row = claims(found()).rows[0]
    assert (row[2].mean, row[3].mean) == pytest.approx((31 / 30, 10.5)), "unclear ones do not count"


def test_safe_weights_are_those_of_the_sweep(keep, answers):
    for seed in (1, 2, 3):
        keep(NAME, seed, {"probe_accuracy": 0.60})
        for weight in (0.0, 0.75, 1.25, 1.875):
            final = {"probe_accuracy": 0.60 + (0.01 + seed / 1000) * (0.7 < weight < 1.3) - 0.1 * (weight > 1.3)}
            keep(f"{NAME}-qare", seed, final, variant=f"beta-{weight:g}", beta=weight)
    (answer,) = answers("safe-weights")
    assert (answer.where, answer.verdict) == ("SimCLR + QARe: CIFAR-10, Conv-4, released form", "yes")
    assert answer.ours.mean == pytest.approx(1.2), "1.875 does not count"


def test_support_and_false_negatives(looked, answers):
    looked()
    (sparse,), (more,) = answers("sparse-support"), answers("false-negatives")
    assert (sparse.where, sparse.verdict) == ("CIFAR-10, Conv-4, released form", "yes")
    assert (sparse.ours.mean, sparse.ours.std) == pytest.approx((100 * 22 / 254, 100 * 1 / 254))
    assert more.verdict == "yes"
    assert bounds(more) == interval((0.31, 0.32, 0.33), (0.18,) * 3)


def test_a_support_of_most_negatives_is_not_sparse(keep, look, answers):
    for seed, support in ((1, 200.0), (2, 60.0)):
        epochs = [{"epoch": 1, "structure": look(seed, support=support)}]
        keep(NAME.replace("simclr", "sparseclr"), seed, {"probe_accuracy": 0.6}, about={"epochs": epochs})
    (answer,) = answers("sparse-support")
    assert (answer.verdict, answer.ours.mean) == ("no", pytest.approx(100 * 130 / 254))


@pytest.mark.parametrize(
    ("conv4", "resnet32", "verdict"),
    [
        ((1.2, 1.3), (1.1, 1.2), "yes"),
        ((1.2, 1.3), (0.5, 0.6), "unclear"),
        ((1.2, 1.3), (0.5, 0.5001), "no"),
        ((1.2, 1.3), (-1.0, 3.4), "unclear"),
        ((1.2, 1.3), (5.0,), "one seed only"),
    ],
)
def test_a_point_has_to_be_gained_on_both_encoders(pair, answers, conv4, resnet32, verdict):
    gap = {"end": "", "variant": "gap", "loss": "ablation/simclr-gap", "beta": 2.0}
    pair(NAME, conv4, **gap)
    pair(NAME, conv4)  # on one encoder only
    pair(NAME.replace("conv4", "resnet32"), resnet32, **gap)
    (answer,) = answers("both-encoders")
    assert answer.where.startswith("SimCLR + alignment gap, weight 2: CIFAR-10, released form")
    assert answer.where.endswith("ResNet-32" if np.mean(resnet32) < np.mean(conv4) else "Conv-4")
    assert (answer.verdict, answer.ours.mean) == (verdict, pytest.approx(min(np.mean(conv4), np.mean(resnet32))))


def test_a_point_on_both_encoders_is_of_one_recipe(keep, answers):
    for encoder, changes in (("conv4", {"epochs": 50}), ("resnet32", {"drop_last": True})):
        for seed in (1, 2):
            name = NAME.replace("conv4", encoder)
            keep(name, seed, {"probe_accuracy": 0.6}, **changes)
            keep(f"{name}-qare", seed, {"probe_accuracy": 0.62 + seed / 1000}, **changes)
    assert answers("both-encoders") == []
    for seed in (1, 2):
        for end in ("", "-qare"):
            keep(f"{NAME}{end}", seed, {"probe_accuracy": 0.60}, variant="d", drop_last=True)
    (answer,) = answers("both-encoders")
    assert answer.where.startswith("SimCLR + QARe: CIFAR-10*, released form")


def test_less_than_a_point_is_not_corrected_as_if_it_were_below_zero(pair, answers):
    gains = {"gap": (0.1, -0.1, 0.1), "noshift": (0.2, 0.1, 0.1), "center": (1.5, 1.6, 1.7), "qare": (1.2, 1.3, 1.2)}
    uncertain = (1.0, 2.2, 1.6)  # above zero too, but with a p that four tests are too many for
    for encoder in ("conv4", "resnet32"):
        for form, values in gains.items():
            mine = uncertain if (encoder, form) == ("conv4", "qare") else values
            more = {"end": "", "variant": form, "loss": f"ablation/simclr-{form}", "beta": 1.0}
            pair(NAME.replace("conv4", encoder), mine, **more)
    certain, less = (ttest_rel(values, [0, 0, 0]).pvalue for values in (gains["center"], uncertain))
    assert 4 * certain < 0.05 < 3 * less
    assert less < 0.05
    assert counted(answers("both-encoders")) == "yes in 2 of 4 settings (1 after Holm's correction), no in 2"


def test_what_validation_alone_has_seen_is_not_corrected_for(pair, answers):
    kept = {"end": "", "validation": 5000}
    pair(NAME, (0.0,) * 3, variant="validation", **kept)
    pair(NAME, (1.0, -1.0, 1.0), variant="v-gap", loss="ablation/simclr-gap", beta=1.0, **kept)  # not confirmed
    pair(NAME, (3.0,) * 3, variant="v-cold", loss="ablation/simclr-cold", **kept)
    gains = (1.0, 1.4, 0.9)
    for encoder in ("conv4", "resnet32"):
        more = {"end": "", "seeds": (11, 12, 13), "variant": "cold", "loss": "ablation/simclr-cold"}
        pair(NAME.replace("conv4", encoder), gains, **more)
    p = ttest_rel(gains, [0, 0, 0]).pvalue
    assert 2 * p < 0.05 < 3 * p
    words = "yes in 2 of 3 settings (2 after Holm's correction), seen on validation only in 1"
    assert counted(answers("best-holds")) == words


def test_the_ablations_best_is_confirmed_by_fresh_seeds_on_the_test_set_only(pair, keep, answers):
    best = {"end": "", "variant": "test", "loss": "ablation/simclr-noshift", "beta": 2.0}
    for seed in (1, 2):
        keep(NAME, seed, {"probe_accuracy": 0.60}, variant="validation", validation=5000)
        keep(f"{NAME}-qare", seed, {"probe_accuracy": 0.61}, variant="validation", validation=5000)
        for name, gain in (("noshift", 0.02), ("gap", 0.01)):
            changes = {"loss": f"ablation/simclr-{name}", "beta": 2.0, "variant": f"validation-{name}-2"}
            keep(NAME, seed, {"probe_accuracy": 0.60 + gain + seed / 1000}, validation=5000, **changes)
    pair(NAME, (10.0, 10.0), **best)
    (answer,) = answers("best-holds")
    assert answer.where == "SimCLR + QARe without the +1 shift, weight 2: CIFAR-10, Conv-4, released form"
    assert answer.verdict == "seen on validation only", "seeds 1 and 2 have chosen it"
    assert answer.ours.mean == pytest.approx(2.15)
    pair(NAME, (0.2, 0.25), seeds=(11, 12), **best)
    (answer,) = answers("best-holds")
    assert (answer.verdict, answer.ours.seeds, answer.ours.mean) == ("unclear", (11, 12), pytest.approx(0.225))
    assert answers("helps") == [], "runs for choosing answer nothing else"
    pair(NAME.replace("conv4", "resnet32"), (1.2, 1.21), **best)  # of ResNet-32 no seed has chosen it
    _, answer = answers("best-holds")
    assert (answer.where.split(", ")[2], answer.verdict, answer.ours.seeds) == ("ResNet-32", "yes", (1, 2))
