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
    """

    values: Tensor
    vocabulary: int = 0
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.25, 0.25, 0.25)

    def __post_init__(self) -> None:
        """Raise unless the values are one of the three kinds."""
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
    """N pairs of one split: row i of ``first`` and row i of ``second`` belong together.

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

    def __post_init__(self) -> None:
        """Raise unless both sides have the same number of rows."""
        if len(self.first.values) != len(self.second.values):
            raise DataError(
                f"expected as many rows on both sides, since row i of both belongs together, got "
                f"{len(self.first.values)} and {len(self.second.values)}"
            )

    def __len__(self) -> int:
        """Number of pairs."""
        return len(self.first.values)

    def __repr__(self) -> str:
        """Name, split and sizes, not the values."""
        return f"PairSet({self.name!r}, split={self.split!r}, first={self.first}, second={self.second})"

    def select(self, rows: Tensor, *, split: str) -> PairSet:
        """The pairs ``rows`` (int64 [n]) alone."""
        first, second = (replace(side, values=side.values[rows]) for side in (self.first, self.second))
        return replace(self, split=split, first=first, second=second)

    def to(self, device: torch.device) -> PairSet:
        """Both sides on the device."""
        first, second = (replace(side, values=side.values.to(device)) for side in (self.first, self.second))
        return replace(self, first=first, second=second)


TrainingSet = ImageSet | MatchedSet | PairSet
