"""CUHK-03, pedestrians seen by two cameras: the official cuhk-03.mat, or a folder of extracted images."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

import setwise.register as register
from setwise.checks import see
from setwise.data.api import PADDING, DataError, MatchedSet
from setwise.data.fetching.cache import cached
from setwise.data.fetching.published import MB, Published
from setwise.data.formats import cuhk03_mat
from setwise.data.formats.decode import Size, height_and_width, is_image, read_images
from setwise.data.formats.listing import has_train

NAME, MAT = "cuhk03", "cuhk-03.mat"
IDENTITIES = 1467  # of the real set
Boxes = Literal["labeled", "detected"]  # drawn by hand, or found by a detector
SIZE = (128, 64)  # height, width
PICTURE = re.compile(r"(?P<identity>.+)_0(?P<shot>[0-9])\.(jpg|jpeg|png)", re.IGNORECASE)
THEIRS = re.compile(r"[1-5]_[0-9]{3,4}(_[12])?_[0-9]{2}")  # pair of cameras, identity, maybe the view, shot
TOO_HIGH = re.compile(r".+_[1-9][0-9]")  # a shot, counted from 1 or for all cameras
SHOTS_PER_VIEW = cuhk03_mat.SHOTS_PER_VIEW
CONVERSION_LIMIT = cuhk03_mat.SECONDS


@register.data(NAME, about="People seen by two cameras, 14,096 images of 1,467 identities, 3x128x64; fetched by hand.")
def cuhk03(
    root: Path, split: str, source_path: Path | None = None, *, boxes: Boxes = "labeled", size: Size = SIZE
) -> MatchedSet:
    """All identities that both cameras saw.

    A folder of pictures has one kind of ``boxes``. All images are resized (bilinear) to ``size`` and kept decoded below
    ``root``.
    """
    return _matched(*_decoded(PUBLISHED.located(root, source_path), root, boxes, height_and_width(size)))


def find(path: Path) -> Path | None:
    """``path``, if cuhk-03.mat or pictures IDENTITY_SHOT.jpg are there."""
    return path if _find(path) is not None else None


def _find(path: Path) -> Path | None:
    """The .mat file at or below ``path``, or ``path`` itself if pictures are in it."""
    if path.is_file():
        return path if path.suffix == ".mat" else None
    for place in (path / MAT, path / "cuhk03_release" / MAT):
        if place.is_file():
            return place
    pictures = path.is_dir() and not has_train(path) and _in_cuhk03_form([p for p in path.iterdir() if is_image(p)])
    return path if pictures else None


def _in_cuhk03_form(pictures: list[Path]) -> bool:
    """Whether these are CUHK-03's, or pairs in its form. Photos such as trip_01.jpg to trip_09.jpg are neither.

    All have CUHK-03's names; or all are IDENTITY_SHOT, the first shot of a view is there, and at least half of two or
    more identities have shots of both views.
    """
    if pictures and all(THEIRS.fullmatch(path.stem) for path in pictures):
        return True
    parsed = [PICTURE.fullmatch(path.name) for path in pictures]
    views: defaultdict[str, set[int]] = defaultdict(set)
    for found in parsed:
        if found is None:
            return False
        views[found["identity"]].add(int(found["shot"]) // SHOTS_PER_VIEW)
    first = any(found is not None and found["shot"] == "0" for found in parsed)
    return first and len(views) > 1 and sum(len(seen) == 2 for seen in views.values()) >= len(views) / 2


def count_identities(path: Path, root: Path) -> tuple[int, int]:
    """How many identities there are, and how many of them both cameras saw."""
    _, table, names = _decoded(path, root, "labeled", SIZE)
    views = np.bincount(np.unique(table[:, :2], axis=0)[:, 0])  # [identities], 1 or 2 each
    return len(names), int((views == 2).sum())


def _decoded(
    path: Path, root: Path, boxes: Boxes, size: tuple[int, int]
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], list[str]]:
    """All images [M, 3, H, W], their rows (identity, view, shot) [M, 3], and the names of the identities."""
    place = _find(path)
    if place is None:
        raise DataError(f"expected {MAT} or pictures IDENTITY_SHOT.jpg in {path}, got neither")
    pictures = [] if place.is_file() else _checked_pictures(place)

    def build(partial: Path) -> None:
        if pictures:
            _decode(pictures, size, partial)
        else:
            _convert(place, boxes, size, partial)

    kind = "" if pictures else f"{boxes}-"
    images, table, names = cached(
        root, f"cuhk03-{kind}{size[0]}x{size[1]}", place, pictures or [place], ("images", "table", "names"), build
    )
    return images, table, [str(name) for name in names]


def _matched(images: npt.NDArray[np.uint8], table: npt.NDArray[np.int64], names: list[str]) -> MatchedSet:
    """Index tables from rows (identity, view, shot) in order; identities that lack a view are left out."""
    listed: list[tuple[list[int], list[int]]] = [([], []) for _ in names]
    order = np.lexsort((table[:, 2], table[:, 1], table[:, 0]))
    for row in order.tolist():
        listed[int(table[row, 0])][int(table[row, 1])].append(row)
    both = [k for k, (a, b) in enumerate(listed) if a and b]
    if not both:
        raise DataError(
            f"expected identities seen by both cameras, got none among {len(names)}; "
            "shots 00 to 04 are one camera's and 05 to 09 the other's, " + see("how-to/your-data#cuhk-03")
        )
    most = max(len(view) for k in both for view in listed[k])
    tables = [
        torch.tensor([listed[k][view] + [PADDING] * (most - len(listed[k][view])) for k in both], device="cpu")
        for view in (0, 1)
    ]
    whole = MatchedSet(
        name=NAME,
        split="all",
        images=torch.from_numpy(images),
        shots_a=tables[0],
        shots_b=tables[1],
        identities=tuple(names[k] for k in both),
    )
    used = sum(len(view) for k in both for view in listed[k])
    # Shots of dropped identities must not come back as unlabelled images.
    return whole if used == len(images) else whole.select(torch.arange(len(both), device="cpu"), split="all")


def _pictures(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if is_image(path) and PICTURE.fullmatch(path.name))


def _checked_pictures(folder: Path) -> list[Path]:
    """The pictures; raises if they are numbered otherwise, as shots from 1 would be taken for the wrong camera's."""
    for path in folder.iterdir():
        if is_image(path) and TOO_HIGH.fullmatch(path.stem):
            raise DataError(
                f"expected pictures IDENTITY_SHOT.jpg with shots 00 to 09 in {folder}, got {path.name}; "
                "rename all of them so that 00 to 04 are one camera's and 05 to 09 the other's, "
                + see("how-to/your-data#cuhk-03")
            )
    return _pictures(folder)


def _decode(pictures: list[Path], size: tuple[int, int], partial: Path) -> None:
    parsed = [match for path in pictures if (match := PICTURE.fullmatch(path.name))]
    names = sorted({match["identity"] for match in parsed})
    number = {name: k for k, name in enumerate(names)}
    shots = [int(match["shot"]) for match in parsed]
    table = [
        (number[m["identity"]], s // SHOTS_PER_VIEW, s % SHOTS_PER_VIEW) for m, s in zip(parsed, shots, strict=True)
    ]
    if len(set(table)) != len(table):
        raise DataError(
            f"expected one picture a shot in {pictures[0].parent}, got some twice; remove one of .jpg and .png"
        )
    np.save(partial / "images.npy", read_images(pictures, size))
    np.save(partial / "table.npy", np.array(table, np.int64))
    np.save(partial / "names.npy", np.array(names))


def _convert(mat: Path, boxes: Boxes, size: tuple[int, int], partial: Path) -> None:
    if find_spec("h5py") is None:
        raise ModuleNotFoundError(
            "expected h5py to read cuhk-03.mat, got none; pip install h5py, " + see("how-to/your-data#cuhk-03")
        )
    # -P: the script's own folder must not shadow other packages' modules.
    command = [sys.executable, "-P", cuhk03_mat.__file__, str(mat.resolve()), boxes, *map(str, size), str(partial)]
    theirs, ours = os.pipe()  # ours closes when this process ends, however that is: then the decoder ends too
    try:
        done = subprocess.run(
            command, stdin=theirs, capture_output=True, text=True, errors="replace", timeout=CONVERSION_LIMIT
        )
        problem = done.stderr.strip() or f"the HDF5 library ended with status {done.returncode}"
        if done.returncode == 0:
            return
        if done.returncode == cuhk03_mat.UNWRITTEN:
            raise OSError(problem)
    except subprocess.TimeoutExpired:
        problem = f"no end after {CONVERSION_LIMIT} s"
    finally:
        os.close(theirs)
        os.close(ours)
    raise DataError(f"expected {mat} to be the official {MAT} (MATLAB v7.3), got: {problem}; copy or download it again")


PUBLISHED = Published(
    name=NAME,
    find=find,  # no more is verified: a set may have fewer identities than the real one
    download=1100 * MB,
    most_bytes=4000 * MB,
    most_files=60_000,
    by_hand=(
        "its makers send a link on request (the CUHK person re-identification page, CUHK03); "
        "then run `setwise data fetch cuhk03 --source cuhk-03.mat`"
    ),
)
