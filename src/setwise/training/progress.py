"""What a run shows of its progress: a bar on a terminal, else lines."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, TextIO

from setwise.terminal import visible

LINE_SECONDS = 10.0  # between lines where there is no terminal
ESTIMATE_SECONDS = 1.0  # of steps, after the first one, that tell how long the run will take
UNITS = (("hour", 3600), ("minute", 60), ("second", 1))


def print_line(text: str, stream: TextIO) -> None:
    """Print a line; a reader who has gone (`| head`, a lost terminal) does not end the run."""
    with contextlib.suppress(OSError):
        print(visible(text), file=stream, flush=True)


def duration(seconds: float) -> str:
    """Seconds, minutes or hours in words: "about 3 minutes"."""
    unit, size = next((unit, size) for unit, size in UNITS if seconds >= 1.5 * size or size == 1)
    count = max(1, round(seconds / size))
    return f"about {count:,} {unit}{'s' * (count > 1)}"


class Reporter:
    """A progress bar with loss terms, images per second and time left; plain lines without a terminal; or silence.

    How long the run will take is said once, as soon as its own first steps tell.
    """

    def __init__(self, title: str, *, epochs: int, images: int, quiet: bool = False, unit: str = "images") -> None:
        """``images``: how many items an epoch has; ``unit``: what they are."""
        self.title, self.epochs, self.images, self.quiet, self.unit = title, epochs, images, quiet, unit
        self._bar: Any = None
        self._task: Any = None
        self._last = time.monotonic()
        self._start: tuple[float, float] | None = None
        self._estimated = False

    def __enter__(self) -> Reporter:
        """Show the bar."""
        if not self.quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, ProgressColumn, TaskProgressColumn, TimeRemainingColumn
            from rich.table import Column
            from rich.text import Text

            class Status(ProgressColumn):
                """Numbers and title, which a narrow terminal cuts short; the bar and the time left stay whole."""

                def render(self, task: Any) -> Text:
                    return Text(
                        f"{task.fields['status']}  {visible(task.description)}", no_wrap=True, overflow="ellipsis"
                    )

            self._bar = Progress(
                BarColumn(bar_width=16, table_column=Column(width=16)),
                TaskProgressColumn(table_column=Column(no_wrap=True)),
                TimeRemainingColumn(table_column=Column(no_wrap=True)),
                Status(table_column=Column()),
                console=Console(stderr=True),
            )
            self._task = self._bar.add_task(self.title, total=self.epochs, status="")
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
        if not self._estimated and not force and progress > 0 and passed >= ESTIMATE_SECONDS:
            self._estimated = True
            seconds, rate = passed / progress * (self.epochs - done), self.images * progress / passed
            self._print(f"{duration(seconds)} to train ({rate:,.0f} {self.unit}/s)")
        terms = "  ".join(f"{name} {value:.4f}" for name, value in metrics.items())
        status = f"epoch {min(int(done) + 1, self.epochs)}/{self.epochs}  {terms}"
        status += f"  {self.images * progress / passed:,.0f} {self.unit}/s" if passed > 0 else ""
        if self._bar is not None:
            self._bar.update(self._task, completed=done, status=status)
        elif not self.quiet and (force or now - self._last >= LINE_SECONDS):
            ahead = progress > 0 and done < self.epochs
            left = f"  {passed / progress * (self.epochs - done):,.0f} s left" if ahead else ""
            print_line(f"{self.title}: {status}{left}", sys.stderr)
            self._last = now

    def _print(self, words: str) -> None:
        """A line of its own, above the bar where there is one."""
        if self._bar is not None:
            self._bar.console.print(visible(words), markup=False, highlight=False)
        elif not self.quiet:
            print_line(f"{self.title}: {words}", sys.stderr)
