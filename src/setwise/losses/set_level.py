r"""The set level: the quadratic assignment loss, Eq. (6), and QARe, its spectral bound as a regulariser, Eq. (7), (17).

Directions. The paper's Eq. (5) minimises tr(S Y^T) + tr(S_A Y S_B^T Y^T) for a distance; Eq. (17) maximises the same
for a similarity. Only the second is consistent: for two identical sets the identity *maximises* the quadratic term
whichever φ is, so with distances Eq. (5) prefers to anti-align. QARe keeps the paper's form by default;
``reference="truth"`` is the consistent one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor

from setwise.assignment.linear import solve_linear
from setwise.assignment.quadratic import quadratic_objective, solve_quadratic
from setwise.assignment.spectrum import (
    Bound,
    Compressed,
    OrderedDot,
    compress_dense,
    compress_euclidean,
    compress_factor,
    compress_leading,
    cosine_dot,
    gram,
    leading_fits,
    ordered_dot,
    ordered_row_sums,
    project_ones,
    spectral_bounds,
)
from setwise.checks import check_like, check_option, check_square, one_derivative, see
from setwise.kernels.rows import unit_rows, unit_rows_backward
from setwise.losses.options import public
from setwise.losses.parallel import Processes
from setwise.similarity import (
    Factor,
    Similarity,
    autocast_off,
    full_precision,
    intra_factor,
    pairwise,
    widest_precision,
)

Spectrum = Literal["auto", "dense", "lowrank", "topk"]
Direction = Literal["distance", "similarity"]
MEAN_ROUNDING = 64  # units of rounding by which a mean of equal items may miss them: 9 were found, for 3 million


class QuadraticLoss(NamedTuple):
    """L_QAP and the two quantities that bound it from above, Eq. (6), (7), (17): loss <= split <= spectral."""

    loss: Tensor
    split: Tensor
    spectral: Tensor


def quadratic_assignment_loss(
    s: Tensor, s_a: Tensor, s_b: Tensor, *, direction: Direction = "distance", bound: Bound = "eigenvalue"
) -> QuadraticLoss:
    r"""Structured quadratic assignment loss and its chain of bounds, Eq. (6), (7) and (17).

        distance     L_QAP = tr(S Y_gt^T) - min_Y {tr(S Y^T) + tr(S_A Y S_B^T Y^T)}
                          <= L(S, Y_gt) - min_Y tr(S_A Y S_B^T Y^T)     <=  L(S, Y_gt) - <λ_A, λ_B>_-
        similarity   the same with max for min and the signs turned, up to  L(S, Y_gt) + <λ_A, λ_B>_+

    ``s`` [N, N] with the true partner of row i in column i, ``s_a``, ``s_b`` symmetric. Exact while
    ``solve_quadratic`` is (small N); beyond, its heuristic makes ``loss`` and ``split`` lower estimates.
    Differentiable at the assignments found. In float32 at least, also under autocast.

    Examples:
        >>> s = torch.cdist(*2 * [torch.tensor([[0.0], [1.0], [3.0]])])
        >>> bounds = sw.functional.quadratic_assignment_loss(s, s, s)
        >>> bounds.loss <= bounds.split <= bounds.spectral
        tensor(True)
    """
    check_square(s, "s")
    check_option(direction, ("distance", "similarity"), "direction")
    for matrix, name in ((s_a, "s_a"), (s_b, "s_b")):
        check_like(matrix, name, s, "s")
    maximize, sign = direction == "similarity", 1 if direction == "similarity" else -1
    lower, upper = spectral_bounds(s_a, s_b, bound=bound)  # first: how symmetric they are is a matter of their dtype
    s, s_a, s_b = full_precision(s), full_precision(s_a), full_precision(s_b)
    joint = solve_quadratic(s_a, s_b, linear=s, maximize=maximize).permutation
    apart = solve_quadratic(s_a, s_b, maximize=maximize).permutation
    best = s.gather(1, solve_linear(s, maximize=maximize)[:, None]).sum()
    linear = sign * (best - s.trace())
    return QuadraticLoss(
        loss=sign * (quadratic_objective(s_a, s_b, joint, linear=s) - s.trace()),
        split=linear + sign * quadratic_objective(s_a, s_b, apart),
        spectral=linear + (upper if maximize else -lower),
    )


@public
def qare(
    z_a: Tensor,
    z_b: Tensor,
    *,
    similarity: Similarity = "cosine",
    bound: Bound = "eigenvalue",
    spectrum: Spectrum = "auto",
    k: int | None = None,
    reference: Literal["none", "truth"] = "none",
    normalization: Literal["n2", "n(n-1)", "none"] = "n2",
    shift: float | None = None,
    clamp: float | None = None,
    center: bool = False,
    peers: Processes | None = None,
) -> Tensor:
    r"""Quadratic assignment regularisation: the set-level term of Eq. (7) / (17), Algorithms 1 and 2.

        cosine       <λ(1 + S_A), λ(1 + S_B)>_+ / N²        (Algorithm 2: similarities made non-negative by the shift)
        distances   -<λ(S_A), λ(S_B)>_-         / N²        (Algorithm 1)

    ``bound``: "eigenvalue" is the paper's; "projection" takes the all-ones direction out first; "best" the smaller.
    ``reference="truth"`` subtracts what the true matching attains, for every similarity,

        <λ_A, λ_B>_+ - tr(S_A S_B^T)  >=  0,

    zero exactly where the true matching pairs the eigenvectors in the order of their eigenvalues: an alignment gap,
    where the paper's term is a uniformity penalty.

    ``spectrum``: "dense" O(N³); "lowrank" exact, O(N E² + E³), cosine and squared Euclidean; "topk" the k leading
    eigenvalues of each end and the mean for the others (``assignment.spectrum.leading_error`` bounds the value's error;
    the gradient's is larger, 10 to 76 % where all directions are alike, see ``assignment.spectrum.compress_leading``),
    but not with a reference, which leaves nothing out; "auto" the cheapest exact one. ``shift`` is added to every
    similarity (default 1 for cosine, 0 for distances), ``clamp`` bounds them from below before that; the released code
    clamps at 1e-8 and divides by N(N-1), see ``presets``. ``center`` takes the mean of each set off its items first, so
    that it is how they differ that is compared: for features that lie to one side of the origin, such as those behind a
    ReLU. Value and gradient are float32 at least, also under autocast: the gradient if ``backward`` is called outside
    the autocast block, as torch advises. ``peers``: over the batches of many processes together, with a message that
    does not grow with N for cosine and the eigenvalue bound.

    Examples:
        >>> spread, collapsed = torch.eye(4), torch.ones(4, 4)
        >>> sw.functional.qare(spread, spread), sw.functional.qare(collapsed, collapsed)  # a uniformity penalty
        (tensor(1.7500), tensor(4.))
        >>> sw.functional.qare(spread, spread, reference="truth").abs() < 1e-5  # equal structures: no alignment gap
        tensor(True)
        >>> line = torch.tensor([[0.0], [1.0], [3.0], [7.0]])
        >>> sw.functional.qare(line, line[[2, 0, 3, 1]], similarity="euclidean", reference="truth")  # another order
        tensor(5.2500)
    """
    return qare_beside(
        z_a,
        z_b,
        similarity=similarity,
        bound=bound,
        spectrum=spectrum,
        k=k,
        reference=reference,
        normalization=normalization,
        shift=shift,
        clamp=clamp,
        center=center,
        peers=peers,
    )[0]


def qare_beside(
    z_a: Tensor,
    z_b: Tensor,
    *,
    similarity: Similarity,
    bound: Bound,
    spectrum: Spectrum,
    k: int | None,
    reference: Literal["none", "truth"],
    normalization: Literal["n2", "n(n-1)", "none"],
    shift: float | None,
    clamp: float | None,
    center: bool,
    peers: Processes | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """``qare``, and both sets for another loss of ours.

    Of many rows, backward adds its gradient in place to that loss's, so it needs no memory of a set's size.
    """
    if peers is not None:
        peers.check_equal_parts(z_a)
    n = z_a.shape[0] * (1 if peers is None else peers.size)
    if normalization == "n(n-1)" and n == 1:
        raise ValueError(
            'expected at least two rows with normalization="n(n-1)", got 1; leave a last batch of one row out by '
            f'drop_last=True, or use "n2", {see("how-to/add-qare#rows")}'
        )
    divisor = {"n2": n**2, "n(n-1)": n * (n - 1), "none": 1}[normalization]
    if shift is None:
        shift = 1.0 if similarity == "cosine" else 0.0
    lowrank = spectrum in ("auto", "lowrank") and clamp is None
    few = n <= z_a.shape[1] + 1  # items, for a factor to be smaller than the matrix
    dtype = torch.promote_types(z_a.dtype, torch.float32)
    with autocast_off(z_a):
        if few and lowrank and similarity == "cosine" and bound == "eigenvalue" and not center and peers is None:
            return cosine_dot(z_a.to(dtype), z_b.to(dtype), shift, reference == "truth", divisor), z_a, z_b
        many = z_a.shape[0] > MANY and similarity == "cosine" and shift >= 0
        if many and lowrank and bound == "eigenvalue" and not center:
            z_a, z_b, grams = products_of_rows(z_a, z_b, shift, reference == "truth")
            value = _gram_term(grams, max(n, grams.shape[-1]), peers) / divisor
            return value if peers is None else peers.finish(value), z_a, z_b
        z = torch.stack([z_a, z_b]).to(dtype)
        if center:
            z = centred(z, peers)
        factor = intra_factor(z, similarity=similarity, shift=shift) if lowrank else None
        # A Gram matrix is a sum over items, so over processes it needs no item itself; all else needs them all.
        additive = factor is not None and factor.middle is None and bound == "eigenvalue"
        if peers is not None and not additive:
            z = peers.gather(z.transpose(0, 1)).transpose(0, 1)
            factor = None if factor is None else intra_factor(z, similarity=similarity, shift=shift)
        # Leading eigenvalues of the plain distances alone need no graph over N² entries.
        plain = similarity == "euclidean" and bound == "eigenvalue" and not shift
        if k is not None and plain and clamp is None and leading_fits(n, k):
            value = -ordered_dot(compress_euclidean(z, k), largest=False)
        elif factor is None:
            matrices = pairwise(z, z, similarity=similarity)
            matrices = (matrices if clamp is None else matrices.clamp_min(clamp)) + shift
            value = _dense_term(matrices, similarity, bound, reference, k)
        elif additive and (peers is not None or n - 1 > factor.rows.shape[-1]):
            rows = factor.rows
            products = [*gram(rows), *([rows[0].mT @ rows[1]] if reference == "truth" else [])]
            value = _gram_term(torch.stack(products), max(n, rows.shape[-1]), peers)
        elif n - 1 <= factor.rows.shape[-1]:  # too few items for the factor to be the smaller matrix
            value = _dense_term(factor.matrix(), similarity, bound, reference, None)
        else:
            value = _factor_term(factor, similarity, bound, reference)
        value = value / divisor
        return value if peers is None else peers.finish(value), z_a, z_b


def centred(z: Tensor, peers: Processes | None) -> Tensor:
    """Both sets [2, N, E] less their means (over all peers); items within rounding of the mean are 0, gradient 0.

    Without this rule, rounding would count as their direction. In float64, where no two float32 items are so near.
    """
    wide = widest_precision(z)
    mean = wide.mean(1)
    mean = (mean if peers is None else peers.gather(mean[None]).mean(0))[:, None]
    centred = wide - mean
    least = MEAN_ROUNDING * torch.finfo(wide.dtype).eps * mean.abs().amax(-1, keepdim=True)
    return torch.where(centred.abs().amax(-1, keepdim=True) > least, centred, 0).to(z.dtype)


def _gram_term(grams: Tensor, size: int, peers: Processes | None) -> Tensor:
    """The eigenvalue bound for F F^T, from F^T F of both sets alone, and with F_A^T F_B less what the truth attains.

    Over processes it is a sum of r² numbers for each. Where N < r, as it may be over processes, the Gram matrices have
    r - N zero eigenvalues too many; being the smallest of both, they meet.
    """
    sums = grams if peers is None else peers.total(grams)
    value: Tensor = OrderedDot.apply(sums[:2], sums.new_zeros(2), size, True)  # type: ignore[no-untyped-call]
    return value if sums.shape[0] == 2 else value - sums[2].square().sum()


MANY = 2**15  # rows that are normalised at a time, where there are more


class _ProductsOfRows(torch.autograd.Function):
    """Two sets [N, E] as they are, and F^T F of the unit rows of each, and F_A^T F_B if asked for; some rows at a time.

    Backward adds its gradients in place to those that come for the sets: the loss that gave these must not keep them.
    """

    @staticmethod
    def forward(ctx: Any, z_a: Tensor, z_b: Tensor, shift: float, cross: bool) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(z_a, z_b)
        ctx.append, ctx.cross = shift**0.5 if shift else None, cross
        ctx.set_materialize_grads(False)
        total: Tensor | float = 0.0
        for start in range(0, len(z_a), MANY):
            (a, _), (b, _) = _unit_parts((z_a, z_b), start, ctx.append)
            total = torch.stack([gram(a), gram(b), *([a.mT @ b] if cross else [])]) + total
        return z_a.view_as(z_a), z_b.view_as(z_b), cast(Tensor, total)

    @staticmethod
    @one_derivative
    def backward(ctx: Any, of_a: Tensor | None, of_b: Tensor | None, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return of_a, of_b, None, None
        sets: tuple[Tensor, Tensor] = ctx.saved_tensors
        width = sets[0].shape[1]
        given = zip(sets, (of_a, of_b), strict=True)
        totals = [torch.zeros_like(z) if of is None else of.contiguous() for z, of in given]
        own = grad[:2] + grad[:2].mT
        for start in range(0, len(sets[0]), MANY):
            parts = _unit_parts(sets, start, ctx.append)
            for k, (rows, lengths) in enumerate(parts):
                of_rows = rows @ own[k]
                if ctx.cross:
                    of_rows.addmm_(parts[1 - k][0], grad[2] if k else grad[2].mT)
                totals[k][start : start + MANY] += unit_rows_backward(of_rows, rows, lengths, width)
        return *totals, None, None


def _unit_parts(sets: Sequence[Tensor], start: int, append: float | None) -> list[tuple[Tensor, Tensor]]:
    """Unit rows from ``start`` on, of each set, with their lengths."""
    return [unit_rows(full_precision(z[start : start + MANY]), append) for z in sets]


products_of_rows: Callable[..., tuple[Tensor, Tensor, Tensor]] = _ProductsOfRows.apply


def _dense_term(s: Tensor, similarity: Similarity, bound: Bound, reference: str, k: int | None) -> Tensor:
    def compress(s: Tensor) -> Compressed:
        return compress_dense(s) if k is None else compress_leading(s, k)

    projected = compress(project_ones(s)) if bound != "eigenvalue" and s.shape[-1] > 1 else None
    whole = compress(s) if bound != "projection" else None
    true = (s[0] * s[1]).sum() if reference == "truth" else None
    return _set_term(whole, projected, s.sum(-1), similarity, bound, true)


def _factor_term(factor: Factor, similarity: Similarity, bound: Bound, reference: str) -> Tensor:
    rows, middle = factor
    n = rows.shape[-2]
    centred = Factor(rows - rows.mean(-2, keepdim=True), middle) if bound != "eigenvalue" else None
    projected = compress_factor(centred, n - 1) if centred is not None else None
    whole = compress_factor(factor, n) if bound != "projection" else None
    sums = factor.row_sums() if bound != "eigenvalue" else rows
    true = None
    if reference == "truth":
        cross = rows[0].mT @ rows[1]
        true = cross.square().sum() if middle is None else ((middle @ cross) * (cross @ middle)).sum()
    return _set_term(whole, projected, sums, similarity, bound, true)


def _set_term(
    whole: Compressed | None,
    projected: Compressed | None,
    row_sums: Tensor,
    similarity: Similarity,
    bound: Bound,
    true: Tensor | None,
) -> Tensor:
    """The chosen bound on the quadratic term, as a loss: the smaller, the tighter."""
    largest = true is not None or similarity == "cosine"
    sign = 1 if largest else -1
    values = []
    if whole is not None:
        values.append(sign * ordered_dot(whole, largest=largest))
    if bound != "eigenvalue":
        value = ordered_row_sums(row_sums, largest=largest)
        values.append(sign * (value if projected is None else value + ordered_dot(projected, largest=largest)))
    value = values[0] if len(values) == 1 else torch.minimum(*values)
    return value if true is None else value - true
