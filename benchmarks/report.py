"""How long reports of many records take, and how much memory: copies of the records in ``results`` with other seeds.

    python benchmarks/report.py --records 10000

Seconds of the CPU and of the clock, and the peak memory, of ``setwise report`` as the paper's page and as one of any
runs, each in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path


def copy(source: Path, folder: Path, records: int) -> None:
    """Write ``records`` copies of the records below ``source``: the first of each as it is, then other seeds."""
    paths = sorted(source.rglob("*.json"))
    if not paths:
        raise ValueError(f"expected records below {source}, got none")
    for made in range(records):
        turn, place = divmod(made, len(paths))
        record = json.loads(paths[place].read_text())
        record["seed"] += 1000 * turn
        path = folder / paths[place].relative_to(source).with_name(f"seed-{record['seed']}.json")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record, separators=(",", ":")))


def measure(*words: str) -> dict[str, float]:
    """Seconds and GB of one report."""
    began = time.perf_counter()
    pid = os.posix_spawn(sys.executable, [sys.executable, "-m", "setwise", "report", *words], os.environ)
    _, status, used = os.wait4(pid, 0)
    if status:
        raise RuntimeError(f"expected a report, got status {status}")
    wall = time.perf_counter() - began
    return {"cpu_seconds": used.ru_utime + used.ru_stime, "seconds": wall, "gigabytes": used.ru_maxrss / 1e6}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--results", type=Path, default=Path("results"))
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        copy(asked.results / "runs", Path(folder) / "runs", asked.records)
        for words in (["--results", folder], [f"{folder}/runs"]):
            found = measure(*words, "--out", f"{folder}/out")
            print(words[0].lstrip("-").replace(f"{folder}/", ""), {name: round(x, 2) for name, x in found.items()})


if __name__ == "__main__":
    main()
