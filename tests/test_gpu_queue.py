"""The queue of GPU work, with small jobs in place of its own; and that the commands of its own can start."""

import importlib
import json
import re
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPTS = ROOT / "benchmarks"
ARCHIVE = "all.tar.gz"


@pytest.fixture(autouse=True)
def scripts(monkeypatch):
    """Scripts import each other by name."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(SCRIPTS)):
            del sys.modules[name]


@pytest.fixture
def queue(monkeypatch):
    module = importlib.import_module("gpu_queue")
    monkeypatch.setattr(module, "GRACE", 5.0)
    monkeypatch.setattr(module, "share_gpu", lambda on: None)
    return module


@pytest.fixture
def work(queue, tmp_path):
    """Runs jobs into tmp_path/out; gives the lines of its progress."""

    def run(jobs, *, seconds=60.0, cores=4):
        out, given = tmp_path / "out", tmp_path / "given"
        given.mkdir(exist_ok=True)
        names, until = {"data": "data", "out": str(out), "gpu": "h200"}, time.monotonic() + seconds
        with queue.own(out) as lock:
            queue.seed(out, given)
            queue.work(jobs, out, given, names=names, until=until, cores=cores, lock=lock)
        return (out / "progress.txt").read_text().splitlines()

    return run


@pytest.fixture
def job(queue):
    """A job of some lines of Python, in which OUT is the folder."""

    def make(name, code, *, seconds=30.0, **options):
        code = f"import os, signal, subprocess, sys, time; from pathlib import Path; OUT = Path(sys.argv[1])\n{code}"
        return queue.Job(
            name, "a test", ("-c", code.replace("{", "{{").replace("}", "}}"), "{out}"), seconds, **options
        )

    return make


def members(archive):
    """Names and contents of an archive, read to its end."""
    with tarfile.open(archive) as tar:
        return {entry.name: tar.extractfile(entry).read() for entry in tar}


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_job_over_its_limit_is_killed_with_its_children_and_what_it_made_is_kept(work, job, tmp_path):
    deaf = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print(1, flush=True); time.sleep(99)"
    code = f"""
child = subprocess.Popen([sys.executable, "-c", {deaf!r}], stdout=subprocess.PIPE)
child.stdout.readline()
(OUT / "results/rows.json").write_text(str(child.pid))
(OUT / "results/whole.json").write_text("half of it")
print("so far", flush=True)
time.sleep(99)
"""
    (tmp_path / "out/results").mkdir(parents=True)
    began = time.monotonic()
    leaves = ("results/whole.json",)
    lines = work([job("slow", code, seconds=1.5, leaves=leaves), job("next", "pass", leaves=("none",))])
    assert time.monotonic() - began < 30
    assert re.fullmatch(r"slow  [\d.]+ s  exit code -2, stopped", lines[0])
    assert lines[1].startswith("next  ")
    kept = members(tmp_path / "out" / ARCHIVE)
    assert kept["results/whole.json.partial"] == b"half of it"
    assert "results/whole.json" not in kept, "it would count as complete"
    assert kept["logs/slow.txt"].startswith(b"so far")
    assert not alive(int(kept["results/rows.json"]))


def test_a_job_hears_the_first_signal_also_where_a_shell_made_us_deaf_to_it(work, job):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert re.fullmatch(
            r"slow  [\d.]+ s  exit code -2, stopped", work([job("slow", "time.sleep(99)", seconds=1.0)])[0]
        )
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_job_that_ignores_the_first_signal_is_killed(work, job):
    code = "signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(99)"
    assert re.fullmatch(r"deaf  [\d.]+ s  exit code -9, stopped", work([job("deaf", code, seconds=1.0)])[0])


def test_a_job_has_time_to_end_well(work, job, tmp_path):
    code = """
try:
    time.sleep(99)
except KeyboardInterrupt:
    (OUT / "checkpoint").write_text("here")
"""
    assert work([job("soft", code, seconds=1.0)])[0].endswith("exit code 0, stopped")
    assert members(tmp_path / "out" / ARCHIVE)["checkpoint"] == b"here"


def test_failures_and_jobs_that_do_not_fit_stop_no_other(work, job):
    jobs = [
        job("broken", "sys.exit(3)"),
        job("long", "pass", seconds=1000),
        job("in pieces", "pass", seconds=1000, piece=5.0),
        job("short", "pass", seconds=5),
    ]
    lines = work(jobs, seconds=60)
    assert [line.split("  ")[0] for line in lines] == ["broken", "long", "in pieces", "short"]
    assert "exit code 3" in lines[0]
    assert re.fullmatch(r"long  not started: 1000 s do not fit into \d+ s", lines[1])
    assert all(line.endswith("exit code 0") for line in lines[2:])


def test_no_job_goes_on_after_the_end(work, job):
    began = time.monotonic()
    (line,) = work([job("in pieces", "time.sleep(99)", seconds=1000, piece=1.0)], seconds=2)
    assert line.endswith("stopped")
    assert time.monotonic() - began < 30


def test_what_is_complete_is_not_done_again(work, job, tmp_path):
    (tmp_path / "given").mkdir()
    (tmp_path / "given/before.json").write_text("of another day")
    count = 'path = OUT / "results/count"; path.write_text((path.read_text() if path.exists() else "") + "x")'

    def left(out):
        return 0.0 if len((out / "results/count").read_text()) == 2 else 10.0

    jobs = [
        job("given", "sys.exit(1)", leaves=("results/before.json",)),
        job("once", count, leaves=("results/count",)),
        job("twice", count, left=left),
    ]
    assert [line.split("  ")[0] for line in work(jobs)] == ["once", "twice"]
    assert [line.split("  ")[0] for line in work(jobs)] == ["once", "twice"], "nothing is added"
    assert members(tmp_path / "out" / ARCHIVE)["results/count"] == b"xx"


def test_the_archive_has_what_is_new(work, job, tmp_path):
    (tmp_path / "given/runs").mkdir(parents=True)
    for name in ("same", "changed"):
        (tmp_path / f"given/runs/{name}.json").write_text("before")
    code = """
(OUT / "results/runs/changed.json").write_text("after")
(OUT / "scratch").mkdir()
(OUT / "scratch/large").write_text("left out")
"""
    work([job("one", code)])
    kept = members(tmp_path / "out" / ARCHIVE)
    assert set(kept) == {"results/runs/changed.json", "logs/one.txt", "progress.txt"}
    assert kept["results/runs/changed.json"] == b"after"
    assert (tmp_path / "given/runs/changed.json").read_text() == "before"


def test_jobs_run_beside_each_other_where_they_may_and_alone_where_not(work, job, tmp_path):
    code = """
began = time.time()
time.sleep(0.7)
(OUT / sys.argv[0]).write_text("")
print(began, time.time())
"""
    beside = [job(f"beside-{k}", code, beside=True, cores=2) for k in range(3)]
    work([job("quiet-1", code), *beside, job("quiet-2", code)], cores=4)
    times = {path.stem: [*map(float, path.read_text().split())] for path in (tmp_path / "out/logs").iterdir()}
    overlap = {
        frozenset((a, b))
        for a, (began, _) in times.items()
        for b, (other, ended) in times.items()
        if a != b and other <= began < ended
    }
    assert frozenset(("beside-0", "beside-1")) in overlap
    assert frozenset(("beside-0", "beside-1", "beside-2")) not in overlap
    assert all("quiet" not in name for pair in overlap for name in pair)
    assert times["beside-2"][0] >= min(times["beside-0"][1], times["beside-1"][1]), "four cores, two for each"


KILLED = """
import sys, time
from pathlib import Path
sys.path.insert(0, {scripts!r})
import gpu_queue as queue
queue.PACKED = queue.TICK = 0.0
out = Path(sys.argv[1])
code = "import sys, time; [print(k, flush=True) or open(sys.argv[1], 'wb').write(bytes(range(256)) * 9000)"
code += " or time.sleep(0.01) for k in range(40)]"
files = [f"results/{{k}}" for k in range(9)]
jobs = [queue.Job(file[-1], "", ("-c", code, f"{{out}}/{{file}}"), 9, leaves=(file,)) for file in files]
names = {{"data": "", "out": str(out), "gpu": ""}}
with queue.own(out) as lock:
    (out / "results").mkdir(exist_ok=True)
    queue.work(jobs, out, out / "none", names=names, until=time.monotonic() + 99, cores=2, lock=lock)
"""


def wait_for(condition):
    for _ in range(400):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("waited for 20 s")


def is_free(queue, out):
    try:
        with queue.own(out):
            return True
    except ValueError:
        return False


def test_the_archive_is_whole_whenever_the_queue_is_killed(queue, tmp_path):
    out, archive = tmp_path / "out", tmp_path / "out" / ARCHIVE
    seen = set()

    for turn in range(6):
        before = archive.stat().st_mtime_ns if archive.exists() else 0
        words = [sys.executable, "-c", KILLED.format(scripts=str(SCRIPTS)), str(out)]
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
        wait_for(lambda before=before: archive.exists() and archive.stat().st_mtime_ns > before)
        time.sleep(0.05 + 0.13 * turn)
        process.kill()
        process.wait()
        kept = set(members(archive))
        assert seen <= kept, "nothing is lost"
        seen = kept
        wait_for(lambda: is_free(queue, out))  # the job that outlived it ends by itself
    assert "results/0" in seen


def test_a_job_that_outlives_a_killed_queue_keeps_the_folder(queue, tmp_path):
    code = f"""
import sys, time
from pathlib import Path
sys.path.insert(0, {str(SCRIPTS)!r})
import gpu_queue as queue
out = Path({str(tmp_path / "out")!r})
wait = "import sys; from time import sleep; from pathlib import Path; p = Path(sys.argv[1]); (p / 'began').touch()\\n"
wait += "while not (p / 'end').exists(): sleep(0.05)"
job = queue.Job("waits", "", ("-c", wait, "{{out}}"), 30)
with queue.own(out) as lock:
    queue.work([job], out, out, names={{"out": str(out)}}, until=time.monotonic() + 60, cores=2, lock=lock)
"""
    process = subprocess.Popen([sys.executable, "-c", code])
    wait_for((tmp_path / "out/began").exists)
    process.kill()
    process.wait()
    with pytest.raises(ValueError, match="a job that a killed one left"), queue.own(tmp_path / "out"):
        pass
    (tmp_path / "out/end").touch()
    wait_for(lambda: is_free(queue, tmp_path / "out"))


def test_a_queue_that_is_told_to_stop_stops_its_jobs_and_packs(tmp_path):
    out = tmp_path / "out"
    script = tmp_path / "waits.py"
    script.write_text(f"""
import argparse, time
from pathlib import Path
argparse.ArgumentParser().parse_args()
Path({str(out)!r}, "began").write_text("so far")
time.sleep(99)
""")
    code = f"""
import sys
sys.path.insert(0, {str(SCRIPTS)!r})
import gpu
gpu.gpu_name = lambda: "h200"
jobs = [gpu.Job(name, "", ({str(script)!r},), 60) for name in ("one", "two")]
gpu.main([{str(tmp_path)!r}, {str(out)!r}, "--results", {str(tmp_path / "none")!r}], jobs)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL) as process:
        wait_for((out / "began").exists)
        process.terminate()
    assert process.returncode == 128 + 15
    (line,) = (out / "progress.txt").read_text().splitlines()
    assert re.fullmatch(r"one  \d+\.\d s  exit code -2, stopped", line)
    assert members(out / ARCHIVE)["began"] == b"so far"


def test_two_queues_do_not_share_a_folder(queue, tmp_path):
    with queue.own(tmp_path), pytest.raises(ValueError, match="nobody is at work"), queue.own(tmp_path):
        pass


# --- its own jobs ---


@pytest.fixture
def own_jobs():
    return importlib.import_module("gpu_jobs")


def names(out):
    return {"data": "DATA", "out": str(out), "gpu": "h200"}


def test_the_command_of_every_job_is_taken_by_its_parser(own_jobs, tmp_path):
    parses = importlib.import_module("parses")
    assert len({job.name for job in own_jobs.JOBS}) == len(own_jobs.JOBS)
    for job in own_jobs.JOBS:
        words = job.filled(names(tmp_path))
        if words[:2] == ["-m", "pytest"]:
            continue  # the next test
        parses.parse(words)
        with pytest.raises(SystemExit) as refused:
            parses.parse([*words, "--no-such-option", "1"])
        assert refused.value.code, job.name
    assert not list(tmp_path.iterdir()), "nothing was run"


def test_tests_that_cannot_be_collected_stop_no_others(queue, tmp_path):
    gpu = importlib.import_module("gpu")
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "test_fine.py").write_text("def test_it():\n    raise SystemExit\n")

    def lacks(*options):
        words = ("-m", "pytest", str(tests), *options, "--junitxml={out}/it.xml")
        return gpu.lacks(queue.Job("x", "", words, 1), tmp_path, {"out": str(tmp_path)})

    assert lacks("-q") == ("", True)
    assert lacks("--no-such-option")[1] is False
    (tests / "test_needs.py").write_text("import no_such_package\n\ndef test_it(): pass\n")
    for options in (("-q",), ("-q", "--continue-on-collection-errors")):
        reason, able = lacks(*options)
        assert able
        assert "no_such_package" in reason
    assert not (tmp_path / "it.xml").exists(), "it would look like a result"


def test_a_package_that_training_imports_late_is_missed_early(monkeypatch):
    parses = importlib.import_module("parses")
    monkeypatch.setattr(parses, "find_spec", lambda name: None if name == "sklearn" else name)
    for words in (["-m", "setwise", "speedrun"], [str(SCRIPTS / "sets.py")]):
        with pytest.raises(SystemExit, match="got no sklearn"):
            parses.parse(words)


def test_the_groups_of_gpu_tests_have_all_of_them_once(own_jobs):
    marked = {path for path in (ROOT / "tests").rglob("test_*.py") if re.search(r"\bmark\.gpu\b", path.read_text())}
    found = []
    for words in own_jobs.TESTS.values():
        left_out = {ROOT / word.removeprefix("--ignore=") for word in words if word.startswith("--ignore=")}
        for place in (ROOT / word for word in words if not word.startswith("--")):
            files = [place] if place.is_file() else [*place.rglob("test_*.py")]
            assert files, place
            found += [path for path in files if path in marked and path not in left_out]
    assert sorted(found) == sorted(marked - {Path(__file__)})


def test_what_is_left_follows_from_what_is_there(own_jobs, tmp_path):
    jobs = {job.name: job for job in own_jobs.JOBS}
    results = tmp_path / "results"
    results.mkdir()

    def left(name):
        return jobs[name].to_go(tmp_path, names(tmp_path))

    assert left("large-batches") == 60
    rows = [{"loss": "float16 + qare", "n": 2**20}, {"loss": "qare", "n": 2**20}]
    for found in (rows[1:], rows):
        (results / "bench-large-batches-h200.json").write_text(json.dumps({"rows": found}))
        assert (left("large-batches") == 0) == (found == rows)

    steps = importlib.import_module("resnet18_step")
    everything, ways = left("resnet18-step"), [{"name": way.name} for way in steps.WAYS]
    (results / "bench-resnet18-h200.json").write_text(json.dumps({"ways": ways[:-1]}))
    assert 0 < left("resnet18-step") < everything
    (results / "bench-resnet18-h200.json").write_text(json.dumps({"ways": ways}))
    assert left("resnet18-step") == 0

    study = importlib.import_module("sets_study")
    wanted = [one for one in study.settings("halves") if one.data == "halves"]
    assert len(wanted) == own_jobs.PARTS
    tuned = [f"{one.key}/tuned/seed-{seed}" for one in wanted for seed in study.SEEDS]
    for keys in (tuned[1:], tuned):
        (results / "sets-halves.json").write_text(json.dumps({key: {} for key in keys}))
        assert (left("halves-1") == 0) == (keys == tuned)


def test_runs_are_left_until_their_records_are_there(own_jobs, tmp_path):
    (tmp_path / "results").symlink_to(ROOT / "results")
    options = {"at_once": 1, "speed": 1.0, "piece": 1.0}
    done = own_jobs.runs("done", "", "confirm", 5.0, **options)
    assert done.to_go(tmp_path, names(tmp_path)) == 0
    other = own_jobs.runs(
        "other", "", "fig-beta --only resnet32-simclr-qare/beta-0/ --data tiny-imagenet", 5.0, **options
    )
    assert other.data == (own_jobs.TINY,)
    one, two = (
        own_jobs.runs("x", "", "table2 --data tiny-imagenet --only conv4-simclr/", 5.0, **options | {"speed": speed})
        for speed in (1.0, 2.0)
    )
    alone, shared = (job.to_go(tmp_path, names(tmp_path)) - own_jobs.START for job in (one, two))
    assert alone == pytest.approx(2 * shared)
    assert alone > 100
    (tmp_path / "empty").mkdir()
    assert own_jobs.runs("x", "", "confirm", 5.0, **options).to_go(tmp_path / "empty", {}) == 5.0, "nobody knows"
    (tmp_path / "empty/results").mkdir()
    (tmp_path / "empty/results/bench-large-batches-h200.json").write_text('{"rows": [')
    large = next(job for job in own_jobs.JOBS if job.name == "large-batches")
    assert large.to_go(tmp_path / "empty", names(tmp_path)) == large.seconds


def test_the_table_says_what_a_job_lacks_and_the_others_run(queue, tmp_path, monkeypatch, capsys):
    gpu = importlib.import_module("gpu")
    script = tmp_path / "script.py"
    parser = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--out')\n"
    script.write_text(f"{parser}open(parser.parse_args().out, 'w').write('made')\n")
    (tmp_path / "needs.py").write_text("import no_such_package\n")
    jobs = (
        queue.Job("no-data", "", (str(script),), 60, data=("no-such-folder",)),
        queue.Job("no-package", "", (str(tmp_path / "needs.py"),), 60),
        queue.Job("no-option", "", (str(script), "--ouch"), 60),
        queue.Job("fine", "", (str(script), "--out", "{out}/results/fine"), 60, leaves=("results/fine",)),
    )
    words = [str(tmp_path), str(tmp_path / "out"), "--results", str(tmp_path / "none")]
    monkeypatch.setattr(gpu, "gpu_name", lambda: "")
    monkeypatch.setattr("signal.signal", lambda *_: None)
    gpu.main([*words, "--list"], jobs)
    listed = capsys.readouterr().out.splitlines()
    for line, reason in zip(listed, ("no no-such-folder in", "no_such_package", "--ouch", ""), strict=False):
        assert ("CANNOT RUN" in line) == bool(reason)
        assert reason in line
    assert listed[-1].startswith("1 minutes in all")
    with pytest.raises(SystemExit, match="expected an NVIDIA GPU"):
        gpu.main(words, jobs)  # at once
    assert not (tmp_path / "out/results/fine").exists()
    monkeypatch.setattr(gpu, "gpu_name", lambda: "h200")
    gpu.main(words, jobs)
    assert (tmp_path / "out/results/fine").read_text() == "made"
    assert [line.split("  ")[0] for line in (tmp_path / "out/progress.txt").read_text().splitlines()] == ["fine"]
    capsys.readouterr()
    gpu.main([*words, "--list", "--only", "fi"], jobs)
    assert "complete" in capsys.readouterr().out
