"""What a training step is made of: its kernels by kind, their milliseconds and launches.

    python benchmarks/step_kernels.py RECIPE [--compile] [--device cuda] [--steps 10] [--out FILE.json]

The step is that of `setwise pretrain`: captured, with views, loss and optimiser, on random images of CIFAR-10's form.
FILE.json gets an entry for the recipe; others in it stay. On a CPU torch's operators stand for kernels.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from setwise.bench.step import images
from setwise.bench.timing import milliseconds
from setwise.front import compose
from setwise.runs import choose_device
from setwise.training.checkpoint import write_text
from setwise.training.engine import Engine
from setwise.training.environment import environment

COUNT = 8192  # random images
SMALL = 6.0  # microseconds: a launch below that takes longer to begin than to run
KINDS = {  # the first that fits
    "compiled: norms, activations, pooling": r"^triton_",
    "convolutions": r"fprop|dgrad|wgrad|conv|cudnn",
    "matrix products": r"nvjet|gemm|gemv|cutlass|addmm|aten::mm|bmm",
    "copies": r"memcpy|memset|copy",
    "torch's elementwise and reductions": r"at::native|aten::",
}
OURS = "ours: views, losses, eigenvalues"  # what is left


def kind_of(name: str) -> str:
    """The kind of a kernel, by its name."""
    return next((kind for kind, words in KINDS.items() if re.search(words, name, re.IGNORECASE)), OURS)


def by_kind(kernels: Iterable[tuple[str, float, int]], steps: int) -> dict[str, Any]:
    """Milliseconds and launches a step of each kind, and of those below ``SMALL``, from (name, microseconds, count)."""
    found: dict[str, list[float]] = {}
    small = [0.0, 0.0]
    for name, microseconds, count in kernels:
        for total in (found.setdefault(kind_of(name), [0.0, 0.0]), *([small] if microseconds < SMALL * count else [])):
            total[0] += microseconds / 1e3 / steps
            total[1] += count / steps
    kinds = sorted(found, key=lambda kind: -found[kind][0])
    names = ("ms", "launches")
    return {
        "kinds": {kind: dict(zip(names, found[kind], strict=True)) for kind in kinds},
        "small": dict(zip(names, small, strict=True)),
    }


def measured(name: str, *, compile: bool, device: torch.device, steps: int, seconds: float = 1.0) -> dict[str, Any]:
    """The entry of a recipe."""
    recipe = compose(name, {}, None).recipe
    engine = Engine(recipe, images(COUNT), seed=1, device=device, compile=compile)
    engine.begin(recipe.epochs - 1)  # the last epoch has all that a method does

    def step() -> None:
        if engine.step_in_epoch == engine.steps:
            engine.begin(recipe.epochs - 1)
        engine.step()

    for _ in range(3):
        step()
    ms = milliseconds(step, device, seconds)
    on_gpu = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as seen:
        for _ in range(steps):
            step()
        if on_gpu:
            torch.cuda.synchronize()
    rows = [
        (row.key, row.self_device_time_total if on_gpu else row.self_cpu_time_total, row.count)
        for row in seen.key_averages()
    ]
    return {"compile": compile, "batch": recipe.batch, "ms": ms} | by_kind(rows, steps)


def main(words: list[str] | None = None) -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--compile", action="store_true", help="the encoder, by torch.compile")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--steps", type=int, default=10, help="that are looked at")
    parser.add_argument("--out", type=Path, help="JSON file")
    given = parser.parse_args(words)
    device = choose_device(given.device)
    found = measured(given.recipe, compile=given.compile, device=device, steps=given.steps)
    print(f"{given.recipe}{', compiled' * given.compile}: {found['ms']:.2f} ms a step")
    for kind, one in found["kinds"].items():
        print(f"{one['ms']:9.3f} ms {one['launches']:7.1f} launches  {kind}")
    print(f"{found['small']['ms']:9.3f} ms {found['small']['launches']:7.1f} launches below {SMALL:g} µs, of all kinds")
    if given.out:
        empty: dict[str, Any] = {"what": "kernels of a step", "steps": {}}
        kept = json.loads(given.out.read_text()) if given.out.exists() else empty
        kept["steps"][given.recipe] = found | environment(device)
        write_text(given.out, json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
