r"""Contrastive losses as assignment problems: one equation, one function.

All of them compare tr(S Y_gt) with the best assignment the encoder's own scores would choose. With scores θ
(larger is closer, in units of the temperature, the margin taken off the true pairs) every loss of the grid is

    L(θ) = max_{Y in D} {<θ, Y> - Ω(Y)} + Ω(Y_gt) - <θ, Y_gt>  >=  0,      gradient: Y*(θ) - Y_gt

a Fenchel-Young loss; ``setwise.assignment.smoothing`` holds the two choices D and Ω. ``assignment_loss`` is the
whole family; the named losses say which cell they are. Rows i of ``z_a`` and ``z_b`` [N, E] are the same item.

Scale: ``reduction="sum"`` is the equation as the paper prints it; ``"mean"`` divides that by N·temperature, which
is what everyone calls InfoNCE. Half-precision embeddings give float32 losses, also under autocast.

``temperature`` may be a tensor [], a parameter or a function of one, and gets its gradient. Keep it above 0: learn its
logarithm, ``info_nce(z_a, z_b, temperature=log_temperature.exp())``, or clamp it after each step, as CLIP does. On a
GPU nothing checks its value; a bad one shows in the loss.

``extra_negatives`` [M, E] are further candidates of every row. Those of shape [N, K, E] are K of each item alone: row i
of ``z_a``, and of ``z_b`` where its rows choose too, is compared with the K of item i.

``products``: how a GPU multiplies the rows of many items, whose scores it does not store. "float16" is three times as
fast as "float32" and has the digits of tf32. Few items, other devices and other similarities take float32.

``labels`` [N], int64, say which items belong together: both views of item i have its label, and every candidate with
that label is a partner. Extra negatives have none. Y_gt is then uniform over the P partners of a row, and the margin
is taken off all of them. The gradient stays Y*(θ) - Y_gt. The sparse loss has Ω(Y_gt) = ½/P and is 0 at its minimum.
The entropic losses leave the constant Ω(Y_gt) = -log P out: they are the mean over the partners of -log p, which is
SupCon's "out" form (Khosla et al. 2020), and at least log P. With all labels different nothing changes.

``sets`` (sets_a [N], sets_b [M]), int64, say less: which rows of both sides are in sets that belong together, and not
which row is whose partner. The losses of the grid take them. Both sides may then have different numbers of rows. See
``setwise.losses.sets``.

``peers`` makes a loss that of the batches of many processes together, see ``setwise.losses.parallel``.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import softplus

from setwise.assignment.rows import Smoothing
from setwise.assignment.smoothing import Mining
from setwise.checks import check_matrix, check_overflow
from setwise.kernels.scores import Products
from setwise.losses.options import KnownSets, Reduction, Temperature, check_options, check_temperature, public, words_of
from setwise.losses.parallel import Processes
from setwise.losses.set_level import qare, quadratic_assignment_loss
from setwise.losses.sets import mean_of_partnered, set_assignment_loss, set_row_losses
from setwise.losses.structured import all_losses, cross_losses, dense_scores, divide, structured_loss, take_margin
from setwise.similarity import Similarity, full_precision

__all__ = [
    "assignment_loss",
    "info_nce",
    "nt_logistic",
    "nt_xent",
    "qare",
    "quadratic_assignment_loss",
    "score_assignment_loss",
    "sparse_clr",
    "triplet_margin",
]


def score_assignment_loss(
    scores: Tensor,
    *,
    mining: Mining = "batch-hard",
    smoothing: Smoothing = "none",
    margin: float = 0.0,
    temperature: Temperature = 1.0,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""The whole family on a matrix of scores: Eq. (3), (4), (8) one-to-one and (12), (13), (14) row-wise.

    ``scores`` is [N, M], M >= N, larger is closer (minus a distance), the true partner of row i in column i;
    columns from N on are extra negatives. A score of -inf forbids a pair, which no true one may be.

    ================  ====================================  ================================================
    smoothing         mining="batch-hard" (rows choose      mining="one-to-one" (assignments)
                      freely)
    ================  ====================================  ================================================
    "none"            Eq. (12), the margin triplet loss     Eq. (3), by linear assignment
    "entropy"         Eq. (13), InfoNCE                     Eq. (4), exact, N <= 16
    "sinkhorn"                                              its relaxation to doubly stochastic matrices,
                                                            between Eq. (4) and Eq. (4) + τ log(N^N / N!)
    "sparse"          Eq. (14), SparseCLR                   Eq. (8), exact, N <= 7
    "sparsemap"                                             Eq. (14)'s own form on doubly stochastic matrices
    ================  ====================================  ================================================

    L >= 0. Departures from the print: the sparse term of Eq. (8), (14) is added, not subtracted, with a constant
    that makes the loss 0 at its minimum (with the printed sign negatives attract); the margin of S_m = S + m Y_gt
    applies to every cell; one-to-one <= row-wise for "none" and "entropy".

    Examples:
        >>> scores = -torch.tensor([[1.0, 0.5], [10.0, 1.0]])  # minus distances
        >>> sw.functional.score_assignment_loss(scores, margin=0.2, reduction="sum")  # the triplet loss, Eq. (12)
        tensor(0.7000)
        >>> sw.functional.score_assignment_loss(scores, margin=0.2, mining="one-to-one", reduction="sum")  # Eq. (3)
        tensor(0.)
    """
    check_matrix(scores, "scores", forbidden=-math.inf)
    if scores.ndim != 2 or scores.shape[0] > scores.shape[1]:
        raise ValueError(
            f"expected scores of shape (N, M) with M >= N, the partner of row i in column i, got {tuple(scores.shape)}"
        )
    options = {"mining": mining, "smoothing": smoothing, "margin": margin, "reduction": reduction}
    check_options(options | {"temperature": temperature}, _WORDS)
    check_temperature({"margin": margin, "temperature": temperature}, scores)
    check_matrix(scores.diagonal()[None], "the diagonal of scores, its true pairs,")
    partner = torch.arange(len(scores), device=scores.device)
    forbidden = scores == -math.inf  # set aside: 0 times infinity would be a learned temperature's gradient
    theta, off = full_precision(scores).masked_fill(forbidden, 0.0), 0.0
    if isinstance(temperature, Tensor):
        theta = divide(theta, partner, temperature, margin)
    else:
        theta, off = theta * (1 / temperature), margin / temperature
    theta = check_overflow(theta, "scores / temperature").masked_fill(forbidden, -math.inf)
    if off:
        take_margin(theta, partner, off)
    loss = structured_loss(theta, partner, mining, smoothing)
    return check_overflow(_reduce(loss, len(scores), reduction, temperature), "a loss")


_WORDS = words_of(score_assignment_loss)


@public
def assignment_loss(
    z_a: Tensor,
    z_b: Tensor,
    extra_negatives: Tensor | None = None,
    sets: KnownSets | None = None,
    *,
    mining: Mining = "batch-hard",
    smoothing: Smoothing = "none",
    margin: float = 0.0,
    temperature: Temperature = 1.0,
    similarity: Similarity = "euclidean",
    reduction: Reduction = "mean",
    symmetric: bool = False,
) -> Tensor:
    """The whole family on embeddings: ``score_assignment_loss`` of ``z_a`` against ``z_b`` and ``extra_negatives``.

    ``symmetric`` averages both directions; without extra negatives a one-to-one loss is symmetric as it is.

    Examples:
        >>> a, b = torch.tensor([[0.0], [1.0]]), torch.tensor([[0.9], [1.2]])
        >>> sw.functional.assignment_loss(a, b, mining="batch-hard")  # 1.0 is nearer to 0.9 than to 1.2
        tensor(0.0500)
        >>> sw.functional.assignment_loss(a, b, mining="one-to-one")  # as sets they are matched right
        tensor(0.)
    """
    if sets is not None:
        cell = (similarity, smoothing, temperature, margin)
        if mining == "one-to-one":
            loss = set_assignment_loss(z_a, z_b, extra_negatives, sets, symmetric, *cell)
            return _reduce(loss, (len(z_a) + len(z_b)) / 2 if symmetric else len(z_a), reduction, temperature)
        rows, partnered = set_row_losses(z_a, z_b, extra_negatives, sets, symmetric, False, *cell)
        mean = mean_of_partnered(rows, partnered)
        return mean if reduction == "mean" else rows.sum() * temperature / (2 if symmetric else 1)
    partner = torch.arange(len(z_a), device=z_a.device)
    losses = []
    both = symmetric and (mining == "batch-hard" or extra_negatives is not None)
    for anchors, others in [(z_a, z_b), (z_b, z_a)] if both else [(z_a, z_b)]:
        theta = dense_scores(anchors, others, extra_negatives, partner, similarity, temperature, margin)
        losses.append(structured_loss(theta, partner, mining, smoothing).sum())
    return _reduce(torch.stack(losses).mean(), len(z_a), reduction, temperature)


@public
def info_nce(
    z_a: Tensor,
    z_b: Tensor,
    extra_negatives: Tensor | None = None,
    labels: Tensor | None = None,
    sets: KnownSets | None = None,
    *,
    temperature: Temperature = 0.05,
    similarity: Similarity = "cosine",
    symmetric: bool = False,
    block_size: int | None = None,
    products: Products = "float32",
    peers: Processes | None = None,
) -> Tensor:
    r"""InfoNCE: the row-wise entropic assignment loss, Eq. (13) / (Nτ) (Proposition 2).

        mean_i [ -s_ii/τ + log Σ_j exp(s_ij/τ) ]

    over the rows of S_AB, the partner among the candidates; ``symmetric`` averages rows and columns. With ``labels``,
    s_ii is the mean of s_ij over the partners j of row i.

    Examples:
        >>> z = torch.eye(4)  # four items, every one orthogonal to the others
        >>> sw.functional.info_nce(z, z, temperature=0.5)  # log(1 + 3 / e²)
        tensor(0.3408)
        >>> sw.functional.info_nce(z, z.roll(1, 0), temperature=0.5)  # every partner is another one's
        tensor(2.3408)
        >>> sw.functional.info_nce(z, z, labels=torch.tensor([0, 0, 1, 1]), temperature=0.5)  # two partners each
        tensor(1.3408)
    """
    if sets is not None:
        more = (temperature, 0.0, None, block_size, peers)
        found = set_row_losses(z_a, z_b, extra_negatives, sets, symmetric, False, similarity, "entropy", *more)
        return mean_of_partnered(*found, peers)
    losses = cross_losses(
        *(z_a, z_b, extra_negatives, symmetric, similarity, "entropy", temperature),
        block_size=block_size,
        processes=peers,
        labels=labels,
        products=products,
    )
    return losses.mean() if peers is None else peers.finish(losses.mean())


@public
def nt_xent(
    z_a: Tensor,
    z_b: Tensor,
    extra_negatives: Tensor | None = None,
    labels: Tensor | None = None,
    sets: KnownSets | None = None,
    *,
    temperature: Temperature = 0.5,
    reduction: Literal["mean", "log-mean"] = "mean",
    similarity: Similarity = "cosine",
    clamp: float | None = None,
    block_size: int | None = None,
    products: Products = "float32",
    peers: Processes | None = None,
) -> Tensor:
    r"""NT-Xent, SimCLR's loss: Eq. (13) / (Nτ) with each of the 2N views choosing among the 2N - 1 others.

    With p_i the softmax probability of view i's partner: ``reduction="mean"`` is mean_i(-log p_i); ``"log-mean"``,
    the released code's form, is -log(mean_i p_i), which weighs views by how well they do already.
    ``clamp`` bounds every similarity from below, as the released code does with QARe.
    With ``labels`` it is SupCon's loss; "log-mean", which is of one partner, is then refused.

    Examples:
        >>> z = torch.eye(4)
        >>> sw.functional.nt_xent(z, z)  # log(1 + 6 / e²): six others beside the partner
        tensor(0.5944)
    """
    if sets is not None:
        more = (temperature, 0.0, clamp, block_size, peers)
        found = set_row_losses(z_a, z_b, extra_negatives, sets, True, True, similarity, "entropy", *more)
        return mean_of_partnered(*found, peers)
    losses = all_losses(
        *(z_a, z_b, extra_negatives, similarity, "entropy", temperature),
        clamp=clamp,
        block_size=block_size,
        processes=peers,
        labels=labels,
        products=products,
    )
    loss = losses.mean() if reduction == "mean" else math.log(len(losses)) - torch.logsumexp(-losses, 0)
    return loss if peers is None else peers.finish(loss)


@public
def sparse_clr(
    z_a: Tensor,
    z_b: Tensor,
    extra_negatives: Tensor | None = None,
    labels: Tensor | None = None,
    sets: KnownSets | None = None,
    *,
    margin: float = 1.0,
    candidates: Literal["all", "cross"] = "all",
    similarity: Similarity = "cosine",
    temperature: Temperature = 1.0,
    clamp: float | None = None,
    block_size: int | None = None,
    peers: Processes | None = None,
) -> Tensor:
    r"""SparseCLR: the row-wise sparse assignment loss, Eq. (14) / N with its sign mended.

        mean_i [ -s_ii + ½ Σ_{j in Ω_i} (s_ij² - T_i²) + ½ ],      the margin taken off s_ii

    Ω_i, T_i: support and threshold of sparsemax over row i, Eq. (15), (16). Negatives outside Ω_i have no gradient.
    ``candidates="all"``: every view among the 2N - 1 others (the released code); ``"cross"``: rows of S_AB.
    With ``labels``, s_ii is the mean of s_ij over the P_i partners j of row i, and ½ is ½/P_i.

    Examples:
        >>> z = torch.eye(4)
        >>> sw.functional.sparse_clr(z, z, margin=0.0), sw.functional.sparse_clr(z, z, margin=1.0)
        (tensor(0.), tensor(0.4286))
    """
    if sets is not None:
        every = candidates == "all"
        more = (temperature, margin, clamp, block_size, peers)
        found = set_row_losses(z_a, z_b, extra_negatives, sets, every, every, similarity, "sparse", *more)
        return mean_of_partnered(*found, peers)
    options = (temperature, margin, clamp, block_size, peers, labels)
    if candidates == "all":
        losses = all_losses(z_a, z_b, extra_negatives, similarity, "sparse", *options)
    else:
        losses = cross_losses(z_a, z_b, extra_negatives, False, similarity, "sparse", *options)
    return losses.mean() if peers is None else peers.finish(losses.mean())


@public
def triplet_margin(
    z_a: Tensor,
    z_b: Tensor,
    extra_negatives: Tensor | None = None,
    sets: KnownSets | None = None,
    *,
    margin: float = 0.5,
    similarity: Similarity = "euclidean",
    symmetric: bool = False,
) -> Tensor:
    r"""Batch-hard margin triplet loss: the row-wise hard assignment loss, Eq. (12) / N (Proposition 1).

        mean_i relu(m + d_ii - min_{j != i} d_ij)

    The proposition holds row-wise only; one-to-one, Eq. (3), is smaller or equal.

    Examples:
        >>> z = torch.eye(4)  # distances of √2
        >>> sw.functional.triplet_margin(z, z, margin=0.5)
        tensor(0.)
        >>> sw.functional.triplet_margin(z, z, margin=2.0)  # 2 - √2
        tensor(0.5858)
    """
    if sets is not None:
        found = set_row_losses(z_a, z_b, extra_negatives, sets, symmetric, False, similarity, "none", 1.0, margin)
        return mean_of_partnered(*found)
    return cross_losses(z_a, z_b, extra_negatives, symmetric, similarity, "none", margin=margin).mean()


@public
def nt_logistic(
    z_a: Tensor,
    z_b: Tensor,
    extra_negatives: Tensor | None = None,
    *,
    temperature: Temperature = 0.05,
    similarity: Similarity = "cosine",
    negatives: Literal["mean", "sum", "hardest"] = "mean",
    symmetric: bool = False,
) -> Tensor:
    r"""NT-Logistic: each pair classified on its own as true or false.

        mean_i [ softplus(-s_ii/τ) + R_{j != i} softplus(s_ij/τ) ]

    The paper cites word2vec and gives no formula: R is the mean (one positive to one negative, as in SimCLR's
    comparison), the sum, or the hardest. A single row has no negative term.

    Examples:
        >>> z = torch.eye(4)
        >>> sw.functional.nt_logistic(z, z, temperature=0.5)  # softplus(-2) + softplus(0)
        tensor(0.8201)
    """
    partner = torch.arange(len(z_a), device=z_a.device)
    losses = []
    for anchors, others in [(z_a, z_b), (z_b, z_a)] if symmetric else [(z_a, z_b)]:
        logits = dense_scores(anchors, others, extra_negatives, partner, similarity, temperature)
        losses.append(softplus(-logits.diagonal()))
        others = logits.masked_fill(torch.eye(*logits.shape, dtype=torch.bool, device=z_a.device), -math.inf)
        if others.shape[1] > 1:
            false = softplus(others)
            false = false.amax(1) if negatives == "hardest" else false.sum(1)
            losses[-1] = losses[-1] + (false / (others.shape[1] - 1) if negatives == "mean" else false)
    return torch.cat(losses).mean()


def _reduce(loss: Tensor, rows: float, reduction: Reduction, temperature: Temperature) -> Tensor:
    return loss.sum() / rows if reduction == "mean" else loss.sum() * temperature
