"""The report: what it says first, its files, its curves and sources, foreign words; in a real browser if any."""

import csv
import json
import os
import re
import shutil
import tracemalloc
from html import escape
from pathlib import Path

import pytest

import setwise.records as records
from setwise.cli import main
from setwise.paper.collected import collect, groups
from setwise.paper.report import make_page, provenance, report
from setwise.paper.tables import classification_table
from setwise.records.record import LARGEST
from setwise.records.run import mean_curve

RESULTS = Path(__file__).parents[2] / "results"
HOSTILE = "<script>alert(1)</script>\"'&"
STEERING = "\x1b]0;title\x07"


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


def test_every_part_has_its_section(tree_of, looked, keep, tmp_path, capsys):
    looked()
    for seed in (1, 2, 3):
        for beta in (0.0, 1.0):
            name = "released/cifar10-conv4-simclr-qare"
            keep(name, seed, {"probe_accuracy": 0.6}, variant=f"beta-{beta:g}", beta=beta)
        keep("released/cifar10-conv4-simclr", seed, {"probe_accuracy": 0.6}, variant="validation", validation=5000)
    row = {"n": 128, "plain_ms": 1.0, "qare_ms": 1.1, "added_ms": 0.1}
    found = {"what": "bench qare", "device": "a machine", "encoder": "none", "torch": "2", "rows": [row]}
    (tmp_path / "results" / "bench-qare-a.json").write_text(json.dumps(found))
    (tmp_path / "results" / "bench-qare-b.json").write_text("{}")
    files = report(tmp_path / "results", tmp_path / "out")
    texts = tree_of(files[0].read_text())
    assert texts.texts("h2") == [
        *("Setting by setting", "Tables", "Accuracy against QARe's weight (Figure 2)", "One change at a time"),
        *("What set-level terms act on", "What QARe costs (Figure 3)"),
        *("Not run", "Learning curves", "Where the numbers come from"),
    ]
    assert {path.stem for path in files[1:]} == {
        *("claims", "differences", "settings", "classification-released-cifar10-conv4", "time-a"),
        *("weights-classification-released-cifar10-conv4-simclr", "ablation-released-cifar10-conv4-validation-5000"),
        *("structure-classification-released-cifar10-conv4", "not-run", "table1-cuhk03"),
    }
    assert "bench-qare-b.json: expected" in texts.texts("pre")[-1]
    assert str(tmp_path) not in files[0].read_text()
    assert "1 file set aside" in capsys.readouterr().err


def test_measurements_alone_make_a_page(tree_of, tmp_path):
    found = {"what": "bench qare", "rows": [{"n": 128, "plain_ms": 1.0}]}
    (tmp_path / "bench-qare.json").write_text(json.dumps(found))
    texts = tree_of(report(tmp_path, tmp_path / "out")[0].read_text())
    assert texts.texts("h2") == ["What QARe costs (Figure 3)", "Where the numbers come from"]
    assert texts.texts("strong")[0] == "The paper's claims, and ours (verdict: no runs yet)", "once, not ten times"
    assert "no runs yet" not in texts.texts("td")


def test_the_answer_comes_first_and_files_agree(tree_of, filled, tmp_path, capsys):
    out = tmp_path / "out"
    main(["report", "--results", str(filled), "--out", str(out)])
    assert capsys.readouterr().out == f"{out / 'index.html'}, and 14 files of tables beside it\n"
    names = ["claims", "classification-paper-cifar10-conv4", "differences", "matching-cifar10-1467", "not-run"]
    names += ["settings", "table1-cuhk03"]
    assert sorted(path.name for path in out.iterdir()) == sorted(
        ["index.html", *(f"{name}.{end}" for name in names for end in ("csv", "md"))]
    )
    with (out / "differences.csv").open(encoding="utf-8", newline="") as file:
        rows = {row["loss"]: row for row in csv.DictReader(file)}
    assert float(rows["Triplet: CIFAR-10, 1,467 instances"]["QARe"]) == pytest.approx(3.1)
    assert rows["SparseCLR: CIFAR-10, 1,467 instances"]["QARe low"] == ""
    assert rows["Triplet: CIFAR-10, 1,467 instances"]["paper's QARe"] == "", (
        "CIFAR-10 is not the paper's data for matching"
    )
    assert rows["SimCLR: CIFAR-10, Conv-4, paper form"]["paper's QARe"] == "+1.90"
    page = (out / "index.html").read_text()
    texts = tree_of(page)
    assert texts.texts("b")[0] == "Does QARe help?"
    assert texts.texts("p")[0].startswith(" Yes in 1 of 5 settings")
    assert texts.texts("h2") == [
        *("Setting by setting", "Tables", "Not run", "Learning curves", "Where the numbers come from")
    ]
    assert "+3.10 (+2.85 to +3.35)" in page
    assert "+3.10 (+2.85 to +3.35)" in (out / "matching-cifar10-1467.md").read_text(encoding="utf-8")


def test_without_records_one_line_and_status_1(tmp_path, capsys):
    for _ in range(2):
        with pytest.raises(SystemExit) as stopped:
            main(["report", "--results", str(tmp_path), "--out", str(tmp_path / "out")])
        assert str(stopped.value).startswith("setwise: expected records")
        assert "\n" not in str(stopped.value), "a text as the status is exit status 1"
        assert not (tmp_path / "out").exists()
        (tmp_path / "runs").mkdir(exist_ok=True)
        (tmp_path / "runs" / "other.json").write_text("{}")
    assert "1 file set aside, the first: other.json" in str(stopped.value)


def test_other_weights_are_in_the_tables_only(filled, keep):
    for weight in (0.125, 0.25):
        for seed in (1, 2):
            changes = {"variant": f"beta-{weight}", "beta": weight}
            keep("paper/cifar10-conv4-sparseclr-qare", seed, {"probe_accuracy": 0.9}, **changes)
    found = groups(collect(filled)[0])
    html = make_page(found, [])[0].html()
    assert html.count("SparseCLR + QARe, weight 0.25</th>") == 1
    assert "SparseCLR + QARe, weight 0.25 <b>" not in html, "no line of a chart"


def test_with_nothing_to_compare_there_are_no_differences(tree_of, keep, tmp_path):
    keep("paper/cifar10-matching-infonce", 1, {"test_accuracy": 0.5})
    page, tables = make_page(groups(collect(tmp_path / "results")[0]), [])
    assert [table.name for table in tables] == ["claims", "matching-cifar10-1467"]
    assert tree_of(page.html()).texts("p")[0] == " No runs yet. (1 run.)"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="others have no such files")
def test_what_is_no_record_is_not_read_whole_nor_waited_for(keep, tmp_path):
    path = keep("paper/cifar10-matching-infonce", 1, {"test_accuracy": 0.5})
    for huge in (path.with_name("huge.json"), tmp_path / "results" / "bench-qare-huge.json"):
        huge.touch()
        os.truncate(huge, 6 * LARGEST)  # without taking space
    for pipe in (path.with_name("pipe.json"), tmp_path / "results" / "bench-qare-pipe.json"):
        os.mkfifo(pipe)
    tracemalloc.start()
    try:
        page, *_ = report(tmp_path / "results", tmp_path / "out")
        assert tracemalloc.get_traced_memory()[1] < 3 * LARGEST
    finally:
        tracemalloc.stop()
    said = page.read_text()
    assert all(re.search(f"{name}: .*more than 16 MiB", said) for name in ("/huge.json", "bench-qare-huge.json"))
    with pytest.raises(ValueError, match="no plain file"):
        records.read(path.with_name("pipe.json"))


def test_curves_are_means_over_epochs_that_all_seeds_have(keep, tmp_path):
    keep("paper/cifar10-matching-infonce", 1, {"test_accuracy": 0.5})
    keep("paper/cifar10-matching-infonce", 2, {"test_accuracy": 0.5})
    short = [{"epoch": 1, "val_accuracy": 0.07}, {"epoch": 2, "val_accuracy": None}, "words"]
    keep("paper/cifar10-matching-infonce", 3, {"test_accuracy": 0.5}, about={"epochs": short})
    runs = collect(tmp_path / "results")[0]

    curves = [run.curve("val_accuracy") for run in runs]
    assert mean_curve(curves[:2]) == [(1, pytest.approx(0.015)), (2, pytest.approx(0.03)), (3, pytest.approx(0.045))]
    assert mean_curve(curves) == [(1, pytest.approx(0.1 / 3))]
    assert mean_curve([]) == []


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
        assert "$ setwise reproduce 'table 1'\ncommit 0123abc\nversions setwise 0.1, torch 2.13\n" in words
        assert "\nhardware name a machine, cores 2\nprecision float32\n" in words
    assert "command unknown\ncommit unknown\nversions unknown" in words
    assert "6 runs, 60 s of training" in words


def test_a_run_that_was_resumed_names_all_processes(keep, tmp_path):
    earlier = [{"epoch": 1, "commit": "fff"}, {"epoch": 5, "commit": "0123abc"}, "words"]
    keep("paper/cifar10-conv4-simclr", 1, {"probe_accuracy": 0.5}, about={"earlier": earlier})
    keep("paper/cifar10-conv4-simclr", 2, {"probe_accuracy": 0.5})
    (group,) = groups(collect(tmp_path / "results")[0])
    words = provenance(group.runs)
    places = [words.index(part) for part in ("commit fff", "from epoch 1 on, then:", "from epoch 5 on", "$ setwise")]
    assert places == sorted(places)
    assert "at 2 commits of this project" in classification_table(group).note


def test_hostile_records_stay_words(tree_of, keep, tmp_path):
    about = {
        **{"commit": HOSTILE, "precision": HOSTILE, "command": [HOSTILE], "versions": {HOSTILE: HOSTILE}},
        **{"hardware": {"name": HOSTILE + "\ud800"}, "epochs": HOSTILE, "timings": HOSTILE, "variant": HOSTILE},
    }
    path = keep("paper/cifar10-conv4-simclr", 1, {"probe_accuracy": 0.5}, about=about)
    record = json.loads(path.read_text())
    record["recipe"] |= {"about": HOSTILE, "data": {"source": HOSTILE + STEERING + "x" * 300}}
    path.write_text(json.dumps(record))
    (path.parent / "<b>.json").write_text("{}")
    (path.parent / "\x1b[31mred\u202e.json").write_text("{}")
    files = report(tmp_path / "results", tmp_path / "out")
    html = files[0].read_text()
    texts = tree_of(html)
    assert len(texts.texts("script")) == 1, "the page's own"
    assert "<b>.json" in texts.texts("pre")[-1]
    assert HOSTILE in texts.texts("pre")[0]
    assert html.isascii()
    assert r"\x1b[31mred\u202e.json" in texts.texts("pre")[-1]
    written = "".join(file.read_text(encoding="utf-8") for file in files)
    assert not set(written) & {"\x1b", "\u202e"}
    assert "&#55296;" in html, "half a letter is written as its number"
    assert r"\ud800" in written
    assert all(path.parent == tmp_path / "out" for path in files)
    assert all(re.fullmatch(r"[a-z0-9-]+\.(md|csv|html)", path.name) for path in files)
    assert not any("<script>" in path.read_text(encoding="utf-8") for path in files if path.suffix == ".md")


LOOK = """
said.cut = [];  // labels of charts, cut off or lying on others
for (const svg of page.querySelectorAll("svg[role=img]")) {
  const boxes = [...svg.querySelectorAll("text")].map(text => [text.textContent, text.getBBox()]);
  const wide = svg.viewBox.baseVal.width;
  for (const [words, box] of boxes) if (box.x < 0 || box.x + box.width > wide) said.cut.push(words);
  boxes.forEach(([words, a], i) => boxes.slice(0, i).forEach(([other, b]) => {
    if (a.x < b.x + b.width && b.x < a.x + a.width && a.y < b.y + b.height - 3 && b.y < a.y + a.height - 3)
      said.cut.push(`${words} on ${other}`);
  }));
}
said.answer = page.querySelector(".lead").getBoundingClientRect().bottom;
said.tables = page.querySelectorAll("table").length;
said.wider = [...page.querySelectorAll(".scroll")].filter(box => box.scrollWidth > box.clientWidth).length;
said.charts = page.querySelectorAll("path.line[data-v]").length;
"""


def test_on_a_telephone(on_a_telephone, filled, tmp_path):
    said = on_a_telephone(report(filled, tmp_path)[0].read_text(), LOOK)
    assert said["answer"] < 450, "the answer ends on the first screen"
    assert (said["tables"], said["wider"]) == (8, 0)
    # A chart of each of four losses; SimCLR's pairwise loss and its set-level term, two lines each, one of them empty.
    assert said["charts"] == 8 + 4
    assert said["cut"] == []


def test_on_a_desk_no_table_is_wider_than_the_page(shown, keep, tmp_path):
    names = ("held_out_accuracy", "test_accuracy", "quadratic_held_out_accuracy", "quadratic_test_accuracy", "rank1")
    for seed in (1, 2, 3):
        for end in ("infonce", "infonce-qare"):
            keep(f"paper/cifar10-matching-{end}", seed, dict.fromkeys(names, 0.5 + seed**2 / 40))
    ask = """<script>onload = () => {
      const boxes = [...document.querySelector("iframe").contentDocument.querySelectorAll(".scroll")];
      const wider = boxes.filter(box => box.scrollWidth > box.clientWidth).map(box => box.ariaLabel);
      document.title = `${boxes.length} tables, wider: ${wider}`;
    }</script>"""
    for results in (tmp_path / "results", RESULTS):  # those of a few made-up runs, and the repository's own
        page = escape(report(results, tmp_path)[0].read_text())
        dom = shown(f'<iframe width=1300 height=900 srcdoc="{page}"></iframe>{ask}', "window-size=1400,1000")
        tables, wider = re.search("<title>([0-9]+) tables, wider: (.*)</title>", dom).groups()
        assert int(tables) >= 4
        assert wider == ""


def test_spectra_sweeps_and_costs_on_a_telephone(on_a_telephone, looked, keep, tmp_path):
    looked()
    for seed in (1, 2, 3):
        for step in range(16):
            beta, final = step / 8, {"probe_accuracy": 0.6 + seed / 100 + step / 1000}
            keep("released/cifar10-conv4-simclr-qare", seed, final, variant=f"beta-{beta:g}", beta=beta)
    for path in RESULTS.glob("bench-qare-*.json"):
        shutil.copy(path, tmp_path / "results")
    said = on_a_telephone(report(tmp_path / "results", tmp_path)[0].read_text(), LOOK)
    assert said["answer"] < 450
    # QARe's gains, claims, differences, six claims, Table 2 and 3, the sweep, the structure, two machines.
    assert (said["tables"], said["wider"]) == (16, 0)
    # Three pictures of two losses with and without QARe, the sweep and its level, time and memory on two machines,
    # and the loss of four methods.
    assert said["charts"] == 12 + 2 + 12 + 4
    assert said["cut"] == []
