"""README's numbers: what `make readme` writes, and its gains once more from the records by scipy."""

import importlib.util
import os
import re
from pathlib import Path

from scipy.stats import ttest_rel

import setwise.records as records
from setwise.paper.collected import collect, groups
from setwise.paper.numbers import WORDS

ROOT = Path(__file__).parent.parent
NAMES = {words: name for name, words in WORDS.items()} | {"ResNet-32": "resnet32"}


def test_marked_places_are_filled_from_the_records():
    spec = importlib.util.spec_from_file_location("readme", ROOT / "docs" / "readme.py")
    readme = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(readme)
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
