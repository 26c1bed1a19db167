"""`setwise neighbours`."""

from pathlib import Path
from typing import Annotated

import tyro

from setwise.cli.options import Device, FollowLinks, Images, Root, Run, SkipBroken


def neighbours(
    run: Run,
    data: Images,
    query: Annotated[tuple[str, ...], tyro.conf.arg(help="image files, or images of the data by their paths")],
    count: Annotated[int, tyro.conf.arg(help="how many of the nearest")] = 8,
    out: Annotated[Path | None, tyro.conf.arg(help="the page; RUN/neighbours.html if none")] = None,
    root: Root = None,
    device: Device = "auto",
    skip_broken: SkipBroken = False,
    follow_links: FollowLinks = False,
) -> None:
    """Find the images that are nearest to some others; print them and write a page with their pictures."""
    import setwise.runs as runs
    from setwise.report.neighbours_page import write_neighbours
    from setwise.terminal import visible
    from setwise.training.loop import check_place

    where = runs.choose_device(device)
    path = out or runs.home(run) / "neighbours.html"
    check_place(path.parent)  # before anything is computed
    table = runs.embed(run, data, device=where, root=root, skip_broken=skip_broken, follow_links=follow_links)
    found = runs.neighbours(run, table, query, count=count, device=where)
    for one in found:
        print(visible(one.query))
        for row, cosine in zip(one.rows, one.cosines, strict=True):
            label = f"  {table.labels[row]}" if table.labels else ""
            print(visible(f"  {cosine:.4f}  {table.paths[row]}{label}"))
    write_neighbours(path, table, found, encoder=runs.title_of(run))
    print(path)
