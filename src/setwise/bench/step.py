"""What a training step costs: ours, ours without a CUDA graph, and the usual torch + torchvision loop, in one run.

Networks for large images are in ``large.py``, the usual loop is in ``plain.py``.
"""

from __future__ import annotations

import json
import multiprocessing as mp
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from setwise.bench import large
from setwise.bench.plain import plain_loop
from setwise.checks import check_count
from setwise.data import ImageSet, MatchedSet, matched_halves
from setwise.kernels import processes_share, share_device
from setwise.paper.recipes import CELLS
from setwise.paper.recipes import recipe as find
from setwise.paper.reproduce import run_steps
from setwise.recipe import Recipe
from setwise.terminal import visible
from setwise.training.engine import Engine
from setwise.training.environment import environment

RECIPES = {
    "conv4": "paper/cifar10-conv4-simclr-qare",
    "resnet32": "paper/cifar10-resnet32-simclr-qare",
    "resnet18": "modern/cifar10-resnet18-simclr-qare",
    "matching": "paper/cifar10-matching-infonce-qare",
}
# Random images of CIFAR-10's form: time does not depend on what they show, and nothing has to be downloaded.
IMAGES, SIZE, CLASSES = 50_000, 32, 10
WARM_UP = 20


def images(count: int = IMAGES, size: int = SIZE) -> ImageSet:
    """Random images, by default of CIFAR-10's form."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 3, size, size), generator=generator, dtype=torch.uint8)
    labels = torch.arange(count) % CLASSES
    names = tuple(map(str, range(CLASSES)))
    return ImageSet("random", "train", pixels, labels, names, (0.491, 0.482, 0.447), (0.247, 0.243, 0.262))


def random_data(recipe: Recipe, count: int = IMAGES) -> ImageSet | MatchedSet:
    """What the recipe trains on: random images, or their halves."""
    return matched_halves(images(count)) if recipe.matched else images(count)


def our_steps(
    recipe: Recipe,
    data: ImageSet | MatchedSet,
    device: torch.device,
    seconds: float,
    *,
    capture: bool = True,
    compile: bool = False,
) -> list[float]:
    """Milliseconds a step of a recipe: the mean of each stretch of up to 50 full batches that fits into ``seconds``."""
    engine = Engine(recipe, data, seed=1, device=device, capture=capture, compile=compile)
    on_gpu, full = device.type == "cuda", engine.sizes.count(recipe.batch)
    stretch = min(50 if on_gpu else 2, full)
    _steps(engine, min(WARM_UP if on_gpu else 1, full))
    times: list[float] = []
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline or len(times) < 3:
        if engine.step_in_epoch + stretch > full:
            engine.begin(engine.epoch + 1)
        began = time.perf_counter()
        for _ in range(stretch):
            engine.step()
        engine.means()  # waits for the device
        times.append(1e3 * (time.perf_counter() - began) / stretch)
    return times


def _steps(engine: Engine, count: int, epoch: int = 0) -> None:
    """The first ``count`` steps of an epoch."""
    engine.begin(epoch)
    for _ in range(count):
        engine.step()
    engine.means()


def _worker(name: str, device: str, seconds: float, barrier: Any, results: Any) -> None:
    share_device(barrier.parties if processes_share() else 1)
    recipe = find(name)
    engine = Engine(recipe, random_data(recipe), seed=os.getpid() % 1000, device=torch.device(device))
    _steps(engine, WARM_UP)
    for epoch in range(2):  # the last, smaller batch is captured when it comes again
        engine.begin(epoch, engine.steps - 1)
        engine.step()
    barrier.wait()
    began, steps, epoch = time.perf_counter(), 0, 0
    while time.perf_counter() - began < seconds:
        epoch += 1
        engine.begin(epoch)
        while engine.step_in_epoch < engine.steps and time.perf_counter() - began < seconds:
            for _ in range(min(20, engine.steps - engine.step_in_epoch)):
                engine.step()
                steps += 1
        engine.means()  # waits for the device, as a run does after each epoch
    results.put(steps / (time.perf_counter() - began))


def runs_per_hour(name: str, device: torch.device, concurrent: int, seconds: float) -> float:
    """Runs of a recipe an hour, with ``concurrent`` processes side by side on one device."""
    context = mp.get_context("spawn")
    barrier, results = context.Barrier(concurrent), context.Queue()
    arguments = (name, str(device), seconds, barrier, results)
    processes = [context.Process(target=_worker, args=arguments) for _ in range(concurrent)]
    for process in processes:
        process.start()
    rates = [results.get(timeout=seconds + 300) for _ in processes]
    for process in processes:
        process.join()
    return float(3600 * sum(rates) / run_steps(find(name)))


def epoch_seconds(recipe: Recipe, data: ImageSet | MatchedSet, device: torch.device) -> float:
    """Seconds of a whole epoch, its preparation and the reading of its loss included; the best of a few."""
    engine, times = Engine(recipe, data, seed=1, device=device), []
    for epoch in range(3 if device.type == "cuda" else 1):
        began = time.perf_counter()
        _steps(engine, engine.steps, epoch)
        times.append(time.perf_counter() - began)
    return min(times)


def run(
    *,
    which: Sequence[str],
    device: torch.device,
    out: Path,
    seconds: float,
    workers: int,
    concurrent: Sequence[int],
    compare: bool = True,
    methods: bool = False,
) -> dict[str, Any]:
    """Measure, show a table, write ``out``/bench-step.json."""
    for count in concurrent:
        check_count(count, "concurrent")
    out.mkdir(parents=True, exist_ok=True)  # before minutes are spent
    console = Console(markup=False, emoji=False)
    record: dict[str, Any] = {"what": "bench step", **environment(device), "workers": workers, "encoders": {}}
    for encoder in which:
        console.print(f"{encoder} ...", end="\r")
        if encoder in large.RECIPES:
            many = images(large.IMAGES, large.SIZE)
            options: Any = {"seconds": seconds, "workers": workers if compare else None, "console": console}
            measured = large.measure(large.RECIPES[encoder], many, device, our_steps, **options)
            record.setdefault("large", {})[encoder] = measured
            continue
        recipe = find(RECIPES[encoder])
        data = random_data(recipe, IMAGES if device.type == "cuda" else 2000)
        plain = recipe.changed({"terms": [], "objective.weight": 1.0})
        row: dict[str, Any] = {"recipe": RECIPES[encoder], "batch": recipe.batch}
        row["setwise_ms"] = statistics.median(our_steps(recipe, data, device, seconds))
        row["without_qare_ms"] = statistics.median(our_steps(plain, data, device, seconds))
        if device.type == "cuda":
            row["not_captured_ms"] = statistics.median(our_steps(recipe, data, device, seconds, capture=False))
        if compare and isinstance(data, ImageSet):
            try:
                row["torchvision_ms"] = plain_loop(recipe, data, device, seconds, workers)
            except ImportError as error:  # torchvision is not a dependency of ours
                console.print(f"no comparison with torchvision: {error}")
        epochs = {None: recipe} | (dict(_others(recipe)) if methods else {})
        times = {name: epoch_seconds(other, data, device) * IMAGES / len(data) for name, other in epochs.items()}
        row["epoch_seconds"] = times.pop(None)
        if methods:
            row["methods"] = times
        if concurrent:
            row["runs_per_hour"] = {n: runs_per_hour(RECIPES[encoder], device, n, seconds) for n in concurrent}
        record["encoders"][encoder] = row
    if record["encoders"]:
        _show(console, record)
    if "large" in record:
        large.show(console, record)
    (out / "bench-step.json").write_text(json.dumps(record, indent=1) + "\n")
    console.print(visible(f"written to {out / 'bench-step.json'}"), soft_wrap=True)
    return record


def _show(console: Console, record: dict[str, Any]) -> None:
    table = Table(title=f"a training step with QARe, {record['hardware']['name']}, torch {torch.__version__}")
    for column in ("encoder", "batch", "setwise", "without QARe", "no graph", "torch + torchvision", "", "an epoch"):
        table.add_column(column, justify="left" if column == "encoder" else "right")
    for encoder, row in record["encoders"].items():
        keys = ("setwise_ms", "without_qare_ms", "not_captured_ms", "torchvision_ms")
        cells = [f"{row[key]:.3f} ms" if key in row else "-" for key in keys]
        ratio = f"{row['torchvision_ms'] / row['setwise_ms']:.0f}x" if "torchvision_ms" in row else "-"
        table.add_row(encoder, str(row["batch"]), *cells, ratio, f"{row['epoch_seconds']:.2f} s")
    console.print(table)
    for encoder, row in record["encoders"].items():
        if "methods" in row:
            times = ", ".join(f"{find(name).method.name} {seconds:.2f} s" for name, seconds in row["methods"].items())
            console.print(f"{encoder}, an epoch of other methods: {times or 'there are none'}")
        if "runs_per_hour" in row:
            rates = ", ".join(f"{n} at once: {rate:.1f}" for n, rate in row["runs_per_hour"].items())
            console.print(f"{encoder}, runs of {find(row['recipe']).epochs} epochs an hour: {rates}")


def _others(recipe: Recipe) -> list[tuple[str, Recipe]]:
    """The paper's recipes without a contrastive loss on this recipe's data and encoder."""
    return [
        (name, it)
        for name, it in ((name, find(name)) for name, cell in CELLS.items() if cell.form == "paper")
        if (it.data, it.encoder, it.objective) == (recipe.data, recipe.encoder, None) and it.epochs
    ]
