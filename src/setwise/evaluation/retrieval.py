"""A number for images without labels: how many find their own second view among the second views of all."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import normalize

from setwise.data import ImageSet
from setwise.evaluation.features import extract

MOST = 5_000  # images: more take longer and change little
VIEWS = "self-supervised"  # for all runs, whatever they are trained with: so their numbers can be compared
ROWS = 1024  # of the matrix of cosines at a time


def view_retrieval(encoder: nn.Module, images: ImageSet, *, device: torch.device | str) -> float:
    """The share of images whose first view is nearest, by the cosine of the features, to their own second view.

    Chance is one in the number of images. Of more than ``MOST`` images, so many are taken at equal distances.
    """
    if len(images) > MOST:
        images = images.select(torch.arange(MOST, device="cpu") * len(images) // MOST, split=images.split)
    double = next(encoder.parameters()).dtype == torch.float64
    precision = "float64" if double else "float32"
    first, second = (
        normalize(extract(encoder, images, device=device, precision=precision, views=VIEWS, view=view))
        for view in (0, 1)
    )
    nearest = torch.cat([(rows @ second.mT).argmax(1) for rows in torch.split(first, ROWS)])
    return float((nearest == torch.arange(len(nearest), device=nearest.device)).double().mean())
