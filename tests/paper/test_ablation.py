"""The ablation's table and its best."""

import pytest
from scipy.stats import ttest_1samp

from setwise.paper.ablation import ablation_answer, ablation_table, bests_of
from setwise.paper.collected import collect, groups
from setwise.paper.jobs import expand
from setwise.paper.objectives import preset_of, weight_of
from setwise.report.tables import shown


def test_the_ablation_in_words_the_best_first(tmp_path, keep):
    jobs = expand("ablation", data="cifar10", seeds=(1, 2))
    gains = {"ablation/simclr-noshift": (2.0, 2.2), "ablation/simclr-cold": (-1.0, -1.4), "released/simclr": (0.0, 0.0)}
    for job in jobs:
        if job.seed < 3:
            loss, beta = preset_of(job.recipe), weight_of(job.recipe)
            gain = gains.get(loss, (0.1, 0.1))[job.seed - 1] - (beta or 0) / 100
            changes = {"loss": loss, "beta": beta, "validation": 5000}
            final = {"probe_accuracy": 0.6 + gain / 100, "knn20_accuracy": 0.5 + gain / 200}
            keep(job.name, job.seed, final, variant=job.variant, **changes)
    (group,) = groups(collect(tmp_path / "results")[0])
    table = ablation_table(group)
    assert table.name == "ablation-released-cifar10-conv4-validation-5000"
    assert len(table.rows) == len({job.variant for job in jobs})
    labels = [row[0] for row in table.rows]
    assert labels[0] == "SimCLR, plain"
    assert not any("/" in label for label in labels), "words, not names of presets: add them to WORDS"
    means = [row[4].mean for row in table.rows[1:]]
    assert means == sorted(means, reverse=True)
    assert [row[6].mean for row in table.rows[1:]] == pytest.approx([mean / 2 for mean in means])
    least = min(filter(None, (weight_of(job.recipe) for job in jobs)))
    assert table.rows[1][:2] == ["QARe without the +1 shift", f"{least:g}"]
    expected = ttest_1samp([2.0 - least / 100, 2.2 - least / 100], 0).confidence_interval(0.95)
    assert (table.rows[1][4].low, table.rows[1][4].high) == pytest.approx((expected.low, expected.high))
    assert table.rows[-1][0] == "temperature 0.05"
    ((row, difference),) = bests_of(group)  # the best has a set-level term
    assert (row.loss, difference) == ("ablation/simclr-noshift", table.rows[1][4])
    assert f"{len(labels) - 1} changes is {row.label}: it adds {shown(difference)}" in ablation_answer(group)
    for seed in (1, 2):  # now the best has none
        name, changes = "released/cifar10-conv4-simclr", {"loss": "ablation/simclr-mean", "validation": 5000}
        keep(name, seed, {"probe_accuracy": 0.7 + seed / 1000}, variant="validation-mean", **changes)
    (changed,) = groups(collect(tmp_path / "results")[0])
    (first, _), second = bests_of(changed)
    assert (first.loss, second) == ("ablation/simclr-mean", (row, difference))
    assert ablation_answer(changed).count("it adds") == 2


def test_an_ablation_of_one_seed_names_no_best(tmp_path, keep):
    name = "released/cifar10-conv4-simclr"
    keep(name, 1, {"probe_accuracy": 0.5}, variant="validation", validation=5000)
    keep(name, 1, {"probe_accuracy": 0.9}, variant="c", validation=5000, loss="ablation/simclr-cold")
    keep(name, 1, {"probe_accuracy": 0.9}, variant="v", validation=5000, loss="ablation/simclr-cold", epochs=4)
    first, second = groups(collect(tmp_path / "results")[0])
    assert second.title.endswith("validation images"), "the other one is of 4 epochs"
    assert first.title.endswith("validation images (epochs 4)")
    assert bests_of(first) == bests_of(second) == []
    assert "no change yet" in ablation_answer(second)
