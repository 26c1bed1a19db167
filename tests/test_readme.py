"""README's numbers: what `make readme` writes, and its gains once more from the records by scipy."""

import importlib.util
import json
import os
import random
import re
from pathlib import Path
from statistics import fmean, stdev
from xml.etree import ElementTree

import pytest
from scipy.stats import ttest_rel

import setwise.records as records
from setwise.paper.collected import collect, groups
from setwise.paper.numbers import WORDS

ROOT = Path(__file__).parent.parent
FINDINGS = "docs/findings.md"
RECORDS = ROOT / "results" / "runs"
NAMES = {words: name for name, words in WORDS.items()} | {"ResNet-32": "resnet32"}


@pytest.fixture
def readme(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")  # as for a script
    spec = importlib.util.spec_from_file_location("readme", ROOT / "docs" / "readme.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_marked_places_are_filled_from_the_records(readme):
    found, used = groups(collect(ROOT / "results")[0]), set()
    for name in readme.FILES:
        words = (ROOT / name).read_text()
        used |= {place[2] for place in readme.PLACE.finditer(words)}
        assert readme.fill(words, found, os.path.dirname(name)) == words, (
            f"{name} is not what the records say: run `make readme`"
        )
    assert set(readme.PLACES) - used <= {"safe-weights"}
    for one in readme.found_maps(found):
        assert readme.picture_of(one).read_text() == readme.drawn(one), "run `make readme`"
    assert readme.GAINS.read_text() == readme.gains_picture(found), "run `make readme`"
    assert (ROOT / readme.PICTURE).read_text() == readme.picture_of_sets(ROOT / "results/sets.json"), (
        "run `make readme`"
    )


def test_a_mean_of_fewer_seeds_than_its_row_says_so():
    """The first runs did not measure the features' rank."""
    looks = [
        json.loads(path.read_text())["structure"]
        for path in (RECORDS / "released/cifar10-conv4-simclr").glob("*")
        if path.is_file()
    ]
    ranks = [look["feature_rank"][-1] for look in looks if look.get("feature_rank")]
    assert 1 < len(ranks) < len(looks)
    (line,) = re.findall(
        r"^\| SimCLR: CIFAR-10, Conv-4, released form \| .*", place("spectrum", FINDINGS), re.MULTILINE
    )
    assert line.endswith(f"| {fmean(ranks):.2f} ± {stdev(ranks):.2f} (n = {len(ranks)}) |")


def test_all_runs_are_counted():
    every = [str(path) for path in RECORDS.rglob("*.json")]
    tuning = [path for path in every if "/tuning-" in path or "/tuned-" in path]
    words = " ".join(place("counts", FINDINGS).split())
    assert f"{len(every) - len(tuning):,} runs on " in words
    assert f"{len(tuning)} more are trials" in words


def gain(folder, variant, measure):
    """The mean, the interval and the p-value of QARe's gain, from the records of two folders."""
    values = []
    for end in ("-qare", ""):
        paths = (ROOT / "results" / "runs" / f"{folder}{end}" / variant).glob("seed-*.json")
        found = [records.read(path) for path in paths]
        values.append({record["seed"]: 100 * record["final"][measure] for record in found})
    seeds = sorted(values[0].keys() & values[1].keys())
    test = ttest_rel(*([one[seed] for seed in seeds] for one in values))
    low, high = test.confidence_interval(0.95)
    mean = sum(values[0][seed] - values[1][seed] for seed in seeds) / len(seeds)
    return f"{mean:+.2f} ({low:+.2f} to {high:+.2f})", len(seeds), test.pvalue


def test_gains_are_those_of_scipy():
    page = (ROOT / "docs" / "findings.md").read_text()
    text = page.partition("<!-- from results: answer -->")[2].partition("<!-- end -->")[0]
    rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in text.splitlines() if line[:1] == "|"]
    shown, tests = [], []
    for setting, *cells in (row for row in rows if row[0] != "---"):
        if setting == "QARe adds":
            bases = [NAMES[cell.removeprefix("to ")] for cell in cells]
            continue
        data, *parts = re.split(r", ?", setting)
        for base, cell in zip(bases, cells, strict=True):
            if cell == "not run" or "one seed" in cell:
                continue
            if "instances" in setting:
                variant = "" if parts == ["1", "467 instances"] else f"n{''.join(parts)}".removesuffix(" instances")
                tests.append(gain(f"paper/{NAMES[data]}-matching-{base}", variant, "held_out_accuracy"))
            else:
                encoder, form = NAMES[parts[0]], parts[1].removesuffix(" form")
                tests.append(gain(f"{form}/{NAMES[data]}-{encoder}-{base}", "", "probe_accuracy"))
            shown.append(cell)
    order = sorted(range(len(tests)), key=lambda i: tests[i][2])
    rejected = [i for rank, i in enumerate(order) if tests[i][2] * (len(order) - rank) >= 0.05]  # Holm, step by step
    sure = set(order[: order.index(rejected[0])])
    for i, (words, n, _) in enumerate(tests):
        expected = f"**{words}**" if i in sure else words
        assert shown[i].partition(" [")[0] == expected + (f", {n} seeds" if n != 3 else "")
    significant = sum(p < 0.05 for *_, p in tests)
    assert f"in {significant} of {len(tests)} settings ({len(sure)} after Holm's correction)" in place(
        "helps", "docs/findings.md"
    )


LANGUAGES = {"de": "English–German", "fr": "English–French"}
SCENES = {"cold": "from the first step", "weak": "weak encoders"}
MEASURES = {"recall@1, %": "recall1", "partners found inside sets, %": "aligned"}


def tables_of(text):
    """The rows of each table, as lists of cells, the paragraph before it, and the headings that it is under."""
    tables, words, heads = [], "", {}
    for block in text.strip().split("\n\n"):
        if block.startswith("|"):
            rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in block.splitlines()]
            tables.append((" ".join(heads.values()), words, rows[0], rows[2:]))
        elif block.startswith("#"):
            heads[len(block.split(" ")[0])] = block
        else:
            words = block
    return tables


def about(run):
    """What a run was trained on, part by part."""
    data, _, few = run["data"].removeprefix("en-").partition("-")
    name, every = ("halves of CIFAR-10", "50,000 images") if data == "halves" else (LANGUAGES[data], "29,000 lines")
    parts = {name} | (set() if few else {every})
    parts |= {f"{100 * run['missing']:.0f} % of items without a partner"} if run.get("missing") else set()
    parts |= {f"{100 * run['wrong']:.0f} % of sets wrong"} if run.get("wrong") else set()
    return frozenset(parts | {f"sets of {run['group']}"} | {SCENES[one] for one in [run.get("scene")] if one})


def by_way(runs, stage, parts, measure):
    """The values by seed of every way, of the runs that these parts describe."""
    here = {}
    for run in runs.values():
        if (run["stage"], about(run)) == (stage, parts) and measure in run["final"]:
            here.setdefault((run["way"], bool(run.get("priced"))), {})[run["seed"]] = 100 * run["final"][measure]
    return here


NAMED = {
    "row-wise, sparse": "sparse",
    "one-to-one, entropic": "assignment-entropy",
    "one-to-one, sparse": "assignment-sparse",
    '`"hard"`, soft': "hard-soft",
    '`"one-to-one"`, soft': "one-to-one-soft",
}


def ways_of(column):
    """The two ways that a column compares."""

    def way(words):
        plain = words.removesuffix(" at a price")
        return NAMED.get(plain, plain.strip('`"')), words != plain

    if column.startswith("a price adds to "):
        name, _ = way(column.removeprefix("a price adds to "))
        return (name, True), (name, False)
    first, _, second = column.removesuffix(" adds").partition(" − ")
    return way(first), way(second) if second else ("same", False)


def numbers_of(gain):
    """The numbers of a cell."""
    return [float(x) for x in re.findall(r"[-+]\d+\.\d+", gain)]


def told(a, b):
    """The mean of the differences and their interval, by scipy."""
    seeds = sorted(a.keys() & b.keys())
    pairs = [[one[seed] for seed in seeds] for one in (a, b)]
    mean = sum(x - y for x, y in zip(*pairs, strict=True)) / len(seeds)
    if len(seeds) == 1:
        return [mean]
    low, high = (mean, mean) if len({x - y for x, y in zip(*pairs, strict=True)}) == 1 else (None, None)
    if low is None:
        low, high = ttest_rel(*pairs).confidence_interval(0.95)
    return [mean, low, high]


def check_row(here, columns, mean, gains):
    """The cells of a row, from its runs by scipy; returns the numbers of seeds, and how many gains there are."""
    same = here["same", False]
    assert float(mean.split(" ± ")[0]) == pytest.approx(sum(same.values()) / len(same), abs=0.0051)
    counts, checked = {len(same)}, 0
    for column, gain in zip(columns, gains, strict=True):
        a, b = (here.get(way, {}) for way in ways_of(column))
        expected = told(a, b) if a.keys() & b.keys() else []
        assert numbers_of(gain) == pytest.approx(expected, abs=0.0051), column
        assert (gain == "-", "one seed" in gain) == (not expected, len(expected) == 1)
        counts |= {len(a.keys() & b.keys())} - {0}
        checked += gain != "-"
    return counts, checked


def span(counts):
    return " to ".join(str(x) for x in sorted({min(counts), max(counts)}))


def check_answers(text, runs):
    """The tables of the page of sets; returns how many gains there are, and what rows there are of each question."""
    checked, found = 0, {}
    for heads, words, header, rows in tables_of(text):
        assert len(header) <= 6
        shared, counts, trials = words.partition(" (")[0].split(", "), set(), set()
        for label, mean, *gains in rows:
            parts = {*label.split(", "), *shared[: [one.endswith(" seeds") for one in shared].index(True)]}
            stage = "untuned" if "untuned" in parts else "tuned"
            parts = frozenset(parts - {"tuned", "untuned", "as usual"})
            here = by_way(runs, stage, parts, "recall1")
            more, cells = check_row(here, header[2:], mean, gains)
            counts, checked = counts | more, checked + cells
            found.setdefault(heads, []).append((stage, parts))
            used = {
                way for column, gain in zip(header[2:], gains, strict=True) if gain != "-" for way in ways_of(column)
            }
            for way in used | {("same", False)} if stage == "tuned" else ():
                trials.add(len(by_way(numbered(runs, "trial"), "trial", parts, "recall1").get(way, ())))
        assert f"{span(counts)} seeds" in shared
        assert (f"tuned in {span(trials)} trials" in shared) if trials else "trials" not in words
    return checked, found


def numbered(runs, stage):
    """The runs of a stage, each with a seed of its own."""
    return {key: run | {"seed": key} for key, run in runs.items() if run["stage"] == stage}


def check_all_tables(text, runs):
    """Every table of gains of the page with all; returns how many gains there are, and the rows."""
    checked, found = 0, set()
    for heads, _, header, rows in tables_of(text):
        if header[0] == "no partner":
            continue
        stage, first = ("tuned", 4) if "trials" in header else ("untuned", 3)
        assert f"## {stage.capitalize()}" in heads
        for label, seeds, *cells in rows:
            parts = frozenset(label.split(", "))
            here = by_way(runs, stage, parts, MEASURES[header[0]])
            counts, more = check_row(here, header[first:], *(cells[first - 3], cells[first - 2 :]))
            assert seeds == span(counts)
            checked += more
            found.add((stage, parts, MEASURES[header[0]]))
    return checked, found


def place(name, page):
    return (ROOT / page).read_text().partition(f"<!-- from results: {name} -->")[2].partition("<!-- end -->")[0]


def test_gains_of_sets_are_those_of_scipy():
    runs = json.loads((ROOT / "results/sets.json").read_text())
    checked, answered = check_answers(place("sets", "docs/how-to/sets.md"), runs)
    assert checked > 3
    _, everything = check_all_tables(place("sets-all", "docs/sets-measured.md"), runs)
    for stage, parts, measure in {
        (run["stage"], about(run), measure)
        for run in runs.values()
        for measure in ("recall1", "aligned")
        if run["stage"] != "trial" and run["way"] == "same" and measure in run["final"]
    }:
        assert (stage, parts, measure) in everything
    assert {row for rows in answered.values() for row in rows} <= {(stage, parts) for stage, parts, _ in everything}
    asked = {about(run) for run in runs.values() if run["stage"] != "trial" and run["way"] == "same"}
    assert {parts for rows in answered.values() for _, parts in rows} == asked


class Made(dict):
    """Runs of a study that was never made."""

    def __init__(self):
        self.draw = random.Random(0)

    def add(self, stage, way, seed, **more):
        alone = {price: [self.draw.random(), self.draw.random()] for price in ("-0.1", "-0.3", "-0.5")}
        final = {"recall1": self.draw.random(), "aligned": self.draw.random()}
        final |= {"alone": alone} if "missing" in more else {}
        one = {"data": "en-fr-few", "group": 32, "way": way, "stage": stage, "seed": seed, "changes": {"epochs": 4}}
        self[str(len(self))] = one | {"final": final, "device": "NVIDIA H200"} | more


def test_a_part_of_the_runs_on_sets_is_shown(readme, tmp_path, monkeypatch):
    monkeypatch.setattr(readme, "RESULTS", tmp_path)
    assert readme.known_sets([]).startswith("Not run yet")
    assert readme.all_sets([]).startswith("Not run yet")
    assert readme.picture_of_sets(tmp_path / "sets.json") == readme.evidence_sets([]) == ""
    runs = Made()
    for seed in range(11, 15):
        runs.add("tuned", "same", seed)
        runs.add("tuned", "same", seed, missing=0.3)
        runs.add("untuned", "same", seed, data="halves", group=8)
    for seed in (12, 13, 14, 19):
        runs.add("tuned", "one-to-one", seed)
        runs.add("tuned", "one-to-one", seed, missing=0.3, priced=True)
    for number in range(3):
        final = {"recall1": 0.5 + (number == 1) / 10, "alone": {f"-0.{k}": [0.1 * k, 0.2] for k in (1, 3, 5)}}
        runs.add("trial", "one-to-one", 1, missing=0.3, priced=True, changes={"epochs": 3 + number}, final=final)
    runs.add("tuned", "one-to-one", 15, missing=0.3, priced=True, changes={"epochs": 3})  # fewer trials had chosen it
    runs.add("tuned", "hard", 11)
    runs.add("tuned", "hard", 11, group=64)  # "same" is not there yet
    (tmp_path / "sets.json").write_text(json.dumps(runs))
    text = readme.all_sets([])
    stale = next(key for key, run in runs.items() if run["changes"] == {"epochs": 3} and run["stage"] == "tuned")
    del runs[stale]
    assert check_all_tables(text, runs)[0] == 6, "three gains, of both measures"
    checked, _ = check_answers(readme.known_sets([]), runs)
    assert checked == 2
    assert ("sets of 64" in text, "1 to 4" in text, "(one seed)" in text, "| 0 to 3 |" in text) == (False, *3 * [True])
    mine = [run["final"]["alone"]["-0.5"] for run in runs.values() if run.get("priced") and run["stage"] == "tuned"]
    (row,) = (
        row for *_, header, rows in tables_of(text) if header[0] == "no partner" for row in rows if "at a" in row[1]
    )
    assert (row[2], row[5]) == ("-0.5", "4"), "the best price of the trial that won"
    for k, cell in enumerate(row[3:5]):
        assert cell.startswith(f"{25 * sum(x[k] for x in mine):.2f} ±")


@pytest.fixture
def many(tmp_path):
    """Sets of many sizes in two languages: German is tuned up to sets of 32, French is not."""
    runs = Made()
    for data in ("en-de-few", "en-fr-few"):
        for group in (1, 8, 32, 64):
            for way in ("same", "one-to-one", "sparse") if group > 1 else ("same",):
                stages = ("untuned", "tuned") if data == "en-de-few" and group < 64 else ("untuned",)
                for stage in stages:
                    for seed in range(3):
                        lost = {1: 0.0, 8: 0.004, 32: 0.03, 64: 0.3}[group] * (2 if stage == "untuned" else 1)
                        noise = 0.001 * seed + 1e-4 * (seed - 1) * (group + len(way))
                        final = {"recall1": 0.9 - lost + noise + 0.01 * (way == "one-to-one"), "aligned": 1.0}
                        runs.add(stage, way, seed, data=data, group=group, final=final)
                for _ in range(6 if way == "same" else 12) if "tuned" in stages else ():
                    runs.add("trial", way, 1, data=data, group=group)
    (tmp_path / "sets.json").write_text(json.dumps(runs))
    return tmp_path / "sets.json", runs


def test_tuned_rows_come_first_and_in_place_of_untuned_ones(readme, many, monkeypatch):
    path, runs = many
    monkeypatch.setattr(readme, "RESULTS", path.parent)
    _, found = check_answers(readme.known_sets([]), runs)
    (rows,) = (rows for question, rows in found.items() if question.endswith("How large may the sets be?"))
    stages = [stage for stage, _ in rows]
    assert stages == 3 * ["tuned"] + 5 * ["untuned"]
    assert len({parts for _, parts in rows}) == len(rows)
    _, everything = check_all_tables(readme.all_sets([]), runs)
    assert len({(stage, parts) for stage, parts, _ in everything}) == 3 + 8
    costs = readme.evidence_sets([]).splitlines()
    assert [re.findall(r"sets of (\d+)", line) for line in costs] == [["8", "32"], ["8", "32"]]
    assert ["untuned" in line for line in costs] == [True, True], "the stage with the most sizes"
    assert all(numbers == "6.00" for line in costs for numbers in re.findall(r"(\d\.\d\d) \(", line))


@pytest.mark.parametrize(
    ("quadratic", "words"),
    [(0.92, "at most +4.00 ("), (0.84, "nothing for certain, at best -4.00 (")],
)
def test_a_best_that_is_a_loss_is_not_called_a_gain(readme, tmp_path, monkeypatch, quadratic, words):
    monkeypatch.setattr(readme, "RESULTS", tmp_path)
    runs = Made()
    for seed in range(4):
        for way, recall in (("same", 0.8), ("one-to-one", 0.88), ("quadratic", quadratic)):
            final = {"recall1": recall + 0.001 * (seed - 1.5) * len(way), "aligned": 1.0}
            runs.add("untuned", way, seed, group=128, final=final)
    (tmp_path / "sets.json").write_text(json.dumps(runs))
    (line,) = (line for line in readme.known_sets([]).splitlines() if line.startswith("- Structure: "))
    assert f'`"quadratic"` adds to `"one-to-one"` {words}' in line


def test_the_picture_of_sets_tells_tuned_from_untuned(readme, many):
    path, _ = many
    tree = ElementTree.fromstring(readme.picture_of_sets(path))
    space = "{http://www.w3.org/2000/svg}"
    german, french = tree.findall(f"{space}svg")
    for panel, untuned in ((german, 2), (french, 7)):  # German: those of 64
        dots = panel.findall(f"{space}circle")
        assert len(dots) == 4 + 3, "two ways; sparse losses are in a table alone"
        assert sum("ring" in dot.get("class") for dot in dots) == untuned
        assert {"1", "8", "32", "64"} <= {one.text for one in panel.findall(f"{space}text")}
    (line,) = (one for one in german.findall(f"{space}path") if one.get("data-v") and "c0" in one.get("class"))
    drawn = [tuple(map(float, point.split(","))) for point in line.get("data-v").split()]
    assert drawn == [(1, 90.1), (8, 89.7), (32, 87.1), (64, 30.1)]
