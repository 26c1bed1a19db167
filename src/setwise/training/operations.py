"""How many floating-point operations a run takes: what its network computes, whatever the device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from contextlib import suppress

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import setwise.register as register
from setwise.data import ImageSet
from setwise.methods import Batch, Method
from setwise.recipe import Recipe
from setwise.training.engine import untrained
from setwise.training.schedule import batch_sizes, view_start

ROWS = 2  # images of the step that is counted


def training_operations(recipe: Recipe, data: ImageSet) -> float:
    """Operations of all steps of a run: products of matrices and convolutions, forwards and backwards.

    A multiplication and an addition are two. One step of a few images is taken on the CPU for each size of the views
    and each phase of the method, so all views count, and what a method computes beside them, and the optimiser's
    products. Views, norms and eigenvalues are not counted, nor do the comparisons of a loss grow with the batch: they
    are less than 0.1 % of a ResNet's step.
    """
    method = untrained(recipe, data, seed=0)
    images: Counter[tuple[Hashable, float]] = Counter()
    sizes = batch_sizes(len(data), recipe.batch, drop_last=recipe.drop_last)
    total = recipe.epochs * len(sizes)
    for done in range(total):
        images[method.phase(done, total), view_start(recipe, done, total)] += sizes[done % len(sizes)]
    of_steps = total * _of_the_optimizer(recipe, method)
    return of_steps + sum(count * _of_an_image(method, data, *kind) for kind, count in images.items())


def _of_an_image(method: Method, data: ImageSet, phase: Hashable, since: float) -> float:
    """Operations for one image in a step of this kind."""
    rows = torch.arange(min(ROWS, len(data)))
    number = torch.zeros((), dtype=torch.int64)
    batch = Batch(data.read(rows), rows, data.labels[rows].cpu(), number, number, phase=phase, since=since)
    count = FlopCounterMode(display=False)
    with count, sdpa_kernel(SDPBackend.MATH):  # attention as matrix products, which are counted
        method(batch)["loss"].backward()
    return count.get_total_flops() / len(rows)


def _of_the_optimizer(recipe: Recipe, method: Method) -> float:
    """Operations of its step, by shapes alone: Muon's products of large matrices would take a CPU many seconds.

    None are counted of an optimiser that looks at values.
    """
    from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode  # which takes a while

    count = FlopCounterMode(display=False)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, suppress(DataDependentOutputException):
        groups = method.groups()
        for group in groups:
            group["params"] = [nn.Parameter(mode.from_tensor(p.detach())) for p in group["params"]]
        optimizer = register.optimizer[recipe.optimizer.name].make(groups, **recipe.optimizer.options)
        for group in groups:
            for p in group["params"]:
                p.grad = torch.zeros_like(p)
        with count:
            optimizer.step()
    return float(count.get_total_flops())
