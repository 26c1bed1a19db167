"""``setwise data list | fetch | check``, as a person reads them."""

from __future__ import annotations

from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from setwise.data import cuhk03
from setwise.data.archives import MANIFEST
from setwise.data.catalogue import CATALOGUE, MB
from setwise.data.loading import load
from setwise.data.root import root_of
from setwise.data.source import check, fetch, locate
from setwise.terminal import visible


def show_list(root: Path | None) -> None:
    """Print a table of the catalogue."""
    where = root_of(root)
    table = Table(title=visible(f"data sets in {where}"), box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for column in ("name", "what", "images", "classes", "size", "here", "place"):
        right = column in ("images", "classes", "size")
        table.add_column(column, justify="right" if right else "left", no_wrap=column != "what")
    for entry in CATALOGUE.values():
        place = locate(entry.name, where)
        if entry.name == "digits":
            here, shown = "yes", "scikit-learn"
        elif place is None:
            here, shown = "no", f"{entry.name}/"
        else:
            # Put there by hand: what fetch installs has a manifest.
            here = "yes" if (place / MANIFEST).is_file() else "by hand"
            shown = "./" if place == where else f"{place.name}/"
        size = f"{entry.download / MB:.0f} MB" if entry.download else "-"
        what = f"{entry.what}, {entry.shape}"
        table.add_row(entry.name, what, f"{entry.images:,}", f"{entry.classes:,}", size, here, visible(shown))
    Console(markup=False, emoji=False).print(table)


def fetch_and_tell(name: str, root: Path | None, source: str | None, *, md5: str | None, force: bool) -> None:
    """Fetch a data set and say where it is."""
    place = fetch(name, root, source, md5=md5, force=force)
    Console(markup=False, emoji=False).print(visible(f"{name} is in {place}"), soft_wrap=True)


def check_and_tell(name: str, root: Path | None) -> bool:
    """Check a data set, say what was found; whether all is well."""
    console, report = Console(markup=False, emoji=False), check(name, root)
    for problem in report.problems:
        console.print(Text("wrong:", "red"), visible(problem), soft_wrap=True, highlight=False)
    if report.problems:
        return False
    if report.place is not None and report.managed:
        console.print(
            visible(f"{report.files:,} files, {report.size / MB:,.1f} MB in {report.place}: as installed"),
            soft_wrap=True,
        )
    elif report.place is not None:
        console.print(
            visible(f"{report.place}: put there by hand; compared with the makers' checksums where known"),
            soft_wrap=True,
        )
    if name == "cuhk03" and report.place is not None:
        seen, both = cuhk03.count_identities(report.place, root_of(root))
        console.print(
            f"{seen:,} identities, {seen - both:,} of them left out because only one camera saw them; "
            f"the real set has {CATALOGUE[name].classes:,}",
            soft_wrap=True,
        )
    for split in ("train", "test"):
        found = load(name, root, split=split)
        shape = "x".join(map(str, found.images.shape[1:]))
        console.print(f"{found.split}: {len(found):,} images of {shape}, {len(found.classes)} classes")
    return True
