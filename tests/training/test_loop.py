"""What the loop does, and when: by a clock that each step moves on by a second."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch

from setwise.recipe import Recipe
from setwise.training import checkpoint, loop
from setwise.training.engine import Engine
from setwise.training.errors import Interrupted, TrainingError
from setwise.training.loop import RunOptions, train
from setwise.training.progress import Reporter
from setwise.training.schedule import epoch_rates

CPU = torch.device("cpu")


@pytest.fixture
def clock(monkeypatch):
    """Seconds since 1000, of which every step takes one; ``after[second]()`` is called when it has passed."""
    clock = SimpleNamespace(now=1000.0, after={})
    step = Engine.step

    def stepped(engine: Engine) -> None:
        step(engine)
        clock.now += 1
        clock.after.pop(clock.now - 1000, lambda: None)()

    monkeypatch.setattr(Engine, "step", stepped)
    read = lambda: clock.now  # noqa: E731
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=read, perf_counter=read))
    return clock


@pytest.fixture
def saved(monkeypatch):
    """Epoch, step and seconds of all checkpoints that are written."""
    saved, save = [], checkpoint.save

    def noted(path, it):
        saved.append((it.epoch, it.step, it.seconds))
        save(path, it)

    monkeypatch.setattr(checkpoint, "save", noted)
    return saved


def test_a_run_second_by_second(tmp_path, digits, recipe, clock, saved, monkeypatch):
    shown, made = [], set()

    def update(self: Reporter, done: float, means: dict[str, float], force: bool = False) -> None:
        shown.append((done, force))
        made.add((self.title, self.epochs, self.images, self.quiet))

    def measure(engine: Engine, history: list[dict[str, float]]) -> dict[str, float]:
        return {"measured": len(history)}

    monkeypatch.setattr(loop, "LOOK_SECONDS", 3.0)
    monkeypatch.setattr(Reporter, "update", update)
    recipe, how = recipe.changed({"schedule": "cosine"}), RunOptions(CPU, checkpoint_seconds=5, quiet=True)
    _, last = train(recipe, digits, tmp_path / "a" / "b", seed=1, how=how, title="a run", after_epoch=measure)
    assert saved == [(1, 1, 5.0), (2, 2, 10.0), (3, 0, 12.0)]
    assert shown == [(0.25, False), (1, False), (1.25, False), (2, False), (2.25, False), (3, True)]
    assert made == {("a run", 3, 200, True)}
    speeds = [(row["epoch"], row["seconds"], row["images_per_second"]) for row in last.history]
    assert speeds == [(1, 4.0, 50.0), (2, 4.0, 50.0), (3, 4.0, 50.0)]
    assert [row["measured"] for row in last.history] == [0, 1, 2], "the epochs before"
    assert [row["lr"] for row in last.history] == [epoch_rates(recipe, epoch, 4)[-1].item() for epoch in range(3)]


def test_a_run_that_is_stopped_again_and_again(tmp_path, digits, recipe, clock, saved):
    """In the last step of an epoch, in the middle of one, in the last one."""
    recipe, how = recipe.changed({"schedule": "cosine"}), RunOptions(CPU, resume=True, quiet=True)
    whole, at_once = train(recipe, digits, tmp_path / "whole", seed=1, how=how)
    clock.now = 1000.0
    for second, number in ((4, signal.SIGTERM), (6, signal.SIGINT), (10, signal.SIGTERM)):
        clock.after[second] = lambda number=number: os.kill(os.getpid(), number)
        with pytest.raises(Interrupted, match=f"stopped by {number.name} after writing") as stopped:
            train(recipe, digits, tmp_path / "parts", seed=1, how=how)
        assert stopped.value.signal == number
    parts, last = train(recipe, digits, tmp_path / "parts", seed=1, how=how)
    assert saved[1:] == [(1, 0, 4.0), (1, 2, 6.0), (2, 2, 10.0), (3, 0, 12.0)]
    # What a row says of time is of the steps since the run went on.
    speeds = [(row["epoch"], row["seconds"], row["images_per_second"]) for row in last.history]
    assert speeds == [(1, 4.0, 50.0), (2, 2.0, 40.0), (3, 2.0, 40.0)]
    assert [row["loss"] for row in last.history] == [row["loss"] for row in at_once.history]
    for name, x in whole.tensors().items():
        assert torch.equal(x, parts.tensors()[name]), name


def test_what_has_diverged_is_not_written(tmp_path, digits, clock, saved, monkeypatch):
    """A loss that does not look at its input: every checkpoint does."""
    recipe = Recipe.read({"method": "supervised", "epochs": 1, "batch": 60, "optimizer": {"name": "adam", "lr": 1e30}})
    how = RunOptions(CPU, checkpoint_seconds=0, quiet=True)
    monkeypatch.setattr(loop, "LOOK_SECONDS", 1e9)
    with pytest.raises(TrainingError, match=r"expected a finite loss, got .* in epoch 1, by step 2 of 4"):
        train(recipe, digits, tmp_path, seed=1, how=how)
    assert saved == [(0, 1, 1.0)]


def test_weights_that_the_last_step_lost_are_not_written(tmp_path, digits, recipe, clock, saved, monkeypatch):
    """The loss of the last step is that of the weights before it."""
    step = Engine.step

    def last_step(engine):
        step(engine)
        if (engine.epoch, engine.step_in_epoch) == (2, 4):
            next(engine.method.encoder.parameters()).data.view(-1)[3] = float("inf")

    monkeypatch.setattr(Engine, "step", last_step)
    with pytest.raises(TrainingError, match=r"finite weights, got others in encoder.*in epoch 3, by step 4 of 4"):
        train(recipe, digits, tmp_path, seed=1, how=RunOptions(CPU, checkpoint_seconds=5, quiet=True))
    assert [s[:2] for s in saved] == [(1, 1), (2, 2)]


@pytest.mark.parametrize(
    ("error", "seen", "message"),
    [
        (ValueError("something else"), TrainingError, "^epoch 2, step 2 of 4: something else$"),
        (ValueError("expected z_a to be finite"), TrainingError, "^epoch 2, step 2 of 4: .*finite.*lower lr"),
        (RuntimeError("something else"), RuntimeError, "^something else$"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), TrainingError, "a batch below 60 or more --parts"),
        (
            torch.OutOfMemoryError("CUDA out of memory."),
            TrainingError,
            "out of memory .*a batch below 60 or more --parts",
        ),
    ],
)
def test_an_error_of_a_step_says_where_and_what_may_help(tmp_path, digits, recipe, clock, error, seen, message):
    def fail():
        raise error

    clock.after[6] = fail
    with pytest.raises(seen, match=message) as raised:
        train(recipe, digits, tmp_path, seed=1, how=RunOptions(CPU, quiet=True))
    assert raised.type is seen
    assert not (tmp_path / "checkpoint.safetensors").exists()


def test_a_lost_terminal_is_ignored_where_the_user_says_so():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with loop.Signals() as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not signals.seen
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_signals_are_given_back_and_not_taken_from_the_main_thread():
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    with loop.Signals():
        assert all(signal.getsignal(number) not in before for number in numbers)
    assert [signal.getsignal(number) for number in numbers] == before

    def elsewhere():
        with loop.Signals() as signals:
            return signals

    with ThreadPoolExecutor() as pool:
        assert not pool.submit(elsewhere).result().seen
    assert [signal.getsignal(number) for number in numbers] == before


def test_one_signal_may_come_twice(monkeypatch):
    """From the terminal, and from the process that started this one and heard it too."""
    with loop.Signals() as signals:
        try:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
                os.kill(os.getpid(), number)
        except KeyboardInterrupt:
            pytest.fail("obeyed at once, without a checkpoint")
        assert signals.seen == signal.SIGTERM
        monkeypatch.setattr(loop, "ONE_SIGNAL_SECONDS", 0.0)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_signal_while_the_last_checkpoint_is_written_is_obeyed(recipe, digits, tmp_path, monkeypatch):
    recipe, write = recipe.changed({"epochs": 1, "warmup": 0}), loop.checkpoints.save

    def save(path, checkpoint):
        write(path, checkpoint)
        os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(loop.checkpoints, "save", save)
        with pytest.raises(Interrupted, match="stopped by SIGTERM after writing"):
            train(recipe, digits, tmp_path, seed=1, how=RunOptions(CPU, quiet=True, checkpoint_seconds=1e9))
    _, last = train(recipe, digits, tmp_path, seed=1, how=RunOptions(CPU, quiet=True, resume=True))
    assert (last.epoch, last.step) == (1, 0)
