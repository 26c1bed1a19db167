"""Unit rows and meeting spectra: plain torch against numpy, the kernels against plain torch."""

import numpy as np
import pytest
import torch
from torch import Tensor

from setwise.kernels.rows import meeting, unit_rows, unit_rows_backward


def rows(width: int) -> Tensor:
    z = torch.randn(9, width, generator=torch.Generator().manual_seed(width))
    z[2] = 0
    z[3] *= 1e30
    z[4] *= 1e-30
    return z


@pytest.mark.parametrize("width", [1, 31, 64, 300])
@pytest.mark.parametrize("append", [None, 0.7])
def test_unit_rows(width, append):
    z = rows(width)
    out, lengths = unit_rows(z, append)
    exact = z.double().numpy()
    norms = np.linalg.norm(exact, axis=1, keepdims=True)
    expected = np.divide(exact, norms, out=np.zeros_like(exact), where=norms > 0)
    np.testing.assert_allclose(out[:, :width].numpy(), expected, atol=1e-6)
    np.testing.assert_allclose((lengths[0].double() * lengths[1].double()).numpy(), norms, rtol=1e-6)
    if append is not None:
        assert (out[:, width] == append).all()


def test_nan_stays():
    z = rows(5)
    z[1, 3] = float("nan")
    out, _ = unit_rows(z)
    assert out[1].isnan().all()
    assert out[0].isfinite().all()


@pytest.mark.parametrize("append", [None, 0.7])
def test_backward(append):
    z = torch.randn(4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    grad = torch.randn(4, 6 + (append is not None), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    out, lengths = unit_rows(z.detach(), append)
    (expected,) = torch.autograd.grad(torch.nn.functional.normalize(z), z, grad[:, :6])
    torch.testing.assert_close(unit_rows_backward(grad, out, lengths, 6), expected)


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("size", [7, 10, 30])
def test_meeting(size, largest):
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(2, 7, generator=generator).sort(-1).values
    rest = torch.tensor([0.3, -0.2])
    met, rest_met, value = meeting(values, rest, size, largest)
    whole = [
        np.sort(np.r_[v, np.full(size - 7, r)]) for v, r in zip(values.double().numpy(), rest.tolist(), strict=True)
    ]
    assert value.item() == pytest.approx(whole[0] @ (whole[1] if largest else whole[1][::-1]), rel=1e-5)
    for s in range(2):  # what they meet makes up the value from either side
        assert (values[s] @ met[s] + rest[s] * rest_met[s]).item() == pytest.approx(value.item(), rel=1e-5)


@pytest.mark.gpu
class TestKernels:
    @pytest.mark.parametrize("width", [1, 31, 64, 300])
    @pytest.mark.parametrize("append", [None, 0.7])
    def test_unit_rows(self, width, append):
        z = rows(width)
        z[1, 0] = float("nan")
        grad = torch.randn(9, width + (append is not None), generator=torch.Generator().manual_seed(1))
        here, there = unit_rows(z.cuda(), append), unit_rows(z, append)
        for got, expected in zip(here, there, strict=True):
            torch.testing.assert_close(got[..., 2:, :].cpu(), expected[..., 2:, :], rtol=1e-5, atol=1e-6)
        assert here[0][1, :width].isnan().all()
        got, expected = unit_rows_backward(grad.cuda(), *here, width).cpu(), unit_rows_backward(grad, *there, width)
        torch.testing.assert_close(got[2:], expected[2:], rtol=1e-4, atol=1e-6 * expected[2:].abs().max().item())

    @pytest.mark.parametrize("largest", [False, True])
    @pytest.mark.parametrize("size", [7, 10, 30])
    @pytest.mark.parametrize("r", [7, 3])
    def test_meeting(self, size, largest, r):
        values = torch.randn(2, r, generator=torch.Generator().manual_seed(0)).sort(-1).values
        rest = torch.tensor([0.3, -0.2])
        here, there = meeting(values.cuda(), rest.cuda(), size, largest), meeting(values, rest, size, largest)
        for got, expected in zip(here, there, strict=True):
            torch.testing.assert_close(got.cpu(), expected)
