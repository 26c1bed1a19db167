"""The loop: epochs, checkpoints, signals. What a step computes is the method's business."""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from setwise.checks import check_number, see
from setwise.data import ImageSet, MatchedSet
from setwise.locks import Taken, locked
from setwise.losses.parallel import Processes
from setwise.recipe import Recipe, flat
from setwise.training import checkpoint as checkpoints
from setwise.training.checkpoint import Checkpoint
from setwise.training.engine import Engine
from setwise.training.errors import Interrupted, TrainingError, out_of_memory
from setwise.training.loggers import ALWAYS, Metrics
from setwise.training.progress import Reporter
from setwise.training.surroundings import same, surroundings

AfterEpoch = Callable[[Engine, list[dict[str, Any]]], dict[str, Any]]

ALONE = Processes()
LOOK_SECONDS = 0.5  # between looks at the loss, which wait for the device
AGREE_STEPS = 20  # between questions whether another process was told to stop
# A terminal's Ctrl-C goes to every process of a command, and whoever started others (torchrun, reproduce) passes it on.
ONE_SIGNAL_SECONDS = 1.0
FILE = "checkpoint.safetensors"


def stopping_signals() -> list[int]:
    """Signals that stop a run; not a lost terminal's where it is to be ignored (nohup), or where there is none."""
    found: list[int] = [signal.SIGINT, signal.SIGTERM]
    hangup = getattr(signal, "SIGHUP", None)
    if hangup is not None and signal.getsignal(hangup) is not signal.SIG_IGN:
        found.append(hangup)
    return found


class _Signals:
    """SIGINT, SIGTERM and SIGHUP as something to look at between steps; another one, later, is obeyed at once."""

    def __init__(self) -> None:
        self.seen = 0
        self._when = 0.0
        self._old: dict[int, Any] = {}

    def __enter__(self) -> _Signals:
        if threading.current_thread() is threading.main_thread():  # elsewhere their owner has them
            self._old = {number: signal.signal(number, self._note) for number in stopping_signals()}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if not self.seen:
            self.seen, self._when = number, now
        elif now - self._when > ONE_SIGNAL_SECONDS:
            raise KeyboardInterrupt


@dataclass(frozen=True)
class How:
    """How a run is carried out, which changes nothing of its outcome but rounding: where, and what is written."""

    device: torch.device
    resume: bool = False  # go on from the folder's checkpoint, if there is one
    processes: Processes = ALONE
    capture: bool = True  # steps as CUDA graphs, on a GPU
    checkpoint_seconds: float = 60.0  # between checkpoints
    loggers: tuple[str, ...] = ()  # beside those that are always there
    quiet: bool = False


def train(
    recipe: Recipe,
    data: ImageSet | MatchedSet,
    folder: Path,
    *,
    seed: int,
    how: How,
    title: str = "training",
    encoder: dict[str, Tensor] | None = None,
    after_epoch: AfterEpoch | None = None,
) -> tuple[Engine, Checkpoint]:
    """Train, or go on training, in a folder of its own; the engine and the last checkpoint.

    A checkpoint is written at intervals, when a signal asks to stop, and at the end. A run that is resumed ends as if
    it had never stopped: on a CPU with the same bits. ``encoder``: weights to start from, for fine-tuning.
    ``after_epoch`` measures more after each epoch: for its row, numbers or what only files of JSON can take.
    """
    first = how.processes.first
    check_number(how.checkpoint_seconds, "checkpoint_seconds", least=0)
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder, how.processes):
        if first:
            checkpoints.remove_unfinished(folder / FILE)
        found = _found(folder / FILE, recipe, seed, about(data), how.resume)
        engine = Engine(recipe, data, seed=seed, device=how.device, processes=how.processes, capture=how.capture)
        if encoder is not None:
            if not isinstance(encoder, dict):
                raise ValueError(
                    f"expected encoder to be weights, a state_dict of the recipe's {recipe.encoder.name}, got "
                    f"{type(encoder).__name__}; a network of your own goes into a loop of your own, "
                    + see("how-to/your-method#your-network")
                )
            engine.method.encoder.load_state_dict(encoder)
        if found is not None:
            engine.restore(found.tensors)
        history = [] if found is None else found.history
        metrics = Metrics(folder, history, (*ALWAYS, *how.loggers) if first else ())
        quiet = how.quiet or not first
        with Reporter(title, epochs=recipe.epochs, images=len(data), quiet=quiet) as reporter, metrics:
            run = _Run(engine, folder / FILE, metrics, reporter, how.checkpoint_seconds, after_epoch)
            return engine, run.all(found)


@dataclass
class _Run:
    """A run under way."""

    engine: Engine
    path: Path
    metrics: Metrics
    reporter: Reporter
    checkpoint_seconds: float
    after_epoch: AfterEpoch | None
    sittings: list[dict[str, Any]] = field(default_factory=list)
    began: float = 0.0
    saved: float = 0.0
    looked: float = 0.0

    def all(self, found: Checkpoint | None) -> Checkpoint:
        """Every epoch that is left."""
        epochs = self.engine.recipe.epochs
        if found is not None and found.epoch == epochs:
            return found
        self.began = time.perf_counter() - (0.0 if found is None else found.seconds)
        self.saved = time.monotonic()
        first, step = (0, 0) if found is None else (found.epoch, found.step)
        here = surroundings(self.engine.device)
        before = [] if found is None else found.sittings or [{"epoch": 1}]  # older checkpoints do not say
        self.sittings = before if before and same(before[-1], here) else [*before, {"epoch": first + 1, **here}]
        with _Signals() as signals:
            for epoch in range(first, epochs):
                self.epoch(epoch, step if epoch == first else 0, signals)
        return self.save(epochs, 0)

    def epoch(self, epoch: int, first: int, signals: _Signals) -> None:
        """One epoch, from its step ``first``."""
        engine, began = self.engine, time.perf_counter()
        engine.begin(epoch, first)
        for turn in range(first, engine.steps):
            with _explained(engine):
                engine.step()
            if turn + 1 == engine.steps:
                break  # the epoch's metrics come first
            # Processes have to agree, and asking costs a message.
            if engine.processes.size == 1 or turn % AGREE_STEPS == 0:
                self.look(epoch, turn + 1, signals)
        means, seconds = engine.means(), time.perf_counter() - began
        row = {"epoch": epoch + 1, **means, "lr": engine.last_rate, "seconds": seconds}
        row["images_per_second"] = sum(engine.sizes[first:]) / seconds
        self.metrics.add(row if self.after_epoch is None else row | self.after_epoch(engine, self.metrics.history))
        self.reporter.update(epoch + 1, means, force=epoch + 1 == engine.recipe.epochs)
        self.look(epoch + 1, 0, signals)

    def look(self, epoch: int, step: int, signals: _Signals) -> None:
        """Between steps: stop if asked, show the loss, write a checkpoint if it is time."""
        engine, now = self.engine, time.monotonic()
        stop = engine.processes.largest(signals.seen, engine.device)
        if stop:
            self.save(epoch, step)
            name = signal.Signals(stop).name
            raise Interrupted(
                stop,
                f"stopped by {name} after writing {self.path}; the same command, with --resume where it has one, "
                "goes on",
            )
        if step and now - self.looked >= LOOK_SECONDS and engine.processes.size == 1:
            self.looked = now
            self.reporter.update(epoch + step / engine.steps, engine.means())
        if engine.processes.largest(int(now - self.saved >= self.checkpoint_seconds), engine.device):
            self.save(epoch, step)
            self.saved = time.monotonic()

    def save(self, epoch: int, step: int) -> Checkpoint:
        """Write the checkpoint after ``step`` steps of ``epoch``."""
        engine = self.engine
        engine.means()  # a diverged run must not replace a good checkpoint
        engine.check_weights()
        now = Checkpoint(
            recipe=engine.recipe,
            seed=engine.seed,
            epoch=epoch,
            step=step,
            history=list(self.metrics.history),
            tensors=engine.tensors(),
            data=about(engine.data),
            seconds=time.perf_counter() - self.began,
            sittings=self.sittings,
        )
        if engine.processes.first:
            checkpoints.save(self.path, now)
        return now


@contextlib.contextmanager
def _explained(engine: Engine) -> Iterator[None]:
    """What a step can die of, as a person would say it."""
    where = f"epoch {engine.epoch + 1}, step {engine.step_in_epoch + 1} of {engine.steps}"
    try:
        yield
    except ValueError as error:  # the losses look at their input where that is free
        hint = "; what was written before is intact, a lower lr may help" if "finite" in str(error) else ""
        raise TrainingError(f"{where}: {error}{hint}") from error
    except RuntimeError as error:
        if out_of_memory(error):
            raise TrainingError(
                f"{where}: out of memory ({str(error).splitlines()[0]}); what was written before is "
                f"intact, a batch below {engine.recipe.batch} needs less, {see('how-to/errors#space')}"
            ) from error
        raise


@contextlib.contextmanager
def _locked(folder: Path, processes: Processes) -> Iterator[None]:
    """Keep a second run out of the folder."""
    if not processes.first:
        yield
        return
    try:
        with locked(folder / ".lock", option="--out (reproduce: --scratch)"):
            yield
    except Taken as error:
        raise ValueError(
            f"expected {folder} for this run alone, but {error}; give another --out, {see('how-to/errors#resume')}"
        ) from error


def about(data: ImageSet | MatchedSet) -> dict[str, Any]:
    """What a checkpoint says of the data that it was trained on."""
    return {
        "name": data.name,
        "count": len(data),
        "shape": list(data.images.shape[1:]),
        "mean": list(data.mean),
        "std": list(data.std),
        "classes": list(data.classes) if isinstance(data, ImageSet) else [],
    }


def check_same_data(theirs: dict[str, Any], mine: dict[str, Any], whose: str, advice: str) -> None:
    """Raise unless both, as ``about`` gives them, are of the same data."""
    different = [name for name, value in mine.items() if not _alike(theirs.get(name, value), value)]
    if different:
        began, got = (
            f"{d.get('count', 'some')} of {' x '.join(map(str, d.get('shape', '?')))}" for d in (theirs, mine)
        )
        raise ValueError(
            f"expected the data that {whose} ({began}), got others ({got}; their {', '.join(different)} differ); "
            + advice
        )


def _alike(theirs: object, mine: object) -> bool:
    """Whether both say the same of the data; means and deviations up to rounding, which the threads decide."""
    if isinstance(theirs, list) and isinstance(mine, list) and len(theirs) == len(mine):
        return all(map(_alike, theirs, mine))
    if isinstance(theirs, float) and isinstance(mine, float):
        return math.isclose(theirs, mine, rel_tol=1e-9)
    return theirs == mine


def _found(path: Path, recipe: Recipe, seed: int, data: dict[str, Any], resume: bool) -> Checkpoint | None:
    """The checkpoint to go on from, checked to be of this run."""
    if not path.exists():
        return None
    if not resume:
        raise ValueError(
            f"expected no run in {path.parent}, got {path.name} there; "
            f"add --resume to go on with it, or give another --out, {see('how-to/errors#resume')}"
        )
    found = checkpoints.load(path)
    mine, theirs = (flat(one.tree()) | {"seed": n} for one, n in ((recipe, seed), (found.recipe, found.seed)))
    different = [
        f"{name} {theirs.get(name)!r}, not {mine.get(name)!r}"
        for name in (mine | theirs)
        if name != "about" and mine.get(name) != theirs.get(name)
    ]
    if different:
        raise ValueError(
            f"expected the checkpoint {path} to be of this run, but it has {'; '.join(different)}; "
            f"remove {path.parent} to begin anew, or give another place, {see('how-to/errors#resume')}"
        )
    advice = f"give another --out, {see('how-to/errors#resume')}"
    check_same_data(found.data, data, f"the run in {path.parent} began with", advice)
    return found
