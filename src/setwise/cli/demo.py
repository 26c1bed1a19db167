"""`setwise demo`."""

from pathlib import Path
from typing import Annotated

import tyro


def demo(
    out: Annotated[Path, tyro.conf.arg(help="folder for the page and the runs")] = Path("out/demo"),
    seed: int = 1,
) -> None:
    """The library at work on the embedded digits: learn without labels, match halves, leave a page to look at."""
    import torch

    from setwise.demo import run

    torch.set_num_threads(1)  # networks this small are slower with more
    run(out=out, seed=seed)
