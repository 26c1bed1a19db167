"""`setwise map`."""

from pathlib import Path
from typing import Annotated, Literal

import tyro

from setwise.cli.options import Device, FollowLinks, Images, Root, Run, SkipBroken


def map_images(
    run: Run,
    data: Images,
    out: Annotated[Path | None, tyro.conf.arg(help="the page; RUN/map.html if none")] = None,
    method: Annotated[Literal["tsne", "umap"], tyro.conf.arg(help="umap needs umap-learn")] = "tsne",
    clusters: Annotated[int | None, tyro.conf.arg(help="how many; chosen by their silhouettes if none")] = None,
    duplicates: Annotated[float, tyro.conf.arg(help="the least cosine of near-duplicates")] = 0.99,
    root: Root = None,
    device: Device = "auto",
    skip_broken: SkipBroken = False,
    follow_links: FollowLinks = False,
) -> None:
    """Draw a map of the images: clusters, near-duplicates and outliers on one page."""
    import setwise.runs as runs
    from setwise.report.map_page import write_map
    from setwise.training.loop import check_place

    where = runs.choose_device(device)
    path = out or runs.home(run) / "map.html"
    check_place(path.parent)  # before anything is computed
    table = runs.embed(run, data, device=where, root=root, skip_broken=skip_broken, follow_links=follow_links)
    write_map(
        path,
        table,
        encoder=runs.title_of(run),
        number=clusters,
        method=method,
        threshold=duplicates,
        device=where,
    )
    print(path)
