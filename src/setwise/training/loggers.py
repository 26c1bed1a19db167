"""Loggers: where the metrics of each epoch go. One small class each; ``--logger NAME`` adds one to a run.

A run makes a logger with its folder and the epochs up to its last checkpoint; later epochs of an interrupted run will
come again. Then it calls ``epoch(row)`` after each epoch, and ``close()`` once. Other parameters are options.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

import setwise.register as register
from setwise.checks import imported
from setwise.losses.objective import Choice
from setwise.training.checkpoint import remove_unfinished, write_text

Row = Mapping[str, Any]
ALWAYS = ("csv", "jsonl")


class Logger(Protocol):
    """What every logger does."""

    def epoch(self, row: Row) -> None:
        """Take the metrics of an epoch: "epoch", "loss" and others, numbers or what only JSON can hold."""

    def close(self) -> None:
        """The run has ended, or was stopped."""


class _Lines:
    """A text file with a line for each epoch; at first those of the epochs so far."""

    def __init__(self, path: Path, history: Sequence[Row]) -> None:
        self.path = path
        remove_unfinished(path)
        write_text(path, "".join(map(self.line, history)))

    def line(self, row: Row) -> str:
        raise NotImplementedError

    def epoch(self, row: Row) -> None:
        """Append a line."""
        with self.path.open("a") as file:
            file.write(self.line(row))

    def close(self) -> None:
        """Nothing is open."""


@register.logger("jsonl", about="metrics.jsonl: an epoch a line, with everything. Always written.")
class JsonLines(_Lines):
    """Everything about each epoch."""

    def __init__(self, folder: Path, history: Sequence[Row]) -> None:
        super().__init__(folder / "metrics.jsonl", history)

    def line(self, row: Row) -> str:
        """The row as JSON."""
        return json.dumps(dict(row)) + "\n"


@register.logger("csv", about="metrics.csv: a table of the numbers. Always written.")
class Csv(_Lines):
    """Numbers and plain words. The first epoch decides the columns and their order."""

    def __init__(self, folder: Path, history: Sequence[Row]) -> None:
        self.columns: list[str] = []
        super().__init__(folder / "metrics.csv", history)

    def line(self, row: Row) -> str:
        """The row's cells, after a header if it is the first."""
        rows = [] if self.columns else [list(numbers(row))]
        self.columns = self.columns or rows[0]
        rows.append([str(row.get(name, "")) for name in self.columns])
        return "".join(",".join(cells) + "\n" for cells in rows)


@register.logger("tensorboard", about="TensorBoard's files, in the run's folder.")
class TensorBoard:
    """Needs the package tensorboard."""

    needs = "tensorboard"

    def __init__(self, folder: Path, history: Sequence[Row]) -> None:
        _needed(self)
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

    needs = "wandb"

    def __init__(
        self, folder: Path, history: Sequence[Row], *, project: str = "setwise", mode: str = "offline"
    ) -> None:
        wandb = _needed(self)
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

    needs = "mlflow"

    def __init__(self, folder: Path, history: Sequence[Row], *, experiment: str = "setwise") -> None:
        self.mlflow = _needed(self)
        if "MLFLOW_TRACKING_URI" not in os.environ:
            self.mlflow.set_tracking_uri((folder / "mlruns").resolve().as_uri())
        self.mlflow.set_experiment(experiment)
        self.mlflow.start_run(run_name=folder.name)

    def epoch(self, row: Row) -> None:
        """All numbers at once."""
        metrics = {name: value for name, value in numbers(row).items() if isinstance(value, (int, float))}
        self.mlflow.log_metrics(metrics, step=row["epoch"])

    def close(self) -> None:
        """Finish the run."""
        self.mlflow.end_run()


def _needed(logger: Any) -> Any:
    """The package that a logger needs, if it needs one; an error if that is not here."""
    name = getattr(logger, "needs", None)
    return name and imported(name, name, f"or leave --logger {name} out")


def read_loggers(chosen: Sequence[str | Mapping[str, Any]]) -> dict[str, Choice]:
    """What was chosen, by name; an unknown one and one whose package is missing raise now."""
    choices = {choice.name: choice for choice in (Choice.read(register.logger, one) for one in chosen)}
    for name in choices:
        _needed(register.logger[name].make)
    return choices


@contextmanager
def open_loggers(
    folder: Path, history: Sequence[Row], chosen: Sequence[str | Mapping[str, Any]]
) -> Iterator[list[Logger]]:
    """One logger for each name, or for each table {"name": "wandb", "project": "mine"}; closed at the end."""
    choices = read_loggers(chosen)
    with ExitStack() as stack:
        loggers: list[Logger] = []
        for choice in choices.values():
            loggers.append(register.logger.make(choice.name, choice.options, folder=folder, history=history))
            stack.callback(loggers[-1].close)
        yield loggers


def numbers(row: Row) -> dict[str, Any]:
    """The values of an epoch's row that fit in a table."""
    return {name: value for name, value in row.items() if not isinstance(value, (dict, list))}
