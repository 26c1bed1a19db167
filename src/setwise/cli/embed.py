"""`setwise embed`."""

from pathlib import Path
from typing import Annotated

import tyro

from setwise.cli.options import Device, FollowLinks, Images, Root, Run, SkipBroken


def embed(
    run: Run,
    data: Images,
    out: Annotated[
        Path,
        tyro.conf.arg(help="x.parquet; or x.npy or x.safetensors, with the paths in x.csv; of pairs x.npy, one a side"),
    ],
    root: Root = None,
    device: Device = "auto",
    skip_broken: SkipBroken = False,
    follow_links: FollowLinks = False,
    second: Annotated[str | None, tyro.conf.arg(help="of feature pairs: the second .npy, if not training's")] = None,
) -> None:
    """Write path, class and embedding of every image; stopped, the same command goes on. Of pairs, both sides."""
    import setwise.runs as runs
    from setwise.evaluation.embedding import check_out
    from setwise.recipe import source_entry

    where = runs.choose_device(device)
    if "pairs" in source_entry(data).takes:
        for path in runs.write_sides(run, data, out, device=where, root=root, second=second):
            print(path)
        return
    if second is not None:
        raise ValueError(f"expected pairs beside --second, got {data}; leave --second out")
    check_out(out)  # before anything is computed
    table = runs.embed(run, data, device=where, root=root, skip_broken=skip_broken, follow_links=follow_links)
    for path in table.write(out):
        print(path)
