"""Time and memory of a call, on a CPU and on a GPU."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


def turns(runs: dict[str, Callable[[], object]], device: torch.device, seconds: float) -> dict[str, list[float]]:
    """Milliseconds of each, in turn, for about ``seconds`` in all. A first turn warms up; it counts only if long."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    deadline = None
    while deadline is None or time.perf_counter() < deadline:
        for name, run in runs.items():
            if device.type == "cuda":
                event: Any = torch.cuda.Event
                start, end = event(enable_timing=True), event(enable_timing=True)
                torch.cuda.synchronize()
                start.record()
                run()
                end.record()
                end.synchronize()
                times[name].append(start.elapsed_time(end))
            else:
                began = time.perf_counter()
                run()
                times[name].append(1e3 * (time.perf_counter() - began))
        if deadline is None:
            deadline = time.perf_counter() + seconds
            if sum(map(sum, times.values())) < 1e3 * seconds:
                times = {name: [] for name in runs}
    return times


def milliseconds(run: Callable[[], object], device: torch.device, seconds: float) -> float:
    """Median time of one call."""
    return statistics.median(turns({"it": run}, device, seconds)["it"])


def peak_bytes(run: Callable[[], object], device: torch.device) -> int | None:
    """Peak memory while ``run`` runs: of tensors on a GPU, else resident; None where the system does not say."""
    run()
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        run()
        return torch.cuda.max_memory_allocated()
    try:
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    except OSError:
        return None
    run()
    return highest_resident()


def highest_resident() -> int:
    """Peak of this process's resident bytes (Linux; ru_maxrss would count its parent's)."""
    (line,) = (x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmHWM"))
    return 1024 * int(line.split()[1])
