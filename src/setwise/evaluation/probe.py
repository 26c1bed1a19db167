"""The paper's linear probe: how well a linear classifier does on frozen features."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from setwise.checks import check_count, check_number
from setwise.evaluation.inputs import check_splits
from setwise.training.optimizers import Adam
from setwise.training.schedule import epoch_order

MAX_SEED = 2**63  # as for views


@dataclass(frozen=True)
class ProbeResult:
    """What a probe measured; one entry an epoch in each curve.

    ``train_loss`` and ``train_accuracy`` are means over the epoch's samples, each before the step that it is part
    of; ``test_accuracy`` is after the epoch, and ``accuracy`` its last entry, not its best.
    """

    accuracy: float
    train_loss: tuple[float, ...]
    train_accuracy: tuple[float, ...]
    test_accuracy: tuple[float, ...]
    seconds: float


def linear_probe(
    train_x: Tensor,
    train_y: Tensor,
    test_x: Tensor,
    test_y: Tensor,
    *,
    classes: int,
    epochs: int = 100,
    batch: int = 128,
    lr: float = 1e-3,
    seed: int,
) -> ProbeResult:
    """Test accuracy of one linear layer after the last epoch of Adam on cross-entropy, the paper's protocol.

    Features are [N, F] and [M, F], float32 or float64, labels int64. Computing them once is the same as running the
    encoder in every step: it is frozen, in eval mode, and its images are not augmented.

    Every epoch takes all samples in a new order, drawn from (seed, epoch), the last partial batch included. On a GPU
    an epoch is one captured graph. On the CPU the same seed gives the same bits.
    """
    check_splits(train_x, train_y, test_x, test_y, classes)
    for name, value in (("epochs", epochs), ("batch", batch)):
        check_count(value, name)
    check_number(lr, "lr", above=0)
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < MAX_SEED:
        raise ValueError(f"expected seed to be an integer from 0 to 2^63 - 1, got {seed!r}")
    began = time.perf_counter()
    first = initial_weights(train_x.shape[1], classes, seed=seed).to(train_x)
    with torch.cuda.device(train_x.get_device()):  # -1 for the CPU, and nothing happens
        fit = _Regression(train_x, train_y, test_x, test_y, first, batch=batch, lr=lr)
        run = _captured(fit) if train_x.is_cuda else fit.epoch
        history = torch.zeros(epochs, 3, dtype=torch.float64, device=train_x.device)
        for epoch in range(epochs):
            order = epoch_order(len(train_x), seed=seed, epoch=epoch)
            # From pinned memory the copy is queued like the epochs themselves, and nothing waits until the end.
            fit.order.copy_(order.pin_memory() if train_x.is_cuda else order, non_blocking=True)
            run()
            history[epoch] = fit.sums
        loss, train_hits, test_hits = history.T.tolist()
    if not all(map(math.isfinite, loss)):
        raise ValueError(
            f"expected a finite loss, got {loss[-1]} after {epochs} epochs; features of up to "
            f"{float(train_x.abs().max()):.3g} are too large for a probe at lr {lr:g}"
        )
    test_accuracy = tuple(hits / len(test_x) for hits in test_hits)
    return ProbeResult(
        accuracy=test_accuracy[-1],
        train_loss=tuple(total / len(train_x) for total in loss),
        train_accuracy=tuple(hits / len(train_x) for hits in train_hits),
        test_accuracy=test_accuracy,
        seconds=time.perf_counter() - began,
    )


def initial_weights(features: int, classes: int, *, seed: int) -> Tensor:
    """Weights and, in the last column, bias [classes, features + 1], float64, distributed as nn.Linear's."""
    # A key of its own: the weights share no random numbers with an epoch's order.
    word = int(np.random.SeedSequence(seed, spawn_key=(0,)).generate_state(1)[0])
    bound = 1 / math.sqrt(features)
    generator = torch.Generator().manual_seed(word)
    return torch.empty(classes, features + 1, dtype=torch.float64, device="cpu").uniform_(
        -bound, bound, generator=generator
    )


class _Regression:
    """Softmax regression in memory that never moves, so that an epoch can be captured: ``order`` in, ``sums`` out.

    The bias is the weight of a constant feature. A step is six small operations. Samples are sorted before an epoch's
    steps, all at once, and the loss is computed after them.
    """

    def __init__(
        self,
        train_x: Tensor,
        train_y: Tensor,
        test_x: Tensor,
        test_y: Tensor,
        first: Tensor,
        *,
        batch: int,
        lr: float,
    ) -> None:
        n, classes = len(train_x), len(first)
        self.x, self.test_x = (torch.cat([x, x.new_ones(len(x), 1)], 1).detach() for x in (train_x, test_x))
        self.y, self.test_y, self.batch, self.first = train_y, test_y, batch, first
        self.order = torch.arange(n, device=train_x.device)
        self.sums = torch.zeros(3, dtype=torch.float64, device=train_x.device)  # loss, train hits, test hits
        self.eye = torch.eye(classes, dtype=train_x.dtype, device=train_x.device)
        self.sorted_x = torch.empty_like(self.x)
        self.targets, self.logits = train_x.new_empty(n, classes), train_x.new_empty(n, classes)
        self.weight = first.clone()
        self.weight.grad = torch.zeros_like(first)
        self.optimizer = Adam([self.weight], lr, fused=True, capturable=first.is_cuda)

    @torch.no_grad()
    def epoch(self) -> None:
        """All steps of an epoch over the samples in ``order``; then its sums."""
        y = self.y[self.order]
        torch.index_select(self.x, 0, self.order, out=self.sorted_x)
        torch.index_select(self.eye, 0, y, out=self.targets)
        parts = (torch.split(part, int(self.batch)) for part in (self.sorted_x, self.targets, self.logits))
        for x, targets, logits in zip(*parts, strict=True):
            # With p = softmax(x W^T), the gradient of the mean cross-entropy is (p - targets)^T x / B.
            torch.mm(x, self.weight.mT, out=logits)
            errors = logits.softmax(1).sub_(targets)
            torch.addmm(self.weight, errors.mT, x, beta=0, alpha=1 / len(x), out=self.weight.grad)
            self.optimizer.step()
        self.sums[0] = cross_entropy(self.logits, y, reduction="sum")
        self.sums[1] = (self.logits.argmax(1) == y).sum()
        self.sums[2] = ((self.test_x @ self.weight.mT).argmax(1) == self.test_y).sum()

    @torch.no_grad()
    def restart(self) -> None:
        """Back to the first weights and an Adam that has seen nothing, in the same memory."""
        self.weight.copy_(self.first)
        for x in self.optimizer.state[self.weight].values():
            x.zero_()


def _captured(fit: _Regression) -> Callable[[], None]:
    """An epoch as one CUDA graph, at the beginning again after the capture's trial runs."""
    from setwise.training.capture import captured

    with warnings.catch_warnings():
        # The trial runs are steps of a capturable optimiser outside of a capture, as they have to be.
        warnings.filterwarnings("ignore", "This instance was constructed with capturable=True", UserWarning)
        run = captured(fit.epoch)
    fit.restart()
    return run
