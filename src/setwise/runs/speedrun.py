"""A run under a clock that starts before the data are touched and stops when the weights are final.

The rules are on the page docs/speedrun.md. Evaluation is outside the clock. For choosing between recipes a tenth of the
training images is held out, and the test images are not even read.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

import setwise.records as records
import setwise.register as register
from setwise.checks import check_number
from setwise.data import load
from setwise.methods import Supervised
from setwise.recipe import Recipe, to_toml
from setwise.report.speedrun import SEEDS
from setwise.runs.pretraining import check_classes, encoder_of, evaluate_encoder, hold_out, to_train_on
from setwise.training.checkpoint import write_text
from setwise.training.engine import Engine
from setwise.training.loop import FILE as CHECKPOINT
from setwise.training.loop import RunOptions, train
from setwise.training.operations import training_operations

HELD_OUT = 10  # one of so many training images: 5,000 of CIFAR-10
PFLOP = 1e15
DAY = 86400.0


def timed_run(
    recipe: Recipe,
    folder: Path,
    *,
    name: str,
    seed: int,
    how: RunOptions,
    root: Path | None = None,
    test: bool = False,
    target: float = 0.9,
) -> dict[str, Any]:
    """One run by the rules; its record, written into ``folder``.

    Without ``test`` it is evaluated on training images that were held out, drawn by the recipe's ``data.split_seed``.
    The record's ``speedrun`` has ``images`` ("test" or "validation"), ``target``, ``clock``, ``pflop``, ``gpu`` and
    ``knn10``. The clock's parts, in seconds, add up to ``seconds``: ``data`` (read and split), ``network`` (made and
    moved to the device, with the data), ``kernels`` (compiled and captured) and ``training``.
    """
    check(recipe)
    load_split = partial(load, recipe.data.source, root, options=recipe.data.options)
    looks: list[float] = []

    def look(engine: Engine, history: list[dict[str, Any]]) -> dict[str, Any]:
        looks.append(time.perf_counter())  # the epoch's loss has been read, so the device has done all of its steps
        return {}

    began = time.perf_counter()
    train_set = load_split(split="train")
    if not test:
        count = max(1, len(train_set) // HELD_OUT)
        recipe = recipe.changed({"data.validation": count})
        train_set, test_set = hold_out(train_set, count, seed=recipe.data.split_seed, kind="validation")
    train_set = to_train_on(recipe, train_set)
    loaded = time.perf_counter()
    title = f"{name} seed {seed}"
    engine, last = train(recipe, train_set, folder, seed=seed, how=how, title=title, after_epoch=look)
    first_step = looks[0] - last.history[0]["seconds"]
    clock = {
        "seconds": looks[-1] - began,
        "data": loaded - began,
        "network": first_step - loaded - engine.preparation_seconds,
        "kernels": engine.preparation_seconds,
        "training": looks[-1] - first_step,
    }
    if test:
        test_set = load_split(split="test")
    check_classes(train_set, test_set)
    sizes = {"name": train_set.name, "train": len(train_set), "test": len(test_set)}
    record = records.of_run(name, engine, last, sizes)
    encoder = encoder_of(last, folder).to(how.device)
    final = evaluate_encoder(encoder, train_set, test_set, recipe, seed=seed, device=how.device)
    record["timings"] |= final.pop("timings")
    pflop = training_operations(recipe, train_set) / PFLOP
    record["speedrun"] = {
        "images": "test" if test else "validation",
        "target": target,
        "clock": clock,
        "pflop": pflop,
        "gpu": record["hardware"]["name"],
        "knn10": final["knn10_accuracy"],
    }
    record["final"] = final | {"minutes": clock["seconds"] / 60, "pflop": pflop}
    records.write(folder / records.FILE, record)
    return record


def timed_runs(
    recipe: Recipe,
    *,
    name: str,
    title: str,
    seeds: Sequence[int],
    device: torch.device,
    test: bool = False,
    target: float = 0.9,
    compile: bool = False,
    out: Path = Path("runs"),
    results: Path | None = None,
    root: Path | None = None,
    files: Sequence[Path] = (),
) -> list[dict[str, Any]]:
    """A run of each seed, one after the other, each told when it ends; their records.

    Runs are written to ``out``/``name``/test or .../validation. ``results`` takes the records alone, with the recipe
    and the ``files`` that registered what it names: all that makes such a record again. A run that was stopped begins
    anew, since no clock can wait for it.
    """
    check(recipe)
    check_number(target, "target", least=0)
    folder = Path(name) / ("test" if test else "validation")
    for place in (out / folder / f"seed-{seed}" / records.FILE for seed in seeds):
        _check_new(place, test)
    for place in (results / folder / f"seed-{seed}.json" for seed in seeds) if results is not None else ():
        _check_new(place, test)
    made = []
    how = RunOptions(device, compile=compile, checkpoint_seconds=DAY, quiet=True)  # one checkpoint, after the clock
    for seed in seeds:
        run = out / folder / f"seed-{seed}"
        (run / CHECKPOINT).unlink(missing_ok=True)
        options: Any = {"name": title, "seed": seed, "how": how, "root": root, "test": test, "target": target}
        made.append(timed_run(recipe, run, **options))
        print(line_of(made[-1]), flush=True)
        if results is not None:
            kept = results / folder
            kept.mkdir(parents=True, exist_ok=True)
            records.write(kept / f"seed-{seed}.json", made[-1])
            write_text(kept / "recipe.toml", to_toml(recipe.tree()))
            for file in files:
                write_text(kept / file.name, file.read_text())
    print(summary(made))
    return made


def _check_new(record: Path, test: bool) -> None:
    if record.exists():
        once = "the test images are looked at once" if test else "none is made twice"
        raise ValueError(f"expected no record at {record}, got one: {once}; give another --name or --out")


def line_of(record: dict[str, Any]) -> str:
    """One run in a line."""
    part = record["speedrun"]
    clock = part["clock"]
    parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in clock.items() if name != "seconds")
    return (
        f"seed {record['seed']}: {100 * part['knn10']:.2f} % by 10 neighbours on {part['images']} images, "
        f"{clock['seconds']:.1f} s ({parts}), {clock['seconds'] - clock['kernels']:.1f} s without kernels, "
        f"{part['pflop']:.3g} PFLOP"
    )


def summary(made: Sequence[dict[str, Any]]) -> str:
    """All seeds in a line: the mean has to reach the target, and ten seeds make a record."""
    parts = [record["speedrun"] for record in made]
    accuracy, seconds = fmean(part["knn10"] for part in parts), fmean(part["clock"]["seconds"] for part in parts)
    target, few = parts[0]["target"], f", of the {SEEDS} that make a record" if len(made) < SEEDS else ""
    return (
        f"mean of {len(made)} seed{'s' * (len(made) > 1)}{few}: {100 * accuracy:.2f} % in {seconds / 60:.2f} minutes "
        f"on {parts[0]['gpu']}, {'at or above' if accuracy >= target else 'below'} the target of {100 * target:.1f} %"
    )


def check(recipe: Recipe) -> None:
    """Raise unless a run by this recipe can be a speed record."""
    method = recipe.method.name
    if recipe.matched or recipe.pairs or not recipe.epochs or register.method[method].make is Supervised:
        raise ValueError(
            "expected a recipe that trains an encoder of single images without their labels, got method "
            f"{method!r} of {recipe.epochs} epochs; `setwise recipes speedrun/cifar10` prints one"
        )
    if recipe.data.validation:
        raise ValueError(
            f"expected a recipe without data.validation, which --validation sets, got {recipe.data.validation}; "
            "leave it out"
        )
