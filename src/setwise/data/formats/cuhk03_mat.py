"""Decode cuhk-03.mat in a process of its own: ``python cuhk03_mat.py MAT BOXES HEIGHT WIDTH OUT``.

The HDF5 library is C code that trusts the file. A damaged file may crash it or keep it busy for ever; then this
process ends, not the caller's. It imports nothing of the package, which would take seconds. One line on stderr says
what is wrong: with the file (exit status 3) or with writing to OUT (4).
"""

from __future__ import annotations

import os
import select
import sys
from pathlib import Path
from typing import Any

import numpy as np

PAIRS, SHOTS, SHOTS_PER_VIEW = 5, 10, 5
LARGEST = 4096  # pixels of a side; the real ones have a few hundred
MOST_IDENTITIES = 10_000  # of a camera pair; the real ones have up to 843
MEMORY = 8 * 2**30
SECONDS = 3600  # 28,000 small images take minutes
REFUSED, UNWRITTEN = 3, 4


class Refused(Exception):
    """The file is not what it should be."""


def cells(file: Any, dataset: Any, what: str) -> Any:
    """The references of a MATLAB cell array, as HDF5 stores them: transposed."""
    import h5py

    check_inside(dataset, what)
    if h5py.check_ref_dtype(dataset.dtype) is not h5py.Reference:
        raise Refused(f"expected {what} to be a cell array, got {dataset.dtype}")
    if dataset.ndim != 2 or dataset.size > SHOTS * MOST_IDENTITIES:
        raise Refused(f"expected {what} to be a small matrix of cells, got shape {dataset.shape}")
    return dataset[()]


def check_inside(dataset: Any, what: str) -> None:
    """Raise unless this is a data set whose bytes lie in this file: HDF5 can point into any other."""
    import h5py

    if not isinstance(dataset, h5py.Dataset):
        raise Refused(f"expected {what} to be an array, got {type(dataset).__name__}")
    if dataset.external or dataset.is_virtual:
        raise Refused(f"expected {what} to lie in the file, got a pointer to another one")


def images(file: Any, boxes: str) -> list[tuple[int, int, int, Any]]:
    """(pair, identity, shot, reference) of every image that is there."""
    import h5py

    link = file.get(boxes, getlink=True)
    if not isinstance(link, h5py.HardLink):
        raise Refused(f"expected a variable {boxes!r}, got {sorted(map(str, file))[:5]}")
    pairs = cells(file, file[boxes], repr(boxes)).ravel()
    if len(pairs) != PAIRS:
        raise Refused(f"expected {PAIRS} camera pairs in {boxes!r}, got {len(pairs)}")
    listed = []
    for pair, pair_ref in enumerate(pairs):
        what = f"camera pair {pair + 1} of {boxes!r}"
        shots = cells(file, file[pair_ref], what)
        if shots.shape[0] != SHOTS:
            raise Refused(f"expected {SHOTS} images an identity in {what}, got {shots.shape[0]}")
        for identity in range(shots.shape[1]):
            for shot in range(SHOTS):
                dataset = file[shots[shot, identity]]
                name = f"image {shot + 1} of identity {identity + 1} in {what}"
                check_inside(dataset, name)
                if dataset.ndim < 3 or dataset.size == 0:  # MATLAB stores an empty cell as the two numbers 0 0
                    continue
                if (
                    dataset.ndim != 3
                    or dataset.shape[0] != 3
                    or max(dataset.shape) > LARGEST
                    or dataset.dtype != np.uint8
                ):
                    raise Refused(
                        f"expected {name} to be uint8 of shape (3, W, H), got {dataset.dtype} {dataset.shape}"
                    )
                listed.append((pair, identity, shot, dataset.ref))
    if not listed:
        raise Refused(f"expected images in {boxes!r}, got empty cells only")
    return listed


def convert(mat: Path, boxes: str, size: tuple[int, int]) -> dict[str, Any]:
    """Arrays: images [M, 3, H, W], table (identity, view, shot) [M, 3] and names (identities)."""
    import h5py
    from PIL import Image

    with h5py.File(mat, "r") as file:
        listed = images(file, boxes)
        keys = sorted({(pair, identity) for pair, identity, _, _ in listed})
        number = {key: k for k, key in enumerate(keys)}
        pixels = np.empty((len(listed), 3, *size), np.uint8)
        table = np.empty((len(listed), 3), np.int64)
        for k, (pair, identity, shot, reference) in enumerate(listed):
            picture = Image.fromarray(np.ascontiguousarray(file[reference][()].T))  # [3, W, H] -> [H, W, 3]
            pixels[k] = np.asarray(picture.resize(size[::-1], Image.Resampling.BILINEAR)).transpose(2, 0, 1)
            table[k] = number[pair, identity], shot // SHOTS_PER_VIEW, shot % SHOTS_PER_VIEW
    names = np.array([f"{pair + 1}_{identity + 1:04d}" for pair, identity in keys])
    return {"images": pixels, "table": table, "names": names}


def end_with_parent() -> None:
    """Ask Linux to end this process when its parent, which holds standard input open, is gone."""
    import fcntl

    fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(0, fcntl.F_SETFL, os.O_ASYNC)  # the signal ends a process that does not know it
    if select.select([0], [], [], 0)[0]:  # it is gone already
        sys.exit(UNWRITTEN)


def main() -> None:
    """Entry point of the process."""
    mat, boxes, height, width, out = sys.argv[1:]
    if sys.platform == "linux":
        end_with_parent()
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))  # nobody may be left to end it
    except (ImportError, ValueError, OSError):
        pass  # no such limit on this system
    try:
        arrays = convert(Path(mat), boxes, (int(height), int(width)))
    except Exception as error:  # h5py turns what the C library reports into whatever type seems near
        message = str(error) if isinstance(error, Refused) else f"{type(error).__name__}: {error}"
        print(message.replace("\n", " ")[:500], file=sys.stderr)
        sys.exit(REFUSED)
    try:
        for name, array in arrays.items():
            np.save(Path(out) / f"{name}.npy", array)
    except OSError as error:
        print(error, file=sys.stderr)
        sys.exit(UNWRITTEN)


if __name__ == "__main__":
    main()
