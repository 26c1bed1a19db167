"""Handwritten digits, 1,797 real 8x8 grey images that come with scikit-learn: the default that needs no download."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch

import setwise.register as register
from setwise.checks import check_option, imported, see
from setwise.data.api import ImageSet

TRAIN = 1297
BRIGHTEST = 16  # the file counts the inked pixels of 4x4 blocks


@register.data("digits", about="Handwriting, 1,797 images of 10 classes, 1x8x8; needs no download.")
def digits(root: Path, split: str) -> ImageSet:
    """The digits in a fixed random order (``torch.randperm``, seed 0): the first 1,297 are train, the last 500 test.

    Grey values 0..16 become ``round(255 / 16 * value)``. Mean and std are those of the train split.
    """
    check_option(split, ("train", "test"), "split")
    # Here: it takes half a second to import.
    dataset = imported("sklearn.datasets", "scikit-learn", see("how-to/your-data#by-name")).load_digits()
    order = torch.randperm(len(dataset.target), generator=torch.Generator().manual_seed(0), device="cpu")
    images = torch.from_numpy(np.rint(dataset.images * (255 / BRIGHTEST)).astype(np.uint8))[order].unsqueeze(1)
    labels = torch.from_numpy(dataset.target.astype(np.int64))[order]
    rows = slice(TRAIN) if split == "train" else slice(TRAIN, None)
    values = images[:TRAIN].long()  # sums of integers are the same with any number of threads
    mean, square = (x.sum().item() / (255**power * x.numel()) for power, x in ((1, values), (2, values * values)))
    return ImageSet(
        name="digits",
        split=split,
        images=images[rows].contiguous(),
        labels=labels[rows],
        classes=tuple("0123456789"),
        mean=(mean,),
        std=(math.sqrt(square - mean * mean),),
    )
