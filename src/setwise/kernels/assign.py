"""Linear assignment inside many sets at once, without waiting for the device."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from setwise.kernels.nvrtc import Kernel, compile_kernel, compiled_or_none, usable

FILES = ("sets.cu", "assign.cu")
THREADS = 128  # of a block, which solves one set
TYPES = {torch.float32: "float", torch.float64: "double"}


@cache
def _kernel(kind: str, device: torch.device) -> Kernel | None:
    defines = {"SCORE": kind, "THREADS": THREADS}
    what, instead = "the kernel of assignments", "scipy on the CPU, which no CUDA graph can capture,"
    return compiled_or_none(lambda: compile_kernel(FILES, "assign_sets", defines), what, instead, device)


def best_inside(scores: Tensor, ids_a: Tensor, ids_b: Tensor) -> tuple[Tensor, Tensor] | None:
    """The best one-to-one assignment inside every pair of sets: the partner of each row [N] and column [M], or -1.

    ``scores`` [N, M]: larger is better. ``ids_a``, ``ids_b``, int64: pairs of equal ids may be matched. The smaller
    side of a pair of sets is matched whole. Exact, in float64. Scores that are not finite give some assignment. A CUDA
    graph can capture it after one call. None where there is no kernel: the caller then goes to the CPU.
    """
    kernel = _kernel(TYPES[scores.dtype], scores.device) if usable(scores, *TYPES) else None
    if kernel is None:
        return None
    (n, m), scores = scores.shape, scores.contiguous()
    to_b, to_a = (torch.full((size,), -1, device=scores.device) for size in (n, m))
    real = (torch.empty(n + m, dtype=torch.float64, device=scores.device) for _ in range(2))
    whole = (torch.empty(n + m, dtype=torch.int32, device=scores.device) for _ in range(4))
    tensors = [scores, ids_a.contiguous(), ids_b.contiguous(), *real, *whole, to_b, to_a]
    kernel(grid=(n, 1, 1), block=(THREADS, 1, 1), args=[*tensors, n, m])
    return to_b, to_a
