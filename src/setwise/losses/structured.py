"""What the losses of the grid share: the Fenchel-Young loss of scores, dense or block by block.

With scores θ (larger is closer, in units of the temperature) and a maximum over assignments from
``setwise.assignment.smoothing``,

    L(θ) = max_{Y in D} {<θ, Y> - Ω(Y)} + Ω(Y_gt) - <θ, Y_gt>  >=  0,      gradient: Y*(θ) - Y_gt
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
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


# Losses of rows [N] or of the whole assignment [], by (θ, partner, mining, smoothing).
structured_loss: Callable[..., Tensor] = _FenchelYoung.apply


def take_margin(scores: Tensor, partner: Tensor, margin: float) -> None:
    """S_m = S + m Y_gt on distances: take m off the true pairs, in place. A constant: no gradient to record."""
    with torch.no_grad():
        scores.scatter_add_(1, partner[:, None], scores.new_full((len(scores), 1), -margin))


def divide(scores: Tensor, partner: Tensor, temperature: Tensor, margin: float, clamp: float | None = None) -> Tensor:
    """θ by a temperature with a gradient, which counts margin and clamp; ``scores`` is the caller's to overwrite."""
    if clamp is not None:
        scores = scores.clamp_min(clamp)
    if margin:
        take_margin(scores, partner, margin)
    return scores / temperature


def dense_scores(
    anchors: Tensor,
    others: Tensor,
    extra: Tensor | None,
    partner: Tensor,
    similarity: Similarity,
    temperature: Temperature,
    margin: float = 0.0,
) -> Tensor:
    """θ of anchors [N, E] against the others and the extra negatives, with the margin taken off."""
    x, y = prepare(anchors, others if extra is None else torch.cat([others, extra]), similarity=similarity)
    if isinstance(temperature, Tensor):
        return divide(prepared_scores(x, y, similarity=similarity), partner, temperature, margin)
    theta = prepared_scores(x, y, similarity=similarity, scale=1 / temperature)
    if margin:
        take_margin(theta, partner, margin / temperature)
    return theta


def row_losses(
    anchors: Tensor,
    candidates: Tensor,
    partner: Tensor,
    itself: int | None,
    similarity: Similarity,
    smoothing: Smoothing,
    temperature: Temperature,
    margin: float = 0.0,
    clamp: float | None = None,
    block_size: int | None = None,
) -> Tensor:
    """Row-wise loss of each anchor [R] among prepared candidates [M, E], ``partner`` [R] the true column.

    ``itself``: anchor i is candidate itself + i, which it may not choose; None: it is not among the candidates.
    With ``block_size``, anchors are taken that many at a time and their scores computed again in the backward pass:
    memory R·E + block·M instead of R·M.
    """
    if block_size is not None and block_size < len(anchors):
        parts = [
            checkpoint(
                row_losses,
                anchors[start : start + block_size],
                candidates,
                partner[start : start + block_size],
                None if itself is None else itself + start,
                *(similarity, smoothing, temperature, margin, clamp),
                use_reentrant=False,
                preserve_rng_state=False,
            )
            for start in range(0, len(anchors), block_size)
        ]
        return torch.cat(parts)
    if isinstance(temperature, Tensor):
        scores = prepared_scores(anchors, candidates, similarity=similarity)
        theta, margin, clamp = divide(scores, partner, temperature, margin, clamp), 0.0, None
    else:
        theta = prepared_scores(anchors, candidates, similarity=similarity, scale=1 / temperature)
        margin, clamp = margin / temperature, None if clamp is None else clamp / temperature
    if smoothing != "none" and kernels.have_row_losses(theta):
        losses: Tensor = _RowLosses.apply(  # type: ignore[no-untyped-call]
            theta, partner, itself, smoothing == "sparse", margin, clamp
        )
        return losses
    if clamp is not None:
        theta = theta.clamp_min(clamp)
    if itself is not None:
        with torch.no_grad():  # no gradient flows into an entry that is never chosen
            theta.diagonal(itself).fill_(-math.inf)
    if margin:
        take_margin(theta, partner, margin)
    return structured_loss(theta, partner, "batch-hard", smoothing)


def cross_losses(
    z_a: Tensor,
    z_b: Tensor,
    extra: Tensor | None,
    symmetric: bool,
    similarity: Similarity,
    smoothing: Smoothing,
    temperature: Temperature = 1.0,
    margin: float = 0.0,
    clamp: float | None = None,
    block_size: int | None = None,
    processes: Processes | None = None,
) -> Tensor:
    """Row losses of z_a among z_b and the extra negatives [N]; symmetric: of z_b among z_a too [2N]. All processes'."""
    first = 0
    if processes is not None:
        temperature = _shared(processes, z_a, extra, temperature)
        first = processes.rank * len(z_a)
    partner = torch.arange(first, first + z_a.shape[0], device=z_a.device)
    losses = []
    for anchors, others in [(z_a, z_b), (z_b, z_a)] if symmetric else [(z_a, z_b)]:
        candidates = others if processes is None else processes.gather(others)
        candidates = candidates if extra is None else torch.cat([candidates, extra])
        x, y = prepare(anchors, candidates, similarity=similarity)
        losses.append(row_losses(x, y, partner, None, similarity, smoothing, temperature, margin, clamp, block_size))
    every = torch.cat(losses)
    return every if processes is None else processes.gather(every)


def all_losses(
    z_a: Tensor,
    z_b: Tensor,
    extra: Tensor | None,
    similarity: Similarity,
    smoothing: Smoothing,
    temperature: Temperature = 1.0,
    margin: float = 0.0,
    clamp: float | None = None,
    block_size: int | None = None,
    processes: Processes | None = None,
) -> Tensor:
    """Row losses of all 2N views, each among the 2N - 1 others and the extra negatives [2N]. All processes'."""
    views, first = torch.cat([z_a, z_b]), 0
    if processes is None:
        x, *more = prepare(views, *([] if extra is None else [extra]), similarity=similarity)
        y = torch.cat([x, *more])
    else:
        temperature = _shared(processes, z_a, extra, temperature)
        first = processes.rank * len(views)
        x, y = prepare(views, processes.gather(views), similarity=similarity)
    partner = torch.arange(first, first + len(views), device=views.device).roll(len(z_a))
    losses = row_losses(x, y, partner, first, similarity, smoothing, temperature, margin, clamp, block_size)
    return losses if processes is None else processes.gather(losses)


def _shared(processes: Processes, z: Tensor, extra: Tensor | None, temperature: Temperature) -> Temperature:
    """The temperature over processes: the mean, so that each gets its whole gradient. Raise on what cannot be."""
    if extra is not None:
        raise ValueError("expected no extra_negatives for a loss over many processes, got some; all rows are gathered")
    processes.check_equal_parts(z)
    return processes.mean(temperature) if isinstance(temperature, Tensor) else temperature
