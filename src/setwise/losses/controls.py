r"""Set-level terms without eigenvalues, which any gain of QARe has to be compared with.

FrobeniusProduct       ‖shift + S_A‖·‖shift + S_B‖ / N²     its gradient is nearly QARe's (cosine, shift 1)
StructuralDifference   ½·mean (S_A - S_B)²                  zero for equal structures, as the alignment gap is

Under cosine both are functions of sums over items too. With unit rows X, F = [X √shift], D = X_A - X_B, P = X_A + X_B,

    ‖shift + S‖ = ‖FᵀF‖        ‖S_A - S_B‖² = ½(<DᵀD, PᵀP> + <K, Kᵀ>),  K = PᵀD

whose parts are small where the sets are near each other. So they need O(N E²), and over processes messages that do not
grow with N. Few items in one process take the N×N matrices. Other similarities take them always, and over processes
gather all rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

import setwise.register as register
from setwise.assignment.spectrum import gram
from setwise.losses.gram import finish, items, total
from setwise.losses.modules import _Loss
from setwise.losses.options import public
from setwise.losses.parallel import Processes
from setwise.similarity import Similarity, normalize, pairwise, widest_precision

# Above so many items, and four times the dimensions, sums over items take a sixth of the time of the N×N matrices or
# less at E = 64 and 128, and half at E = 512 (float32, one CPU thread: `python benchmarks/terms.py`). They are faster
# from N = 1024 on. Below 2048 the matrices stay, and with them the bits of every recorded run.
MANY_ITEMS = 2048


def _by_sums(z: Tensor, peers: Processes | None) -> bool:
    """Whether to compute by sums over items: always over many processes, else for many items."""
    return (peers is not None and peers.size > 1) or len(z) > max(MANY_ITEMS, 4 * z.shape[1])


def _intra(z_a: Tensor, z_b: Tensor, similarity: Similarity, peers: Processes | None) -> tuple[Tensor, Tensor]:
    """S_A and S_B of all items."""
    if peers is not None:
        z_a, z_b = peers.gather(torch.stack([z_a, z_b], 1)).unbind(1)
    s_a, s_b = (pairwise(z, z, similarity=similarity) for z in (z_a, z_b))
    return s_a, s_b


@public
def frobenius_product(
    z_a: Tensor,
    z_b: Tensor,
    *,
    similarity: Similarity = "cosine",
    shift: float = 1.0,
    peers: Processes | None = None,
) -> Tensor:
    """‖shift + S_A‖·‖shift + S_B‖ / N² of two views [N, E]: an upper bound of QARe's ⟨λA,λB⟩₊ / N² (Cauchy-Schwarz).

    Examples:
        >>> sw.losses.controls.frobenius_product(torch.eye(4), torch.eye(4)), sw.QARe()(torch.eye(4), torch.eye(4))
        (tensor(1.7500), tensor(1.7500))
    """
    n = items(z_a, peers)
    with torch.autocast(z_a.device.type, enabled=False):
        if similarity == "cosine" and shift >= 0 and _by_sums(z_a, peers):
            rows = normalize(torch.stack([z_a, z_b]), append=shift**0.5 if shift else None)
            m_a, m_b = total(gram(rows), peers)
        else:
            m_a, m_b = (shift + s for s in _intra(z_a, z_b, similarity, peers))
        product: Tensor = m_a.norm() * m_b.norm()
        return finish(product / n**2, peers)


@public
def structural_difference(
    z_a: Tensor, z_b: Tensor, *, similarity: Similarity = "cosine", peers: Processes | None = None
) -> Tensor:
    """½·mean (S_A - S_B)² of two views [N, E]: how differently the true partners lie within their sets.

    Examples:
        >>> sw.losses.controls.structural_difference(torch.eye(4), 2 * torch.eye(4))  # cosine knows no lengths
        tensor(0.)
    """
    n = items(z_a, peers)
    with torch.autocast(z_a.device.type, enabled=False):
        if similarity == "cosine" and _by_sums(z_a, peers):
            unit = normalize(torch.stack([z_a, z_b]))
            x_a, x_b = widest_precision(unit)  # what cancels for rotated sets would be rounding in float32
            d, p = x_a - x_b, x_a + x_b
            of_d, of_p, k = total(torch.stack([gram(d), gram(p), p.mT @ d]), peers)
            value = ((of_d * of_p).sum() + (k * k.mT).sum()) / (4 * n**2)
            return finish(value.clamp_min(0).to(unit.dtype), peers)
        s_a, s_b = _intra(z_a, z_b, similarity, peers)
        return finish(0.5 * (s_a - s_b).square().mean(), peers)


@register.term(
    "frobenius", about="The product of both sets' Frobenius norms. Use it to see what QARe does without eigenvalues."
)
class FrobeniusProduct(_Loss):
    """Use it as the control of QARe, which it bounds from above; see ``frobenius_product``."""

    function = staticmethod(frobenius_product)

    def __init__(self, *, similarity: Similarity = "cosine", shift: float = 1.0) -> None:
        super().__init__(locals())


@register.term(
    "structural-difference",
    about="How far the similarities within both sets differ. Use it to see what the alignment gap does beyond that.",
)
class StructuralDifference(_Loss):
    """Use it as the control of the alignment gap; see ``structural_difference``."""

    function = staticmethod(structural_difference)

    def __init__(self, *, similarity: Similarity = "cosine") -> None:
        super().__init__(locals())
