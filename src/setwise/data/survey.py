"""What a folder of images holds, before anybody trains on it: every file is decoded once, none is kept."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from setwise.data.api import DataError
from setwise.data.fetching.published import file_digest
from setwise.data.formats.decode import SHOW_PROGRESS_FROM, format_and_size, quiet_pillow, reason
from setwise.data.formats.folder import CPU_SIDE, default_size
from setwise.data.formats.listing import Listing, list_split, one_line, test_split
from setwise.data.root import root_of
from setwise.data.store import DIED
from setwise.data.workers import Place, for_each


@dataclass
class Survey:
    """What ``survey`` found. Paths are relative to the folder; sizes are (height, width)."""

    folder: Path
    splits: dict[str, Listing]
    size: tuple[int, int]  # that training takes if nobody says another
    why: str
    formats: Counter[str] = field(default_factory=Counter)  # by content, not by name
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    broken: list[tuple[str, str]] = field(default_factory=list)  # path, reason
    duplicates: list[list[str]] = field(default_factory=list)  # files with the same bytes

    def lines(self) -> Iterator[str]:
        """The findings, for people."""
        for split, listing in self.splits.items():
            counts = Counter(listing.labels)
            classes = [f"{name} {counts[k]:,}" for k, name in enumerate(listing.classes)]
            few = ", ".join([*classes[:20], *(["..."] if len(classes) > 20 else [])])
            many = "one class" if len(classes) == 1 else f"{len(classes):,} classes"
            shown = f"{many} ({few})" if classes else "no classes"
            yield f"{split}: {len(listing.paths):,} images, {shown}"
            if listing.others:
                yield "  no images by their names: " + _counted(listing.others)
            if listing.strays:
                yield f"  beside the folders of the classes: {listing.strays:,} images, which are left out"
        if len(self.splits) == 1:
            yield "no test split: a tenth of the images is held out to test on"
        if self.sizes:
            heights, widths = ([size[side] for size in self.sizes] for side in (0, 1))
            yield f"formats: {_counted(self.formats)}"
            yield (
                f"sizes: {len(self.sizes):,}, heights {min(heights):,} to {max(heights):,}, "
                f"widths {min(widths):,} to {max(widths):,}"
            )
            less = f" (a CPU at most {CPU_SIDE})" if max(self.size) > CPU_SIDE else ""
            yield f"training takes {self.size[0]}x{self.size[1]}{less}, height x width, {self.why}"
        for files in self.duplicates:
            yield f"the same file {len(files)} times: {', '.join(map(one_line, files))}"
        for path, why in self.broken:
            yield f"broken: {one_line(path)}: {why}"


def survey(folder: str | os.PathLike[str], *, follow_links: bool = False) -> Survey:
    """Look at every image of a folder: formats, sizes, classes, duplicates, broken files.

    `setwise data check FOLDER` prints the same.
    """
    place = root_of(folder)
    if not place.is_dir():
        raise DataError(f"expected a folder of images at {place}, got none; is the path right?")
    names = ["train", *filter(None, [test_split(place)])]
    splits = {name: list_split(place, name, follow_links=follow_links) for name in names}
    found = Survey(place, splits, *default_size(splits["train"].paths))
    same: defaultdict[str, list[str]] = defaultdict(list)
    paths = [(listing, path) for listing in splits.values() for path in listing.paths]

    def look(k: int, process: Place) -> tuple[str, tuple[int, int], str] | str:
        try:
            with quiet_pillow():
                return *format_and_size(paths[k][1], turn=process.turn), file_digest(Path(paths[k][1]), "sha256")
        except DataError as error:
            return reason(error)

    def note(results: list[tuple[int, tuple[str, tuple[int, int], str] | str]]) -> None:
        for k, seen in results:
            listing, path = paths[k]
            if isinstance(seen, str):
                found.broken.append((listing.relative(path), seen))
            else:
                form, size, digest = seen
                found.formats[form] += 1
                found.sizes[size] += 1
                same[digest].append(listing.relative(path))

    shown = len(paths) >= SHOW_PROGRESS_FROM
    for_each(look, len(paths), note, died=DIED.format, title="checking images", shown=shown)
    unusable = ((listing.relative(path), why) for listing in splits.values() for path, why in listing.unusable)
    found.broken = sorted([*found.broken, *unusable])
    found.duplicates = sorted(sorted(files) for files in same.values() if len(files) > 1)
    return found


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items()))
