"""Set-level terms, VICReg and Barlow Twins: forward and backward. One thread, CPU, float32.

    python benchmarks/terms.py [--out results/bench-terms-cpu.json]

All times come from one run: the candidates take turns, and the smallest time of each counts. The Frobenius product and
the structural difference are measured both ways, by N×N matrices and by sums over items: ``MANY_ITEMS`` of
``setwise.losses.controls`` is chosen by them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import Tensor

import setwise as sw
from setwise.losses import controls
from setwise.losses.gram import CKA, CodingRate, Covariance, NuclearNorm, Uniformity, Variance

Loss = Callable[[Tensor, Tensor], Tensor]
DIMENSIONS, ITEMS = 128, (256, 1024, 4096)
TERMS: dict[str, Loss] = {
    "qare": sw.QARe(),
    "gap": sw.QARe(reference="truth"),
    "coding-rate": CodingRate(),
    "nuclear-norm": NuclearNorm(),
    "variance": Variance(),
    "covariance": Covariance(),
    "cross-correlation": sw.BarlowTwins(),
    "cka": CKA(),
    "uniformity": Uniformity(),
    "frobenius": controls.FrobeniusProduct(),
    "structural-difference": controls.StructuralDifference(),
    "vicreg": sw.VICReg(),
}
BOTH_WAYS = ("frobenius", "structural-difference")


def by_sums(loss: Loss, most: int) -> Loss:
    """``loss`` by sums over items where there are more than ``most``, and four times the dimensions."""

    def chosen(z_a: Tensor, z_b: Tensor) -> Tensor:
        usual, controls.MANY_ITEMS = controls.MANY_ITEMS, most
        try:
            return loss(z_a, z_b)
        finally:
            controls.MANY_ITEMS = usual

    return chosen


def times(candidates: dict[str, Loss], n: int, e: int, repeats: int) -> dict[str, float]:
    """Smallest seconds of forward and backward of each, taking turns."""
    generator = torch.Generator().manual_seed(0)
    items, noise = torch.randn(2, n, e, generator=generator)
    pair = items.requires_grad_(), (items.detach() + 0.5 * noise).requires_grad_()
    found: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(repeats + 1):
        for name, loss in candidates.items():
            started = time.perf_counter()
            torch.autograd.grad(loss(*pair), pair)
            if turn:  # the first turn warms up
                found[name].append(time.perf_counter() - started)
    return {name: min(values) for name, values in found.items()}


def main() -> None:
    """Measure, show, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for n, repeats in zip(ITEMS, (30, 10, 3), strict=True):
        rows.append({"n": n, **times(TERMS, n, DIMENSIONS, repeats)})
        print(f"N = {n}: " + ", ".join(f"{name} {1e3 * rows[-1][name]:.2f} ms" for name in TERMS), flush=True)
    ways = {
        f"{name}, {way}": by_sums(TERMS[name], most)
        for name in BOTH_WAYS
        for way, most in (("matrices", 10**9), ("sums", 0))
    }
    both = []
    for e, n in ((64, 1024), (64, 2048), (128, 1024), (128, 2048), (512, 2560)):
        both.append({"e": e, "n": n, **times(ways, n, e, 4)})
        print(f"E = {e}, N = {n}: " + ", ".join(f"{way} {1e3 * both[-1][way]:.2f} ms" for way in ways), flush=True)
    if options.out:
        about = {"machine": platform.processor() or platform.machine(), "torch": torch.__version__}
        record = about | {"dimensions": DIMENSIONS, "times_s": rows, "both_ways_s": both}
        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
