"""Left and right halves of images as pairs: a matching problem of any data set."""

from __future__ import annotations

from pathlib import Path

import torch

import setwise.register as register
from setwise.checks import check_count, check_option
from setwise.data.api import DataError, ImageSet, matched_halves
from setwise.data.pairs import PairSet, Side

NAME = "halves"


@register.data(
    NAME, about="Left and right halves of a data set's images, as pairs: --data.of cifar10.", takes=("pairs",)
)
def halves(root: Path, split: str, *, of: str = "digits", group: int | None = None) -> PairSet:
    """Pair i is the left and the right half of image i of the data set ``of``.

    With a ``group``, training knows no pairs, but sets of so many images that follow each other.
    """
    check_option(of, tuple(name for name, one in register.data.items() if not one.takes), "the data set to halve")
    check_count(group, "group")
    entry = register.data[of]
    data = entry.make(root, split, **entry.fill({}))
    if not isinstance(data, ImageSet) or data.pixels is not None:
        raise DataError(f"expected a data set of images in memory to halve, got {of}: {data!r}")
    found = matched_halves(data)
    first, second = (Side(x, mean=data.mean, std=data.std) for x in (found.first_a, found.first_b))
    sets = torch.arange(len(data), device="cpu") // group if group and split == "train" else None
    return PairSet(found.name, split, first, second, sets=sets)
