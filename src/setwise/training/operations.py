"""How many floating-point operations a run takes: what its network computes, whatever the device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from setwise.data import ImageSet
from setwise.methods import Batch, Method
from setwise.recipe import Recipe
from setwise.training.engine import untrained
from setwise.training.schedule import batch_sizes, view_start

ROWS = 2  # images of the step that is counted


def training_operations(recipe: Recipe, data: ImageSet) -> float:
    """Operations of all steps of a run: products of matrices and convolutions, forwards and backwards.

    A multiplication and an addition are two. One step of a few images is taken on the CPU for each size of the views
    and each phase of the method, so all views count, and what a method computes beside them. Views, norms and
    eigenvalues are not counted, nor do the comparisons of a loss grow with the batch: they are less than 0.1 % of a
    ResNet's step.
    """
    method = untrained(recipe, data, seed=0)
    images: Counter[tuple[Hashable, float]] = Counter()
    sizes = batch_sizes(len(data), recipe.batch, drop_last=recipe.drop_last)
    total = recipe.epochs * len(sizes)
    for done in range(total):
        images[method.phase(done, total), view_start(recipe, done, total)] += sizes[done % len(sizes)]
    return sum(count * _of_an_image(method, data, *kind) for kind, count in images.items())


def _of_an_image(method: Method, data: ImageSet, phase: Hashable, since: float) -> float:
    """Operations for one image in a step of this kind."""
    rows = torch.arange(min(ROWS, len(data)))
    number = torch.zeros((), dtype=torch.int64)
    batch = Batch(data.read(rows), rows, data.labels[rows].cpu(), number, number, phase=phase, since=since)
    count = FlopCounterMode(display=False)
    with count, sdpa_kernel(SDPBackend.MATH):  # attention as matrix products, which are counted
        method(batch)["loss"].backward()
    return count.get_total_flops() / len(rows)
