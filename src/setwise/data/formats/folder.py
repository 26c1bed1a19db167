"""Any folder of your own images: see listing.py for the layouts that are read, decode.py for the formats."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import median_low

import torch

import setwise.register as register
from setwise.checks import check_count, check_option
from setwise.data.api import DataError, ImageSet, Placement
from setwise.data.formats.decode import SHOW_PROGRESS_FROM, Size, height_and_width, image_size, quiet_pillow
from setwise.data.formats.listing import Listing, list_split, one_line
from setwise.data.index import Files
from setwise.data.store import decoded, remembered_size
from setwise.data.workers import Place, for_each
from setwise.walking import SPLITS

NAME = "image-folder"
SIDES = (32, 64, 96, 128, 224)  # that images of mixed sizes may get
CPU_SIDE = 64  # of images that a CPU trains on, at most, where neither a size nor a recipe is given
KEPT_SIDE = 512  # images of one size stay as they are if no side is longer
LISTED = 100  # broken files that a message names; `setwise data check` prints all


@register.data(NAME, about="Your own images in any folders: give the path in place of a name.")
def image_folder(
    root: Path,
    split: str,
    source_path: Path | None = None,
    placement: Placement | None = None,
    *,
    size: Size | None = None,
    largest: int | None = None,
    skip_broken: bool = False,
    follow_links: bool = False,
) -> ImageSet:
    """One split as RGB, with the paths of its images; labels count the sorted class folders.

    ``size`` is (height, width), or one number for both: each image is resized (bilinear) so that it covers that, and
    what is beyond is cropped on both sides. Without it ``default_size`` of the training images counts, shrunk until no
    side is longer than ``largest``. Broken files are an error that lists them all, or left out by ``skip_broken``.
    Where ``placement`` leaves pixels in their files, a broken one is met only when it is needed, unless skipped.
    """
    check_option(split, SPLITS, "split")
    check_count(largest, "largest")
    if source_path is None:
        raise DataError(f"expected the path of a folder of images, got its kind, {NAME!r}; give the path instead")
    listing = list_split(source_path, split, follow_links=follow_links)
    if size is not None:
        shape, why = height_and_width(size), "as asked"
    else:
        train = listing if split == "train" else list_split(source_path, "train", follow_links=follow_links)
        shape, why = remembered_size(_files(train), root, partial(default_size, train.paths))
        if largest is not None and max(shape) > largest:
            shape = max(1, round(shape[0] * largest / max(shape))), max(1, round(shape[1] * largest / max(shape)))
            why = f"no side longer than {largest}, for a slow device; --size changes it"
    found = decoded(_files(listing), shape, root, placement, try_all=skip_broken)
    broken = sorted(listing.unusable + [(listing.paths[k], why) for k, why in found.broken])
    if broken and not (skip_broken and found.whole):
        advice = "replace them, or leave them out by --skip-broken" if found.whole else "none is left"
        raise DataError(
            f"expected whole images in {source_path}, got {len(broken):,} that cannot be read; {advice}:\n"
            + _lines(listing, broken)
        )
    return ImageSet(
        name=source_path.name,
        split=listing.split,
        images=found.images,
        labels=torch.tensor([listing.labels[k] for k in found.whole], device="cpu"),
        classes=listing.classes,
        paths=tuple(listing.names[k] for k in found.whole),
        notes=(f"{shape[0]}x{shape[1]} pixels (height x width), {why}", *_left_out(listing, broken)),
        pixels=found.pixels,
    )


def _files(listing: Listing) -> Files:
    return Files(listing.folder, listing.names, listing.stats)


def default_size(paths: Sequence[str | Path]) -> tuple[tuple[int, int], str]:
    """Height and width for images of which nobody said any, and why.

    Images of one size stay as they are, up to 512 pixels a side. Others become squares: the median of their shorter
    sides, rounded down to 32, 64, 96, 128 or 224; below 32 it stays. Only headers are read.
    """
    sizes: list[tuple[int, int]] = []

    def work(k: int, process: Place) -> tuple[int, int] | None:
        with quiet_pillow(), suppress(DataError):  # it raises again when it is decoded
            return image_size(paths[k])
        return None

    def done(found: list[tuple[int, tuple[int, int] | None]]) -> None:
        sizes.extend(size for _, size in found if size is not None)

    many = len(paths) >= SHOW_PROGRESS_FROM
    workers = None if many else 0  # headers of few files are read sooner than a process starts
    for_each(work, len(paths), done, died=lambda _: None, title="reading sizes", shown=many, workers=workers)
    return size_for(sizes)


def size_for(sizes: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], str]:
    """The rule of ``default_size``."""
    if len(set(sizes)) == 1 and max(sizes[0]) <= KEPT_SIDE:
        return sizes[0], "as all of them are"
    short = median_low([min(size) for size in sizes]) if sizes else SIDES[0]
    side = max((side for side in SIDES if side <= short), default=short)
    return (side, side), f"since the median of the shorter sides is {short}; --size changes it"


def _left_out(listing: Listing, broken: Sequence[tuple[str, str]]) -> list[str]:
    """What was not read, for people."""
    notes = []
    if listing.others:
        counts = ", ".join(f"{count:,} {ending}" for ending, count in sorted(listing.others.items()))
        notes.append(f"left out, no images by their names: {counts}")
    if listing.strays:
        notes.append(f"left out, images beside the folders of the classes: {listing.strays:,}")
    if broken:
        notes.append(f"left out, broken: {len(broken):,}\n{_lines(listing, broken)}")
    return notes


def _lines(listing: Listing, broken: Sequence[tuple[str, str]]) -> str:
    lines = [f"  {one_line(listing.relative(path))}: {why}" for path, why in broken[:LISTED]]
    more = [f"  and {len(broken) - LISTED:,} more; `setwise data check` lists all"] if len(broken) > LISTED else []
    return "\n".join(lines + more)
