"""`setwise data list`, `fetch`, `check`, `clean` and `preview`."""

import sys
from pathlib import Path
from typing import Annotated

import tyro

from setwise.cli.options import Images, Root

Name = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME", help="as `setwise data list` shows it")]

NameOrFolder = Annotated[
    str,
    tyro.conf.Positional,
    tyro.conf.arg(metavar="DATA", help="of `setwise data list`, a folder of images, or a .tsv or .npy file of pairs"),
]


def show_list(root: Root = None) -> None:
    """Which data sets there are, and which of them are here."""
    import setwise.data.manage as manage

    manage.show_list(root)


def fetch(
    name: Name,
    source: Annotated[str | None, tyro.conf.arg(help="URL, archive or folder; the makers' URL if none")] = None,
    root: Root = None,
    md5: Annotated[str | None, tyro.conf.arg(help="of an archive that you made yourself")] = None,
    force: Annotated[bool, tyro.conf.arg(help="replace what is installed")] = False,
) -> None:
    """Download, verify and install a data set."""
    import setwise.data.manage as manage

    manage.fetch_and_tell(name, root, source, md5=md5, force=force)


def check(
    name: NameOrFolder,
    root: Root = None,
    second: Annotated[str | None, tyro.conf.arg(help="the other .npy file of the pairs, by its name alone")] = None,
) -> None:
    """Compare a data set with its checksums, or read a folder of images or a file of pairs; exit status 1 if bad."""
    import setwise.data.manage as manage

    if not manage.check_and_tell(name, root, second):
        sys.exit(1)


def clean(
    folder: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(help="of images; all if none")] = None,
    root: Root = None,
) -> None:
    """Remove decoded images, which are made again when needed; `setwise data list` shows them."""
    import setwise.data.manage as manage

    manage.clean_and_tell(folder, root)


def preview(
    name: Images,
    root: Root = None,
    views: Annotated[str, tyro.conf.arg(help="preset; `setwise recipes views` lists them")] = "self-supervised",
    images: Annotated[int, tyro.conf.arg(help="how many images, drawn at random")] = 8,
    columns: Annotated[int, tyro.conf.arg(help="views of each")] = 8,
    seed: int = 0,
    out: Annotated[Path, tyro.conf.arg(help="the PNG file to write")] = Path("out/preview.png"),
) -> None:
    """Draw a contact sheet: images of a data set beside views of them."""
    from setwise.views.preview import write_preview

    print(write_preview(name, root, views, images=images, columns=columns, seed=seed, out=out))
