"""How much each row is another's partner, where sets are matched one to one and the truth may doubt."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from setwise.assignment import scaling
from setwise.kernels.scale import shares_inside_sets
from setwise.losses.options import Sets, Temperature
from setwise.similarity import Similarity, prepare, prepared_scores


@torch.no_grad()
def shares_inside(
    z_a: Tensor, z_b: Tensor, sets: Sets, similarity: Similarity, temperature: Temperature
) -> tuple[Tensor, Tensor]:
    """How much each row of z_b is the partner of each row of z_a [N, M], and the other way round [M, N].

    At a price both have a last column: how much the row stays alone. ``setwise.losses.sets`` has the formulas.
    """
    x, y = prepare(z_a, z_b, similarity=similarity)
    of_a, of_b = _scaled(x, y, sets, similarity, temperature, temperature * sets.softness)
    return (of_a, of_b) if sets.price is None else (_with_rest(of_a), _with_rest(of_b))


def _scaled(
    x: Tensor, y: Tensor, sets: Sets, similarity: Similarity, first: Temperature, wanted: Temperature
) -> tuple[Tensor, Tensor]:
    """The soft assignment inside every pair of sets, [N, M] and [M, N], of prepared rows."""
    alone = None if sets.price is None else -sets.price / 2  # two that stay alone pay half of the price each
    blocks = _blocks(sets)
    if blocks is None:
        scores = prepared_scores(x, y, similarity=similarity)
        passes = (scaling.PASSES, scaling.LAST)
        found = shares_inside_sets(scores, sets.a, sets.b, first, wanted, alone, *passes)
        if found is not None:
            return found
        admissible = sets.a[:, None] == sets.b
    else:  # the pairs of sets alone
        rows, columns = blocks
        scores = prepared_scores(x[rows], y[columns], similarity=similarity)
        admissible = (rows >= 0)[:, :, None] & (columns >= 0)[:, None]
    spare_rows, spare_columns = _spare(admissible) if alone is None else (None, None)
    scores = scores.masked_fill(~admissible, -torch.inf)
    of_a, of_b = scaling.scaled_assignments(scores, first, wanted, spare_rows, spare_columns, alone)
    if blocks is None:
        return of_a, of_b
    return _placed(of_a, rows, columns, len(x), len(y)), _placed(of_b, columns, rows, len(y), len(x))


def _with_rest(shares: Tensor) -> Tensor:
    """And, in a last column, what each row lacks to 1."""
    return torch.cat([shares, (1 - shares.sum(1, keepdim=True)).clamp_min(0)], 1)


def _spare(admissible: Tensor) -> tuple[Tensor, Tensor]:
    """Which rows, and which columns, are of the larger side of their pair of sets; where ``admissible`` both are."""
    rows, columns = admissible.sum(-2), admissible.sum(-1)  # in the set of each column, of each row
    own_rows = torch.where(admissible, rows[..., None, :], 0).amax(-1)
    own_columns = torch.where(admissible, columns[..., None], 0).amax(-2)
    return own_rows > columns, own_columns > rows


def _blocks(sets: Sets) -> tuple[Tensor, Tensor] | None:
    """The rows of each pair of sets [S, K] and its columns [S, L], -1 beyond. None where nothing is won by them.

    That is on a GPU, which would have to be waited for, and where the sets are of very unequal sizes.
    """
    if sets.a.device.type != "cpu" or torch.compiler.is_compiling():
        return None
    rows, columns = members(sets.a), members(sets.b)
    both = sorted(rows.keys() & columns.keys())
    if not both:
        return None
    in_a, in_b = (pad_sequence([of[one] for one in both], True, -1) for of in (rows, columns))
    return (in_a, in_b) if in_a.numel() * in_b.shape[1] < len(sets.a) * len(sets.b) else None


def _placed(shares: Tensor, rows: Tensor, columns: Tensor, n: int, m: int) -> Tensor:
    """The shares of all blocks [S, K, L] in one matrix [N, M]."""
    place = rows[:, :, None] * m + columns[:, None]
    place = place.masked_fill((rows < 0)[:, :, None] | (columns < 0)[:, None], n * m)
    return shares.new_zeros(n * m + 1).scatter_(0, place.flatten(), shares.flatten())[:-1].view(n, m)


def members(ids: Tensor) -> dict[int, Tensor]:
    """The rows of every set, by its id."""
    ids, order = ids.cpu().sort(stable=True)
    found, counts = torch.unique_consecutive(ids, return_counts=True)
    return dict(zip(found.tolist(), torch.split(order, counts.tolist()), strict=True))
