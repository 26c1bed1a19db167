"""The folder below which data sets and decoded images are."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

OPTION = "--root (root= in Python) or $SETWISE_DATA"  # how a person names another folder


def default_root() -> Path:
    """Where data sets are: $SETWISE_DATA, or ~/.cache/setwise."""
    given = os.environ.get("SETWISE_DATA")
    return Path(given) if given else Path.home() / ".cache" / "setwise"


def root_of(root: str | os.PathLike[str] | None) -> Path:
    """The given root, or the default one, absolute."""
    return (Path(root) if root is not None else default_root()).expanduser().resolve()


def fetch_command(name: str, root: Path) -> str:
    """The command that fetches a data set into this root."""
    return f"setwise data fetch {name}" + ("" if root == root_of(None) else f" --root {shlex.quote(str(root))}")
