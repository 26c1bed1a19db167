r"""Spectral bounds on the quadratic assignment term, Eq. (7) and (17), dense or through a few dimensions.

For symmetric A, B of size N and any assignment Y,

    <λ_A, λ_B>_-  <=  tr(A Y B Y^T)  <=  <λ_A, λ_B>_+                         ("eigenvalue", the paper's bound)

where <.,.>_± are the greatest and least dot products over orderings: both sorted alike, or one the other way round.
The all-ones direction, which every permutation fixes, can be taken out first (Hadley, Rendl, Wolkowicz 1992): with
V an orthonormal basis of its complement, row sums r(.) and total sums s(.),

    <λ(V^T A V), λ(V^T B V)>_±  +  (2/N) <r(A), r(B)>_±  -  s(A) s(B) / N²    ("projection", usually much tighter)

Everything here works on the two matrices stacked, [2, N, N], or on what stands for them: a ``Compressed`` pair,
whose eigenvalues are those of a small core and one repeated value. Nothing differentiates an eigen-solver: with
A = W diag(λ) W^T the gradient of either dot product in A is W diag(λ_B in A's order) W^T.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from setwise.checks import check_like, check_option, check_overflow, check_symmetric, one_derivative
from setwise.kernels.eigh import eigh
from setwise.kernels.rows import spectra_product, unit_rows, unit_rows_backward
from setwise.similarity import Factor, autocast_off, full_precision, widest_precision

Bound = Literal["eigenvalue", "projection", "best"]
BOUNDS: tuple[Bound, ...] = ("eigenvalue", "projection", "best")


MATRICES = "matrices of products"  # what overflows where finite distances do not


class Compressed(NamedTuple):
    """Two symmetric matrices of size ``size`` by what their spectra are made of.

    Each has the eigenvalues of its ``core`` [2, r, r] and, size - r times, its ``rest`` [2].
    """

    core: Tensor
    rest: Tensor
    size: int


def compress_dense(s: Tensor) -> Compressed:
    """[2, N, N] as they are."""
    return Compressed(s, s.new_zeros(2), s.shape[-1])


GRAM_CHUNK = 512  # rows multiplied at a time: a GPU has work for all its cores, and sums stay short


class _Gram(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        ctx.save_for_backward(rows)
        n, r = rows.shape[-2:]
        whole = n // GRAM_CHUNK * GRAM_CHUNK if n >= 2 * GRAM_CHUNK else 0
        tail = rows[..., whole:, :]
        product: Tensor = tail.mT @ tail if whole < n else rows.new_zeros(())
        if whole:
            chunks = rows[..., :whole, :].reshape(*rows.shape[:-2], -1, GRAM_CHUNK, r)
            product = product + (chunks.mT @ chunks).sum(-3)
        return product

    @staticmethod
    @one_derivative
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (rows,) = ctx.saved_tensors
        product: Tensor = rows @ (grad + grad.mT)
        return product


# F^T F of F [..., N, r], [..., r, r]; its backward is one product.
gram: Callable[[Tensor], Tensor] = _Gram.apply


def compress_factor(factor: Factor, size: int) -> Compressed:
    """S = F C F^T with F [2, N, r] through r dimensions: exact, O(N r²). ``size`` <= N counts eigenvalues.

    For C = 1 the core is the Gram matrix F^T F. Otherwise, with F = Q R, it is R C R^T; Q is a constant to the
    gradient, since S stays within its span to first order.
    """
    rows, middle = factor
    if middle is None:
        return Compressed(gram(rows), rows.new_zeros(2), size)
    basis = torch.linalg.qr(rows.detach()).Q
    small = basis.mT @ rows
    return Compressed(small @ middle @ small.mT, rows.new_zeros(2), size)


# Krylov steps, and columns beyond k. More steps buy more than more columns, and cost more.
KRYLOV_STEPS = 3
OVERSAMPLING = 8
# Units of |S|²_F that rounding takes off |S - S̃|²_F in ``leading_error``: up to 20 were found, and 79 at N = 2000.
ROUNDING = 128


def leading_fits(n: int, k: int) -> bool:
    """Whether N leaves room for the Krylov space of k leading eigenvalues of each end, and for as many columns again.

    Without that room random columns are nearly dependent once they are orthogonal to all others.
    """
    return (KRYLOV_STEPS + 2) * (k + OVERSAMPLING) <= n


@torch.no_grad()
def leading_ends(s: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k least and k greatest eigenvalues of S [2, N, N] and their vectors, [2, 2k] and [2, N, 2k].

    Block Lanczos iteration: Rayleigh-Ritz on the span of (Ω, S Ω, ..., S^steps Ω) for a fixed random block Ω of
    k + OVERSAMPLING columns, every block made orthogonal to all before it. Where that span ends early, as it does for
    few distinct eigenvalues, other random columns go on. O(N² k) a step.
    """
    columns = k + OVERSAMPLING
    # What is made while torch traces stands for no numbers, and must not be kept for who comes later.
    draw = _random_block.__wrapped__ if torch.compiler.is_compiling() else _random_block
    random = draw(s.shape[-1], (KRYLOV_STEPS + 2) * columns, s.dtype, s.device)
    block, *fresh = random.expand(len(s), -1, -1).chunk(KRYLOV_STEPS + 2, -1)
    basis = block[..., :0]
    products = []
    for other in fresh:
        for _ in range(2):  # once more for what rounding left of the first time, and for the fresh columns
            block = _orthonormal(block, basis, other)
        basis = torch.cat([basis, block], -1)
        block = s @ block
        products.append(block)
    values, vectors = _eigh(basis.mT @ torch.cat(products, -1))
    ends = torch.cat([values[..., :k], values[..., -k:]], -1)
    return ends, basis @ torch.cat([vectors[..., :k], vectors[..., -k:]], -1)


def _eigh(a: Tensor) -> tuple[Tensor, Tensor]:
    return eigh(check_overflow(a, MATRICES))


@lru_cache(maxsize=8)  # kept, so that nothing is copied to the device in a step that is being captured
def _random_block(n: int, columns: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A fixed random block [n, columns] of about unit columns: the same S gives the same value."""
    block = torch.randn(n, columns, generator=torch.Generator().manual_seed(0), device="cpu") / math.sqrt(n)
    return block.to(device, dtype)


def _orthonormal(block: Tensor, basis: Tensor, fresh: Tensor) -> Tensor:
    """An orthonormal basis of what the columns span beyond ``basis``, and columns of ``fresh`` for what is missing.

    By the eigenvectors of the small Gram matrix: two products and one small kernel on a GPU, where a QR decomposition
    is a long chain of steps.
    """
    size = block.square().sum((-1, -2))
    block = block - basis @ (basis.mT @ block)
    values, vectors = _eigh(block.mT @ block)
    eps = torch.finfo(block.dtype).eps
    there = values > 10 * eps * values[..., -1:]  # what a Gram matrix can tell from rounding
    there &= values > (100 * eps) ** 2 * size[..., None]  # what the difference can: in rounding alone is no direction
    scale = torch.where(there, values, 1).rsqrt().mul_(there)[..., None, :]
    return block @ (vectors * scale) + fresh * ~there[..., None, :]


def compress_leading(s: Tensor, k: int) -> Compressed:
    """The k leading eigenvalues of each end of S [2, N, N], and the mean of the others for each of those.

    Such a spectrum is majorised by the true one, so <.,.>_+ comes out too small and <.,.>_- too large, if anything,
    by at most ``leading_error``. Measured for Euclidean distances of unit vectors, N = 2048, E = 64, k = 8: 2 % where
    all directions are alike, 0.02 % where they fall off as 1/i. The gradient's error is larger, since eigenvectors left
    out differ where eigenvalues hardly do: at N = 512, ten draws, 10 to 76 % of its length where all directions are
    alike, 0.3 % where they fall off as 1/i.
    """
    n = s.shape[-1]
    if not leading_fits(n, k):
        return compress_dense(s)
    _, ends = leading_ends(s, k)
    core = ends.mT @ s @ ends  # S changes its leading eigenvalues by v^T dS v; the vectors are constants
    traces = s.diagonal(dim1=-2, dim2=-1).sum(-1) - core.diagonal(dim1=-2, dim2=-1).sum(-1)
    return Compressed(core, traces / (n - 2 * k), n)


class _EuclideanEnds(torch.autograd.Function):
    """``leading_ends`` of the Euclidean distances within both sets [2, N, E], without a graph over N² entries.

    The gradient of Σ_ij G_ij |z_i - z_j| with G = V diag(g) V^T is 2 Σ_j W_ij (z_i - z_j), W_ij = G_ij / |z_i - z_j|.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, k: int) -> Tensor:
        z = z - z.mean(-2, keepdim=True)  # distances do not change, digits do
        squares = (z * z).sum(-1, keepdim=True)
        ones = torch.ones_like(squares)
        s = torch.cat([-2 * z, squares, ones], -1) @ torch.cat([z, ones, squares], -1).mT
        s.clamp_min_(0).sqrt_().diagonal(dim1=-2, dim2=-1).zero_()
        values, vectors = leading_ends(s, k)
        ctx.save_for_backward(z, s, vectors)
        return values

    @staticmethod
    @one_derivative
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        z, s, vectors = ctx.saved_tensors
        weights = (vectors * grad[:, None, :]) @ vectors.mT
        weights.div_(s).masked_fill_(s == 0, 0)  # a distance of 0 has gradient 0
        moved = weights @ torch.cat([z, torch.ones_like(z[..., :1])], -1)
        return 2 * (moved[..., -1:] * z - moved[..., :-1]), None


def compress_euclidean(z: Tensor, k: int) -> Compressed:
    """``compress_leading`` of the Euclidean distances within both sets z [2, N, E], in a third of its time."""
    n = z.shape[-2]
    values: Tensor = _EuclideanEnds.apply(z, k)  # type: ignore[no-untyped-call]
    return Compressed(torch.diag_embed(values), -values.sum(-1) / (n - 2 * k), n)


def leading_error(s: Tensor, pair: Compressed) -> Tensor:
    r"""How far an ordered dot product of ``pair`` can be from that of the two matrices S [2, N, N] it stands for.

    With S̃ what the pair stands for and δ = |S - S̃|_F, eigenvalues move by at most δ in the 2-norm (Hoffman and
    Wielandt), so the dot product by at most δ_A |S_B|_F + δ_B |S̃_A|_F. δ² is a difference of squares, the last
    digits of which are rounding: what they may hide counts too.
    """
    kept = pair.core.square().sum((-1, -2)) + (pair.size - pair.core.shape[-1]) * pair.rest.square()
    whole = s.square().sum((-1, -2))
    hidden = ROUNDING * torch.finfo(s.dtype).eps * whole
    delta = ((whole - kept).clamp_min(0) + hidden).sqrt()
    return delta[0] * whole[1].sqrt() + delta[1] * kept[0].sqrt()


def _eigenvalues(s: Tensor) -> Tensor:
    """Ascending, [2, r], where nothing needs the vectors."""
    if s.is_cuda:  # there, only our own solver runs without a host sync
        return eigh(s)[0]
    # In float32 the CPU's solver fails, or gives NaN, on finite matrices with many eigenvalues near zero.
    values: Tensor = torch.linalg.eigvalsh(widest_precision(s))
    return values.to(s.dtype)


class OrderedDot(torch.autograd.Function):
    """<λ_A, λ_B>_± of a compressed pair and its closed-form gradient in core and rest; see ``ordered_dot``."""

    @staticmethod
    def forward(ctx: Any, core: Tensor, rest: Tensor, size: int, largest: bool) -> Tensor:
        core = check_overflow(core, MATRICES)
        values, vectors = eigh(core) if ctx.needs_input_grad[0] else (_eigenvalues(core), None)
        met, rest_met, value = spectra_product(values, rest, size, largest)
        if vectors is not None:
            ctx.save_for_backward((vectors * met[:, None, :]) @ vectors.mT, rest_met)
        return value

    @staticmethod
    @one_derivative
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        core_grad, rest_grad = ctx.saved_tensors
        return grad * core_grad, grad * rest_grad, None, None


def ordered_dot(pair: Compressed, *, largest: bool) -> Tensor:
    """<λ_A, λ_B>_+ (``largest``) or <λ_A, λ_B>_-, counting every repeated eigenvalue."""
    value: Tensor = OrderedDot.apply(*pair, largest)  # type: ignore[no-untyped-call]
    return value


class _CosineDot(torch.autograd.Function):
    """``cosine_dot`` with its gradient: as many small steps with a backward each take longer than the eigenvalues."""

    @staticmethod
    def forward(ctx: Any, z_a: Tensor, z_b: Tensor, shift: float, gap: bool, divisor: int) -> Tensor:
        gradient = any(ctx.needs_input_grad)
        unit, lengths = unit_rows(torch.stack([z_a, z_b]))
        s = torch.bmm(unit, unit.mT).add_(shift)
        # A gap is a small difference of large numbers.
        values, vectors = eigh(s, quick=not gap) if gradient else (_eigenvalues(s), None)
        value = values[0] @ values[1]
        if gap:
            value -= (s[0] * s[1]).sum()
        if vectors is not None:
            grad = torch.bmm(vectors * values.flip(0)[:, None], vectors.mT)
            if gap:
                grad -= s.flip(0)
            grad = torch.baddbmm(unit, grad, unit, beta=0, alpha=2 / divisor)
            ctx.save_for_backward(unit_rows_backward(grad, unit, lengths, z_a.shape[-1]))
        return value / divisor

    @staticmethod
    @one_derivative
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grad_a, grad_b = (grad * ctx.saved_tensors[0]).unbind()
        return grad_a, grad_b, None, None, None


# <λ_A, λ_B>_+ / divisor of shift + cosines within both sets [N, E], by (z_a, z_b, shift, gap, divisor); less
# <S_A, S_B> / divisor for a gap.
cosine_dot: Callable[..., Tensor] = _CosineDot.apply


def project_ones(s: Tensor) -> Tensor:
    """V^T S V for [..., N, N] → [..., N-1, N-1]: a Householder reflection takes the ones vector to the first axis."""
    n = s.shape[-1]
    u = s.new_full((n, 1), n**-0.5)
    u[0] += 1
    u = u / torch.linalg.vector_norm(u)
    half = s @ u
    q = 2 * (half - u * (u.mT @ half))
    reflected: Tensor = s - u @ q.mT - q @ u.mT
    return reflected[..., 1:, 1:]


def ordered_row_sums(sums: Tensor, *, largest: bool) -> Tensor:
    """The projection bound's other terms, (2/N) <r(A), r(B)>_± - s(A) s(B) / N², from row sums [2, N]."""
    n = sums.shape[-1]
    first, second = sums.sort(-1).values
    return 2 / n * torch.dot(first, second if largest else second.flip(0)) - sums[0].sum() * sums[1].sum() / n**2


def spectral_bounds(a: Tensor, b: Tensor, *, bound: Bound = "eigenvalue") -> tuple[Tensor, Tensor]:
    """Lower and upper bound on tr(A Y B Y^T) over all assignments Y, for symmetric A, B [N, N]; Eq. (7), (17).

    ``bound="best"`` takes the tighter of "eigenvalue" and "projection" at each end. Differentiable. In float32 at
    least, also under autocast.

    Examples:
        >>> a, b = torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([[0.0, 2.0], [2.0, 0.0]])
        >>> sw.assignment.spectral_bounds(a, b)  # any assignment gives 4
        (tensor(-4.), tensor(4.))
        >>> sw.assignment.spectral_bounds(a, b, bound="projection")
        (tensor(4.0000), tensor(4.0000))
    """
    check_symmetric(a, "a")
    check_symmetric(b, "b")
    check_like(b, "b", a, "a")
    if a.ndim != 2:
        raise ValueError(f"expected a of shape (N, N), one matrix, got {tuple(a.shape)}")
    check_option(bound, BOUNDS, "bound")
    s = full_precision(torch.stack([a, b]))
    ends = []
    with autocast_off(s):
        for largest in (False, True):
            values = []
            if bound in ("eigenvalue", "best"):
                values.append(ordered_dot(compress_dense(s), largest=largest))
            if bound in ("projection", "best"):
                sums = ordered_row_sums(s.sum(-1), largest=largest)
                projected = ordered_dot(compress_dense(project_ones(s)), largest=largest) if len(a) > 1 else 0.0
                values.append(sums + projected)
            stacked = torch.stack(values)
            ends.append(stacked.amin(0) if largest else stacked.amax(0))
    return ends[0], ends[1]
