"""Options that several commands have."""

from pathlib import Path
from typing import Annotated

import tyro

Device = Annotated[str, tyro.conf.arg(help="cpu, cuda, ...; a GPU if there is one")]
Root = Annotated[Path | None, tyro.conf.arg(help="folder of the data sets; $SETWISE_DATA or ~/.cache/setwise if none")]
Run = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN", help="a run's folder, or its checkpoint")]
Images = Annotated[
    str,
    tyro.conf.Positional,
    tyro.conf.arg(metavar="IMAGES", help="a folder of images, or a name of `setwise data list`"),
]
SkipBroken = Annotated[bool, tyro.conf.arg(help="leave out broken files")]
FollowLinks = Annotated[bool, tyro.conf.arg(help="read links out of the folder and to folders")]
Use = Annotated[tuple[Path, ...], tyro.conf.arg(help="Python files that register more")]


def add_term(terms: dict[str, str | None], words: str) -> None:
    """Add NAME=WEIGHT, or NAME alone, to the weights of set-level terms; "none" takes all away."""
    name, _, weight = words.partition("=")
    if name == "none":
        terms.clear()
        return
    if name in terms:
        raise ValueError(f"expected every set-level term once, got {name} twice; leave one of them out")
    terms[name] = weight or None
