"""The eigen-decomposition, and a twin of its kernel in numpy: same order, formulas and tolerances, float32."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import torch

from setwise.kernels import eigh as module
from setwise.kernels.eigh import LARGEST, MAX_SWEEPS, SHIFT, SORT, TOLERANCE, Plan, eigh, plan_for

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


def lefts(columns: int, round_: int) -> np.ndarray:
    """Left positions of the pairs that meet in a round."""
    return np.arange(round_ % 2, columns - 1, 2)


def fma(a: np.ndarray, b: np.ndarray, c: np.ndarray | float) -> np.ndarray:
    """A product and sum with one rounding, or nearly: float64 holds products of float32 exactly."""
    return (np.asarray(a, float) * b + c).astype(F)


def twin(a: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """Eigenvalues, eigenvectors and the number of sweeps, as jacobi.cu computes them."""
    n = len(a)
    plan = plan_for(n)
    largest = np.abs(a).max()
    scale = F(2.0 ** -np.floor(np.log2(largest))) if largest > 0 else F(1)
    a = a * scale
    square = a @ a
    shift = F(SHIFT * np.sqrt(np.sqrt((square * square).sum(dtype=F)))) if largest > 0 else F(1)
    b = np.zeros((plan.columns, n), F)  # row p: the column at position p
    b[:n] = a + shift * np.eye(n, dtype=F)
    long_left, met, sweeps = True, 0, 0
    while sweeps < MAX_SWEEPS:
        sweeps += 1
        squares = (b * b).sum(1, dtype=F)
        cosine2, sine = F(0), F(0)
        for round_ in range(plan.rounds):
            i = lefts(plan.columns, round_)
            x, y, xx, yy = b[i], b[i + 1], squares[i], squares[i + 1]
            xy = (x * y).sum(1, dtype=F)
            gap = yy - xx
            width = np.abs(gap) + F(1e-10)
            inverse = 1 / np.sqrt(width * width + 4 * xy * xy)
            c2 = fma(F(0.5) * width, inverse, F(0.5))
            secant = 1 / np.sqrt(c2)
            c, s = c2 * secant, np.where(gap < 0, -xy, xy) * inverse * secant
            correction = F(0.5) * fma(-c, c, fma(-s, s, F(1)))
            c, s = fma(c, correction, c), fma(s, correction, s)
            moved = s * secant * xy
            sorted_ = (xy * xy > F(SORT**2) * xx * yy) & ((gap < 0) if long_left else (gap > 0))
            p, q = np.where(sorted_, c, s)[:, None], np.where(sorted_, -s, c)[:, None]
            b[i], b[i + 1] = fma(p, x, q * y), fma(q, x, -p * y)
            squares[i] = np.where(sorted_, xx - moved, yy + moved)
            squares[i + 1] = np.where(sorted_, yy + moved, xx - moved)
            real = xx * yy > 0
            cosine2 = max(cosine2, (xy[real] ** 2 / (xx * yy)[real]).max(initial=0))
            sine = max(sine, np.abs(s).max(initial=0))
            met += 1
            if met == plan.columns:
                met, long_left = 0, not long_left
        if cosine2 <= SORT**2 and cosine2 * sine**2 <= TOLERANCE**2:
            break
    w = b[(b != 0).any(1)]
    w = (w / np.sqrt((w * w).sum(1, dtype=F))[:, None]).T
    values = ((a @ w) * w).sum(0, dtype=F)
    order = np.argsort(values, kind="stable")
    return values[order] / scale, w[:, order], sweeps


@pytest.mark.parametrize("n", [1, 2, 3, 4, 17, 33, 65])
def test_twin_meets_the_promised_accuracy(n: int) -> None:
    for name, a in families(n).items():
        values, vectors, sweeps = twin(a)
        assert max(errors(a, values, vectors).values()) < ACCURACY, (name, errors(a, values, vectors))
        assert sweeps <= 14, name  # far from the cap, so that rounding on another device cannot reach it


@pytest.mark.parametrize("name", ["indefinite", "cluster", "reflection", "gram 2048 decay 2", "gram 128 decay 0"])
def test_twin_at_the_largest_size(name: str) -> None:
    a = families(LARGEST)[name]
    values, vectors, _ = twin(a)
    assert max(errors(a, values, vectors).values()) < ACCURACY


def test_identity_takes_one_sweep_and_stays_exact() -> None:
    values, vectors, sweeps = twin(np.eye(65, dtype=F))
    assert sweeps == 1
    assert (values == 1).all()
    assert (np.abs(vectors).sum(0) == 1).all()


@pytest.mark.parametrize("n", range(1, LARGEST + 1))
def test_every_pair_meets_in_a_sweep(n: int) -> None:
    """Two sweeps of the plain exchange, whichever round they start with."""
    plan = plan_for(n)
    for start in (0, 1):
        order = np.arange(plan.columns)
        for sweep in range(2):
            met = np.eye(plan.columns, dtype=bool)
            for round_ in range(plan.rounds):
                i = lefts(plan.columns, start + sweep * plan.rounds + round_)
                met[order[i], order[i + 1]] = met[order[i + 1], order[i]] = True
                order[i], order[i + 1] = order[i + 1], order[i].copy()
            assert met.all()


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("n", range(1, LARGEST + 1))
def test_units_hand_columns_on_in_that_order(n: int, lanes: int) -> None:
    """The kernel's registers, shuffles and shared memory, followed by the labels of the columns."""
    plan = Plan(n, lanes)
    columns, units, group = plan.columns, plan.columns // 2, 32 // lanes
    even, odd = list(range(0, 2 * units, 2)), list(range(1, 2 * units, 2))
    memory = {columns - 1: columns - 1} if columns % 2 else {}
    positions = np.arange(columns)
    for round_ in range(0, 2 * plan.rounds, 2):
        even, odd = odd, even  # all meet and change places
        i = lefts(columns, round_)
        positions[i], positions[i + 1] = positions[i + 1], positions[i].copy()
        paired = [2 * u + 2 < columns for u in range(units)]
        last = [paired[u] and (u % group == group - 1 or u == units - 1) for u in range(units)]
        memory |= {2 * u: even[u] for u in range(0, units, group)}
        even = [memory[2 * u + 2] if last[u] else even[min(u + 1, units - 1)] for u in range(units)]
        for u in range(units):
            if paired[u]:
                even[u], odd[u] = odd[u], even[u]
        i = lefts(columns, round_ + 1)
        positions[i], positions[i + 1] = positions[i + 1], positions[i].copy()
        memory |= {2 * u + 2: even[u] for u in range(units) if last[u]}
        even = [memory[2 * u] if u % group == 0 else even[u - 1] for u in range(units)]
        held = np.array([c for pair in zip(even, odd, strict=True) for c in pair])
        assert (held == positions[: 2 * units]).all()
        assert columns % 2 == 0 or memory[columns - 1] == positions[-1]


# 16 lanes a pair of columns are more than a block's 1,024 threads beyond 128 columns.
@pytest.mark.parametrize(
    ("n", "lanes"), [(n, lanes) for n in range(1, LARGEST + 1) for lanes in (4, 8, 16) if lanes < 16 or n <= 128]
)
def test_plans_fit_a_thread_block(n: int, lanes: int) -> None:
    plan = Plan(n, lanes)
    rows = lanes * (4 * plan.vectors + plan.scalars)
    assert rows >= n
    assert plan.stride % 4 == 0
    assert plan.stride > max(rows, 4 * -(-n // 4))  # the length of the column has a word of its own
    assert plan.threads % 32 == 0
    assert plan.columns // 2 * lanes <= plan.threads <= 1024
    assert plan.shared_bytes <= 160 * 1024
    assert plan.constants()["N"] == n


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1, 1), (5, 5), (2, 65, 65), (2, 3, 7, 7), (1, 130, 130)])
def test_batches_on_the_cpu(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    s = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=dtype)
    a = s + s.mT
    values, vectors = eigh(a)
    assert values.shape == shape[:-1]
    assert vectors.shape == shape
    assert values.dtype == vectors.dtype == dtype
    for x, l, w in zip(*(t.reshape(-1, *t.shape[len(shape) - 2 :]) for t in (a, values, vectors)), strict=True):
        assert max(errors(x.numpy(), l.numpy(), w.numpy()).values()) < ACCURACY


def test_many_eigenvalues_near_zero_on_the_cpu() -> None:
    # In float32 torch's solver gives NaN for some of these, and fails on others.
    for seed in range(20):
        z = torch.randn(256, 64, generator=torch.Generator().manual_seed(seed))
        z = z * torch.where(torch.arange(64) < 5, 1.0, 1e-25)
        a = z.T @ z
        values, vectors = eigh(a)
        assert values.dtype == vectors.dtype == torch.float32
        assert max(errors(a.numpy(), values.numpy(), vectors.numpy()).values()) < ACCURACY


def test_hand_computed_values() -> None:
    values, vectors = eigh(torch.tensor([[2.0, 1.0], [1.0, 2.0]]))
    torch.testing.assert_close(values, torch.tensor([1.0, 3.0]))
    torch.testing.assert_close(vectors.abs(), torch.full((2, 2), 0.5).sqrt())


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
    def fail(plan: Plan) -> None:
        raise RuntimeError("no NVRTC here")

    monkeypatch.setattr(module, "Jacobi", fail)
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
        values, vectors = eigh(torch.from_numpy(np.stack(list(named.values()))).cuda())
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

    def test_same_input_same_bits(self) -> None:
        s = torch.randn(4, 65, 65, device="cuda")
        first, second = eigh(s + s.mT), eigh(s + s.mT)
        assert torch.equal(first[0], second[0])
        assert torch.equal(first[1], second[1])
