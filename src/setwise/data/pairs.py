"""Pairs of any kind: two sides, and row i of both belongs together.

A side is token ids, feature vectors or images; ``Side`` says which. A source of pairs is registered like any other,
with ``takes=("pairs",)``, and gives a ``PairSet``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from setwise.data.api import DataError, ImageSet, MatchedSet

Kind = Literal["ids", "features", "images"]
KINDS: dict[torch.dtype, Kind] = {torch.int32: "ids", torch.float32: "features", torch.uint8: "images"}
PADDING = 0  # the id behind the end of a text


@dataclass(frozen=True, eq=False, repr=False)
class Side:
    """One side of N pairs. The type of ``values`` says what it is made of.

    Token ids are int32 [N, L], from 1 to ``vocabulary`` - 1, with zeros behind the end of a text. Feature vectors are
    float32 [N, D]. Images are uint8 [N, C, H, W], normalised by ``mean`` and ``std`` as those of an ``ImageSet``.
    An item of several pairs is stored once: with ``rows``, int64 [N], item i is ``values[rows[i]]``.
    """

    values: Tensor
    vocabulary: int = 0
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.25, 0.25, 0.25)
    rows: Tensor | None = None

    def __post_init__(self) -> None:
        """Raise unless the values are one of the three kinds, and the rows are theirs."""
        x = self.values
        if x.dtype not in KINDS or x.ndim != (4 if x.dtype == torch.uint8 else 2):
            raise DataError(
                "expected a side of pairs as ids int32 (N, L), features float32 (N, D) or images uint8 (N, C, H, W), "
                f"got {x.dtype} {tuple(x.shape)}"
            )
        if self.kind == "ids" and x.numel():
            low, high = int(x.min()), int(x.max())
            if low < PADDING or high >= self.vocabulary:
                raise DataError(f"expected ids from 0 to {self.vocabulary - 1}, got {low} to {high}")
        if self.kind == "features" and not bool(x.isfinite().all()):
            raise DataError("expected finite features, got NaN or infinite ones")
        if self.rows is not None:
            _check_numbers(self.rows, "rows", len(self.rows))
            if len(self.rows) and not 0 <= int(self.rows.min()) <= int(self.rows.max()) < len(x):
                raise DataError(f"expected rows from 0 to {len(x) - 1}, got others")

    def __len__(self) -> int:
        """Number of items."""
        return len(self.values if self.rows is None else self.rows)

    def take(self, items: Tensor) -> Tensor:
        """The values of these items, int64 [n]."""
        return self.values[items if self.rows is None else self.rows[items]]

    def select(self, items: Tensor) -> Side:
        """These items alone, and no values but theirs."""
        if self.rows is None:
            return replace(self, values=self.values[items])
        used, rows = torch.unique(self.rows[items], return_inverse=True)
        return replace(self, values=self.values[used], rows=rows)

    def to(self, device: torch.device) -> Side:
        """The same on the device."""
        return replace(self, values=self.values.to(device), rows=_moved(self.rows, device))

    @property
    def kind(self) -> Kind:
        """What it is made of: "ids", "features" or "images"."""
        return KINDS[self.values.dtype]

    @property
    def width(self) -> int:
        """What an encoder calls ``channels``: size of the vocabulary, length of the vectors, channels of the images."""
        return self.vocabulary if self.kind == "ids" else self.values.shape[1]

    @property
    def shape(self) -> list[int]:
        """What a network has to know of an item: [vocabulary], [D] or [C, H, W]."""
        return [self.width, *self.values.shape[2:]]

    def __repr__(self) -> str:
        """The kind and the sizes."""
        return f"{self.kind} {'x'.join(map(str, self.values.shape))}"


@dataclass(frozen=True, eq=False, repr=False)
class PairSet:
    """N pairs of one split: item i of ``first`` and item i of ``second`` belong together.

    ``labels``, int64 [N], say what else belongs together: every two items of pairs with one label. They are the numbers
    of the images, say, where an image has several captions. Losses that take labels know it, a part that is held out
    has all pairs of a label or none, and recall counts any of them.

    ``sets``, int64 [N], say that less is known: which items of one set belong together is not. Batches have whole sets,
    and the loss knows the sets alone. ``shuffled`` hides the pairs.

    Examples:
        >>> questions, answers = torch.randn(2, 100, 16).unbind()
        >>> sw.data.PairSet("faq", "train", sw.data.Side(questions), sw.data.Side(answers))
        PairSet('faq', split='train', first=features 100x16, second=features 100x16)
    """

    name: str
    split: str
    first: Side
    second: Side
    notes: tuple[str, ...] = ()  # for people: how they were read
    labels: Tensor | None = None
    sets: Tensor | None = None

    def __post_init__(self) -> None:
        """Raise unless both sides have the same number of items, and a label each if any."""
        if len(self.first) != len(self.second):
            raise DataError(
                f"expected as many rows on both sides, since row i of both belongs together, got "
                f"{len(self.first)} and {len(self.second)}"
            )
        if self.labels is not None:
            _check_numbers(self.labels, "labels", len(self))
        if self.sets is not None:
            _check_numbers(self.sets, "sets", len(self))
            if self.labels is not None:
                raise DataError("expected labels or sets of pairs, got both; leave one out")

    def __len__(self) -> int:
        """Number of pairs."""
        return len(self.first)

    def __repr__(self) -> str:
        """Name, split and sizes, not the values."""
        return f"PairSet({self.name!r}, split={self.split!r}, first={self.first}, second={self.second})"

    def select(self, rows: Tensor, *, split: str) -> PairSet:
        """The pairs ``rows`` (int64 [n]) alone."""
        labels, sets = (None if x is None else x[rows] for x in (self.labels, self.sets))
        first, second = self.first.select(rows), self.second.select(rows)
        return replace(self, split=split, first=first, second=second, labels=labels, sets=sets)

    def shuffled(self, *, seed: int) -> PairSet:
        """The same sets, with the second side of each in a random order: what is no more known than its set."""
        if self.sets is None:
            raise ValueError("expected pairs with sets to shuffle inside of, got none")
        drawn = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed), device="cpu")
        sets, rows = self.sets.cpu(), torch.empty_like(drawn)
        rows[sets.argsort(stable=True)] = drawn[sets[drawn].argsort(stable=True)]
        return replace(self, second=self.second.select(rows))

    def to(self, device: torch.device) -> PairSet:
        """The same on the device."""
        first, second = self.first.to(device), self.second.to(device)
        labels, sets = _moved(self.labels, device), _moved(self.sets, device)
        return replace(self, first=first, second=second, labels=labels, sets=sets)


def _moved(x: Tensor | None, device: torch.device) -> Tensor | None:
    return None if x is None else x.to(device)


def _check_numbers(x: Tensor, name: str, count: int) -> None:
    if x.dtype != torch.int64 or x.shape != (count,):
        raise DataError(f"expected {name} int64 ({count},), one for each pair, got {x.dtype} {tuple(x.shape)}")


TrainingSet = ImageSet | MatchedSet | PairSet
