"""What a run on your own images chooses by their number, their size and the device, and how it says so."""

from __future__ import annotations

from collections.abc import Mapping

import torch

import setwise.register as register
from setwise.data import ImageSet
from setwise.encoders import Conv4
from setwise.recipe import Recipe, flat

TINY, SMALL = 16, 64  # pixels of the longer side
PIXELS = 256 * 224 * 224  # of a step, at most: an estimated 6 GB for ResNet-18 in bfloat16
GPU_IMAGES = 10_000_000  # that a run on a GPU sees in all: 200 epochs of CIFAR-10
CPU_PIXELS = 200_000_000  # that a run on a CPU sees in all: about five minutes of two cores


def choose(count: int, height: int, width: int, device: str) -> dict[str, tuple[object, str]]:
    """Values for ``count`` images of that size, by their fields in the recipe, each with the reason.

    ``device`` is torch's type: "cpu", "cuda".
    """
    cpu, side = device == "cpu", max(height, width)
    if min(height, width) < Conv4.least:
        encoder = ("resnet8", f"a small network that takes fewer than {Conv4.least} pixels")
    elif cpu or side <= TINY:
        encoder = ("conv4", "a small network, since a CPU is slow" if cpu else "a small network for tiny images")
    else:
        encoder = ("resnet18", "the usual network; its first layers follow the size of the images")
    batch = max(2, min(64 if cpu else 256, PIXELS // (height * width), count // 4))
    if cpu:
        epochs = min(max(CPU_PIXELS // (count * height * width), 5), 100)
        ends = "for minutes on a CPU, within 5 to 100"
    else:
        epochs = min(max(GPU_IMAGES // count, 20), 400)
        ends = "for 10 million images in all, within 20 to 400"
    return {
        "encoder.name": encoder,
        "batch": (1 << (batch.bit_length() - 1), "a power of two, at most a quarter of the images"),
        "epochs": (epochs, ends),
        "views.preset": ("self-supervised", "SimCLR's, for photos")
        if side > SMALL
        else ("modern", "SimCLR's with weaker colours, for small images"),
    }


def recipe_for(base: Recipe, images: ImageSet, *, device: str, changes: Mapping[str, object]) -> Recipe:
    """``base`` with what ``choose`` says for these images, then with a person's ``changes``.

    Adam without a warm-up, and partial batches: these fit any batch and epochs that a person gives.
    """
    count, (height, width) = len(images), images.images.shape[2:]
    chosen = choose(count, height, width, device)
    robust = {"optimizer.name": "adam", "schedule.name": "cosine", "drop_last": False}
    about = f"chosen for {count:,} images of {height}x{width} on {'a CPU' if device == 'cpu' else 'a GPU'}"
    start = base.changed(robust | {path: value for path, (value, _) in chosen.items()} | {"about": about})
    return start.changed(changes)


def choices(
    recipe: Recipe, train_set: ImageSet, test_set: ImageSet | None, device: torch.device, *, count: int | None = None
) -> list[str]:
    """What a run on your own images says first: images, splits, what was left out, network, memory.

    Data sets by name have no such lines. ``count``: of all images, if the recipe is chosen for them; then the lines
    give the reasons, too.
    """
    if not train_set.notes and recipe.data.source in register.data:
        return []
    names = train_set.classes
    classes = f"{len(names):,} classes" if len(names) > 1 else f"one class ({names[0]})" if names else "no classes"
    lines = [f"{train_set.name}: {len(train_set):,} images to train on, {classes}"]
    own = test_set is not None and test_set.split in ("test", "val")
    if test_set is not None:
        drawn = "" if own else f", drawn by split_seed {recipe.data.split_seed}"
        lines.append(f"{len(test_set):,} images to test on: {test_set.split}{drawn}")
    if len(names) < 2:
        instead = "; the two views of each test image will look for each other instead" if test_set is not None else ""
        lines.append(f"no probe, which needs two classes or more, each in a folder of its own{instead}")
    lines += [note.replace("\n", "\n  ") for note in train_set.notes]
    if test_set is not None and own:
        lines += [f"{test_set.split}: {note}" for note in test_set.notes[1:]]
    precision = recipe.precision
    if precision == "auto":
        precision = "bfloat16" if device.type == "cuda" else "float32"
    values = flat(recipe.tree())
    height, width = train_set.images.shape[2:]
    chosen = {} if count is None else choose(count, height, width, device.type)
    lines.append(f"{recipe.about}; --encoder, --batch, ... change it:" if chosen else "by the recipe:")
    for path in ("encoder.name", "batch", "epochs", "views.preset"):
        value, why = chosen.get(path, (values[path], ""))
        reason = f": {why if value == values[path] else 'as asked'}" if chosen else ""
        lines.append(f"  {path.partition('.')[0]} {values[path]}{reason}")
    lines.append(f"  precision {precision}")
    size = train_set.images.nbytes / 1e6
    memory = f"all training pixels ({size:,.1f} MB) stay in the memory of {device}, decoded once at the start"
    pixels = train_set.pixels
    lines.append(memory if pixels is None or pixels.resident else f"pixels live {pixels.where}")
    return [f"  {line}" if k else line for k, line in enumerate(lines)]
