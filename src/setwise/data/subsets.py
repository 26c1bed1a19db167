"""Training sets as they are outside of benchmarks: few images, long-tailed classes, wrong partners."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from setwise.data.api import DataError, ImageSet


def few(images: ImageSet, count: int, *, seed: int) -> ImageSet:
    """``count`` of the images, drawn without replacement by ``seed``, in their order."""
    if count > len(images):
        raise ValueError(
            f"expected instances of at most the {len(images)} training images, got {count}; leave out --instances"
        )
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed), device="cpu")
    return images.select(order[:count].sort().values, split=images.split)


def long_tailed(images: ImageSet, imbalance: float, *, seed: int) -> ImageSet:
    """Fewer and fewer images of each class: of n images, the first of C classes keeps all, the last n / ``imbalance``.

        kept of class c  =  max(1, floor(n_c · imbalance^(-c / (C - 1)))),   c = 0, ..., C - 1

    Cao et al. 2019, with the n_c of each class instead of the largest. Which images stay is drawn by ``seed``.
    """
    classes = len(images.classes)
    if classes < 2:
        raise DataError(
            f"expected images of two classes or more for long tails, got {classes} in {images.name}; "
            "leave out --data.imbalance"
        )
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed), device="cpu")
    labels, kept = images.labels.cpu()[order], []
    for c in range(classes):
        mine = order[labels == c]
        share = imbalance ** (-c / (classes - 1))
        kept.append(mine[: max(1, int(len(mine) * share + 1e-9))])  # 45 · 100^(-1/2) is 4.5, not 4.4999...
    return images.select(torch.cat(kept).sort().values, split=images.split)


def partners(count: int, share: float, *, seed: int) -> Tensor:
    """Whose image the other views of each of ``count`` images show [count], int64: its own, or a wrong one.

    ``round(share · count)`` images are drawn by ``seed``, and each gets the next one's: their second views are
    shuffled, as captions are that went astray. They depend on nothing else, so a resumed run has the same.
    """
    found = torch.arange(count, device="cpu")
    word = int(np.random.SeedSequence([seed, count]).generate_state(1, np.uint64)[0]) >> 1
    order = torch.randperm(count, generator=torch.Generator().manual_seed(word), device="cpu")
    wrong = order[: round(share * count)]
    if len(wrong) > 1:  # one alone has nobody to change with
        found[wrong] = wrong.roll(-1)
    return found
