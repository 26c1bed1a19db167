"""Alignment inside sets: which item is whose partner, where only the sets are known to belong together."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from setwise.assignment.smoothing import best_assignment
from setwise.checks import check_number, imported, see
from setwise.evaluation.costs import cheapest
from setwise.evaluation.ranks import Array, Ints, Names, numbered, on_cpu
from setwise.similarity import Similarity, scores


@dataclass(frozen=True, eq=False, repr=False)
class Alignment:
    """The partner of each of N items among M others. All tensors are on the CPU.

    ``partner``     the row of ``z_b``, or -1; a LongTensor [N]
    ``confidence``  how sure that is, from 0 to 1; float64 [N], NaN for an item without a partner
    ``alone_a``     how sure it is that an item of ``z_a`` has no partner, from 0 to 1; [N], None without a price
    ``alone_b``     the same of the items of ``z_b``; [M]
    ``sets``        how many pairs of sets there are
    """

    partner: Tensor
    confidence: Tensor
    alone_a: Tensor | Any
    alone_b: Tensor | Any
    sets: int
    _columns: int

    def __repr__(self) -> str:
        """The sizes, the pairs, and their mean confidence."""
        sure = self.confidence[self.partner >= 0]
        mean = f", mean confidence {float(sure.mean()):.3f}" if len(sure) else ""
        return f"Alignment({len(sure)} pairs of {len(self.partner)} x {self._columns} in {self.sets} sets{mean})"

    def to_dataframe(self) -> Any:
        """A pandas DataFrame, one line for each item of ``z_a``: ``partner``, ``confidence``, and ``alone`` if known.

        It needs the package pandas.
        """
        pandas = imported("pandas", "pandas", see("how-to/your-pairs#sets"))
        table = {"partner": self.partner, "confidence": self.confidence}
        if self.alone_a is not None:
            table["alone"] = self.alone_a
        return pandas.DataFrame({name: x.numpy() for name, x in table.items()})


def align(
    z_a: Array,
    z_b: Array,
    *,
    sets: tuple[Names, Names],
    similarity: Similarity = "cosine",
    temperature: float = 0.02,
    price: float | None = None,
) -> Alignment:
    r"""Match the items inside each pair of sets one to one, Eq. (2), and say how sure each match is.

        min_{Y in Pi} tr(C Y^T),    C = -scores,    for each set alone

    ``z_a`` [N, E] and ``z_b`` [M, E] are tensors, on any device, or numpy arrays. ``sets`` are two lists, of N and M
    integers or strings: the set of each row. Rows of equal sets belong together: the sentences of a document and of its
    translation, say. Of two sets the smaller is matched as a whole. A set that the other side lacks stays alone.
    ``price``, in units of the costs, is what a row without a partner costs, as in :func:`match`: then no pair that
    costs as much is made.

    A pair's confidence is its entry of the doubly stochastic matrix Y that maximises <scores / temperature, Y> plus its
    entropy: the smoothed assignment of ``AssignmentLoss(smoothing="sinkhorn")``. With a price every row and column can
    also take "none", and ``alone_a`` and ``alone_b`` are what they take of it. A row and a column by themselves take
    half of it at a score of minus the price. Without a price the rows to spare take "none" at no cost.

    Choose ``temperature`` and ``price`` where a few partners are known, so that a confidence is the share of right
    pairs. The temperature is below that of training: on Multi30k in sets of 32 to 250, encoders trained at 0.05 and 0.1
    needed 0.01 to 0.025, and confidence and share then differed by 0.02 or less (the mean over tenths of confidence). A
    softmax of each row, which does not know that a partner is taken, was off by 0.02 to 0.15 at its best temperature.
    With 30 % of all items missing and a price of -0.4 to -0.3, ``alone_a`` was 0.03 to 0.13 off the truth with two
    good encoders, and 0.27 with a weak one.

    Exact, O(n^3) for a set of n rows: 1,000 rows take 0.2 s on one core in sets of 32, 0.3 s in sets of 250.

    Examples:
        >>> english = torch.tensor([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
        >>> german = torch.tensor([[1.0, 0.1], [0.0, 2.0], [1.0, 0.9]])
        >>> found = sw.align(english, german, sets=([1, 1, 2], [1, 1, 2]))
        >>> found.partner, found
        (tensor([1, 0, 2]), Alignment(3 pairs of 3 x 3 in 2 sets, mean confidence 1.000))
    """
    z_a, z_b = on_cpu(z_a, z_b, similarity)
    check_number(temperature, "temperature", above=0)
    if price is not None:
        check_number(price, "price")
    if not isinstance(sets, (tuple, list)) or len(sets) != 2:
        raise ValueError(f"expected sets=(sets_a, sets_b), the set of each row of both, got {type(sets).__name__}")
    n, m = len(z_a), len(z_b)
    rows, columns = (_members(ids) for ids in numbered(sets[0], sets[1], n, m, "sets"))
    partner, confidence = torch.full((n,), -1), torch.full((n,), math.nan, dtype=torch.float64)
    alone_a, alone_b = (torch.ones(k, dtype=torch.float64) for k in (n, m))
    both = sorted(rows.keys() & columns.keys())
    for one in both:
        here, there = rows[one], columns[one]
        s = scores(z_a[here], z_b[there], similarity=similarity)
        best = torch.from_numpy(cheapest(-s.numpy(), price))
        share = _shares(s / temperature, None if price is None else -price / temperature)
        found = best >= 0
        partner[here[found]] = there[best[found]]
        confidence[here[found]] = share[found, best[found]]
        alone_a[here], alone_b[there] = ((1 - share.sum(k)).clamp(0, 1) for k in (1, 0))
    known = price is not None
    return Alignment(partner, confidence, alone_a if known else None, alone_b if known else None, len(both), m)


def _shares(theta: Tensor, none: float | None) -> Tensor:
    """The part [n, m] of the smoothed assignment of a square problem, in which all that is left over takes "none"."""
    n, m = theta.shape
    size = max(n, m) if none is None else n + m
    square = theta.new_zeros(size, size)
    square[:n] = none or 0.0
    square[:n, :m] = theta
    best = best_assignment(square, smoothing="sinkhorn")
    if not best.converged:
        warnings.warn("the solver of confidences stopped at its limit; they are approximate", stacklevel=3)
    return best.argmax[:n, :m]


def _members(ids: Ints) -> dict[int, Tensor]:
    """The rows of each set."""
    order = np.argsort(ids, kind="stable")
    names, starts = np.unique(ids[order], return_index=True)
    return dict(zip(names.tolist(), map(torch.from_numpy, np.split(order, starts[1:])), strict=True))
