"""Batches made of whole sets: their sizes, and the order of the rows in an epoch."""

from __future__ import annotations

import torch
from torch import Tensor

from setwise.checks import see
from setwise.training.schedule import epoch_order


class WholeSets:
    """The batches of rows that come in sets; no set is divided.

    The sets, in a random order, fill one batch after the other: so many places for sets of such sizes. These are the
    same in all epochs. An epoch draws which set takes which place of its size. A last set that has a batch to itself is
    left out, since rows of other sets are the negatives.
    """

    def __init__(self, sets: Tensor, batch: int, *, drop_last: bool, processes: int = 1) -> None:
        """``sets`` int64 [N]: the set of each row. ``drop_last`` leaves out a last batch that has room for any set."""
        _, self._set, self._counts = torch.unique(sets.cpu(), return_inverse=True, return_counts=True)
        largest = int(self._counts.max())
        if len(self._counts) < 2:
            raise ValueError(
                f"expected at least two whole sets in a batch, since rows of other sets are the negatives, got one set "
                f"to train on; add others, {see('how-to/your-pairs#sets')}"
            )
        if 2 * largest > batch:
            raise ValueError(
                f"expected at least two whole sets in a batch, since rows of other sets are the negatives, got "
                f"{len(self._counts)} sets of up to {largest} rows and a batch of {batch}; give a --batch of "
                f"{2 * largest} or more, or smaller sets, {see('how-to/your-pairs#sets')}"
            )
        self._places = epoch_order(len(self._counts), seed=0, epoch=0)  # the set of each place, in the first draw
        self.sizes: list[int] = []
        held = 0  # sets in the last batch
        for rows in self._counts[self._places].tolist():
            if not self.sizes or self.sizes[-1] + rows > batch:
                self.sizes.append(0)
                held = 0
            self.sizes[-1] += rows
            held += 1
        if len(self.sizes) > 1 and (held == 1 or (drop_last and self.sizes[-1] + largest <= batch)):
            self.sizes.pop()
        for rows in self.sizes:
            if rows % processes:
                raise ValueError(
                    f"expected batches of whole sets that {processes} processes can share equally, got one of {rows} "
                    "rows; give sets of equal sizes, or train with one process, " + see("how-to/many-gpus#equal-parts")
                )

    def order(self, *, seed: int, epoch: int) -> Tensor:
        """The rows of the first batch, then of the next; then those that are left out. Int64 [N], on the CPU."""
        drawn = epoch_order(len(self._counts), seed=seed, epoch=epoch)
        place, size_of_place = torch.empty_like(drawn), self._counts[self._places]
        for rows in torch.unique(self._counts):
            place[drawn[self._counts[drawn] == rows]] = (size_of_place == rows).nonzero().flatten()
        return place[self._set].argsort(stable=True)
