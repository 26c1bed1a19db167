"""Nearest neighbours, near-duplicates and outliers among embeddings: exact, by products of blocks of rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from setwise.similarity import normalize

BLOCK = 2**26  # cosines in memory at a time, 256 MiB
KEPT = 100_000  # pairs of near-duplicates, the nearest of all


@dataclass(frozen=True)
class Neighbourhood:
    """What lies near each of N embeddings.

    ``index`` and ``cosine`` [N, k] are its nearest others, nearest first. ``pairs`` [P, 2] are the near-duplicates with
    their ``pair_cosine`` [P], nearest first, ``count`` in all: P is smaller if there are too many.
    """

    index: Tensor
    cosine: Tensor
    pairs: Tensor
    pair_cosine: Tensor
    count: int

    @property
    def distance(self) -> Tensor:
        """Mean cosine distance to the k nearest others, [N]: large for outliers."""
        return 1 - self.cosine.mean(1)

    def groups(self) -> list[dict[int, float]]:
        """Near-duplicates together, the nearest first: rows with their cosines to the first row of the group.

        Pairs are taken from the nearest on. A row joins the group whose first row it is a near-duplicate of, and no
        other. So no chain of small differences joins images that differ much.
        """
        group_of: dict[int, dict[int, float]] = {}
        groups = []
        for (a, b), cosine in zip(self.pairs.tolist(), self.pair_cosine.tolist(), strict=True):
            if a not in group_of and b not in group_of:
                group_of[a] = group_of[b] = {a: 1.0, b: cosine}
                groups.append(group_of[a])
            for first, other in ((a, b), (b, a)):
                if other not in group_of and next(iter(group_of[first])) == first:
                    group_of[first][other] = cosine
                    group_of[other] = group_of[first]
        return groups


@torch.no_grad()
def nearest(queries: Tensor, embeddings: Tensor, *, k: int) -> tuple[Tensor, Tensor]:
    """Cosines and rows [Q, k] of the embeddings that are nearest to each query."""
    cosine = normalize(queries.float()) @ normalize(embeddings.float()).mT
    found = cosine.topk(min(k, len(embeddings)), dim=1)
    return found.values, found.indices


@torch.no_grad()
def neighbourhood(embeddings: Tensor, *, k: int = 10, threshold: float = 0.99) -> Neighbourhood:
    """The k nearest others of each row, and all pairs whose cosine is at least ``threshold``.

    Every two rows are compared. Memory beside the embeddings is ``BLOCK`` cosines and ``KEPT`` pairs.
    """
    x = normalize(embeddings.float())
    n = len(x)
    k = min(k, n - 1)
    index = torch.zeros(n, max(k, 0), dtype=torch.int64)
    cosine = torch.zeros(n, max(k, 0))
    pairs, values, count = torch.zeros(0, 2, dtype=torch.int64), torch.zeros(0), 0
    for start in range(0, n if k > 0 else 0, step := max(1, min(1024, BLOCK // n))):
        block = x[start : start + step] @ x.mT
        block.diagonal(start).fill_(-2.0)  # not its own neighbour
        near, place = block.topk(k, dim=1)
        index[start : start + step], cosine[start : start + step] = place.cpu(), near.cpu()
        # The k nearest hold all near-duplicates of a row, unless the last of them is one too.
        full = near[:, -1] >= threshold
        row, column = (near >= threshold).logical_and(~full[:, None]).nonzero(as_tuple=True)
        found = [torch.stack([row, place[row, column]], 1)]
        rest = full.nonzero().flatten()
        if len(rest):
            row, column = (block[rest] >= threshold).nonzero(as_tuple=True)
            found.append(torch.stack([rest[row], column], 1))
        both = torch.cat(found)
        both = both[both[:, 0] + start < both[:, 1]]  # each pair once
        count += len(both)
        values = torch.cat([values, block[both[:, 0], both[:, 1]].cpu()])
        pairs = torch.cat([pairs, (both + torch.tensor([start, 0], device=both.device)).cpu()])
        if len(pairs) > 2 * KEPT:
            keep = values.topk(KEPT).indices
            values, pairs = values[keep], pairs[keep]
    order = values.argsort(descending=True, stable=True)[:KEPT]
    return Neighbourhood(index, cosine, pairs[order], values[order], count)
