"""The front door: what the command line does, in three lines of a notebook.

run = sw.pretrain("photos/", encoder="resnet18", terms={"qare": 0.5})
table = run.embed("photos/")
accuracies = run.probe()
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

import setwise.records as records
import setwise.register as register
import setwise.runs as runs
from setwise.checks import see
from setwise.data import ImageSet, PairSet
from setwise.data.api import Where
from setwise.data.formats.folder import CPU_SIDE
from setwise.data.formats.folder import NAME as IMAGE_FOLDER
from setwise.data.loading import source_of
from setwise.encoders.backbones import check_package
from setwise.evaluation.embedding import EmbeddingTable
from setwise.evaluation.features import extract, frozen
from setwise.paper.recipes import recipe as recipe_by_name
from setwise.recipe import SHORT, Recipe, source_entry, trust
from setwise.runs.pretraining import PYTHON
from setwise.training import checkpoint as checkpoints
from setwise.training.checkpoint import Checkpoint
from setwise.training.libraries import waken
from setwise.training.loggers import read_loggers
from setwise.training.loop import FILE as CHECKPOINT
from setwise.training.loop import RunOptions, check_no_run, check_place
from setwise.training.processes import join, leave

DEFAULT = "paper/digits-conv4-simclr-qare"  # of data sets by name
BASE = "modern/cifar10-resnet18-simclr"  # of your own images, which decide the rest
PAIRS = {  # of pairs, by what their first side is made of
    "ids": "pairs/multi30k-bag-infonce",
    "features": "pairs/feature-pairs-mlp-infonce",
    "images": "pairs/captions-resnet18-infonce",
    "halves": "pairs/digits-halves-resnet8-infonce",
}
FILES = {"feature-pairs": "features", "captions": "images", "halves": "halves"}  # kinds of sources that are not ids
Place = str | os.PathLike[str]
OWN = "sw.data.from_images makes an ImageSet of files, arrays and data sets"
LoggerChoice = str | Mapping[str, object]  # its name, or a table of "name" and its options


@dataclass(frozen=True)
class Plan:
    """A recipe that is ready to run."""

    recipe: Recipe
    name: str  # of the recipe that it began as, or of your own images: for the folder
    title: str  # for people and for the record
    changes: Mapping[str, object] | None = None  # what a person gave, where the images decide all else


@dataclass(frozen=True)
class Run:
    """A run that has ended, in its ``folder``."""

    folder: Path

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """The last checkpoint."""
        return checkpoints.load(self.folder)

    @property
    def recipe(self) -> Recipe:
        """Every number that decided the run, except its seed."""
        return self.checkpoint.recipe

    @cached_property
    def encoder(self) -> nn.Module:
        """The trained encoder, in evaluation mode."""
        return runs.encoder_of(self.checkpoint, self.folder).eval()

    @cached_property
    def record(self) -> dict[str, Any]:
        """The record: recipe, metrics of every epoch, accuracies, versions, hardware."""
        record: dict[str, Any] = records.read(self.folder)
        return record

    @overload
    def embed(self, images: Tensor | np.ndarray[Any, Any], *, device: str = "auto") -> Tensor: ...

    @overload
    def embed(self, images: Place | ImageSet, *, device: str = "auto", skip_broken: bool = False) -> EmbeddingTable: ...

    def embed(
        self,
        images: Tensor | np.ndarray[Any, Any] | Place | ImageSet,
        *,
        device: str = "auto",
        skip_broken: bool = False,
    ) -> Tensor | EmbeddingTable:
        """Features of images, normalised as in training.

        Images are a tensor or array, uint8 [N, C, H, W] with values 0 to 255: the result is a tensor [N, F]. Or they
        are a folder, the name of a data set, or an ``ImageSet``: the result is a table of ``paths``, ``labels`` and
        ``embeddings``, which is kept in the run's folder and goes on where it was stopped, as `setwise embed` does.
        """
        if isinstance(images, (str, os.PathLike, ImageSet)):
            where = runs.choose_device(device)
            return runs.embed(self.folder, images, device=where, skip_broken=skip_broken, quiet=True)
        if not isinstance(images, (Tensor, np.ndarray)):
            raise ValueError(
                f"expected images as a tensor, an array, a path or an ImageSet, got {type(images).__name__}; {OWN}"
            )
        pixels, data = torch.as_tensor(images), self.checkpoint.data
        channels = data["shape"][0]
        if pixels.dtype != torch.uint8 or pixels.ndim != 4 or pixels.shape[1] != channels:
            raise ValueError(
                f"expected images of torch.uint8 and shape (N, {channels}, H, W), got {pixels.dtype} of shape "
                f"{tuple(pixels.shape)}; setwise.data.load gives such images"
            )
        labels = torch.zeros(len(pixels), dtype=torch.int64)
        one = ImageSet("images", "all", pixels, labels, ("any",), tuple(data["mean"]), tuple(data["std"]))
        where = runs.choose_device(device)
        with frozen(self.encoder.to(where)):
            return extract(self.encoder, one, device=where).cpu()

    def embed_pairs(
        self, pairs: Place | PairSet, *, second: str | None = None, device: str = "auto"
    ) -> tuple[Tensor, Tensor]:
        """The embeddings [N, E] of both sides of pairs, for a run of method pairs.

        Pairs are a file, a ``PairSet``, or a data set, of which the test split counts. Embeddings are what the loss
        sees, behind the heads. Texts are read as in training. ``second`` names the second .npy file, if it is another
        than in training.
        """
        return runs.embed_run(self.folder, pairs, device=runs.choose_device(device), second=second)

    def probe(
        self, data: Place | ImageSet | None = None, *, device: str = "auto", fine_tune: bool = False
    ) -> dict[str, Any]:
        """Linear probe and kNN of the frozen encoder, measured again, on the run's data or on ``data``.

        A run on images from Python needs them again, as ``data``.
        """
        given = data if isinstance(data, ImageSet) or data is None else os.fspath(data)
        where = runs.choose_device(device)
        return runs.probe(self.folder, data=given, device=where, fine_tune=fine_tune, quiet=True)


def pretrain(
    data: Place | ImageSet | PairSet | None = None,
    *,
    recipe: str | Recipe | Plan | None = None,
    method: str | None = None,
    encoder: str | None = None,
    terms: Mapping[str, float | None] | None = None,
    changes: Mapping[str, object] | None = None,
    seed: int = 1,
    out: Place | None = None,
    root: Place | None = None,
    device: str = "auto",
    resume: bool = False,
    evaluate: bool = True,
    capture: bool = True,
    compile: bool = False,
    pixels: Where = "auto",
    checkpoint_seconds: float = 60.0,
    loggers: Sequence[LoggerChoice] = (),
    quiet: bool = True,
) -> Run:
    """Train by a recipe, evaluate, write the record. `setwise pretrain` and `setwise match` call this function.

    ``data`` is a name, a path, an ``ImageSet`` (see ``sw.data.from_images``) or a ``PairSet``; ``recipe`` a name, a
    TOML file, or a ``Recipe``. Without a recipe your own images decide: network, batch, epochs and views follow from
    their number, their size and the device. ``changes`` are fields of the recipe by their paths, as in
    {"objective.temperature": 0.2, "epochs": 20}; ``method``, ``encoder`` and ``terms`` (a weight for each set-level
    term, instead of the recipe's) are those that people change most. ``pixels``: as for ``sw.data.load``. ``out``: the
    run's folder, runs/NAME/seed-N if none. ``compile``: the encoder, by torch.compile. ``loggers``: names, or tables
    such as {"name": "wandb", "project": "mine"}.

    Examples:
        >>> run = sw.pretrain("digits", terms={"qare": 0.5}, changes={"epochs": 1, "probe.epochs": 1}, out="runs/a")
        >>> run.embed(sw.data.load("digits", split="test").images).shape
        torch.Size([500, 64])
    """
    if data is not None and not isinstance(data, (str, os.PathLike, ImageSet, PairSet)):
        raise ValueError(f"expected data as a path, a name, an ImageSet or a PairSet, got {type(data).__name__}; {OWN}")
    pages = {"method": see("how-to/your-method#your-method"), "encoder": see("how-to/your-method#your-network")}
    for path, name in (("method", method), ("encoder", encoder)):
        if not isinstance(name, (str, type(None))):
            raise ValueError(
                f"expected {path} as a name, got {type(name).__name__}; register your own under a name, {pages[path]}"
            )
    given = data if isinstance(data, (ImageSet, PairSet)) else None
    source = f"{PYTHON}{data.name}" if isinstance(data, (ImageSet, PairSet)) else data
    wanted: dict[str, object] = {}
    kind = data.first.kind if isinstance(data, PairSet) else ""
    if isinstance(data, PairSet) and recipe is None:
        wanted = {"second_encoder": "none"}
        if data.second.kind != kind:
            wanted = {"second_encoder": recipe_by_name(PAIRS[data.second.kind]).encoder.name, "method.head": "linear"}
    wanted |= dict(changes or {}) | {
        path: os.fspath(value)
        for path, value in (("data.source", source), ("method", method), ("encoder", encoder))
        if value is not None
    }
    plan = recipe if isinstance(recipe, Plan) else compose(recipe, wanted, terms, kind=kind)
    # What cannot work raises now: to read many images first takes minutes.
    more: Any = tuple(loggers)
    read_loggers(more)
    folder = Path("runs", plan.name, f"seed-{seed}") if out is None else Path(out)
    place = None if root is None else Path(root)
    if not resume:
        check_no_run(folder)
    alone = not (dist.is_available() and dist.is_initialized())
    processes, where = join(runs.choose_device(device))
    waken(where)
    how = RunOptions(
        where,
        resume=resume,
        processes=processes,
        capture=capture,
        compile=compile,
        pixels=pixels,
        checkpoint_seconds=checkpoint_seconds,
        loggers=more,
        quiet=quiet,
    )
    try:
        chosen, changes = plan.recipe, plan.changes
        if changes is not None and resume and (folder / CHECKPOINT).exists():  # it keeps what it chose
            chosen, changes = checkpoints.load(folder).recipe.changed(changes), None
        if processes.first:
            check_place(folder)
        for one in filter(None, (chosen.encoder, chosen.second_encoder)):
            check_package(one.name)
        source = chosen.data.source
        file = "pairs" in source_entry(source).takes and Path(source).is_file()
        if source not in register.data and (file or Path(source).is_dir()):  # the run finds its data from elsewhere too
            chosen = chosen.changed({"data.source": os.path.abspath(source)})
        options: Any = {"name": plan.title, "seed": seed, "how": how, "root": place, "evaluate": evaluate}
        if changes is not None:
            assert not isinstance(given, PairSet)  # of which ``compose`` gives no changes
            wanted = {**changes, "data.source": chosen.data.source}
            photos = given is None and source_of(chosen.data.source)[0] == IMAGE_FOLDER
            if where.type == "cpu" and photos and chosen.data.options.get("size") is None:
                wanted = {"data.largest": CPU_SIDE, **wanted}
                chosen = chosen.changed(wanted)
            decide = partial(runs.recipe_for, _read(BASE), changes=wanted, device=where.type)
            runs.pretrain(chosen, folder, images=given, decide=decide, **options)
        else:
            runs.run_of(chosen)(chosen, folder, images=given, **options)
    finally:
        if alone:
            leave()
    return load_run(folder) if processes.first else Run(folder)


def load_run(folder: Place) -> Run:
    """The run in a folder that `setwise pretrain`, `match` or ``pretrain`` wrote; its checkpoint names it too.

    Examples:
        >>> made = sw.pretrain("digits", changes={"epochs": 1}, evaluate=False, out="runs/b")
        >>> sw.load_run("runs/b").recipe == made.recipe
        True
    """
    path = Path(folder)
    run = Run(path.parent if path.name == CHECKPOINT and path.is_file() else path)
    _ = run.encoder, run.record  # read now: the folder may go away
    return run


def compose(
    recipe: str | Recipe | None,
    changes: Mapping[str, object],
    terms: Mapping[str, float | None] | None = None,
    *,
    kind: str = "",
) -> Plan:
    """The recipe, by name or from a file, with its changes; without one, the default, or what own images decide.

    ``terms`` replace the recipe's. A term that the recipe has keeps its options, and its weight where None is given.
    ``kind``: of pairs from Python, what their first side is made of.
    """
    register.load_entry_points()
    trust({**changes, "terms": [{"term": term} for term in terms or ()]})  # a person wrote these names
    source = next((str(x) for path, x in changes.items() if SHORT.get(path, path) == "data.source"), "")
    method = next((str(x) for path, x in changes.items() if SHORT.get(path, path) == "method.name"), "")
    own = recipe is None and source != "" and source not in register.data
    entry = source_entry(source) if source else None
    pairs = recipe is None and (kind != "" or method == "pairs" or (entry is not None and "pairs" in entry.takes))
    if pairs:
        kind = kind or FILES.get(entry.name if entry is not None else "", "ids")
        if method == "pairs":  # as the recipe has it, with its options
            changes = {path: x for path, x in changes.items() if SHORT.get(path, path) != "method.name"}
    given, recipe = changes, recipe or (PAIRS[kind] if pairs else BASE if own else DEFAULT)
    start, name = (recipe, "own") if isinstance(recipe, Recipe) else (_read(recipe), recipe)
    if terms is not None:
        mine = {one.term.name: one.tree() for one in start.objective.terms} if start.objective is not None else {}
        weights = {term: {} if weight is None else {"weight": weight} for term, weight in terms.items()}
        changes = {**changes, "terms": [mine.get(term, {"term": term}) | weight for term, weight in weights.items()]}
    if own and pairs:
        path = Path(source.removeprefix(PYTHON)).resolve()
        path = path.parent if kind == "images" and path.is_file() else path  # photos/captions.tsv
        name = path.name.partition(".")[0] or "pairs"
    elif own:
        about = "of which your images decide encoder, batch, epochs and views, unless you do"
        images = Path(source).resolve().name.removeprefix(PYTHON) or "images"
        plan = Plan(start.changed({"warmup": 0, "about": about, **changes}), images, images, changes)
        return compose(DEFAULT, given, terms) if plan.recipe.matched else plan
    chosen = start.changed(changes)
    return Plan(chosen, name.removesuffix(".toml"), name if chosen == start else f"{name} (changed)")


def _read(name: str) -> Recipe:
    """The recipe of that name, or in that TOML file."""
    if not name.endswith(".toml"):
        return recipe_by_name(name)
    try:
        return Recipe.read(tomllib.loads(Path(name).read_text()))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(
            f"expected a recipe in TOML at {name}, got: {error}; `setwise recipes NAME` prints one"
        ) from error
