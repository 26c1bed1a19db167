"""Loggers: where the metrics of each epoch go. One small class each; ``--logger NAME`` adds one to a run.

A logger is made with the run's folder and the epochs so far, those of an interrupted run before its last checkpoint:
what came after it will come again. Then ``epoch(row)`` is called after each epoch, and ``close()`` once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import setwise.register as register
from setwise.checks import imported
from setwise.training.checkpoint import remove_unfinished, write_text

Row = Mapping[str, Any]
ALWAYS = ("csv", "jsonl")


class Logger(Protocol):
    """What every logger can do."""

    def epoch(self, row: Row) -> None:
        """Take the metrics of an epoch: "epoch", "loss" and others, numbers or what only JSON can hold."""

    def close(self) -> None:
        """The run has ended, or was stopped."""


class _Text:
    """A text file: written anew with the epochs before, then line by line."""

    def __init__(self, path: Path, lines: Sequence[str]) -> None:
        self.path = path
        remove_unfinished(path)
        write_text(path, "".join(lines))

    def add(self, line: str) -> None:
        with self.path.open("a") as file:
            file.write(line)

    def close(self) -> None:
        """Nothing is open."""


@register.logger("jsonl", about="metrics.jsonl: an epoch a line, with everything. Always written.")
class JsonLines(_Text):
    """All that is known of each epoch."""

    def __init__(self, folder: Path, history: Sequence[Row]) -> None:
        super().__init__(folder / "metrics.jsonl", [json.dumps(dict(row)) + "\n" for row in history])

    def epoch(self, row: Row) -> None:
        """Append a line."""
        self.add(json.dumps(dict(row)) + "\n")


@register.logger("csv", about="metrics.csv: a table of the numbers. Always written.")
class Csv(_Text):
    """Numbers and plain words; the columns are those of the first epoch, whatever order a later one has."""

    def __init__(self, folder: Path, history: Sequence[Row]) -> None:
        self.columns = list(numbers(history[0])) if history else []
        lines = [_line(self.columns), *map(self._cells, history)] if history else []
        super().__init__(folder / "metrics.csv", lines)

    def epoch(self, row: Row) -> None:
        """Append a line, after a header if it is the first."""
        header = "" if self.columns else _line(list(numbers(row)))
        self.columns = self.columns or list(numbers(row))
        self.add(header + self._cells(row))

    def _cells(self, row: Row) -> str:
        return _line([row.get(name, "") for name in self.columns])


@register.logger("tensorboard", about="TensorBoard's files, in the run's folder.")
class TensorBoard:
    """Needs the package tensorboard."""

    def __init__(self, folder: Path, history: Sequence[Row]) -> None:
        imported("tensorboard", "tensorboard", "or leave --logger tensorboard out")
        from torch.utils.tensorboard import SummaryWriter

        self.board: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=len(history) + 1)

    def epoch(self, row: Row) -> None:
        """One scalar for each number."""
        for name, value in numbers(row).items():
            self.board.add_scalar(name, value, row["epoch"])

    def close(self) -> None:
        """Finish the file."""
        self.board.close()


@register.logger("wandb", about="Weights & Biases, offline in the run's folder or with your account.")
class WeightsAndBiases:
    """Needs the package wandb; a run that is resumed goes on under the same id."""

    def __init__(
        self, folder: Path, history: Sequence[Row], *, project: str = "setwise", mode: str = "offline"
    ) -> None:
        wandb = imported("wandb", "wandb", "or leave --logger wandb out")
        self.run = wandb.init(project=project, mode=mode, dir=str(folder), id=folder.resolve().name, resume="allow")

    def epoch(self, row: Row) -> None:
        """All numbers at once."""
        self.run.log(numbers(row), step=row["epoch"])

    def close(self) -> None:
        """Finish the run."""
        self.run.finish()


@register.logger("mlflow", about="MLflow, in the run's folder or where MLFLOW_TRACKING_URI says.")
class MLflow:
    """Needs the package mlflow."""

    def __init__(self, folder: Path, history: Sequence[Row], *, experiment: str = "setwise") -> None:
        import os

        self.mlflow = imported("mlflow", "mlflow", "or leave --logger mlflow out")
        if "MLFLOW_TRACKING_URI" not in os.environ:
            self.mlflow.set_tracking_uri((folder / "mlruns").resolve().as_uri())
        self.mlflow.set_experiment(experiment)
        self.mlflow.start_run(run_name=folder.name)

    def epoch(self, row: Row) -> None:
        """All numbers at once."""
        found = {name: value for name, value in numbers(row).items() if isinstance(value, (int, float))}
        self.mlflow.log_metrics(found, step=row["epoch"])

    def close(self) -> None:
        """Finish the run."""
        self.mlflow.end_run()


class Metrics:
    """The metrics of every epoch so far, and the loggers that get them."""

    def __init__(self, folder: Path, history: list[dict[str, Any]], names: Sequence[str]) -> None:
        self.history = list(history)
        made = dict.fromkeys(names)
        self.loggers: list[Logger] = [register.logger.make(name, folder=folder, history=history) for name in made]

    def add(self, row: dict[str, Any]) -> None:
        """Append an epoch."""
        self.history.append(row)
        for logger in self.loggers:
            logger.epoch(row)

    def __enter__(self) -> Metrics:
        """Nothing to do."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close every logger."""
        for logger in self.loggers:
            logger.close()


def numbers(row: Row) -> dict[str, Any]:
    """What of an epoch's row has a place in a table."""
    return {name: value for name, value in row.items() if not isinstance(value, (dict, list))}


def _line(values: Sequence[Any]) -> str:
    return ",".join(map(str, values)) + "\n"
