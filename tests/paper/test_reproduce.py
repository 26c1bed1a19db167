"""Many runs: what is skipped, two workers at once, what fails."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing.context import SpawnProcess
from pathlib import Path

import pytest
import torch
from filelock import FileLock, Timeout

import setwise.records as records
from setwise.locks import locked
from setwise.paper import reproduce as module
from setwise.paper.jobs import Job, expand
from setwise.paper.reproduce import listing, reproduce, work
from setwise.runs.matching import run_matching
from setwise.training.checkpoint import write_text
from setwise.training.errors import Interrupted

CPU = torch.device("cpu")


def quick(jobs: list[Job]) -> list[Job]:
    changes = {"epochs": 1, "instances": 100, "batch": 32}
    return [replace(job, recipe=job.recipe.changed(changes)) for job in jobs]


@pytest.fixture
def jobs() -> list[Job]:
    """Two quick runs."""
    return quick(expand("table1", data="digits", seeds=(1,), only=("paper/digits-matching-triplet",)))


def test_what_is_there_is_not_run_again(jobs, tmp_path, capfd):
    assert len(jobs) == 2
    assert reproduce(jobs, results=tmp_path / "r", scratch=tmp_path / "s", device=CPU) == 0
    first = capfd.readouterr().out
    assert first.count("seed 1:") == 2
    found = [records.read(job.record(tmp_path / "r")) for job in jobs]
    assert [record["name"] for record in found] == [job.name for job in jobs]
    assert reproduce(jobs, results=tmp_path / "r", scratch=tmp_path / "s", device=CPU) == 0
    assert "seed 1:" not in capfd.readouterr().out
    assert not list((tmp_path / "r").rglob("*.lock"))


def test_what_another_worker_is_at_is_left_to_it(jobs, tmp_path):
    path = jobs[0].record(tmp_path)
    path.parent.mkdir(parents=True)
    with FileLock(path.with_suffix(".lock")):
        work(jobs, tmp_path, tmp_path / "s", CPU, None)
    assert [job.record(tmp_path).exists() for job in jobs] == [False, True]


def test_runs_that_are_not_made_have_a_reason(jobs, tmp_path, capfd, monkeypatch):
    held, foreign = (job.record(tmp_path).with_suffix(".lock") for job in jobs)
    for lock in (held, foreign):
        lock.parent.mkdir(parents=True)
        lock.touch()
    opened = os.open

    def of_another_user(path, *options, **more):
        if Path(path) == foreign:
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *options, **more)

    monkeypatch.setattr(os, "open", of_another_user)
    with FileLock(held):
        assert reproduce(jobs, results=tmp_path, scratch=tmp_path / "s", device=CPU) == 2
    told = capfd.readouterr().err.splitlines()
    assert [line.partition(": ")[0] for line in told] == ["not made", "not made"]
    assert re.search("triplet seed 1: another process .*seed-1.lock", told[0])
    assert re.search("triplet-qare seed 1: .*Permission denied.*another user's", told[1])


def test_a_run_that_fails_is_told_and_the_others_go_on(jobs, tmp_path, capfd):
    jobs[0] = replace(jobs[0], recipe=jobs[0].recipe.changed({"data": "nowhere"}))
    work(jobs, tmp_path, tmp_path / "s", CPU, None)
    assert re.findall("^failed: paper/digits-matching-triplet seed 1: .*got 'nowhere'", capfd.readouterr().err)
    assert [job.record(tmp_path).exists() for job in jobs] == [False, True]
    # Other workers leave it alone; the same command tries it again.
    work(jobs, tmp_path, tmp_path / "s", CPU, None)
    assert not capfd.readouterr().err
    jobs[1].record(tmp_path).unlink()
    assert reproduce(jobs, results=tmp_path, scratch=tmp_path / "s", device=CPU, at_once=2) == 1
    assert capfd.readouterr().err.count("failed: paper/digits-matching-triplet") == 2  # when it happens, and at the end
    assert (
        reproduce([replace(jobs[0], recipe=jobs[1].recipe)], results=tmp_path, scratch=tmp_path / "s", device=CPU) == 0
    )
    assert not list(tmp_path.rglob("*.failed"))
    capfd.readouterr()
    jobs[0].record(tmp_path).unlink()
    assert reproduce(jobs, results=tmp_path, scratch=tmp_path / "t", device=CPU) == 1
    assert capfd.readouterr().err.count("failed:") == 1, "one worker has said it already"


def test_a_failure_is_told_before_the_run_is_let_go(jobs, tmp_path, monkeypatch):
    job = jobs[0]
    job = replace(job, recipe=job.recipe.changed({"data": "nowhere"}))
    lock = job.record(tmp_path).with_suffix(".lock")
    written = []

    def write(path, text):
        with pytest.raises(Timeout), FileLock(lock, timeout=0):  # whoever else comes finds it locked
            pass
        written.append(path)
        write_text(path, text)

    monkeypatch.setattr(module, "write_text", write)
    work([job], tmp_path, tmp_path / "s", CPU, None)
    assert written == list(tmp_path.rglob("*.failed")) != []


def test_what_another_worker_failed_at_while_this_one_came_is_left_alone(jobs, tmp_path, monkeypatch):
    job = jobs[0]

    @contextmanager
    def late(path, **options):
        job.record(tmp_path).with_suffix(".failed").write_text("it failed\n")
        with locked(path, **options):
            yield

    monkeypatch.setattr(module, "locked", late)
    work([job], tmp_path, tmp_path / "s", CPU, None)
    assert not job.record(tmp_path).exists()
    assert job.record(tmp_path).with_suffix(".failed").read_text() == "it failed\n"
    assert not list(tmp_path.rglob("*.lock"))


def test_a_signal_stops_all_after_a_checkpoint_and_the_same_command_goes_on(tmp_path):
    only = ("paper/digits-conv4-simclr/",)
    jobs = [replace(j, recipe=replace(j.recipe, epochs=40)) for j in expand("table2", data="digits", only=only)][:2]
    places = {"results": tmp_path / "r", "scratch": tmp_path / "s"}

    ended = threading.Event()

    def stop_when_both_train() -> None:
        while sum(path.stat().st_size > 0 for path in (tmp_path / "s").rglob("metrics.jsonl")) < 2:
            if ended.wait(0.05):
                return
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=stop_when_both_train)
    thread.start()
    try:
        with pytest.raises(Interrupted, match="stopped by SIGTERM, every run after a checkpoint"):
            reproduce(jobs, **places, device=CPU, at_once=2)
    finally:
        ended.set()
        thread.join()
    assert len(list((tmp_path / "s").rglob("checkpoint.safetensors"))) == 2
    assert len(list((tmp_path / "r").rglob("*.json"))) < 2  # where workers start slowly, one may have ended before
    assert reproduce(jobs, **places, device=CPU, at_once=2) == 0


def start_and_send(number: signal.Signals, patch: pytest.MonkeyPatch) -> None:
    """Every worker is sent this signal as soon as it is there."""
    start = SpawnProcess.start

    def start_it(worker: SpawnProcess) -> None:
        start(worker)
        os.kill(worker.pid, number)

    patch.setattr(SpawnProcess, "start", start_it)


def test_a_worker_that_is_killed_is_told(jobs, tmp_path, capfd, monkeypatch):
    places = {"results": tmp_path / "r", "scratch": tmp_path / "s"}
    with monkeypatch.context() as patch:
        start_and_send(signal.SIGKILL, patch)
        assert reproduce(jobs, **places, device=CPU, at_once=2) == 2
    told = capfd.readouterr().err
    assert told.count("a worker was killed by SIGKILL, out of memory?") == 2
    assert "the same command goes on with it" in told


def alive() -> dict[int, int]:
    """The parents of all processes that have not ended."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent = path.read_text().rpartition(") ")[2].split()[:2]
            found |= {} if state in "ZX" else {int(path.parent.name): int(parent)}
    return found


def below(pid: int) -> list[int]:
    return [child for child, parent in alive().items() if parent == pid]


def wait_until_gone(pids: list[int], process: subprocess.Popen) -> None:
    try:
        wait_until(lambda: not alive().keys() & pids, process, 20)
    finally:
        for pid in alive().keys() & pids:
            os.kill(pid, signal.SIGKILL)


def wait_until(true, process: subprocess.Popen, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "waited in vain"
        assert process.poll() in (None, -signal.SIGKILL), "it ended by itself"
        time.sleep(0.05)


@pytest.mark.skipif(sys.platform != "linux", reason="looks at processes as Linux shows them")
def test_workers_end_with_the_command_that_is_killed(tmp_path):
    code = f"""
from dataclasses import replace
from pathlib import Path
import torch
from setwise.paper.jobs import expand
from setwise.paper.reproduce import _side_by_side
if __name__ == "__main__":
    (job, *_) = expand("table2", data="digits", only=("paper/digits-conv4-simclr/",))
    job = replace(job, recipe=replace(job.recipe, epochs=10_000))
    where = Path({str(tmp_path)!r})
    _side_by_side(1, ([job], where / "r", where / "s", torch.device("cpu"), None))
"""
    (tmp_path / "many.py").write_text(code)
    with subprocess.Popen([sys.executable, tmp_path / "many.py"], stderr=subprocess.DEVNULL) as process:
        try:
            files = (tmp_path / "s").rglob
            wait_until(lambda: any(path.stat().st_size > 0 for path in files("metrics.jsonl")), process)
            workers = below(process.pid)
            assert workers
        finally:
            process.kill()
        wait_until_gone(workers, process)
    assert list(files("checkpoint.safetensors")), "it stopped after a checkpoint"


@pytest.mark.skipif(sys.platform != "linux", reason="looks at processes as Linux shows them")
def test_a_decoder_ends_with_the_process_that_is_killed(tmp_path):
    os.mkfifo(tmp_path / "cuhk-03.mat")  # it waits in the HDF5 library, for ever
    code = "import sys; from pathlib import Path; from setwise.data.formats import cuhk03\n"
    code += "cuhk03._convert(Path(sys.argv[1]), 'labeled', (8, 4), Path('.'))"
    command = [sys.executable, "-c", code, str(tmp_path / "cuhk-03.mat")]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: below(process.pid), process)
            decoders = below(process.pid)
            time.sleep(0.5)  # until it has begun
        finally:
            process.kill()
        wait_until_gone(decoders, process)


@pytest.mark.skipif(os.name != "posix", reason="others cannot hold signals back")
def test_a_signal_to_workers_that_are_still_beginning_leaves_no_traceback(jobs, tmp_path, capfd, monkeypatch):
    with monkeypatch.context() as patch:
        start_and_send(signal.SIGINT, patch)
        missing = reproduce(jobs, results=tmp_path / "r", scratch=tmp_path / "s", device=CPU, at_once=2)
    assert missing == len(jobs), "both obeyed"
    assert "Traceback" not in capfd.readouterr().err
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set(), "and here they come again"


@pytest.mark.parametrize("error", [KeyError("boom"), torch.OutOfMemoryError("CUDA out of memory. boom")])
def test_a_run_may_fail_in_any_way(jobs, tmp_path, capfd, monkeypatch, error):
    def run_of(recipe):
        if recipe == jobs[0].recipe:
            raise error
        return run_matching

    monkeypatch.setattr(module, "run_of", run_of)
    work(jobs, tmp_path, tmp_path / "s", CPU, None)
    (failed,) = (path.read_text() for path in tmp_path.rglob("*.failed"))
    assert "boom" in failed
    assert ("KeyError" in failed) == ("Traceback" in capfd.readouterr().err) == isinstance(error, KeyError)
    assert [job.record(tmp_path).exists() for job in jobs] == [False, True]


def test_a_worker_without_its_gpu_stops(jobs, tmp_path, capfd, monkeypatch):
    def run_of(recipe):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(module, "run_of", run_of)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        work(jobs, tmp_path, tmp_path / "s", CPU, None)
    assert [path.name for path in tmp_path.rglob("*.failed")] == ["seed-1.failed"]  # the next is left to others
    capfd.readouterr()


def test_a_gpu_that_runs_cannot_share_is_told_of(tmp_path, monkeypatch, capsys):
    jobs = expand("table2", data="digits", only=("paper/digits-conv4-random",))
    monkeypatch.setattr(module, "_side_by_side", lambda *given: None)
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    for device, told in (("cuda", True), ("cpu", False), ("cuda", False)):
        reproduce(jobs, results=tmp_path, scratch=tmp_path, device=torch.device(device), at_once=2)
        assert ("`nvidia-cuda-mps-control -d` lets them share the GPU" in capsys.readouterr().err) == told
        if not told:
            (tmp_path / "nvidia-cuda-mps-control.pid").touch()


def leave_record(job: Job, results: Path, **changes: object) -> Path:
    """What a run leaves, as far as `reproduce` looks at it."""
    path = job.record(results)
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {"format": records.FORMAT, "name": job.name, "recipe": job.recipe.tree(), "seed": job.seed}
    record["final"] = {"probe_accuracy": 0.5}
    path.write_text(json.dumps(record | changes))
    return path


def test_what_is_not_the_runs_record_does_not_count_as_done(tmp_path):
    first, second, third = expand("table2", data="digits", seeds=(1, 2, 3), only=("paper/digits-conv4-random",))
    recipe = first.recipe.tree()
    leave_record(first, tmp_path, recipe={key: value for key, value in recipe.items() if key != "head"})
    told = r"2 of 3 runs to make"
    assert re.search(told, listing([first, second, third], tmp_path)[-1]), "a younger field has its default"
    for changes, words in (
        ({"seed": 3}, r"got another's \(seed differ\)"),
        ({"name": "paper/digits-conv4-simclr"}, r"got another's \(name differ\)"),
        ({"recipe": recipe | {"epochs": 3}}, r"got another's \(epochs differ\)"),
        ({"recipe": recipe | {"rotations": 3}}, "expected a field of a recipe, .* got 'rotations'"),
        ({"recipe": None}, "expected a recipe's tables, got NoneType"),
        ({"format": "another"}, "expected a record that setwise wrote"),
        ({"final": {"probe_accuracy": float("nan")}}, "expected probe_accuracy to be a share, from 0 to 1, got nan"),
        ({"final": {}}, "expected a run that was evaluated"),
    ):
        leave_record(second, tmp_path, **changes)
        for look in (listing, lambda jobs, results: reproduce(jobs, results=results, scratch=tmp_path, device=CPU)):
            with pytest.raises(ValueError, match=words + r".*seed-2|seed-2.*" + words) as error:
                look([first, second, third], tmp_path)
            assert "; move it away, and the same command makes the run again" in str(error.value)
    for job in (second, third):
        path = leave_record(job, tmp_path)
        path.write_text(path.read_text()[:100])
    with pytest.raises(ValueError, match=r"expected a record at .*seed-2.*\(and 1 more such\); move it away"):
        listing([first, second, third], tmp_path)


def test_nowhere_to_put_checkpoints(tmp_path):
    jobs = expand("table2", data="digits", seeds=(1,), only=("paper/digits-conv4-random",))
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"expected a folder for checkpoints, got .*file.*; give another --scratch"):
        reproduce(jobs, results=tmp_path / "r", scratch=tmp_path / "file" / "s", device=CPU)


def test_there_are_no_more_workers_than_runs(tmp_path, monkeypatch):
    jobs, asked = expand("table2", data="digits", seeds=(1, 2, 3), only=("paper/digits-conv4-random",)), []
    monkeypatch.setattr(module, "_side_by_side", lambda at_once, arguments: asked.append(at_once))
    monkeypatch.setattr(module, "work", lambda *arguments: asked.append("here"))
    for at_once, there in ((8, 0), (2, 0), (8, 1), (8, 2), (8, 3)):
        for job in jobs[:there]:
            leave_record(job, tmp_path)
        left = reproduce(jobs, results=tmp_path, scratch=tmp_path, device=CPU, at_once=at_once)
        assert left == len(jobs) - there
    assert asked == [3, 2, 2, "here", "here"]


def test_a_worker_with_nowhere_to_write_says_so(jobs, tmp_path):
    (tmp_path / "r").touch()
    with pytest.raises(SystemExit, match="setwise: a worker stopped: .*Not a directory"):
        module._worker(1, jobs, tmp_path / "r", tmp_path / "s", CPU, None)
