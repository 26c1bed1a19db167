r"""Losses where only sets are known to belong together: the truth is every assignment that the sets allow.

With scores θ (larger is closer, in units of the temperature), assignments D, and T, those that pair no two rows of
different sets,

    L(θ) = max_{Y in D} {<θ, Y> - Ω(Y)} - max_{Y in D ∩ T} {<θ, Y> - Ω(Y)}  >=  0,      gradient: Y*_D(θ) - Y*_T(θ)

With one admissible partner the second maximum is <θ, Y_gt> - Ω(Y_gt), and this is the loss of ``structured``. Row-wise
and entropic it is MIL-NCE (Miech et al. 2020): -log of the probability that a row gives to its whole set,

    mean_i -log (Σ_{j in the set of i} exp θ_ij / Σ_j exp θ_ij)

The margin is taken off every admissible pair. The candidates of a row are the rows of the other side. Where all views
compete (``NTXent``, ``SparseCLR``) they are also the other rows of its own side. Those are negatives, also where they
are of its own set: a set holds different items, so a partner is on the other side.

A row whose set has no row on the other side is a negative for others and has no term of its own. ``Sets.price`` gives
it one: every row may stay alone, at a score of -price, in units of the similarity. Of cosines, of which alike items
have large ones, a price is often below 0: at -0.3 a row stays alone where no partner has a cosine above 0.3.

``Sets.truth`` chooses another second maximum, one that takes a single partner. The loss is then that of ``structured``
against that partner. "hard": the best admissible one of each row. "one-to-one": the best assignment inside every pair
of sets. Where the two are of unequal sizes it matches the smaller one whole, and the rows left over have no partner.
"quadratic": an assignment inside every pair of sets A, B, with n the size of the smaller one, that is good for

    max_Y <S_AB, Y> + structure / n · tr(S_A Y S_B^T Y^T)

with S_A and S_B between different items and about their means. Early in training all of these choose by chance and then
confirm their choice. So begin with "same".

``Sets.softness`` r lets the first two doubt: the truth is then a share Y_T of every admissible partner, and the loss
that of ``structured`` with several partners,

    "hard":        rows of Y_T are softmaxes over the set, at r times the temperature
    "one-to-one":  Y_T = argmax_Y <θ, Y> + r Σ Y (1 - log Y) inside every pair of sets (``assignment.scaling``)

At 0 each is the single partner above, and "hard" at 1 is "same". Where two sets are of unequal sizes, a row of the
larger one counts as much as it is taken. At a price a row may also stay alone to a share.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint

from setwise.assignment.linear import solve_linear
from setwise.assignment.quadratic import solve_quadratic, structure_of
from setwise.assignment.rows import Maximum, Smoothing, best_rows
from setwise.assignment.smoothing import best_assignment, best_partial
from setwise.checks import one_derivative, see
from setwise.kernels import rows as kernels
from setwise.kernels.assign import best_inside
from setwise.losses.options import KnownSets, Sets, Temperature
from setwise.losses.parallel import Processes
from setwise.losses.shares import members, shares_inside
from setwise.losses.structured import (
    beside,
    dense_scores,
    row_losses,
    shared_temperature,
    split_negatives,
    structured_loss,
)
from setwise.similarity import Similarity, prepare, prepared_scores


class _DifferenceOfMaxima(torch.autograd.Function):
    """max over all assignments - max over admissible ones [N, M], whose gradient is the difference of the argmaxes.

    ``single``: the admissible pairs are one assignment.
    """

    @staticmethod
    def forward(
        ctx: Any,
        theta: Tensor,
        admissible: Tensor,
        solve: Callable[..., Maximum],
        smoothing: Smoothing,
        single: bool = False,
    ) -> Tensor:
        best = solve(theta, smoothing=smoothing)
        if single:
            true = Maximum(torch.where(admissible, theta, 0).sum() - best.truth, admissible.to(theta.dtype), best.truth)
        else:
            true = solve(theta.masked_fill(~admissible, -math.inf), smoothing=smoothing)
        if not (best.converged and true.converged):
            warnings.warn(f"the {smoothing!r} solver stopped at its limit; the loss is approximate", stacklevel=2)
        ctx.save_for_backward(best.argmax.sub_(true.argmax))
        loss = best.value - true.value
        return loss + (loss - loss)  # of an infinite score: NaN, not inf

    @staticmethod
    @one_derivative
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (difference,) = ctx.saved_tensors
        return difference * grad.unsqueeze(-1), None, None, None, None


class _RowsOfSets(torch.autograd.Function):
    """The same for rows, whose admissible columns are listed: ``columns`` [R, K] where ``valid``.

    ``shares`` [R, K]: what they are of the truth. The loss is then max {<θ, Y> - Ω(Y)} + Ω(shares) - <θ, shares>, but
    without an entropy Ω(shares), as with labels.
    """

    @staticmethod
    def forward(
        ctx: Any, theta: Tensor, columns: Tensor, valid: Tensor, smoothing: Smoothing, shares: Tensor | None = None
    ) -> Tensor:
        best, among = best_rows(theta, smoothing=smoothing), _among(theta, columns, valid)
        if shares is None:
            true = best_rows(among, smoothing=smoothing)
            chosen, value = true.argmax, true.value
        else:
            chosen = shares
            value = (among.masked_fill(~valid, 0) * shares).sum(1) - best.truth * shares.square().sum(1)
        ctx.save_for_backward(best.argmax.scatter_add_(1, columns, chosen.neg()))
        loss = best.value - value
        return loss + (loss - loss)

    @staticmethod
    @one_derivative
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (difference,) = ctx.saved_tensors
        return difference * grad[:, None], None, None, None, None


class _SetLosses(torch.autograd.Function):
    """The same where a kernel computes losses and gradient at once, and which rows have a partner."""

    @staticmethod
    def forward(ctx: Any, theta: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
        losses, gradient, partnered = kernels.set_losses(theta, *options)
        ctx.save_for_backward(gradient)
        ctx.mark_non_differentiable(partnered)
        return losses, partnered

    @staticmethod
    @one_derivative
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return gradient * grad[:, None], *[None] * 7


# The loss of the whole assignment [], by (θ, admissible, maximum, smoothing, single).
difference_of_maxima: Callable[..., Tensor] = _DifferenceOfMaxima.apply


def _set_row_losses(
    anchors: Tensor,
    candidates: Tensor,
    ids: Tensor,
    others: Tensor,
    itself: int | None,
    hard: bool,
    price: float | None,
    similarity: Similarity,
    smoothing: Smoothing,
    temperature: Temperature,
    margin: float,
    clamp: float | None,
    block_size: int | None,
    own: Tensor | None,
    shares: Tensor | None = None,
    softness: float | Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The loss of each anchor [R] among prepared candidates [C, E], and how much it has a partner [R]; 0 where not.

    ``ids`` [R]: of the anchors. ``others``: of the first candidates; where both are equal the pair is admissible.
    ``shares`` [R, M], with a price [R, M + 1]: how much each of the first candidates is the partner, or none is.
    ``softness``, in place of shares: these follow from the row's own scores.
    The other arguments are those of ``structured.row_losses``.
    """
    if block_size is not None and block_size < len(anchors):
        parts = [
            checkpoint(
                _set_row_losses,
                anchors[start : start + block_size],
                candidates,
                ids[start : start + block_size],
                others,
                None if itself is None else itself + start,
                *(hard, price, similarity, smoothing, temperature, margin, clamp, None),
                None if own is None else own[start : start + block_size],
                None if shares is None else shares[start : start + block_size],
                softness,
                use_reentrant=False,
                preserve_rng_state=False,
            )
            for start in range(0, len(anchors), block_size)
        ]
        return torch.cat([one for one, _ in parts]), torch.cat([one for _, one in parts])
    scale = 1.0 if isinstance(temperature, Tensor) else 1 / temperature
    theta = prepared_scores(anchors, candidates, similarity=similarity, scale=scale)
    if own is not None:
        theta = beside(theta, anchors, own, similarity, scale)
    fused = not hard and shares is None and smoothing != "none" and not isinstance(temperature, Tensor)
    if fused and kernels.have_row_losses(theta):
        alone, least = price is not None, None if clamp is None else clamp * scale
        theta = pad(theta, (0, 1), value=-cast(float, price) * scale) if alone else theta
        options = (ids, others, alone, itself, smoothing == "sparse", margin * scale, least)
        found: tuple[Tensor, Tensor] = _SetLosses.apply(theta, *options)  # type: ignore[no-untyped-call]
        return found
    if clamp is not None:
        theta = theta.clamp_min(clamp * scale)
    if price is not None:  # staying alone is the last column
        theta = pad(theta, (0, 1), value=-price * scale)
    columns, valid = _columns_of_sets(ids, others)
    if shares is not None:
        shares = shares.gather(1, columns if price is None else pad(columns, (0, 1), value=len(others)))
    if price is not None:
        valid, columns = pad(valid, (0, 1), value=True), pad(columns, (0, 1), value=theta.shape[1] - 1)
    if softness is not None:
        heat = softness * (temperature.detach() if isinstance(temperature, Tensor) else 1.0)
        shares = torch.softmax(_among(theta.detach(), columns, valid) / heat, 1)
    if shares is None:
        partnered = valid.any(1)
    else:
        shares, partnered = _divided(torch.where(valid, shares, 0))
    if hard and shares is None:
        best = _among(theta.detach(), columns, valid).argmax(1, keepdim=True)
        columns, valid = columns.gather(1, best), valid.gather(1, best)
    if margin:
        with torch.no_grad():
            true = valid if shares is None else shares
            theta.scatter_add_(1, columns, true * theta.new_full((), -margin * scale))
    if isinstance(temperature, Tensor):
        theta = theta / temperature
    if itself is not None:
        with torch.no_grad():  # no gradient flows into an entry that is never chosen
            theta.diagonal(itself).fill_(-math.inf)
    if shares is not None:
        losses = _RowsOfSets.apply(theta, columns, valid, smoothing, shares)  # type: ignore[no-untyped-call]
        return losses * partnered, partnered
    if hard:
        losses = structured_loss(theta, columns[:, 0], "batch-hard", smoothing)
    else:
        valid[:, 0] |= ~partnered  # any column: the row has no term
        losses = _RowsOfSets.apply(theta, columns, valid, smoothing)  # type: ignore[no-untyped-call]
    return torch.where(partnered, losses, 0), partnered


def _divided(shares: Tensor) -> tuple[Tensor, Tensor]:
    """Rows by their sums, and the sums [R]; a row of zeros stays one."""
    sums = shares.sum(1)
    return shares / sums.masked_fill(sums == 0, 1)[:, None], sums


def _columns_of_sets(ids: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """The columns of each row's set among those of ``others`` [R, K], and which of these entries count.

    On the CPU K is the size of the largest set. Elsewhere finding it would wait for the device, and K is all columns.
    """
    if ids.device.type != "cpu" or torch.compiler.is_compiling():
        every = torch.arange(len(others), device=others.device)
        return every.expand(len(ids), -1), ids[:, None] == others
    in_order, order = others.sort(stable=True)
    first = torch.searchsorted(in_order, ids)
    counts = torch.searchsorted(in_order, ids, right=True) - first
    place = torch.arange(max(1, int(counts.max())), device="cpu")
    return order[(first[:, None] + place).clamp_max(len(others) - 1)], place < counts[:, None]


def _among(theta: Tensor, columns: Tensor, valid: Tensor) -> Tensor:
    """θ of the given columns of each row [R, K], -inf where they do not count."""
    return theta.gather(1, columns).masked_fill(~valid, -math.inf)


def set_row_losses(
    z_a: Tensor,
    z_b: Tensor,
    extra: Tensor | None,
    sets: KnownSets,
    symmetric: bool,
    own_side: bool,
    similarity: Similarity,
    smoothing: Smoothing,
    temperature: Temperature = 1.0,
    margin: float = 0.0,
    clamp: float | None = None,
    block_size: int | None = None,
    processes: Processes | None = None,
) -> tuple[Tensor, Tensor]:
    """Row losses of z_a among z_b and the extra negatives [N], and how much rows have a partner [N]. All processes'.

    ``symmetric``: those of z_b among z_a too, [N + M]. ``own_side``: each row competes with the others of its own side.
    """
    known = Sets(*sets)
    shared, own = (None, None) if extra is None else split_negatives(extra)
    if processes is not None:
        temperature = shared_temperature(processes, z_a, shared, temperature)
        processes.check_equal_parts(z_b)
    if own is not None:
        (own,) = prepare(own, similarity=similarity)
    every_a, every_b, ids_a, ids_b = (x if processes is None else processes.gather(x) for x in (z_a, z_b, *known[:2]))
    every, (of_a, of_b) = Sets(ids_a, ids_b, *known[2:]), known[:2]
    shares_a, shares_b = None, None
    matched_whole = known.truth in ("one-to-one", "quadratic") and not known.soft
    rank = 0 if processes is None else processes.rank
    mine_a, mine_b = (slice(rank * len(z), (rank + 1) * len(z)) for z in (z_a, z_b))
    softness = known.softness if known.soft and known.truth == "hard" else None
    if known.soft and softness is None:
        all_shares = shares_inside(every_a, every_b, every, similarity, temperature)
        shares_a, shares_b = all_shares[0][mine_a], all_shares[1][mine_b]
    elif matched_whole:  # the number of the partner is then what has to be equal
        partner_a, partner_b = partners_inside(every_a, every_b, every, similarity)
        of_a, of_b = partner_a[mine_a], partner_b[mine_b]
        ids_a, ids_b = (torch.arange(len(z), device=z.device) for z in (every_a, every_b))
    sides = [(z_a, every_b, every_a, of_a, ids_b, shares_a), (z_b, every_a, every_b, of_b, ids_a, shares_b)]
    losses, partnered = [], []
    for anchors, others, rest, ids, other_ids, shares in sides if symmetric or own_side else sides[:1]:
        parts = [others, *([rest] if own_side else []), *([] if shared is None else [shared])]
        x, y = prepare(anchors, torch.cat(parts) if parts[1:] else others, similarity=similarity)
        itself = len(others) + (0 if processes is None else processes.rank * len(anchors)) if own_side else None
        options = (similarity, smoothing, temperature, margin, clamp, block_size)
        if matched_whole and known.price is None:
            matched = ids >= 0
            found = torch.where(matched, row_losses(x, y, ids.clamp_min(0), itself, *options, own), 0), matched
        else:
            hard = known.truth != "same"
            found = _set_row_losses(x, y, ids, other_ids, itself, hard, known.price, *options, own, shares, softness)
        losses.append(found[0])
        partnered.append(found[1])
    both = torch.cat(losses), torch.cat(partnered)
    return both if processes is None else (processes.gather(both[0]), processes.gather(both[1]))


def mean_of_partnered(losses: Tensor, partnered: Tensor, processes: Processes | None = None) -> Tensor:
    """The mean over the rows that have a partner; on the CPU raise where none has."""
    count = partnered.sum()
    if losses.device.type == "cpu" and not torch.compiler.is_compiling() and not count:
        raise ValueError(
            "expected a set with rows on both sides, got none: no row has a partner; number the sets of both sides "
            "alike, or give a price for rows that stay alone, " + see("how-to/sets#price")
        )
    loss = losses.sum() / count.clamp_min(1)
    return loss if processes is None else processes.finish(loss)


def set_assignment_loss(
    z_a: Tensor,
    z_b: Tensor,
    extra: Tensor | None,
    sets: KnownSets,
    symmetric: bool,
    similarity: Similarity,
    smoothing: Smoothing,
    temperature: Temperature,
    margin: float,
) -> Tensor:
    """The one-to-one loss of the rows of z_a among z_b and the extra negatives, []; symmetric: the mean of both ways.

    Without extra negatives both ways are the same.
    With a price D holds the assignments that leave rows alone. Adding the price to every score, such a row scores 0.
    """
    known = Sets(*sets)
    admissible = known.a[:, None] == known.b
    if known.price is None:
        for allowed in (admissible, admissible.mT)[: 2 if symmetric else 1]:
            _check_admissible(allowed)
    single = known.truth != "same"
    if single:
        partner, _ = partners_inside(z_a, z_b, known, similarity)
        admissible = partner[:, None] == torch.arange(len(z_b), device=z_b.device)
    losses = []
    ways = [(z_a, z_b, admissible), (z_b, z_a, admissible.mT)]
    for x, y, allowed in ways if symmetric and extra is not None else ways[:1]:
        allowed = allowed if extra is None else pad(allowed, (0, len(extra)))
        theta = dense_scores(x, y, extra, allowed, similarity, temperature, margin)
        solve = best_assignment if known.price is None else best_partial
        if known.price is not None:
            theta = theta + known.price / temperature
        losses.append(difference_of_maxima(theta, allowed, solve, smoothing, single))
    return torch.stack(losses).mean()


def _check_admissible(allowed: Tensor) -> None:
    """On the CPU raise unless every row can have an admissible column of its own. Columns of one set are equal."""
    if allowed.device.type != "cpu" or torch.compiler.is_compiling():
        return
    rivals = torch.where(allowed, allowed.sum(0), 0).amax(1)  # rows of the same set
    short = (rivals > allowed.sum(1)) | (rivals == 0)
    if short.any():
        row = int(short.nonzero()[0])
        raise ValueError(
            f"expected a partner for every row in its set, got row {row} whose set has {int(rivals[row]) or 'some'} "
            f"rows on its side and {int(allowed[row].sum())} on the other; give a price for rows that stay alone, "
            + see("how-to/sets#price")
        )


@torch.no_grad()
def partners_inside(z_a: Tensor, z_b: Tensor, sets: Sets, similarity: Similarity) -> tuple[Tensor, Tensor]:
    """The best one-to-one assignment inside every pair of sets: the partner of each row [N], [M], or -1 for none.

    Without a price the smaller side of a pair is matched whole. With one, only pairs with a score above -price are.
    ``sets.truth`` "quadratic" counts the structure of the sets too. A GPU solves all sets at once, without waiting;
    scipy, and all of "quadratic", solve on the CPU, set by set.
    """
    x, y = prepare(z_a, z_b, similarity=similarity)
    if x.is_cuda and sets.truth != "quadratic":
        scores = prepared_scores(x, y, similarity=similarity)
        scores = scores if sets.price is None else (scores + sets.price).clamp_min_(0)
        found = best_inside(scores, sets.a, sets.b)
        if found is not None:
            return found if sets.price is None else _worth(*found, scores)
    x, y = x.cpu(), y.cpu()
    to_b, to_a = (torch.full((len(z),), -1, device="cpu") for z in (x, y))
    rows, columns = members(sets.a), members(sets.b)
    for one in rows.keys() & columns.keys():
        i, j = rows[one], columns[one]
        scores = prepared_scores(x[i], y[j], similarity=similarity)
        if sets.price is not None:
            scores = (scores + sets.price).clamp_min_(0)
        partner = torch.full((len(i),), -1, device="cpu")
        if len(i) <= len(j):
            partner = solve_linear(scores, maximize=True)
        else:
            partner[solve_linear(scores.mT, maximize=True)] = torch.arange(len(j), device="cpu")
        if sets.truth == "quadratic" and min(scores.shape) > 1:
            s_a, s_b = (structure_of(prepared_scores(z, z, similarity=similarity)) for z in (x[i], y[j]))
            share = sets.structure / min(scores.shape)
            partner = solve_quadratic(
                share * s_a, s_b, scores, maximize=True, method="faq", initial=partner
            ).permutation
        row = (partner >= 0).nonzero()[:, 0]
        if sets.price is not None:
            row = row[scores[row, partner[row]] > 0]
        to_b[i[row]], to_a[j[partner[row]]] = j[partner[row]], i[row]
    return to_b.to(z_a.device), to_a.to(z_b.device)


def _worth(to_b: Tensor, to_a: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """The pairs whose score [N, M] is above 0."""
    in_rows = scores.gather(1, to_b.clamp_min(0)[:, None])[:, 0] > 0
    in_columns = scores.gather(0, to_a.clamp_min(0)[None])[0] > 0
    return torch.where(in_rows, to_b, -1), torch.where(in_columns, to_a, -1)
