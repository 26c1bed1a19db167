"""What a run on your own images chooses by their number, their size and the device, and how it says so."""

from __future__ import annotations

from collections.abc import Mapping

import torch

import setwise.register as register
from setwise.data import ImageSet
from setwise.encoders import Conv4
from setwise.recipe import SHORT, Recipe, flat

TINY, SMALL = 16, 64  # pixels of the longer side
PIXELS = 256 * 224 * 224  # of a step, at most: an estimated 6 GB for ResNet-18 in bfloat16
GPU_IMAGES = 10_000_000  # that a run on a GPU sees in all: 200 epochs of CIFAR-10
CPU_PIXELS = 200_000_000  # that a run on a CPU sees in all: about five minutes of two cores
CPU_PARTS = 80_000  # images that it sees in parts of at most 16 pixels: half as long
PARTS = 4  # small parts that are views of an image: docs/how-to/your-data.md says what they are worth
PART = 16  # pixels of a part's side: larger ones cost as their area, so fewer images are seen
DECIDED = ("encoder", "method", "views")  # who gives one of these gets enlarged crops


def choose(count: int, height: int, width: int, device: str, *, parts: bool = False) -> dict[str, tuple[object, str]]:
    """Values for ``count`` images of that size, by their fields in the recipe, each with the reason.

    ``device`` is torch's type: "cpu", "cuda". ``parts``: small parts of each image instead of enlarged crops.
    """
    cpu, side = device == "cpu", max(height, width)
    cut = max(1, min(height, width) // 2)  # the side of a part
    share = min(1.0, (PART / cut) ** 2) if parts else 1.0  # of the images, for as long a training
    if parts:
        encoder = ("quick", f"a {'small ' * cpu}network of wide convolutions, for parts of small images")
    elif min(height, width) < Conv4.least:
        encoder = ("resnet8", f"a small network that takes fewer than {Conv4.least} pixels")
    elif cpu or side <= TINY:
        encoder = ("conv4", "a small network, since a CPU is slow" if cpu else "a small network for tiny images")
    else:
        encoder = ("resnet18", "the usual network; its first layers follow the size of the images")
    batch = max(2, min(64 if cpu else 512 if parts else 256, PIXELS // (height * width), count // 4))
    if cpu:
        epochs = min(max(int(share * CPU_PARTS if parts else CPU_PIXELS // (height * width)) // count, 5), 100)
        ends = "for minutes on a CPU, within 5 to 100"
    else:
        epochs = min(max(int(share * GPU_IMAGES) // count, 20), 400)
        ends = f"for {share * GPU_IMAGES / 1e6:.3g} million images in all, within 20 to 400"
    chosen: dict[str, tuple[object, str]] = {
        "encoder.name": encoder,
        "batch": (1 << (batch.bit_length() - 1), "a power of two, at most a quarter of the images"),
        "epochs": (epochs, ends),
    }
    if not parts:
        crops = ("self-supervised", "SimCLR's, for photos")
        return chosen | {
            "views.preset": crops if side > SMALL else ("modern", "SimCLR's with weaker colours, for small images")
        }
    why = "small parts of each image learn more in the same time than two enlarged crops"
    values: dict[str, object] = {"method.views": PARTS, "method.against": "mean", "views.size": (cut, cut)}
    values |= {"optimizer.filters": True, "optimizer.lr": 7e-3, "head.layers": 3, "objective.temperature": 0.2}
    values |= {"encoder.widths": (32, 64, 128), "encoder.depth": 2, "head.hidden": 256} if cpu else {}
    chosen |= {"views.preset": ("parts", why), "optimizer.name": ("muon", "it learns them faster than Adam")}
    return chosen | {path: (value, why) for path, value in values.items()}


def suit_parts(height: int, width: int) -> bool:
    """Whether small parts are chosen for images of that size: others were not tried."""
    return TINY <= min(height, width) <= max(height, width) <= SMALL


def recipe_for(base: Recipe, images: ImageSet, *, device: str, changes: Mapping[str, object]) -> Recipe:
    """``base`` with what ``choose`` says for these images, then with a person's ``changes``.

    No warm-up, and partial batches: these fit any batch and epochs that a person gives.
    """
    count, (height, width) = len(images), images.images.shape[2:]
    robust = {"optimizer.name": "adam", "schedule.name": "cosine", "drop_last": False}
    about = f"chosen for {count:,} images of {height}x{width} on {'a CPU' if device == 'cpu' else 'a GPU'}"

    def start(parts: bool) -> Recipe:
        values = {path: value for path, (value, _) in choose(count, height, width, device, parts=parts).items()}
        return base.changed(robust | values | {"about": about})

    plain = start(False)
    given = plain.changed(changes)
    named = {SHORT.get(path, path).partition(".")[0] for path in changes}
    free = not named.intersection(DECIDED) and all(getattr(given, part) == getattr(plain, part) for part in DECIDED)
    return start(True).changed(changes) if free and suit_parts(height, width) else given


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
    parts = recipe.views.name == "parts"
    chosen = {} if count is None else choose(count, height, width, device.type, parts=parts)
    lines.append(f"{recipe.about}; --encoder, --batch, ... change it:" if chosen else "by the recipe:")
    shown = ("encoder.name", "batch", "epochs", "views.preset", *(["optimizer.name"] if chosen and parts else []))
    for path in shown:
        value, why = chosen.get(path, (values[path], ""))
        reason = f": {why if value == values[path] else 'as asked'}" if chosen else ""
        lines.append(f"  {path.partition('.')[0]} {values[path]}{reason}")
    lines.append(f"  precision {precision}")
    size = train_set.images.nbytes / 1e6
    memory = f"all training pixels ({size:,.1f} MB) stay in the memory of {device}, decoded once at the start"
    pixels = train_set.pixels
    lines.append(memory if pixels is None or pixels.resident else f"pixels live {pixels.where}")
    return [f"  {line}" if k else line for k, line in enumerate(lines)]
