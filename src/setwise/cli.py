"""Command line: arguments in, calls out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro
from tyro.extras import SubcommandApp

app, bench = SubcommandApp(), SubcommandApp()
app.command(bench, name="bench", help="Measure what things cost.")


@app.command
def demo(
    out: Annotated[Path, tyro.conf.arg(help="where to draw the similarity matrices")] = Path("out/demo.png"),
    seed: int = 1,
) -> None:
    """The losses at work on the embedded digits: match left halves to right halves."""
    from setwise.demo import run

    run(out=out, seed=seed)


@bench.command(name="qare")
def bench_qare(
    sizes: Annotated[tuple[int, ...], tyro.conf.arg(help="batch sizes N")] = (128, 256, 512, 1024, 2048, 4096),
    device: Annotated[str, tyro.conf.arg(help="cpu, cuda, ...; a GPU if there is one")] = "auto",
    encoder: Annotated[
        Literal["auto", "resnet32", "none"], tyro.conf.arg(help="below the head; none on a CPU, resnet32 on a GPU")
    ] = "auto",
    out: Annotated[Path, tyro.conf.arg(help="folder for the JSON file and the plot")] = Path("out"),
    seconds: Annotated[float, tyro.conf.arg(help="time to spend on each measurement")] = 2.0,
) -> None:
    """What QARe adds to a training iteration in time and memory, against the paper's dense way."""
    import torch

    from setwise.bench import run

    where = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)
    if encoder == "auto":
        encoder = "resnet32" if where.type == "cuda" else "none"
    run(sizes=sizes, device=where, encoder=encoder, out=out, seconds=seconds)


def main(args: list[str] | None = None) -> None:
    """Entry point of ``setwise``."""
    app.cli(prog="setwise", description="Set-level contrastive learning.", args=args)


if __name__ == "__main__":
    main()
