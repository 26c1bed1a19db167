"""Nearest neighbours, weighted or not: a check of features that needs no training."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from setwise.checks import check_count, check_number
from setwise.evaluation.inputs import check_splits
from setwise.similarity import normalize

KS = (20, 200)
# Votes are integers, of which the nearest neighbour has this many: sums of integers do not depend on their order, which
# a GPU does not keep. 2^40 is finer than float32 by far, and the sum of 2^23 neighbours still fits.
ONE_VOTE = 2.0**40
STEP = 2.0**-40  # to which similarities are rounded where each neighbour has one vote


@torch.no_grad()
def knn_accuracy(
    train_x: Tensor,
    train_y: Tensor,
    test_x: Tensor,
    test_y: Tensor,
    *,
    classes: int,
    k: int | Sequence[int] | None = None,
    temperature: float | None = 0.1,
    chunk: int = 1024,
) -> dict[int, float]:
    """Share of test samples that their k nearest training samples classify correctly, in [0, 1], for each k.

        class of z  =  argmax_c  sum over the k nearest x_i with y_i = c of exp(cos(z, x_i) / temperature)

    Wu et al. 2018, section 3.4, with the k and the temperature of today's libraries. Features are [N, F] and [M, F],
    labels int64. ``k`` is at most N; None is 20 and 200, less those above N, and the result is empty where both are.
    A zero vector has similarity 0 to all.

    With ``temperature`` None every neighbour has one vote: scikit-learn's KNeighborsClassifier(k, metric="cosine").

    Neighbours equally near are taken in the order of the training samples. Of classes with equal votes the first wins.
    Similarities are computed in float64 and rounded, to float32 or, where each neighbour has one vote, to 2^-40: so
    copies of a sample are equally near wherever they stand, and ``chunk``, the number of test samples at a time, does
    not matter.
    """
    check_splits(train_x, train_y, test_x, test_y, classes)
    if temperature is not None:
        check_number(temperature, "temperature", above=0)
    check_count(chunk, "chunk")
    if k is None:
        k = [count for count in KS if count <= len(train_x)]
        if not k:
            return {}
    k = (k,) if isinstance(k, (int, np.integer)) else k
    if not k:
        raise ValueError("expected at least one k, got none")
    for count in k:
        check_count(count, "k")
    if max(k) > len(train_x):
        raise ValueError(
            f"expected k of at most {len(train_x)}, the number of training samples, got {max(k)}; "
            "give a smaller k, or more samples"
        )
    train = normalize(train_x.double())
    right = dict.fromkeys(k, 0)
    for x, y in zip(torch.split(test_x, int(chunk)), torch.split(test_y, int(chunk)), strict=True):
        similarity = normalize(x.double()) @ train.mT
        similarity = similarity.div_(STEP).round_() if temperature is None else similarity.float()
        near, index = _nearest(similarity, max(k))
        labels = train_y[index]
        if temperature is None:
            weights = torch.ones_like(labels)
        else:  # relative to the nearest one, which changes no decision and cannot overflow
            weights = ((near.double() - near[:, :1]) / temperature).exp().mul_(ONE_VOTE).round_().long()
        for count in right:
            votes = weights.new_zeros(len(x), classes).scatter_add_(1, labels[:, :count], weights[:, :count])
            right[count] += int((votes.argmax(1) == y).sum())
    return {count: hits / len(test_x) for count, hits in right.items()}


def _nearest(similarity: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest entries of each row and their columns [B, k], largest first, equal ones by column."""
    values, index = similarity.topk(k, dim=1)
    # topk may take any of the entries that equal its last one, and puts equal ones in any order.
    cut = (similarity >= values[:, -1:]).sum(1) > k
    if cut.any():
        index[cut] = similarity[cut].sort(dim=1, descending=True, stable=True).indices[:, :k]
    index = index.sort(dim=1).values
    values, order = similarity.gather(1, index).sort(dim=1, descending=True, stable=True)
    return values, index.gather(1, order)
