"""φ against numpy and scipy, at ordinary and extreme scales."""

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist

from setwise.similarity import intra_factor, normalize, pairwise, scores


@pytest.mark.parametrize("similarity", ["cosine", "euclidean", "sqeuclidean"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_pairwise_equals_scipy(views, similarity, dtype):
    z_a, z_b = (z.detach().to(dtype) for z in views(7, 5))
    expected = cdist(z_a.double().numpy(), z_b.double().numpy(), similarity)
    if similarity == "cosine":
        expected = 1 - expected
    got = pairwise(z_a, z_b, similarity=similarity)
    assert got.dtype == dtype
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-12 if dtype == torch.float64 else 2e-6, atol=1e-6)
    sign = 1 if similarity == "cosine" else -1
    torch.testing.assert_close(scores(z_a, z_b, similarity=similarity), sign * got)


def test_an_unknown_name_is_not_taken_for_euclidean(views):
    z_a, z_b = views(4, 3)
    for function in (scores, pairwise):
        with pytest.raises(ValueError, match="expected similarity to be one of .* got 'cosin'; did you mean 'cosine'"):
            function(z_a, z_b, similarity="cosin")


@pytest.mark.parametrize("similarity", ["cosine", "euclidean", "sqeuclidean"])
def test_gradients(views, similarity):
    z_a, z_b = views(4, 3)
    assert torch.autograd.gradcheck(lambda a, b: scores(a, b, similarity=similarity), (z_a, z_b))


@pytest.mark.parametrize("length", [1e-40, 1e-30, 1e-13])
def test_a_row_however_short_has_a_bounded_gradient(views, length):
    """Ours is that of a row of 1e-12; torch's ``normalize``, which takes such a row for nearly zero, has no more."""
    z = views(4, 3, dtype=torch.float32)[0].detach()
    weight = torch.arange(12.0).reshape(4, 3)
    short = z.clone()
    short[1] *= length / z[1].abs().max()
    short.requires_grad_()
    z.requires_grad_()
    (normalize(short) * weight).sum().backward()
    (torch.nn.functional.normalize(z) * weight).sum().backward()
    expected = z.grad.clone()
    expected[1] *= z[1].abs().max().item() / 1e-12
    torch.testing.assert_close(short.grad, expected, rtol=1e-3 if length == 1e-40 else 1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("scale", "dtype"), [(1e-300, torch.float64), (1e300, torch.float64), (1e-38, torch.float32), (1e38, torch.float32)]
)
def test_directions_do_not_depend_on_scale(scale, dtype):
    z = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    unit = normalize((z * scale / 5).to(dtype))
    torch.testing.assert_close(unit.double(), z / 5, rtol=1e-6, atol=0)


@pytest.mark.parametrize("apart", [300.0, 1e4, 1e6])
@pytest.mark.parametrize("similarity", ["euclidean", "sqeuclidean"])
def test_float32_distances_within_far_groups_keep_their_digits(similarity, apart):
    generator = torch.Generator().manual_seed(0)
    z_a = torch.randn(40, 8, generator=generator)
    z_a[::2, 0] += apart
    z_b = z_a + 0.1 * torch.randn(40, 8, generator=generator)
    expected = cdist(z_a.double().numpy(), z_b.double().numpy(), similarity)
    got = pairwise(z_a, z_b, similarity=similarity)
    assert got.dtype == torch.float32
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-2 if apart == 1e6 else 1e-5)
    gradients = []
    for dtype in (torch.float32, torch.float64):
        leaf = z_a.to(dtype, copy=True).requires_grad_()
        theta = scores(leaf, z_b.to(dtype), similarity=similarity)
        torch.nn.functional.cross_entropy(theta, torch.arange(40)).backward()
        gradients.append(leaf.grad.double())
    assert (gradients[0] - gradients[1]).norm() < (1e-2 if apart == 1e6 else 1e-5) * gradients[1].norm()


def test_the_gradient_of_a_zero_distance_is_zero():
    for dtype in (torch.float32, torch.float64):
        z = torch.randn(3, 4, dtype=dtype, generator=torch.Generator().manual_seed(0)).requires_grad_()
        pairwise(z, z.detach(), similarity="euclidean").diagonal().sum().backward()
        assert z.grad.abs().max() < 1e-6


@pytest.mark.parametrize("shift", [0.0, 1.0, -0.5, 0.1])
@pytest.mark.parametrize("similarity", ["cosine", "sqeuclidean"])
def test_the_low_rank_factor_is_the_matrix(views, similarity, shift):
    z = views(9, 3)[0]
    factor = intra_factor(z, similarity=similarity, shift=shift)
    expected = pairwise(z, z, similarity=similarity) + shift
    torch.testing.assert_close(factor.matrix(), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(factor.row_sums(), expected.sum(-1), rtol=1e-12, atol=1e-12)
    assert intra_factor(z, similarity="euclidean") is None
