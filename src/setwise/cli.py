"""Command line: arguments in, calls out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro


def demo(
    out: Annotated[Path, tyro.conf.arg(help="where to draw the similarity matrices")] = Path("out/demo.png"),
    seed: int = 1,
) -> None:
    """The losses at work on the embedded digits: match left halves to right halves."""
    from setwise.demo import run

    run(out=out, seed=seed)


def main(args: list[str] | None = None) -> None:
    """Entry point of ``setwise``."""
    tyro.extras.subcommand_cli_from_dict(
        {"demo": demo}, prog="setwise", description="Set-level contrastive learning.", args=args
    )


if __name__ == "__main__":
    main()
