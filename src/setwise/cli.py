"""Command line: arguments in, calls out."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import tyro
from tyro.extras import SubcommandApp

T = TypeVar("T")
app, bench, data = SubcommandApp(), SubcommandApp(), SubcommandApp()
app.command(bench, name="bench", help="Measure what things cost.")
app.command(data, name="data", help="See, fetch, check and preview data sets.")
Root = Annotated[Path | None, tyro.conf.arg(help="folder of the data sets; $SETWISE_DATA or ~/.cache/setwise if none")]
Name = Annotated[str, tyro.conf.Positional, tyro.conf.arg(help="as `setwise data list` shows it")]


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


@data.command(name="list")
def data_list(root: Root = None) -> None:
    """Which data sets there are, and which of them are here."""
    from setwise.data.manage import show_list

    show_list(root)


@data.command(name="fetch")
def data_fetch(
    name: Name,
    source: Annotated[str | None, tyro.conf.arg(help="URL, archive or folder; the makers' URL if none")] = None,
    root: Root = None,
    md5: Annotated[str | None, tyro.conf.arg(help="of an archive that you made yourself")] = None,
    force: Annotated[bool, tyro.conf.arg(help="replace what is installed")] = False,
) -> None:
    """Download, verify and install a data set."""
    from setwise.data.manage import fetch_and_tell

    _told(lambda: fetch_and_tell(name, root, source, md5=md5, force=force))


@data.command(name="check")
def data_check(name: Name, root: Root = None) -> None:
    """Compare an installed data set with its checksums, count and measure it; exit status 1 if something is wrong."""
    from setwise.data.manage import check_and_tell

    if not _told(lambda: check_and_tell(name, root)):
        sys.exit(1)


@data.command(name="preview")
def data_preview(
    name: Name,
    root: Root = None,
    views: Annotated[
        Literal["self-supervised", "supervised", "matching", "none"], tyro.conf.arg(help="preset of augmentations")
    ] = "self-supervised",
    images: Annotated[int, tyro.conf.arg(help="how many images, drawn at random")] = 8,
    columns: Annotated[int, tyro.conf.arg(help="views of each")] = 8,
    seed: int = 0,
    out: Annotated[Path, tyro.conf.arg(help="the PNG file to write")] = Path("out/preview.png"),
) -> None:
    """Draw a contact sheet: images of a data set beside views of them."""
    from setwise.views.preview import write_preview

    print(_told(lambda: write_preview(name, root, views, images=images, columns=columns, seed=seed, out=out)))


def _told(call: Callable[[], T]) -> T:
    """What ``call`` returns; an error about the input is one line for a person, not a traceback."""
    try:
        return call()
    except (ValueError, OSError) as error:
        sys.exit(f"setwise: {error}")


def main(args: list[str] | None = None) -> None:
    """Entry point of ``setwise``."""
    app.cli(prog="setwise", description="Set-level contrastive learning.", args=args)


if __name__ == "__main__":
    main()
