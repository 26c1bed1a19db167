"""A table of your own in the report: what an accuracy costs.

    setwise report runs/ --use examples/own_table.py

It shows a function from runs to a table. The report puts it on its page, and writes it as .md and .csv.
"""

from collections.abc import Sequence

import setwise as sw
from setwise.records import Run
from setwise.report.tables import Table


@sw.register.table("cost", about="Seconds of training and accuracy of every run, the fastest first.")
def cost(runs: Sequence[Run]) -> Table:
    """One row a run."""
    rows = [(run.record["timings"]["training_seconds"], run.seed, run.measure("probe_accuracy")) for run in runs]
    return Table("cost", ("seconds", "seed", "probe accuracy"), sorted(rows), "What an accuracy costs")
