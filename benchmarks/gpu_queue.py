"""A queue of commands for a machine that may be gone at any moment: each has a limit, and what is made is packed.

A job that measures time runs alone; those that may run ``beside`` others share the cores, and the GPU by NVIDIA's MPS.
What jobs leave lies below one folder, OUT. OUT/all.tar.gz is replaced as a whole, after each job and each minute.
"""

from __future__ import annotations

import fcntl
import filecmp
import io
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ARCHIVE, PROGRESS, RESULTS, SCRATCH = "all.tar.gz", "progress.txt", "results", "scratch"
TIMES = 2.0  # the expected seconds, which a job may take
GRACE = 20.0  # seconds for a checkpoint, from the first signal to the last
PACKED = 60.0  # seconds between archives
TICK = 0.1
MPS = "nvidia-cuda-mps-control"


@dataclass(frozen=True)
class Job:
    """One command. ``{data}``, ``{out}`` and ``{gpu}`` stand for DATA, OUT and the GPU's name in words and leaves."""

    name: str
    about: str  # what it is for
    command: tuple[str, ...]  # the words after "python"
    seconds: float  # what it is expected to take
    basis: str = "a guess"  # where the seconds come from
    leaves: tuple[str, ...] = ()  # files below OUT; all are there when the job is complete
    left: Callable[[Path], float | None] | None = None  # seconds still to go in OUT, 0 if complete; None: not known
    piece: float | None = None  # what it makes stays if it is stopped, so it is worth starting for so many seconds
    beside: bool = False  # whether others may run at the same time
    cores: int = 1  # that it uses, if others may
    data: tuple[str, ...] = ()  # folders below DATA that it reads

    def filled(self, names: dict[str, str]) -> list[str]:
        """The words after "python"."""
        return [word.format(**names) for word in self.command]

    def to_go(self, out: Path, names: dict[str, str]) -> float:
        """Seconds that it is expected to take from now on, 0 if it is complete."""
        if self.left is not None:
            try:
                left = self.left(out)
            except Exception:  # records that are broken, or not there yet; the job itself will say so
                left = None
            return self.seconds if left is None else left
        there = [(out / leaf.format(**names)).exists() for leaf in self.leaves]
        return 0.0 if there and all(there) else self.seconds


def variables() -> dict[str, str]:
    """The environment of a command: this repository's package, and no line held back."""
    path = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
    return os.environ | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}


def listen() -> None:
    """Let the first signal reach a job: what a shell starts by "&" ignores it, and so would all that it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Running:
    """A job's processes."""

    def __init__(self, job: Job, words: Sequence[str], out: Path, limit: float, keep_open: int) -> None:
        self.job, self.began, self.limit = job, time.monotonic(), limit
        self.stopped: float | None = None  # when it had its first signal
        log = out / "logs" / f"{job.name}.txt"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                [sys.executable, *words],
                cwd=ROOT,
                env=variables() | ({"OMP_NUM_THREADS": "1"} if job.beside else {}),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a group of its own, which signals reach as a whole
                pass_fds=(keep_open,),
                preexec_fn=listen,
            )

    def signal(self, number: int) -> None:
        """Send a signal to the whole group."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def ended(self) -> bool:
        """Whether it has ended; one over its limit is stopped, softly at first."""
        now = time.monotonic()
        if self.process.poll() is not None:
            self.signal(signal.SIGKILL)  # children that it left
            return True
        if self.stopped is None and now > self.began + self.limit:
            self.stopped = now
            self.signal(signal.SIGINT)
        elif self.stopped is not None and now > self.stopped + GRACE:
            self.signal(signal.SIGKILL)
        return False

    def line(self) -> str:
        """What became of it."""
        seconds, code = time.monotonic() - self.began, self.process.returncode
        return f"{self.job.name}  {seconds:.1f} s  exit code {code}{'' if self.stopped is None else ', stopped'}"


@contextmanager
def own(out: Path) -> Iterator[int]:
    """OUT belongs to this process, and to its jobs if they outlive it; gives the lock's file, open."""
    out.mkdir(parents=True, exist_ok=True)
    with (out / "queue.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(
                f"expected a folder where nobody is at work, got {out}: another call, or a job that a killed one left; "
                "wait for its end"
            ) from error
        yield file.fileno()


def seed(out: Path, given: Path) -> None:
    """Copy records that OUT lacks into it: what is there is not made again, and later jobs read earlier records."""
    (out / RESULTS).mkdir(parents=True, exist_ok=True)
    for path in (path for path in given.rglob("*") if path.is_file() and path.suffix != ".lock"):
        copy = out / RESULTS / path.relative_to(given)
        if not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, copy)


def pack(out: Path, given: Path) -> None:
    """Replace the archive: all of OUT but its scratch, and results that were given."""
    part = out / f"{ARCHIVE}.part"
    with tarfile.open(part, "w:gz", compresslevel=6) as archive:
        for folder, folders, files in os.walk(out):
            folders[:] = sorted(set(folders) - {SCRATCH})
            for path in (Path(folder, name) for name in sorted(files)):
                name = path.relative_to(out)
                if name.name.startswith(ARCHIVE) or name.suffix == ".lock":
                    continue
                with suppress(FileNotFoundError):  # a job has just removed it
                    before = given / name.relative_to(RESULTS) if name.parts[0] == RESULTS else None
                    if before is not None and before.exists() and filecmp.cmp(path, before):
                        continue
                    content = path.read_bytes()  # first of all: a job may be writing to it
                    entry = tarfile.TarInfo(name.as_posix())
                    entry.size, entry.mtime = len(content), int(path.stat().st_mtime)
                    archive.addfile(entry, io.BytesIO(content))
    with part.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(part, out / ARCHIVE)


def share_gpu(on: bool) -> None:
    """Start NVIDIA's MPS, or end it, where it is installed."""
    if shutil.which(MPS):
        with suppress(subprocess.SubprocessError):
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}  # a pipe would wait for the daemon
            subprocess.run([MPS, "-d"] if on else [MPS], input=b"" if on else b"quit\n", timeout=GRACE, **quiet)


def work(
    jobs: Sequence[Job], out: Path, given: Path, *, names: dict[str, str], until: float, cores: int, lock: int
) -> None:
    """Run the jobs, in their order, as far as they fit into the time ``until`` (of ``time.monotonic``)."""
    waiting, running, shared, packed = list(jobs), list[Running](), False, time.monotonic()

    def tell(line: str) -> None:
        print(line, flush=True)
        with (out / PROGRESS).open("a") as file:
            file.write(line + "\n")

    def reap() -> None:
        nonlocal packed
        ended = [one for one in running if one.ended()]
        for one in ended:
            running.remove(one)
            for leaf in one.job.leaves if one.stopped is not None else ():  # not whole, but kept
                with suppress(FileNotFoundError):
                    path = out / leaf.format(**names)
                    path.replace(f"{path}.partial")
            tell(one.line())
        if ended or time.monotonic() > packed + PACKED:
            pack(out, given)
            packed = time.monotonic()

    def begin() -> bool:
        """Start the next job, or pass it over; False if it has to wait for those that run."""
        nonlocal shared
        job = waiting[0]
        used = sum(min(one.job.cores, cores) for one in running)
        if running and not (job.beside and running[0].job.beside and used + min(job.cores, cores) <= cores):
            return False
        waiting.remove(job)
        expected, left = job.to_go(out, names), until - time.monotonic()
        if expected == 0:
            print(f"{job.name}  complete", flush=True)
        elif min(expected, job.piece or expected) > left:
            tell(f"{job.name}  not started: {min(expected, job.piece or expected):.0f} s do not fit into {left:.0f} s")
        else:
            if shared != job.beside:
                share_gpu(shared := job.beside)
            running.append(Running(job, job.filled(names), out, min(TIMES * expected, left), lock))
        return True

    try:
        pack(out, given)
        while waiting or running:
            reap()
            while waiting and begin():
                pass
            time.sleep(TICK)
    finally:
        for one in running:  # this process has been stopped
            one.limit = 0.0
        while running:
            reap()
            time.sleep(TICK)
        if shared:
            share_gpu(False)
        pack(out, given)
