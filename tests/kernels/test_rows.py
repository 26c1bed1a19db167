"""Unit rows, row losses and products of spectra: plain torch against numpy, the kernels against plain torch."""

import ctypes
import math

import entmax
import numpy as np
import pytest
import torch
from torch import Tensor

from setwise.kernels.nvrtc import source
from setwise.kernels.rows import (
    NOWHERE,
    SHORTEST,
    row_losses,
    set_losses,
    spectra_product,
    unit_rows,
    unit_rows_backward,
)


def rows(width: int) -> Tensor:
    z = torch.randn(9, width, generator=torch.Generator().manual_seed(width))
    z[2] = 0
    z[3] *= 1e30
    z[4] *= 1e-30
    z[5] *= 1e-40
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
    grad = torch.ones_like(out)
    assert unit_rows_backward(grad, out, lengths, width).abs().max() <= 2 * width / SHORTEST
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
def test_spectra_product(size, largest):
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(2, 7, generator=generator).sort(-1).values
    rest = torch.tensor([0.3, -0.2])
    partners, rest_partners, value = spectra_product(values, rest, size, largest)
    whole = [
        np.sort(np.r_[v, np.full(size - 7, r)]) for v, r in zip(values.double().numpy(), rest.tolist(), strict=True)
    ]
    assert value.item() == pytest.approx(whole[0] @ (whole[1] if largest else whole[1][::-1]), rel=1e-5)
    for s in range(2):  # what they meet makes up the value from either side
        assert (values[s] @ partners[s] + rest[s] * rest_partners[s]).item() == pytest.approx(value.item(), rel=1e-5)


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
    def test_spectra_product(self, size, largest, r):
        values = torch.randn(2, r, generator=torch.Generator().manual_seed(0)).sort(-1).values
        rest = torch.tensor([0.3, -0.2])
        there = spectra_product(values, rest, size, largest)
        here = spectra_product(values.cuda(), rest.cuda(), size, largest)
        for got, expected in zip(here, there, strict=True):
            torch.testing.assert_close(got.cpu(), expected)


def choice(theta, partner, itself, sparse, margin, least):
    """Losses and gradient of rows in float64, by torch's and entmax's functions and autograd."""
    theta = theta.double().requires_grad_()
    scores = theta if least is None else theta.clamp_min(least)
    scores = scores - margin * torch.nn.functional.one_hot(partner, theta.shape[1])
    if itself is not None:
        columns = torch.arange(theta.shape[1])
        scores = scores.masked_fill(columns[None] == torch.arange(len(theta))[:, None] + itself, -math.inf)
    true = scores.gather(1, partner[:, None])[:, 0]
    if sparse:
        p = entmax.sparsemax(scores, dim=1).detach()
        finite = scores.masked_fill(scores.isinf(), 0.0)
        losses = (p * finite).sum(1) - 0.5 * p.square().sum(1) + 0.5 - true
    else:
        losses = scores.logsumexp(1) - true
    return losses.detach(), torch.autograd.grad(losses.sum(), theta)[0]


CHOICES = [
    (rows, width, itself, sparse, margin, least)
    for rows, width in ((5, 5), (3, 33), (6, 12), (4, 255))
    for itself in ((None, 0) if rows < 6 else (6,))
    for sparse in (False, True)
    for margin, least in ((0.0, None), (1.0, 0.1))
]


def scores_for(rows, width, itself):
    generator = torch.Generator().manual_seed(rows * width)
    theta = 2 * torch.rand(rows, width, generator=generator) - 1
    theta[0] *= 20  # one choice only
    theta[1] = 0.3  # all alike
    partner = (torch.arange(rows) + (0 if itself is None else itself) + 1) % width
    return theta, partner


RUN = """
extern "C" void run_unit_rows(int blocks, int threads, const float* z, const float* grad, float* out, float* lengths,
                              float* grad_z, int rows, int width, int out_width, double append, double shortest) {
    launch(unit_rows, blocks, threads, z, out, lengths, rows, width, out_width, append);
    launch(unit_rows_backward, blocks, threads, grad, out, lengths, grad_z, rows, width, out_width, shortest);
}
extern "C" void run(int blocks, int threads, const float* theta, const long long* partners, float* losses,
                    float* gradient, int rows, int width, int itself, int sparse, double margin, double least) {
    launch(row_losses, blocks, threads, theta, partners, losses, gradient, rows, width, itself, sparse, margin, least);
}
extern "C" void run_sets(int blocks, int threads, const float* theta, const long long* ids, const long long* others,
                         float* losses, float* gradient, unsigned char* partnered, int rows, int width, int known,
                         int itself, int sparse, int alone, double margin, double least) {
    launch(set_losses, blocks, threads, theta, ids, others, losses, gradient, partnered, rows, width, known, itself,
           sparse, alone, margin, least);
}
"""


@pytest.fixture(scope="module")
def on_cpu(for_cpu):
    """The kernel's own text."""
    return for_cpu(source("rows.cu", {}) + RUN)


@pytest.mark.parametrize(("rows", "width", "itself", "sparse", "margin", "least"), CHOICES)
def test_the_text_of_row_losses_on_a_cpu(on_cpu, rows, width, itself, sparse, margin, least):
    theta, partner = scores_for(rows, width, itself)
    losses, gradient = torch.full((rows,), 9.0), torch.full((rows, width), 9.0)
    pointers = [ctypes.c_void_p(x.data_ptr()) for x in (theta, partner, losses, gradient)]
    numbers = [rows, width, NOWHERE if itself is None else itself, int(sparse)]
    bounds = [ctypes.c_double(margin), ctypes.c_double(-math.inf if least is None else least)]
    on_cpu.run(-(-rows // 2), 64, *pointers, *map(ctypes.c_int, numbers), *bounds)
    expected = choice(theta, partner, itself, sparse, margin, least)
    torch.testing.assert_close(losses.double(), expected[0], rtol=1e-5, atol=2e-6)
    torch.testing.assert_close(gradient.double(), expected[1], rtol=1e-5, atol=2e-6)


def smooth(scores, sparse):
    """The smoothed maximum of each row in float64, by torch's and entmax's functions; -inf does not count."""
    if not sparse:
        return scores.logsumexp(1)
    p = entmax.sparsemax(scores, dim=1).detach()
    return (p * scores.masked_fill(scores.isinf(), 0.0)).sum(1) - 0.5 * p.square().sum(1)


def choice_of_sets(theta, ids, others, alone, itself, sparse, margin, least):
    theta = theta.double().requires_grad_()
    rows, width = theta.shape
    true = torch.zeros(rows, width, dtype=torch.bool)
    true[:, : len(others)] = ids[:, None] == others
    bounded = theta if least is None else theta.clamp_min(least)
    if alone:
        true[:, -1] = True
        bounded = torch.cat([bounded[:, :-1], theta[:, -1:]], 1)
    scores = bounded - margin * true.double()
    inside, partnered = scores.masked_fill(~true, -math.inf), true.any(1)
    if itself is not None:
        left_out = torch.arange(width)[None] == torch.arange(rows)[:, None] + itself
        scores = scores.masked_fill(left_out, -math.inf)
    losses = smooth(scores[partnered], sparse) - smooth(inside[partnered], sparse)
    whole = torch.zeros(rows, dtype=torch.float64).index_put((partnered.nonzero()[:, 0],), losses)
    return whole.detach(), torch.autograd.grad(losses.sum(), theta)[0], partnered


SETS = [
    (rows, width, known, alone, itself, sparse, margin, least)
    for rows, width, known, itself in ((5, 5, 5, None), (4, 40, 33, None), (6, 12, 6, 6), (3, 200, 100, None))
    for alone in ((False, True) if itself is None else (False,))
    for sparse in (False, True)
    for margin, least in ((0.0, None), (0.7, 0.1))
]


def sets_for(rows, width, known):
    theta, _ = scores_for(rows, width, None)
    ids = torch.arange(rows) // 2 * 5 - 1
    others = (torch.arange(known) // 2 * 5 - 1).flip(0)
    ids[-1] = 1234  # without a partner
    return theta, ids, others


@pytest.mark.parametrize(("rows", "width", "known", "alone", "itself", "sparse", "margin", "least"), SETS)
def test_the_text_of_set_losses_on_a_cpu(on_cpu, rows, width, known, alone, itself, sparse, margin, least):
    theta, ids, others = sets_for(rows, width, known)
    losses, gradient, partnered = torch.full((rows,), 9.0), torch.full((rows, width), 9.0), torch.zeros(rows).bool()
    pointers = [ctypes.c_void_p(x.data_ptr()) for x in (theta, ids, others, losses, gradient, partnered)]
    numbers = [rows, width, known, NOWHERE if itself is None else itself, int(sparse), int(alone)]
    bounds = [ctypes.c_double(margin), ctypes.c_double(-math.inf if least is None else least)]
    on_cpu.run_sets(-(-rows // 2), 64, *pointers, *map(ctypes.c_int, numbers), *bounds)
    expected = choice_of_sets(theta, ids, others, alone, itself, sparse, margin, least)
    torch.testing.assert_close(losses.double(), expected[0], rtol=1e-5, atol=3e-6)
    torch.testing.assert_close(gradient.double(), expected[1], rtol=1e-5, atol=2e-6)
    assert torch.equal(partnered, expected[2])
    assert partnered[-1] == alone


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_set_losses_of_values_that_are_not_finite_are_nan_and_end(on_cpu, value):
    for sparse in (0, 1):
        theta, ids, others = sets_for(4, 40, 33)
        theta[2, (others == ids[2]).nonzero()[0, 0]] = value
        losses, gradient, partnered = torch.zeros(4), torch.zeros(4, 40), torch.zeros(4).bool()
        pointers = [ctypes.c_void_p(x.data_ptr()) for x in (theta, ids, others, losses, gradient, partnered)]
        bounds = [ctypes.c_double(0.0), ctypes.c_double(-math.inf)]
        on_cpu.run_sets(4, 32, *pointers, *map(ctypes.c_int, (4, 40, 33, NOWHERE, sparse, 0)), *bounds)
        assert losses.isnan().tolist() == [False, False, True, False]


@pytest.mark.gpu
@pytest.mark.parametrize(("rows", "width", "known", "alone", "itself", "sparse", "margin", "least"), SETS)
def test_set_losses_on_a_gpu(rows, width, known, alone, itself, sparse, margin, least):
    theta, ids, others = sets_for(rows, width, known)
    found = set_losses(theta.cuda(), ids.cuda(), others.cuda(), alone, itself, sparse, margin, least)
    expected = choice_of_sets(theta, ids, others, alone, itself, sparse, margin, least)
    for mine, theirs in zip(found[:2], expected[:2], strict=True):
        torch.testing.assert_close(mine.cpu().double(), theirs, rtol=1e-5, atol=3e-6)
    assert torch.equal(found[2].cpu(), expected[2])


@pytest.mark.parametrize("width", [1, 31, 64])
def test_the_text_of_unit_rows_on_a_cpu(on_cpu, width):
    z = rows(width)
    out, lengths, grad_z = torch.empty(9, width + 1), torch.empty(2, 9, 1), torch.empty(9, width)
    grad = torch.randn(9, width + 1, generator=torch.Generator().manual_seed(1))
    pointers = [ctypes.c_void_p(x.data_ptr()) for x in (z, grad, out, lengths, grad_z)]
    numbers = [*map(ctypes.c_int, (9, width, width + 1)), *map(ctypes.c_double, (0.7, SHORTEST))]
    on_cpu.run_unit_rows(5, 64, *pointers, *numbers)
    expected = unit_rows(z, 0.7)
    for mine, theirs in zip((out, lengths), expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
    expected_grad = unit_rows_backward(grad, *expected, width)
    for mine, theirs in zip(grad_z, expected_grad, strict=True):  # a row each, since their sizes differ
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6 * theirs.abs().max().item() + 1e-30)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_row_losses_of_values_that_are_not_finite_are_nan_and_end(on_cpu, value):
    for sparse in (0, 1):
        theta, partner = scores_for(3, 33, None)
        theta[2, partner[2]] = value
        losses, gradient = torch.zeros(3), torch.zeros(3, 33)
        pointers = [ctypes.c_void_p(x.data_ptr()) for x in (theta, partner, losses, gradient)]
        bounds = [ctypes.c_double(0.0), ctypes.c_double(-math.inf)]
        on_cpu.run(3, 32, *pointers, *map(ctypes.c_int, (3, 33, NOWHERE, sparse)), *bounds)
        assert losses.isnan().tolist() == [False, False, True]


@pytest.mark.gpu
@pytest.mark.parametrize(("rows", "width", "itself", "sparse", "margin", "least"), CHOICES)
def test_row_losses_on_a_gpu(rows, width, itself, sparse, margin, least):
    theta, partner = scores_for(rows, width, itself)
    found = row_losses(theta.cuda(), partner.cuda(), itself, sparse, margin, least)
    for mine, expected in zip(found, choice(theta, partner, itself, sparse, margin, least), strict=True):
        torch.testing.assert_close(mine.cpu().double(), expected, rtol=1e-5, atol=2e-6)
