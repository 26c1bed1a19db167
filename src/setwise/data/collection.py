"""All images of one place, whatever its splits: what an encoder embeds. Files are decoded when their turn comes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from setwise.data.api import DataError, ImageSet
from setwise.data.formats import cuhk03, folder
from setwise.data.formats.decode import quiet_pillow, read_image, reason
from setwise.data.formats.listing import has_train, list_split
from setwise.data.loading import has_test_split, load, source_of
from setwise.data.workers import CHUNK, Place, WorkerDied, Workers, chunks, processors
from setwise.walking import SPLITS

# Images, a multiple of CHUNK; the same on every device: a batch has the same images when the work is resumed.
BATCH = 128
Broken = tuple[tuple[int, str], ...]  # row and reason


@dataclass(frozen=True, eq=False, repr=False)
class Collection:
    """Images in a fixed order: files of a folder, or data sets in memory."""

    name: str
    place: str  # tells it from others of that name
    paths: tuple[str, ...]  # below the folder, or split/number
    labels: tuple[str, ...]  # names of classes; empty without classes
    fingerprint: str  # changes if an image does
    channels: int
    files: tuple[str, ...] = ()
    unusable: tuple[tuple[str, str], ...] = ()  # links and pipes, with the reasons
    strays: int = 0  # images beside the folders of the classes, which do not count
    sets: tuple[ImageSet, ...] = ()

    def __len__(self) -> int:
        """Number of images."""
        return len(self.paths)

    def batches(self, first: int, size: tuple[int, int]) -> Iterator[tuple[Tensor, Broken]]:
        """From row ``first`` on, ``BATCH`` rows at a time: uint8 images [n, C, H, W], and which of them are broken.

        Worker processes decode files, crop and resize them to ``size`` = (height, width). Broken ones are black. Sets
        in memory keep their size.
        """
        if not self.files:
            for start in range(first, len(self), BATCH):
                yield self.read(start, start + BATCH), ()
            return
        rows = list(range(first, len(self)))

        def work(chunk: list[int], place: Place) -> tuple[Tensor, Broken]:
            return self._decode(chunk, place, size)

        images: list[Tensor] = []
        broken: Broken = ()
        try:
            workers = processors(len(rows)) if len(rows) > CHUNK else 0  # a few are not worth a process
            with Workers(work, chunks(rows), workers=workers) as decoded:
                for part, bad in decoded:
                    images, broken, first = [*images, part], broken + bad, first + len(part)
                    if first % BATCH == 0 or first == len(self):
                        yield torch.cat(images), broken
                        images, broken = [], ()
        except WorkerDied as death:
            names = ", ".join(self.files[row] for row in death.files)
            raise DataError(
                f"expected whole images, got a process that died ({death}) at one of these: {names}"
            ) from death

    def _decode(self, rows: list[int], place: Place, size: tuple[int, int]) -> tuple[Tensor, Broken]:
        """What a worker process does."""
        out, broken = np.zeros((len(rows), 3, *size), np.uint8), []
        with quiet_pillow():
            for k, row in enumerate(rows):
                place.at(row)
                try:
                    out[k] = read_image(self.files[row], size, crop=True, turn=place.turn).transpose(2, 0, 1)
                except DataError as error:
                    broken.append((row, reason(error)))
        return torch.from_numpy(out), tuple(broken)

    def read(self, first: int, last: int) -> Tensor:
        """Rows of the sets in memory."""
        parts = []
        for one in self.sets:
            if first < len(one) and last > 0:
                parts.append(one.read(slice(max(first, 0), last)))
            first, last = first - len(one), last - len(one)
        return torch.cat(parts)

    def picture(self, row: int, side: int) -> npt.NDArray[np.uint8]:
        """One image to look at, uint8 [h, w, 3], no side longer than ``side``; small images keep their size."""
        if self.files:
            with quiet_pillow():
                pixels = read_image(self.files[row])
        else:
            pixels = as_rgb(self.read(row, row + 1))[0].permute(1, 2, 0).contiguous().numpy()
        return small_picture(pixels, side)


def small_picture(pixels: npt.NDArray[np.uint8], side: int) -> npt.NDArray[np.uint8]:
    """A picture [H, W, 3] with no side longer than ``side``."""
    from PIL import Image

    picture = Image.fromarray(pixels)
    picture.thumbnail((side, side), reducing_gap=2.0)
    return np.asarray(picture)


def as_rgb(images: Tensor) -> Tensor:
    """Images [n, C, H, W] for the eye, [n, 3, H, W]: the first three channels, or the first one as grey."""
    return images[:, :3] if images.shape[1] >= 3 else images[:, :1].expand(-1, 3, -1, -1)


def collect(
    source: str | os.PathLike[str] | ImageSet,
    root: str | os.PathLike[str] | None = None,
    *,
    options: Mapping[str, object] | None = None,
    follow_links: bool = False,
) -> Collection:
    """All images of a folder or of a data set. Those of a folder's splits are taken together.

    ``options`` are those of a data set by name.
    """
    if isinstance(source, ImageSet):
        return _of_sets(source.name, f"python:{source.name}", [source])
    kind, path = source_of(source)
    if kind == folder.NAME and path is not None:
        return _of_folder(path, follow_links=follow_links)
    splits = ["train", *(["val", "test"] if kind == cuhk03.NAME else ["test"] if has_test_split(source) else [])]
    name = path.name if path is not None else str(source)
    return _of_sets(name, str(path or kind), [load(source, root, split=split, options=options) for split in splits])


def _of_folder(path: Path, *, follow_links: bool) -> Collection:
    if not path.is_dir():
        raise DataError(f"expected a folder of images at {path}, got none; is the path right?")
    splits = [name for name in SPLITS if (path / name).is_dir()] if has_train(path) else ["train"]
    listings = [list_split(path, split, follow_links=follow_links) for split in splits]
    names = tuple(name for one in listings for name in one.names)
    digest = hashlib.sha256()
    for name, stat in zip(names, (stat for one in listings for stat in one.stats), strict=True):
        digest.update(f"{name}\0{stat[0]}\0{stat[1]}\0".encode("utf-8", "surrogateescape"))
    return Collection(
        name=path.name,
        place=str(path),
        paths=names,
        labels=tuple(one.classes[k] for one in listings for k in one.labels if one.classes),
        fingerprint=digest.hexdigest(),
        channels=3,
        files=tuple(file for one in listings for file in one.paths),
        unusable=tuple((one.relative(file), why) for one in listings for file, why in one.unusable),
        strays=sum(one.strays for one in listings),
    )


def _of_sets(name: str, place: str, sets: list[ImageSet]) -> Collection:
    digest = hashlib.sha256()
    for one in sets:
        for start in range(0, len(one), BATCH):
            digest.update(one.read(slice(start, start + BATCH)).contiguous().numpy().data)
    return Collection(
        name=name,
        place=place,
        paths=tuple(path for one in sets for path in one.paths or [f"{one.split}/{k}" for k in range(len(one))]),
        labels=tuple(one.classes[k] for one in sets for k in one.labels.tolist() if one.classes),
        fingerprint=digest.hexdigest(),
        channels=sets[0].images.shape[1],
        sets=tuple(sets),
    )
