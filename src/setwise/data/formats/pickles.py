"""Read CIFAR's python batches: the makers' own files, known by their MD5, and no others.

A pickle is a program. A small one can take all memory or run for ever, even where it may call nothing. So the whole
file must have the makers' MD5 before a byte is parsed. Should another file ever have the same MD5, a restricted
``Unpickler`` allows only the three names that an array needs.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from setwise.checks import see
from setwise.data.api import DataError
from setwise.data.fetching.limits import CIFAR_BATCH, open_plain


def _uint8(code: bytes, align: int, copy: int) -> np.dtype[np.uint8]:
    """What numpy.dtype is in these files: old numpy passed integers for the flags, new numpy warns of them."""
    if code != b"u1":
        raise DataError(f"expected arrays of uint8 in a CIFAR batch, got the dtype {code!r}")
    return np.dtype(np.uint8, align=bool(align), copy=bool(copy))


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> Any:
        if (module, name) == ("numpy", "dtype"):
            return _uint8
        if (module, name) in (("numpy", "ndarray"), ("numpy.core.multiarray", "_reconstruct")):
            return super().find_class(module, name)
        raise DataError(f"expected only the names of an array in a CIFAR batch, got {module}.{name}")


def read_batch(path: Path, md5: str) -> dict[bytes, Any]:
    """The dictionary in the CIFAR batch with this MD5."""
    with open_plain(path, most_bytes=CIFAR_BATCH) as file:
        raw = file.read(CIFAR_BATCH)
    if (got := hashlib.md5(raw).hexdigest()) != md5:
        raise DataError(
            f"expected {path} as CIFAR's makers published it, with MD5 {md5}, got {got}; it is damaged or not theirs: "
            f"fetch it again, or bring images of your own as a folder, {see('how-to/your-data#cifar')}"
        )
    return dict(_Reader(io.BytesIO(raw), encoding="bytes").load())
