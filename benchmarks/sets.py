"""InfoNCE that knows only the sets, forward and backward, against the one that knows the pairs. Assignments included.

    python benchmarks/sets.py [--device cuda] [--out results/bench-sets-cpu.json]

All ratios come from one run: the candidates take turns, and the median time of each counts. A CPU has one thread. On a
GPU each candidate is a captured graph, as in training.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

import setwise as sw
from setwise.training.capture import captured

DIMENSIONS, SIZES, SOFTNESS = 128, (8, 32, 128), 0.1


def step(loss: sw.InfoNCE, z_a: torch.Tensor, z_b: torch.Tensor, sets: sw.Sets | None) -> None:
    """Forward and backward."""
    torch.autograd.grad(loss(z_a, z_b, sets=sets), (z_a, z_b))


def times(n: int, size: int, device: torch.device, repeats: int) -> dict[str, float]:
    """Median seconds of forward and backward, in sets of ``size``, by what is known."""
    generator = torch.Generator().manual_seed(0)
    items, noise = torch.randn(2, n, DIMENSIONS, generator=generator)
    z_a, z_b = (x.to(device).requires_grad_() for x in (items, items + 0.5 * noise))
    ids = (torch.arange(n) // size).to(device)
    loss = sw.InfoNCE(0.1, symmetric=True)
    known = {
        "pairs": None,
        "same": sw.Sets(ids, ids),
        "same, at a price": sw.Sets(ids, ids, price=-0.3),
        "hard": sw.Sets(ids, ids, "hard"),
        "hard, soft": sw.Sets(ids, ids, "hard", softness=SOFTNESS),
        "one-to-one": sw.Sets(ids, ids, "one-to-one"),
        "one-to-one, soft": sw.Sets(ids, ids, "one-to-one", softness=SOFTNESS),
    }
    steps: dict[str, Callable[[], object]] = {name: partial(step, loss, z_a, z_b, sets) for name, sets in known.items()}
    if device.type == "cuda":
        steps = {name: captured(one) for name, one in steps.items()}
    found: dict[str, list[float]] = {name: [] for name in known}
    for turn in range(repeats + 3):
        for name, one in steps.items():
            if device.type == "cuda":
                torch.cuda.synchronize()
            started = time.perf_counter()
            one()
            if device.type == "cuda":
                torch.cuda.synchronize()
            if turn >= 3:  # the first turns warm up
                found[name].append(time.perf_counter() - started)
    return {name: statistics.median(values) for name, values in found.items()}


def main() -> None:
    """Print milliseconds and ratios for each size of sets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--items", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = torch.device(options.device)
    if device.type == "cpu":
        torch.set_num_threads(1)
    name = torch.cuda.get_device_name() if device.type == "cuda" else platform.machine()
    rows = {size: times(options.items, size, device, options.repeats) for size in SIZES}
    for size, row in rows.items():
        shown = [f"{way} {1e3 * value:.2f} ms ({value / row['pairs']:.2f} x)" for way, value in row.items()]
        print(f"sets of {size}: " + ", ".join(shown))
    if options.out:
        about = {
            "device": name,
            "torch": torch.__version__,
            "items": options.items,
            "dimensions": DIMENSIONS,
            "softness": SOFTNESS,
        }
        options.out.write_text(json.dumps(about | {"seconds": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
