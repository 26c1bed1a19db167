"""The metrics of every epoch as a table that GitHub shows, in metrics.md.

    setwise pretrain --use examples/markdown_logger.py --logger markdown

It shows a logger of your own: it is made with the run's folder and the epochs that a resumed run has behind it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import setwise as sw


@sw.register.logger("markdown", about="metrics.md: a table that GitHub shows.")
class Markdown:
    """A line for each epoch under the names of the first one's numbers."""

    def __init__(self, folder: Path, history: Sequence[Mapping[str, Any]]) -> None:
        self.path, self.columns = folder / "metrics.md", []
        self.path.write_text("")  # an interrupted run's last epochs come again
        for row in history:
            self.epoch(row)

    def epoch(self, row: Mapping[str, Any]) -> None:
        """Add a line; the first one brings the head of the table."""
        lines = []
        if not self.columns:
            self.columns = [name for name, value in row.items() if isinstance(value, (int, float))]
            lines = [self.columns, ["---:"] * len(self.columns)]
        lines.append([f"{row[name]:.5g}" for name in self.columns])
        with self.path.open("a") as file:
            file.writelines(f"| {' | '.join(cells)} |\n" for cells in lines)

    def close(self) -> None:
        """Nothing is open between epochs."""
