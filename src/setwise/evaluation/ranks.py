"""How near the true partners of queries are, by the protocol of re-identification: CMC and mAP.

Costs are minus the scores of ``setwise.similarity``, in float64 on the CPU. A column that is as near as the true one
counts as nearer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from setwise.checks import check_floating, check_matrix, check_same_kind
from setwise.similarity import Similarity, check_similarity, scores

Array: TypeAlias = Tensor | NDArray[Any]
Names: TypeAlias = Array | Sequence[int] | Sequence[str]  # one identity or camera a row
Known: TypeAlias = float | Any  # None where the truth is not known; as typeshed has it, users need not ask each time
Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]

RANKS = (1, 5, 10)  # what re-identification papers report
ROUNDING = 1e-12  # costs closer than this share of the largest are equal: products of equal rows differ in last digits
BLOCK = 2**22  # costs at a time where all are not needed: 32 MiB


@dataclass(frozen=True)
class Ranks:
    """How near the true partners of the queries are: ``rank``, ``mean_average_precision``, ``queries``.

    They are those of :class:`Matching`; the first two are None without queries.
    """

    rank: dict[int, float] | Any
    mean_average_precision: Known
    queries: int


def match_ranks(
    z_a: Array,
    z_b: Array,
    *,
    ids_a: Names | None = None,
    ids_b: Names | None = None,
    cameras_a: Names | None = None,
    cameras_b: Names | None = None,
    similarity: Similarity = "euclidean",
) -> Ranks:
    """The ranks that :func:`match` gives, without an assignment, for sets of any size.

    Costs are computed by blocks of rows and not kept: N = M = 20,000, E = 128 takes 50 s on one core and 0.25 GB.

    Examples:
        >>> from setwise.evaluation import match_ranks
        >>> gallery = torch.tensor([[0.1], [0.9], [5.0]])
        >>> match_ranks(torch.tensor([[0.0], [1.0]]), gallery, ids_a=["ann", "bob"], ids_b=["ann", "dan", "bob"])
        Ranks(rank={1: 0.5, 5: 1.0, 10: 1.0}, mean_average_precision=0.6666666666666666, queries=2)
    """
    x, y = on_cpu(z_a, z_b, similarity)
    truth = known_truth(len(x), len(y), ids_a, ids_b, cameras_a, cameras_b)
    if truth is None:
        raise ValueError(
            f"expected ids_a and ids_b for sets of unequal size, got {len(x)} and {len(y)} rows and no ids"
        )
    largest = 1.0
    if similarity != "cosine":  # the largest distance, or a little more
        largest = sum(float((z - y.mean(0)).norm(dim=1).max()) for z in (x, y))
        largest = largest**2 if similarity == "sqeuclidean" else largest
    costs = ((rows, -scores(x[rows], y, similarity=similarity).numpy()) for rows in blocks_of_rows(len(x), len(y)))
    ranked = rank_rows(costs, truth, ROUNDING * largest)
    return Ranks(ranked.curve(), ranked.mean(), ranked.queries())


class Truth(NamedTuple):
    """Identity and camera of each row and column, numbered from 0; cameras are None if they do not matter."""

    a: Ints
    b: Ints
    cameras: tuple[Ints, Ints] | None = None

    def left_out(self, rows: slice) -> Bools | None:
        """The pairs [rows, M] of one identity in one camera; None without cameras."""
        if self.cameras is None:
            return None
        out: Bools = (self.a[rows, None] == self.b) & (self.cameras[0][rows, None] == self.cameras[1])
        return out

    def same(self, p: Ints) -> Bools:
        """Which rows [N] have a true partner in the column that ``p`` gives them; no pair of ``p`` is left out."""
        same: Bools = (p >= 0) & (self.a == self.b[p])
        return same

    def have_partner(self) -> Bools:
        """Which rows [N] have a true partner in some column."""
        found = np.zeros(len(self.a), dtype=bool)
        for rows in blocks_of_rows(len(self.a), len(self.b)):
            true = self.a[rows, None] == self.b
            out = self.left_out(rows)
            found[rows] = (true if out is None else true & ~out).any(1)
        return found

    def most_pairs(self) -> int:
        """The most true pairs that a one-to-one assignment can have.

        Of one identity, rows and columns that have no pair among them are all rows, all columns, or all of one camera.
        What remains beside the largest such group is the answer (König 1931).
        """
        size = int(max(self.a.max(), self.b.max())) + 1
        in_a, in_b = np.bincount(self.a, minlength=size), np.bincount(self.b, minlength=size)
        largest = np.maximum(in_a, in_b)
        if self.cameras is not None:
            cameras = np.concatenate(self.cameras)
            groups = np.concatenate((self.a, self.b)) * (cameras.max() + 1) + cameras
            group, count = np.unique(groups, return_counts=True)
            np.maximum.at(largest, group // (cameras.max() + 1), count)
        return int((in_a + in_b - largest).sum())


class Ranked(NamedTuple):
    """The place of each row's nearest true partner [N], 0 for none, and its average precision."""

    first: Ints
    precision: Floats

    def queries(self) -> int:
        return int((self.first > 0).sum())

    def curve(self) -> dict[int, float] | None:
        first = self.first[self.first > 0]
        return {k: float((first <= k).mean()) for k in RANKS} if len(first) else None

    def mean(self) -> float | None:
        return float(self.precision[self.first > 0].mean()) if self.queries() else None


def rank_rows(blocks: Iterator[tuple[slice, Floats]], truth: Truth, equal: float) -> Ranked:
    """Ranks of the rows, whose costs come in ``blocks`` and are overwritten; costs within ``equal`` are equal.

    Precision at a true partner counts all columns that are as near, as scikit-learn's average precision does.
    """
    first, precision = np.zeros(len(truth.a), dtype=np.int64), np.zeros(len(truth.a))
    for rows, costs in blocks:
        true = truth.a[rows, None] == truth.b
        kept = np.full(len(costs), costs.shape[1])
        if (out := truth.left_out(rows)) is not None:
            true &= ~out
            kept -= out.sum(1)
            costs[out] = np.inf
        partners = [np.sort(row[which]) for row, which in zip(costs, true, strict=True)]
        costs.sort(1)
        for i, (row, own, most) in enumerate(zip(costs, partners, kept, strict=True), rows.start):
            if len(own):
                nearer = np.minimum(row.searchsorted(own + equal, "right"), most)
                right = own.searchsorted(own + equal, "right")
                first[i] = nearer[0] - right[0] + 1
                precision[i] = (right / nearer).mean()
    return Ranked(first, precision)


def blocks_of_rows(n: int, m: int) -> Iterator[slice]:
    """Slices of N rows of M costs, each of at most ``BLOCK`` costs or one row."""
    step = max(1, BLOCK // m)
    return (slice(i, min(i + step, n)) for i in range(0, n, step))


def known_truth(
    n: int, m: int, ids_a: Names | None, ids_b: Names | None, cameras_a: Names | None, cameras_b: Names | None
) -> Truth | None:
    """What is known: the identities given, or that row i of both is the same item; None if nothing is."""
    for a, b, what in ((ids_a, ids_b, "ids"), (cameras_a, cameras_b, "cameras")):
        if (a is None) != (b is None):
            missing = f"{what}_a" if a is None else f"{what}_b"
            raise ValueError(f"expected {what}_a and {what}_b together, got no {missing}; give both or neither")
    if ids_a is None or ids_b is None:
        if cameras_a is not None:
            raise ValueError("expected ids_a and ids_b with cameras, got none; without them no pair is left out")
        return Truth(np.arange(n), np.arange(n)) if n == m else None
    ids = numbered(ids_a, ids_b, n, m, "ids")
    if cameras_a is None or cameras_b is None:
        return Truth(*ids)
    return Truth(*ids, numbered(cameras_a, cameras_b, n, m, "cameras"))


def numbered(a: Names, b: Names, n: int, m: int, what: str) -> tuple[Ints, Ints]:
    """Numbers from 0 in place of two lists of names, equal where these are."""
    both = []
    for values, length, name in ((a, n, f"{what}_a"), (b, m, f"{what}_b")):
        names = np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values)
        if names.shape != (length,) or names.dtype.kind not in "iuU":
            got = f"{names.dtype} of shape {names.shape}"
            raise ValueError(f"expected {name} to be {length} integers or strings, one a row, got {got}")
        both.append(names)
    if (both[0].dtype.kind == "U") != (both[1].dtype.kind == "U"):
        raise ValueError(f"expected {what}_a and {what}_b of one kind, got {both[0].dtype} and {both[1].dtype}")
    numbers = np.unique(np.concatenate(both), return_inverse=True)[1].astype(np.int64)
    return numbers[:n], numbers[n:]


def on_cpu(z_a: Array, z_b: Array, similarity: Similarity) -> tuple[Tensor, Tensor]:
    moved = []
    given = [_tensor(z, name) for z, name in ((z_a, "z_a"), (z_b, "z_b"))]
    for z, name in zip(given, ("z_a", "z_b"), strict=True):
        check_matrix(z, name)
        if z.ndim != 2:
            raise ValueError(f"expected {name} of shape (N, E), one row an item, got {tuple(z.shape)}")
    if given[1].shape[1] != given[0].shape[1]:
        raise ValueError(f"expected z_b of shape (M, {given[0].shape[1]}) like z_a, got {tuple(given[1].shape)}")
    check_same_kind(given[1], "z_b", given[0], "z_a")
    check_similarity(similarity)
    for z, name in zip(given, ("z_a", "z_b"), strict=True):
        moved.append(z.detach().to("cpu", torch.float64))
        check_floating(moved[-1], name)  # the values of an accelerator's tensor have not been looked at yet
    return moved[0], moved[1]


def _tensor(z: Array, name: str) -> Tensor:
    if not isinstance(z, np.ndarray):
        return z
    if z.dtype not in (np.float16, np.float32, np.float64):
        raise ValueError(f"expected {name} of float16, float32 or float64, got {z.dtype}; use .astype(float)")
    return torch.from_numpy(z.copy())  # torch takes no reversed array, and warns of one that cannot be written to
