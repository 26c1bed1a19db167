"""docs/scale.md: what losses send is counted over two real processes, and the page is what the records say."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch.multiprocessing as mp

ROOT = Path(__file__).parent.parent


def load(name: str):
    specification = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture
def scale(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")  # as for a script
    return load("scale")


def count(rank: int, processes: int, folder: str) -> None:
    load("messages").count(rank, processes, folder)


def test_two_processes_send_what_the_formulas_say(tmp_path):
    made = load("messages")
    mp.spawn(count, args=(2, str(tmp_path)), nprocs=2)
    counted = made.check(2, tmp_path)
    assert len(counted) == len(made.LOSSES) * len(made.WAYS) * len(made.SIZES)
    recorded = json.loads((ROOT / "results" / "messages.json").read_text())["rows"]
    assert counted == [row for row in recorded if row["processes"] == 2]


@pytest.mark.parametrize(
    ("loss", "way", "parts", "expected"),
    [
        ("InfoNCE", "gathering", 0, 12),
        ("InfoNCE, symmetric", "gathering", 0, 24),
        ("NT-Xent", "gathering", 0, 24),
        ("InfoNCE", "ring", 2, 12),
        ("InfoNCE, symmetric", "ring", 2, 12),
        ("InfoNCE, symmetric", "ring", 1, 8),
        ("NT-Xent", "ring", 2, 16),
        ("NT-Xent", "ring", 1, 8),
        ("QARe", "ring", 1, 0),
    ],
)
def test_bytes_of_an_item_and_dimension_are_those_on_the_page(loss, way, parts, expected):
    n, e, processes = 2**20, 2**10, 2**10
    found = load("messages").sent(loss, way, n, e, processes).bytes(parts) / (n * e * processes)
    assert found == pytest.approx(expected, rel=0.01, abs=0.01)


def test_the_page_is_what_the_records_say(scale):
    page = scale.PAGE.read_text()
    assert scale.fill(page) == page, "run `make readme`"
    assert {place[2] for place in scale.PLACE.finditer(page)} == set(scale.PLACES)


def test_the_verdicts_of_the_page_are_those_of_the_numbers(scale):
    _, simclr, clip, larger = scale.WORKS
    assert scale.exchange_seconds(clip, "stored") < scale.exchange_seconds(clip, "float32"), (
        "gathering is the better way"
    )
    assert scale.hours(larger, 1, "stored", hidden=False) > scale.hours(larger, 1, "float32", hidden=False)
    for work in scale.WORKS:
        assert scale.loss_seconds(work, "float32") < 0.2 * work.own / scale.encoder(work).rate, (
            "small beside the encoder"
        )
    assert simclr.gpus * scale.encoder(simclr).rate / scale.images_of_a_core() > 64, "reading breaks first"
