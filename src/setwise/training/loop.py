"""The loop: epochs, checkpoints, signals. What a step computes is the method's business."""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryFile
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from setwise.checks import check_number, see
from setwise.data import ImageSet
from setwise.data.api import Where
from setwise.data.pairs import PairSet, Side, TrainingSet
from setwise.encoders import settled
from setwise.locks import LockTaken, locked
from setwise.losses.parallel import Processes
from setwise.recipe import Recipe, flat
from setwise.training import checkpoint as checkpoints
from setwise.training.checkpoint import Checkpoint
from setwise.training.engine import Engine
from setwise.training.environment import environment
from setwise.training.errors import Interrupted, TrainingError, out_of_memory
from setwise.training.loggers import ALWAYS, Logger, open_loggers
from setwise.training.progress import Reporter

AfterEpoch = Callable[[Engine, list[dict[str, Any]]], dict[str, Any]]

LOOK_SECONDS = 0.5  # between looks at the loss, which wait for the device
AGREE_STEPS = 20  # between questions whether another process got a signal
# A terminal's Ctrl-C goes to every process of a command, and torchrun and `reproduce` pass it on to their processes.
ONE_SIGNAL_SECONDS = 1.0
FILE = "checkpoint.safetensors"


def stopping_signals() -> list[int]:
    """The signals that stop a run. SIGHUP is not one of them under nohup, or where the system has none."""
    hangup = getattr(signal, "SIGHUP", None)
    stopping: list[int] = [signal.SIGINT, signal.SIGTERM]
    return stopping if hangup is None or signal.getsignal(hangup) is signal.SIG_IGN else [*stopping, hangup]


class Signals:
    """Notes the first signal to stop, for the loop to look at between steps; a later one stops the run at once."""

    seen = 0
    _when = 0.0

    def __enter__(self) -> Signals:
        ours = threading.current_thread() is threading.main_thread()  # elsewhere their owner has them
        self._old = {number: signal.signal(number, self._note) for number in stopping_signals()} if ours else {}
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
class RunOptions:
    """How a run is carried out: where, and what it writes. Its outcome stays the same, up to rounding."""

    device: torch.device
    resume: bool = False  # go on from the folder's checkpoint, if there is one
    processes: Processes = field(default_factory=Processes)
    capture: bool = True  # steps as CUDA graphs, on a GPU
    compile: bool = False  # the encoder, by torch.compile
    checkpoint_seconds: float = 60.0  # between checkpoints
    # Beside csv and jsonl: names, or tables with options such as {"name": "wandb", "project": "mine"}.
    loggers: tuple[str | Mapping[str, Any], ...] = ()
    pixels: Where = "auto"  # where they live: "resident", "mapped" or "files", for folders of images
    quiet: bool = False


def train(
    recipe: Recipe,
    data: TrainingSet,
    folder: Path,
    *,
    seed: int,
    how: RunOptions,
    title: str = "training",
    encoder: dict[str, Tensor] | None = None,
    after_epoch: AfterEpoch | None = None,
) -> tuple[Engine, Checkpoint]:
    """Train, or go on training, in a folder of its own; the engine and the last checkpoint.

    A checkpoint is written at intervals, when a signal asks to stop, and at the end. A run that is resumed ends as if
    it had never stopped: on a CPU with the same bits. ``encoder``: weights to start from, for fine-tuning.
    ``after_epoch`` measures more after each epoch: for its row, numbers or what only files of JSON can take.
    """
    check_number(how.checkpoint_seconds, "checkpoint_seconds", least=0)
    recipe = _settled(recipe, data)
    path, first = folder / FILE, how.processes.first  # the first process writes
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder) if first else contextlib.nullcontext():
        if first:
            checkpoints.remove_unfinished(path)
        if not how.resume:
            check_no_run(folder)
        earlier = _earlier_checkpoint(path, recipe, seed, data) if path.exists() else None
        options: Any = {"processes": how.processes, "capture": how.capture, "compile": how.compile}
        engine = Engine(recipe, data, seed=seed, device=how.device, **options)
        if encoder is not None:
            if not isinstance(encoder, dict):
                raise ValueError(
                    f"expected encoder to be weights, a state_dict of the recipe's {recipe.encoder.name}, got "
                    f"{type(encoder).__name__}; a network of your own goes into a loop of your own, "
                    + see("how-to/your-method#your-network")
                )
            engine.method.encoder.load_state_dict(encoder)
        if earlier is not None:
            engine.restore(earlier.tensors)
        history, unit = [] if earlier is None else list(earlier.history), "pairs" if recipe.pairs else "images"
        with (
            contextlib.closing(engine),
            Reporter(
                title, epochs=recipe.epochs, images=engine.passes * len(data), quiet=how.quiet or not first, unit=unit
            ) as reporter,
            open_loggers(folder, history, (*ALWAYS, *how.loggers) if first else ()) as loggers,
            Signals() as signals,
        ):
            if earlier is not None and earlier.epoch == recipe.epochs:
                return engine, earlier
            run = _Run(engine, path, how, history, loggers, reporter, signals, after_epoch)
            start, step = 0, 0
            if earlier is not None:
                start, step = earlier.epoch, earlier.step
                run.began -= earlier.seconds
            run.resumptions = _resumptions(earlier, engine.device)
            for epoch in range(start, recipe.epochs):
                run.epoch(epoch, step if epoch == start else 0)
            last = run.save(recipe.epochs, 0)
            if (stopped := run.stopped()) is not None:  # meanwhile
                raise stopped
            return engine, last


@dataclass
class _Run:
    """A run under way."""

    engine: Engine
    path: Path
    how: RunOptions
    history: list[dict[str, Any]]
    loggers: list[Logger]
    reporter: Reporter
    signals: Signals
    after_epoch: AfterEpoch | None
    resumptions: list[dict[str, Any]] = field(default_factory=list)
    began: float = field(default_factory=lambda: time.perf_counter())
    saved: float = field(default_factory=lambda: time.monotonic())
    looked: float = 0.0

    def epoch(self, epoch: int, first: int) -> None:
        """One epoch, from its step ``first``."""
        engine, began = self.engine, time.perf_counter()
        engine.begin(epoch, first)
        for turn in range(first, engine.steps):
            try:
                engine.step()
            except (ValueError, RuntimeError) as error:
                if (failure := _step_failure(error, engine, turn + 1)) is not None:
                    raise failure from error
                raise
            if turn + 1 == engine.steps:
                break  # the epoch's metrics come first
            # Processes have to agree, and asking costs a message.
            if engine.processes.size == 1 or turn % AGREE_STEPS == 0:
                self.look(epoch, turn + 1)
        means, seconds = engine.means(), time.perf_counter() - began
        row = {"epoch": epoch + 1, **means, "lr": engine.last_rate, "seconds": seconds}
        row["images_per_second"] = sum(engine.sizes[first:]) / seconds
        if self.after_epoch is not None:
            row |= self.after_epoch(engine, self.history)
        self.history.append(row)
        for logger in self.loggers:
            logger.epoch(row)
        self.reporter.update(epoch + 1, means, force=epoch + 1 == engine.recipe.epochs)
        self.look(epoch + 1, 0)

    def look(self, epoch: int, step: int) -> None:
        """Between steps: stop after a signal, show the loss, write a checkpoint if it is time."""
        engine, now = self.engine, time.monotonic()
        if (stopped := self.stopped()) is not None:
            self.save(epoch, step)
            raise stopped
        if step and now - self.looked >= LOOK_SECONDS and engine.processes.size == 1:
            self.looked = now
            self.reporter.update(epoch + step / engine.steps, engine.means())
        if engine.processes.largest(int(now - self.saved >= self.how.checkpoint_seconds), engine.device):
            self.save(epoch, step)
            self.saved = time.monotonic()

    def stopped(self) -> Interrupted | None:
        """What to raise after a signal, which one of the processes got."""
        stop = self.engine.processes.largest(self.signals.seen, self.engine.device)
        if not stop:
            return None
        return Interrupted(
            stop,
            f"stopped by {signal.Signals(stop).name} after writing {self.path}; the same command, with --resume "
            "where it has one, goes on",
        )

    def save(self, epoch: int, step: int) -> Checkpoint:
        """Write the checkpoint after ``step`` steps of ``epoch``."""
        engine = self.engine
        engine.means()  # a diverged run must not replace a good checkpoint
        engine.check_weights()
        checkpoint = Checkpoint(
            recipe=engine.recipe,
            seed=engine.seed,
            epoch=epoch,
            step=step,
            history=list(self.history),
            tensors=engine.tensors(),
            data=about(engine.data),
            seconds=time.perf_counter() - self.began,
            resumptions=self.resumptions,
        )
        if engine.processes.first:
            checkpoints.save(self.path, checkpoint)
        return checkpoint


def _resumptions(earlier: Checkpoint | None, device: torch.device) -> list[dict[str, Any]]:
    """Each start of the run, with this one if its environment is another than the last one's."""
    here = environment(device)
    if earlier is None:
        return [{"epoch": 1, **here}]
    before = earlier.resumptions or [{"epoch": 1}]  # older checkpoints do not say
    return before if before[-1] | here == before[-1] else [*before, {"epoch": earlier.epoch + 1, **here}]


def _step_failure(error: Exception, engine: Engine, step: int) -> TrainingError | None:
    """Where a step failed and what to do about it; None for an error that says nothing to a user."""
    where = f"epoch {engine.epoch + 1}, step {step} of {engine.steps}"
    if isinstance(error, ValueError):  # the losses look at their input where that is free
        hint = "; what was written before is intact, a lower lr may help" if "finite" in str(error) else ""
        return TrainingError(f"{where}: {error}{hint}")
    if out_of_memory(error):
        return TrainingError(
            f"{where}: out of memory ({str(error).splitlines()[0]}); what was written before is "
            f"intact, a batch below {engine.recipe.batch} or more --parts need less, {see('how-to/errors#space')}"
        )
    return None


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep a second run out of the folder."""
    try:
        with locked(folder / ".lock", option="--out (reproduce: --scratch)"):
            yield
    except LockTaken as error:
        raise ValueError(
            f"expected {folder} for this run alone, but {error}; give another --out, {see('how-to/errors#resume')}"
        ) from error


def _settled(recipe: Recipe, data: TrainingSet) -> Recipe:
    """The recipe with encoders that have all that the images' size decides."""
    changed: dict[str, Any] = {}
    sides = {"encoder": data.first, "second_encoder": data.second} if isinstance(data, PairSet) else {"encoder": data}
    for name, side in sides.items():
        values = side.values if isinstance(side, Side) else side.images
        choice = getattr(recipe, name)
        if choice is not None and values.ndim == 4:
            height, width = values.shape[2:]
            changed[name] = settled(choice, (height, width))
    return replace(recipe, **changed)


def about(data: TrainingSet) -> dict[str, Any]:
    """What a checkpoint says of its training data."""
    if isinstance(data, PairSet):
        one = {"name": data.name, "count": len(data), "shape": data.first.shape, "second_shape": data.second.shape}
        return one | {"mean": list(data.first.mean), "std": list(data.first.std), "classes": []}
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
        began, got = (f"{d.get('count', 'items')} of {_shapes(d)}" for d in (theirs, mine))
        raise ValueError(
            f"expected the data that {whose} ({began}), got others ({got}; their {', '.join(different)} differ); "
            + advice
        )


def _shapes(d: dict[str, Any]) -> str:
    """The sizes of an item, of pairs those of both sides."""
    known = [d[name] for name in ("shape", "second_shape") if d.get(name)]
    return " and ".join(" x ".join(map(str, shape)) for shape in known) or "?"


def _alike(theirs: object, mine: object) -> bool:
    """Whether both are equal; means and deviations up to rounding, which the number of threads changes."""
    if isinstance(theirs, list) and isinstance(mine, list) and len(theirs) == len(mine):
        return all(map(_alike, theirs, mine))
    if isinstance(theirs, float) and isinstance(mine, float):
        return math.isclose(theirs, mine, rel_tol=1e-9)
    return theirs == mine


def check_no_run(folder: Path) -> None:
    """Raise if there is a run in the folder: a new one would replace it."""
    if (folder / FILE).exists():
        raise ValueError(
            f"expected no run in {folder}, got {FILE} there; "
            f"add --resume to go on with it, or give another --out, {see('how-to/errors#resume')}"
        )


def check_place(folder: Path) -> None:
    """Raise an OSError if nothing can be written in the run's folder; what is made to try it goes away again."""
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise type(error)(error.errno, error.strerror, str(folder)) from error
    finally:
        for place in made:
            with contextlib.suppress(OSError):
                place.rmdir()


def _earlier_checkpoint(path: Path, recipe: Recipe, seed: int, data: TrainingSet) -> Checkpoint:
    """The checkpoint to go on from, checked to be of this run."""
    earlier = checkpoints.load(path)
    mine, theirs = (flat(one.tree()) | {"seed": n} for one, n in ((recipe, seed), (earlier.recipe, earlier.seed)))
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
    check_same_data(earlier.data, about(data), f"the run in {path.parent} began with", advice)
    return earlier
