"""Your own images and their captions: a file captions.tsv beside the images, in each line a path and a caption."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator
from pathlib import Path

import torch

import setwise.register as register
from setwise.checks import check_option
from setwise.data.api import DataError, Placement
from setwise.data.formats.decode import Size, height_and_width
from setwise.data.formats.folder import default_size
from setwise.data.formats.listing import one_line
from setwise.data.index import Files, stats
from setwise.data.pairs import PairSet, Side
from setwise.data.store import decoded
from setwise.data.texts import IdRows, Tokenizer, read_columns, read_sets

NAME = "captions"
LISTED = 20  # broken images that a message names


@register.data(NAME, about="Your own images with captions: give the path of their captions.tsv.", takes=("pairs",))
def captions(
    root: Path,
    split: str,
    source_path: Path | None = None,
    *,
    size: Size | None = None,
    vocabulary: int = Tokenizer.vocabulary,
    ngrams: tuple[int, ...] = Tokenizer.ngrams,
    length: int = Tokenizer.length,
    sets: str = "",
) -> PairSet:
    """Images, resized as those of a folder, and their captions: all are the training split.

    Paths are below the folder of the file. An image has a line for each of its captions. It is stored once, and where
    some have several captions, the images' numbers are the labels.
    ``sets`` is the name of a third column, of three that the file's first line names: "product", say. Lines with the
    same text there are a set, and training knows no more than the sets. All lines of an image are then of one set.
    """
    check_option(split, ("train",), "split")
    if source_path is None:
        raise DataError(f"expected the path of a captions.tsv, got its kind, {NAME!r}; give the path instead")
    ids, lines = IdRows(Tokenizer(vocabulary, ngrams, length)), dict[str, str]()  # where an image comes first
    rows, numbers, of_lines, of_images = array("q"), dict[str, int](), array("q"), dict[str, int]()
    for where, (name, caption), number in read_sets(source_path, sets) if sets else _lines(source_path):
        name = os.path.normpath(name)
        if os.path.isabs(name) or name.split(os.sep)[0] in ("..", "."):
            raise DataError(
                f"expected the path of an image below {source_path.parent} in {where}, got {name[:80]!r}; move it there"
            )
        lines.setdefault(name, where)
        rows.append(numbers.setdefault(name, len(numbers)))
        of_lines.append(number)
        if of_images.setdefault(name, number) != number:
            raise DataError(
                f"expected an image in one set, got {name[:80]!r} in another one in {where}; name the same set in all "
                "of its lines"
            )
        ids.add(caption, where)
    names = list(lines)
    paths = [source_path.parent / name for name in names]
    missing = [k for k, path in enumerate(paths) if not path.is_file()]
    if missing:
        place = missing[0]
        raise DataError(
            f"expected an image at {paths[place]}, as {lines[names[place]]} says, got no such file; {len(missing):,} "
            f"of {len(paths):,} are missing: copy them there, or take their lines out"
        )
    shape, why = (height_and_width(size), "as asked") if size is not None else default_size(paths)
    found = decoded(Files(source_path.parent, names, stats(paths)), shape, root, Placement("resident"))
    if found.broken:
        shown = "\n".join(f"  {one_line(names[k])}: {why}" for k, why in found.broken[:LISTED])
        raise DataError(
            f"expected whole images in {source_path}, got {len(found.broken):,} that cannot be read; replace them, or "
            f"take them out of the file:\n{shown}"
        )
    name = source_path.parent.name or source_path.stem
    note = f"{shape[0]}x{shape[1]} pixels (height x width), {why}"
    several = torch.tensor(rows, dtype=torch.int64, device="cpu") if len(rows) > len(names) else None
    first, second = Side(found.images, rows=several), Side(ids.matrix(), vocabulary)
    if not sets:
        return PairSet(name, split, first, second, notes=(note,), labels=several)
    known = torch.tensor(of_lines, dtype=torch.int64, device="cpu")
    return PairSet(name, split, first, second, notes=(note,), sets=known)


def _lines(path: Path) -> Iterator[tuple[str, list[str], int]]:
    """Of each line of a file without sets: where it stands, path and caption, and 0."""
    return ((where, texts, 0) for where, texts in read_columns(path, 2))
