"""Our conv, norm and local kernels against torch.compile and plain torch. Needs a CUDA device; takes minutes.

For each encoder: its forward and backward pass alone (for Deep InfoMax: its local scores), and a whole training step,
both captured in a CUDA graph, in milliseconds.

    python benchmarks/kernels.py --json results/bench-kernels-h200.json [--modes default max-autotune-no-cudagraphs]
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from setwise.bench.step import RECIPES, images, our_steps
from setwise.bench.timing import milliseconds
from setwise.kernels import conv, local
from setwise.paper.recipes import recipe
from setwise.training import engine as training
from setwise.training.capture import captured
from setwise.training.environment import environment

NAMES = {name: RECIPES[name] for name in ("conv4", "resnet32", "resnet18")}
NAMES["deepinfomax"] = "paper/cifar10-conv4-deepinfomax"


def part_of(method: Any, batch: int, device: torch.device) -> Callable[[], object]:
    """Forward and backward pass of the encoder, or of Deep InfoMax's local scores."""
    scored = hasattr(method, "local")
    x = torch.randn(batch if scored else 2 * batch, 3, 32, 32, device=device, dtype=torch.bfloat16)
    x = x.contiguous(memory_format=torch.channels_last)
    if not scored:
        given, module = (x,), method.encoder
    else:
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
            feature_map = method.encoder.first(x)
            given = (feature_map, method.encoder.rest(feature_map))
        given, module = tuple(t.detach().clone().requires_grad_() for t in given), method.local
    leaves = [*(t for t in given if t.requires_grad), *module.parameters()]

    def run() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            out = module(*given)
        loss = out[0].float().mean() - out[1].float().mean() if scored else out.float().square().sum()
        torch.autograd.grad(loss, leaves)

    return run


def measure(name: str, way: str, device: torch.device) -> dict[str, float]:
    """``way``: "ours", "plain", or a mode of torch.compile."""
    it = recipe(NAMES[name])
    untrained, layer, kernels_for = training.untrained, conv._layer, local._kernels_for

    def compiled(*given: Any) -> Any:
        method = untrained(*given)
        options = {"mode": None if way == "default" else way, "dynamic": False}
        if name == "deepinfomax":
            encoder = method.encoder
            encoder.first, encoder.rest = (torch.compile(f, **options) for f in (encoder.first, encoder.rest))
            method.local.compile(**options)
        else:
            method.encoder.compile(**options)
        return method

    try:
        if way != "ours":
            conv._layer = local._kernels_for = lambda *_, **__: None
        if way not in ("ours", "plain"):
            training.untrained = compiled
        data = images(50_000 // it.batch * it.batch)  # batches of one size: one compilation
        step = statistics.median(our_steps(it, data, device, 2.0))
        method = training.untrained(it, data, 1).to(device, memory_format=torch.channels_last).train()
        part = milliseconds(captured(part_of(method, it.batch, device)), device, 2.0)
        return {"part_ms": part, "step_ms": step}
    finally:
        training.untrained, conv._layer, local._kernels_for = untrained, layer, kernels_for
        torch.compiler.reset()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--modes", nargs="*", default=["default"])
    arguments = parser.parse_args()
    device = torch.device("cuda")
    record: dict[str, Any] = {"what": "kernels", **environment(device), "encoders": {}}
    for name in NAMES:
        row = {way: measure(name, way, device) for way in ("ours", "plain", *arguments.modes)}
        record["encoders"][name] = {"recipe": NAMES[name], **row}
        print(name, {way: {key: round(x, 3) for key, x in times.items()} for way, times in row.items()}, flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
