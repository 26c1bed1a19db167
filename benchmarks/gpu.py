"""Everything that still needs a GPU, by one command, in a given time, with nothing lost.

    python benchmarks/gpu.py DATA OUT [--minutes 27] [--only NAME ...] [--list] [--results results]

DATA has the unpacked data sets (cifar-10-batches-bin, cifar-100-binary, ...). Before anything runs, each job is
checked: are its data and packages there, does its command take its options? Then jobs run in order of worth. One that
does not fit into the time left is passed over. Each has a limit of twice the seconds it is expected to take.

Records are written to OUT/results, logs to OUT/logs, a line for each job to OUT/progress.txt. OUT/all.tar.gz has all of
it, but for what --results had already, and is always whole. The same command goes on where it was stopped. On another
machine, unpack the archive as OUT first. `tar xzf OUT/all.tar.gz results` in the repository brings the records there.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

from gpu_jobs import JOBS
from gpu_queue import GRACE, RESULTS, ROOT, Job, own, seed, variables, work
from parses import PARTLY

LIKELY = "h200"  # the GPU of the records, where there is none to ask
CHECKED = 120.0  # seconds that a check may take


def gpu_name() -> str:
    """The GPU as files are named after it, "h200"; "" if torch finds none. A process that ends asks it."""
    code = "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else '')"
    found = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True).stdout
    return re.sub(r"[^a-z0-9]+", "-", found.lower().replace("nvidia", "")).strip("-")


def lacks(job: Job, data: Path, names: dict[str, str]) -> tuple[str, bool]:
    """What a job would fail for: data, packages, options; "" for nothing. And whether it can run all the same."""
    if missing := [folder for folder in job.data if not (data / folder).is_dir()]:
        return f"no {', '.join(missing)} in {data}", False
    words = [sys.executable, str(ROOT / "benchmarks/parses.py"), *job.filled(names)]
    try:
        done = subprocess.run(words, cwd=ROOT, env=variables(), capture_output=True, text=True, timeout=CHECKED)
    except subprocess.TimeoutExpired:
        return f"its options could not be checked in {CHECKED:.0f} s", True
    if not done.returncode:
        return "", True
    lines = (done.stderr + done.stdout).strip().splitlines()
    errors = [line for line in lines if re.search(r"Error|error:|expected|[Uu]nrecognized", line)]
    return (errors or lines or ["?"])[-1].strip(" │"), done.returncode == PARTLY


def show(jobs: Sequence[Job], data: Path, out: Path, names: dict[str, str], cores: int) -> list[Job]:
    """Print a table of all jobs; those that can run."""
    with ThreadPoolExecutor(cores) as pool:
        checked = list(pool.map(lambda job: lacks(job, data, names), jobs))
    ready, total = [], 0.0
    for job, (reason, able) in zip(jobs, checked, strict=True):
        seconds = job.to_go(out, names)
        if able:
            ready.append(job)
            total += seconds * (min(job.cores, cores) / cores if job.beside else 1.0)
        state = "complete" if not seconds else "to do" if able else "CANNOT RUN"
        lacking = f"; lacks: {reason}" if reason else ""
        print(f"{job.name:20}{seconds / 60:6.1f} min  {state:10}  {job.about} ({job.basis}){lacking}")
    print(f"{total / 60:.0f} minutes in all; {names['gpu']}, {cores} cores", flush=True)
    return ready


def main(words: list[str] | None = None, jobs: tuple[Job, ...] = JOBS) -> None:
    """Check, list, run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder of the unpacked data sets")
    parser.add_argument("out", type=Path, help="folder of what is made")
    parser.add_argument("--minutes", type=float, default=27.0, help="after so many all is packed and nothing runs")
    parser.add_argument("--only", nargs="+", default=[], help="jobs whose names begin so")
    parser.add_argument("--list", action="store_true", help="show what is there to do, run nothing")
    parser.add_argument("--results", type=Path, default=ROOT / RESULTS, help="records that are there already")
    given = parser.parse_args(words)
    until = time.monotonic() + 60 * given.minutes - GRACE - 5  # to stop what runs, and to pack
    for start in given.only:
        if not any(job.name.startswith(start) for job in jobs):
            parser.error(f"expected --only with names of {', '.join(job.name for job in jobs)}, got {start!r}")
    jobs = tuple(job for job in jobs if not given.only or job.name.startswith(tuple(given.only)))
    data, out, gpu, cores = given.data.resolve(), given.out.resolve(), gpu_name(), os.cpu_count() or 1
    names = {"data": str(data), "out": str(out), "gpu": gpu or LIKELY}
    if not gpu and not given.list:
        sys.exit("gpu.py: expected an NVIDIA GPU, got none that torch finds; --list shows what there is to do")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        with nullcontext(-1) if given.list else own(out) as lock:
            seed(out, given.results)
            ready = show(jobs, data, out, names, cores)
            if not given.list:
                work(ready, out, given.results.resolve(), names=names, until=until, cores=cores, lock=lock)
    except ValueError as error:
        sys.exit(f"gpu.py: {error}")


if __name__ == "__main__":
    main()
