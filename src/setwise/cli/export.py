"""`setwise export`."""

from pathlib import Path
from typing import Annotated

import tyro

from setwise.cli.options import Run


def export(
    checkpoint: Run,
    out: Annotated[
        Path | None, tyro.conf.arg(help="folder for weights, config and encoder.onnx; RUN/encoder if none")
    ] = None,
    onnx: Annotated[bool, tyro.conf.arg(help="write ONNX too")] = True,
) -> None:
    """Write a trained encoder for others: safetensors with its config, and ONNX, checked against torch."""
    import setwise.runs as runs

    folder = out or (checkpoint if checkpoint.is_dir() else checkpoint.parent) / "encoder"
    for path in runs.export(checkpoint, folder, onnx=onnx).values():
        print(path)
