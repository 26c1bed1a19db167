"""What a run tells while it goes on: a bar on a terminal, else lines; CSV and JSONL always, TensorBoard if asked."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from setwise.terminal import visible
from setwise.training.checkpoint import remove_unfinished, write_text

LINE_SECONDS = 10.0  # between lines where there is no terminal


def spell(metrics: Mapping[str, float]) -> str:
    """Loss terms for a person: "loss 5.1234  pairwise 5.0021"."""
    return "  ".join(f"{name} {value:.4f}" for name, value in metrics.items())


def say_if_heard(words: str, stream: TextIO) -> None:
    """A line for whoever reads along; that nobody does any more (`| head`, a lost terminal) must not end a run."""
    with contextlib.suppress(OSError):
        print(visible(words), file=stream, flush=True)


class Reporter:
    """A progress bar with loss terms, images per second and time left; plain lines without a terminal; or silence."""

    def __init__(self, title: str, *, epochs: int, images: int, quiet: bool = False) -> None:
        self.title, self.epochs, self.images, self.quiet = title, epochs, images, quiet
        self._bar: Any = None
        self._task: Any = None
        self._last = time.monotonic()
        self._start: tuple[float, float] | None = None

    def __enter__(self) -> Reporter:
        """Show the bar."""
        if not self.quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, ProgressColumn, TaskProgressColumn, TimeRemainingColumn
            from rich.table import Column
            from rich.text import Text

            class Said(ProgressColumn):
                """Title and numbers: what a narrow terminal cuts short, not the bar and the time left."""

                def render(self, task: Any) -> Text:
                    return Text(f"{task.fields['say']}  {visible(task.description)}", no_wrap=True, overflow="ellipsis")

            self._bar = Progress(
                BarColumn(bar_width=16, table_column=Column(width=16)),
                TaskProgressColumn(table_column=Column(no_wrap=True)),
                TimeRemainingColumn(table_column=Column(no_wrap=True)),
                Said(table_column=Column()),
                console=Console(stderr=True),
            )
            self._task = self._bar.add_task(self.title, total=self.epochs, say="")
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()

    def update(self, done: float, metrics: Mapping[str, float], *, force: bool = False) -> None:
        """``done`` epochs, a real number, and the means of the current one."""
        now = time.monotonic()
        if self._start is None:
            self._start = (now, done)
            if not force:
                return
        passed, progress = now - self._start[0], done - self._start[1]
        say = f"epoch {min(int(done) + 1, self.epochs)}/{self.epochs}  {spell(metrics)}"
        say += f"  {self.images * progress / passed:,.0f} images/s" if passed > 0 else ""
        if self._bar is not None:
            self._bar.update(self._task, completed=done, say=say)
        elif not self.quiet and (force or now - self._last >= LINE_SECONDS):
            left = f"  {passed / progress * (self.epochs - done):,.0f} s left" if progress > 0 else ""
            say_if_heard(f"{self.title}: {say}{left}", sys.stderr)
            self._last = now


class Metrics:
    """The metrics of every epoch as ``metrics.jsonl`` and ``metrics.csv`` in a folder, and TensorBoard's files.

    With ``write`` the folder is this process's alone: what others left half written is removed.
    """

    def __init__(
        self, folder: Path, history: list[dict[str, Any]], *, tensorboard: bool = False, write: bool = True
    ) -> None:
        self.folder, self.history, self.write = folder, list(history), write
        self._board: Any = None
        if not write:
            return
        if tensorboard:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError as error:
                raise ValueError(f"expected tensorboard, got {error}; pip install tensorboard") from error
            self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=len(history) + 1)
        lines = [_csv(self._columns()), *(_csv(self._cells(row)) for row in history)] if history else []
        # What an interrupted run wrote after its last checkpoint will come again.
        for name, text in (("jsonl", [json.dumps(row) + "\n" for row in history]), ("csv", lines)):
            remove_unfinished(folder / f"metrics.{name}")
            write_text(folder / f"metrics.{name}", "".join(text))

    def add(self, row: dict[str, Any]) -> None:
        """Append an epoch."""
        self.history.append(row)
        if not self.write:
            return
        with (self.folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
        with (self.folder / "metrics.csv").open("a") as file:
            file.write((_csv(self._columns()) if len(self.history) == 1 else "") + _csv(self._cells(row)))
        if self._board is not None:
            for name, value in _numbers(row).items():
                self._board.add_scalar(name, value, row["epoch"])

    def _columns(self) -> list[str]:
        """Those of the first epoch."""
        return list(_numbers(self.history[0]))

    def _cells(self, row: Mapping[str, Any]) -> list[Any]:
        """In the order of the columns, whatever the row's own is."""
        return [row.get(name, "") for name in self._columns()]

    def __enter__(self) -> Metrics:
        """Nothing to do."""
        return self

    def __exit__(self, *error: object) -> None:
        """Finish TensorBoard's file."""
        if self._board is not None:
            self._board.close()


def _numbers(row: Mapping[str, Any]) -> dict[str, Any]:
    """What of an epoch's row has a place in a table."""
    return {name: value for name, value in row.items() if not isinstance(value, (dict, list))}


def _csv(values: Iterable[Any]) -> str:
    """A line of numbers and plain words."""
    return ",".join(map(str, values)) + "\n"
