"""φ, the measure of how alike two items are, and the matrices made of it.

The sign convention lives here only. The paper writes φ as a distance in Eq. (2)-(8) and as a similarity in
Eq. (17); every loss of this package works on *scores*, larger meaning closer:

    cosine        score =  <a, b> / (|a| |b|)
    euclidean     score = -|a - b|
    sqeuclidean   score = -|a - b|^2

so that "the best assignment" is a maximum throughout, and Eq. (2)'s min over a distance is its negative.
Euclidean measures never normalise by themselves; cosine does.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from setwise.checks import check_option, check_overflow, one_derivative
from setwise.kernels.rows import unit_rows, unit_rows_backward

Similarity = Literal["cosine", "euclidean", "sqeuclidean"]
SIMILARITIES: tuple[Similarity, ...] = ("cosine", "euclidean", "sqeuclidean")


def check_similarity(similarity: str) -> None:
    """Raise unless ``similarity`` names a measure."""
    check_option(similarity, SIMILARITIES, "similarity")


def is_distance(similarity: Similarity) -> bool:
    """Whether φ grows as items move apart."""
    return similarity != "cosine"


def full_precision(z: Tensor) -> Tensor:
    """``z`` in float32 at least: half-precision embeddings are compared, and their losses given, in float32."""
    return z if z.dtype == torch.float64 else z.float()


def widest_precision(z: Tensor) -> Tensor:
    """``z`` in float64 where its device has that, and as it is elsewhere."""
    return z.double() if z.device.type in ("cpu", "cuda") else z


_AS_IT_IS = nullcontext()


def autocast_off(z: Tensor) -> AbstractContextManager[None]:
    """Without autocast on the device of ``z``; nothing where it is off already, as it mostly is."""
    kind = z.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else _AS_IT_IS


class _UnitRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, append: float | None) -> Tensor:
        out, lengths = unit_rows(z, append)
        ctx.save_for_backward(out, lengths)
        ctx.width = z.shape[-1]
        return out

    @staticmethod
    @one_derivative
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        out, lengths = ctx.saved_tensors
        return unit_rows_backward(grad, out, lengths, ctx.width), None


def normalize(z: Tensor, *, append: float | None = None) -> Tensor:
    """Rows of unit length, [..., E], at any scale, in float32 at least; a zero row stays zero and has gradient zero.

    Gradients grow as rows get shorter, but no more below 1e-12.
    ``append`` puts a constant after each row: [..., E + 1].
    """
    unit: Tensor = _UnitRows.apply(  # type: ignore[no-untyped-call]
        z if z.dtype == torch.float64 else z.float(), append
    )
    return unit


def prepare(*z: Tensor, similarity: Similarity) -> tuple[Tensor, ...]:
    """What is done once to every row before any two are compared: precision, and length for cosine."""
    return tuple(map(normalize if similarity == "cosine" else full_precision, z))


def prepared_scores(x: Tensor, y: Tensor, *, similarity: Similarity, scale: float = 1.0) -> Tensor:
    """Score · scale of every row of ``x`` against every row of ``y``, [..., N, M], a tensor of its own.

    Both must come from ``prepare``. Autocast is off inside: scores in bf16 differ by more than the temperature.
    """
    with autocast_off(x):
        if similarity == "cosine":
            return (scale * x) @ y.mT
        distances = _squared_distances(x, y) if similarity == "sqeuclidean" else _distances(x, y)
        return check_overflow(distances * -scale, "distances")


def _squared_distances(x: Tensor, y: Tensor) -> Tensor:
    # |a|^2 + |b|^2 - 2ab halves the number of digits where a is near b: in float64 that leaves those of float32.
    # Distances do not depend on the origin, but digits do. One product, so that no more than one matrix is in float64.
    dtype = x.dtype
    x, y = widest_precision(x), widest_precision(y)
    origin = y.detach().mean(-2, keepdim=True)
    x, y = x - origin, y - origin
    squares_x, squares_y = (x * x).sum(-1, keepdim=True), (y * y).sum(-1, keepdim=True)
    left = torch.cat([-2 * x, squares_x, torch.ones_like(squares_x)], -1)
    right = torch.cat([y, torch.ones_like(squares_y), squares_y], -1)
    return (left @ right.mT).to(dtype).clamp_min(0)


def _distances(x: Tensor, y: Tensor) -> Tensor:
    # |a|^2 + |b|^2 - 2ab halves the number of digits where a is near b. In float64 that leaves a float32
    # result exact, and took 0.28 of the time of direct differences (N = 1024, E = 128, CPU). float64 itself,
    # and devices that do not have it, take the differences. The gradient at distance 0 is 0 in both.
    if x.dtype == torch.float32 and x.device.type in ("cpu", "cuda"):
        return torch.cdist(x.double(), y.double(), compute_mode="use_mm_for_euclid_dist").float()
    return torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist")


def scores(z_a: Tensor, z_b: Tensor, *, similarity: Similarity = "cosine") -> Tensor:
    """Score of every row of ``z_a`` against every row of ``z_b``, [N, M], larger is closer.

    Examples:
        >>> a, b = torch.tensor([[3.0, 4.0]]), torch.tensor([[3.0, 0.0]])
        >>> [sw.similarity.scores(a, b, similarity=s).item() for s in ("euclidean", "sqeuclidean")]  # larger is closer
        [-4.0, -16.0]
    """
    check_similarity(similarity)
    x, y = prepare(z_a, z_b, similarity=similarity)
    return prepared_scores(x, y, similarity=similarity)


def pairwise(z_a: Tensor, z_b: Tensor, *, similarity: Similarity = "cosine") -> Tensor:
    """The paper's S_AB (S_A for twice the same set): φ itself, a distance or a similarity, [N, M].

    Examples:
        >>> a, b = torch.tensor([[3.0, 4.0]]), torch.tensor([[3.0, 0.0]])
        >>> sw.similarity.pairwise(a, b, similarity="euclidean")
        tensor([[4.]])
        >>> sw.similarity.pairwise(a, b, similarity="cosine")
        tensor([[0.6000]])
    """
    check_similarity(similarity)
    x, y = prepare(z_a, z_b, similarity=similarity)
    return prepared_scores(x, y, similarity=similarity, scale=-1.0 if is_distance(similarity) else 1.0)


class Factor(NamedTuple):
    """S = rows · middle · rowsᵀ without forming S: ``rows`` [..., N, r], ``middle`` [r, r], or None for 1."""

    rows: Tensor
    middle: Tensor | None

    def matrix(self) -> Tensor:
        """S itself, [..., N, N]."""
        return (self.rows if self.middle is None else self.rows @ self.middle) @ self.rows.mT

    def row_sums(self) -> Tensor:
        """S 1, [..., N]."""
        sums = self.rows.sum(-2, keepdim=True).mT
        return (self.rows @ (sums if self.middle is None else self.middle @ sums)).squeeze(-1)


def intra_factor(z: Tensor, *, similarity: Similarity = "cosine", shift: float = 0.0) -> Factor | None:
    r"""Exact low-rank factor of shift + S_A of ``z`` [..., N, E]; None for Euclidean distances, of full rank.

    cosine        shift + Z Z^T                    = [Z √shift] [Z √shift]^T        r = E + 1 (E without shift)
    sqeuclidean   shift + n 1^T + 1 n^T - 2 Z Z^T  = F C F^T,  F = [n 1 Z]          r = E + 2
    """
    if similarity == "euclidean":
        return None
    if similarity == "cosine" and shift >= 0:
        return Factor(normalize(z, append=shift**0.5 if shift else None), None)
    (x,) = prepare(z, similarity=similarity)
    ones = torch.ones_like(x[..., :1])
    if similarity == "cosine":
        diagonal = torch.ones(x.shape[-1] + 1, dtype=x.dtype, device=x.device)
        diagonal[-1] = shift
        return Factor(torch.cat([x, ones], -1), diagonal.diag())
    x = x - x.detach().mean(-2, keepdim=True)  # distances do not depend on the origin, but digits do
    middle = torch.full((x.shape[-1] + 2,), -2.0, dtype=x.dtype, device=x.device).diag()
    middle[0, 0], middle[1, 1] = 0.0, shift
    middle[0, 1] = middle[1, 0] = 1.0
    return Factor(torch.cat([(x * x).sum(-1, keepdim=True), ones, x], -1), middle)
