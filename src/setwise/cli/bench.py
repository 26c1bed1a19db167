"""`setwise bench qare` and `setwise bench step`."""

from pathlib import Path
from typing import Annotated, Literal

import tyro

from setwise.cli.options import Device

Seconds = Annotated[float, tyro.conf.arg(help="time to spend on each measurement")]


def qare(
    sizes: Annotated[tuple[int, ...], tyro.conf.arg(help="batch sizes N")] = (128, 256, 512, 1024, 2048, 4096),
    device: Device = "auto",
    encoder: Annotated[
        Literal["auto", "resnet32", "none"], tyro.conf.arg(help="below the head; none on a CPU, resnet32 on a GPU")
    ] = "auto",
    out: Annotated[Path, tyro.conf.arg(help="folder for the JSON file and the page")] = Path("out"),
    seconds: Seconds = 2.0,
) -> None:
    """What QARe adds to a training iteration in time and memory, against the paper's dense way."""
    from setwise.bench.qare import run
    from setwise.runs import choose_device

    where = choose_device(device)
    if encoder == "auto":
        encoder = "resnet32" if where.type == "cuda" else "none"
    run(sizes=sizes, device=where, encoder=encoder, out=out, seconds=seconds)


def step(
    encoders: Annotated[
        tuple[Literal["conv4", "resnet32", "resnet18", "matching", "resnet50", "vit-s16"], ...],
        tyro.conf.arg(help="resnet50 and vit-s16 are torchvision's and timm's, at 224 pixels"),
    ] = ("conv4", "resnet32"),
    device: Device = "auto",
    out: Annotated[Path, tyro.conf.arg(help="folder for the JSON file")] = Path("out"),
    seconds: Seconds = 3.0,
    workers: Annotated[int, tyro.conf.arg(help="of the DataLoader in the comparison")] = 2,
    concurrent: Annotated[tuple[int, ...], tyro.conf.arg(help="also measure this many runs at once")] = (),
    compare: Annotated[bool, tyro.conf.arg(help="with plain torch and torchvision's transforms")] = True,
    methods: Annotated[bool, tyro.conf.arg(help="also an epoch of the paper's other methods")] = False,
) -> None:
    """What a training step costs, beside a plain torch + torchvision loop, in one run."""
    from setwise.bench.step import run
    from setwise.runs import choose_device

    run(
        which=encoders,
        device=choose_device(device),
        out=out,
        seconds=seconds,
        workers=workers,
        concurrent=concurrent,
        compare=compare,
        methods=methods,
    )
