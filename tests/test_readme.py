"""README's numbers: what `make readme` writes, and its gains once more from the records by scipy."""

import importlib.util
import json
import os
import random
import re
from pathlib import Path

import pytest
from scipy.stats import ttest_rel

import setwise.records as records
from setwise.paper.collected import collect, groups
from setwise.paper.numbers import WORDS

ROOT = Path(__file__).parent.parent
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
    assert f"in {significant} of {len(tests)} settings ({len(sure)} after Holm's correction)" in text


LABELS = {"de": "English–German", "fr": "English–French"}
WAYS = ("same", "hard", "one-to-one", "quadratic", "sparse", "assignment-entropy", "assignment-sparse")


def tables_of(text):
    """The rows of each table, as lists of cells, and the paragraph before it."""
    tables, words = [], ""
    for block in text.strip().split("\n\n"):
        if block.startswith("|"):
            rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in block.splitlines()]
            tables.append((words, rows[0], rows[2:]))
        else:
            words = block
    return tables


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


def check_tables_of_sets(text, runs):
    """Every cell of the tables of gains, from the runs by scipy; returns how many gains there are."""
    checked = 0
    for words, header, rows in tables_of(text):
        if header[0] == "no partner":
            continue
        stage = "untuned" if "nothing tuned" in words else "tuned"
        measure = {"recall@1, %": "recall1", "partners found inside sets, %": "aligned"}[header[0]]
        for label, seeds, mean, *gains in rows:
            here = {}
            for run in (run for run in runs.values() if run["stage"] == stage and measure in run["final"]):
                few = "4,096" if run["data"].endswith("-few") else "29,000"
                name = f"{LABELS.get(run['data'][3:5])}, {few} lines" if "en-" in run["data"] else "halves of CIFAR-10"
                name += f", sets of {run['group']}"
                name += f", {100 * run['missing']:.0f}% of items without a partner" if run.get("missing") else ""
                name += f", {100 * run['wrong']:.0f}% of sets wrong" if run.get("wrong") else ""
                name += {"cold": ", from the first step", "weak": ", weak encoders"}.get(run.get("scene"), "")
                if name == label:
                    way = run["way"], bool(run.get("priced"))
                    here.setdefault(way, {})[run["seed"]] = 100 * run["final"][measure]
            same = here["same", False]
            assert float(mean.split(" ± ")[0]) == pytest.approx(sum(same.values()) / len(same), abs=0.0051)
            counts = {len(same)}
            for name, gain in zip(header[3:], gains, strict=True):
                first, _, second = name.removesuffix(" adds").partition(" − ")
                a, b = (
                    here.get((one.split("`")[1].strip('"') if "`" in one else one, "at a price" in one), {})
                    for one in (first, second or '`"same"`')
                )
                expected = told(a, b) if a.keys() & b.keys() else []
                assert numbers_of(gain) == pytest.approx(expected, abs=0.0051), (label, name)
                assert (gain == "-", "one seed" in gain) == (not expected, len(expected) == 1)
                counts |= {len(a.keys() & b.keys())} - {0}
                checked += gain != "-"
            assert seeds in (str(min(counts)), f"{min(counts)} to {max(counts)}")
    return checked


def test_gains_of_sets_are_those_of_scipy(readme):
    page = (ROOT / "docs/how-to/sets.md").read_text()
    text = page.partition("<!-- from results: sets -->")[2].partition("<!-- end -->")[0]
    assert check_tables_of_sets(text, json.loads((ROOT / "results/sets.json").read_text())) > 3


def test_a_part_of_the_runs_on_sets_is_shown(readme, tmp_path, monkeypatch):
    monkeypatch.setattr(readme, "RESULTS", tmp_path)
    assert readme.known_sets([]).startswith("Not run yet")
    draw, runs = random.Random(0), {}

    def add(stage, way, seed, **more):
        alone = {price: [draw.random(), draw.random()] for price in ("-0.1", "-0.3", "-0.5")}
        final = {"recall1": draw.random(), "aligned": draw.random()} | ({"alone": alone} if "missing" in more else {})
        one = {"data": "en-fr-few", "group": 32, "way": way, "stage": stage, "seed": seed, "changes": {"epochs": 4}}
        runs[str(len(runs))] = one | {"final": final, "device": "NVIDIA H200"} | more

    for seed in range(11, 15):
        add("tuned", "same", seed)
        add("tuned", "same", seed, missing=0.3)
        add("untuned", "same", seed, data="halves", group=8)
    for seed in (12, 13, 14, 19):
        add("tuned", "one-to-one", seed)
        add("tuned", "one-to-one", seed, missing=0.3, priced=True)
    for number in range(3):
        add("trial", "one-to-one", 1, missing=0.3, priced=True, changes={"epochs": 3 + number})
    add("tuned", "hard", 11)
    add("tuned", "hard", 11, group=64)  # "same" is not there yet
    (tmp_path / "sets.json").write_text(json.dumps(runs))
    text = readme.known_sets([])
    assert check_tables_of_sets(text, runs) == 6, "three gains, of both measures"
    assert ("sets of 64" in text, "1 to 4" in text, "(one seed)" in text, "in 3 trials" in text) == (
        False,
        True,
        True,
        True,
    )
    chosen = next(run for run in runs.values() if run["stage"] == "trial" and run["changes"] == {"epochs": 4})
    f1 = {price: 2 / (1 / p + 1 / r) for price, (p, r) in chosen["final"]["alone"].items()}
    best = max(f1, key=f1.get)
    mine = [run["final"]["alone"][best] for run in runs.values() if run.get("priced") and run["stage"] == "tuned"]
    (row,) = (
        row for _, header, rows in tables_of(text) if header[0] == "no partner" for row in rows if "at a" in row[1]
    )
    assert (row[2], row[5]) == (best, "4")
    for k, cell in enumerate(row[3:5]):
        assert cell.startswith(f"{25 * sum(x[k] for x in mine):.2f} ±")
