"""Search for a faster recipe on validation images: what accuracy does a PFLOP buy?

    python benchmarks/speedrun_search.py --minutes 60 --pflop 10 [--at-once 2] [--recipe speedrun/cifar10]

A trial is a point of a Halton sequence around the recipe, over what counts: rate, batch, weight decay, temperature,
colours, widths, views of an image and, if they are parts of it, their size. The first trial is the recipe itself. All
cost about --pflop: their epochs follow. Trials run side by side, are told by their records, and go on where they were
stopped: the same command continues, with more --trials it goes further, with another --pflop it compares other lengths.
It prints the frontier in the end: trials that no cheaper one beats. The test images are not read.
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import setwise.records as records
from setwise.data import ImageSet, load
from setwise.front import compose
from setwise.paper.jobs import Job
from setwise.paper.reproduce import reproduce
from setwise.paper.tuning import SKIP, between, radical_inverse
from setwise.recipe import Recipe
from setwise.runs import choose_device
from setwise.runs.pretraining import hold_out
from setwise.runs.speedrun import HELD_OUT, PFLOP
from setwise.training.errors import Interrupted
from setwise.training.operations import training_operations

SEED = 1
PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29)
VIEWS = (2, 4, 8)
ROWS = (0.5, 1.0, 2.0)  # views in a batch, as multiples of the recipe's
WIDTHS = (0.75, 1.0, 1.25)  # of the network's stages
PARTS = (0.875, 1.0, 1.125)  # sides of views that are parts of images
HIDDEN = (0.5, 1.0, 2.0)
SPAN = {"rate": 2.5, "decay": 5.0, "temperature": 1.7, "colours": 1.6}  # the largest factor, up or down


class Trial(NamedTuple):
    """What a trial reached, and what it cost."""

    number: int
    accuracy: float
    pflop: float
    seconds: float


def _one(choices: Sequence[Any], share: float) -> Any:
    return choices[int(len(choices) * share)]


def _factor(what: str, share: float) -> float:
    return between(1 / SPAN[what], SPAN[what], share)


def tried(start: Recipe, number: int) -> Recipe:
    """The recipe of trial ``number``, from 1 on: the first is ``start``, others change most of its numbers."""
    if number == 1:
        return start
    at = [radical_inverse(SKIP + number, base) for base in PRIMES]
    views, rows = _one(VIEWS, at[0]), _one(ROWS, at[1])
    options, temperature = start.optimizer.options, start.tree()["objective"]["temperature"]
    colours = _factor("colours", at[5])
    changes: dict[str, Any] = {
        "method.views": views,
        "batch": round(start.batch * start.method["views"] * rows) // views,
        "optimizer.lr": float(f"{options['lr'] * rows**0.5 * _factor('rate', at[2]):.2g}"),
        "optimizer.weight_decay": options["weight_decay"] * _factor("decay", at[3]),
        "objective.temperature": temperature * _factor("temperature", at[4]),
        "views.grey": start.views["grey"] * colours,
        "views.hue": min(0.5, start.views["hue"] * colours),
        "head.hidden": round(start.head.hidden * _one(HIDDEN, at[6])),
    }
    if start.views["crop"] == "part" and start.views["size"] is not None:
        changes["views.size"] = tuple(round(side * _one(PARTS, at[7])) for side in start.views["size"])
    if "widths" in start.encoder.options:
        wider = _one(WIDTHS, at[8])
        changes["encoder.widths"] = tuple(round(width * wider) for width in start.encoder["widths"])
    return start.changed(changes)


def costing(pflop: float, recipe: Recipe, data: ImageSet) -> Recipe:
    """The recipe with as many epochs as cost ``pflop``, and a warm-up that takes as large a share of them."""
    epochs = max(1, round(recipe.epochs * pflop * PFLOP / training_operations(recipe, data)))
    warm_up = float(recipe.schedule.options.get("warmup", 0.0)) * epochs / recipe.epochs
    return recipe.changed({"epochs": epochs, "warmup": round(warm_up, 2)})


def frontier(trials: Sequence[Trial]) -> list[Trial]:
    """The trials that are more accurate than all that cost no more, the cheapest first."""
    best, kept = -1.0, []
    for trial in sorted(trials, key=lambda trial: (trial.pflop, -trial.accuracy)):
        if trial.accuracy > best:
            best, kept = trial.accuracy, [*kept, trial]
    return kept


def shown(trials: Sequence[Trial], jobs: Sequence[Job]) -> str:
    """The frontier, with what each of its trials changes."""
    lines = []
    start = jobs[0].recipe.tree()
    for trial in frontier(trials):
        tree = jobs[trial.number - 1].recipe.tree()
        changes = [
            f"{part}.{key}={value}" if isinstance(table, dict) else f"{part}={table}"
            for part, table in tree.items()
            for key, value in (table.items() if isinstance(table, dict) else [("", table)])
            if (start[part].get(key) if isinstance(table, dict) else start[part]) != value
        ]
        lines.append(
            f"{trial.pflop:9.3g} PFLOP {100 * trial.accuracy:6.2f} % {trial.seconds:7.0f} s  trial {trial.number}: "
            + (" ".join(changes) or "the recipe itself")
        )
    return "\n".join(lines)


def main(words: Sequence[str] | None = None) -> list[Trial]:
    """Make the trials that are missing, as far as the time goes; print the frontier."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="speedrun/cifar10")
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--pflop", type=float, default=10.0, help="what a trial costs")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--at-once", type=int, default=1, help="side by side on one device")
    parser.add_argument("--results", type=Path, default=Path("runs/search"))
    parser.add_argument("--root", type=Path)
    parser.add_argument("--device", default="auto")
    given = parser.parse_args(words)
    plan = compose(given.recipe, {})
    data = load(plan.recipe.data.source, given.root, split="train", options=plan.recipe.data.options)
    count = len(data) // HELD_OUT
    start = plan.recipe.changed({"data.validation": count})
    rest, _ = hold_out(data, count, seed=start.data.split_seed, kind="validation")
    recipes = [tried(start, number) for number in range(1, given.trials + 1)]
    cost = f"{given.pflop:g}-pflop"
    jobs = [
        Job(plan.name, costing(given.pflop, it, rest), SEED, f"{cost}-trial-{number:03}")
        for number, it in enumerate(recipes, 1)
    ]
    options: Any = {"results": given.results, "scratch": given.results / "scratch", "root": given.root}
    options |= {"device": choose_device(given.device), "at_once": given.at_once, "forget": True}

    def stop(number: int, frame: object) -> None:
        raise Interrupted(number, "the time is over")

    before = signal.signal(signal.SIGTERM, stop)  # for moments in which no run is training
    timer = threading.Timer(60 * given.minutes, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    try:
        reproduce(jobs, **options)
    except Interrupted as error:
        print(error)
    finally:
        timer.cancel()
        signal.signal(signal.SIGTERM, before)
    trials = []
    for number, job in enumerate(jobs, 1):
        if job.record(given.results).exists():
            record = records.read(job.record(given.results))
            pflop = training_operations(job.recipe, rest) / PFLOP
            seconds = record["timings"]["training_seconds"]
            trials.append(Trial(number, record["final"]["knn10_accuracy"], pflop, seconds))
    print(f"{len(trials)} of {len(jobs)} trials; those that no cheaper one beats:")
    print(shown(trials, jobs))
    return trials


if __name__ == "__main__":
    main()
