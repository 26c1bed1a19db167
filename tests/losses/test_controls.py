"""The eigenvalue-free controls: by hand, and what they bound."""

import pytest
import torch

import setwise as sw
from setwise.losses.controls import frobenius_product, structural_difference


def test_by_hand():
    z_a = torch.tensor([[2.0, 0.0], [0.0, 3.0]])  # cosines [[1, 0], [0, 1]]
    z_b = torch.tensor([[1.0, 1.0], [4.0, 4.0]])  # cosines all 1
    assert structural_difference(z_a, z_b).item() == pytest.approx(0.5 * 2 / 4)
    assert frobenius_product(z_a, z_b).item() == pytest.approx((4 + 4 + 1 + 1) ** 0.5 * 16**0.5 / 4)
    assert structural_difference(z_a, z_b, similarity="euclidean").item() == pytest.approx(
        0.5 * 2 * (13**0.5 - 18**0.5) ** 2 / 4, rel=1e-6
    )


def test_what_they_are_controls_of(views):
    z_a, z_b = views(9, 4)
    assert frobenius_product(z_a, z_b) >= sw.functional.qare(z_a, z_b)
    same = frobenius_product(z_a, z_a.clone())
    torch.testing.assert_close(same, sw.functional.qare(z_a, z_a.clone()))  # Cauchy-Schwarz is tight here
    rotation = torch.linalg.qr(torch.randn(4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64))[0]
    assert structural_difference(z_a, z_a @ rotation).item() == pytest.approx(0, abs=1e-20)
    assert structural_difference(z_a, z_b) > 0.01
