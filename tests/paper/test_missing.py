"""What is not run, and its cost: counted by hand from the paper's tables, with invented times of a step."""

import csv
import json

import pytest

from setwise.paper.claims import by_claim
from setwise.paper.collected import Row, collect, groups
from setwise.paper.missing import claims_not_run, costs, missing_answer, missing_table, part_of, parts, table1_not_run
from setwise.paper.numbers import CLASSIFICATION, MATCHING
from setwise.paper.report import report
from setwise.paper.tables import not_run, overview
from setwise.paper.tuned import Setting, Tuned, tuned_table

MS = {"conv4": 0.5, "resnet32": 2.0}
STEPS = 200 * 391  # epochs, batches of 128 of 50,000 images
TINY = 200 * 782 * 4  # twice the images, four times the pixels


@pytest.fixture
def results(tmp_path):
    """Times of a step, and no runs."""
    rows = {name: {"recipe": f"paper/cifar10-{name}-simclr-qare", "setwise_ms": ms} for name, ms in MS.items()}
    for name, row in rows.items():
        row["methods"] = {f"paper/cifar10-{name}-rotation": 0.3}  # seconds of an epoch
    rows["matching"] = {"recipe": "paper/cifar10-matching-infonce-qare", "setwise_ms": 30.0}
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "bench-step-x.json").write_text(json.dumps({"encoders": rows}))
    return tmp_path / "results"


def test_every_cell_of_the_paper_has_its_cost(results):
    found = parts(results)
    unmade = costs(found)
    for encoder, data, method in CLASSIFICATION:
        for form in ("paper", "released"):
            steps, ms = TINY if data == "tiny-imagenet" else STEPS, MS[encoder]
            minutes = {"random": 0.0, "rotation": 3 * 200 * 0.3 * steps / STEPS / 60}  # three seeds
            minutes |= dict.fromkeys(("supervised", "deepcluster", "deepinfomax"))  # nobody timed these
            expected = minutes.get(method, 3 * steps * ms / 60e3)
            assert unmade[f"{form}/{data}-{encoder}-{method}", ""] == pytest.approx(expected), (form, data, method)
    for loss, term in MATCHING:  # of 1,467 identities 1,027 train, in 8 batches; five shots of each are five passes
        name = f"paper/cuhk03-matching-{loss}" + (f"-{term}" if term else "")
        seeds = 10 if loss == "infonce" else 3
        assert unmade[name, ""] == pytest.approx(seeds * 50 * 5 * 8 * 30.0 / 60e3)
    figure = part_of(found, "fig-beta", "cifar10")
    assert len(figure.left) == 16 * 3
    assert figure.minutes == pytest.approx(16 * 3 * STEPS * 2.0 / 60e3)
    tuned = part_of(found, "tuned", "cifar10", "resnet32")  # before any trial is made, too
    assert len(tuned.left) == 12 * 3 + 3 * 3, "trials, and the best ones tested"
    minutes = (12 * 3 * 50 * 352 + 3 * 3 * STEPS) * 2.0 / 60e3  # 50 epochs of 45,000 images, 200 of all
    assert tuned.minutes == pytest.approx(minutes)
    words = "Not run: 45 runs of `setwise reproduce tuning tuned --data cifar10 --only resnet32`, 45 GPU minutes."
    assert (round(minutes), tuned.sentence) == (45, words)
    assert len(part_of(found, "tuned", "cifar10", "conv4").left) == 24 * 5 + 5 * 10


def test_a_winner_that_is_not_tested_has_its_cost(results):
    objectives = [Tuned(term, 24, None, Row("simclr", ""), None) for term in ("plain", "gap")]
    table = tuned_table(Setting("cifar10", "conv4", tuple(objectives), ()), costs(parts(results)))
    words = f"not run: {10 * STEPS * 0.5 / 60e3:,.0f} min"
    assert [row[2] for row in table.rows] == [words, words], "ten seeds of 200 epochs each"


def test_a_run_is_taken_off_and_its_cell_is_measured(results, keep):
    before = missing_table(parts(results)).rows
    keep("paper/tiny-imagenet-resnet32-simclr", 2, {"probe_accuracy": 0.25})
    found = parts(results)
    left = {row[0]: row for row in missing_table(found).rows}
    assert len(left) == len(before)
    title = "Tables 2 and 3: tiny-ImageNet, ResNet-32, paper form"
    assert left[title][1] == "1 of 27"
    known = 3 * 4 * TINY * 2.0 / 60e3 + 3 * 200 * 0.3 * TINY / STEPS / 60  # four contrastive rows, rotation
    assert left[title][2] == f"{known - TINY * 2.0 / 60e3:,.0f}"
    unmade = costs(found)
    assert ("paper/tiny-imagenet-resnet32-simclr", "") not in unmade, "one seed is a number"
    (group,) = groups(collect(results)[0])
    other = groups(collect(results)[0])[0]
    table = overview([group, other], unmade)[0]
    cells = {row[0]: row[1] for row in table.rows}
    assert cells["SimCLR"].mean == pytest.approx(25.0)
    assert cells["SimCLR + QARe"] == f"not run: {3 * TINY * 2.0 / 60e3:,.0f} min"
    assert (cells["Random weights"], cells["Deep InfoMax"]) == ("not run: < 1 min", "not run")
    assert all(row[1].startswith("not run: ") for row in table1_not_run(unmade).rows)
    keep("paper/cuhk03-matching-triplet", 1, {"test_accuracy": 0.5})
    assert table1_not_run(costs(parts(results))).rows == []


def test_claims_name_the_settings_that_no_run_answers(results, keep):
    for method in ("simclr", "simclr-qare"):
        for seed in (1, 2, 3):
            accuracy = 0.2 + seed / 100 + len(method) / 1000 + seed / 10_000 * len(method)
            keep(f"released/tiny-imagenet-conv4-{method}", seed, {"probe_accuracy": accuracy})
    found = claims_not_run(parts(results))
    minutes = {key: 3 * TINY * ms / 60e3 for key, ms in MS.items()}  # of a method in tiny-ImageNet
    both, one, alone = (f"{n * minutes['conv4']:,.0f} min" for n in (2, 2, 1))
    assert f"tiny-ImageNet, Conv-4, paper form (SimCLR {both}, SparseCLR {both});" in found["helps"]
    assert f"tiny-ImageNet, Conv-4, released form (SparseCLR {one});" in found["helps"], "SimCLR is answered"
    assert found["helps"].startswith(
        "Not run: CUHK-03 (Triplet 6 min, InfoNCE 20 min, NT-Logistic 6 min, SparseCLR 6 min);"
    )
    assert found["helps"].count(";") == 12
    assert f"tiny-ImageNet, Conv-4, released form ({alone});" in found["sparse-helps"], "SimCLR is there"
    assert f"tiny-ImageNet, Conv-4, paper form ({both});" in found["sparse-helps"]
    safe = f"{5 * 3 * STEPS * 2.0 / 60e3:,.0f} min"  # 0.75 to 1.25 in steps of 0.125
    assert found["safe-weights"] == f"Not run: CIFAR-10, ResNet-32, released form ({safe})."
    table = next(one for one in by_claim(groups(collect(results)[0]), found) if one.name == "helps")
    assert ([row[1] for row in table.rows], table.note) == (["yes"], found["helps"])


def test_the_page_and_its_files_say_it(results, keep, tree_of, tmp_path):
    keep("released/cifar10-conv4-simclr", 1, {"probe_accuracy": 0.6})
    files = report(results, tmp_path / "out")
    texts = tree_of(files[0].read_text())
    assert "Not run" in texts.texts("h2")
    assert missing_answer(parts(results)) in texts.texts("strong")
    with (tmp_path / "out" / "not-run.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert "Figure 2: CIFAR-10, ResNet-32" in {row["part"] for row in rows}
    assert not_run({}, "a") is None
    assert not_run({("a", ""): 2.4, ("b", "x"): None}, "a", ("b", "x"), "c") == "not run: 2 min"
