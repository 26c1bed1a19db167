"""Time the eigenvalue kernel on a CUDA device against torch.linalg.eigh; tests/kernels/test_eigh.py has its accuracy.

python benchmarks/eigh_gpu.py [--json FILE]

Times are medians over replays of a CUDA graph with several calls; torch.linalg.eigh, which cannot be captured, is
timed call by call.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from setwise.kernels.eigh import LARGEST, eigh

TIMED = (17, 33, 65, 66, 96, 128, 132, 133)
BATCHES = (1, 2, 8)
CALLS = 10  # in one graph
REPLAYS = 30


def gram(n: int, items: int, decay: float, generator: torch.Generator) -> Tensor:
    """The matrix of QARe: [Z 1]^T [Z 1] for unit rows Z whose spectrum falls as a power law."""
    z = torch.randn(items, n - 1, generator=generator, dtype=torch.float64)
    z = z * torch.arange(1, n, dtype=torch.float64) ** -decay
    basis = torch.linalg.qr(torch.randn(n - 1, n - 1, generator=generator, dtype=torch.float64))[0]
    z = torch.nn.functional.normalize(z @ basis, dim=1)
    z = torch.cat([z, torch.ones(items, 1, dtype=torch.float64)], dim=1)
    return z.mT @ z


def graph_milliseconds(solve: Callable[[Tensor], object], a: Tensor) -> float:
    """Median milliseconds of a call, by replays of a graph of several."""
    solve(a)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            solve(a)
    times = []
    for _ in range(REPLAYS + 3):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / CALLS)
    return statistics.median(times[3:])


def call_milliseconds(solve: Callable[[Tensor], object], a: Tensor) -> float:
    """Median milliseconds of a call by the host's clock, the device waited for."""
    times = []
    for _ in range(12):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        solve(a)
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times[2:])


def inputs(n: int, batch: int, kind: str) -> Tensor:
    """A batch to time: trained-like Gram matrices ("decay 1"), random ones ("decay 0"), or indefinite."""
    g = torch.Generator().manual_seed(n)
    if kind == "indefinite":
        s = torch.randn(batch, n, n, generator=g)
        return (s + s.mT).cuda()
    decay = float(kind.split()[1])
    return torch.stack([gram(n, 512, decay, g) for _ in range(batch)]).float().cuda()


def main() -> None:
    """Print a table and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    record: dict[str, object] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }

    rows = []
    for n in TIMED:
        for batch in BATCHES:
            row: dict[str, object] = {"n": n, "batch": batch}
            for kind in ("decay 0", "decay 1", "indefinite"):
                a = inputs(n, batch, kind)
                captured = n <= LARGEST
                row[kind] = graph_milliseconds(eigh, a) if captured else call_milliseconds(eigh, a)
            row["torch.linalg.eigh"] = call_milliseconds(torch.linalg.eigh, inputs(n, batch, "decay 1"))
            rows.append(row)
            print("  ".join(f"{k} {v:.4f}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()))
    record["milliseconds"] = rows

    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
