"""Records as files: every released format, what is refused, and the reports that are made of them."""

import importlib.metadata
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import setwise.records as records
from setwise.cli import main
from setwise.paper.collected import collect
from setwise.paper.jobs import Job
from setwise.paper.recipes import recipe
from setwise.recipe import Recipe

RELEASED = Path(__file__).parent.parent / "paper"
NAME = "paper/digits-conv4-simclr-qare"


@pytest.mark.parametrize("file", ["record-1.json", "record-2.json"])
def test_a_record_of_every_version_has_its_place(tmp_path, file):
    job = Job(NAME, recipe(NAME).changed({"epochs": 1, "probe.epochs": 2}), 1)
    job.record(tmp_path).parent.mkdir(parents=True)
    shutil.copy(RELEASED / file, job.record(tmp_path))
    job.check(tmp_path)
    record = records.read(RELEASED / file)
    assert Recipe.read(record["recipe"]) == replace(job.recipe, about="")
    ((run,), aside) = collect(tmp_path)
    assert (aside, run.seed, run.changed) == ([], 1, "epochs 1, probe_epochs 2")
    (old,) = json.loads((RELEASED / "record-1.json").read_text())["epochs"]
    assert run.curve("nothing", "loss") == {1: pytest.approx(old["loss"], rel=1e-5)}
    assert run.structures[1].support == old["structure"]["support"]
    assert run.measure("probe_accuracy") == 100 * record["final"]["probe_accuracy"]
    assert run.measure("missing") is None


def test_reports_of_both_formats_are_the_same(tmp_path, monkeypatch):
    pages, asked = [], []
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda *, group: asked.append(group) or ())
    for file in ("record-1.json", "record-2.json"):
        path = tmp_path / file / "seed-1.json"
        path.parent.mkdir()
        shutil.copy(RELEASED / file, path)
        main(["report", str(path.parent), "--out", str(tmp_path / "out")])
        pages.append((tmp_path / "out" / "index.html").read_text().replace(file, ""))
    assert pages[0] == pages[1]
    assert asked == ["setwise"] * 2, "tables of installed packages are looked for"


@pytest.mark.parametrize(
    ("data", "said"),
    [(b"{}", "that setwise wrote"), (b'{"format": "setwise run 99"}', "that setwise wrote"), (b"\x00\x01", "at")],
)
def test_records_of_others_are_refused(tmp_path, data, said):
    (tmp_path / "record.json").write_bytes(data)
    with pytest.raises(ValueError, match=f"expected a record {said}"):
        records.read(tmp_path)


def test_a_record_is_json(tmp_path):
    with pytest.raises(ValueError, match="expected finite numbers for .*record.json, got others"):
        records.write(tmp_path / records.FILE, {"final": {"margin": float("inf")}})
    assert not list(tmp_path.iterdir())
