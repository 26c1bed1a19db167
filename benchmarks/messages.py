"""Count what a loss over many processes sends, and check the formulas for it.

    python benchmarks/messages.py --out results/messages.json    # over 1, 2, 4 and 8 processes (gloo) on a CPU

`scale.py` takes the formulas from here for the tables of docs/scale.md.

A batch can be compared in two ways. *Gathering*: every process gets all embeddings, and the gradients of all are
summed. *The ring*: stored rows go round, and sums travel behind them. ``sent`` is the formula of both. It tells rows
apart from other numbers, since their size differs: a number has four bytes; a stored row has four bytes a dimension on
a CPU, and on a GPU two or, for products with the digits of float32, twice two.

Every process counts what it gives away. Of an all_gather that is its part once for each other process, and of an
all_reduce 2 (R - 1) / R of the whole, as rings of processes do them. The check of equal parts, which a loss makes on
CPUs only, is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import setwise as sw
from setwise.kernels import scores as kernels
from setwise.losses import structured
from setwise.training.environment import environment

SYMMETRIC = "InfoNCE, symmetric"
LOSSES = {
    "InfoNCE": lambda: sw.InfoNCE(),
    SYMMETRIC: lambda: sw.InfoNCE(symmetric=True),
    "NT-Xent": lambda: sw.NTXent(),
    "QARe": lambda: sw.QARe(),
    "NT-Xent + QARe": lambda: sw.SetContrastive(sw.NTXent(), beta=0.5),
}
WAYS = ("gathering", "ring")
SIZES = ((4, 3), (4, 5), (6, 3), (12, 16))  # items of a process, dimensions


class Sent(NamedTuple):
    """What one process sends in one step, forward and backward: elements of stored rows, and other numbers."""

    rows: float
    numbers: float

    def bytes(self, parts: int) -> float:
        """On a GPU, which stores a row in so many parts of half precision, in multiples of 64 dimensions."""
        return 2 * parts * self.rows + 4 * self.numbers


def sent(loss: str, way: str, n: int, e: int, processes: int) -> Sent:
    """The formula, of ``processes`` with ``n`` items of ``e`` dimensions each."""
    others = processes - 1
    hops = processes if others else 0  # of a sum that goes all the way round, home again
    if loss == "QARe":  # two Gram matrices
        return Sent(0, 2 * others / processes * 2 * (e + 1) ** 2)
    if " + " in loss:
        parts = [sent(part, way, n, e, processes) for part in loss.split(" + ")]
        return Sent(sum(part.rows for part in parts), sum(part.numbers for part in parts))
    both = 1 if loss == "InfoNCE" else 2
    losses = 3 * others * both * n  # gathered, and their gradients summed
    if way == "gathering":
        return Sent(0, 3 * others * both * n * e + losses)
    most = 2 * others / processes  # the largest weight of all
    if loss == "NT-Xent":  # of one set, the sums of a block never leave it: weights of its rows travel with it
        return Sent(2 * others * 2 * n * e, 3 * others * 2 * n + losses + most)
    columns = hops * n + 2 * others * n if both == 2 else 0  # log-sum-exps, then these and their weights
    return Sent(2 * others * n * e, hops * n * e + columns + losses + most)


class Counter:
    """Counts what this process sends, in place of torch.distributed's functions."""

    def __init__(self) -> None:
        self.rows = self.numbers = 0.0
        self.size = dist.get_world_size()
        self.gather, self.reduce, self.pass_on = dist.all_gather, dist.all_reduce, dist.batch_isend_irecv
        dist.all_gather, dist.all_reduce, dist.batch_isend_irecv = self.all_gather, self.all_reduce, self.exchange

    def add(self, x: torch.Tensor, times: float) -> None:
        if x.dtype == torch.int64:
            return  # the check of equal parts
        assert x.dtype == torch.float32
        self.numbers += times * x.numel()

    def all_gather(self, parts: list[torch.Tensor], x: torch.Tensor, **options: Any) -> Any:
        self.add(x, self.size - 1)
        return self.gather(parts, x, **options)

    def all_reduce(self, x: torch.Tensor, *args: Any, **options: Any) -> Any:
        self.add(x, 2 * (self.size - 1) / self.size)
        return self.reduce(x, *args, **options)

    def exchange(self, operations: list[dist.P2POp]) -> Any:
        for operation in operations:
            if operation.op is not dist.isend:
                continue
            if operation.tensor.ndim == 3:  # as losses.large stores rows: [n, parts, depth]
                self.rows += operation.tensor.numel()
            else:
                self.add(operation.tensor, 1)
        return self.pass_on(operations)


def count(rank: int, processes: int, folder: str) -> None:
    """One of the processes: count each loss in both ways, and leave a file."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting-{processes}", rank=rank, world_size=processes)
    counter, counted = Counter(), []
    for way in WAYS:
        if way == "ring":  # which a CPU does not take by itself
            structured.LARGE, kernels.serves = 0, lambda z: True
        for name, make in LOSSES.items():
            loss = sw.distributed(make())
            for n, e in SIZES:
                counter.rows = counter.numbers = 0.0
                z = torch.randn(2, n, e, generator=torch.Generator().manual_seed(rank), requires_grad=True)
                loss(*z).backward()
                counted.append([name, way, n, e, counter.rows, counter.numbers])
    Path(folder, f"{processes}-{rank}.json").write_text(json.dumps(counted))
    dist.destroy_process_group()


def check(processes: int, folder: Path) -> list[dict[str, Any]]:
    """What the processes counted; raise unless every one of them sent what the formula says."""
    rows = []
    for rank in range(processes):
        for name, way, n, e, *counted in json.loads((folder / f"{processes}-{rank}.json").read_text()):
            expected = sent(name, way, n, e, processes)
            if expected != Sent(*counted):
                raise ValueError(
                    f"expected process {rank} of {processes} to send {expected} for {name}, {way}, n={n}, "
                    f"e={e}, got {Sent(*counted)}; mend the formula"
                )
            if not rank:
                keys = ("loss", "way", "processes", "n", "e", "rows", "numbers")
                rows.append(dict(zip(keys, (name, way, processes, n, e, *counted), strict=True)))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="where the record goes")
    out = parser.parse_args().out
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for processes in (1, 2, 4, 8):
            mp.spawn(count, args=(processes, folder), nprocs=processes)
            rows += check(processes, Path(folder))
            print(f"{processes} processes send what the formulas say")
    about = {"what": "messages", **environment(torch.device("cpu"))}
    lines = ",\n".join(json.dumps(row) for row in rows)
    out.write_text(f'{json.dumps(about)[:-1]}, "rows": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
