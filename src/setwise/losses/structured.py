"""What the losses of the grid share: the Fenchel-Young loss of scores, dense or block by block.

With scores θ (larger is closer, in units of the temperature) and a maximum over assignments from
``setwise.assignment.smoothing``,

    L(θ) = max_{Y in D} {<θ, Y> - Ω(Y)} + Ω(Y_gt) - <θ, Y_gt>  >=  0,      gradient: Y*(θ) - Y_gt
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from setwise.assignment.smoothing import Mining, Smoothing, best_assignment, best_rows
from setwise.checks import one_derivative
from setwise.kernels import rows as kernels
from setwise.losses.options import Temperature
from setwise.losses.parallel import Processes
from setwise.similarity import Similarity, prepare, prepared_scores


class _FenchelYoung(torch.autograd.Function):
    """maximum + Ω(Y_gt) - <θ, Y_gt>, whose gradient in θ is argmax - Y_gt whatever found the argmax."""

    @staticmethod
    def forward(ctx: Any, theta: Tensor, partner: Tensor, mining: Mining, smoothing: Smoothing) -> Tensor:
        solve = best_rows if mining == "batch-hard" else best_assignment
        best = solve(theta, smoothing=smoothing)
        if not best.converged:
            warnings.warn(f"the {smoothing!r} solver stopped at its limit; the loss is approximate", stacklevel=2)
        true = theta.gather(1, partner[:, None])
        ctx.save_for_backward(best.argmax.scatter_add_(1, partner[:, None], -torch.ones_like(true)))
        loss = best.value - (true[:, 0] if mining == "batch-hard" else true.sum()) + best.truth
        return loss + (loss - loss)  # of an infinite true score: NaN, not inf

    @staticmethod
    @one_derivative
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (difference,) = ctx.saved_tensors
        return difference * grad.unsqueeze(-1), None, None, None


class _RowLosses(torch.autograd.Function):
    """The same for rows, where a kernel computes losses and gradient at once."""

    @staticmethod
    def forward(ctx: Any, theta: Tensor, *options: Any) -> Tensor:
        losses, gradient = kernels.row_losses(theta, *options)
        ctx.save_for_backward(gradient)
        return losses

    @staticmethod
    @one_derivative
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return gradient * grad[:, None], None, None, None, None, None


def structured_loss(theta: Tensor, partner: Tensor, mining: Mining, smoothing: Smoothing, margin: float) -> Tensor:
    """Losses of rows [N] or of the whole assignment []; ``theta`` is the caller's to overwrite."""
    _take_margin(theta, partner, margin)
    loss: Tensor = _FenchelYoung.apply(theta, partner, mining, smoothing)  # type: ignore[no-untyped-call]
    return loss


def _take_margin(scores: Tensor, partner: Tensor, margin: float) -> None:
    """S_m = S + m Y_gt on distances takes m off the scores of true pairs. A constant: no gradient to record."""
    if margin:
        with torch.no_grad():
            scores.scatter_add_(1, partner[:, None], scores.new_full((len(scores), 1), -margin))


def shared_temperature(temperature: Temperature, z: Tensor, peers: Processes | None = None) -> Temperature:
    """``temperature`` for scores of ``z``; a tensor is the mean over all peers, so that each has its whole gradient."""
    if not isinstance(temperature, Tensor):
        return temperature
    if temperature.device != z.device:
        raise ValueError(
            f"expected temperature on device {z.device} like the embeddings, got {temperature.device}; "
            "move the loss: loss.to(z_a.device)"
        )
    return temperature if peers is None else peers.mean(temperature)


def divide(scores: Tensor, partner: Tensor, temperature: Tensor, margin: float, clamp: float | None = None) -> Tensor:
    """θ by a temperature with a gradient, which counts margin and clamp; ``scores`` is the caller's to overwrite."""
    if clamp is not None:
        scores = scores.clamp_min(clamp)
    _take_margin(scores, partner, margin)
    return scores / temperature


def scores_in_units(
    x: Tensor,
    y: Tensor,
    partner: Tensor,
    *,
    similarity: Similarity,
    temperature: Temperature,
    margin: float = 0.0,
    clamp: float | None = None,
) -> tuple[Tensor, float, float | None]:
    """θ of prepared rows, and the margin and the clamp that are left to apply to it, in its units."""
    if isinstance(temperature, Tensor):
        return divide(prepared_scores(x, y, similarity=similarity), partner, temperature, margin, clamp), 0.0, None
    theta = prepared_scores(x, y, similarity=similarity, scale=1 / temperature)
    return theta, margin / temperature, None if clamp is None else clamp / temperature


def row_losses(
    anchors: Tensor,
    candidates: Tensor,
    partner: Tensor,
    *,
    itself: int | None,
    similarity: Similarity,
    smoothing: Smoothing,
    margin: float = 0.0,
    temperature: Temperature = 1.0,
    clamp: float | None = None,
    block_size: int | None = None,
) -> Tensor:
    """Row-wise loss of each anchor [R] among prepared candidates [M, E], ``partner`` [R] the true column.

    ``itself``: anchor i is candidate itself + i, which it may not choose; None: it is not among the candidates.
    With ``block_size``, anchors are taken that many at a time and their scores computed again in the backward pass:
    memory R·E + block·M instead of R·M.
    """

    def losses(anchors: Tensor, candidates: Tensor, partner: Tensor, start: int) -> Tensor:
        theta, off, least = scores_in_units(
            anchors, candidates, partner, similarity=similarity, temperature=temperature, margin=margin, clamp=clamp
        )
        own = None if itself is None else itself + start
        if smoothing in ("entropy", "sparse") and kernels.have_row_losses(theta):
            found: Tensor = _RowLosses.apply(  # type: ignore[no-untyped-call]
                theta, partner, own, smoothing == "sparse", off, least
            )
            return found
        if least is not None:
            theta = theta.clamp_min(least)
        if own is not None:
            # No gradient is recorded: none flows into an entry that is never chosen.
            with torch.no_grad():
                theta.diagonal(own).fill_(-math.inf)
        return structured_loss(theta, partner, "batch-hard", smoothing, off)

    if block_size is None or block_size >= len(anchors):
        return losses(anchors, candidates, partner, 0)
    parts = [
        checkpoint(
            losses,
            anchors[start : start + block_size],
            candidates,
            partner[start : start + block_size],
            start,
            use_reentrant=False,
            preserve_rng_state=False,
        )
        for start in range(0, len(anchors), block_size)
    ]
    return torch.cat(parts)


def sides(
    z_a: Tensor,
    z_b: Tensor,
    extra: Tensor | None,
    *,
    symmetric: bool,
    similarity: Similarity,
    peers: Processes | None = None,
) -> list[tuple[Tensor, Tensor]]:
    """Prepared anchors [N, E] and candidates [N + M, E] (of all peers) of each direction compared."""
    pairs = []
    for anchors, candidates in [(z_a, z_b), (z_b, z_a)] if symmetric else [(z_a, z_b)]:
        others = candidates if peers is None else peers.gather(candidates)
        x, y = prepare(anchors, others if extra is None else torch.cat([others, extra]), similarity=similarity)
        pairs.append((x, y))
    return pairs


def cross_losses(
    z_a: Tensor,
    z_b: Tensor,
    extra: Tensor | None,
    *,
    symmetric: bool,
    similarity: Similarity,
    temperature: Temperature = 1.0,
    peers: Processes | None = None,
    **options: Any,
) -> Tensor:
    """Row losses of z_a among z_b and the extra negatives [N]; symmetric: of z_b among z_a too [2N]. All peers'."""
    options["temperature"] = shared_temperature(temperature, z_a, peers)
    first = 0 if peers is None else peers.rank * len(z_a)
    partner = torch.arange(first, first + len(z_a), device=z_a.device)
    losses = [
        row_losses(anchors, candidates, partner, itself=None, similarity=similarity, **options)
        for anchors, candidates in sides(z_a, z_b, extra, symmetric=symmetric, similarity=similarity, peers=peers)
    ]
    return torch.cat(losses) if peers is None else peers.gather(torch.cat(losses))


def all_losses(
    z_a: Tensor,
    z_b: Tensor,
    extra: Tensor | None,
    *,
    similarity: Similarity,
    temperature: Temperature = 1.0,
    peers: Processes | None = None,
    **options: Any,
) -> Tensor:
    """Row losses of all 2N views, each among the 2N - 1 others and the extra negatives [2N]. All peers'."""
    options["temperature"] = shared_temperature(temperature, z_a, peers)
    views = torch.cat([z_a, z_b])
    partner = torch.arange(len(views), device=views.device).roll(len(z_a))
    if peers is None:
        x, *more = prepare(views, *([] if extra is None else [extra]), similarity=similarity)
        return row_losses(x, torch.cat([x, *more]), partner, itself=0, similarity=similarity, **options)
    first = peers.rank * len(views)
    x, y = prepare(views, peers.gather(views), similarity=similarity)
    losses = row_losses(x, y, partner + first, itself=first, similarity=similarity, **options)
    return peers.gather(losses)
