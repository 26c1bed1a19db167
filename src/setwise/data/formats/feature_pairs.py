"""Feature vectors of both sides in two .npy files: what frozen encoders gave, to learn small heads on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import setwise.register as register
from setwise.checks import check_option
from setwise.data.api import DataError
from setwise.data.fetching.limits import available_bytes, open_plain
from setwise.data.pairs import PairSet, Side

NAME = "feature-pairs"
ROWS = 4096  # at a time


@register.data(NAME, about="Your own feature vectors: two .npy files in one folder, row by row.", takes=("pairs",))
def feature_pairs(root: Path, split: str, source_path: Path | None = None, *, second: str = "") -> PairSet:
    """All pairs, which are the training split. ``second`` is the name of the other file, beside the first."""
    check_option(split, ("train",), "split")
    if source_path is None:
        raise DataError(f"expected the path of a .npy file, got its kind, {NAME!r}; give the path instead")
    if not second or Path(second).name != second:
        raise DataError(
            f"expected the name of a second .npy file beside {source_path.name}, got {second!r}; give --data.second "
            "(`setwise data check` takes --second), the name alone of a file in the same folder"
        )
    paths = source_path, source_path.parent / second
    first, other = (Side(read_features(path)) for path in paths)
    if len(first.values) != len(other.values):
        raise DataError(
            f"expected as many rows in both files, since row i of both belongs together, got {len(first.values):,} in "
            f"{paths[0].name} and {len(other.values):,} in {paths[1].name}; give vectors of the same items"
        )
    return PairSet(source_path.stem, split, first, other)


def read_features(path: Path) -> Tensor:
    """The vectors of a .npy file, float32 [N, D]. It is mapped and read in parts; nothing is unpickled."""
    if not path.is_file():
        raise DataError(f"expected a .npy file at {path}, got no such file; --data.second names one beside the first")
    open_plain(path).close()
    expected = f"expected a .npy file of numbers, float16, float32 or float64 of shape (N, D), at {path}, got"
    advice = "np.save(path, array.astype(np.float32)) writes one"
    try:
        array = np.lib.format.open_memmap(path, mode="r")
    except (ValueError, OSError) as error:  # objects would need pickle
        raise DataError(f"{expected} {str(error).rstrip('.')}; {advice}") from error
    if array.ndim != 2 or not array.size or array.dtype not in (np.float16, np.float32, np.float64):
        raise DataError(f"{expected} {array.dtype} of shape {array.shape}; {advice}")
    needed, most = 4 * array.size, available_bytes() // 4
    if needed > most:
        raise DataError(
            f"expected features that take at most {most:,} bytes, a quarter of the memory, got {needed:,}; give fewer"
        )
    features = np.empty(array.shape, dtype=np.float32)
    for start in range(0, len(array), ROWS):
        part = features[start : start + ROWS]
        with np.errstate(over="ignore"):
            part[:] = array[start : start + ROWS]
        bad = ~np.isfinite(part).all(1)
        if bad.any():
            raise DataError(
                f"expected finite numbers that float32 can hold in {path}, got others in row {start + bad.argmax()}; "
                "take the row out of both files"
            )
    return torch.from_numpy(features)
