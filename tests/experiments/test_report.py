"""The report: what it says first, its files, its curves and sources, foreign words; in a real browser if any."""

import csv
import json
import re
import shutil
import subprocess
from dataclasses import replace
from html import escape, unescape
from html.parser import HTMLParser

import pytest

from setwise.cli import main
from setwise.experiments import records
from setwise.experiments.recipes import recipe
from setwise.experiments.report import answers, make_page, mean_curve, provenance, report
from setwise.experiments.reproduce import Job
from setwise.experiments.tables import collect, groups

HOSTILE = "<script>alert(1)</script>\"'&"


@pytest.fixture
def keep(tmp_path):
    """Writes a record into results/: final in shares of one, ``about`` replaces what the record says of itself."""

    def write(name, seed, final, *, variant="", about=None, **changes):
        job = Job(name, replace(recipe(name), **changes), seed, variant)
        path = job.record(tmp_path / "results")
        path.parent.mkdir(parents=True, exist_ok=True)
        epochs = [{"epoch": i, "loss": 3.0 / i, "pairwise": 2.0 / i, "val_accuracy": seed * i / 100} for i in (1, 2, 3)]
        if name.endswith("-qare"):
            epochs = [{**row, "regularizer": 0.1 * row["epoch"]} for row in epochs]
        found = {
            "format": records.FORMAT,
            "name": name,
            "recipe": job.recipe.as_json(),
            "seed": seed,
            "precision": "float32",
            "commit": "0123abc",
            "versions": {"setwise": "0.1", "torch": "2.13"},
            "hardware": {"name": "a machine", "cores": 2},
            "command": ["setwise", "reproduce", "table 1"],
            "timings": {"training_seconds": 10.0},
            "epochs": epochs,
            "final": final,
            "variant": variant,
            **(about or {}),
        }
        path.write_text(json.dumps(found))
        return path

    return write


@pytest.fixture
def filled(tmp_path, keep):
    """One loss of each kind: QARe above zero, around it, below it, with one seed; and a probe."""
    gains = {"triplet": (0.030, 0.031, 0.032), "infonce": (0.01, -0.02, 0.02), "nt-logistic": (-0.030, -0.031, -0.032)}
    for loss, values in {**gains, "sparseclr": (0.01,)}.items():
        for seed, gain in enumerate(values, start=1):
            for end, more in (("", 0.0), ("-qare", gain)):
                final = {"test_accuracy": 0.5, "held_out_accuracy": 0.4 + seed / 50 + more, "val_accuracy": 0.5}
                keep(f"paper/cifar10-matching-{loss}{end}", seed, final)
    for seed in (1, 2, 3):
        keep("paper/cifar10-conv4-simclr", seed, {"probe_accuracy": 0.6 + seed / 100})
        keep("paper/cifar10-conv4-simclr-qare", seed, {"probe_accuracy": 0.6 + seed / 90})
    return tmp_path / "results"


class Texts(HTMLParser):
    """Checks that elements nest, and collects (tag, text)."""

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.open, self.found = [], []
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "img", "br"):
            self.open.append((tag, []))

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        opened, words = self.open.pop()
        assert opened == tag
        self.found.append((tag, "".join(words)))

    def handle_data(self, data):
        if self.open:
            self.open[-1][1].append(data)

    def of(self, tag):
        return [words for name, words in self.found if name == tag]


def test_the_answer_comes_first(filled):
    found = groups(collect(filled)[0])
    assert answers(found[0]) == (
        "Matching, CIFAR-10, 1,467 instances, matching accuracy on held-out sets: QARe's interval is above zero for "
        "Triplet; it contains zero for InfoNCE; it is below zero for NT-Logistic; it cannot be given, with one seed, "
        "for SparseCLR."
    )
    texts = Texts(make_page(found, []).html())
    lead, first = texts.of("p")[:2]
    assert lead == (
        "QARe was compared with the same loss without it in 5 settings (26 runs in all). The 95 % interval of the "
        "difference is above zero in 1 of them (QARe helps), contains zero in 2 (cannot be told) and is below zero in "
        "1 (QARe harms). In 1 there is one seed only, which gives no interval."
    )
    assert first == answers(found[0])
    assert texts.of("h2") == ["Tables", "Learning curves", "Where the numbers come from"]


def test_files_are_written_and_agree(filled, tmp_path, capsys):
    out = tmp_path / "out"
    main(["report", "--results", str(filled), "--out", str(out)])
    assert capsys.readouterr().out == f"{out / 'index.html'}, and 6 files of tables beside it\n"
    names = ["classification-paper-cifar10-conv4", "differences", "matching-cifar10-1467"]
    assert sorted(path.name for path in out.iterdir()) == sorted(
        ["index.html", *(f"{name}.{end}" for name in names for end in ("csv", "md"))]
    )
    with (out / "differences.csv").open(encoding="utf-8", newline="") as file:
        rows = {row["loss"]: row for row in csv.DictReader(file)}
    assert float(rows["Triplet: CIFAR-10, 1,467"]["QARe"]) == pytest.approx(3.1)
    assert rows["SparseCLR: CIFAR-10, 1,467"]["QARe low"] == ""
    assert rows["Triplet: CIFAR-10, 1,467"]["paper's QARe"] == "", "CIFAR-10 is not the paper's data for matching"
    assert rows["SimCLR: CIFAR-10, Conv-4, paper"]["paper's QARe"] == "+1.90"
    page = (out / "index.html").read_text()
    assert "+3.10 (+2.85 to +3.35)" in page
    assert "+3.10 (+2.85 to +3.35)" in (out / "matching-cifar10-1467.md").read_text(encoding="utf-8")


def test_without_records_one_line_and_status_1(tmp_path, capsys):
    for _ in range(2):
        with pytest.raises(SystemExit) as stopped:
            main(["report", "--results", str(tmp_path), "--out", str(tmp_path / "out")])
        assert re.fullmatch(r"setwise: expected records of runs below .*, got none.*", str(stopped.value))
        assert "\n" not in str(stopped.value), "a text as the status is exit status 1"
        assert not (tmp_path / "out").exists()
        (tmp_path / "runs").mkdir(exist_ok=True)
        (tmp_path / "runs" / "other.json").write_text("{}")
    assert "(1 file set aside, the first: other.json: expected a record" in str(stopped.value)


def test_other_weights_are_in_the_tables_only(filled, keep):
    for weight in (0.125, 0.25):
        for seed in (1, 2):
            keep(
                "paper/cifar10-conv4-simclr-qare", seed, {"probe_accuracy": 0.9}, variant=f"beta-{weight}", beta=weight
            )
    found = groups(collect(filled)[0])
    html = make_page(found, []).html()
    assert "(QARe helps), contains zero in 2 (cannot be told)" in html
    assert html.count("SimCLR + QARe, weight 0.25</th>") == 1
    assert "SimCLR + QARe, weight 0.25 <b>" not in html, "no line of a chart"


def test_nothing_to_compare_is_said(keep, tmp_path):
    keep("paper/cifar10-matching-infonce", 1, {"test_accuracy": 0.5})
    page = make_page(groups(collect(tmp_path / "results")[0]), []).html()
    assert "What set-level terms add" not in page
    assert "1 run, and none yet with QARe beside one of the same seed without it: no answer." in Texts(page).of("p")[0]


def test_our_terms_are_told_by_their_chosen_weights(keep, tmp_path):
    for seed in (1, 2, 3):
        keep("paper/cifar10-matching-infonce", seed, {"test_accuracy": 0.5, "val_accuracy": 0.5})
        for weight, test in ((1.0, 0.6), (3.0, 0.4)):
            final = {"test_accuracy": test + seed / 1000, "val_accuracy": test}
            keep("setwise/cifar10-matching-infonce-gap", seed, final, variant=f"beta-{weight:g}", beta=weight)
    (group,) = groups(collect(tmp_path / "results")[0])
    assert answers(group).endswith("the test split: The alignment gap's interval is above zero for InfoNCE.")


def test_curves_are_means_over_epochs_that_all_seeds_have(keep, tmp_path):
    keep("paper/cifar10-matching-infonce", 1, {"test_accuracy": 0.5})
    keep("paper/cifar10-matching-infonce", 2, {"test_accuracy": 0.5})
    short = [{"epoch": 1, "val_accuracy": 0.07}, {"epoch": 2, "val_accuracy": None}, "words"]
    keep("paper/cifar10-matching-infonce", 3, {"test_accuracy": 0.5}, about={"epochs": short})
    runs = collect(tmp_path / "results")[0]

    def val(row):
        return row.get("val_accuracy")

    assert mean_curve(runs[:2], val) == [(1, pytest.approx(0.015)), (2, pytest.approx(0.03)), (3, pytest.approx(0.045))]
    assert mean_curve(runs, val) == [(1, pytest.approx(0.1 / 3))]
    assert mean_curve([], val) == []


def test_every_number_has_its_source(filled, keep):
    keep(
        "paper/cifar10-conv4-random", 7, {"probe_accuracy": 0.3}, about=dict.fromkeys(["commit", "versions", "command"])
    )
    for group in groups(collect(filled)[0]):
        words = provenance(group.runs)
        for run in group.runs:
            folder = run.path.rpartition("/")[0]
            (line,) = [line for line in words.splitlines() if line.startswith(f"  {folder}: ")]
            assert str(run.seed) in line
        assert "$ setwise reproduce 'table 1'\ncommit 0123abc\nversions setwise 0.1, torch 2.13\na machine" in words
    assert "command unknown\ncommit unknown\nversions unknown" in words
    assert "6 runs, 60 s of training" in words


def test_hostile_records_stay_words(keep, tmp_path):
    about = {
        **{"commit": HOSTILE, "precision": HOSTILE, "command": [HOSTILE], "versions": {HOSTILE: HOSTILE}},
        **{"hardware": {"name": HOSTILE}, "epochs": HOSTILE, "timings": HOSTILE, "variant": HOSTILE},
    }
    path = keep("paper/cifar10-conv4-simclr", 1, {"probe_accuracy": 0.5}, about=about)
    record = json.loads(path.read_text())
    record["recipe"] |= {HOSTILE: HOSTILE, "loss": HOSTILE, "long": "x" * 300}
    path.write_text(json.dumps(record))
    (path.parent / "<b>.json").write_text("{}")
    files = report(tmp_path / "results", tmp_path / "out")
    html = files[0].read_text()
    texts = Texts(html)
    assert len(texts.of("script")) == 1, "the page's own"
    assert "<b>.json" in texts.of("pre")[-1]
    assert HOSTILE in texts.of("pre")[0]
    assert html.isascii()
    assert all(path.parent == tmp_path / "out" for path in files)
    assert all(re.fullmatch(r"[a-z0-9-]+\.(md|csv|html)", path.name) for path in files)
    assert not any("<script>" in path.read_text(encoding="utf-8") for path in files if path.suffix == ".md")


@pytest.fixture(scope="module")
def browser():
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("needs Chromium, none here")
    return found


def test_on_a_telephone(browser, filled, tmp_path):
    report(filled, tmp_path)
    harness = tmp_path / "harness.html"
    asked = """
    const page = document.querySelector("iframe").contentDocument, root = page.documentElement;
    const top = what => page.querySelector(what).getBoundingClientRect().top;
    document.querySelector("pre").textContent = JSON.stringify({width: root.clientWidth, wide: root.scrollWidth,
      answer: top("main > p:nth-of-type(2)"), tables: page.querySelectorAll("table").length,
      charts: page.querySelectorAll("path.line[data-v]").length});
    """
    frame = f'<iframe width=360 height=800 style="border:0" srcdoc="{escape((tmp_path / "index.html").read_text())}">'
    harness.write_text(f"<!DOCTYPE html>{frame}</iframe><pre></pre><script>onload = () => {{{asked}}}</script>")
    done = subprocess.run(
        [
            browser,
            *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
            *("--disable-component-update", "--disable-sync", f"--user-data-dir={tmp_path / 'profile'}"),
            *("--dump-dom", harness.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    answer = re.search(r"<pre>(.*?)</pre>", done.stdout, re.DOTALL)
    assert answer, done.stderr
    said = json.loads(unescape(answer[1]))
    assert said["wide"] == said["width"] <= 360, "the page does not scroll sideways"
    assert said["answer"] < 700, "the answer is on the first screen"
    assert said["tables"] == 3
    # A chart of each of four losses; SimCLR's pairwise loss, twice, and its set-level term.
    assert said["charts"] == 8 + 3
