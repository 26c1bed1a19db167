"""Figures 2 and 3: numbers against numpy and scipy, their lines, records that cannot be read, the command."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import ttest_rel

from setwise.bench import qare
from setwise.cli import main
from setwise.paper.collected import collect, groups
from setwise.paper.figures import (
    cost_table,
    costs_onto,
    sweep_answer,
    sweep_onto,
    sweep_table,
    sweeps,
    time_record,
    timings,
)
from setwise.paper.tables import classification_table
from setwise.report.page import Page

NAME = "released/cifar10-conv4-simclr"
WEIGHTS = [0.125 * step for step in range(16)]
SEEDS = (1, 2, 3)


@pytest.fixture
def accuracies():
    """By weight, None for the plain loss: one accuracy in per cent for each seed."""
    rng = np.random.default_rng(0)
    level = {weight: 60 + weight * math.exp(-weight) for weight in WEIGHTS} | {None: 59.0}
    return {weight: mean + np.array(SEEDS) / 2 + 0.1 * rng.normal(size=3) for weight, mean in level.items()}


@pytest.fixture
def sweep(keep, tmp_path, accuracies):
    for weight, values in accuracies.items():
        for seed, value in zip(SEEDS, values, strict=True):
            final = {"probe_accuracy": value / 100}
            if weight is None:
                keep(NAME, seed, final)
            else:
                keep(f"{NAME}-qare", seed, final, variant=f"beta-{weight:g}", beta=weight)
    runs, aside = collect(tmp_path / "results")
    assert aside == []
    (group,) = groups(runs)
    (found,) = sweeps(group)
    return found


def test_figure_2_in_numbers(sweep, accuracies):
    table = sweep_table(sweep)
    assert "ResNet-32" in table.caption, "the figure is of another encoder"
    assert [row[0] for row in table.rows] == ["none: SimCLR", *(f"{weight:g}" for weight in WEIGHTS)]
    for weight, (_, n, mean, to_zero, to_plain) in zip([None, *WEIGHTS], table.rows, strict=True):
        values = accuracies[weight]
        assert (n, mean.mean, mean.std) == (3, pytest.approx(values.mean()), pytest.approx(values.std(ddof=1)))
        for found, other, own in ((to_zero, 0.0, 0.0), (to_plain, None, None)):
            if weight is None or weight == own:
                assert found is None
            else:
                expected = ttest_rel(values, accuracies[other]).confidence_interval(0.95)
                assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


def test_figure_2_says_how_flat_the_spectra_are_where_records_do(keep, look, tmp_path):
    for weight, spread, rank in ((None, 1.0, 3.0), (0.0, 1.0, 3.5), (0.5, 0.5, 4.0), (1.0, 0.0, 5.0)):
        for seed in SEEDS:
            seen = look(seed, spread) | ({"feature_rank": rank + seed / 10} if weight != 0.5 else {})
            about = {"epochs": [{"epoch": 1, "loss": 1.0, "structure": seen}]}
            more = {} if weight is None else {"variant": f"beta-{weight:g}", "beta": weight}
            keep(f"{NAME}{'' if weight is None else '-qare'}", seed, {"probe_accuracy": 0.5}, about=about, **more)
    ((found,),) = (sweeps(group) for group in groups(collect(tmp_path / "results")[0]))
    table = sweep_table(found)
    assert table.columns[-2:] == ("effective rank", "effective rank of features")
    ranks = [row[-2].mean for row in table.rows]
    assert ranks[0] == ranks[1] < ranks[2] < ranks[3]
    expected = [rank + np.mean(SEEDS) / 10 for rank in (3.0, 3.5, 5.0)]
    assert [row[-1].mean for row in table.rows if row[-1]] == pytest.approx(expected)


def test_the_picture_has_the_plain_loss_as_a_level(drawn_page, sweep, accuracies):
    page = drawn_page
    sweep_onto(page, sweep)
    ((series, options),) = page.drawn.values()
    assert series["SimCLR + QARe"] == [(weight, pytest.approx(accuracies[weight].mean())) for weight in WEIGHTS]
    level = pytest.approx(accuracies[None].mean())
    assert series["SimCLR, plain"] == [(0.0, level), (1.875, level)]
    band = options["bands"]["SimCLR + QARe"]
    assert [weight for weight, _, _ in band] == WEIGHTS
    for weight, low, high in band:
        assert (high + low) / 2 == pytest.approx(accuracies[weight].mean())
        assert (high - low) / 2 == pytest.approx(accuracies[weight].std(ddof=1))


def test_seeds_that_the_sweep_has_not_do_not_move_the_level(drawn_page, sweep, keep, tmp_path):
    for seed in (11, 12, 13):  # those of `setwise reproduce confirm`
        keep(NAME, seed, {"probe_accuracy": 0.9})
        keep(f"{NAME}-qare", seed, {"probe_accuracy": 0.9})
    (group,) = groups(collect(tmp_path / "results")[0])
    (found,) = sweeps(group)
    assert sweep_table(found).rows == sweep_table(sweep).rows
    sweep_onto(drawn_page, found)
    (((_, level), _),) = [series["SimCLR, plain"] for series, _ in drawn_page.drawn.values()]
    assert level == sweep.plain.mean("probe_accuracy").mean


def test_the_safe_weights_are_answered_as_one(sweep, accuracies):
    inside = np.mean([accuracies[weight] for weight in (0.75, 0.875, 1.0, 1.125, 1.25)], axis=0)
    for found, other in ((sweep.against_plain(), None), (sweep.against_zero(), 0.0)):
        expected = ttest_rel(inside, accuracies[other]).confidence_interval(0.95)
        assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
        assert found.side == "above"
    assert f"{np.mean(inside - accuracies[None]):+.2f} (" in sweep_answer(sweep)


@pytest.mark.parametrize(
    ("gains", "words"),
    [
        ((1.0, 1.1, 0.9), "help"),
        ((-1.0, -1.1, -0.9), "harm"),
        ((-1.0, 1.1, 0.1), "cannot tell"),
        ((1.0,), "one seed"),
        ((), "no seed yet"),
    ],
)
def test_other_answers(keep, tmp_path, gains, words):
    for seed, gain in enumerate(gains, start=1):
        keep(NAME, seed, {"probe_accuracy": 0.6})
        for weight in (1.0, 1.25):
            final = {"probe_accuracy": 0.6 + gain / 100}
            keep(f"{NAME}-qare", seed, final, variant=f"beta-{weight:g}", beta=weight)
    for weight in (0.25, 0.5, 1.5):
        keep(f"{NAME}-qare", 9, {"probe_accuracy": 0.6}, variant=f"beta-{weight:g}", beta=weight)
    (group,) = groups(collect(tmp_path / "results")[0])
    (found,) = sweeps(group)
    assert words in sweep_answer(found)


def test_a_run_of_a_table_is_not_replaced_by_the_sweeps(sweep, keep, tmp_path):
    keep(f"{NAME}-qare", 1, {"probe_accuracy": 0.123})
    runs, aside = collect(tmp_path / "results")
    assert [line.split(": ")[0] for line in aside] == [f"{NAME}-qare/beta-0.5/seed-1.json"]
    (group,) = groups(runs)
    assert group.sweep("simclr")[0.5].values("probe_accuracy")[1] == pytest.approx(12.3)


def test_two_weights_are_no_sweep_and_a_sweep_is_not_told_twice(sweep, keep, tmp_path):
    labels = [row[0] for row in classification_table(sweep.group).rows]
    assert not any(", weight" in label for label in labels)
    assert "SimCLR + QARe" in labels
    for weight in (0.25, 0.5):
        keep(f"{NAME.replace('conv4', 'resnet32')}-qare", 1, {"probe_accuracy": 0.5}, beta=weight, variant=f"b{weight}")
    other = next(group for group in groups(collect(tmp_path / "results")[0]) if group.encoder == "resnet32")
    assert sweeps(other) == []
    assert "SimCLR + QARe, weight 0.25" in [row[0] for row in classification_table(other).rows]


def record(**changes):
    rows = [
        {"n": 2048, "plain_ms": 50.0, "qare_ms": 51.0, "added_ms": 1.5, "dense_term_ms": 25.0,
         "plain_bytes": 2**30, "qare_bytes": 2**30, "dense_bytes": 1.25 * 2**30},
        {"n": 256, "plain_ms": 10.0, "qare_ms": 10.2, "added_ms": 0.3, "dense_term_ms": None,
         "plain_bytes": None, "qare_bytes": None, "dense_bytes": None},
    ]  # fmt: skip
    return {
        "what": "bench qare", "device": "NVIDIA H200", "torch": "2.11", "encoder": "resnet32", "rows": rows, **changes
    }  # fmt: skip


def test_figure_3_in_numbers_and_lines(drawn_page, tmp_path):
    (tmp_path / "bench-qare-h200.json").write_text(json.dumps(record()))
    (timing,), aside = timings(tmp_path)
    assert aside == []
    table = cost_table(timing)
    assert (table.name, table.caption) == ("time-h200", "Figure 3: NVIDIA H200, ResNet-32")
    small, large = (dict(zip(table.columns, row, strict=True)) for row in table.rows)
    assert (small["batch"], large["batch"]) == ("256", "2048")
    assert (small["QARe adds, %"], large["QARe adds, %"]) == (pytest.approx(3), pytest.approx(3))
    assert (small["dense QARe adds, %"], large["dense QARe adds, %"]) == (None, pytest.approx(50))
    assert (small["paper's adds, %"], large["paper's adds, %"]) == (13, 29)
    assert (small["memory, MiB"], large["memory, MiB"]) == (None, 1024)
    assert (large["QARe adds to it, %"], large["dense QARe adds to it, %"]) == (0, pytest.approx(25))
    assert (small["paper's adds to it, %"], large["paper's adds to it, %"]) == (None, 0.78)
    page = drawn_page
    costs_onto(page, timing)
    series, options = page.drawn["NVIDIA H200, ResNet-32, time"]
    assert options["log"] == "xy"
    assert series == {
        "InfoNCE": [(256, 10), (2048, 50)],
        "InfoNCE + QARe, setwise": [(256, 10.2), (2048, 51)],
        "InfoNCE + QARe, dense": [(2048, 75)],
    }
    series, _ = page.drawn["NVIDIA H200, ResNet-32, memory"]
    assert series["InfoNCE + QARe, dense"] == [(2048, 1280)]


def test_the_records_of_this_repository_are_read():
    found, aside = timings(Path(__file__).parents[2] / "results")
    assert aside == []
    assert {timing.file for timing in found} >= {"bench-qare-cpu.json", "bench-qare-h200.json"}
    for timing in found:
        assert len(cost_table(timing).rows) == len(timing.costs) >= 6


def test_what_cannot_be_read_is_set_aside(tmp_path):
    bad = {
        "cut": '{"what": "bench qare"',
        "list": "[]",
        "other": '{"what": "bench step", "rows": [{"n": 1, "plain_ms": 1}]}',
        "rowless": json.dumps(record(rows=None)),
        "empty": json.dumps(record(rows=[{"n": 128}, {"n": "128", "plain_ms": 1}, {"n": 1, "plain_ms": -1}, 7])),
        "deep": "[" * 100_000,
    }
    for name, text in bad.items():
        (tmp_path / f"bench-qare-{name}.json").write_text(text)
    (tmp_path / "bench-qare-binary.json").write_bytes(b"\xff\xfe")
    odd = record(device=["<i>"], encoder=None, torch=7)
    odd["rows"][0] |= {"qare_ms": math.nan, "dense_term_ms": "much", "plain_bytes": 10**400}
    (tmp_path / "bench-qare-odd.json").write_text(json.dumps(odd))
    (timing,), aside = timings(tmp_path)
    assert sorted(line.split(":")[0] for line in aside) == sorted(
        f"bench-qare-{name}.json" for name in [*bad, "binary"]
    )
    assert not any(str(tmp_path) in line for line in aside)
    assert not {"qare_ms", "dense_ms", "plain_bytes"} & timing.costs[1].keys()
    page = Page("t")
    costs_onto(page, timing)
    assert "<i>" not in page.html()
    assert timings(tmp_path / "nowhere") == ([], [])


def test_the_command_measures_once(tmp_path, capsys, monkeypatch):
    calls = []

    def run(*, out, device, **options):
        calls.append((device.type, options["sizes"]))
        out.mkdir(parents=True)
        (out / "bench-qare.json").write_text(json.dumps(record()))

    monkeypatch.setattr(qare, "run", run)
    results, scratch = tmp_path / "results", tmp_path / "scratch"
    words = ["reproduce", "fig-time", "--device", "cpu", "--results", str(results), "--scratch", str(scratch)]
    path = time_record(results, torch.device("cpu"))
    assert path.name == "bench-qare-cpu.json"
    main([*words, "--dry-run"])
    assert capsys.readouterr().out == f"{path}\n1 of 1 measurements to make\n"
    assert not calls
    main(words)
    assert calls == [("cpu", (128, 256, 512, 1024, 2048, 4096))]
    assert json.loads(path.read_text()) == record()
    assert len(timings(results)[0]) == 1
    main(words)
    main([*words, "--dry-run"])
    assert capsys.readouterr().out.count(f"0 of 1 measurements to make, {path} is there") == 2
    assert len(calls) == 1, "what is there is not measured again"


def test_the_record_is_named_after_the_machine(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100-SXM4 80GB")
    assert time_record(Path("r"), torch.device("cuda")) == Path("r/bench-qare-a100-sxm4-80gb.json")
