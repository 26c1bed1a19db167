"""solve_quadratic against scipy's FAQ on QAPLIB: gap to the proven optimum, and time, in one run.

    OMP_NUM_THREADS=1 python benchmarks/quadratic.py DIR [--seeds 5] [--out FILE.json]
    OMP_NUM_THREADS=1 python benchmarks/quadratic.py DIR --device cuda [--seeds 5] [--out FILE.json]

DIR holds ``index.csv`` (name,n,symmetric,optimum) and one ``NAME.dat`` an instance: n, then two n x n
matrices. Every symmetric instance is solved by the heuristic ("tabu") from several seeds, by scipy's FAQ from its
default start, and by the best of as many of scipy's randomised FAQ starts as fit the time the heuristic took.
Where "auto" proves its answer, the time of the proof is shown too. Both spectral bounds must enclose the optimum.

With --device the heuristic of that device is set against that of the CPU, on the same instances and on hidden trees,
which are harder: flows along a tree whose heaviest edges have the shortest distances, so that the optimum is known.
Seconds are those of a clock, for both; nothing else should run.
"""

from __future__ import annotations

import argparse
import csv
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import scipy
import torch
from rich import box
from rich.console import Console
from rich.table import Table
from scipy.optimize import quadratic_assignment

from setwise.assignment import spectral_bounds
from setwise.assignment.quadratic import EXACT_LIMIT, solve_quadratic

TREES = (30, 40, 60)
T = TypeVar("T")


def load(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Both matrices of a QAPLIB file."""
    n, *entries = map(int, path.read_text().split())
    a, b = np.array(entries, dtype=float).reshape(2, n, n)
    return a, b


def timed(solve: Callable[[], T]) -> tuple[T, float]:
    """What ``solve`` returns, and the seconds of one core it took: other programs do not count."""
    start = time.process_time()
    result = solve()
    return result, time.process_time() - start


def scipy_restarts(a: np.ndarray, b: np.ndarray, seconds: float) -> tuple[float, int]:
    """Best value of randomised FAQ starts, and how many: they go on until ``seconds`` have passed."""
    rng = np.random.default_rng(0)
    best, starts, end = np.inf, 0, time.process_time() + seconds
    while time.process_time() < end:
        best = min(best, quadratic_assignment(a, b, options={"P0": "randomized", "rng": rng}).fun)
        starts += 1
    return float(best), starts


def measure(name: str, optimum: float, a: np.ndarray, b: np.ndarray, seeds: int) -> dict[str, object]:
    """One row of the table."""
    a_t, b_t = torch.from_numpy(a), torch.from_numpy(b)

    def gap(value: float) -> float:
        return 100 * (value - optimum) / optimum

    gaps, times = [], []
    for seed in range(seeds):
        generator = torch.Generator().manual_seed(seed)
        ours, seconds = timed(lambda g=generator: solve_quadratic(a_t, b_t, method="tabu", generator=g))
        gaps.append(gap(ours.value))
        times.append(seconds)
    seconds = float(np.mean(times))
    faq, faq_seconds = timed(lambda: quadratic_assignment(a, b).fun)
    restarted, starts = scipy_restarts(a, b, seconds)
    row: dict[str, object] = {
        "name": name,
        "n": len(a),
        "optimum": optimum,
        "gap": float(np.mean(gaps)),
        "worst": max(gaps),
        "optimal": float(np.mean(np.array(gaps) < 1e-9)),
        "seconds": seconds,
        "most_seconds": max(times),
        "scipy_gap": gap(faq),
        "scipy_seconds": faq_seconds,
        "scipy_restarts_gap": gap(restarted),
        "scipy_starts": starts,
    }
    for bound in ("eigenvalue", "projection"):
        lower, upper = spectral_bounds(a_t, b_t, bound=bound)
        row |= {f"{bound}_lower": lower.item(), f"{bound}_upper": upper.item()}
        if not lower <= optimum <= upper:
            raise SystemExit(f"{name}: the {bound} bounds {lower:g}, {upper:g} do not enclose the optimum {optimum:g}")
    if len(a) <= EXACT_LIMIT:
        proven, proof_seconds = timed(lambda: solve_quadratic(a_t, b_t))
        row |= {"proven": proven.optimal and proven.value == optimum, "proof_seconds": proof_seconds}
    return row


def hidden_tree(n: int, seed: int) -> tuple[float, np.ndarray, np.ndarray]:
    """The optimum and both matrices. No order of the products is cheaper than heavy flows over short distances."""
    rng = np.random.default_rng(seed)
    flows = np.sort(rng.integers(1, 100, n - 1))[::-1].astype(float)
    distances = np.sort(rng.integers(1, 100, n * (n - 1) // 2)).astype(float)
    edges = [(child, rng.integers(child)) for child in rng.permutation(np.arange(1, n))]
    others = rng.permutation([(i, j) for i in range(n) for j in range(i) if (i, j) not in set(edges)])
    a, b = np.zeros((2, n, n))
    for (i, j), flow in zip(edges, flows, strict=True):
        a[i, j] = a[j, i] = flow
    for (i, j), distance in zip([*edges, *others], distances, strict=True):
        b[i, j] = b[j, i] = distance
    hidden = rng.permutation(n)
    return 2 * float(flows @ distances[: n - 1]), a, b[np.ix_(hidden, hidden)]


def compare(name: str, optimum: float, a: np.ndarray, b: np.ndarray, seeds: int, device: str) -> dict[str, object]:
    """One row of the table of two devices."""
    row: dict[str, object] = {"name": name, "n": len(a), "optimum": optimum}
    for where in ("cpu", device):
        a_t, b_t = (torch.from_numpy(x).to(where) for x in (a, b))
        gaps, times = [], []
        for seed in range(seeds):
            generator, start = torch.Generator().manual_seed(seed), time.perf_counter()
            value = solve_quadratic(a_t, b_t, method="tabu", generator=generator).value
            times.append(time.perf_counter() - start)
            gaps.append(100 * (value - optimum) / optimum)
        row[where] = {
            "gap": float(np.mean(gaps)),
            "worst": max(gaps),
            "optimal": float(np.mean(np.array(gaps) < 1e-9)),
            "seconds": float(np.mean(times)),
        }
    return row


def two_devices(
    instances: list[tuple[str, float, np.ndarray, np.ndarray]], seeds: int, device: str
) -> dict[str, object]:
    """Measure and show the CPU's heuristic beside that of ``device``."""
    trees = [(f"tree{n}-{seed}", *hidden_tree(n, seed)) for n in TREES for seed in range(2)]
    solve_quadratic(*torch.rand(2, 13, 13, device=device), method="tabu")  # the device's libraries load first
    rows = [compare(*one, seeds, device) for one in (*instances, *trees)]
    table = Table(title="Gap to the optimum, %, of the CPU's walks and the device's", box=box.SIMPLE)
    for heading in ("instance", "N", *2 * ("gap", "worst", "optimal", "s")):
        table.add_column(heading, justify="left" if heading == "instance" else "right", no_wrap=True)

    def cells(x: dict[str, float]) -> tuple[str, ...]:
        return f"{x['gap']:.3f}", f"{x['worst']:.3f}", f"{x['optimal']:.0%}", f"{x['seconds']:.2f}"

    for row in rows:
        table.add_row(str(row["name"]), str(row["n"]), *cells(row["cpu"]), *cells(row[device]))
    parts = {"qaplib": rows[: len(instances)], "trees": rows[len(instances) :]}
    mean = {
        part: {
            where: {key: float(np.mean([r[where][key] for r in some])) for key in some[0][where]}
            for where in ("cpu", device)
        }
        for part, some in parts.items()
    }
    table.add_section()
    for part, by_device in mean.items():
        table.add_row(f"mean {part}", "", *cells(by_device["cpu"]), *cells(by_device[device]))
    Console(width=120).print(table)
    return {"mean": mean, "instances": rows}


def main() -> None:
    """Measure, show, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--seeds", type=int, default=5, help="runs of the heuristic on each instance (default: 5)")
    parser.add_argument("--device", help="compare the walks of this device, such as cuda, with those of the CPU")
    parser.add_argument("--out", type=Path, help="write the measurements as JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    with (arguments.folder / "index.csv").open() as file:
        listed = [row for row in csv.DictReader(file) if row["symmetric"] == "True"]
    instances = [(row["name"], float(row["optimum"]), *load(arguments.folder / f"{row['name']}.dat")) for row in listed]
    versions = {"python": platform.python_version(), "torch": torch.__version__, "scipy": scipy.__version__}
    record: dict[str, object] = {"versions": versions, "processor": platform.machine(), "seeds": arguments.seeds}
    if arguments.device:
        found = two_devices(instances, arguments.seeds, arguments.device)
        name = torch.cuda.get_device_name(arguments.device) if "cuda" in arguments.device else arguments.device
        _write(arguments.out, record | {"device": name} | found)
        return
    rows = [measure(*instance, arguments.seeds) for instance in instances]

    table = Table(title="Gap to the proven optimum of QAPLIB, %", box=box.SIMPLE)
    for heading in (
        "instance",
        "N",
        "setwise",
        "worst",
        "optimal",
        "s",
        "scipy",
        "s",
        "restarted",
        "starts",
        "proof s",
        "lower",
        "projection",
    ):
        table.add_column(heading, justify="left" if heading == "instance" else "right", no_wrap=True)
    for r in rows:
        proof = "" if "proven" not in r else f"{r['proof_seconds']:.2f}" if r["proven"] else "wrong"
        cells = (f"{r['gap']:.3f}", f"{r['worst']:.3f}", f"{r['optimal']:.0%}", f"{r['seconds']:.2f}")
        cells += (f"{r['scipy_gap']:.3f}", f"{r['scipy_seconds']:.3f}")
        rest = (f"{r['scipy_restarts_gap']:.3f}", str(r["scipy_starts"]), proof)
        bounds = (f"{r['eigenvalue_lower']:.1f}", f"{r['projection_lower']:.1f}")
        table.add_row(str(r["name"]), str(r["n"]), *cells, *rest, *bounds)
    keys = ("gap", "worst", "optimal", "seconds", "scipy_gap", "scipy_seconds", "scipy_restarts_gap")
    mean = {key: float(np.mean([r[key] for r in rows])) for key in keys}
    table.add_section()
    table.add_row("mean", "", *(f"{mean[k]:.3f}" for k in keys))
    Console(width=120).print(table)
    most = max(float(r["most_seconds"]) for r in rows)

    _write(arguments.out, record | {"mean": mean, "most_seconds": most, "instances": rows})


def _write(path: Path | None, record: dict[str, object]) -> None:
    if path is not None:
        path.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
