"""The eigen-decomposition; the text of its kernel also on a CPU."""

from __future__ import annotations

import contextlib
import ctypes
from functools import cache

import numpy as np
import pytest
import torch

from setwise.kernels import eigh as module
from setwise.kernels.eigh import FILES, LARGEST, eigh, shared_bytes, threads_for
from setwise.kernels.nvrtc import source

gpu = pytest.mark.gpu  # tests/conftest.py skips it where there is none
F = np.float32
ACCURACY = 1e-5  # what eigh promises, relative to the spectral norm


def gram(n: int, items: int, decay: float, rng: np.random.Generator) -> np.ndarray:
    """The matrix of QARe, [Z 1]^T [Z 1] for unit rows Z whose spectrum falls as a power law."""
    z = rng.standard_normal((items, n - 1)) * np.arange(1.0, n) ** -decay
    z = z @ np.linalg.qr(rng.standard_normal((n - 1, n - 1)))[0]
    z = np.c_[z / np.linalg.norm(z, axis=1, keepdims=True), np.ones(items)]
    return z.T @ z


def families(n: int) -> dict[str, np.ndarray]:
    """Symmetric float32 matrices of every awkward kind."""
    rng = np.random.default_rng(n)
    s = rng.standard_normal((n, n))
    q = np.linalg.qr(s)[0]
    low = rng.standard_normal((n, 3))
    far = np.diag(np.arange(n, 0, -1.0))  # sorted but for one entry, which a sweep of neighbours would miss
    far[0, -1] = far[-1, 0] = 0.5
    found = {
        "indefinite": s + s.T,
        "positive": s @ s.T,
        "identity": np.eye(n),
        "minus identity": -np.eye(n),
        "zero": np.zeros((n, n)),
        "ones": np.ones((n, n)),
        "ones + identity": np.ones((n, n)) + np.eye(n),
        "barely coupled": np.eye(n) + 1e-19 * np.ones((n, n)),
        "rank 3": low @ low.T,
        "reflection": q @ np.diag(np.where(np.arange(n) % 3, 1.0, -1.0)) @ q.T,
        "exchange": np.eye(n)[::-1],
        "geometric": q @ np.diag(np.logspace(0, -8, n)) @ q.T,
        "cluster": q @ np.diag(1 + 1e-4 * rng.standard_normal(n)) @ q.T,
        "dominant": q @ np.diag(np.r_[100, 1 + 1e-3 * rng.standard_normal(n - 1)]) @ q.T,
        "far entry": far,
        "tiny": 1e-20 * (s + s.T),
        "huge": 1e20 * (s + s.T),
    }
    if n > 2:
        for items in (32, 128, 2048):
            for decay in (0.0, 1.0, 2.0):
                found[f"gram {items} decay {decay:g}"] = gram(n, items, decay, rng)
    return {name: ((a + a.T) / 2).astype(F) for name, a in found.items()}


def errors(a: np.ndarray, values: np.ndarray, vectors: np.ndarray) -> dict[str, float]:
    """Against numpy in float64, relative to the spectral norm."""
    a, l, w = a.astype(float), values.astype(float), vectors.astype(float)
    true = np.linalg.eigvalsh(a)
    norm = np.abs(true).max() or 1.0
    return {
        "values": np.abs(l - true).max() / norm,
        "rebuilt": np.linalg.norm(w @ np.diag(l) @ w.T - a, 2) / norm,
        "orthogonal": np.linalg.norm(w.T @ w - np.eye(len(a)), 2),
    }


RUN = """
float4 shared[1 << 14];
extern "C" int bytes() { return sizeof(Memory); }
extern "C" void run(int order, int batch, const float* a, float* values, float* vectors) {
    static_assert(sizeof(Memory) <= sizeof(shared));
    for (float4& x : shared) x = {NAN, NAN, NAN, NAN};
    turn_order = order;
    launch(eigh, batch, THREADS, a, values, vectors);
}
"""


@pytest.fixture(scope="module")
def on_cpu(for_cpu):
    """The kernel's own text for n x n matrices."""
    return cache(lambda n: for_cpu(source(FILES, {"N": n, "THREADS": threads_for(n)}) + RUN))


def solve(library: ctypes.CDLL, a: np.ndarray, order: int = 1) -> tuple[np.ndarray, np.ndarray]:
    a = np.ascontiguousarray(a, F)
    values, vectors = np.full(a.shape[:-1], 9, F), np.full(a.shape, 9, F)
    library.run(order, len(a), *(ctypes.c_void_p(x.ctypes.data) for x in (a, values, vectors)))
    return values, vectors.swapaxes(1, 2)


# Of "ones" a step leaves rounding errors where zeros should be, the next one those of these, and so on to 1e-22, of
# which the square has no digits left: with n = 129 a reflection was orthogonal to 2e-5 only.
HARDEST = ("ones", "indefinite", "cluster", "barely coupled", "reflection", "gram 2048 decay 2")


@pytest.mark.parametrize("n", [1, 2, 3, 4, 17, 33, 65, 100, 129, LARGEST])
def test_the_text_of_the_kernel_meets_the_promised_accuracy(on_cpu, n: int) -> None:
    named = {name: a for name, a in families(n).items() if n <= 65 or name in HARDEST}
    values, vectors = solve(on_cpu(n), np.stack(list(named.values())))
    for k, (name, a) in enumerate(named.items()):
        found = errors(a, values[k], vectors[k])
        assert max(found.values()) < ACCURACY / 2, (name, found)
        assert (np.diff(values[k]) >= 0).all(), name
    assert on_cpu(n).bytes() == shared_bytes(n)


@pytest.mark.parametrize("n", [33, 65])
def test_threads_wait_for_what_they_read(on_cpu, n: int) -> None:
    a = np.stack([families(n)[name] for name in HARDEST])
    first = solve(on_cpu(n), a)
    for order in (0, 2, 57):  # backwards, and all over the block
        again = solve(on_cpu(n), a, order)
        assert np.array_equal(first[0], again[0])
        assert np.array_equal(first[1], again[1])


def test_the_text_of_the_kernel_on_odd_matrices(on_cpu) -> None:
    n = 33
    a = np.stack([families(n)["indefinite"]] * 5)
    a[1] = np.tril(a[1]) + np.triu(np.full((n, n), np.nan, F), 1)  # the lower triangle is all that is read
    a[2] = 0
    a[3, 4, 2] = np.nan
    a[4, 7, 7] = -np.inf
    values, vectors = solve(on_cpu(n), a)
    assert np.array_equal(values[0], values[1])
    assert np.array_equal(vectors[0], vectors[1])
    assert (values[2] == 0).all()
    assert np.abs(vectors[2].T @ vectors[2] - np.eye(n)).max() < ACCURACY
    assert np.isnan(values[3:]).all()
    assert np.isnan(vectors[3:]).all()


def test_every_size_fits_a_thread_block() -> None:
    for n in range(1, LARGEST + 1):
        assert threads_for(n) in (256, 512)  # what the kernel is written for
        assert 8 * n * n <= shared_bytes(n) <= 163 * 1024


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("n", [1, 5, 33, 130])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_accuracy_on_the_cpu(n: int, dtype: torch.dtype, quick: bool) -> None:
    named = families(n)
    a = torch.from_numpy(np.stack(list(named.values()))).to(dtype).expand(2, -1, -1, -1)
    values, vectors = eigh(a, quick=quick)
    assert (values.shape, vectors.shape) == (a.shape[:-1], a.shape)
    assert values.dtype == vectors.dtype == dtype
    for k, name in enumerate(named):
        assert max(errors(named[name], values[1, k].numpy(), vectors[1, k].numpy()).values()) < ACCURACY, name


@pytest.mark.parametrize("quick", [False, True])
def test_many_eigenvalues_near_zero_on_the_cpu(quick: bool) -> None:
    # In float32 torch's solver gives NaN for some of these, and fails on others.
    for seed in range(20):
        z = torch.randn(256, 64, generator=torch.Generator().manual_seed(seed))
        z = z * torch.where(torch.arange(64) < 5, 1.0, 1e-25)
        a = z.T @ z
        values, vectors = eigh(a, quick=quick)
        assert max(errors(a.numpy(), values.numpy(), vectors.numpy()).values()) < ACCURACY


@pytest.mark.parametrize("broken", ["fails", "nan"])
def test_quick_tries_again_in_float64(monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    solve = torch.linalg.eigh

    def fail(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if a.dtype == torch.float32 and broken == "fails":
            raise RuntimeError("linalg.eigh: The algorithm failed to converge")
        values, vectors = solve(a)
        return values, vectors * torch.nan if a.dtype == torch.float32 else vectors

    monkeypatch.setattr(torch.linalg, "eigh", fail)
    values, vectors = eigh(torch.diag(torch.tensor([2.0, 1.0])), quick=True)
    assert values.tolist() == [1.0, 2.0]
    assert vectors.dtype == torch.float32


def test_no_gradient_passes() -> None:
    values, vectors = eigh(torch.eye(3, requires_grad=True) * 2)
    assert not values.requires_grad
    assert not vectors.requires_grad


def test_wrong_inputs_are_named() -> None:
    with pytest.raises(ValueError, match=r"float32 or float64, got torch.float16; convert it with"):
        eigh(torch.eye(3, dtype=torch.float16))
    with pytest.raises(ValueError, match=r"expected a to be square, of shape"):
        eigh(torch.ones(2, 3))


def test_a_kernel_that_does_not_compile_is_replaced_aloud(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(n: int) -> None:
        raise RuntimeError("no NVRTC here")

    monkeypatch.setattr(module, "Solver", fail)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    module._kernel.cache_clear()
    with pytest.warns(RuntimeWarning, match=r"torch.linalg.eigh, .* takes the place .* n = 9 .* no NVRTC here"):
        assert module._kernel(9, torch.device("cuda:0")) is None
    assert module._kernel(9, torch.device("cuda:0")) is None  # said once
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match="before the capture of a CUDA graph"):
        module._kernel(10, torch.device("cuda:0"))
    module._kernel.cache_clear()


class TestKernel:
    """The kernel itself."""

    pytestmark = gpu

    @pytest.mark.parametrize("n", [1, 2, 3, 16, 17, 32, 33, 64, 65, 66, 73, 96, 127, 128, 129, 132, 133])
    def test_accuracy(self, n: int) -> None:
        named = families(n)
        a = torch.from_numpy(np.stack(list(named.values()))).cuda()
        values, vectors = eigh(a)
        if n <= LARGEST:  # the same input, the same bits
            assert all(torch.equal(x, y) for x, y in zip(eigh(a), (values, vectors), strict=True))
        for k, (name, a) in enumerate(named.items()):
            found = errors(a, values[k].cpu().numpy(), vectors[k].cpu().numpy())
            limit = ACCURACY if n <= LARGEST else 1e-3  # beyond: the library's own accuracy
            assert max(found.values()) < limit, (name, found)
            assert (values[k].diff() >= 0).all(), name

    def test_only_the_lower_triangle_is_read_and_strides_are_free(self) -> None:
        s = torch.randn(3, 2, 20, 20, device="cuda")
        a = s + s.mT
        mixed = a.tril() + torch.full_like(a, float("nan")).triu(1)
        expected = torch.linalg.eigvalsh(a)
        torch.testing.assert_close(eigh(a.transpose(0, 1))[0], expected.transpose(0, 1), atol=1e-4, rtol=0)
        assert eigh(a)[1].shape == a.shape
        torch.testing.assert_close(eigh(mixed)[0], expected, atol=1e-4, rtol=0)

    def test_nan_and_infinity_stay_in_their_matrix(self) -> None:
        a = torch.eye(65, device="cuda").repeat(3, 1, 1)
        a[0, 3, 1] = float("nan")
        a[1, 64, 64] = float("inf")
        values, vectors = eigh(a)
        assert values[:2].isnan().all()
        assert vectors[:2].isnan().all()
        torch.testing.assert_close(values[2], torch.ones(65, device="cuda"))

    def test_replays_in_a_graph_on_new_data(self) -> None:
        a = torch.eye(65, device="cuda").repeat(2, 1, 1)
        eigh(a)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            values, vectors = eigh(a)
        for name in ("indefinite", "gram 128 decay 1"):
            fresh = families(65)[name]
            a.copy_(torch.from_numpy(fresh))
            graph.replay()
            found = errors(fresh, values[1].cpu().numpy(), vectors[1].cpu().numpy())
            assert max(found.values()) < ACCURACY
