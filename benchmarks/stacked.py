"""How far stacking replicas could go: views, encoder and head of k batches at once, as one captured graph.

Runs that share a GPU could also share their kernels, k batches in each. Their weights differ, so this, with one set of
weights for all, is a bound from below on such a step: `setwise bench step --concurrent` has what processes and
streams reach. Needs a CUDA device.

    python benchmarks/stacked.py --json results/stacked-h200.json
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import torch

from setwise.bench.step import RECIPES, images
from setwise.paper.recipes import recipe
from setwise.training.capture import captured
from setwise.training.engine import Engine
from setwise.training.environment import environment


def milliseconds(encoder: str, k: int, device: torch.device, steps: int = 300) -> float:
    """A step of k batches without loss and optimiser."""
    it = replace(recipe(RECIPES[encoder]), epochs=0)
    engine = Engine(it, images(), seed=1, device=device)
    method = engine.method.train()
    samples = torch.arange(k * it.batch, device=device)

    def step() -> None:
        method.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            z = method.head(method.encoder(engine.batch(samples).view(method.views, count=2)))
        z.float().square().mean().backward()

    run = captured(step, torch.cuda.graph_pool_handle())
    for _ in range(20):
        run()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(steps):
        run()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - began) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    device = torch.device("cuda")
    record = {"what": "stacked", **environment(device), "encoders": {}}
    for encoder in ("conv4", "resnet32"):
        found = {k: milliseconds(encoder, k, device) for k in (1, 3, 12)}
        record["encoders"][encoder] = found
        print(encoder, ", ".join(f"{k} batches: {ms:.3f} ms, {ms / k:.3f} a batch" for k, ms in found.items()))
    if arguments.json:
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
