r"""Entropic one-to-one assignments by Sinkhorn scaling, of many sets at once and in a fixed number of operations.

    max_Y <s, Y> + t Σ Y (1 - log Y),      Y >= 0, its rows and columns sum to 1, or at most 1 where there are too many

The argmax is Y_ij = exp((s_ij + u_i + v_j) / t). Each pass chooses u so that the sums of the rows are right, then v for
those of the columns. Of sets of unequal sizes the smaller one is assigned whole. On the larger side a sum may stay
below 1, and its u or v is at most 0. Where rows and columns may stay alone, each has one more entry for that.

The first passes have a larger t, which falls to the one that is wanted: at a small t alone they get nowhere.
A CUDA graph can hold it: nothing waits to see how far it is. ``smoothing`` has the exact maximum of a square s.
"""

from __future__ import annotations

import torch
from torch import Tensor

PASSES, LAST = 30, 10  # so many passes, the last ones at the t that is wanted


def scaled_assignments(
    s: Tensor,
    first: float | Tensor,
    wanted: float | Tensor,
    spare_rows: Tensor | None = None,
    spare_columns: Tensor | None = None,
    alone: float | None = None,
) -> tuple[Tensor, Tensor]:
    """The assignment of s [..., n, m] with exact sums of rows, and with exact sums of columns, transposed [..., m, n].

    s is -inf where a pair is forbidden. ``first``, ``wanted``: t of the first pass and of the last ones.
    ``spare_rows`` [..., n], ``spare_columns`` [..., m]: those of the larger side. ``alone``: the score of a row, and of
    a column, that stays alone. One without any pair stays empty. The sums of the other side are nearly right.
    """
    v = s.new_zeros(*s.shape[:-2], s.shape[-1])
    falling = PASSES - LAST
    for number in range(PASSES):
        t = first * (wanted / first) ** min(1, number / falling)
        u = _balance((s + v[..., None, :]) / t, spare_rows, alone, t)
        v = _balance(((s + u[..., None]) / t).mT, spare_columns, alone, t)
    by_columns = ((s + u[..., None] + v[..., None, :]) / wanted).mT.exp()
    u = _balance((s + v[..., None, :]) / wanted, spare_rows, alone, wanted)
    return ((s + u[..., None] + v[..., None, :]) / wanted).exp(), by_columns


def _balance(theta: Tensor, spare: Tensor | None, alone: float | None, t: float | Tensor) -> Tensor:
    """What to add to t · θ in each row so that the exponentials sum to 1, or at most 1 where it is to spare."""
    total = torch.logsumexp(theta, -1)
    if alone is not None:
        total = torch.logaddexp(total, alone / t + torch.zeros_like(total))
    elif spare is not None:
        total = torch.where(spare, total.clamp_min(0), total)
    return -t * total.masked_fill(total == -torch.inf, 0)
