r"""Set-level terms without eigenvalues, which any gain of QARe has to be compared with.

FrobeniusProduct       ‖shift + S_A‖·‖shift + S_B‖ / N²     its gradient is nearly QARe's (cosine, shift 1)
StructuralDifference   ½·mean (S_A - S_B)²                  zero for equal structures, as the alignment gap is
"""

from __future__ import annotations

import torch
from torch import Tensor

import setwise.register as register
from setwise.losses.modules import _Loss
from setwise.losses.options import public
from setwise.similarity import Similarity, pairwise


@public
def frobenius_product(z_a: Tensor, z_b: Tensor, *, similarity: Similarity = "cosine", shift: float = 1.0) -> Tensor:
    """‖shift + S_A‖·‖shift + S_B‖ / N² of two views [N, E]: an upper bound of QARe's ⟨λA,λB⟩₊ / N² (Cauchy-Schwarz).

    Examples:
        >>> sw.losses.controls.frobenius_product(torch.eye(4), torch.eye(4)), sw.QARe()(torch.eye(4), torch.eye(4))
        (tensor(1.7500), tensor(1.7500))
    """
    with torch.autocast(z_a.device.type, enabled=False):
        s_a, s_b = (pairwise(z, z, similarity=similarity) for z in (z_a, z_b))
        product: Tensor = (shift + s_a).norm() * (shift + s_b).norm()
        return product / len(z_a) ** 2


@public
def structural_difference(z_a: Tensor, z_b: Tensor, *, similarity: Similarity = "cosine") -> Tensor:
    """½·mean (S_A - S_B)² of two views [N, E]: how differently the true partners lie within their sets.

    Examples:
        >>> sw.losses.controls.structural_difference(torch.eye(4), 2 * torch.eye(4))  # cosine knows no lengths
        tensor(0.)
    """
    with torch.autocast(z_a.device.type, enabled=False):
        s_a, s_b = (pairwise(z, z, similarity=similarity) for z in (z_a, z_b))
        return 0.5 * (s_a - s_b).square().mean()


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
