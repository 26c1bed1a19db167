"""The paper's claims: each told from runs by an interval of its own, in every case that a verdict has."""

import numpy as np
import pytest
from scipy.stats import ttest_rel

from setwise.paper.claims import claims, differences, lead, settings
from setwise.paper.collected import collect, groups
from setwise.report.tables import shown

NAME = "released/cifar10-conv4-simclr"
QUESTIONS = [
    "QARe helps",
    "QARe beats the structural difference",
    "QARe beats its weight 0",
    "QARe beats the Frobenius norms",
    "SparseCLR beats SimCLR",
    "Weights 0.75 to 1.25 help on average",
    "SparseCLR's support is sparse",
    "SparseCLR weighs false negatives more",
    "A point on both encoders",
    "The ablation's best holds",
]


@pytest.fixture
def found(tmp_path):
    return lambda: groups(collect(tmp_path / "results")[0])


def told(table, claim):
    """The rows of a claim without its name."""
    return [list(row[1:]) for row in table.rows if row[0] == claim]


def test_without_runs_every_claim_says_so(found):
    table = claims(found())
    assert [row[0] for row in table.rows] == QUESTIONS
    assert all(row[1:4] == ["no runs yet", None, None] for row in table.rows)
    assert table.rows[4][4] == "yes, but not ResNet-32 on CIFAR-10"
    assert settings(found()).rows == []
    assert lead(found()) == "Does QARe help? No runs yet. (0 runs.)"


def test_sparseclr_against_simclr_is_paired_by_seed(keep, found):
    simclr, sparse = np.array([0.59, 0.60, 0.61]), np.array([0.600, 0.612, 0.621])
    for seed in (1, 2, 3):
        keep(NAME, seed, {"probe_accuracy": simclr[seed - 1]})
        keep(NAME.replace("simclr", "sparseclr"), seed, {"probe_accuracy": sparse[seed - 1]})
        keep(NAME.replace("conv4-simclr", "resnet32-simclr"), seed, {"probe_accuracy": 0.76})
        keep(NAME.replace("conv4-simclr", "resnet32-sparseclr"), seed, {"probe_accuracy": 0.70 + seed / 1000})
    keep(NAME, 9, {"probe_accuracy": 0.1})
    (where, verdict, ours, paper), other = told(settings(found()), "SparseCLR beats SimCLR")
    assert (where, verdict, paper) == ("CIFAR-10, Conv-4, released form", "yes", "+0.22")
    expected = ttest_rel(100 * sparse, 100 * simclr).confidence_interval(0.95)
    assert (ours.low, ours.high) == pytest.approx((expected.low, expected.high))
    assert (other[1], other[3]) == ("no", "-6.08")
    ((verdict, least, greatest, _),) = told(claims(found()), "SparseCLR beats SimCLR")
    assert verdict == "of 2 settings: 1 yes (1 after Holm's correction), 1 no (1 after Holm's correction)"
    assert (least, greatest) == (other[2], ours)


@pytest.mark.parametrize(
    ("gains", "verdict"),
    [((1.0, 1.1), "yes"), ((1.0, -1.1), "cannot be told"), ((-1.0, -1.1), "no"), ((1.0,), "one seed only")],
)
def test_the_verdict_is_where_the_interval_lies(keep, found, gains, verdict):
    for seed, gain in enumerate(gains, start=1):
        keep(NAME, seed, {"probe_accuracy": 0.6})
        keep(f"{NAME}-qare", seed, {"probe_accuracy": 0.6 + gain / 100})
    ((said, only, greatest, _),) = told(claims(found()), "QARe helps")
    assert (said, greatest) == (verdict, None)
    assert only.mean == pytest.approx(np.mean(gains))
    words = f"{verdict.capitalize()}: SimCLR (CIFAR-10, Conv-4, released form) {shown(only)}."
    assert lead(found()).startswith(f"Does QARe help? {words}")


def test_qare_against_the_structural_difference_is_paired_by_seed(keep, found):
    values = {"": (0.60, 0.61, 0.62), "-qare": (0.640, 0.655, 0.651), "-control": (0.62, 0.63, 0.65)}
    for end, accuracies in values.items():
        form, more = ("setwise", {"beta": 3.0}) if end == "-control" else ("paper", {})
        for seed, accuracy in enumerate(accuracies, start=1):
            keep(f"{form}/cifar10-matching-infonce{end}", seed, {"test_accuracy": accuracy}, **more)
    expected = ttest_rel(*(100 * np.array(values[end]) for end in ("-qare", "-control")))
    ((where, verdict, ours, _),) = told(settings(found()), "QARe beats the structural difference")
    assert (where, verdict) == ("InfoNCE: CIFAR-10, 1,467 instances", "cannot be told")
    low, high = expected.confidence_interval(0.95)
    assert (ours.low, ours.high, ours.p) == pytest.approx((low, high, expected.pvalue))
    ((_, _, paper, *_),) = differences(found()).rows
    assert paper is None, "the paper matched on CUHK-03 only"


def test_in_an_ablation_the_frobenius_norms_have_the_same_weight(keep, found):
    name, kept = "released/cifar10-conv4-simclr", {"validation": 5000}
    for seed, (ours, control) in enumerate(((0.61, 0.60), (0.63, 0.61)), start=1):
        keep(name, seed, {"probe_accuracy": 0.6}, variant="validation", **kept)
        for loss, weight, accuracy in (("qare", 1.0, ours), ("qare", 10.0, 0.5), ("frobenius", 1.0, control)):
            more = {**kept, "loss": f"ablation/simclr-{loss}", "beta": weight}
            keep(name, seed, {"probe_accuracy": accuracy}, variant=f"validation-{loss}-{weight:g}", **more)
    ((where, verdict, ours, _),) = told(settings(found()), "QARe beats the Frobenius norms")
    assert where.startswith("SimCLR, weight 1: CIFAR-10, Conv-4, released form, 5,000 validation images")
    assert (verdict, ours.mean) == ("cannot be told", pytest.approx(1.5))


def test_a_probe_is_compared_with_weight_0(keep, found):
    name = "released/cifar10-conv4-sparseclr"
    for seed, (plain, ours, control) in enumerate(((0.60, 0.62, 0.59), (0.61, 0.64, 0.60)), start=1):
        keep(name, seed, {"probe_accuracy": plain})
        keep(f"{name}-qare", seed, {"probe_accuracy": ours})
        for weight, accuracy in ((0.0, control), (0.3, 0.7)):
            keep(f"{name}-qare", seed, {"probe_accuracy": accuracy}, variant=f"beta-{weight:g}", beta=weight)
    ((where, verdict, ours, _),) = told(settings(found()), "QARe beats its weight 0")
    assert (where, verdict, ours.mean) == (
        "SparseCLR: CIFAR-10, Conv-4, released form",
        "cannot be told",
        pytest.approx(3.5),
    )
    ((_, helps, *_),) = differences(found()).rows
    assert helps.mean == pytest.approx(2.5)


def test_many_settings_are_named_and_corrected_for(keep, found):
    for i, encoder in enumerate(("conv4", "resnet32")):
        for form in ("paper", "released"):
            for data in ("cifar10", "cifar100"):
                for seed, gain in enumerate((1.0, 1.1 + i, 1.0 - i), start=1):
                    keep(f"{form}/{data}-{encoder}-simclr", seed, {"probe_accuracy": 0.6})
                    keep(f"{form}/{data}-{encoder}-simclr-qare", seed, {"probe_accuracy": 0.6 + gain / 100})
    keep("paper/cifar10-conv4-sparseclr", 1, {"probe_accuracy": 0.6})
    keep("paper/cifar10-conv4-sparseclr-qare", 1, {"probe_accuracy": 0.7})
    ((said, least, greatest, _),) = told(claims(found()), "QARe helps")
    p = ttest_rel([1.0, 1.1, 1.0], [0, 0, 0]).pvalue
    stay = 4 if 8 * p < 0.05 else 0
    assert said == (
        f"of 8 settings: 4 yes ({stay} after Holm's correction), 4 cannot be told; 1 more with one seed only"
    )
    assert stay == 4, "as many as were named, so that the lead need not say it"
    assert lead(found()).startswith("Does QARe help? Yes in 4 of 9 settings: SimCLR (")
    assert (least.mean, greatest.mean) == pytest.approx((31 / 30, 31 / 30)), "those that cannot be told do not count"
    assert "cannot be told in 4 of 9 settings; one seed only in 1 of 9 settings" in lead(found())
    keep("paper/cifar10-conv4-sparseclr", 2, {"probe_accuracy": 0.6})
    keep("paper/cifar10-conv4-sparseclr-qare", 2, {"probe_accuracy": 0.71})
    p = ttest_rel([10.0, 11.0], [0, 0]).pvalue
    assert 5 * p > 0.05 > p
    assert lead(found()).startswith(
        f"Does QARe help? Yes in 5 of 9 settings ({stay} after Holm's correction): SimCLR ("
    )
    said = lead(found()).partition(";")[0]
    assert said.count("SimCLR (") == 3, "the most certain ones"
    assert said.endswith(" and 2 more")
    assert "SparseCLR" not in said, "the greatest, but the least certain"


def test_safe_weights_are_those_of_the_sweep(keep, found):
    for seed in (1, 2, 3):
        keep(NAME, seed, {"probe_accuracy": 0.60})
        for weight in (0.0, 0.75, 1.25, 1.875):
            final = {"probe_accuracy": 0.60 + (0.01 + seed / 1000) * (0.7 < weight < 1.3) - 0.1 * (weight > 1.3)}
            keep(f"{NAME}-qare", seed, final, variant=f"beta-{weight:g}", beta=weight)
    ((where, verdict, ours, _),) = told(settings(found()), "Weights 0.75 to 1.25 help on average")
    assert (where, verdict) == ("SimCLR + QARe: CIFAR-10, Conv-4, released form", "yes")
    assert ours.mean == pytest.approx(1.2), "1.875 does not count"


def test_support_and_false_negatives(looked, found):
    looked()
    ((where, verdict, support, paper),) = told(settings(found()), "SparseCLR's support is sparse")
    assert (where, verdict, paper) == ("CIFAR-10, Conv-4, released form", "yes", "only a few")
    assert support.mean == pytest.approx(100 * 22 / 254)
    assert support.std == pytest.approx(100 * 1 / 254)
    ((_, verdict, more, _),) = told(settings(found()), "SparseCLR weighs false negatives more")
    expected = ttest_rel([31.0, 32.0, 33.0], [18.0] * 3).confidence_interval(0.95)
    assert (more.low, more.high) == pytest.approx((expected.low, expected.high))
    assert verdict == "yes"


def test_a_support_of_most_negatives_is_not_sparse(keep, look, found):
    for seed, support in ((1, 200.0), (2, 60.0)):
        epochs = [{"epoch": 1, "structure": look(seed, support=support)}]
        keep(NAME.replace("simclr", "sparseclr"), seed, {"probe_accuracy": 0.6}, about={"epochs": epochs})
    ((_, verdict, support, _),) = told(settings(found()), "SparseCLR's support is sparse")
    assert (verdict, support.mean) == ("no", pytest.approx(100 * 130 / 254))


@pytest.mark.parametrize(
    ("conv4", "resnet32", "verdict"),
    [
        ((1.2, 1.3), (1.1, 1.2), "yes"),
        ((1.2, 1.3), (0.5, 0.6), "cannot be told"),
        ((1.2, 1.3), (0.5, 0.5001), "no"),
        ((1.2, 1.3), (-1.0, 3.4), "cannot be told"),
        ((1.2, 1.3), (5.0,), "one seed only"),
    ],
)
def test_a_point_has_to_be_gained_on_both_encoders(keep, found, conv4, resnet32, verdict):
    for encoder, gains in (("conv4", conv4), ("resnet32", resnet32)):
        name = NAME.replace("conv4", encoder)
        for seed, gain in enumerate(gains, start=1):
            keep(name, seed, {"probe_accuracy": 0.6})
            final = {"probe_accuracy": 0.6 + gain / 100}
            keep(name, seed, final, variant="gap", loss="ablation/simclr-gap", beta=2.0)
            if encoder == "conv4":
                keep(f"{name}-qare", seed, final)
    ((where, said, ours, _),) = told(settings(found()), "A point on both encoders")
    less = "ResNet-32" if np.mean(resnet32) < np.mean(conv4) else "Conv-4"
    assert (where, said) == (
        f"SimCLR + alignment gap, weight 2: CIFAR-10, released form, lesser gain with {less}",
        verdict,
    )
    assert ours.mean == pytest.approx(min(np.mean(conv4), np.mean(resnet32)))


def test_a_point_on_both_encoders_is_of_one_recipe(keep, found):
    for encoder, changes in (("conv4", {"epochs": 50}), ("resnet32", {"drop_last": True})):
        for seed in (1, 2):
            name = NAME.replace("conv4", encoder)
            keep(name, seed, {"probe_accuracy": 0.6}, **changes)
            keep(f"{name}-qare", seed, {"probe_accuracy": 0.62 + seed / 1000}, **changes)
    assert told(settings(found()), "A point on both encoders") == []
    for seed in (1, 2):
        for end in ("", "-qare"):
            keep(f"{NAME}{end}", seed, {"probe_accuracy": 0.60}, variant="d", drop_last=True)
    ((where, *_),) = told(settings(found()), "A point on both encoders")
    assert where == "SimCLR + QARe: CIFAR-10*, released form, lesser gain with Conv-4"


def test_less_than_a_point_is_not_corrected_as_if_it_were_below_zero(keep, found):
    gains = {"gap": (0.1, -0.1, 0.1), "noshift": (0.2, 0.1, 0.1), "center": (1.5, 1.6, 1.7), "qare": (1.2, 1.3, 1.2)}
    uncertain = (1.0, 2.2, 1.6)  # above zero too, but with a p that four tests are too many for
    for encoder in ("conv4", "resnet32"):
        for form, values in gains.items():
            for seed in (1, 2, 3):
                name = NAME.replace("conv4", encoder)
                gain = uncertain[seed - 1] if (encoder, form) == ("conv4", "qare") else values[seed - 1]
                keep(name, seed, {"probe_accuracy": 0.6})
                final = {"probe_accuracy": 0.6 + gain / 100}
                keep(name, seed, final, variant=form, loss=f"ablation/simclr-{form}", beta=1.0)
    certain, less = (ttest_rel(values, [0, 0, 0]).pvalue for values in (gains["center"], uncertain))
    assert 4 * certain < 0.05 < 3 * less
    assert less < 0.05
    ((said, *_),) = told(claims(found()), "A point on both encoders")
    assert said == "of 4 settings: 2 yes (1 after Holm's correction), 2 no"


def test_what_validation_alone_has_seen_is_not_corrected_for(keep, found):
    for seed in (1, 2, 3):
        keep(NAME, seed, {"probe_accuracy": 0.60}, variant="validation", validation=5000)
        kept = {"validation": 5000, "loss": "ablation/simclr-gap", "beta": 1.0}  # uncertain, and not confirmed
        keep(NAME, seed, {"probe_accuracy": 0.60 + (0.01, -0.01, 0.01)[seed - 1]}, variant="v-gap", **kept)
        keep(NAME, seed, {"probe_accuracy": 0.63}, variant="v-cold", validation=5000, loss="ablation/simclr-cold")
    for encoder in ("conv4", "resnet32"):
        for seed, gain in ((11, 1.0), (12, 1.4), (13, 0.9)):
            name = NAME.replace("conv4", encoder)
            keep(name, seed, {"probe_accuracy": 0.6})
            keep(name, seed, {"probe_accuracy": 0.6 + gain / 100}, variant="cold", loss="ablation/simclr-cold")
    p = ttest_rel([1.0, 1.4, 0.9], [0, 0, 0]).pvalue
    assert 2 * p < 0.05 < 3 * p
    ((said, *_),) = told(claims(found()), "The ablation's best holds")
    assert said == "of 3 settings: 2 yes (2 after Holm's correction), 1 seen on validation only"


def test_the_ablations_best_is_confirmed_by_fresh_seeds_on_the_test_set_only(keep, found):
    best = {"loss": "ablation/simclr-noshift", "beta": 2.0}
    for seed in (1, 2):
        keep(NAME, seed, {"probe_accuracy": 0.60}, variant="validation", validation=5000)
        keep(f"{NAME}-qare", seed, {"probe_accuracy": 0.61}, variant="validation", validation=5000)
        for name, gain in (("noshift", 0.02), ("gap", 0.01)):
            changes = {"loss": f"ablation/simclr-{name}", "beta": 2.0, "variant": f"validation-{name}-2"}
            keep(NAME, seed, {"probe_accuracy": 0.60 + gain + seed / 1000}, validation=5000, **changes)
        keep(NAME, seed, {"probe_accuracy": 0.60})
        keep(NAME, seed, {"probe_accuracy": 0.70}, variant="test", **best)
    ((where, verdict, ours, _),) = told(settings(found()), "The ablation's best holds")
    assert where == "SimCLR + QARe without the +1 shift, weight 2: CIFAR-10, Conv-4, released form"
    assert (verdict, ours.mean) == ("seen on validation only", pytest.approx(2.15)), "seeds 1 and 2 have chosen it"
    for seed, gain in ((11, 0.002), (12, 0.0025)):
        keep(NAME, seed, {"probe_accuracy": 0.60})
        keep(NAME, seed, {"probe_accuracy": 0.60 + gain}, variant="test", **best)
    ((_, verdict, ours, _),) = told(settings(found()), "The ablation's best holds")
    assert (verdict, ours.seeds, ours.mean) == ("cannot be told", (11, 12), pytest.approx(0.225))
    assert f"test set? Cannot be told: {where.replace(': ', ' (', 1)}) {shown(ours)}." in lead(found())
    assert told(claims(found()), "QARe helps")[0][0] == "no runs yet", "what is for choosing answers nothing"
    for seed, gain in ((1, 0.012), (2, 0.0121)):  # of ResNet-32 none has chosen it
        keep(NAME.replace("conv4", "resnet32"), seed, {"probe_accuracy": 0.70})
        keep(NAME.replace("conv4", "resnet32"), seed, {"probe_accuracy": 0.70 + gain}, variant="test", **best)
    (_, _, first, _), (where, verdict, ours, _) = told(settings(found()), "The ablation's best holds")
    assert f") {shown(first)}" in lead(found()), "few are all named, also what cannot be told"
    assert (where.split(", ")[2], verdict, ours.seeds) == ("ResNet-32", "yes", (1, 2))
