"""Eigen-decomposition of small symmetric matrices without waiting for the device.

``torch.linalg.eigh`` reads its status back from a GPU: it cannot be captured in a CUDA graph, and it runs
a slow loop over batches with n > 32. QARe needs two matrices of E + 1 rows in every step, so there is a
kernel for them here (jacobi.cu, compiled at run time) and the library everywhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from setwise.checks import check_square
from setwise.kernels.nvrtc import compile_kernel, or_none, usable

LARGEST = 132  # rows; the kernel then takes 148 KB of shared memory, which data centre GPUs since the A100 have

# Both tolerances are checked by the twin of the kernel in tests/kernels/test_eigh.py, for every kind of matrix.
# A sweep whose largest cosine times largest sine is under this leaves columns orthogonal to about as much.
TOLERANCE = 2e-6
# Columns with a larger cosine are sorted by length as they meet: one or two sweeps fewer. Below, no column
# may be held back: only then has every pair met, and only then can a sweep be the last.
SORT = 1e-4
# Times an upper bound of the spectral norm: A + shift is positive definite, its condition at most 21.
SHIFT = 1.1
# Power-law spectra take up to 11 sweeps; a cap only so that nothing can run for ever.
MAX_SWEEPS = 20


@dataclass(frozen=True)
class Plan:
    """How the kernel divides an n x n matrix: ``lanes`` threads join two columns at a time."""

    n: int
    lanes: int

    @property
    def columns(self) -> int:
        """Columns, at least one pair of them: n = 1 is padded by a column of zeros."""
        return max(2, self.n)

    @property
    def rounds(self) -> int:
        """Rounds of a sweep, between two looks at convergence: a whole reversal, and an even number."""
        return self.columns + self.columns % 2

    @property
    def threads(self) -> int:
        """Threads of a block, in whole warps."""
        return -(-(self.columns // 2) * self.lanes // 32) * 32

    @property
    def vectors(self) -> int:
        """16-byte words of a column that each lane holds."""
        return self.n // (4 * self.lanes)

    @property
    def scalars(self) -> int:
        """Single entries of a column that each lane holds besides."""
        return -(-(self.n - 4 * self.lanes * self.vectors) // self.lanes)

    @property
    def stride(self) -> int:
        """Floats from one column to the next in shared memory.

        A multiple of four, with room for the length of the column at the end, and such that the units of
        a warp, which are two columns apart, fall on different banks.
        """
        rows = max(self.lanes * (4 * self.vectors + self.scalars), -(-self.n // 4) * 4)
        step, rest = (8, 4) if self.lanes == 8 else (16, 8)
        return rows + 1 + (rest - rows - 1) % step

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a thread block: the matrix, and as much for its columns on their way.

        Beyond 48 KB it must be asked for, to which what the kernel declares itself counts: hence a little more there.
        """
        needed = 2 * 4 * self.stride * self.columns
        return max(needed, 48 * 1024) if needed > 47 * 1024 else needed

    def constants(self) -> dict[str, object]:
        """What the text of the kernel expects to be defined before it."""
        return {
            "N": self.n,
            "LANES": self.lanes,
            "COLUMNS": self.columns,
            "UNITS": self.columns // 2,
            "ROUNDS": self.rounds,
            "THREADS": self.threads,
            "VECTORS": self.vectors,
            "SCALARS": self.scalars,
            "STRIDE": self.stride,
            "MAX_SWEEPS": MAX_SWEEPS,
            "TOLERANCE2": f"{TOLERANCE**2:.9e}f",
            "SORT2": f"{SORT**2:.9e}f",
            "SHIFT": f"{SHIFT:.9e}f",
        }


def plan_for(n: int) -> Plan:
    """The fastest division, as benchmarks/eigh_gpu.py measured it on an H200 for n from 17 to 128."""
    return Plan(n, lanes=4 if 32 < n <= 65 else 8)


class Jacobi:
    """The compiled kernel for one plan on the current device."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.kernel = compile_kernel("jacobi.cu", "jacobi", plan.constants(), plan.shared_bytes)

    def __call__(self, a: Tensor) -> tuple[Tensor, Tensor]:
        """Decompose ``a`` [B, n, n], float32 and contiguous, on the current stream of its device."""
        values = a.new_empty(a.shape[:-1])
        vectors = torch.empty_like(a)  # one a row
        self.kernel(grid=(len(a), 1, 1), block=(self.plan.threads, 1, 1), args=[a, values, vectors])
        return values, vectors.mT


@cache
def _kernel(n: int, device: torch.device) -> Jacobi | None:
    """The kernel for n x n matrices on ``device``, None where it cannot be had; says so once."""
    what = f"the eigenvalue kernel for n = {n}"
    instead = "torch.linalg.eigh, which waits for the device and cannot be captured in a CUDA graph,"
    return or_none(lambda: Jacobi(plan_for(n)), what, instead, device)


def eigh(a: Tensor) -> tuple[Tensor, Tensor]:
    r"""Eigenvalues, ascending, and orthonormal eigenvectors of symmetric matrices.

        A = W diag(l) W^T

    ``a`` is [..., n, n] in float32 or float64, of which the lower triangle is read. Returns l [..., n] and
    W [..., n, n], whose columns are the eigenvectors. Like every eigen-solver, W is free up to signs, and up
    to rotations within equal eigenvalues. No gradient passes: the derivative of eigenvectors is not finite
    where eigenvalues are equal, and spectral losses have closed forms for theirs.

    On a CUDA device in float32 with n <= 132: one kernel, which does not wait for the device and can be
    captured in a CUDA graph once it was called for this n outside of one. |W diag(l) W^T - A|, |W^T W - I|
    and the error of l relative to the spectral norm stay under 1e-5. Matrices with a NaN or an infinity give
    NaN. Elsewhere: torch.linalg.eigh, on the CPU always in float64, since in float32 it fails, or gives NaN, on
    finite matrices with many eigenvalues near zero.
    """
    check_square(a, "a")
    if a.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"expected a in float32 or float64, got {a.dtype}; convert it with .float()")
    a = a.detach()
    n = a.shape[-1]
    if usable(a) and n <= LARGEST:
        kernel = _kernel(n, a.device)
        if kernel is not None:
            values, vectors = kernel(a.reshape(-1, n, n).contiguous())
            return values.reshape(a.shape[:-1]), vectors.reshape(a.shape)
    values, vectors = torch.linalg.eigh(a.double() if a.device.type == "cpu" else a)
    return values.to(a.dtype), vectors.to(a.dtype)
