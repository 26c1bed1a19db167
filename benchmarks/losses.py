"""NT-Xent, forward and backward, against plain torch and pytorch-metric-learning; memory with blocks. One thread, CPU.
SparseCLR against entmax's sparsemax loss, by full and by partial sort.

    python benchmarks/losses.py [--out results/losses.json]

All ratios come from one run: the candidates take turns, and the smallest time of each counts. Peak memory is that of a
process of its own, less what it had before the loss.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor

import setwise as sw
from setwise.bench.timing import highest_resident

TEMPERATURE, DIMENSIONS = 0.5, 128
LARGE, BLOCK = 16_384, 256


def plain(z_a: Tensor, z_b: Tensor) -> Tensor:
    """What one writes by hand: normalise, all scores, leave oneself out, cross-entropy."""
    z = F.normalize(torch.cat([z_a, z_b]))
    logits = z @ z.T / TEMPERATURE
    logits = logits.fill_diagonal_(-torch.inf)
    return F.cross_entropy(logits, torch.arange(len(z)).roll(len(z_a)))


def by_entmax(k: int | None) -> Callable[[Tensor, Tensor], Tensor]:
    """SparseCLR on rows of S_AB with a margin of 1, by entmax's sort of the ``k`` largest first, or of all."""
    from entmax import sparsemax_loss

    def loss(z_a: Tensor, z_b: Tensor) -> Tensor:
        scores = F.normalize(z_a) @ F.normalize(z_b).T
        return sparsemax_loss(scores - torch.eye(len(scores)), torch.arange(len(scores)), k).mean()

    return loss


def times(candidates: dict[str, Callable[[Tensor, Tensor], Tensor]], n: int, repeats: int) -> dict[str, float]:
    """Smallest seconds of forward and backward of each, taking turns."""
    z_a, z_b = (torch.randn(n, DIMENSIONS, requires_grad=True) for _ in "ab")
    found: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(repeats + 1):
        for name, loss in candidates.items():
            started = time.perf_counter()
            loss(z_a, z_b).backward()
            if turn or repeats == 0:  # the first turn warms up
                found[name].append(time.perf_counter() - started)
    return {name: min(values) for name, values in found.items()}


def peak_memory(block_size: int | None) -> float:
    """GiB that one forward and backward at N = LARGE adds to a fresh process."""
    code = f"import runpy; runpy.run_path({__file__!r}, run_name='memory')['one_step']({block_size})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"the memory measurement with block_size={block_size} failed:\n{done.stderr}")
    return float(done.stdout) / 2**30


def one_step(block_size: int | None) -> None:
    """Print the bytes a step at N = LARGE adds to the peak."""
    z_a, z_b = (torch.randn(LARGE, DIMENSIONS, requires_grad=True) for _ in "ab")
    loss = sw.NTXent(temperature=TEMPERATURE, block_size=block_size)
    loss(z_a[:64], z_b[:64]).backward()
    before = highest_resident()
    loss(z_a, z_b).backward()
    print(highest_resident() - before)


def main() -> None:
    """Measure, show, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--no-memory", action="store_true", help="leave out the memory run, which takes 13 GiB")
    arguments = parser.parse_args()
    from pytorch_metric_learning.losses import NTXentLoss

    peer = NTXentLoss(temperature=TEMPERATURE)

    def metric_learning(z_a: Tensor, z_b: Tensor) -> Tensor:
        return peer(torch.cat([z_a, z_b]), torch.arange(len(z_a)).repeat(2))

    torch.set_num_threads(1)
    torch.manual_seed(0)
    ours = sw.NTXent(temperature=TEMPERATURE)
    blocks = sw.NTXent(temperature=TEMPERATURE, block_size=BLOCK)
    table = Table(title=f"NT-Xent, forward + backward, E = {DIMENSIONS}, float32, one CPU thread")
    for column in ("N", "plain torch", "setwise", "ratio", f"block_size={BLOCK}", "ratio", "pytorch-metric-learning"):
        table.add_column(column, justify="right")
    record: dict[str, object] = {"torch": torch.__version__, "machine": platform.processor() or platform.machine()}
    rows = []
    for n, repeats in ((256, 30), (1024, 10), (4096, 4)):
        row = times({"plain": plain, "ours": ours, "blocks": blocks}, n, repeats)
        peer_text = "-"
        if n == 256:  # it makes every triple of rows: eight times the time and memory for twice the batch
            row["peer"] = times({"peer": metric_learning}, n, 1)["peer"]
            peer_text = f"{row['peer'] * 1e3:.0f} ms ({row['peer'] / row['ours']:.0f}x)"
        rows.append({"n": n, **row})
        table.add_row(
            str(n),
            f"{row['plain'] * 1e3:.2f} ms",
            f"{row['ours'] * 1e3:.2f} ms",
            f"{row['ours'] / row['plain']:.2f}x",
            f"{row['blocks'] * 1e3:.2f} ms",
            f"{row['blocks'] / row['plain']:.2f}x",
            peer_text,
        )
    record["times_s"] = rows
    console = Console()
    console.print(table)
    sparse = Table(title=f"SparseCLR, forward + backward, E = {DIMENSIONS}, float32, one CPU thread")
    for column in ("N", "entmax", "entmax, k=16", "entmax, k=100", "setwise"):
        sparse.add_column(column, justify="right")
    rows = []
    candidates = {"entmax": by_entmax(None), "k=16": by_entmax(16), "k=100": by_entmax(100)}
    for n, repeats in ((128, 30), (512, 10), (1024, 5), (2048, 3)):
        row = times({**candidates, "ours": sw.SparseCLR(candidates="cross")}, n, repeats)
        rows.append({"n": n, **row})
        sparse.add_row(str(n), *(f"{seconds * 1e3:.2f} ms" for seconds in row.values()))
    record["sparse_times_s"] = rows
    console.print(sparse)
    if not arguments.no_memory:
        dense, blocked = peak_memory(None), peak_memory(BLOCK)
        record["memory_gib"] = {"n": LARGE, "block_size": BLOCK, "dense": dense, "blocks": blocked}
        console.print(
            f"peak memory at N = {LARGE:,}: {dense:.2f} GiB dense, {blocked:.3f} GiB with block_size={BLOCK} "
            f"({blocked / dense:.1%})"
        )
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
