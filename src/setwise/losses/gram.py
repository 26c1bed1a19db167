r"""Terms on whole sets, from sums over their items: E×E matrices of products, or less.

With unit rows X of a set [N, E], rows Z less their mean, and both views A and B of the same items,

coding_rate         -½ log det(1 + E/(N ε²) XᵀX)                     mean over views         EMP-SSL, MCR²
nuclear_norm        -‖½(X_A + X_B)‖_*                                sum of singular values  MMCR
variance            mean_j max(0, γ - √(var_j + ε))                  mean over views         VICReg
covariance          1/E Σ_{i≠j} cov_ij²                              sum over views          VICReg
barlow_twins        Σ_i (1 - C_ii)² + λ Σ_{i≠j} C_ij²                C = correlations A×B    Barlow Twins
cka                 1 - ‖Z_AᵀZ_B‖² / (‖Z_AᵀZ_A‖ ‖Z_BᵀZ_B‖)                                  linear CKA
uniformity          log mean_{i≠j} exp(-t |x_i - x_j|²)              mean over views         Wang and Isola

All but the last are functions of sums over items: O(N E²), and over processes a sum of at most 3 E² numbers, whatever
N is. What is centred needs the means too, 2 E numbers of every process. Uniformity needs every pair of items: O(N² E),
and over processes every process gets all rows.

All give float32 at least, also under autocast. A zero row has gradient zero where rows are made unit rows.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

import setwise.register as register
from setwise.assignment.spectrum import MATRICES, gram
from setwise.checks import check_overflow, one_derivative
from setwise.kernels.eigh import LARGEST, eigh
from setwise.losses.modules import _Loss
from setwise.losses.options import public
from setwise.losses.parallel import Processes
from setwise.losses.set_level import centred
from setwise.similarity import autocast_off, full_precision, normalize, widest_precision


def items(z: Tensor, peers: Processes | None) -> int:
    """How many items there are, of all processes together; an error where their parts differ."""
    if peers is None:
        return len(z)
    peers.check_equal_parts(z)
    return len(z) * peers.size


def total(x: Tensor, peers: Processes | None) -> Tensor:
    """``x``, summed over processes."""
    return x if peers is None else peers.total(x)


def finish(value: Tensor, peers: Processes | None) -> Tensor:
    """The value, with its gradient as ``peers`` has it."""
    return value if peers is None else peers.finish(value)


def _both_centred(z_a: Tensor, z_b: Tensor, peers: Processes | None) -> Tensor:
    """Both sets less their means, [2, N, E], in float32 at least."""
    return centred(full_precision(torch.stack([z_a, z_b])), peers)


def _shorter(rows: Tensor, peers: Processes | None) -> Tensor:
    """``rows`` [..., N, E], transposed where N < E: the smaller of both Gram matrices has the same spectrum.

    Over processes only the one of E² numbers is a sum over items.
    """
    return rows.mT if peers is None and rows.shape[-2] < rows.shape[-1] else rows


@public
def coding_rate(z_a: Tensor, z_b: Tensor, *, distortion: float = 0.2, peers: Processes | None = None) -> Tensor:
    r"""Minus the total coding rate of unit rows X [N, E], the mean over both views.

        -½ log det(1 + E / (N ε²) XᵀX),    ε² = ``distortion``

    It is least where all directions are used alike: -½ E log(1 + 1/ε²) for N >= E, so its scale grows with E and not
    with N. ``distortion`` is the ε² of EMP-SSL's paper (Tong et al. 2023); their code and lightly's call the same
    number eps. The value is 0 only for zero rows; a collapsed set has -½ log(1 + E/ε²).

    Examples:
        >>> spread, collapsed = torch.eye(4), torch.ones(4, 4)
        >>> sw.losses.gram.coding_rate(spread, spread), sw.losses.gram.coding_rate(collapsed, collapsed)
        (tensor(-3.5835), tensor(-1.5223))
    """
    with autocast_off(z_a):
        return finish(
            -coding_rates(normalize(torch.stack([z_a, z_b])), distortion=distortion, peers=peers).mean(), peers
        )


def coding_rates(rows: Tensor, *, distortion: float, peers: Processes | None = None) -> Tensor:
    """½ log det(1 + E / (N ε²) XᵀX) of each of V sets of unit rows [V, N, E], [V]."""
    n = items(rows[0], peers)
    core = total(gram(_shorter(rows, peers)), peers) * (rows.shape[-1] / (n * distortion))
    rates: Tensor = _HalfLogDet.apply(core)  # type: ignore[no-untyped-call]
    return rates


def _has_kernel(core: Tensor) -> bool:
    """Whether our own solver, which a CUDA graph can capture, takes it."""
    return core.is_cuda and core.shape[-1] <= LARGEST


class _HalfLogDet(torch.autograd.Function):
    """½ log det(1 + M) of positive semi-definite M [2, n, n], [2], and its gradient ½ (1 + M)⁻¹.

    By a Cholesky decomposition; on a GPU by the eigenvalues, where our own solver takes the matrix.
    """

    @staticmethod
    def forward(ctx: Any, m: Tensor) -> Tensor:
        m = check_overflow(m, MATRICES)
        if _has_kernel(m):
            values, vectors = eigh(m)
            values = values.clamp_min(0)
            inverse, rates = (vectors / (1 + values)[:, None]) @ vectors.mT, 0.5 * values.log1p().sum(-1)
        else:
            wide = widest_precision(m)
            factor = torch.linalg.cholesky_ex(wide + torch.eye(m.shape[-1], dtype=wide.dtype, device=m.device)).L
            inverse, rates = torch.cholesky_inverse(factor), factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        ctx.save_for_backward(0.5 * inverse.to(m.dtype))
        return rates.to(m.dtype)

    @staticmethod
    @one_derivative
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        gradient: Tensor = grad[:, None, None] * ctx.saved_tensors[0]
        return gradient


class _RootSum(torch.autograd.Function):
    """Σ √λ of a Gram matrix [n, n] and its gradient ½ W diag(1/√λ) Wᵀ; eigenvalues within rounding of 0 count as 0."""

    @staticmethod
    def forward(ctx: Any, core: Tensor) -> Tensor:
        values, vectors = eigh(check_overflow(core, MATRICES))
        there = values > len(core) * torch.finfo(core.dtype).eps * values[-1]
        roots = torch.where(there, values, 1).sqrt()
        ctx.save_for_backward((vectors * torch.where(there, 0.5 / roots, 0)) @ vectors.mT)
        return torch.where(there, roots, 0).sum()

    @staticmethod
    @one_derivative
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        gradient: Tensor = grad * ctx.saved_tensors[0]
        return gradient


@public
def nuclear_norm(z_a: Tensor, z_b: Tensor, *, peers: Processes | None = None) -> Tensor:
    r"""Minus the nuclear norm of the items' centroids, MMCR's objective (Yerxa et al. 2023).

        -‖C‖_*,    C = ½(X_A + X_B) [N, E],    X unit rows

    It is least where both views of an item agree, which makes centroids long, and where centroids use all directions
    alike: -√(N min(N, E)). So its scale grows with N, as in the paper: divide the weight by √(N min(N, E)) to compare
    batches. By the eigenvalues of the smaller Gram matrix: those within rounding of 0 count as 0 and have gradient 0,
    singular values below about 1e-7 of the largest on a CPU, and below √(E · 1e-7) of it on a GPU, which has float32.

    Examples:
        >>> agree, differ = torch.eye(4), torch.eye(4).roll(1, 0)
        >>> sw.losses.gram.nuclear_norm(agree, agree), sw.losses.gram.nuclear_norm(agree, differ)
        (tensor(-4.), tensor(-2.4142))
    """
    items(z_a, peers)
    with autocast_off(z_a):
        centroids = normalize(torch.stack([z_a, z_b])).mean(0)
        wide = centroids.double() if centroids.device.type == "cpu" else centroids
        core = total(gram(_shorter(wide, peers)), peers)
        norm: Tensor = _RootSum.apply(core)  # type: ignore[no-untyped-call]
        return finish(-norm.to(centroids.dtype), peers)


@public
def variance(
    z_a: Tensor, z_b: Tensor, *, target: float = 1.0, epsilon: float = 1e-4, peers: Processes | None = None
) -> Tensor:
    r"""How far the standard deviations of the dimensions stay below a target: VICReg's variance term.

        mean_j max(0, γ - √(var_j + ε)),    the mean over both views

    with the unbiased variance, which is 0 for one item. The code of VICReg's authors (Bardes, Ponce and LeCun 2022)
    and lightly's take this mean over views; their paper and solo-learn take the sum.

    Examples:
        >>> z = torch.tensor([[0.0, 0.0], [0.0, 3.0]])  # the first dimension is collapsed
        >>> sw.losses.gram.variance(z, z)
        tensor(0.4950)
    """
    n = items(z_a, peers)
    with autocast_off(z_a):
        squares = total(_both_centred(z_a, z_b, peers).square().sum(1), peers)
        return finish(_variance_below_target(squares, n, target, epsilon), peers)


def _variance_below_target(squares: Tensor, n: int, target: float, epsilon: float) -> Tensor:
    """The variance term, from the sums of squares of each dimension, [2, E]."""
    return (target - (squares / max(n - 1, 1) + epsilon).sqrt()).relu().mean()


@public
def covariance(z_a: Tensor, z_b: Tensor, *, peers: Processes | None = None) -> Tensor:
    r"""Squared covariances of different dimensions: VICReg's covariance term.

        1/E Σ_{i≠j} cov_ij²,    the sum over both views

    It is 0 where no dimension tells anything of another by a line, also where all are collapsed: use it with
    ``variance``.

    Examples:
        >>> z = torch.tensor([[1.0, 1.0], [-1.0, -1.0]])  # two dimensions tell the same
        >>> sw.losses.gram.covariance(z, z)
        tensor(8.)
    """
    n = items(z_a, peers)
    with autocast_off(z_a):
        return finish(_off_diagonal(total(gram(_both_centred(z_a, z_b, peers)), peers), n), peers)


def _off_diagonal(products: Tensor, n: int) -> Tensor:
    """The covariance term, from the products of the centred dimensions, [2, E, E]."""
    off = (products / max(n - 1, 1)).tril(-1)
    return 2 * off.square().sum() / products.shape[-1]


@public
def vicreg(
    z_a: Tensor,
    z_b: Tensor,
    *,
    invariance: float = 25.0,
    variance: float = 25.0,
    covariance: float = 1.0,
    target: float = 1.0,
    epsilon: float = 1e-4,
    peers: Processes | None = None,
) -> Tensor:
    r"""VICReg (Bardes, Ponce and LeCun 2022): views alike, dimensions spread and uncorrelated.

        λ · mean (z_a - z_b)² + μ · variance + ν · covariance,    λ, μ = 25, ν = 1

    as the authors' code and lightly's ``VICRegLoss`` compute it; see ``variance`` and ``covariance`` here. It has no
    negatives, and does not normalise rows.

    Examples:
        >>> z = torch.tensor([[2.0, 2.0], [-2.0, 2.0], [2.0, -2.0], [-2.0, -2.0]])
        >>> sw.losses.gram.vicreg(z, z), sw.losses.gram.vicreg(z, -z)
        (tensor(0.), tensor(400.))
    """
    n = items(z_a, peers)
    with autocast_off(z_a):
        products = total(gram(_both_centred(z_a, z_b, peers)), peers)
        apart = total((full_precision(z_a) - full_precision(z_b)).square().sum(), peers) / (n * z_a.shape[1])
        spread = _variance_below_target(products.diagonal(dim1=-2, dim2=-1), n, target, epsilon)
        return finish(invariance * apart + variance * spread + covariance * _off_diagonal(products, n), peers)


@public
def barlow_twins(
    z_a: Tensor, z_b: Tensor, *, redundancy: float = 0.005, epsilon: float = 1e-5, peers: Processes | None = None
) -> Tensor:
    r"""Barlow Twins (Zbontar et al. 2021): the correlations between both views' dimensions become the identity.

        Σ_i (1 - C_ii)² + λ Σ_{i≠j} C_ij²,    C = correlations of the dimensions of A and B [E, E],  λ = ``redundancy``

    with ε added to every variance, as BatchNorm does in the authors' code and in lightly's ``BarlowTwinsLoss``: a
    collapsed dimension has correlation 0. The value is E for collapsed sets and at most (4 + λ(E - 1)) E.

    Examples:
        >>> z = torch.tensor([[1.0, 1.0], [-1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]])
        >>> sw.losses.gram.barlow_twins(z, z) < 1e-6, sw.losses.gram.barlow_twins(z, -z)
        (tensor(True), tensor(7.9999))
    """
    n = items(z_a, peers)
    with autocast_off(z_a):
        z = _both_centred(z_a, z_b, peers)
        squares = total(z.square().sum(1), peers)
        of_a, of_b = (squares / n + epsilon).rsqrt()
        correlations = total(z[0].mT @ z[1], peers) / n * of_a[:, None] * of_b
        same = correlations.diagonal()
        off = correlations - same.diag_embed()
        return finish((1 - same).square().sum() + redundancy * off.square().sum(), peers)


@public
def cka(z_a: Tensor, z_b: Tensor, *, peers: Processes | None = None) -> Tensor:
    r"""1 - linear CKA (Kornblith et al. 2019): how differently two sets lie, whatever their rotation and scale.

        1 - ‖Z_AᵀZ_B‖² / (‖Z_AᵀZ_A‖ ‖Z_BᵀZ_B‖)  =  1 - <K_A, K_B> / (‖K_A‖ ‖K_B‖),    K = Z Zᵀ,  Z centred

    in [0, 1], 0 where one set is the other, rotated, scaled and moved. It compares the same matrices as the structural
    difference, but by products and not by cosines. A collapsed set has CKA 0, with gradient 0.

    Examples:
        >>> z = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]])
        >>> sw.losses.gram.cka(z, 3 * z.flip(1) + 1).abs() < 1e-6, sw.losses.gram.cka(z, z[[1, 0, 2]])
        (tensor(True), tensor(0.0395))
    """
    items(z_a, peers)
    with autocast_off(z_a):
        z = _both_centred(z_a, z_b, peers)
        products = widest_precision(total(torch.stack([*gram(z), z[0].mT @ z[1]]), peers))
        alike = products[2].square().sum()
        own = torch.linalg.vector_norm(products[:2], dim=(1, 2))
        scale = own[0] * own[1]
        there = scale > 0
        value = 1 - torch.where(there, alike / torch.where(there, scale, 1), 0)
        return finish(value.to(z.dtype), peers)


@public
def uniformity(z_a: Tensor, z_b: Tensor, *, sharpness: float = 2.0, peers: Processes | None = None) -> Tensor:
    r"""How near the items of a set lie to each other on the sphere (Wang and Isola 2020), the mean over both views.

        log mean_{i≠j} exp(-t |x_i - x_j|²),    x unit rows,  t = ``sharpness``

    0 for a collapsed set, at least -4 t, and 0 for one item. It needs every pair of items: O(N² E) in time and N² in
    memory. Over processes each scores its own rows against those of all: rows are gathered, and the message grows with
    N.

    Examples:
        >>> spread, collapsed = torch.eye(4), torch.ones(4, 4)
        >>> sw.losses.gram.uniformity(spread, spread), sw.losses.gram.uniformity(collapsed, collapsed)
        (tensor(-4.), tensor(0.))
    """
    n = items(z_a, peers)
    with autocast_off(z_a):
        own = normalize(torch.stack([z_a, z_b]))
        if n == 1:
            return 0 * own.sum()
        every, first = own, 0
        if peers is not None:
            every, first = peers.gather(own.transpose(0, 1)).transpose(0, 1), peers.rank * len(z_a)
        exponents = _exponents(own, every, sharpness)  # [2, N, all]
        exponents.diagonal(first, 1, 2).fill_(-torch.inf)  # nobody is near oneself
        sums = exponents.flatten(1).logsumexp(1)
        if peers is not None:
            sums = peers.gather(sums[None]).logsumexp(0)
        return finish(sums.mean() - math.log(n * (n - 1)), peers)


def _exponents(x: Tensor, y: Tensor, sharpness: float) -> Tensor:
    """-t |x_i - y_j|², [2, N, M], as one product: no second matrix of that size."""
    of_x, of_y = (z.square().sum(-1, keepdim=True) for z in (x, y))
    left = torch.cat([2 * x, -of_x, -torch.ones_like(of_x)], -1)
    return (sharpness * left) @ torch.cat([y, torch.ones_like(of_y), of_y], -1).mT


@register.term("coding-rate", about="Minus the log-determinant of the set: EMP-SSL's. Use it to fill all directions.")
class CodingRate(_Loss):
    """Use it to spread each set over all directions, beside a loss that pulls pairs together; see ``coding_rate``."""

    function = staticmethod(coding_rate)

    def __init__(self, *, distortion: float = 0.2) -> None:
        super().__init__(locals())


@register.term("nuclear-norm", about="Minus the centroids' nuclear norm: MMCR's. Use it to align and spread at once.")
class NuclearNorm(_Loss):
    """Use it to pull pairs together and spread items in one number; see ``nuclear_norm``."""

    function = staticmethod(nuclear_norm)

    def __init__(self) -> None:
        super().__init__({})


@register.term(
    "variance", about="Keep every dimension's standard deviation above a target: VICReg's, against collapse."
)
class Variance(_Loss):
    """Use it against dimensions that collapse, on rows that nothing normalises; see ``variance``."""

    function = staticmethod(variance)

    def __init__(self, *, target: float = 1.0, epsilon: float = 1e-4) -> None:
        super().__init__(locals())


@register.term("covariance", about="Keep dimensions from telling the same: VICReg's. Use it together with variance.")
class Covariance(_Loss):
    """Use it with ``Variance``, for dimensions that tell different things; see ``covariance``."""

    function = staticmethod(covariance)

    def __init__(self) -> None:
        super().__init__({})


@register.term(
    "uniformity", about="Push all items apart on the sphere, by pairs: Wang and Isola's. Use it for small N."
)
class Uniformity(_Loss):
    """Use it to spread items on the sphere where N² numbers fit; see ``uniformity``."""

    function = staticmethod(uniformity)

    def __init__(self, *, sharpness: float = 2.0) -> None:
        super().__init__(locals())


@register.term("cka", about="1 - linear CKA of both sets. Use it to align sets up to rotation, scale and place.")
class CKA(_Loss):
    """Use it to give both sets one structure, whatever their scale; see ``cka``."""

    function = staticmethod(cka)

    def __init__(self) -> None:
        super().__init__({})


@register.loss("barlow-twins", about="Correlations between both views' dimensions, made the identity. No negatives.")
@register.term("cross-correlation", about="Barlow Twins as a term: correlations between dimensions, made the identity.")
class BarlowTwins(_Loss):
    """Correlations between both views' dimensions become the identity, Zbontar et al. 2021; see ``gram.barlow_twins``.

    Use it without negatives, with wide embeddings; as the term "cross-correlation", beside any loss.

    Examples:
        >>> z = torch.tensor([[1.0, 1.0], [-1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]])
        >>> sw.BarlowTwins()(z, z.flip(1))  # two dimensions changed places
        tensor(2.0100)
    """

    function = staticmethod(barlow_twins)

    def __init__(self, *, redundancy: float = 0.005, epsilon: float = 1e-5) -> None:
        super().__init__(locals())


@register.loss("vicreg", about="Views alike, dimensions spread and uncorrelated. No negatives; for wide embeddings.")
class VICReg(_Loss):
    """Views alike, dimensions spread and uncorrelated, Bardes, Ponce and LeCun 2022; see ``gram.vicreg``.

    Use it without negatives, with wide embeddings, or where both views come from different networks.

    Examples:
        >>> sw.VICReg()(torch.ones(4, 8), torch.ones(4, 8))  # collapsed: 25 · (1 - √ε)
        tensor(24.7500)
    """

    function = staticmethod(vicreg)

    def __init__(
        self,
        *,
        invariance: float = 25.0,
        variance: float = 25.0,
        covariance: float = 1.0,
        target: float = 1.0,
        epsilon: float = 1e-4,
    ) -> None:
        super().__init__(locals())
