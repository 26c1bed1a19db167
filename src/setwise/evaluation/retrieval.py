"""How many items find their partner: their own second view among those of all, or the other side of a pair."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from setwise.assignment.linear import matching_accuracy
from setwise.data import ImageSet
from setwise.evaluation.features import extract
from setwise.evaluation.ranks import match_ranks
from setwise.similarity import Similarity

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


def pair_retrieval(
    z_a: Tensor,
    z_b: Tensor,
    *,
    labels: Tensor | None = None,
    items: tuple[Tensor | None, Tensor | None] = (None, None),
    similarity: Similarity = "cosine",
) -> dict[str, float]:
    """How many rows find their partner, row i of the other side: recall at 1, 5 and 10, and matching accuracy.

    "recall1" is the mean over both ways. A column that is as near as the partner counts as nearer. Matching accuracy is
    the share of rows that the best one-to-one assignment of all rows puts on their partner.

    With ``labels`` [N] all rows of one label are partners, and a row is found with the nearest of them. ``items`` [N]
    of a side say which of its rows are the same item, such as an image with several captions. Recall looks for each
    item once, and among each item once; in the assignment it has a place for each of its rows.

    Examples:
        >>> from setwise.evaluation.retrieval import pair_retrieval
        >>> found = pair_retrieval(torch.eye(4), torch.eye(4)[[1, 0, 2, 3]])  # two of four have changed places
        >>> found["recall1"], found["recall5"], found["matching_accuracy"]
        (0.5, 1.0, 0.5)
    """
    ids = torch.arange(len(z_a)) if labels is None else labels.cpu()
    rows = [torch.arange(len(z_a)) if same is None else _first_of_each(same) for same in items]
    (a, ids_a), (b, ids_b) = ((z[first], ids[first]) for z, first in zip((z_a, z_b), rows, strict=True))
    ways = (
        match_ranks(a, b, ids_a=ids_a, ids_b=ids_b, similarity=similarity).rank,
        match_ranks(b, a, ids_a=ids_b, ids_b=ids_a, similarity=similarity).rank,
    )
    found: dict[str, float] = {}
    for k, there in ways[0].items():
        found[f"recall{k}"] = (there + ways[1][k]) / 2
    for k, there in ways[0].items():
        found |= {f"recall{k}_first_to_second": there, f"recall{k}_second_to_first": ways[1][k]}
    return found | {"matching_accuracy": matching_accuracy(z_a, z_b, labels=labels, similarity=similarity)}


def _first_of_each(items: Tensor) -> Tensor:
    """The first row of each item, in their order."""
    return torch.from_numpy(np.sort(np.unique(items.cpu().numpy(), return_index=True)[1]))
