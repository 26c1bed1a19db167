"""What ``setwise data list | fetch | check | clean`` print."""

from __future__ import annotations

from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

import setwise.register as register
from setwise.data.fetching.archives import MANIFEST
from setwise.data.fetching.published import MB
from setwise.data.formats import PUBLISHED, cuhk03
from setwise.data.installing import check, fetch
from setwise.data.loading import load, load_pairs, source_of
from setwise.data.pairs import PairSet
from setwise.data.root import root_of
from setwise.data.store import DecodedFolder, all_kept, remove
from setwise.data.survey import survey
from setwise.locks import LockTaken
from setwise.terminal import visible


def show_list(root: Path | None) -> None:
    """Print a table of all registered sources."""
    register.load_entry_points()
    where = root_of(root)
    table = Table(title=visible(f"data sets in {where}"), box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for column in ("name", "what", "download", "here"):
        table.add_column(column, justify="right" if column == "download" else "left", no_wrap=column != "what")
    for name, entry in register.data.items():
        size, here = "-", "yes"
        if name in PUBLISHED:
            size = f"{PUBLISHED[name].download / MB:.0f} MB"
            here = _place_in_words(PUBLISHED[name].installed(where), where)
        table.add_row(name, visible(entry.about), size, visible(here))
    console = Console(markup=False, emoji=False)
    console.print(table)
    for kept in all_kept(where):
        console.print(visible(f"decoded: {_size(kept)} {kept.folder}"), soft_wrap=True, highlight=False)


def clean_and_tell(folder: Path | None, root: Path | None) -> None:
    """Remove the decoded images of a folder, or all, and print which."""
    console = Console(markup=False, emoji=False)
    wanted = None if folder is None else str(folder.expanduser().resolve())
    found = [kept for kept in all_kept(root_of(root)) if wanted in (None, kept.folder)]
    if not found:
        console.print(visible(f"no decoded images{'' if folder is None else f' of {folder}'}"), soft_wrap=True)
    for kept in found:
        try:
            remove(kept)
            outcome = "removed"
        except LockTaken as error:
            outcome = f"left, {error}:"
        console.print(visible(f"{outcome} {_size(kept)} {kept.folder}"), soft_wrap=True, highlight=False)


def _size(kept: DecodedFolder) -> str:
    return f"{kept.size / MB:,.1f} MB"


def _place_in_words(place: Path | None, root: Path) -> str:
    """Where a data set is; what fetch did not install has no manifest."""
    if place is None:
        return "no"
    shown = "./" if place == root else f"{place.name}/"
    return shown if (place / MANIFEST).is_file() else f"{shown} by hand"


def fetch_and_tell(name: str, root: Path | None, source: str | None, *, md5: str | None, force: bool) -> None:
    """Fetch a data set and print where it is."""
    place = fetch(name, root, source, md5=md5, force=force)
    Console(markup=False, emoji=False).print(visible(f"{name} is in {place}"), soft_wrap=True)


def check_and_tell(name: str, root: Path | None, second: str | None = None) -> bool:
    """Check a data set, a folder of images or a file of pairs; print what is wrong and what it holds; is all well?

    ``second``: the other file of pairs of feature vectors.
    """
    console = Console(markup=False, emoji=False)
    if name not in register.data and Path(name).is_dir():
        found = survey(name)
        for line in found.lines():
            console.print(visible(line), soft_wrap=True, highlight=False)
        return not found.broken
    if name not in register.data and "pairs" in register.data[source_of(name)[0]].takes:
        _tell_pairs(load_pairs(name, root, options={} if second is None else {"second": second}), console)
        return True
    report = check(name, root)
    for problem in report.problems:
        console.print(Text("wrong:", "red"), visible(problem), soft_wrap=True, highlight=False)
    if report.problems:
        return False
    if report.place is not None:
        console.print(
            visible(
                f"{report.files:,} files, {report.size / MB:,.1f} MB in {report.place}: as installed"
                if report.managed
                else f"{report.place}: put there by hand; compared with the makers' checksums where known"
            ),
            soft_wrap=True,
        )
    if name == cuhk03.NAME and report.place is not None:
        seen, both = cuhk03.count_identities(report.place, root_of(root))
        console.print(
            f"{seen:,} identities, {seen - both:,} of them left out because only one camera saw them; "
            f"the real set has {cuhk03.IDENTITIES:,}",
            soft_wrap=True,
        )
    if "pairs" in register.data[name].takes:
        for split in ("train", "test"):
            _tell_pairs(load_pairs(name, root, split=split), console)
        return True
    for split in ("train", "test"):
        data = load(name, root, split=split)
        shape = "x".join(map(str, data.images.shape[1:]))
        console.print(f"{data.split}: {len(data):,} images of {shape}, {len(data.classes)} classes")
    return True


def _tell_pairs(pairs: PairSet, console: Console) -> None:
    console.print(visible(f"{pairs.split}: {len(pairs):,} pairs, {pairs.first} and {pairs.second}"), soft_wrap=True)
