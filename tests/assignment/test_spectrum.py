"""Spectral bounds against enumeration, published values and dense eigenvalues."""

import json
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import setwise as sw
from setwise.assignment.spectrum import (
    Compressed,
    compress_dense,
    compress_euclidean,
    compress_leading,
    gram,
    leading_ends,
    leading_error,
    leading_fits,
    ordered_dot,
)

QAPLIB = json.loads(Path(__file__).with_name("qaplib.json").read_text())  # with proven optima


def symmetric(n: int, seed: int) -> Tensor:
    a = torch.randn(n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return a + a.T


def attained(a: Tensor, b: Tensor) -> list[float]:
    """tr(A Y B Y^T) for all assignments."""
    x, y = a.numpy(), b.numpy()
    return [float((x * y[np.ix_(p, p)]).sum()) for p in map(list, permutations(range(len(a))))]


@given(n=st.integers(1, 6), seed=st.integers(0, 10_000))
@settings(max_examples=50)
def test_bounds_hold_for_all_assignments(n, seed):
    a, b = symmetric(n, seed), symmetric(n, seed + 1)
    values = attained(a, b)
    ends = {bound: sw.assignment.spectral_bounds(a, b, bound=bound) for bound in ("eigenvalue", "projection", "best")}
    for lower, upper in ends.values():
        assert lower.item() <= min(values) + 1e-9
        assert upper.item() >= max(values) - 1e-9
    for i, tightest in ((0, max), (1, min)):
        assert ends["best"][i].item() == tightest(ends["eigenvalue"][i].item(), ends["projection"][i].item())


def test_bounds_equal_the_published_formulas():
    a, b = symmetric(7, 1), symmetric(7, 2)
    x, y = (np.linalg.eigvalsh(m.numpy()) for m in (a, b))
    np.testing.assert_allclose(sw.assignment.spectral_bounds(a, b), [x @ y[::-1], x @ y])
    basis = np.linalg.svd(np.ones((1, 7)))[2][1:].T  # orthonormal, orthogonal to the ones vector
    x, y = (np.linalg.eigvalsh(basis.T @ m.numpy() @ basis) for m in (a, b))
    r, s = (np.sort(m.numpy().sum(1)) for m in (a, b))
    ends = [p + 2 / 7 * q - r.sum() * s.sum() / 49 for p, q in ((x @ y[::-1], r @ s[::-1]), (x @ y, r @ s))]
    np.testing.assert_allclose(sw.assignment.spectral_bounds(a, b, bound="projection"), ends)


@pytest.mark.parametrize("name", QAPLIB)
def test_bounds_on_real_instances(name):
    a, b = (torch.tensor(QAPLIB[name][x]).double() for x in "ab")
    optimum = QAPLIB[name]["optimum"]
    loose, tight = (sw.assignment.spectral_bounds(a, b, bound=bound) for bound in ("eigenvalue", "projection"))
    for lower, upper in (loose, tight):
        assert lower.item() <= optimum <= upper.item()
    assert loose[0] <= tight[0]
    assert tight[1] <= loose[1]
    # Hadley, Rendl and Wolkowicz print these rounded up, 472 and 2196.
    published = {"nug12": 471.4, "nug20": 2195.9}
    if name in published:
        assert tight[0].item() == pytest.approx(published[name], abs=0.05)


@pytest.mark.parametrize("bound", ["eigenvalue", "projection", "best"])
def test_bounds_are_differentiable(bound):
    def ends(x: Tensor, y: Tensor) -> Tensor:
        return torch.stack(sw.assignment.spectral_bounds((x + x.T) / 2, (y + y.T) / 2, bound=bound))

    inputs = (symmetric(5, 3).requires_grad_(), symmetric(5, 4).requires_grad_())
    assert torch.autograd.gradcheck(ends, inputs)


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("size", [4, 5, 7, 8, 9, 30])
def test_repeated_eigenvalues_interleave(size, largest):
    # cores of rank 4 with eigenvalues on both sides of the repeated one, which differs between the sets
    core = torch.stack([symmetric(4, 1), symmetric(4, 5)]).requires_grad_()
    rest = torch.tensor([0.4, -0.3], dtype=torch.float64, requires_grad=True)
    whole = [
        np.r_[np.linalg.eigvalsh(c), np.full(size - 4, r)]
        for c, r in zip(core.detach().numpy(), rest.tolist(), strict=True)
    ]
    x, y = map(np.sort, whole)
    got = ordered_dot(Compressed(core, rest, size), largest=largest)
    assert got.item() == pytest.approx(x @ (y if largest else y[::-1]))

    def value(c: Tensor, r: Tensor) -> Tensor:
        return ordered_dot(Compressed((c + c.mT) / 2, r, size), largest=largest)

    assert torch.autograd.gradcheck(value, (core, rest))


@pytest.mark.parametrize("matrix", [torch.eye(6), torch.ones(6, 6), torch.zeros(6, 6), torch.diag(torch.ones(6)) + 1])
def test_gradients_are_finite_at_repeated_eigenvalues(matrix):
    a = matrix.double().requires_grad_()
    b = symmetric(6, 0).requires_grad_()
    for end in sw.assignment.spectral_bounds(a, b, bound="best"):
        grads = torch.autograd.grad(end, (a, b), retain_graph=True)
        assert all(g.isfinite().all() for g in grads)
        # A valid subgradient all the same: <λ_A, λ_B> is positively homogeneous in A.
        torch.testing.assert_close((grads[0] * a).sum(), end)


def euclidean_pair(n: int, e: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    spread = torch.arange(1, e + 1, dtype=torch.float64) ** -0.5
    z = torch.randn(n, e, generator=generator, dtype=torch.float64) * spread
    w = z + 0.3 * torch.randn(n, e, generator=generator, dtype=torch.float64)
    return torch.stack([torch.cdist(z, z), torch.cdist(w, w)])


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("k", [1, 4, 16])
def test_leading_eigenvalues_stay_within_their_stated_error(k, largest):
    s = euclidean_pair(300, 16, 0)
    exact = ordered_dot(compress_dense(s), largest=largest)
    pair = compress_leading(s, k)
    assert pair.core.shape == (2, 2 * k, 2 * k)
    difference = ordered_dot(pair, largest=largest) - exact
    assert (difference <= 0) if largest else (difference >= 0)
    error = difference.abs()
    assert error <= leading_error(s, pair)
    assert error <= {1: 2e-2, 4: 1e-2, 16: 2e-3}[k] * exact.abs()
    # The ends themselves are eigenvalues, not only bounded by them.
    values = np.linalg.eigvalsh(s.numpy())
    ends = np.linalg.eigvalsh(pair.core.numpy())
    np.testing.assert_allclose(ends[:, -1], values[:, -1], rtol=1e-10)
    np.testing.assert_allclose(ends[:, 0], values[:, 0], rtol=1e-6)
    few = s[:, :20, :20]
    torch.testing.assert_close(compress_leading(few, 10).core, few, msg="exact where nothing is left out")


def awkward_matrices(n: int) -> dict[str, Tensor]:
    """Symmetric matrices whose Krylov spaces end early, exactly or to rounding, and some whose do not."""
    generator = torch.Generator().manual_seed(n)
    turn = torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64)).Q
    noise = symmetric(n, 1)
    eye, steps = torch.eye(n, dtype=torch.float64), torch.arange(n, dtype=torch.float64)
    classes = eye[:4, :4][torch.randint(4, (n,), generator=generator)]

    def turned(values: Tensor) -> Tensor:
        a = (turn * values) @ turn.T
        return (a + a.T) / 2

    return {
        "zero": 0 * eye,
        "identity": eye,
        "a third": eye / 3,
        "identity and noise": eye + 1e-4 * noise,
        "identity and little noise": eye + 1e-7 * noise,
        "ones": torch.ones_like(eye),
        "simplex": torch.cdist(eye, eye),
        "distances of classes": torch.cdist(classes, classes),
        "similarities of classes": 1 + classes @ classes.T,
        "two values": turned(torch.where(steps % 3 == 0, 1.0, -2.0)),
        "three values": turned(steps % 3),
        "rank 5": turned((steps < 5).double()),
        "rank 5 on the diagonal": ((steps < 5) / 3).double().diag(),
        "geometric": turned(0.5**steps),
        "cluster": turned(1 + 1e-6 * steps),
        "one value and little noise": turned((steps == 0).double()) + 1e-10 * noise,
        "dominant": turned(torch.where(steps == 0, 1000.0, steps / n)),
        "random": noise,
    }


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("n", "k"), [(45, 1), (60, 4), (64, 4), (160, 24), (200, 8)])
def test_leading_eigenvalues_err_to_the_stated_side_within_the_stated_error(n, k, dtype):
    assert leading_fits(n, k)
    found = {name: a.to(dtype) for name, a in awkward_matrices(n).items()}
    names = list(found)
    for i, name in enumerate(names):
        for other in (name, names[i - 3], "random"):
            s = torch.stack([found[name], found[other]])
            vectors = leading_ends(s, k)[1]
            scale = (s.double().norm(dim=(1, 2)).prod() + 1e-300).item()
            rounding = 64 * torch.finfo(dtype).eps * scale
            identity = torch.eye(2 * k, dtype=dtype).expand(2, -1, -1)
            torch.testing.assert_close(vectors.mT @ vectors, identity, rtol=0, atol=64 * torch.finfo(dtype).eps)
            pair = compress_leading(s, k)
            x, y = np.linalg.eigvalsh(s.double().numpy())
            for largest, exact in ((True, x @ y), (False, x @ y[::-1])):
                got = ordered_dot(pair, largest=largest).item()
                assert (got - exact) * (1 if largest else -1) <= rounding, (name, other)
                assert abs(got - exact) <= leading_error(s, pair).item() + 1e-300, (name, other)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_few_distinct_eigenvalues_are_found_exactly(dtype):
    eye = torch.eye(64, dtype=dtype)
    pair = compress_leading(torch.stack([eye, eye]), 4)
    assert ordered_dot(pair, largest=True).item() == pytest.approx(64, rel=1e-5)
    assert ordered_dot(pair, largest=False).item() == pytest.approx(64, rel=1e-5)
    # Distances in a simplex: √2 (N - 1) once and -√2 for all others.
    simplex = compress_euclidean(torch.stack([eye, eye]), 4)
    assert ordered_dot(simplex, largest=True).item() == pytest.approx(2 * (63**2 + 63), rel=1e-5)
    # Its parts cancel: the error is a share of their sizes.
    assert ordered_dot(simplex, largest=False).item() == pytest.approx(2 * (62 - 2 * 63), abs=1e-5 * 2 * (62 + 2 * 63))


@pytest.mark.parametrize("n", [3, 700, 1024, 1300])
def test_gram_is_the_product_in_pieces(n):
    rows = torch.randn(2, n, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    weight = torch.randn(2, 4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    got, expected = gram(rows), rows.mT @ rows
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(*(torch.autograd.grad((x * weight).sum(), rows)[0] for x in (got, expected)))


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_symmetric_is_meant_up_to_rounding_at_every_scale(scale):
    z = scale * torch.randn(40, 7, generator=torch.Generator().manual_seed(0))
    s = z @ z.T
    s[3, 5] *= 1 + 8 * torch.finfo(s.dtype).eps  # as some products are rounded
    sw.assignment.spectral_bounds(s, s)
    s[3, 5] += 1e-3 * s.abs().max()
    with pytest.raises(ValueError, match="expected a to be symmetric"):
        sw.assignment.spectral_bounds(s, s)
