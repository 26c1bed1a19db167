"""Eigen-decomposition of small symmetric matrices without waiting for the device.

``torch.linalg.eigh`` reads its status back from a GPU, so a CUDA graph cannot capture it, and it loops slowly over
batches with n > 32. QARe needs two matrices of E + 1 rows in every step. The kernel in eigh.cu decomposes them.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from setwise.kernels.nvrtc import compile_kernel, compiled_or_none, usable

FILES = ("tridiagonal.cu", "eigh.cu")
LARGEST = 132  # rows; the kernel then takes 163 KB of shared memory, which data centre GPUs since the A100 have


def threads_for(n: int) -> int:
    """Threads of a block for an n x n matrix: four a column, but for the last few of more than 128."""
    return 256 if n <= 64 else 512


def shared_bytes(n: int) -> int:
    """What ``Memory`` in tridiagonal.cu takes."""
    threads, height, stride = threads_for(n), -(-n // 4) * 4, -(-n // 16) * 16 + 4
    places = -(-n // (threads // 8)) * (threads // 8)
    floats = 2 * height * stride + 3 * places + height + 14 * n + threads // 32
    return -(-4 * floats // 16) * 16


class Solver:
    """The compiled kernel for n x n matrices on the current device."""

    def __init__(self, n: int) -> None:
        self.threads = threads_for(n)
        self.kernel = compile_kernel(FILES, "eigh", {"N": n, "THREADS": self.threads}, shared_bytes(n))

    def __call__(self, a: Tensor) -> tuple[Tensor, Tensor]:
        """Decompose ``a`` [B, n, n], float32 and contiguous, on the current stream of its device."""
        values = a.new_empty(a.shape[:-1])
        vectors = torch.empty_like(a)  # one a row
        self.kernel(grid=(len(a), 1, 1), block=(self.threads, 1, 1), args=[a, values, vectors])
        return values, vectors.mT


@cache
def _kernel(n: int, device: torch.device) -> Solver | None:
    """The kernel for n x n matrices on ``device``; None, and one warning, where it does not compile."""
    what = f"the eigenvalue kernel for n = {n}"
    instead = "torch.linalg.eigh, which waits for the device and cannot be captured in a CUDA graph,"
    return compiled_or_none(lambda: Solver(n), what, instead, device)


def eigh(a: Tensor, *, quick: bool = False) -> tuple[Tensor, Tensor]:
    r"""Eigenvalues, ascending, and orthonormal eigenvectors of symmetric matrices.

        A = W diag(l) W^T

    ``a`` is [..., n, n] in float32 or float64; only its lower triangle is read. Returns l [..., n] and W [..., n, n],
    whose columns are the eigenvectors. W is free up to signs and to rotations within equal eigenvalues. No gradient
    passes: eigenvectors have no finite derivative where eigenvalues are equal, and spectral losses have closed forms.

    On a CUDA device in float32 with n <= 132, one kernel does it. A CUDA graph can capture it after one call for this
    n. |W diag(l) W^T - A|, |W^T W - I| and the error of l relative to the spectral norm stay under 1e-5. A matrix with
    a NaN or an infinity gives NaN. Elsewhere torch.linalg.eigh does it, on the CPU in float64: in float32 it fails, or
    gives NaN, on some finite matrices with many eigenvalues near zero. ``quick`` tries float32 first, which takes half
    the time and is as accurate as the kernel.
    """
    if a.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"expected a in float32 or float64, got {a.dtype}; convert it with .float()")
    if a.ndim < 2 or a.shape[-1] != a.shape[-2]:
        raise ValueError(f"expected a to be square, of shape (..., N, N), got {tuple(a.shape)}")
    a = a.detach()
    n = a.shape[-1]
    if a.is_cuda and n <= LARGEST and usable(a, torch.float32):
        kernel = _kernel(n, a.device)
        if kernel is not None:
            values, vectors = kernel(a.reshape(-1, n, n).contiguous())
            return values.reshape(a.shape[:-1]), vectors.reshape(a.shape)
    if quick and a.device.type == "cpu" and a.dtype == torch.float32 and not torch.compiler.is_compiling():
        try:
            values, vectors = torch.linalg.eigh(a)
            if math.isfinite((values.sum() + vectors.sum()).item()):
                return values, vectors
        except RuntimeError:  # torch.linalg's, of a solver that did not converge
            pass
    values, vectors = torch.linalg.eigh(a.double() if a.device.type == "cpu" else a)
    return values.to(a.dtype), vectors.to(a.dtype)
