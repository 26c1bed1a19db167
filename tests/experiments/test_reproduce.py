"""Many runs: what a table expands to, what is skipped, two workers at once, what fails."""

import json
import os
import re
import signal
import threading
from dataclasses import replace
from multiprocessing.context import SpawnProcess
from pathlib import Path

import pytest
import torch
from filelock import FileLock, Timeout

from setwise.cli import main
from setwise.data import load
from setwise.experiments import records
from setwise.experiments import reproduce as module
from setwise.experiments.jobs import Job, expand
from setwise.experiments.matching import run_matching
from setwise.experiments.recipes import recipe as find
from setwise.experiments.reproduce import IMAGES, estimate, listing, reproduce, work
from setwise.experiments.runs import splits
from setwise.training.checkpoint import write_text
from setwise.training.errors import Interrupted

CPU = torch.device("cpu")


def quick(jobs: list[Job]) -> list[Job]:
    return [replace(job, recipe=replace(job.recipe, epochs=1, instances=100, batch=32)) for job in jobs]


def test_table_1_has_all_rows_and_more_seeds_of_infonce():
    jobs = expand("table1", data="cifar10", seeds=(1, 2, 3))
    names = {job.name for job in jobs}
    for loss in ("triplet", "infonce", "nt-logistic", "sparseclr"):
        for name in (f"paper/cifar10-matching-{loss}", f"paper/cifar10-matching-{loss}-qare"):
            assert sorted(job.seed for job in jobs if job.name == name) == list(
                range(1, 11 if loss == "infonce" else 4)
            )
        assert f"setwise/cifar10-matching-{loss}-gap" in names
        assert f"setwise/cifar10-matching-{loss}-control" in names
    assert len({job.record(records.Path("x")) for job in jobs}) == len(jobs)
    assert {job.seed for job in expand("table1", data="cifar10", seeds=(1,))} == {1}, "what was asked for, no more"
    large = expand("table1", data="cifar10", seeds=(1,), instances=10_000, only=("triplet",))
    assert {job.recipe.instances for job in large} == {10_000}
    assert not {job.record(records.Path("x")) for job in large} & {job.record(records.Path("x")) for job in jobs}


def test_the_other_tables_and_the_time_they_take(tmp_path):
    names = {job.name for job in expand("table2", data="cifar10")} | {
        job.name for job in expand("table3", data="cifar10")
    }
    assert len(names) == 2 * 2 * 9  # forms, encoders, methods
    beta = expand("fig-beta", data="cifar10", seeds=(1, 2, 3))
    assert sorted({job.recipe.beta for job in beta}) == [i / 8 for i in range(16)]
    assert len(beta) == 2 * 16 * 3
    for data in ("cifar10", "cifar100", "tiny-imagenet"):  # each has weights of its own
        whole = expand(("table2", "table3", "fig-beta", "shortfall", "ablation"), data=data)
        assert len({(job.recipe, job.seed) for job in whole}) == len(whole), "no run is made under two names"
    ablation = expand("ablation", data="cifar10")
    for job in ablation:
        assert (job.recipe.validation, job.recipe.encoder) == (5000, "conv4")
        kind, weight = job.variant.removeprefix("validation").strip("-"), job.recipe.beta
        loss = {"": "released/simclr", "clamp-qare": "released/simclr-qare"}
        kind = kind if weight is None else kind.removesuffix(f"-{weight:g}")
        assert job.recipe.loss == loss.get(kind, f"ablation/simclr-{kind}")
    assert {job.seed for job in ablation} == {1, 2, 3, 4, 5}
    assert len({job.recipe for job in ablation}) == len(ablation) / 5, "no recipe under two names"
    both = expand(("table2", "table3"), data="cifar10")
    assert {job.name for job in both} == names
    controls = [job for job in both if job.variant == "beta-0"]
    assert {job.name for job in controls} == {f"released/cifar10-{x}-sparseclr-qare" for x in ("conv4", "resnet32")}
    assert {job.recipe.beta for job in controls} == {0.0}
    assert len(both) == 3 * (len(names) + 2), "what two tables share is run once"
    assert [job.seed for job in both[: 3 * 28]] == [1] * 28 + [2] * 28 + [3] * 28, "the first table first"
    with pytest.raises(ValueError, match="expected runs with 'conv5' in their name, got none"):
        expand("table2", only=("conv4", "conv5"))
    jobs = expand("table2", data="cifar10", seeds=(1,), only=("conv4-simclr",))
    assert estimate(jobs, tmp_path) == [None] * 4
    assert listing(jobs, tmp_path)[-1] == "4 of 4 runs to make"
    row = {"recipe": "paper/cifar10-conv4-simclr-qare", "setwise_ms": 0.5}
    (tmp_path / "bench-step-x.json").write_text(json.dumps({"encoders": {"conv4": row}}))
    assert estimate(jobs, tmp_path) == pytest.approx([200 * 391 * 0.5e-3] * 4)
    assert estimate(expand("table2", data="cifar10", only=("conv4-random",)), tmp_path) == [0] * 6
    others = expand("table2", data="cifar10", seeds=(1,), only=("paper/cifar10-conv4-deepinfomax", "conv4-rotation"))
    assert [job.recipe.method for job in others] == ["rotation", "rotation", "deepinfomax"]
    assert estimate(others, tmp_path) == [None] * 3, "another method takes another time"
    row["methods"] = {"paper/cifar10-conv4-deepinfomax": 0.7, "paper/cifar10-conv4-rotation": 0.25}  # an epoch
    (tmp_path / "bench-step-x.json").write_text(json.dumps({"encoders": {"conv4": row}}))
    assert estimate(others, tmp_path) == pytest.approx([200 * 0.25] * 2 + [200 * 0.7])
    assert estimate(ablation[:1], tmp_path) == pytest.approx([200 * 352 * 0.5e-3]), "5,000 images are kept apart"
    assert IMAGES["digits"][0] == len(load("digits"))
    tiny = expand("table2", data="tiny-imagenet", seeds=(1,), only=("conv4-simclr",))
    assert estimate(tiny, tmp_path) == pytest.approx([4 * 200 * 782 * 0.5e-3] * 4)
    halves = expand("table1", data="cifar10", seeds=(1,), instances=10_000, only=("paper/cifar10-matching-triplet/",))
    assert estimate(halves, tmp_path) == [None]
    for i, words in enumerate(("{", "[]", '{"encoders": {"x": {"recipe": "gone", "setwise_ms": 1}}}')):
        (tmp_path / f"bench-step-bad{i}.json").write_text(words)
    assert estimate(halves, tmp_path) == [None]
    with pytest.raises(ValueError, match="expected no instances for cuhk03"):
        expand("table1", data="cuhk03", instances=100)
    with pytest.raises(ValueError, match="expected data of table1 to be one of 'cuhk03', .*, got 'photos'"):
        expand("table1", data="photos")
    with pytest.raises(ValueError, match="expected data of table1 to be one of .*, got 'tiny-imagenet'"):
        expand(("table2", "table1"), data="tiny-imagenet")
    with pytest.raises(ValueError, match="expected data of table3 to be one of .*'tiny-imagenet', got 'cuhk03'"):
        expand("table3", data="cuhk03")
    with pytest.raises(ValueError, match="expected at least one seed, got none"):
        expand("table1", seeds=())
    with pytest.raises(ValueError, match="expected at_once"):
        reproduce(halves, results=tmp_path, scratch=tmp_path, device=CPU, at_once=0)
    said = listing([*jobs, *halves], tmp_path)
    assert said[0] == f"{jobs[0].record(tmp_path)}  39 s"
    assert said[-1] == "5 of 5 runs to make, 3 minutes of training one after the other, 1 of them not measured"
    row = {"recipe": "paper/cifar10-matching-infonce-qare", "setwise_ms": 3.0}
    (tmp_path / "bench-step-y.json").write_text(json.dumps({"encoders": {"matching": row}}))
    assert estimate(halves, tmp_path) == pytest.approx([50 * (7000 // 128) * 3e-3])


def test_the_best_of_an_ablation_is_confirmed_on_fresh_seeds(tmp_path, keep):
    name = "released/cifar10-conv4-simclr"
    with pytest.raises(
        ValueError, match="expected records of `setwise reproduce ablation --data cifar10` below .*, got none"
    ):
        expand("confirm", results=tmp_path / "results")
    gains = {"": 0.0, "mean": 0.03, "cold": -0.1, "gap": 0.02, "noshift": 0.01}
    for word, gain in gains.items():
        changes = {"loss": f"ablation/simclr-{word}"} if word else {}
        changes |= {"beta": 10.0} if word in ("gap", "noshift") else {}
        for seed in (1, 2):
            final = {"probe_accuracy": 0.5 + gain + seed / 1000}
            keep(name, seed, final, variant=f"validation-{word}", validation=5000, **changes)
    for seed in (1, 2):  # of another length: what is best there is not what the whole recipe is confirmed with
        for word, accuracy in (("", 0.3), ("cold", 0.4 + seed / 1000)):
            changes = {"loss": f"ablation/simclr-{word}"} if word else {}
            final, short = {"probe_accuracy": accuracy}, {"epochs": 4, "validation": 5000}
            keep(name, seed, final, variant=f"short-{word}", **short, **changes)
    jobs = expand("confirm", seeds=(1, 2), results=tmp_path / "results")
    found = {(job.recipe.encoder, job.recipe.loss, job.recipe.beta) for job in jobs}
    losses = {("released/simclr", None), ("ablation/simclr-mean", None), ("ablation/simclr-gap", 10.0)}
    assert found == {(encoder, *loss) for encoder in ("conv4", "resnet32") for loss in losses}
    seeds = {encoder: {job.seed for job in jobs if job.recipe.encoder == encoder} for encoder in ("conv4", "resnet32")}
    assert seeds == {"conv4": {11, 12}, "resnet32": {1, 2}}, "no run of ResNet-32 has chosen anything"
    assert {job.recipe.validation for job in jobs} == {0}
    assert len({job.record(tmp_path) for job in jobs}) == len(jobs) == 12
    with pytest.raises(ValueError, match="expected records of `setwise reproduce ablation --data cifar100` below"):
        expand("confirm", data="cifar100", results=tmp_path / "results")


def test_what_could_keep_resnet32_below_the_paper():
    jobs = expand("shortfall", seeds=(1,))
    plain = find("released/cifar10-resnet32-simclr")
    assert jobs[0].recipe == plain
    different = [
        [key for key, value in job.recipe.as_json().items() if value != plain.as_json()[key]] for job in jobs[1:]
    ]
    assert [set(names) for names in different] == [
        {"loss"},
        {"epochs"},
        *({"epochs", name} for name in ("loss", "initial", "drop_last", "views")),
        *({"epochs"}, {"epochs", "precision"}),
    ]
    assert {job.recipe.epochs for job in jobs} == {200, 50, 20}


def test_choosing_on_a_part_of_the_training_set():
    kept = replace(find("released/digits-conv4-simclr"), validation=100)
    train, test = splits(kept, None)
    whole, _ = splits(find("released/digits-conv4-simclr"), None)
    assert (len(train), len(test)) == (1197, 100)
    assert torch.equal(torch.cat([train.images, test.images]).long().sum((0, 1)), whole.images.long().sum((0, 1)))
    again, _ = splits(kept, None)
    assert torch.equal(train.labels, again.labels)
    with pytest.raises(ValueError, match="expected validation below the 1297 images, got 1297"):
        splits(replace(kept, validation=1297), None)


def test_what_is_there_is_not_run_again(tmp_path, capfd):
    jobs = quick(expand("table1", data="digits", seeds=(1,), only=("paper/digits-matching-triplet",)))
    assert len(jobs) == 2
    assert reproduce(jobs, results=tmp_path / "r", scratch=tmp_path / "s", device=CPU) == 0
    first = capfd.readouterr().out
    assert first.count("seed 1:") == 2
    found = [records.read(job.record(tmp_path / "r")) for job in jobs]
    assert [record["name"] for record in found] == [job.name for job in jobs]
    assert reproduce(jobs, results=tmp_path / "r", scratch=tmp_path / "s", device=CPU) == 0
    assert "seed 1:" not in capfd.readouterr().out
    assert not list((tmp_path / "r").rglob("*.lock"))


def test_what_another_worker_is_at_is_left_to_it(tmp_path):
    jobs = quick(expand("table1", data="digits", seeds=(1,), only=("paper/digits-matching-triplet",)))
    path = jobs[0].record(tmp_path)
    path.parent.mkdir(parents=True)
    with FileLock(path.with_suffix(".lock")):
        assert work(jobs, tmp_path, tmp_path / "s", CPU, None) == []
    assert [job.record(tmp_path).exists() for job in jobs] == [False, True]


def test_a_run_that_fails_is_told_and_the_others_go_on(tmp_path, capfd):
    jobs = quick(expand("table1", data="digits", seeds=(1,), only=("paper/digits-matching-triplet",)))
    jobs[0] = replace(jobs[0], recipe=replace(jobs[0].recipe, data="nowhere"))
    failed = work(jobs, tmp_path, tmp_path / "s", CPU, None)
    assert len(failed) == 1
    assert "got 'nowhere'" in failed[0]
    assert "failed: paper/digits-matching-triplet" in capfd.readouterr().err
    assert [job.record(tmp_path).exists() for job in jobs] == [False, True]
    # Other workers leave it alone; the same command tries it again.
    assert work(jobs, tmp_path, tmp_path / "s", CPU, None) == []
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


def test_a_failure_is_told_before_the_run_is_let_go(tmp_path, monkeypatch):
    (job, *_) = quick(expand("table1", data="digits", seeds=(1,), only=("paper/digits-matching-triplet",)))
    job = replace(job, recipe=replace(job.recipe, data="nowhere"))
    lock = job.record(tmp_path).with_suffix(".lock")
    written = []

    def write(path, text):
        with pytest.raises(Timeout), FileLock(lock, timeout=0):  # whoever else comes finds it locked
            pass
        written.append(path)
        write_text(path, text)

    monkeypatch.setattr(module, "write_text", write)
    assert len(work([job], tmp_path, tmp_path / "s", CPU, None)) == 1
    assert written == list(tmp_path.rglob("*.failed"))


def test_what_another_worker_failed_at_while_this_one_came_is_left_alone(tmp_path, monkeypatch):
    (job, *_) = quick(expand("table1", data="digits", seeds=(1,), only=("paper/digits-matching-triplet",)))

    class Late(FileLock):
        def __enter__(self):
            job.record(tmp_path).with_suffix(".failed").write_text("it failed\n")
            return super().__enter__()

    monkeypatch.setattr(module, "FileLock", Late)
    assert work([job], tmp_path, tmp_path / "s", CPU, None) == []
    assert not job.record(tmp_path).exists()
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


def test_a_worker_that_is_killed_is_told(tmp_path, capfd, monkeypatch):
    jobs = quick(expand("table1", data="digits", seeds=(1,), only=("paper/digits-matching-triplet",)))
    places = {"results": tmp_path / "r", "scratch": tmp_path / "s"}
    with monkeypatch.context() as patch:
        start_and_send(signal.SIGKILL, patch)
        assert reproduce(jobs, **places, device=CPU, at_once=2) == 2
    told = capfd.readouterr().err
    assert told.count("a worker was killed by SIGKILL, out of memory?") == 2
    assert "the same command goes on with it" in told


@pytest.mark.skipif(os.name != "posix", reason="others cannot hold signals back")
def test_a_signal_to_workers_that_are_still_beginning_leaves_no_traceback(tmp_path, capfd, monkeypatch):
    jobs = quick(expand("table1", data="digits", seeds=(1,), only=("paper/digits-matching-triplet",)))
    with monkeypatch.context() as patch:
        start_and_send(signal.SIGINT, patch)
        missing = reproduce(jobs, results=tmp_path / "r", scratch=tmp_path / "s", device=CPU, at_once=2)
    assert missing == len(jobs), "both obeyed"
    assert capfd.readouterr().err == ""
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set(), "and here they come again"


@pytest.mark.parametrize("error", [KeyError("boom"), torch.OutOfMemoryError("CUDA out of memory. boom")])
def test_a_run_may_fail_in_any_way(tmp_path, capfd, monkeypatch, error):
    jobs = quick(expand("table1", data="digits", seeds=(1,), only=("paper/digits-matching-triplet",)))

    def run_of(recipe):
        if recipe == jobs[0].recipe:
            raise error
        return run_matching

    monkeypatch.setattr(module, "run_of", run_of)
    (failed,) = work(jobs, tmp_path, tmp_path / "s", CPU, None)
    assert "boom" in failed
    assert ("KeyError" in failed) == ("Traceback" in capfd.readouterr().err) == isinstance(error, KeyError)
    assert [job.record(tmp_path).exists() for job in jobs] == [False, True]
    assert len(list(tmp_path.rglob("*.failed"))) == 1


def test_a_worker_without_its_gpu_stops(tmp_path, capfd, monkeypatch):
    jobs = quick(expand("table1", data="digits", seeds=(1,), only=("paper/digits-matching-triplet",)))

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
    record = {"format": records.FORMAT, "name": job.name, "recipe": job.recipe.as_json(), "seed": job.seed}
    record["final"] = {"probe_accuracy": 0.5}
    path.write_text(json.dumps(record | changes))
    return path


def test_what_is_not_the_runs_record_does_not_count_as_done(tmp_path):
    first, second, third = expand("table2", data="digits", seeds=(1, 2, 3), only=("paper/digits-conv4-random",))
    recipe = first.recipe.as_json()
    leave_record(first, tmp_path, recipe={key: value for key, value in recipe.items() if key != "split_seed"})
    told = r"2 of 3 runs to make"
    assert re.search(told, listing([first, second, third], tmp_path)[-1]), "a younger field has its default"
    for changes, words in (
        ({"seed": 3}, r"got another's \(seed differ\)"),
        ({"name": "paper/digits-conv4-simclr"}, r"got another's \(name differ\)"),
        ({"recipe": recipe | {"epochs": 3}}, r"got another's \(epochs differ\)"),
        ({"recipe": None}, r"got another's \(method, "),
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
    with pytest.raises(ValueError, match=r"expected a run record at .*seed-2.*\(and 1 more such\); move it away"):
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


def test_a_worker_with_nowhere_to_write_says_so(tmp_path):
    jobs = quick(expand("table1", data="digits", seeds=(1,), only=("paper/digits-matching-triplet",)))
    (tmp_path / "r").touch()
    with pytest.raises(SystemExit, match="setwise: a worker stopped: .*Not a directory"):
        module._worker(1, jobs, tmp_path / "r", tmp_path / "s", CPU, None)


def test_two_at_once(tmp_path):
    jobs = quick(expand("table1", data="digits", seeds=(1, 2), only=("paper/digits-matching-nt-logistic",)))
    assert reproduce(jobs, results=tmp_path / "r", scratch=tmp_path / "s", device=CPU, at_once=2) == 0
    assert {json.loads(job.record(tmp_path / "r").read_text())["seed"] for job in jobs} == {1, 2}


def test_the_command(tmp_path, capsys):
    main(["reproduce", "table1", "--data", "digits", "--dry-run", "--results", str(tmp_path), "--only", "qare"])
    assert "19 of 19 runs to make" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="expected runs with 'nothing' in their name"):
        main(["reproduce", "table1", "--only", "nothing", "--dry-run"])
