"""Loggers: every epoch once, in each place, also of a run that is resumed."""

import csv
import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import setwise.register as register
from setwise.training.loggers import ALWAYS, open_loggers
from setwise.training.loop import RunOptions, train


def rows_of(folder):
    with (folder / "metrics.csv").open() as file:
        table = list(csv.DictReader(file))
    return table, [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def log(folder, history, rows, chosen=ALWAYS):
    with open_loggers(folder, history, chosen) as loggers:
        for row in rows:
            for logger in loggers:
                logger.epoch(row)


def test_every_epoch_is_in_both_files_and_what_comes_again_is_there_once(tmp_path):
    history = [{"epoch": i, "loss": 1.0 / i, "structure": {"rows": [1]}} for i in (1, 2, 3)]
    for name in ("metrics.csv", "metrics.jsonl"):  # what a killed process left
        (tmp_path / f".{name}.abcd1234").touch()
    log(tmp_path, [], history)
    for _ in range(2):
        table, rows = rows_of(tmp_path)
        assert rows == history
        assert [(row["epoch"], float(row["loss"])) for row in table] == [(str(r["epoch"]), r["loss"]) for r in history]
        assert list(table[0]) == ["epoch", "loss"], "what is no number has no place in a table"
        log(tmp_path, history[:2], history[2:])  # killed after its second epoch's checkpoint
    log(tmp_path, history[:2], [])
    assert len(rows_of(tmp_path)[1]) == len(rows_of(tmp_path)[0]) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.csv", "metrics.jsonl"]


def test_columns_stay_what_they_are(tmp_path):
    rows = [{"epoch": 1, "loss": 2.0, "accuracy": 0.5}, {"epoch": 2, "accuracy": 0.6, "loss": 1.0}, {"epoch": 3}]
    for known in (0, 2):  # as they come, and of a run that is resumed
        log(tmp_path, rows[:known], rows[known:])
        assert (tmp_path / "metrics.csv").read_text() == "epoch,loss,accuracy\n1,2.0,0.5\n2,1.0,0.6\n3,,\n"


def test_tensorboard_shows_every_epoch(tmp_path, digits, recipe):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    how = RunOptions(torch.device("cpu"), loggers=("tensorboard",), quiet=True)
    _, last = train(replace(recipe, epochs=2), digits, tmp_path, seed=1, how=how)
    board = events.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    for name in last.history[0].keys() - {"epoch"}:
        shown = [(event.step, event.value) for event in board.Scalars(name)]
        assert shown == [(row["epoch"], pytest.approx(row[name], rel=1e-6)) for row in last.history]


def test_weights_and_biases_and_mlflow_get_their_options_and_the_numbers(tmp_path, monkeypatch):
    """Stand-ins, which keep their calls."""
    calls = []
    run = SimpleNamespace(log=lambda row, step: calls.append((step, row)), finish=lambda: calls.append("finish"))
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **options: calls.append(options) or run))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    names = ("set_tracking_uri", "set_experiment", "start_run", "log_metrics", "end_run")
    mlflow = {name: lambda *what, name=name, **how: calls.append((name, *what, how)) for name in names}
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(**mlflow))
    row = {"epoch": 1, "loss": 2.0, "structure": {"rows": [1]}, "word": "x"}
    log(tmp_path, [], [row], ["wandb", {"name": "wandb", "project": "mine"}, "mlflow"])  # the last of a name counts
    assert calls[0].items() >= {"id": tmp_path.name, "project": "mine", "mode": "offline"}.items()
    place = (tmp_path / "mlruns").as_uri()
    assert calls[1:3] == [("set_tracking_uri", place, {}), ("set_experiment", "setwise", {})]
    assert calls[4:] == [
        (1, {"epoch": 1, "loss": 2.0, "word": "x"}),
        ("log_metrics", {"epoch": 1, "loss": 2.0}, {"step": 1}),
        ("end_run", {}),
        "finish",
    ]


def test_unknown_loggers_and_options_are_named(tmp_path):
    for chosen, message in (("wandbb", "did you mean 'wandb'"), ({"name": "wandb", "projekt": "x"}, "'project'")):
        with pytest.raises(ValueError, match=message), open_loggers(tmp_path, [], [chosen]):
            pass


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_a_missing_package_is_named(tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModuleNotFoundError, match=f"expected the package {name}, got .*pip install {name}"):
        register.logger.make(name, folder=tmp_path, history=[])
