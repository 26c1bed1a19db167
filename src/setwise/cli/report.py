"""`setwise report`."""

from pathlib import Path
from typing import Annotated

import tyro

from setwise.cli.options import Use


def report(
    runs: Annotated[
        tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(help="folders of runs; the paper's tables if none")
    ] = (),
    where: Annotated[tuple[str, ...], tyro.conf.arg(help="only runs with FIELD=VALUE in their recipe")] = (),
    by: Annotated[tuple[str, ...], tyro.conf.arg(help="fields to group by; those that differ if none")] = (),
    results: Annotated[Path, tyro.conf.arg(help="folder of `setwise reproduce`'s records")] = Path("results"),
    out: Annotated[Path, tyro.conf.arg(help="folder for index.html, tables as .md and .csv")] = Path("out/report"),
    use: Use = (),
) -> None:
    """A page and its tables: of any runs, grouped by what differs, or of the paper's, with its numbers and claims."""
    import setwise.paper.report as paper
    import setwise.register as register
    import setwise.report.any_runs as any_runs

    for path in use:
        register.load_file(path)
    if not runs and (where or by):
        raise ValueError("expected folders of runs for --where and --by, got none; `setwise report runs/ --by lr`")
    files = any_runs.report_runs(runs, out, where=where, by=by) if runs else paper.report(results, out)
    print(f"{files[0]}, and {len(files) - 1} files of tables beside it")
