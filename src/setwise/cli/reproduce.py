"""`setwise reproduce`."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import tyro

from setwise.cli import bench
from setwise.cli.options import Device, Root

Table = Literal[
    "table1",
    "table2",
    "table3",
    "fig-beta",
    "fig-time",
    "ablation",
    "confirm",
    "accuracy-gap",
    "shortfall",
    "tuning",
    "tuned",
    "map",
]


def reproduce(
    tables: Annotated[
        tuple[Table, ...],
        tyro.conf.Positional,
        tyro.conf.arg(help="what of the paper; shortfall is the old name of accuracy-gap"),
    ],
    data: Annotated[str, tyro.conf.arg(help="cifar10, cifar100, tiny-imagenet, cuhk03 or digits")] = "cifar10",
    seeds: tuple[int, ...] = (1, 2, 3),
    only: Annotated[tuple[str, ...], tyro.conf.arg(help="runs with one of these in their name")] = (),
    instances: Annotated[int | None, tyro.conf.arg(help="for matching: another number of halves")] = None,
    results: Annotated[Path, tyro.conf.arg(help="folder of records; none is made twice")] = Path("results"),
    scratch: Annotated[Path, tyro.conf.arg(help="folder of the runs' checkpoints")] = Path("runs/reproduce"),
    root: Root = None,
    device: Device = "auto",
    at_once: Annotated[int, tyro.conf.arg(help="runs side by side")] = 1,
    forget: Annotated[bool, tyro.conf.arg(help="remove a run's checkpoint once its record is there")] = False,
    dry_run: Annotated[bool, tyro.conf.arg(help="list the runs, run nothing")] = False,
    on: Annotated[Literal["local", "ray", "slurm"], tyro.conf.arg(help="this machine, or a cluster")] = "local",
    resources: Annotated[
        str, tyro.conf.arg(help="what each run asks of the cluster: num_gpus=0.5 of ray, partition=gpu,... of slurm")
    ] = "",
) -> None:
    """Make the runs of tables of the paper: those whose records are missing, several at once; safe to interrupt."""
    import setwise.paper.reproduce as paper
    from setwise.paper.jobs import expand
    from setwise.runs import choose_device

    if not tables:
        raise ValueError("expected what to reproduce, got nothing; `setwise reproduce table1`")
    if on == "local" and resources:
        raise ValueError(f"expected --on ray or --on slurm beside --resources, got {resources!r} on this machine")
    if on != "local" and at_once != 1:
        raise ValueError(
            f"expected no --at-once beside --on {on}, got {at_once}; the cluster decides what runs at once"
        )
    if on != "local" and "fig-time" in tables:
        raise ValueError(f"expected runs for --on {on}, got fig-time; give it alone, without --on: it measures here")
    if "fig-time" in tables:
        _measure_time(results, scratch, device, dry_run)
    runs = [table for table in tables if table != "fig-time"]
    if not runs:
        return
    jobs = expand(runs, data=data, seeds=seeds, only=only, instances=instances, results=results)
    if dry_run:
        return print("\n".join(paper.listing(jobs, results)))
    known: set[Path] = set()
    failed = False
    while jobs:
        if on == "local":
            missing = paper.reproduce(
                jobs,
                results=results,
                scratch=scratch,
                root=root,
                device=choose_device(device),
                at_once=at_once,
                forget=forget,
            )
        else:
            from setwise.paper import cluster

            missing = cluster.reproduce(
                jobs,
                on=on,
                results=results,
                scratch=scratch,
                root=root,
                device=device,
                forget=forget,
                resources=resources,
            )
        print(f"{len(jobs) - missing} of {len(jobs)} records in {results}")
        failed = failed or missing > 0
        known |= {job.record(results) for job in jobs}
        # Records may ask for more runs, as those of map do.
        jobs = expand(runs, data=data, seeds=seeds, only=only, instances=instances, results=results)
        jobs = [job for job in jobs if job.record(results) not in known]
    if failed:
        sys.exit(1)


def _measure_time(results: Path, scratch: Path, device: str, dry_run: bool) -> None:
    """Figure 3 is a measurement, not a run; its record is named after the machine."""
    from setwise.paper.figures import time_record
    from setwise.runs import choose_device
    from setwise.training.checkpoint import write_text

    path = time_record(results, choose_device(device))
    if path.exists():
        return print(f"0 of 1 measurements to make, {path} is there")
    if dry_run:
        return print(f"{path}\n1 of 1 measurements to make")
    folder = scratch / "fig-time"
    bench.qare(device=device, out=folder)
    write_text(path, (folder / "bench-qare.json").read_text())
    print(f"1 of 1 records in {results}")
