"""Made-up records of the map, whose winners and gains are known; the numbers of table and picture against scipy."""

import importlib.util
import re
from pathlib import Path
from random import Random
from unittest import mock
from xml.etree import ElementTree

import pytest
from scipy.stats import false_discovery_control, ttest_rel

import setwise.paper.reproduce as paper
import setwise.records as records
from setwise.cli import main
from setwise.paper import factors, jobs, tuning
from setwise.paper.collected import collect, groups
from setwise.paper.factors import LEVELS, PLACES
from setwise.paper.jobs import expand
from setwise.paper.missing import part_of, parts
from setwise.paper.paying import map_answer, map_rows, map_table, maps
from setwise.paper.report import report
from setwise.paper.reproduce import run_steps
from setwise.paper.tuned import settings
from setwise.recipe import flat
from setwise.report.picture import interval_picture

MEASURES = ("probe_accuracy", *(level.measure for level in LEVELS.values() if level.factor == "kNN of features"))
BEST = {"plain": 2, "qare": 4, "gap": 1, "control": 5}
GAIN = {("batch-16", "qare"): 0.020, ("wrong-40", "gap"): 0.012, ("long-tailed", "control"): -0.015}


def noise(*words):
    """Anyone's, but the same each time."""
    return Random("-".join(map(str, words))).uniform(-0.003, 0.003)


def accuracy(point, seed, measure):
    added = GAIN.get((point.place, point.term), 0.0)
    if (point.place, point.term) == ("wrong-40", "gap") and seed > factors.LATER:
        added = 0.005  # it is above zero for certain, and half a point
    return 0.5 + added + seed / 1000 + noise(point.place, point.term, seed, measure)


def write(job, results):
    point = PLACES[job.variant]
    if point.test:
        final = {measure: accuracy(point, job.seed, measure) for measure in MEASURES}
    else:
        wins = dict.fromkeys(MEASURES, BEST[point.term])
        wins["knn20_1bit_accuracy"] = 3  # another one wins by another measure
        final = {measure: 0.4 + 0.1 * (point.number == wins[measure]) for measure in MEASURES}
    write_final(job, results, final)


def write_final(job, results, final):
    path = job.record(results)
    path.parent.mkdir(parents=True, exist_ok=True)
    with mock.patch("os.fsync"):  # hundreds of files wait long for a disk
        records.write(path, {"name": job.name, "recipe": job.recipe.tree(), "seed": job.seed, "final": final})


def make(results, *only):
    """One pass of `setwise reproduce map`; how many records it made."""
    planned = [job for job in expand("map", only=only, results=results) if not job.record(results).exists()]
    for job in planned:
        write(job, results)
    return len(planned)


def found(results):
    runs, aside = collect(results)
    assert not aside
    (one,) = maps(runs, settings(runs, groups(runs)))
    return one


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """All of it: trials, then tests, then gains tested again."""
    results = tmp_path_factory.mktemp("map") / "results"
    # 14 levels of 4 objectives with 5 trials, and 3 temperatures, where plain SimCLR has none but its tests.
    assert make(results) == 14 * 4 * 5 + 3 * (3 * 5 + 5)
    # 5 seeds of each; of the 4 objectives, another trial wins by the bits of the base's features.
    assert make(results) == 14 * 4 * 5 + 3 * 3 * 5 + 4 * 5
    assert make(results) == 2 * 2 * 10
    assert make(results) == 0
    return results


def test_every_level_is_one_change_and_every_term_has_the_same_trials():
    planned = [job for job in expand("map") if not PLACES[job.variant].test]
    base = flat(factors.recipe_of("cifar10", factors.Point("base", "plain", 1, False)).tree())
    temperatures = {}
    for job in planned:
        point, fields = PLACES[job.variant], flat(job.recipe.tree())
        assert (job.seed, job.recipe.data.validation) == (1, 5000)
        changed = {path for path in fields if fields[path] != base.get(path) and ".terms." not in path}
        assert changed - {"objective.temperature"} <= {*LEVELS[point.place].changes}
        if LEVELS[point.place].tuned:
            key = point.place, point.term
            temperatures.setdefault(key, []).append(fields["objective.temperature"])
        assert len(job.recipe.objective.terms) == (point.term != "plain")
    assert {tuple(one) for one in temperatures.values()} == {(0.14, 0.07, 0.28, 0.43, 0.9)}
    assert len(temperatures) == 14 * 4
    steps = {PLACES[job.variant].place: run_steps(job.recipe) for job in planned}
    assert (steps["base"], steps["batch-16"], steps["images-500"]) == (25 * 352, 25 * 2813, 250 * 4)
    assert steps["long-tailed"] == 100 * 88  # 11,161 of 45,000 images


def test_differences_are_scipys(results):
    one = found(results)
    table = map_table(one)
    rows = {(row[0], row[1], row[2]): dict(zip(table.columns, row, strict=True)) for row in table.rows}
    assert len(rows) == 3 * len(LEVELS)
    labels = {"qare": "QARe", "gap": "alignment gap", "control": "structural difference"}
    ps = {}
    for level in LEVELS.values():
        for term, label in labels.items():
            row = rows[level.factor, level.label, label]
            numbers = {name: 3 if level.measure == "knn20_1bit_accuracy" else BEST[name] for name in ("plain", term)}
            if not level.tuned:
                numbers["plain"] = 1
            values = [
                [100 * accuracy(factors.Point(level.place, name, n, True), s, level.measure) for s in range(11, 16)]
                for name, n in numbers.items()
            ]
            test = ttest_rel(values[1], values[0])
            low, high = test.confidence_interval(0.95)
            got = row["difference"]
            assert (got.low, got.high, got.n) == (pytest.approx(low), pytest.approx(high), 5)
            assert got.p == pytest.approx(test.pvalue)
            assert row["SimCLR, tuned"].mean == pytest.approx(sum(values[0]) / 5)
            if level.tuned:
                ps[level.key, term] = test.pvalue
                assert float(row["with the term"]) == factors.TRIED[numbers[term] - 1][0]
            else:
                assert row["Holm"] is None
    # Holm by hand: the smallest of m p-values times m, the next times m - 1, never less than the one before.
    worst, expected = 0.0, set()
    for place, (key, p) in enumerate(sorted(ps.items(), key=lambda pair: pair[1])):
        worst = max(worst, min(1.0, (len(ps) - place) * p))
        if worst < 0.05:
            expected.add(key)
    assert {(gain.level.key, gain.term) for gain in one.surviving} == expected
    assert len(ps) == len(one.tested) == 3 * 18
    assert expected <= {key for key, p in zip(ps, false_discovery_control(list(ps.values())), strict=True) if p < 0.05}
    drawn = map_rows(one)
    assert [row.mean for row in drawn] == [row[5].mean for row in table.rows]
    assert [row.bounds for row in drawn] == [(row[5].low, row[5].high) for row in table.rows]


def test_a_gain_of_a_point_is_tested_again_and_the_sentence_says_so(results):
    one = found(results)
    assert {(gain.level.key, gain.term) for gain in one.promising} == {("batch-16", "qare"), ("wrong-40", "gap")}
    seeds = range(21, 31)
    points = [factors.Point("batch-16", term, BEST[term], True) for term in ("plain", "qare")]
    values = [[100 * accuracy(point, seed, "probe_accuracy") for seed in seeds] for point in points]
    low, high = ttest_rel(values[1], values[0]).confidence_interval(0.95)
    (certain,) = one.certain
    assert (certain.level.key, certain.term) == ("batch-16", "qare")
    assert (certain.again.low, certain.again.high, certain.again.n) == (pytest.approx(low), pytest.approx(high), 10)
    words = map_answer(one)
    assert f"gains a point or more for certain with QARe, batch 16 {certain.again.mean:+.2f}" in words
    above = sum(gain.first.low > 0 for gain in one.tested)
    assert f"Intervals of 54 differences: {above} above zero" in words
    hollow = {row.name: row.other for row in map_rows(one) if row.other is not None}
    assert hollow.keys() == {"16: QARe", "40 %: alignment gap"}


def left(results):
    return part_of(parts(results), "map", "cifar10").sentence


def test_a_part_of_it_is_shown_and_what_is_left_is_said(tmp_path):
    results = tmp_path / "results"
    assert left(results) == "Not run: 665 runs of `setwise reproduce map --data cifar10`."
    assert make(results, "-dimensions-8-qare", "-dimensions-8-plain") == 10
    one = found(results)
    assert (one.gains[0].first, one.tested) == (None, [])
    assert "no level of the map has its tests yet" in map_answer(one)
    assert make(results, "mapped-dimensions-8-") == 10
    one = found(results)
    assert [(gain.level.key, gain.term) for gain in one.tested] == [("dimensions-8", "qare")]
    assert "no set-level term gains a point or more for certain. Intervals of 1 difference: " in map_answer(one)
    assert "645 runs" in left(results)
    files = report(results, tmp_path / "page")
    html = files[0].read_text()
    assert html.index("no set-level term gains a point") < html.index("<h2")
    assert "645 runs" in html
    assert "The map, CIFAR-10: 20 runs" in html
    assert (tmp_path / "page/map-cifar10.csv").read_text().count("\n") == 2
    bad = next(results.rglob("mapped-dimensions-8-qare-*/seed-11.json"))
    bad.write_text("{")
    (one,) = maps(collect(results)[0], [])
    assert one.tested[0].first.n == 4, "a broken record is set aside"


def test_nothing_else_changes(results, keep, tmp_path):
    for seed in (1, 2, 3):
        keep("released/cifar10-conv4-simclr", seed, {"probe_accuracy": 0.6 + seed / 1000})
        keep("released/cifar10-conv4-simclr-qare", seed, {"probe_accuracy": 0.61 + seed / 500})
    before = report(tmp_path / "results", tmp_path / "before")
    for path in (results / "runs").rglob("*-dimensions-*/*.json"):
        there = tmp_path / "results/runs" / path.relative_to(results / "runs")
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_bytes(path.read_bytes())
    after = {path.name: path.read_text() for path in report(tmp_path / "results", tmp_path / "after")}
    same = (path for path in before if path.suffix != ".html" and path.stem != "not-run")
    assert {path.name: path.read_text() for path in same}.items() <= after.items()
    assert after.keys() - {path.name for path in before} == {"map-cifar10.md", "map-cifar10.csv"}


def test_200_epochs_are_those_of_the_tuned_objectives(tmp_path):
    results = tmp_path / "results"
    for job in expand("tuning", only=("conv4-simclr/tuning-plain", "conv4-simclr/tuning-gap"), results=results):
        write_final(job, results, {"probe_accuracy": 0.5})
    for job in expand("tuned", results=results):
        gap = 0.02 + job.seed / 5000 if "gap" in job.variant else 0.0
        write_final(job, results, {"probe_accuracy": 0.6 + gap + noise(job.variant, job.seed)})
    make(results, "map-base-plain-1/")
    one = found(results)
    (gain,) = [gain for gain in one.gains if gain.level.label == "200"]
    value = {name: [100 * (0.6 + noise(f"tuned-{name}", s)) for s in range(11, 21)] for name in ("plain", "gap")}
    value["gap"] = [v + 100 * (0.02 + s / 5000) for s, v in zip(range(11, 21), value["gap"], strict=True)]
    for half, part in ((gain.first, slice(0, 5)), (gain.again, slice(5, 10))):
        test = ttest_rel(value["gap"][part], value["plain"][part])
        assert (half.p, half.n) == (pytest.approx(test.pvalue), 5)
    assert (one.certain, gain.term) == ([gain], "gap")
    assert "waits" not in map_answer(one)


def test_the_picture_is_a_file_of_its_own(results):
    rows = map_rows(found(results))
    text = interval_picture("a < b", rows)
    tree = ElementTree.fromstring(text)
    space = "{http://www.w3.org/2000/svg}"
    bars = tree.findall(f"{space}svg")
    assert len(bars) == len(rows) + 1  # and the marks
    marks = {float(mark.text): float(mark.get("x")[:-1]) for mark in bars[-1].iter(f"{space}text")}
    (zero, at_zero), (one, at_one) = ((value, marks[value]) for value in (0.0, max(marks)))
    for bar, row in zip(bars, rows, strict=False):
        circles = [circle for circle in bar.iter(f"{space}circle") if circle.get("class") != "hollow"]
        place = at_zero + (row.mean - zero) / (one - zero) * (at_one - at_zero)
        assert [float(circle.get("cx")[:-1]) for circle in circles] == [pytest.approx(place, abs=0.02)]
    words = {element.text for element in tree.iter(f"{space}text")}
    assert {"a < b", "wrong partners", "16: QARe"} <= words
    assert "prefers-color-scheme:dark" in text
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)


def test_the_page_of_findings_shows_it(results, monkeypatch):
    docs = Path(__file__).parents[2] / "docs"
    monkeypatch.syspath_prepend(docs)  # as for a script
    spec = importlib.util.spec_from_file_location("readme", docs / "readme.py")
    readme = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(readme)
    monkeypatch.setattr(readme, "RESULTS", results)
    words = readme.paying([])
    assert words.startswith("CIFAR-10, Conv-4, both tuned at each of 18 levels: a set-level term gains a point")
    assert "](where-it-pays-cifar10.svg)" in words
    assert "are to be made" not in words
    assert len([line for line in words.splitlines() if line[:1] == "|"]) == 2 + 3 * len(LEVELS)
    (one,) = readme.found_maps([])
    assert readme.drawn(one).count("</svg>") == 3 * len(LEVELS) + 2


def test_the_command_from_the_first_trial_to_the_page(tmp_path, monkeypatch, capsys):
    """On digits, with as few of all as possible: QARe alone, two trials, one seed, two levels and a measure."""
    some = ("base", "wrong-20", "knn_1bit")
    factors.recipe_of.cache_clear()
    monkeypatch.setattr(tuning, "VALIDATION", 100)
    monkeypatch.setattr(factors, "TERMS", ("plain", "qare"))
    monkeypatch.setattr("setwise.paper.paying.TERMS", ("plain", "qare"))
    monkeypatch.setattr(factors, "TRIED", factors.TRIED[:2])
    monkeypatch.setattr(jobs, "SEEDS", 1)
    for key in LEVELS.keys() - set(some):
        monkeypatch.delitem(LEVELS, key)
    short = {"epochs": 1, "evaluation.probe.epochs": 1, "head.hidden": 16, "data.instances": 200}
    monkeypatch.setattr(factors, "BASE", factors.BASE | short)
    where = ["--data", "digits", "--results", str(tmp_path / "results")]
    run = ["reproduce", "map", *where, "--scratch", str(tmp_path / "runs"), "--device", "cpu", "--forget"]
    real = paper.record_of

    def failing(job, *more):
        if job.variant == "map-wrong-20-qare-2":
            raise ValueError("it diverged")
        return real(job, *more)

    monkeypatch.setattr(paper, "record_of", failing)
    with pytest.raises(SystemExit):
        main([*run, "--only", "base-", "map-wrong-20-qare-2"])
    monkeypatch.setattr(paper, "record_of", real)
    assert list((tmp_path / "results").rglob("mapped-base-*/seed-11.json")), "one that fails stops no other"
    assert not list((tmp_path / "results").rglob("*wrong-20*/*.json"))
    main(run)
    out = capsys.readouterr().out
    tests = len(list((tmp_path / "results").rglob("mapped-*/seed-1?.json")))
    assert tests >= 2 * 2
    assert "4 of 5 records" in out, "trials of the base"
    assert out.count(" s\n") == 8 + tests, "all trials, then their tests, none twice"
    main(run)
    assert capsys.readouterr().out.count(" s\n") == 0
    table = (tmp_path / "results").parent / "page/map-digits.csv"
    assert table in report(tmp_path / "results", tmp_path / "page")
    assert len(table.read_text().splitlines()) == 1 + len(some)
    assert max(path.stat().st_size for path in (tmp_path / "results").rglob("*.json")) < 5000
    factors.recipe_of.cache_clear()
