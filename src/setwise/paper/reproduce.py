"""Many runs: those of a table that have no record, several at once, safe to interrupt.

Every worker goes through the whole list and takes each run without a record and a lock. So any number of workers can
share the list, on one machine or on several that share the folder. Records made elsewhere are simply copied into it.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

import setwise.records as records
from setwise.checks import check_count
from setwise.data import split_sizes
from setwise.data.formats import cuhk03
from setwise.kernels import processes_share, share_device
from setwise.locks import LockTaken, locked
from setwise.paper.jobs import Job
from setwise.paper.recipes import recipe
from setwise.recipe import Recipe
from setwise.records.record import read
from setwise.runs import run_of
from setwise.terminal import visible
from setwise.training.checkpoint import remove_unfinished, write_text
from setwise.training.errors import Interrupted, TrainingError, out_of_memory
from setwise.training.loop import RunOptions, stopping_signals
from setwise.training.schedule import batch_sizes

# Training images of the data sets that recipes name, how many times the pixels of CIFAR's they have, and classes. Of
# CUHK-03 identities: its encoder's first layers leave as many positions of a picture as of half an image of CIFAR.
IMAGES = {
    "digits": (1297, 1, 10),
    "cifar10": (50_000, 1, 10),
    "cifar100": (50_000, 1, 100),
    "tiny-imagenet": (100_000, 4, 200),
    "cuhk03": (cuhk03.IDENTITIES, 1, cuhk03.IDENTITIES),
}
SHOTS = 5  # of an identity in a view of CUHK-03, 14,096 pictures in all


def estimate(jobs: Sequence[Job], results: Path) -> list[float | None]:
    """Seconds of training of each job, run alone, from the step times in ``results``.

    These are of 32 x 32 pixels; the time of larger images grows with their pixels. That of a batch which was not
    measured grows with it, and is no less than that of the nearest one. None where ``results`` has no step of that
    encoder and method (``setwise bench step --methods`` measures it).
    """
    measured: dict[tuple[str, str, int], float] = {}
    for path in sorted(results.glob("bench-step*.json")):
        with suppress(ValueError, KeyError, TypeError, AttributeError):  # another's file, or of another version
            for row in read(path, run=False)["encoders"].values():
                measured[_step(recipe(row["recipe"]))] = float(row["setwise_ms"])
                for name, epoch in row.get("methods", {}).items():
                    it = recipe(name)
                    measured[_step(it)] = 1e3 * float(epoch) * it.epochs / run_steps(it)

    def seconds(it: Recipe) -> float | None:
        if not it.epochs:
            return 0.0
        batches = [batch for *kind, batch in measured if kind == [it.method.name, it.encoder.name]]
        if it.data.source not in IMAGES or not batches:
            return None
        near = min(batches, key=lambda batch: abs(batch - it.batch))
        ms = measured[it.method.name, it.encoder.name, near] * max(1.0, it.batch / near)
        return IMAGES[it.data.source][1] * run_steps(it) * ms / 1e3

    return [seconds(job.recipe) for job in jobs]


def run_steps(it: Recipe) -> int:
    """Steps of a whole run of a recipe on data that ``IMAGES`` has; matching trains on a part of its instances."""
    (images, _, classes), passes = IMAGES[it.data.source], 1
    if it.matched:
        samples = split_sizes(it.data.instances or images)[0]
        passes = SHOTS if it.method.options.get("passes_over") == "shots" else 1
    else:
        tails = [it.data.imbalance ** (-c / (classes - 1)) for c in range(classes)]
        samples = it.data.instances or int((images - it.data.validation) * sum(tails) / classes)
    return it.epochs * passes * len(batch_sizes(samples, it.batch, drop_last=it.drop_last))


def check_records(jobs: Sequence[Job], results: Path) -> None:
    """Raise if a job's record cannot be read, or is another run's: the run would never be made."""
    wrong = []
    for job in jobs:
        try:
            job.check(results)
        except ValueError as error:
            wrong.append(str(error))
    if wrong:
        more = f" (and {len(wrong) - 1} more such)" if len(wrong) > 1 else ""
        raise ValueError(f"{wrong[0]}{more}; move it away, and the same command makes the run again")


def listing(jobs: Sequence[Job], results: Path) -> list[str]:
    """The runs without a record, each with its time where that is known, and the total."""
    check_records(jobs, results)
    missing = [job for job in jobs if not job.record(results).exists()]
    times = estimate(missing, results)
    lines = [
        f"{job.record(results)}" + ("" if seconds is None else f"  {seconds:.0f} s")
        for job, seconds in zip(missing, times, strict=True)
    ]
    known = [seconds for seconds in times if seconds is not None]
    took = f", {sum(known) / 60:.0f} minutes of training one after the other" if any(known) else ""
    took += f", {len(times) - len(known)} of them not measured" if any(known) and len(known) < len(times) else ""
    return [*lines, f"{len(missing)} of {len(jobs)} runs to make{took}"]


def _step(it: Recipe) -> tuple[str, str, int]:
    """What a step's time depends on most."""
    return it.method.name, it.encoder.name, it.batch


def work(
    jobs: Sequence[Job], results: Path, scratch: Path, device: torch.device, root: Path | None, forget: bool = False
) -> None:
    """Make the runs that have no record and that no other worker is making.

    ``forget`` removes a run's folder (checkpoint, page) once its record is there; hundreds of runs fill a disk. A
    failure is written beside the record's place, so that other workers skip the run.
    """
    for job in jobs:
        path = job.record(results)
        if path.exists() or failure_of(path).exists():
            continue
        with suppress(LockTaken, PermissionError):  # another makes it, or owns the place: ``reproduce`` says so at last
            path.parent.mkdir(parents=True, exist_ok=True)
            with locked(lock_of(path), option="--results"):
                if not path.exists() and not failure_of(path).exists():  # another had it until just now
                    for unfinished in (path, failure_of(path)):
                        remove_unfinished(unfinished)
                    _run(job, path, scratch, device, root, forget)
            lock_of(path).unlink(missing_ok=True)


def _run(job: Job, path: Path, scratch: Path, device: torch.device, root: Path | None, forget: bool) -> None:
    """Write the run's record to ``path``, or its failure beside it."""
    began = time.perf_counter()
    try:
        records.write(path, record_of(job, scratch, device, root))
        if forget:
            shutil.rmtree(folder_of(job, scratch))
    except Interrupted:
        raise
    except Exception as error:  # whatever it is, other workers would die of it too
        words, trace = failure_in_words(error)
        tell_failure(job, path, words, trace)
        if "CUDA error" in str(error):  # this process cannot use the GPU any more
            raise
    else:
        print(f"{run_title(job)}: {time.perf_counter() - began:.1f} s", flush=True)


def record_of(job: Job, scratch: Path, device: torch.device, root: Path | None) -> dict[str, Any]:
    """Make the run, or go on with it from its checkpoint below ``scratch``; its record."""
    how, folder = RunOptions(device, resume=True, quiet=True), folder_of(job, scratch)
    return run_of(job.recipe)(job.recipe, folder, name=job.name, seed=job.seed, how=how, root=root)


def failure_in_words(error: Exception) -> tuple[str, str]:
    """Why a run failed, in words, and the traceback if nobody expects such an error."""
    if isinstance(error, (TrainingError, ValueError, OSError, ImportError)) or out_of_memory(error):
        return str(error), ""
    return f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error))


def tell_failure(job: Job, record: Path, words: str, trace: str) -> None:
    """Print why a run failed, and write it beside the record's place."""
    print(trace, end="", file=sys.stderr)
    print(visible(f"failed: {run_title(job)}: {words}"), file=sys.stderr, flush=True)
    write_text(failure_of(record), f"{run_title(job)}: {words}\n")


def folder_of(job: Job, scratch: Path) -> Path:
    """The folder of the run's checkpoint."""
    return scratch / job.name / job.variant / f"seed-{job.seed}"


def failure_of(record: Path) -> Path:
    """The file that says why the run failed."""
    return record.with_suffix(".failed")


def lock_of(record: Path) -> Path:
    """The file that a process locks while it makes the run."""
    return record.with_suffix(".lock")


def run_title(job: Job) -> str:
    """The run in words."""
    return " ".join(filter(None, (job.name, job.variant, f"seed {job.seed}")))


def _why_missing(record: Path) -> str:
    """Why a run has no record, though it did not fail."""
    try:
        record.parent.mkdir(parents=True, exist_ok=True)
        if lock_of(record).exists():
            with locked(lock_of(record), option="--results"):
                pass
        elif not os.access(record.parent, os.W_OK):
            return f"{record.parent} cannot be written; give another --results"
    except (LockTaken, PermissionError) as error:
        return str(error)
    return "it was stopped before its end; the same command goes on with it"


def _stop_with_parent() -> None:
    """Stop this process, after a checkpoint, when the one that started it is gone, however that ended."""
    parent = mp.parent_process()

    def wait(parent: Any) -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)

    if parent is not None:
        threading.Thread(target=wait, args=(parent,), daemon=True).start()


def _worker(at_once: int, *arguments: Any) -> None:
    try:
        _stop_with_parent()
        _hold_signals(False)  # one that came while this process began is obeyed here
        share_device(at_once if processes_share() else 1)
        work(*arguments)
    except (Interrupted, KeyboardInterrupt):  # the one who asked knows, and says it once
        sys.exit(1)
    except (OSError, ValueError) as error:  # nowhere to write, not even what went wrong; or no locks there
        sys.exit(visible(f"setwise: a worker stopped: {error}"))


def reproduce(
    jobs: Sequence[Job],
    *,
    results: Path,
    scratch: Path,
    device: torch.device,
    root: Path | None = None,
    at_once: int = 1,
    forget: bool = False,
) -> int:
    """Run the jobs, ``at_once`` side by side; returns how many records are missing in the end.

    Runs that failed before are tried again, once. A signal stops all of them, each after a checkpoint.
    """
    check_count(at_once, "at_once")
    check_records(jobs, results)
    make_scratch(scratch)
    forget_failures(jobs, results)
    arguments = (list(jobs), results, scratch, device, root, forget)
    at_once = max(1, min(at_once, sum(not job.record(results).exists() for job in jobs)))  # no worker without a run
    if at_once == 1:
        work(*arguments)
    else:
        if device.type == "cuda" and not processes_share():
            words = "no MPS of NVIDIA's runs, so these take turns; `nvidia-cuda-mps-control -d` lets them share the GPU"
            print(f"setwise: {words}", file=sys.stderr)
        _side_by_side(at_once, arguments)
    return count_missing(jobs, results, repeat=at_once > 1)


def make_scratch(scratch: Path) -> None:
    """Make the folder for checkpoints."""
    try:
        scratch.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"expected a folder for checkpoints, got {error}; give another --scratch") from error


def forget_failures(jobs: Sequence[Job], results: Path) -> None:
    """Remove the failures that earlier commands wrote down, so that these runs are tried again."""
    for job in jobs:
        with suppress(PermissionError):  # another user's
            failure_of(job.record(results)).unlink(missing_ok=True)


def count_missing(jobs: Sequence[Job], results: Path, *, repeat: bool) -> int:
    """Say why records are missing in the end, and how many are; ``repeat`` prints failures once more.

    Those of many workers are lost among the others' lines.
    """
    places, reasons = [job.record(results) for job in jobs], dict[str, list[Job]]()
    for job, path in zip(jobs, places, strict=True):
        with suppress(FileNotFoundError, PermissionError):  # another command has just taken it away, or it is its own
            if failure_of(path).exists():
                words = failure_of(path).read_text().strip()
                if repeat:
                    print(visible(f"failed: {words}"), file=sys.stderr)
                failure_of(path).unlink()
                continue
        if not path.exists():
            reasons.setdefault(_why_missing(path), []).append(job)
    for reason, those in reasons.items():
        more = f" and {len(those) - 1} more" if len(those) > 1 else ""
        print(visible(f"not made: {run_title(those[0])}{more}: {reason}"), file=sys.stderr)
    return sum(not path.exists() for path in places)


def _hold_signals(hold: bool) -> None:
    """Keep signals that stop a run waiting, or let them come; not on Windows, which cannot."""
    if hasattr(signal, "pthread_sigmask"):
        how = signal.SIG_BLOCK if hold else signal.SIG_UNBLOCK
        signal.pthread_sigmask(how, stopping_signals())


def _side_by_side(at_once: int, arguments: tuple[Any, ...]) -> None:
    context = mp.get_context("spawn")
    workers = [context.Process(target=_worker, args=(at_once, *arguments)) for _ in range(at_once)]
    seen = 0

    def stop(number: int, frame: object) -> None:
        nonlocal seen
        seen = number
        for worker in workers:
            if worker.pid is not None and worker.is_alive():
                os.kill(worker.pid, number)

    here = threading.current_thread() is threading.main_thread()  # others cannot have signals
    old = {number: signal.signal(number, stop) for number in stopping_signals()} if here else {}
    try:
        try:
            _hold_signals(True)  # new processes begin so, and a Ctrl-C does not end in a traceback of their imports
            for worker in workers:
                worker.start()
        finally:
            _hold_signals(False)
        for worker in workers:
            worker.join()
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
    if seen:
        name = signal.Signals(seen).name
        raise Interrupted(seen, f"stopped by {name}, every run after a checkpoint; the same command goes on")
    for worker in workers:
        if worker.exitcode is not None and worker.exitcode < 0:
            name = signal.Signals(-worker.exitcode).name
            print(
                f"a worker was killed by {name}{', out of memory?' if name == 'SIGKILL' else ''}; the run it was at "
                "has no record, the same command goes on with it",
                file=sys.stderr,
            )
