"""Check and time the eigenvalue kernel on a CUDA device against torch.linalg.eigh.

python benchmarks/eigh_gpu.py [--json FILE]

Errors are relative to the spectral norm, in float64 on the CPU. Times are medians over replays of a CUDA
graph with several calls; torch.linalg.eigh, which cannot be captured, is timed call by call.
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

SIZES = (1, 2, 3, 17, 33, 64, 65, 66, 96, 128, 132)
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


def families(n: int, seed: int) -> dict[str, Tensor]:
    """Matrices of every kind that is known to be awkward, float32 on the CPU."""
    g = torch.Generator().manual_seed(seed)
    s = torch.randn(n, n, generator=g, dtype=torch.float64)
    q = torch.linalg.qr(s)[0]
    low = torch.randn(n, 3, generator=g, dtype=torch.float64)
    eye, ones = torch.eye(n, dtype=torch.float64), torch.ones(n, n, dtype=torch.float64)
    falling = torch.diag(torch.arange(n, 0, -1, dtype=torch.float64))
    falling[0, -1] = falling[-1, 0] = 0.5
    signs = torch.where(torch.arange(n) % 3 == 0, -1.0, 1.0).double()
    found = {
        "indefinite": s + s.mT,
        "positive": s @ s.mT,
        "identity": eye,
        "minus identity": -eye,
        "zero": 0 * eye,
        "ones": ones,
        "ones + identity": ones + eye,
        "rank 3": low @ low.mT,
        "reflection": q @ torch.diag(signs) @ q.mT,
        "exchange": eye.flip(0),
        "geometric": q @ torch.diag(torch.logspace(0, -8, n, dtype=torch.float64)) @ q.mT,
        "cluster": q @ torch.diag(1 + 1e-4 * torch.randn(n, generator=g, dtype=torch.float64)) @ q.mT,
        "one far entry": falling,
        "tiny": 1e-20 * (s + s.mT),
        "huge": 1e20 * (s + s.mT),
    }
    if n > 2:
        for items in (128, 512, 2048):
            for decay in (0.0, 0.5, 1.0, 2.0):
                found[f"gram {items} decay {decay:g}"] = gram(n, items, decay, g)
    return {name: ((a + a.mT) / 2).float() for name, a in found.items()}


def errors(a: Tensor, values: Tensor, vectors: Tensor) -> tuple[float, float, float]:
    """Of the eigenvalues, of W diag(l) W^T and of W^T W, in the spectral norm; a NaN counts as infinite."""
    a, l, w = a.double().cpu(), values.double().cpu(), vectors.double().cpu()
    true = torch.linalg.eigvalsh(a)
    norm = true.abs().max().clamp(min=torch.finfo(torch.float64).tiny)
    if not (l.isfinite().all() and w.isfinite().all()):
        return (float("inf"),) * 3
    rebuilt = torch.linalg.matrix_norm((w * l) @ w.mT - a, 2) / norm
    orthogonal = torch.linalg.matrix_norm(w.mT @ w - torch.eye(len(a), dtype=a.dtype), 2)
    return float((l - true).abs().max() / norm), float(rebuilt), float(orthogonal)


def check(solve: Callable[[Tensor], tuple[Tensor, Tensor]], n: int, seeds: int = 2) -> dict[str, list[float]]:
    """Errors by family; the worst of the seeds."""
    worst: dict[str, list[float]] = {}
    for seed in range(seeds):
        named = families(n, seed)
        values, vectors = solve(torch.stack(list(named.values())).cuda())
        for k, (name, a) in enumerate(named.items()):
            found = errors(a, values[k], vectors[k])
            worst[name] = [max(pair) for pair in zip(found, worst.get(name, (0.0, 0.0, 0.0)), strict=True)]
    return worst


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

    accuracy = {n: check(eigh, n) for n in SIZES}
    record["errors (values, rebuilt, orthogonal)"] = accuracy
    for n, found in accuracy.items():
        worst = [max(column) for column in zip(*found.values(), strict=True)]
        where = max(found, key=lambda name, found=found: max(found[name]))  # type: ignore[misc]
        print(f"n {n:4d}  worst errors " + " ".join(f"{e:.1e}" for e in worst) + f"  ({where})")

    bad = torch.eye(65, device="cuda").repeat(2, 1, 1)
    bad[0, 3, 1] = float("nan")
    values, vectors = eigh(bad)
    record["nan"] = bool(values[0].isnan().all() and vectors[0].isnan().all() and (values[1] - 1).abs().max() < 1e-6)
    print("NaN in, NaN out, the rest of the batch untouched:", record["nan"])

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
