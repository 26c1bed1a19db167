"""InfoNCE and QARe of large batches on a GPU, forward and backward: time, memory, and the gradient's error.

    python benchmarks/large_batches.py [--largest 1048576] [--parts large] [--out results/bench-large-batches-h200.json]

``--parts`` measures some of it again: small, middle, errors, large; the others stay in the file as they are.
Beside ours stand the same loss with all scores stored, in blocks, and inf_cl's kernels where that package is installed.
Times are medians, memory is what the allocator held at most beyond the inputs and their gradients. The error is that of
the gradient's length against float64. Run it on a quiet device.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import setwise as sw
from setwise.losses import structured
from setwise.training.checkpoint import write_text
from setwise.training.environment import environment

Step = Callable[[Tensor, Tensor], Tensor]
TEMPERATURE = 0.05
PARTS = ("small", "middle", "errors", "large")
NEVER = 2**62  # scores, so that all are stored


def pair(n: int, width: int, noise: float = 1.0) -> tuple[Tensor, Tensor]:
    """Two views of n items, as leaves."""
    generator = torch.Generator("cuda").manual_seed(0)
    z_a, z_b = torch.randn(2, n, width, device="cuda", generator=generator).unbind()
    return z_a.clone().requires_grad_(), (z_a + noise * z_b).requires_grad_()


def stored(loss: Step) -> Step:
    """``loss`` with all its scores stored, as it is for small batches."""

    def call(z_a: Tensor, z_b: Tensor) -> Tensor:
        before, structured.LARGE = structured.LARGE, NEVER
        try:
            return loss(z_a, z_b)
        finally:
            structured.LARGE = before

    return call


def inf_cl() -> Step | None:
    """The published kernel, of rows of length 1, or None where it is not installed."""
    try:
        from inf_cl import cal_flash_loss
    except ImportError:
        return None
    scale = torch.tensor(1 / TEMPERATURE, device="cuda")
    return lambda z_a, z_b: cal_flash_loss(*(torch.nn.functional.normalize(z) for z in (z_a, z_b)), scale=scale).mean()


def milliseconds(step: Callable[[], object], repeats: int) -> float:
    """The median time on the device."""
    times = []
    for _ in range(repeats):
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        step()
        last.record()
        last.synchronize()
        times.append(first.elapsed_time(last))
    return statistics.median(times)


def captured(step: Callable[[], object], repeats: int) -> float:
    """The same as one CUDA graph, without the host's share."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return milliseconds(graph.replay, repeats)


def measure(name: str, loss: Step, n: int, width: int, *, repeats: int, graph: bool = False) -> dict[str, Any]:
    """Time and memory of forward and backward."""
    torch.cuda.empty_cache()
    z_a, z_b = pair(n, width)

    def step() -> None:
        z_a.grad = z_b.grad = None
        loss(z_a, z_b).backward()

    before = torch.cuda.memory_allocated()
    step()  # compiles
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    ms = milliseconds(step, repeats)
    beyond = torch.cuda.max_memory_allocated() - before - 2 * z_a.numel() * z_a.element_size()
    row = {"loss": name, "n": n, "width": width, "ms": ms, "beyond_gradients": beyond}
    row |= {"captured_ms": captured(step, repeats)} if graph else {}
    print(", ".join(f"{key} {round(x, 3) if isinstance(x, float) else x}" for key, x in row.items()))
    return row


def error(name: str, loss: Step, n: int, width: int, noise: float) -> dict[str, Any]:
    """How far the gradient is from that of float64, which is computed in blocks."""
    z_a, z_b = pair(n, width, noise)
    exact = [z.detach().double().requires_grad_() for z in (z_a, z_b)]
    wanted = torch.autograd.grad(sw.InfoNCE(TEMPERATURE, block_size=1024)(*exact), exact)
    got = torch.autograd.grad(loss(z_a, z_b), (z_a, z_b))
    worst = max(((a - b).norm() / b.norm()).item() for a, b in zip(got, wanted, strict=True))
    print(f"{name}, N = {n}, E = {width}, noise {noise}: error of the gradient {worst:.1e}")
    return {"loss": name, "n": n, "width": width, "noise": noise, "error": worst}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--largest", type=int, default=2**20)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    products = ("float16", "bfloat16", "float32")
    ours: dict[str, Step] = {name: sw.InfoNCE(TEMPERATURE, products=name) for name in products}
    both = {f"{name}, symmetric": sw.InfoNCE(TEMPERATURE, products=name, symmetric=True) for name in products}
    published = inf_cl()
    others = {} if published is None else {"inf_cl": published}
    keep_all = {"stored": stored(sw.InfoNCE(TEMPERATURE))}
    record: dict[str, Any] = {"rows": [], "errors": []}
    if arguments.out and arguments.out.exists():
        record |= json.loads(arguments.out.read_text())
    record["environment"] = environment(torch.device("cuda"))

    def keep(kind: str, row: dict[str, Any]) -> None:
        same = {key: row[key] for key in ("loss", "n", "noise") if key in row}
        record[kind] = [one for one in record[kind] if not same.items() <= one.items()] + [row]
        if arguments.out:
            write_text(arguments.out, json.dumps(record, indent=1) + "\n")

    if "small" in arguments.parts:
        for name, loss in (ours | keep_all).items():
            keep("rows", measure(name, loss, 4096, 128, repeats=50, graph=True))
    if "middle" in arguments.parts:
        blocks = {"blocks of 1,024": sw.InfoNCE(TEMPERATURE, block_size=1024)}
        for name, loss in (ours | both | others | keep_all | blocks).items():
            keep("rows", measure(name, loss, 65_536, 512, repeats=5))
    if "errors" in arguments.parts:
        for noise in (1.0, 0.1):
            for name, loss in (ours | others).items():
                keep("errors", error(name, loss, 65_536, 512, noise))
    if "large" in arguments.parts:
        large = {"float16 + qare": sw.SetContrastive(ours["float16"], beta=0.5), "float16": ours["float16"]}
        for name, loss in ({"qare": sw.QARe()} | large).items():
            keep("rows", measure(name, loss, arguments.largest, 512, repeats=1))


if __name__ == "__main__":
    main()
