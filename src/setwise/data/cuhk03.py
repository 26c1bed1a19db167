"""CUHK-03, pedestrians seen by two cameras: the official cuhk-03.mat, or a folder of extracted images."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from setwise.checks import check_option, see
from setwise.data import cuhk03_mat
from setwise.data.cache import cached
from setwise.data.decode import is_image, read_images
from setwise.data.errors import DataError
from setwise.data.folder import is_folder
from setwise.data.sets import DEFAULT_MEAN, DEFAULT_STD, PADDING, ImageSet, MatchedSet

Boxes = Literal["labeled", "detected"]
BOXES: tuple[Boxes, ...] = ("labeled", "detected")
SPLITS = ("train", "val", "test", "all")
SIZE = (128, 64)  # height, width
MAT = "cuhk-03.mat"
PICTURE = re.compile(r"(?P<identity>.+)_0(?P<shot>[0-9])\.(jpg|jpeg|png)", re.IGNORECASE)
TOO_HIGH = re.compile(r".+_[1-9][0-9]")  # a shot, counted from 1 or for all cameras
SHOTS_PER_VIEW = cuhk03_mat.SHOTS_PER_VIEW
CONVERSION_LIMIT = cuhk03_mat.SECONDS


def find(path: Path) -> Path | None:
    """The .mat file at or below ``path``, or ``path`` itself if pictures IDENTITY_SHOT.jpg are in it."""
    if path.is_file():
        return path if path.suffix == ".mat" else None
    for place in (path / MAT, path / "cuhk03_release" / MAT):
        if place.is_file():
            return place
    # One picture of such a name may lie beside train/CLASS/, too.
    return path if path.is_dir() and _pictures(path) and not is_folder(path) else None


def load_matched(
    path: Path, split: str, root: Path, *, boxes: Boxes = "labeled", size: tuple[int, int] = SIZE, seed: int = 0
) -> MatchedSet:
    """The identities seen by both cameras, split 70/15/15 at random by identity; ``split="all"`` has all of them.

    ``boxes`` drawn by hand ("labeled") or found by a detector; a folder of pictures has only one kind. All images
    are resized (bilinear) to ``size`` and kept decoded below ``root``. Mean 0.5, std 0.25: none are published.
    """
    check_option(split, SPLITS, "split")
    check_option(boxes, BOXES, "boxes")
    images, table, names = _decoded(path, root, boxes, size)
    whole = _matched(torch.from_numpy(images), table, names)
    return whole if split == "all" else whole.parts(seed=seed)[split]


def count_identities(path: Path, root: Path) -> tuple[int, int]:
    """How many identities there are, and how many of them both cameras saw."""
    _, table, names = _decoded(path, root, "labeled", SIZE)
    views = np.bincount(np.unique(table[:, :2], axis=0)[:, 0])  # [identities], 1 or 2 each
    return len(names), int((views == 2).sum())


def _decoded(
    path: Path, root: Path, boxes: Boxes, size: tuple[int, int]
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], list[str]]:
    """All images [M, 3, H, W], their rows (identity, view, shot) [M, 3], and the names of the identities."""
    place = find(path)
    if place is None:
        raise DataError(f"expected {MAT} or pictures IDENTITY_SHOT.jpg in {path}, got neither")
    where = hashlib.sha256(str(place.resolve()).encode(errors="surrogateescape")).hexdigest()[:8]
    arrays = ("images", "table", "names")
    if place.is_file():
        images, table, names = cached(
            root,
            f"cuhk03-{boxes}-{size[0]}x{size[1]}-{where}",
            [place],
            arrays,
            lambda partial: _convert(place, boxes, size, partial),
        )
    else:
        pictures = _pictures(place)
        _check_shots(place)
        images, table, names = cached(
            root,
            f"cuhk03-{size[0]}x{size[1]}-{where}",
            pictures,
            arrays,
            lambda partial: _decode(pictures, size, partial),
        )
    return images, table, [str(name) for name in names]


def load(path: Path, split: str, root: Path, *, boxes: Boxes, size: tuple[int, int], seed: int) -> ImageSet:
    """The same images with their identity as the label; the identities of two splits are disjoint."""
    found = load_matched(path, split, root, boxes=boxes, size=size, seed=seed)
    labels = torch.empty(len(found.images), dtype=torch.long, device="cpu")
    for shots in (found.shots_a, found.shots_b):
        rows, columns = (shots != PADDING).nonzero(as_tuple=True)
        labels[shots[rows, columns]] = rows
    return ImageSet(
        name=found.name,
        split=found.split,
        images=found.images,
        labels=labels,
        classes=found.identities,
        mean=found.mean,
        std=found.std,
    )


def _matched(images: torch.Tensor, table: npt.NDArray[np.int64], names: list[str]) -> MatchedSet:
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
        name="cuhk03",
        split="all",
        images=images,
        shots_a=tables[0],
        shots_b=tables[1],
        identities=tuple(names[k] for k in both),
        mean=(DEFAULT_MEAN,) * 3,
        std=(DEFAULT_STD,) * 3,
    )
    used = sum(len(view) for k in both for view in listed[k])
    # Shots of dropped identities must not come back as unlabelled images.
    return whole if used == len(images) else whole.select(torch.arange(len(both), device="cpu"), split="all")


def _pictures(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if is_image(path) and PICTURE.fullmatch(path.name))


def _check_shots(folder: Path) -> None:
    """Raise if pictures are numbered otherwise: shots counted from 1 would be taken for the wrong camera's."""
    for path in folder.iterdir():
        if is_image(path) and TOO_HIGH.fullmatch(path.stem):
            raise DataError(
                f"expected pictures IDENTITY_SHOT.jpg with shots 00 to 09 in {folder}, got {path.name}; "
                "rename all of them so that 00 to 04 are one camera's and 05 to 09 the other's, "
                + see("how-to/your-data#cuhk-03")
            )


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
        said = done.stderr.strip() or f"the HDF5 library ended with status {done.returncode}"
    except subprocess.TimeoutExpired:
        said = f"no end after {CONVERSION_LIMIT} s"
    else:
        if done.returncode == 0:
            return
        if done.returncode == cuhk03_mat.UNWRITTEN:
            raise OSError(said)
    finally:
        os.close(theirs)
        os.close(ours)
    raise DataError(f"expected {mat} to be the official {MAT} (MATLAB v7.3), got: {said}; copy or download it again")
