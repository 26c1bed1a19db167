"""What a run on your own images chose, in a few lines for people."""

from __future__ import annotations

import torch

from setwise.data import ImageSet
from setwise.recipe import Recipe


def choices(recipe: Recipe, train_set: ImageSet, test_set: ImageSet | None, device: torch.device) -> list[str]:
    """Images, classes, splits, size, what was left out, network, precision and memory. Nothing for sets by name."""
    if not train_set.notes:
        return []
    count = len(train_set.classes)
    classes = f"{count:,} classes" if count > 1 else f"one class ({train_set.classes[0]})" if count else "no classes"
    lines = [f"{train_set.name}: {len(train_set):,} images to train on, {classes}"]
    own = test_set is not None and test_set.split in ("test", "val")
    if test_set is not None:
        drawn = "" if own else f", drawn by split_seed {recipe.data.split_seed}"
        lines.append(f"{len(test_set):,} images to test on: {test_set.split}{drawn}")
    elif count < 2:
        lines.append("no probe at the end: that needs two classes or more, each in a folder of its own")
    lines += [note.replace("\n", "\n  ") for note in train_set.notes]
    if test_set is not None and own:
        lines += [f"{test_set.split}: {note}" for note in test_set.notes[1:]]
    precision = recipe.precision
    if precision == "auto":
        precision = "bfloat16" if device.type == "cuda" else "float32"
    lines.append(f"{recipe.encoder.name}, batch {recipe.batch}, {recipe.epochs} epochs, {precision}, by the recipe")
    size = train_set.images.nbytes / 1e6
    memory = f"all training pixels ({size:,.1f} MB) stay in the memory of {device}, decoded once at the start"
    lines.append(memory if train_set.pixels is None else f"pixels live {train_set.pixels.where}")
    return [f"  {line}" if k else line for k, line in enumerate(lines)]
