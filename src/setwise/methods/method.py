"""What a method is: something that turns a batch into a loss."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from setwise.checks import see
from setwise.data import ImageSet
from setwise.losses.parallel import Peers
from setwise.views import Views


@dataclass(frozen=True)
class Batch:
    """Images of one step, and what their views are drawn from: all of it on the device, none of it waited for."""

    images: Tensor  # uint8 [B, C, H, W]
    samples: Tensor  # int64 [B], places in the data set
    labels: Tensor  # int64 [B]
    seed: Tensor  # int64 []
    epoch: Tensor  # int64 []
    dtype: torch.dtype = torch.float32  # of the views
    channels_last: bool = False

    def view(self, views: Views) -> Tensor:
        """One view of each image [B, C, H, W]."""
        return self._several(views, 1)

    def pair(self, views: Views) -> Tensor:
        """Two views of each image, one batch [2B, C, H, W]: first all of one, then all of the other."""
        return self._several(views, 2)

    def _several(self, views: Views, count: Literal[1, 2]) -> Tensor:
        make = views.pair if count == 2 else views
        x: Tensor = make(
            self.images,
            samples=self.samples,
            seed=self.seed,
            epoch=self.epoch,
            dtype=torch.bfloat16 if self.dtype == torch.bfloat16 else torch.float32,
            channels_last=self.channels_last,
        )
        return (x.flatten(0, 1) if count == 2 else x).to(self.dtype)


class Method(nn.Module, ABC):
    """An encoder, whatever is trained beside it, and what one step computes.

    A new method is a file with a subclass and a line in ``methods.create``; the training loop needs no change.
    A random draw may depend on (seed, epoch, sample) only, so that a resumed run is the same run; what else has to
    survive a restart is a parameter or a buffer.
    """

    encoder: nn.Module

    @abstractmethod
    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Scalars of this batch, means over it: "loss" is minimised, the others are shown."""

    def begin_epoch(self, data: ImageSet, *, seed: int, epoch: int) -> None:
        """Called before each epoch with all training images on the device; outside of any capture."""

    def share(self, peers: Peers) -> None:
        """Called once before training over many processes: make the loss that of the whole batch.

        Each process has an equal part of every batch. BatchNorm is shared already, and gradients are averaged: a loss
        that is a mean over samples is right as it is, and this method does nothing. A loss that compares samples
        becomes ``distributed``, or keeps ``peers`` and gathers in ``forward`` what it compares.
        """
        raise ValueError(
            "expected a method that says how it works over many processes, got "
            f"{type(self).__name__} without share(peers), which might compare samples of one process only; "
            f"add share, or train with one process, {see('how-to/your-method#many-processes')}"
        )
