"""Spectra and negatives from records: against numpy and scipy, and whatever else a record may hold there."""

import json

import numpy as np
import pytest
from scipy.stats import entropy

from setwise.paper.collected import collect, groups
from setwise.paper.spectra import last_look, looks_table, mean_spectrum, spectra_onto
from setwise.records.structure import Structure

RUNS = "released/cifar10-conv4-{}"


@pytest.fixture
def group(looked, tmp_path):
    looked()
    (found,) = groups(collect(tmp_path / "results")[0])
    return found


@pytest.fixture
def held(tmp_path):
    """The eigenvalues of a method's seeds at an epoch as the files have them [seed, view, place]."""

    def read(method, epoch):
        folder = tmp_path / "results" / "runs" / RUNS.format(method)
        records = [json.loads(path.read_text()) for path in sorted(folder.glob("seed-*.json"))]
        return np.array([record["epochs"][epoch - 1]["structure"]["eigenvalues"] for record in records])

    return read


def test_the_table_is_of_the_last_epoch_that_all_seeds_have(group, held, tmp_path):
    table = looks_table(group)
    assert table.caption == "What the loss looks at: CIFAR-10, Conv-4, released form"
    rows = {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    assert list(rows) == ["SimCLR", "SimCLR + QARe", "SparseCLR", "SparseCLR + QARe"]
    sparse = rows["SparseCLR"]
    assert (sparse["n"], sparse["epoch"], sparse["of"]) == (3, "4", "254")
    assert (sparse["negatives with weight"].mean, sparse["negatives with weight"].std) == (22, pytest.approx(1))
    assert sparse["weight on the same class, %"].mean == pytest.approx(32)
    assert sparse["by chance, %"].mean == pytest.approx(10)
    views = held("sparseclr", 4)
    ranks = [np.mean([np.exp(entropy(view)) for view in pair]) for pair in views]
    assert sparse["effective rank"].mean == pytest.approx(np.mean(ranks))
    assert sparse["effective rank"].std == pytest.approx(np.std(ranks, ddof=1))
    assert sparse["largest eigenvalue"].mean == pytest.approx(np.max(views, axis=2).mean())
    assert rows["SimCLR + QARe"]["effective rank"].mean > rows["SimCLR"]["effective rank"].mean
    assert table.columns[-1] == "largest eigenvalue", "no record has the features' rank"

    path = tmp_path / "results" / "runs" / RUNS.format("sparseclr") / "seed-2.json"
    record = json.loads(path.read_text())
    record["epochs"][-1]["structure"]["feature_rank"] = 4.5
    path.write_text(json.dumps(record))
    table = looks_table(groups(collect(tmp_path / "results")[0])[0])
    assert table.columns[-1] == "effective rank of features"
    assert [row[-1] and row[-1].mean for row in table.rows] == [None, None, 4.5, None]
    del record["epochs"][-1]["structure"]
    path.write_text(json.dumps(record))
    epoch, looks = last_look(groups(collect(tmp_path / "results")[0])[0].plain("sparseclr"))
    assert (epoch, sorted(looks)) == (2, [1, 2, 3])
    path.write_text(json.dumps({**record, "epochs": "none"}))
    epoch, looks = last_look(groups(collect(tmp_path / "results")[0])[0].plain("sparseclr"))
    assert (epoch, sorted(looks)) == (4, [1, 3]), "a seed that was never looked at does not stop the others"


def test_pictures_show_every_loss_with_and_without_its_term(drawn_page, group, held):
    page = drawn_page
    spectra_onto(page, [group])
    assert list(page.drawn) == [
        f"{base}, {what}"
        for base in ("SimCLR", "SparseCLR")
        for what in ("sorted eigenvalues", "effective rank", "largest eigenvalue")
    ]
    series, options = page.drawn["SimCLR, sorted eigenvalues"]
    assert list(series) == ["SimCLR, epoch 4", "SimCLR + QARe, epoch 4"]
    assert options["log"] == "y"
    mean = held("simclr", 4).mean((0, 1))
    assert len(series["SimCLR, epoch 4"]) == 16, "16 dimensions, the other eigenvalues are rounding"
    assert series["SimCLR, epoch 4"] == [(i + 1, pytest.approx(mean[i])) for i in range(16)]
    series, _ = page.drawn["SimCLR, effective rank"]
    assert [epoch for epoch, _ in series["SimCLR"]] == [1, 2, 4]
    ranks = [np.exp(entropy(held("simclr", epoch), axis=2)).mean() for epoch in (1, 2, 4)]
    assert [rank for _, rank in series["SimCLR"]] == pytest.approx(ranks)
    series, _ = page.drawn["SparseCLR, largest eigenvalue"]
    assert series["SparseCLR"][-1][1] > series["SparseCLR + QARe"][-1][1]
    assert "QARe acts on the eigenvalues" in page.html()
    assert looks_table(group).caption in page.html()


def test_an_ablations_picture_goes_from_the_plain_loss_from_weight_to_weight(drawn_page, keep, look, tmp_path):
    name, ranks = "released/cifar10-conv4-simclr", {}
    for loss, weight, spread, accuracy in ((None, None, 2.0, 0.5), ("qare", 1.0, 1.0, 0.6), ("qare", 10.0, 0.0, 0.55)):
        more = {"loss": f"ablation/simclr-{loss}", "beta": weight} if loss else {}
        seen = {seed: look(seed, spread) for seed in (1, 2)}
        ranks[weight] = np.mean([np.exp(entropy(view)) for one in seen.values() for view in one["eigenvalues"]])
        for seed, structure in seen.items():
            about = {"epochs": [{"epoch": 1, "loss": 1.0, "structure": structure}]}
            variant = f"validation-{loss}-{weight:g}" if loss else "validation"
            final = {"probe_accuracy": accuracy + seed / 100}
            keep(name, seed, final, variant=variant, about=about, validation=5000, **more)
    spectra_onto(drawn_page, groups(collect(tmp_path / "results")[0]))
    ((series, _),) = drawn_page.drawn.values()
    expected = [(round(ranks[weight], 1), accuracy) for weight, accuracy in ((None, 51.5), (1.0, 61.5), (10.0, 56.5))]
    assert series == {"QARe without clamp": expected}


def test_a_mean_spectrum_ends_where_the_shortest_does():
    looks = [Structure(spectrum=(3.0, 1.0)), Structure(), Structure(spectrum=(1.0,))]
    assert mean_spectrum(looks) == [2.0]
    assert mean_spectrum([Structure()]) == []
