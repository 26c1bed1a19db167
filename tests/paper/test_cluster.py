"""Runs on clusters: a local Ray of two workers, and submitit's processes in place of Slurm; workers are killed."""

import json
import os
import secrets
import signal
import socket
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from filelock import FileLock

import setwise.records as records
from setwise.cli import main
from setwise.paper import cluster
from setwise.paper import reproduce as local
from setwise.paper.jobs import Job, expand
from setwise.training.errors import Interrupted

EPOCHS = 12  # long enough to be killed in the middle
PATIENCE = 600.0  # seconds; nothing here takes a tenth of it, on a machine that does nothing else
STARTS = 3  # of Ray, which gives up after 30 seconds
# Ray's own limits, which a busy machine misses: it would give up workers that start slowly, and kill for memory.
RAY_LIMITS = {
    "worker_register_timeout_seconds": int(PATIENCE),
    "health_check_failure_threshold": 100,
    "memory_monitor_refresh_ms": 0,
}
linux = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes as Linux shows them")


@pytest.fixture(scope="module")
def ray():
    """A cluster of two workers on this machine, with a token and a folder of its own."""
    ray = pytest.importorskip("ray", reason="needs ray, none here")
    with tempfile.TemporaryDirectory(prefix="ray") as folder, pytest.MonkeyPatch.context() as patch:
        token = Path(folder) / "token"
        token.write_text(secrets.token_hex(32))
        patch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
        patch.delenv("RAY_ADDRESS", raising=False)
        small = {"num_cpus": 2, "num_gpus": 0, "object_store_memory": 80 * 2**20}
        options = {"include_dashboard": False, "log_to_driver": False, "_temp_dir": folder}
        for left in reversed(range(STARTS)):
            try:
                ray.init("local", **small, **options, _system_config=RAY_LIMITS)
                break
            except Exception as error:  # it has no class for this
                ray.shutdown()
                if "timed out during startup" not in str(error) or not left:
                    raise
        yield ray
        ray.shutdown()


@pytest.fixture
def slurm(monkeypatch):
    """The option that puts submitit's processes in place of Slurm."""
    core = pytest.importorskip("submitit.core.core", reason="needs submitit, none here")
    monkeypatch.setattr(core.Job, "_results_timeout_s", 0.5)  # the disk is here
    return "cluster=local"


@pytest.fixture
def engine(request):
    """The engine of this name, and its resources."""
    found = request.getfixturevalue(request.param)
    return {"on": request.param, "resources": found if request.param == "slurm" else "", "device": "cpu"}


def training(epochs: int, count: int) -> list[Job]:
    jobs = expand("table2", data="digits", only=("paper/digits-conv4-simclr/",))[:count]
    return [replace(job, recipe=job.recipe.changed({"epochs": epochs, "probe.epochs": 2})) for job in jobs]


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Cancelled runs get the time for a checkpoint on a busy machine too."""
    monkeypatch.setattr(cluster, "STOP_SECONDS", PATIENCE)


def holder(file: Path) -> int | None:
    """The process that has the file open, if any."""
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if os.readlink(link) == str(file):
                return int(link.parts[2])
        except OSError:  # it has just been closed, or is another user's
            continue
    return None


class InTheMiddle(threading.Thread):
    """Calls ``act`` with the process that makes this run, once it has trained for an epoch."""

    def __init__(self, job: Job, scratch: Path, act):
        super().__init__()
        self.folder, self.act, self.ended, self.done = local.folder_of(job, scratch), act, threading.Event(), False

    def run(self):
        lock, metrics, process = self.folder / ".lock", self.folder / "metrics.jsonl", None
        while not self.ended.wait(0.02):
            if process is None:  # to look for it takes long: before the first epoch has ended
                process = holder(lock) if lock.exists() else None
            elif metrics.exists() and metrics.stat().st_size:
                self.act(process)
                self.done = True
                return

    def __exit__(self, *error):
        self.ended.set()
        self.join()
        assert self.done, "it acted in the middle of training"

    def __enter__(self):
        self.start()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The records of the same runs, made on this machine one after the other."""
    folder = tmp_path_factory.mktemp("undisturbed")
    jobs = training(EPOCHS, 2)
    assert local.reproduce(jobs, results=folder, scratch=folder / "s", device=torch.device("cpu")) == 0
    return folder


def outcome(job: Job, results: Path) -> dict:
    record = records.read(job.record(results))
    return {name: record[name] for name in ("name", "seed", "recipe", "precision", "command", "epochs", "final")}


@linux
@pytest.mark.parametrize(
    ("engine", "number"),
    [
        pytest.param("ray", signal.SIGKILL, id="ray-killed"),
        pytest.param("slurm", signal.SIGKILL, id="slurm-killed"),
        pytest.param("ray", signal.SIGTERM, id="ray-stopped", marks=pytest.mark.slow),
        pytest.param("slurm", signal.SIGUSR2, id="slurm-preempted", marks=pytest.mark.slow),
    ],
    indirect=["engine"],
)
def test_the_run_of_a_lost_worker_is_given_to_another(engine, number, undisturbed, tmp_path, capfd):
    jobs = training(EPOCHS, 2)
    with InTheMiddle(jobs[0], tmp_path / "s", lambda process: os.kill(process, number)):
        assert cluster.reproduce(jobs, **engine, results=tmp_path / "r", scratch=tmp_path / "s") == 0
    told = capfd.readouterr()
    assert [told.out.count(f"paper/digits-conv4-simclr seed {seed}: ") for seed in (1, 2)] == [1, 1]
    assert "failed: paper/" not in told.err  # Ray may say the word too, of itself
    files = [path for path in (tmp_path / "r").rglob("*") if path.is_file()]
    assert sorted(files) == [job.record(tmp_path / "r") for job in jobs], "each once, and no lock is left"
    for job in jobs:
        job.check(tmp_path / "r")
        assert outcome(job, tmp_path / "r") == outcome(job, undisturbed)


@pytest.mark.parametrize("engine", ["ray"], indirect=True)
def test_a_run_that_fails_is_told_once_and_the_others_go_on(engine, tmp_path, capfd):
    first, second = training(1, 2)
    first = replace(first, recipe=first.recipe.changed({"data": "nowhere"}))
    places = {"results": tmp_path / "r", "scratch": tmp_path / "s", "forget": True}
    assert cluster.reproduce([first, second], **engine, **places) == 1
    told = capfd.readouterr()
    assert (
        told.err.count(f"failed: paper/digits-conv4-simclr seed 1: on {socket.gethostname()}: ") == 2
    )  # when it happens, and at the end
    assert "got 'nowhere'" in told.err
    assert "worker was lost" not in told.err
    assert second.record(tmp_path / "r").exists()
    assert not local.folder_of(second, tmp_path / "s").exists(), "forgotten"
    assert not [*(tmp_path / "r").rglob("*.failed"), *(tmp_path / "r").rglob("*.lock")]


@linux
# submitit forgets a local process that it has cancelled, whether it has ended or not.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("engine", ["ray", "slurm"], indirect=True)
def test_a_signal_cancels_the_runs_after_a_checkpoint(engine, tmp_path, capfd):
    job, quick = training(10_000, 1)[0], training(1, 2)[1]
    places = {"results": tmp_path / "r", "scratch": tmp_path / "s"}
    asked = []

    def stop(process: int) -> None:
        while not quick.record(tmp_path / "r").exists():
            time.sleep(0.05)
        asked.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    with (
        InTheMiddle(job, tmp_path / "s", stop),
        pytest.raises(Interrupted, match="stopped by SIGINT; .* the same command goes on"),
    ):
        cluster.reproduce([job, quick], **engine, **places)
    assert time.monotonic() - asked[0] < PATIENCE, "it ended by itself, nobody had to kill it"
    assert quick.record(tmp_path / "r").exists(), "what came is kept"
    assert (local.folder_of(job, tmp_path / "s") / "checkpoint.safetensors").exists()
    assert not list((tmp_path / "r").rglob("*.lock"))
    with FileLock(local.folder_of(job, tmp_path / "s") / ".lock", timeout=PATIENCE):
        pass  # nobody is at it any more


def test_the_command_asks_the_cluster_for_what_is_missing_only(ray, tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["reproduce", "table2", "--data", "digits", "--only", "paper/digits-conv4-random/", "--seeds", "1"]
    main([*words, "--on", "ray", "--dry-run"])
    assert "1 of 1 runs to make" in capfd.readouterr().out
    main([*words, "--on", "ray", "--resources", "num_cpus=0.5"])
    told = capfd.readouterr().out
    assert "1 of 1 records in results" in told
    (job,) = expand("table2", data="digits", only=("paper/digits-conv4-random/",), seeds=(1,))
    before = job.record(Path("results")).read_bytes()
    monkeypatch.setattr(ray, "init", None)
    monkeypatch.setattr(ray, "remote", None)  # nothing is asked of the cluster now
    main([*words, "--on", "ray"])
    assert job.record(Path("results")).read_bytes() == before


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["table2", "--on", "ray", "--at-once", "2"], "no --at-once beside --on ray"),
        (["fig-time", "--on", "slurm"], "fig-time"),
        (["table2", "--resources", "partition=gpu"], "--on ray or --on slurm beside --resources"),
        (["table2", "--data", "digits", "--on", "slurm", "--resources", "gpu"], "NAME=VALUE"),
    ],
    ids=["at-once", "fig-time", "local", "no-value"],
)
def test_options_that_do_not_go_together_are_refused(words, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=told):
        main(["reproduce", *words])
    assert not list(tmp_path.iterdir())


def test_resources_are_numbers_words_and_lists_of_words():
    text = "partition=gpu,timeout_min=120,exclude=node1,node2,num_gpus=0.5,time=1:00:00"
    found = {"partition": "gpu", "timeout_min": 120, "exclude": "node1,node2", "num_gpus": 0.5, "time": "1:00:00"}
    assert cluster.read_resources(text) == found
    assert cluster.read_resources("") == {}


def test_what_another_command_is_at_is_left_to_it(ray, tmp_path, capfd):
    (job,) = training(1, 1)
    job.record(tmp_path).parent.mkdir(parents=True)
    with FileLock(job.record(tmp_path).with_suffix(".lock")):
        assert cluster.reproduce([job], on="ray", results=tmp_path, scratch=tmp_path / "s") == 1
    assert "not made: paper/digits-conv4-simclr seed 1: another process" in capfd.readouterr().err


def test_a_worker_of_another_version_says_so(tmp_path):
    (job,) = training(1, 1)
    request = json.loads(cluster._request(job, tmp_path, "cpu", None)) | {"version": "7.0"}
    answer = json.loads(cluster.make(json.dumps(request)))
    assert answer["failed"].startswith("expected setwise 7.0 on every worker")
    assert not list(tmp_path.iterdir()), "it made nothing"


def test_a_worker_without_the_package_says_so(ray, tmp_path, monkeypatch):
    (tmp_path / "only_here.py").write_text("def make(request): return request")
    monkeypatch.syspath_prepend(tmp_path)
    import only_here

    monkeypatch.setattr(cluster, "make", only_here.make)
    (answer,) = filter(None, cluster._on_ray(["{}"], "cpu", {}))
    assert "on every worker, got: No module named 'only_here'" in json.loads(answer[1])["failed"]


def test_slurm_is_asked_for_what_the_user_says(tmp_path, monkeypatch, slurm):
    for name, text in (("srun", "exit 1"), ("sbatch", f'cp "$1" {tmp_path}/asked; echo no such partition >&2; exit 1')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    jobs = training(1, 2)
    resources = "partition=gpu,timeout_min=30,gpus_per_node=1"
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ValueError, match=r"expected Slurm to take these runs, got: .*srun"):
        cluster.reproduce(jobs, on="slurm", results=tmp_path / "r", scratch=tmp_path / "s", resources=resources)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(ValueError, match=r"(?s)expected Slurm to take these runs, got: .*no such partition"):
        cluster.reproduce(jobs, on="slurm", results=tmp_path / "r", scratch=tmp_path / "s", resources=resources)
    asked = (tmp_path / "asked").read_text()
    for line in ("--partition=gpu", "--time=30", "--gpus-per-node=1", "--job-name=setwise", "--array=0-1"):
        assert f"#SBATCH {line}" in asked
    with pytest.raises(ValueError, match="(?s)expected Slurm to take these runs, got: .*'colour'"):
        cluster.reproduce(jobs, on="slurm", results=tmp_path / "r", scratch=tmp_path / "s", resources="colour=red")
