"""Many runs over many machines: each run without a record is one call of ``make`` on a Ray or a Slurm cluster.

Ray and submitit schedule the calls and carry text there and back. They give the run of a lost worker to another one.
This process writes the records as they come.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import setwise.records as records
from setwise.checks import check_option, imported, see
from setwise.locks import LockTaken, locked
from setwise.paper.jobs import Job
from setwise.paper.reproduce import (
    check_records,
    count_missing,
    failure_in_words,
    failure_of,
    folder_of,
    forget_failures,
    lock_of,
    make_scratch,
    record_of,
    run_title,
    tell_failure,
)
from setwise.recipe import Recipe
from setwise.runs import choose_device
from setwise.training.checkpoint import remove_unfinished
from setwise.training.errors import Interrupted
from setwise.training.loop import Signals
from setwise.version import __version__

RETRIES = 3  # of a run whose worker is lost; one that fails is not tried again
TICK = 0.5  # seconds between looks at the cluster
STOP_SECONDS = 10.0  # that cancelled runs have to write a checkpoint
MINUTES = 240  # that Slurm gives a run, unless the user says otherwise; then it is requeued
MISSING = r"No module named '[\w.]+'"
PAGE = see("how-to/many-gpus#clusters")

# Numbers of requests and their answers, as they come. None: all is submitted, or there is nothing new.
Answers = Generator[tuple[int, str] | None]


def make(request: str) -> str:
    """Make one run, on a worker. Request and answer are JSON; the answer has the record, or says why the run failed."""
    asked, began, argv = json.loads(request), time.perf_counter(), sys.argv
    answer: dict[str, Any] = {"host": socket.gethostname()}
    try:
        sys.argv = asked["command"]  # the user's, for the record; a worker's own says nothing
        if asked["version"] != __version__:
            raise ValueError(
                f"expected setwise {asked['version']} on every worker, as where the command runs, got {__version__}; "
                f"install the same everywhere, {PAGE}"
            )
        job = Job(asked["name"], Recipe.read(asked["recipe"]), asked["seed"], asked["variant"])
        scratch, root = Path(asked["scratch"]), Path(asked["root"]) if asked["root"] else None
        make_scratch(scratch)
        answer["record"] = record_of(job, scratch, choose_device(asked["device"]), root)
    except Interrupted as error:  # Ray cancels by SIGINT; anything else takes the worker away
        raise (KeyboardInterrupt if error.signal == signal.SIGINT else SystemExit(1)) from error
    except Exception as error:  # as on one machine: it is told, and other runs go on
        answer["failed"], answer["trace"] = failure_in_words(error)
    finally:
        sys.argv = argv
    return json.dumps(answer | {"seconds": time.perf_counter() - began})


class Requeued:
    """``make`` for submitit, which asks by ``checkpoint`` what to call when Slurm has taken the node away."""

    def __call__(self, request: str) -> str:
        """Make the run."""
        return make(request)

    def checkpoint(self, request: str) -> Any:
        """Ask for the same call again: the run goes on from its own checkpoint."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, request)


def reproduce(
    jobs: Sequence[Job],
    *,
    on: str,
    results: Path,
    scratch: Path,
    device: str = "auto",
    root: Path | None = None,
    forget: bool = False,
    resources: str = "",
) -> int:
    """Run the jobs on a cluster, ``on`` "ray" or "slurm"; returns how many records are missing in the end.

    ``resources`` is what each run asks for, in words of Ray or submitit: "partition=gpu,timeout_min=120". Runs that
    failed before are tried again, once. A signal cancels all of them; what was collected stays.
    """
    check_option(on, ("ray", "slurm"), "on")
    check_records(jobs, results)
    forget_failures(jobs, results)
    scratch = scratch.absolute()
    options = read_resources(resources)
    with ExitStack() as locks:
        mine = [job for job in jobs if _take(job.record(results), locks)]
        if mine:
            requests = [_request(job, scratch, device, root) for job in mine]
            engine = _on_ray(requests, device, options) if on == "ray" else _on_slurm(requests, scratch, options)
            with closing(engine) as answers:  # which cancels what is left
                _collect(mine, answers, results, scratch if forget else None)
    return count_missing(jobs, results, repeat=len(mine) > 1)


def read_resources(text: str) -> dict[str, Any]:
    """The options in "gpus_per_node=1,exclude=node1,node2": numbers as such; a word without "=" belongs to the last."""
    pairs = [pair.partition("=") for pair in re.split(r",(?=\w+=)", text) if text]
    if not all(name.isidentifier() and value for name, _, value in pairs):
        raise ValueError(f"expected --resources as NAME=VALUE,NAME=VALUE, got {text!r}; {PAGE}")
    options: dict[str, Any] = {}
    for name, _, value in pairs:
        try:
            options[name] = json.loads(value)  # a number, true, false
        except ValueError:
            options[name] = value
    return options


def _take(record: Path, locks: ExitStack) -> bool:
    """Whether the run is to be made here: it has no record, and no other command is at it. Its lock is then held."""
    if record.exists():
        return False
    with suppress(LockTaken, PermissionError):  # ``count_missing`` says so in the end
        record.parent.mkdir(parents=True, exist_ok=True)
        locks.enter_context(locked(lock_of(record), option="--results"))
        locks.callback(lock_of(record).unlink, missing_ok=True)
        if not record.exists() and not failure_of(record).exists():  # another had it until just now
            for unfinished in (record, failure_of(record)):
                remove_unfinished(unfinished)
            return True
    return False


def _request(job: Job, scratch: Path, device: str, root: Path | None) -> str:
    return json.dumps(
        {
            "version": __version__,
            "command": sys.argv,
            "name": job.name,
            "variant": job.variant,
            "seed": job.seed,
            "recipe": job.recipe.tree(),
            "scratch": str(scratch),
            "root": None if root is None else str(root.absolute()),
            "device": device,
        }
    )


def _collect(jobs: Sequence[Job], answers: Answers, results: Path, scratch: Path | None) -> None:
    """Keep the answers as they come, until a signal."""
    next(answers)  # all are submitted; Ray has set its own signal handlers by now
    with Signals() as signals:
        for answered in answers:
            if answered is not None:
                number, text = answered
                _keep(jobs[number], text, results, scratch)
            if signals.seen:
                raise Interrupted(
                    signals.seen,
                    f"stopped by {signal.Signals(signals.seen).name}; its runs on the cluster are cancelled, "
                    "the records that came are kept, the same command goes on",
                )


def _keep(job: Job, text: str, results: Path, scratch: Path | None) -> None:
    """Write the record of an answer, or the failure; the run's folder in ``scratch`` goes if it can be seen here."""
    answer, path = json.loads(text), job.record(results)
    where = f"on {answer['host']}: " if "host" in answer else ""
    try:
        if "failed" in answer:
            return tell_failure(job, path, where + answer["failed"], answer["trace"])
        records.write(path, answer["record"])
    except ValueError as error:  # numbers that are not finite
        return tell_failure(job, path, f"{where}{error}", "")
    if scratch is not None:
        shutil.rmtree(folder_of(job, scratch), ignore_errors=True)
    print(f"{run_title(job)}: {answer['seconds']:.1f} s on {answer['host']}", flush=True)


def _failed(error: Exception) -> str:
    """The answer for a run that gave none: its worker was lost too often, or could not begin."""
    if lacking := re.findall(MISSING, str(error)):
        words = f"expected setwise {__version__} and its packages on every worker, got: {lacking[-1]}; {PAGE}"
    else:
        reason = " ".join(str(error).strip().splitlines()[:2])
        words = f"its worker was lost ({type(error).__name__}: {reason}); the same command goes on with it"
    return json.dumps({"failed": words, "trace": ""})


def _on_ray(requests: Sequence[str], device: str, options: dict[str, Any]) -> Answers:
    """Ray's own cluster, the one at RAY_ADDRESS or one that is started here; Ray repeats runs of lost workers."""
    ray = imported("ray", "ray", PAGE)
    start = not ray.is_initialized()
    if start:
        try:
            ray.init(include_dashboard=False, log_to_driver=False)
        except (ray.exceptions.RayError, RuntimeError, ConnectionError) as error:
            raise ValueError(f"expected a Ray cluster, got: {error}; RAY_ADDRESS says which, {PAGE}") from error
    pending: dict[Any, int] = {}
    try:
        gpus = ray.cluster_resources().get("GPU", 0)
        wanted = {"num_gpus": 0 if device == "cpu" or (device == "auto" and not gpus) else 1} | options
        if wanted["num_gpus"] and not gpus:
            print("setwise: the Ray cluster has no GPU now; the runs wait until it has one", file=sys.stderr)
        remote = ray.remote(make).options(max_retries=RETRIES, **wanted)
        pending |= {remote.remote(request): number for number, request in enumerate(requests)}
        yield None
        while pending:
            done, _ = ray.wait(list(pending), timeout=TICK)
            for reference in done:
                number = pending.pop(reference)
                try:
                    answer = ray.get(reference)
                except ray.exceptions.RayError as error:
                    answer = _failed(error)
                yield number, answer
            if not done:
                yield None
    finally:
        for force in (False, True):
            for reference in pending:
                ray.cancel(reference, force=force)
            left = ray.wait(list(pending), num_returns=len(pending), timeout=STOP_SECONDS)[1] if pending else []
            pending = dict.fromkeys(left, 0)
        if start:
            ray.shutdown()


def _on_slurm(requests: Sequence[str], scratch: Path, options: dict[str, Any]) -> Answers:
    """Slurm, by submitit, which requeues runs that time out or are preempted; those of lost nodes are submitted again.

    The option "cluster=local" takes submitit's own processes on this machine in place of Slurm, to try it.
    """
    submitit = imported("submitit", "submitit", PAGE)
    cluster = options.pop("cluster", "slurm")
    generic = submitit.AutoExecutor._valid_parameters()
    asked = {name if name in generic else f"slurm_{name}": value for name, value in options.items()}
    try:
        executor = submitit.AutoExecutor(scratch / "submitit", cluster=cluster)
        executor.update_parameters(**({"name": "setwise", "timeout_min": MINUTES} | asked))
        with executor.batch():
            submitted = [executor.submit(Requeued(), request) for request in requests]
    except (RuntimeError, NameError, AssertionError, ValueError) as error:
        raise ValueError(f"expected Slurm to take these runs, got: {error}; {PAGE}") from error
    pending, lost = dict(enumerate(submitted)), dict.fromkeys(range(len(requests)), 0)
    try:
        yield None
        while pending:
            for number, job in [(number, job) for number, job in pending.items() if job.done()]:
                del pending[number]
                try:
                    answer = job.result()
                except submitit.core.utils.UncompletedJobError as error:
                    failed = isinstance(error, submitit.core.utils.FailedJobError) or re.search(MISSING, str(error))
                    if not failed and not job.state.startswith("CANCELLED") and lost[number] < RETRIES:
                        lost[number] += 1
                        pending[number] = executor.submit(Requeued(), requests[number])
                        words = f"job {job.job_id} was lost, {pending[number].job_id} makes its run"
                        print(f"setwise: {words} ({lost[number]} of {RETRIES} times)", file=sys.stderr)
                        continue
                    answer = _failed(error)
                yield number, answer
            yield None
            time.sleep(TICK)
    finally:
        deadline = time.monotonic() + STOP_SECONDS
        if cluster == "local":  # whose cancel kills a run a second later, which may be too soon for a checkpoint
            for job in pending.values():
                with suppress(ProcessLookupError):
                    os.kill(int(job.job_id), signal.SIGTERM)
            while time.monotonic() < deadline and not all(job.done() for job in pending.values()):
                time.sleep(TICK)
        for job in pending.values():
            job.cancel(check=False)
