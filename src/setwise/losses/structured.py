"""What the losses of the grid share: the Fenchel-Young loss of scores, dense or block by block.

With scores θ (larger is closer, in units of the temperature) and a maximum over assignments from
``setwise.assignment.smoothing``,

    L(θ) = max_{Y in D} {<θ, Y> - Ω(Y)} + Ω(Y_gt) - <θ, Y_gt>  >=  0,      gradient: Y*(θ) - Y_gt

Y_gt has one partner in each row. With labels, a row of it is uniform over all candidates with the row's label.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint

from setwise.assignment.rows import Smoothing, best_rows
from setwise.assignment.smoothing import Mining, best_assignment
from setwise.checks import one_derivative
from setwise.kernels import rows as kernels
from setwise.kernels import scores
from setwise.kernels.scores import Products
from setwise.losses import large
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


class _SeveralPartners(torch.autograd.Function):
    """The same for rows with several true columns [N, M], where Y_gt is uniform over those of a row.

    Ω(Y_gt) of P partners is ½/P if sparse. That of the entropy, -log P, is left out: the loss is then SupCon's.
    """

    @staticmethod
    def forward(ctx: Any, theta: Tensor, true: Tensor, smoothing: Smoothing) -> Tensor:
        best, truth = best_rows(theta, smoothing=smoothing), true.to(theta.dtype)
        partners = truth.sum(1)
        scores = torch.where(true, theta, 0.0).sum(1)  # a product would be NaN where θ is -inf
        ctx.save_for_backward(best.argmax.sub_(truth.div_(partners[:, None])))
        loss = best.value - scores / partners + best.truth / partners
        return loss + (loss - loss)

    @staticmethod
    @one_derivative
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (difference,) = ctx.saved_tensors
        return difference * grad[:, None], None, None


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


def take_margin(scores: Tensor, truth: Tensor, margin: float) -> None:
    """S_m = S + m Y_gt on distances: take m off the true pairs, in place. A constant: no gradient to record.

    ``truth``: the true column of each row [N], or, of several, which columns are true [N, M].
    """
    with torch.no_grad():
        if truth.ndim == 2:
            scores.add_(truth.to(scores.dtype), alpha=-margin)
        else:
            scores.scatter_add_(1, truth[:, None], scores.new_full((len(scores), 1), -margin))


def divide(scores: Tensor, truth: Tensor, temperature: Tensor, margin: float, clamp: float | None = None) -> Tensor:
    """θ by a temperature with a gradient, which counts margin and clamp; ``scores`` is the caller's to overwrite."""
    if clamp is not None:
        scores = scores.clamp_min(clamp)
    if margin:
        take_margin(scores, truth, margin)
    return scores / temperature


def split_negatives(extra: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Extra negatives that all rows share [M, E], and those of each row's own [N, K, E]; one of them, or none."""
    if extra.ndim == 2:
        return extra, None
    return None, extra if extra.shape[1] else None


def beside(scores: Tensor, x: Tensor, own: Tensor, similarity: Similarity, scale: float = 1.0) -> Tensor:
    """Scores of rows ``x`` [N, M], and beside them score · scale of each row against its own [N, K, E]: [N, M + K]."""
    more = prepared_scores(x[:, None], own, similarity=similarity, scale=scale)  # [N, 1, K]
    return torch.cat([scores, more.squeeze(1)], 1)


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
    shared, own = (None, None) if extra is None else split_negatives(extra)
    x, y = prepare(anchors, others if shared is None else torch.cat([others, shared]), similarity=similarity)
    if own is not None:
        (own,) = prepare(own, similarity=similarity)
    scale = 1.0 if isinstance(temperature, Tensor) else 1 / temperature
    theta = prepared_scores(x, y, similarity=similarity, scale=scale)
    if own is not None:
        theta = beside(theta, x, own, similarity, scale)
    if isinstance(temperature, Tensor):
        return divide(theta, partner, temperature, margin)
    if margin:
        take_margin(theta, partner, margin / temperature)
    return theta


# So many scores of a process and more are never stored, where a kernel serves: 4,096 rows. Captured, float32, E = 128,
# H200: 0.37 ms and not 0.54; with 2,048 rows 0.23 and not 0.18, with 2,048 rows of 512 numbers 0.27 and not 0.38.
LARGE = 2**24
RING_ROWS = 1024  # of fewer rows a process, messages round a ring take longer than to gather; then 16 times as many


def _is_large(
    z: Tensor,
    rows: int,
    shared: Tensor | None,
    similarity: Similarity,
    smoothing: Smoothing,
    margin: float,
    clamp: float | None,
    block_size: int | None,
    processes: Processes | None,
) -> bool:
    """Whether ``losses.large`` takes a loss: an entropic one of many scores under cosine, on a GPU.

    ``rows`` of a process choose among those of all processes and the ``shared`` negatives. Traced, only one process
    has such a loss.
    """
    many = 1 if processes is None else processes.size
    candidates = rows * many + (0 if shared is None else shared.shape[0])
    if rows * candidates < LARGE * (1 if many == 1 or rows >= RING_ROWS else 16):
        return False
    if processes is not None and torch.compiler.is_compiling():
        return False
    if similarity != "cosine" or smoothing != "entropy" or margin or clamp is not None or block_size is not None:
        return False
    return scores.serves(z)


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
    own: Tensor | None = None,
    labels: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Row-wise loss of each anchor [R] among prepared candidates [M, E], ``partner`` [R] the true column.

    ``own`` [R, K, E]: prepared negatives of each anchor alone. ``labels`` of the anchors [R] and of the first
    candidates: all of these with its label are an anchor's partners, in place of ``partner``.
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
                *(similarity, smoothing, temperature, margin, clamp, None),
                None if own is None else own[start : start + block_size],
                None if labels is None else (labels[0][start : start + block_size], labels[1]),
                use_reentrant=False,
                preserve_rng_state=False,
            )
            for start in range(0, len(anchors), block_size)
        ]
        return torch.cat(parts)
    truth = partner
    if labels is not None:
        truth = labels[0][:, None] == labels[1]
        if itself is not None:
            truth.diagonal(itself).fill_(False)
        unlabelled = len(candidates) - len(labels[1]) + (0 if own is None else own.shape[1])
        truth = pad(truth, (0, unlabelled)) if unlabelled else truth
    scale = 1.0 if isinstance(temperature, Tensor) else 1 / temperature
    theta = prepared_scores(anchors, candidates, similarity=similarity, scale=scale)
    if own is not None:
        theta = beside(theta, anchors, own, similarity, scale)
    if isinstance(temperature, Tensor):
        theta, margin, clamp = divide(theta, truth, temperature, margin, clamp), 0.0, None
    else:
        margin, clamp = margin / temperature, None if clamp is None else clamp / temperature
    if labels is None and smoothing != "none" and kernels.have_row_losses(theta):
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
        take_margin(theta, truth, margin)
    if labels is None:
        return structured_loss(theta, truth, "batch-hard", smoothing)
    several: Tensor = _SeveralPartners.apply(theta, truth, smoothing)  # type: ignore[no-untyped-call]
    return several


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
    labels: Tensor | None = None,
    products: Products = "float32",
) -> Tensor:
    """Row losses of z_a among z_b and the extra negatives [N]; symmetric: of z_b among z_a too [2N]. All processes'."""
    first = 0
    shared, own = (None, None) if extra is None else split_negatives(extra)
    if processes is not None:
        temperature = shared_temperature(processes, z_a, shared, temperature)
        first = processes.rank * len(z_a)
    if _is_large(z_a, z_a.shape[0], shared, similarity, smoothing, margin, clamp, block_size, processes):
        every = large.cross_losses(z_a, z_b, shared, own, symmetric, temperature, products, processes, labels)
        return every if processes is None else processes.gather(every)
    if own is not None:
        (own,) = prepare(own, similarity=similarity)
    same = None if labels is None else (labels, labels if processes is None else processes.gather(labels))
    partner = torch.arange(first, first + z_a.shape[0], device=z_a.device)
    losses = []
    for anchors, others in [(z_a, z_b), (z_b, z_a)] if symmetric else [(z_a, z_b)]:
        candidates = others if processes is None else processes.gather(others)
        candidates = candidates if shared is None else torch.cat([candidates, shared])
        x, y = prepare(anchors, candidates, similarity=similarity)
        options = (similarity, smoothing, temperature, margin, clamp, block_size)
        losses.append(row_losses(x, y, partner, None, *options, own, same))
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
    labels: Tensor | None = None,
    products: Products = "float32",
) -> Tensor:
    """Row losses of all 2N views, each among the 2N - 1 others and the extra negatives [2N]. All processes'."""
    shared, own = (None, None) if extra is None else split_negatives(extra)
    if processes is not None:
        temperature = shared_temperature(processes, z_a, shared, temperature)
    if _is_large(z_a, 2 * z_a.shape[0], shared, similarity, smoothing, margin, clamp, block_size, processes):
        losses = large.all_losses(z_a, z_b, shared, own, temperature, products, processes, labels)
        return losses if processes is None else processes.gather(losses)
    views, first = torch.cat([z_a, z_b]), 0
    if own is not None:
        (own,) = prepare(own, similarity=similarity)
        own = torch.cat([own, own])  # both views of an item have its negatives
    if processes is None:
        x, *more = prepare(views, *([] if shared is None else [shared]), similarity=similarity)
        y = torch.cat([x, *more])
    else:
        first = processes.rank * len(views)
        x, y = prepare(views, processes.gather(views), similarity=similarity)
    partner = torch.arange(first, first + len(views), device=views.device).roll(len(z_a))
    same = None
    if labels is not None:
        both = torch.cat([labels, labels])
        same = both, both if processes is None else processes.gather(both)
    options = (similarity, smoothing, temperature, margin, clamp, block_size)
    losses = row_losses(x, y, partner, first, *options, own, same)
    return losses if processes is None else processes.gather(losses)


def shared_temperature(processes: Processes, z: Tensor, shared: Tensor | None, temperature: Temperature) -> Temperature:
    """The temperature over processes: the mean, so that each gets its whole gradient. Raise on what cannot be."""
    if shared is not None:
        raise ValueError(
            "expected no extra_negatives of shape (M, E) for a loss over many processes, got some; all rows are "
            "gathered, and negatives (N, K, E) of each row are taken"
        )
    processes.check_equal_parts(z)
    return processes.mean(temperature) if isinstance(temperature, Tensor) else temperature
