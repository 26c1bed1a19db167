"""The front door: what the command line does, in three lines of a notebook.

run = sw.pretrain("photos/", encoder="resnet18", terms={"qare": 0.5})
features = run.embed(images)
accuracies = run.probe()
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import setwise.records as records
import setwise.runs as runs
from setwise.data import ImageSet
from setwise.evaluation.features import extract, frozen
from setwise.paper.recipes import recipe as named
from setwise.recipe import Recipe, trust
from setwise.runs import run_of
from setwise.training import checkpoint as checkpoints
from setwise.training.loop import RunOptions

DEFAULT = "paper/digits-conv4-simclr-qare"


@dataclass(frozen=True)
class Run:
    """A run that has ended, in its ``folder``: the ``encoder``, trained and in evaluation mode, and the ``record``."""

    folder: Path
    recipe: Recipe
    encoder: nn.Module = field(repr=False)
    record: dict[str, Any] = field(repr=False)
    data: dict[str, Any] = field(repr=False)  # of the images that it was trained on: shape, mean, std, classes

    def embed(self, images: Tensor | np.ndarray[Any, Any], *, device: str = "auto") -> Tensor:
        """Features [N, F] of images, uint8 [N, C, H, W] with values 0 to 255, normalised as in training."""
        pixels = torch.as_tensor(images)
        shape = tuple(self.data["shape"])
        if pixels.dtype != torch.uint8 or pixels.ndim != 4 or pixels.shape[1] != shape[0]:
            raise ValueError(
                f"expected images of torch.uint8 and shape (N, {shape[0]}, H, W), got {pixels.dtype} of shape "
                f"{tuple(pixels.shape)}; setwise.data.load gives such images"
            )
        labels = torch.zeros(len(pixels), dtype=torch.int64)
        one = ImageSet("images", "all", pixels, labels, ("any",), tuple(self.data["mean"]), tuple(self.data["std"]))
        where = runs.choose_device(device)
        with frozen(self.encoder.to(where)):
            return extract(self.encoder, one, device=where).cpu()

    def probe(self, *, device: str = "auto", fine_tune: bool = False) -> dict[str, Any]:
        """Linear probe and kNN of the frozen encoder, anew."""
        return runs.probe(self.folder, device=runs.choose_device(device), fine_tune=fine_tune, quiet=True)


def pretrain(
    data: str | os.PathLike[str] | None = None,
    *,
    recipe: str | Recipe | None = None,
    method: str | None = None,
    encoder: str | None = None,
    terms: Mapping[str, float] | None = None,
    changes: Mapping[str, object] | None = None,
    seed: int = 1,
    out: str | os.PathLike[str] | None = None,
    root: str | os.PathLike[str] | None = None,
    device: str = "auto",
    resume: bool = False,
    evaluate: bool = True,
    quiet: bool = True,
) -> Run:
    """Train by a recipe and give the run, as `setwise pretrain` (or `match`) does.

    ``data`` is a name or a path; ``recipe`` a name, a TOML file, or a ``Recipe``. ``changes`` are fields of the recipe
    by their paths, as in {"objective.temperature": 0.2, "epochs": 20}; ``method``, ``encoder`` and ``terms`` (a weight
    for each set-level term) are those that people change most. ``out``: the run's folder, runs/NAME/seed-N if none.

    Examples:
        >>> run = sw.pretrain("digits", terms={"qare": 0.5}, changes={"epochs": 1, "probe.epochs": 1}, out="runs/a")
        >>> run.embed(sw.data.load("digits", split="test").images).shape
        torch.Size([500, 64])
    """
    name = recipe if isinstance(recipe, str) else "own" if recipe is not None else DEFAULT
    wanted: dict[str, object] = dict(changes or {})
    wanted |= {key: x for key, x in (("method", method), ("encoder", encoder)) if x is not None}
    if data is not None:
        wanted["data.source"] = os.fspath(data)
    if terms is not None:
        wanted["terms"] = [{"term": term, "weight": weight} for term, weight in terms.items()]
    trust(wanted)  # a person wrote it
    known = recipe if isinstance(recipe, Recipe) else read_recipe(name)
    chosen = known.changed(wanted)
    folder = Path(out) if out is not None else Path("runs") / name.removesuffix(".toml") / f"seed-{seed}"
    how = RunOptions(runs.choose_device(device), resume=resume, quiet=quiet)
    title = name if chosen == known else f"{name} (changed)"
    where = None if root is None else Path(root)
    run_of(chosen)(chosen, folder, name=title, seed=seed, how=how, root=where, evaluate=evaluate)
    return load_run(folder)


def load_run(folder: str | os.PathLike[str]) -> Run:
    """The run in a folder that `setwise pretrain`, `match` or ``pretrain`` wrote.

    Examples:
        >>> made = sw.pretrain("digits", changes={"epochs": 1}, evaluate=False, out="runs/b")
        >>> sw.load_run("runs/b").recipe == made.recipe
        True
    """
    place = Path(folder)
    found = checkpoints.load(place)
    encoder = runs.encoder_of(found, place).eval()
    return Run(place, found.recipe, encoder, records.read(place), found.data)


def read_recipe(name: str) -> Recipe:
    """The recipe of that name, or in that TOML file."""
    import tomllib

    if not name.endswith(".toml"):
        return named(name)
    try:
        return Recipe.read(tomllib.loads(Path(name).read_text()))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(
            f"expected a recipe in TOML at {name}, got: {error}; `setwise recipes NAME` prints one"
        ) from error
