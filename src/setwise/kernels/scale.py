"""Entropic one-to-one assignments inside many sets at once: one launch, not twenty for each half of a pass."""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from setwise.kernels.assign import TYPES
from setwise.kernels.nvrtc import Kernel, compile_kernel, compiled_or_none, usable

FILES = ("sets.cu", "scale.cu")
THREADS = 1024  # of a block, which serves one pair of sets: many passes over few rows wait for each row's sums


@cache
def _kernel(kind: str, device: torch.device) -> Kernel | None:
    defines = {"SCORE": kind, "THREADS": THREADS}
    what, instead = "the kernel of soft assignments", "plain torch, on all pairs of a batch,"
    return compiled_or_none(lambda: compile_kernel(FILES, "scale_sets", defines), what, instead, device)


def shares_inside_sets(
    scores: Tensor,
    ids_a: Tensor,
    ids_b: Tensor,
    first: float | Tensor,
    wanted: float | Tensor,
    alone: float | None,
    passes: int,
    last: int,
) -> tuple[Tensor, Tensor] | None:
    """What ``assignment.scaling.scaled_assignments`` gives inside every pair of sets, [N, M] and [M, N], 0 elsewhere.

    ``scores`` [N, M]. ``ids_a``, ``ids_b``, int64: pairs of equal ids may be matched. Of the ``passes`` the ``last``
    ones are at t ``wanted``, to which it falls from ``first``; both may be tensors [], whose new values a CUDA graph
    reads. ``alone``: the score of a row, and of a column, that stays alone. None where there is no kernel.
    """
    kernel = _kernel(TYPES[scores.dtype], scores.device) if usable(scores, *TYPES) else None
    if kernel is None:
        return None
    (n, m), scores = scores.shape, scores.contiguous()
    heats = scores.new_empty(2)
    for heat, t in zip(heats, (first, wanted), strict=True):
        heat.fill_(t)
    of_a, of_b = scores.new_zeros(n, m), scores.new_zeros(m, n)
    raised, members = scores.new_empty(n + m), torch.empty(n + m, dtype=torch.int32, device=scores.device)
    tensors = [scores, ids_a.contiguous(), ids_b.contiguous(), heats, raised, members, of_a, of_b]
    numbers = [n, m, passes, passes - last, -math.inf if alone is None else float(alone)]
    kernel(grid=(n, 1, 1), block=(THREADS, 1, 1), args=[*tensors, *numbers])
    return of_a, of_b
