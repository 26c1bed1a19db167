"""InfoNCE that knows only the sets against the one that knows the pairs: times, assignments included.

    python benchmarks/sets.py [--root ROOT] [--device cuda] [--out results/bench-sets-cpu.json]

First the loss alone, forward and backward. With ``--root``, a folder that has multi30k, whole training steps too: bags
of n-grams, the recipe pairs/multi30k-bag-infonce. All ratios come from one run: the candidates take turns, and the
median time of each counts. A CPU has one thread. On a GPU each candidate is a captured graph, as in training.
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
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

import setwise as sw
from sets_study import TRUTHS, Setting, base, in_sets, lines_in_sets, loaded
from setwise.data import PairSet
from setwise.training.capture import captured
from setwise.training.engine import Engine

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
    return medians(steps, device, repeats)


def training_steps(n: int, size: int, device: torch.device, repeats: int, root: Path) -> dict[str, float]:
    """Median seconds of a training step on pairs of sentences, in sets of ``size``."""
    pairs, _ = loaded("en-de", "", "tuned", root)
    in_unknown_order = in_sets(pairs, lines_in_sets(len(pairs), size), seed=0)

    def engine(data: PairSet, setting: Setting, **changes: object) -> Engine:
        return Engine(base(setting, "tuned").changed({"batch": n} | changes), data, seed=1, device=device)

    engines = {"pairs": engine(pairs, Setting("en-de", 1, "same"))}
    for way in TRUTHS:  # each truth from the first step on
        engines[way] = engine(in_unknown_order, Setting("en-de", size, way), **{"method.anneal": 0.0})

    def step(engine: Engine) -> None:
        if engine.step_in_epoch + 1 >= engine.steps:  # the last one of an epoch is smaller
            engine.begin(engine.epoch + 1)
        engine.step()

    for engine in engines.values():
        engine.begin(0)
    return medians({name: partial(step, engine) for name, engine in engines.items()}, device, repeats)


def medians(steps: dict[str, Callable[[], object]], device: torch.device, repeats: int) -> dict[str, float]:
    """Median seconds of each, which take turns."""
    found: dict[str, list[float]] = {name: [] for name in steps}
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
    """Print milliseconds and ratios, for each size of sets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--root", type=Path, help="folder that has multi30k: whole training steps too")
    parser.add_argument("--items", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = torch.device(options.device)
    if device.type == "cpu":
        torch.set_num_threads(1)
    name = torch.cuda.get_device_name() if device.type == "cuda" else platform.machine()
    rows = {size: times(options.items, size, device, options.repeats) for size in SIZES}
    show("loss", rows)
    found: dict[str, Any] = {"seconds": rows}
    if options.root:
        found["step_seconds"] = {
            size: training_steps(options.items, size, device, options.repeats, options.root) for size in SIZES
        }
        show("training step", found["step_seconds"])
    if options.out:
        about = {
            "device": name,
            "torch": torch.__version__,
            "items": options.items,
            "dimensions": DIMENSIONS,
            "softness": SOFTNESS,
        }
        options.out.write_text(json.dumps(about | found, indent=2) + "\n")


def show(what: str, rows: dict[int, dict[str, float]]) -> None:
    """Milliseconds, and how many times those of pairs."""
    for size, row in rows.items():
        shown = [f"{way} {1e3 * value:.2f} ms ({value / row['pairs']:.2f} x)" for way, value in row.items()]
        print(f"{what}, sets of {size}: " + ", ".join(shown))


if __name__ == "__main__":
    main()
