r"""Set-level terms without eigenvalues, which any gain of QARe has to be compared with.

FrobeniusProduct       ‖shift + S_A‖·‖shift + S_B‖ / N²     its gradient is nearly QARe's (cosine, shift 1)
StructuralDifference   ½·mean (S_A - S_B)²                  zero for equal structures, as the alignment gap is
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

import setwise.register as register
from setwise.checks import check_embeddings, check_number, check_overflow, plain
from setwise.similarity import Similarity, check_similarity, pairwise


def frobenius_product(z_a: Tensor, z_b: Tensor, *, similarity: Similarity = "cosine", shift: float = 1.0) -> Tensor:
    """‖shift + S_A‖·‖shift + S_B‖ / N² of two views [N, E]: an upper bound of QARe's ⟨λA,λB⟩₊ / N² (Cauchy-Schwarz).

    Examples:
        >>> sw.losses.controls.frobenius_product(torch.eye(4), torch.eye(4)), sw.QARe()(torch.eye(4), torch.eye(4))
        (tensor(1.7500), tensor(1.7500))
    """
    check_embeddings(z_a, z_b)
    with torch.autocast(z_a.device.type, enabled=False):
        s_a, s_b = (pairwise(z, z, similarity=similarity) for z in (z_a, z_b))
        product: Tensor = (shift + s_a).norm() * (shift + s_b).norm()
        return check_overflow(product / len(z_a) ** 2, "a loss")


def structural_difference(z_a: Tensor, z_b: Tensor, *, similarity: Similarity = "cosine") -> Tensor:
    """½·mean (S_A - S_B)² of two views [N, E]: how differently the true partners lie within their sets.

    Examples:
        >>> sw.losses.controls.structural_difference(torch.eye(4), 2 * torch.eye(4))  # cosine knows no lengths
        tensor(0.)
    """
    check_embeddings(z_a, z_b)
    with torch.autocast(z_a.device.type, enabled=False):
        s_a, s_b = (pairwise(z, z, similarity=similarity) for z in (z_a, z_b))
        return check_overflow(0.5 * (s_a - s_b).square().mean(), "a loss")


@register.term("frobenius", about="The product of both sets' Frobenius norms: what QARe comes to, without eigenvalues.")
class FrobeniusProduct(nn.Module):
    """The control of QARe; see ``frobenius_product``."""

    __call__: Callable[..., Tensor]

    def __init__(self, *, similarity: Similarity = "cosine", shift: float = 1.0) -> None:
        super().__init__()
        check_similarity(similarity)
        check_number(shift, "shift")
        self.similarity, self.shift = similarity, plain(shift)

    def forward(self, z_a: Tensor, z_b: Tensor) -> Tensor:
        """The term of two views [N, E] of the same items."""
        return frobenius_product(z_a, z_b, similarity=self.similarity, shift=self.shift)

    def extra_repr(self) -> str:
        """The options, as they would be written."""
        return f"similarity={self.similarity!r}, shift={self.shift!r}"


@register.term("structural-difference", about="How far the similarities within both sets are from each other.")
class StructuralDifference(nn.Module):
    """The control of the alignment gap; see ``structural_difference``."""

    __call__: Callable[..., Tensor]

    def __init__(self, *, similarity: Similarity = "cosine") -> None:
        super().__init__()
        check_similarity(similarity)
        self.similarity = similarity

    def forward(self, z_a: Tensor, z_b: Tensor) -> Tensor:
        """The term of two views [N, E] of the same items."""
        return structural_difference(z_a, z_b, similarity=self.similarity)

    def extra_repr(self) -> str:
        """The option, as it would be written."""
        return f"similarity={self.similarity!r}"
