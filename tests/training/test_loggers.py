"""Loggers: every epoch once, in each place, also of a run that is resumed."""

import csv
import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import setwise.register as register
from setwise.training.checkpoint import replacing
from setwise.training.loggers import ALWAYS, Metrics
from setwise.training.loop import How, train


def rows_of(folder):
    with (folder / "metrics.csv").open() as file:
        table = list(csv.DictReader(file))
    return table, [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_every_epoch_is_in_both_files_and_what_comes_again_is_there_once(tmp_path):
    history = [{"epoch": i, "loss": 1.0 / i, "structure": {"rows": [1]}} for i in (1, 2, 3)]
    with Metrics(tmp_path, [], ALWAYS) as metrics:
        for row in history:
            metrics.add(row)
    for _ in range(2):
        table, found = rows_of(tmp_path)
        assert found == history == metrics.history
        assert [(row["epoch"], float(row["loss"])) for row in table] == [(str(r["epoch"]), r["loss"]) for r in history]
        assert list(table[0]) == ["epoch", "loss"], "what is no number has no place in a table"
        with Metrics(tmp_path, history[:2], ALWAYS) as metrics:  # killed after its second epoch's checkpoint
            assert len(rows_of(tmp_path)[1]) == len(rows_of(tmp_path)[0]) == 2
            metrics.add(history[2])
    with Metrics(tmp_path, history, ()) as metrics:
        metrics.add({"epoch": 4, "loss": 0.1})
    assert len(metrics.history) == 4
    assert rows_of(tmp_path)[1] == history, "of many processes one writes"


def test_what_a_killed_process_left_of_the_files_goes(tmp_path):
    for name in ("metrics.csv", "metrics.jsonl"):
        with replacing(tmp_path / name) as temporary:
            pass
        temporary.write_text("half of it")
    other = tmp_path / ".metrics"
    other.touch()
    with Metrics(tmp_path, [], ALWAYS):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == [".metrics", "metrics.csv", "metrics.jsonl"]


def test_columns_stay_what_they_are(tmp_path):
    rows = [{"epoch": 1, "loss": 2.0, "accuracy": 0.5}, {"epoch": 2, "accuracy": 0.6, "loss": 1.0}, {"epoch": 3}]
    for known in (0, 2):  # as they come, and of a run that is resumed
        with Metrics(tmp_path, rows[:known], ALWAYS) as metrics:
            for row in rows[known:]:
                metrics.add(row)
        assert (tmp_path / "metrics.csv").read_text() == "epoch,loss,accuracy\n1,2.0,0.5\n2,1.0,0.6\n3,,\n"


def test_tensorboard_shows_every_epoch(tmp_path, digits, recipe):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    how = How(torch.device("cpu"), loggers=("tensorboard",), quiet=True)
    _, last = train(replace(recipe, epochs=2), digits, tmp_path, seed=1, how=how)
    board = events.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    for name in last.history[0].keys() - {"epoch"}:
        shown = [(event.step, event.value) for event in board.Scalars(name)]
        assert shown == [(row["epoch"], pytest.approx(row[name], rel=1e-6)) for row in last.history]


def test_weights_and_biases_and_mlflow_get_the_numbers(tmp_path, monkeypatch):
    """Stand-ins, which say what they were asked."""
    asked = []
    run = SimpleNamespace(log=lambda row, step: asked.append((step, row)), finish=lambda: asked.append("finish"))
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **how: asked.append(how) or run))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    names = ("set_tracking_uri", "set_experiment", "start_run", "log_metrics", "end_run")
    mlflow = {name: lambda *what, name=name, **how: asked.append((name, *what, how)) for name in names}
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(**mlflow))
    with Metrics(tmp_path, [], ("wandb", "mlflow")) as metrics:
        metrics.add({"epoch": 1, "loss": 2.0, "structure": {"rows": [1]}, "word": "x"})
    assert asked[0]["id"] == tmp_path.name
    assert asked[1] == ("set_tracking_uri", (tmp_path / "mlruns").as_uri(), {})
    assert asked[4:] == [
        (1, {"epoch": 1, "loss": 2.0, "word": "x"}),
        ("log_metrics", {"epoch": 1, "loss": 2.0}, {"step": 1}),
        "finish",
        ("end_run", {}),
    ]


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_a_missing_package_is_named(tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModuleNotFoundError, match=f"expected the package {name}, got .*pip install {name}"):
        register.logger.make(name, folder=tmp_path, history=[])
