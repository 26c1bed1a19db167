"""Pairs of any kind from their recipe to their record: two encoders that find each other's partners."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import setwise.records as records
import setwise.register as register
from setwise.data import PairSet, has_test_split, load_pairs
from setwise.data.loading import source_of
from setwise.data.texts import first_line
from setwise.encoders import evaluating
from setwise.evaluation.retrieval import MOST, pair_retrieval
from setwise.methods import Batch, Pairs
from setwise.recipe import Recipe, source_entry
from setwise.runs.pretraining import HELD_OUT, PYTHON, hold_out
from setwise.training import checkpoint as checkpoints
from setwise.training.checkpoint import Checkpoint, replacing
from setwise.training.engine import untrained
from setwise.training.loop import RunOptions, about, check_same_data, train
from setwise.training.progress import print_line

ROWS = 1024  # pairs that go through the networks at a time
READING = ("vocabulary", "ngrams", "length")  # options of texts: how a run reads them, wherever they are


def pair_data(recipe: Recipe, root: Path | None, given: PairSet | None = None) -> tuple[PairSet, PairSet]:
    """The pairs to train on, and those to test on.

    ``data.validation`` training pairs, drawn by ``split_seed``, replace the test split. Where there is none, a tenth of
    the pairs is drawn in the same way, at most as many as are looked at. Then ``data.instances`` takes the first pairs.
    Of pairs with sets, those to train on are shuffled inside of them, by ``split_seed``.
    """
    data = recipe.data
    load_split = partial(load_pairs, data.source, root, options=data.options)
    train_set = load_split(split="train") if given is None else given
    alone = data.source.startswith(PYTHON) or not has_test_split(data.source)
    count = data.validation or (min(max(1, round(HELD_OUT * len(train_set))), MOST) if alone else 0)
    if count:
        kind = "validation" if data.validation else "held out"
        train_set, test_set = hold_out(train_set, count, seed=data.split_seed, kind=kind)
    else:
        test_set = load_split(split="test")
    if data.instances is not None:
        if data.instances > len(train_set):
            raise ValueError(
                f"expected instances of at most the {len(train_set)} training pairs, got {data.instances}; leave it out"
            )
        train_set = train_set.select(torch.arange(data.instances), split="train")
    if train_set.sets is not None:
        train_set = train_set.shuffled(seed=data.split_seed)
    return train_set, test_set


def run_pairs(
    recipe: Recipe,
    folder: Path,
    *,
    name: str,
    seed: int,
    how: RunOptions,
    root: Path | None = None,
    evaluate: bool = True,
    images: PairSet | None = None,
) -> dict[str, Any]:
    """Train, look for the partners of the test pairs both ways, write the record; returns the record.

    ``images`` replace the recipe's source; the name is that of other runs.
    """
    train_set, test_set = pair_data(recipe, root, images)
    if how.processes.first and not how.quiet:
        own = test_set.split in ("test", "val")
        drawn = "" if own else f", drawn by split_seed {recipe.data.split_seed}"
        lines = [f"{train_set.name}: {len(train_set):,} pairs to train on, {train_set.first} and {train_set.second}"]
        if train_set.sets is not None:
            sizes_of_sets = torch.unique(train_set.sets, return_counts=True)[1]
            least, most = int(sizes_of_sets.min()), int(sizes_of_sets.max())
            lines.append(
                f"  training knows their {len(sizes_of_sets):,} sets of {least} to {most} pairs, and not the pairs"
            )
        lines += [f"  {note}" for note in train_set.notes]
        lines.append(f"  {len(test_set):,} pairs to test on: {test_set.split}{drawn}")
        for line in lines:
            print_line(line, sys.stdout)
    engine, last = train(recipe, train_set, folder, seed=seed, how=how, title=f"{name} seed {seed}")
    sizes = {"name": train_set.name, "train": len(train_set), "test": len(test_set)}
    record = records.of_run(name, engine, last, sizes)
    if not how.processes.first:
        return record
    items = len(test_set) if test_set.labels is None else len(torch.unique(test_set.labels))
    if evaluate and items > 1:  # one alone always finds its partner
        assert isinstance(engine.method, Pairs)
        began = time.perf_counter()
        record["final"] = evaluate_pairs(engine.method, test_set, how.device)
        record["timings"]["retrieval_seconds"] = time.perf_counter() - began
    records.write(folder / records.FILE, record)
    return record


def evaluate_pairs(method: Pairs, pairs: PairSet, device: torch.device) -> dict[str, float]:
    """Recall both ways and matching accuracy. Of very many pairs some are taken at equal distances."""
    if len(pairs) > MOST:
        pairs = pairs.select(torch.arange(MOST) * len(pairs) // MOST, split=pairs.split)
    similarity: Any = getattr(method.pairwise, "similarity", "cosine")  # of a loss of your own
    items = pairs.first.rows, pairs.second.rows
    z_a, z_b = embed_pairs(method, pairs, device)
    labels = pairs.labels if pairs.sets is None else pairs.first.rows  # of an image with several captions
    return pair_retrieval(z_a, z_b, labels=labels, items=items, similarity=similarity)


@torch.no_grad()
def embed_pairs(method: Pairs, pairs: PairSet, device: torch.device) -> tuple[Tensor, Tensor]:
    """The embeddings [N, E] of both sides, float32 at least, on the CPU: nothing random, no autocast."""
    dtype = next(method.parameters()).dtype
    zero = torch.zeros((), dtype=torch.int64, device=device)
    found: list[tuple[Tensor, Tensor]] = []
    with evaluating(method):
        for rows in torch.split(torch.arange(len(pairs)), ROWS):
            first, second = (side.take(rows).to(device) for side in (pairs.first, pairs.second))
            places = rows.to(device)
            batch = Batch(first, places, places, zero, zero, dtype, device.type == "cuda", second)
            found.append(method.embed(method.encode(batch)))
    z_a, z_b = (torch.cat(side).cpu() for side in zip(*found, strict=True))
    return z_a, z_b


def embed_run(
    path: Path,
    pairs: str | os.PathLike[str] | PairSet,
    *,
    device: torch.device,
    root: Path | None = None,
    second: str | None = None,
) -> tuple[Tensor, Tensor]:
    """The embeddings of both sides of other pairs by a run's encoders and heads; of a data set, of its test split.

    ``second``: where the second side is, for a source that has such an option; None: as in training.
    """
    found = checkpoints.load(path)
    if not found.recipe.pairs:
        raise ValueError(f"expected a run of method pairs in {path}, got one of {found.recipe.method.name!r}")
    data = pairs if isinstance(pairs, PairSet) else _read_as(found, pairs, root, second)
    same = ("shape", "second_shape")
    theirs, mine = ({name: one.get(name) for name in same} for one in (found.data, about(data)))
    check_same_data(theirs, mine, f"{path} was trained on", "give pairs of the same kinds and sizes")
    state = {name.removeprefix("model."): x for name, x in found.tensors.items() if name.startswith("model.")}
    method = untrained(found.recipe, replace(data, labels=None, sets=None), 0)  # of which no loss is asked for
    if any(x.dtype == torch.float64 for x in state.values()):
        method.double()
    method.load_state_dict(state)
    assert isinstance(method, Pairs)
    return embed_pairs(method.to(device), data, device)


def _read_as(found: Checkpoint, source: str | os.PathLike[str], root: Path | None, second: str | None) -> PairSet:
    """The pairs of a source, read as the run read its own: the same words, the same size of images."""
    name, path = source_of(source)
    entry = register.data[name]
    used = found.recipe.data.options
    same = entry.name == source_entry(found.recipe.data.source).name
    options = {name: value for name, value in used.items() if name in entry.options and (same or name in READING)}
    if "size" in entry.options and (size := tuple(found.data["shape"][1:])):  # of images
        options["size"] = size
    if path is not None and options.get("sets") and options["sets"] not in first_line(path):
        del options["sets"]  # plain pairs, with no header
    if second is not None:
        if "second" not in entry.options:
            raise ValueError(f"expected no second side to be named for {source}, which holds both, got {second!r}")
        options["second"] = second
    return load_pairs(source, root, split="test" if has_test_split(source) else "train", options=options)


def write_sides(
    path: Path, source: str, out: Path, *, device: torch.device, root: Path | None = None, second: str | None = None
) -> list[Path]:
    """Write what ``embed_run`` gives to two .npy files, x-first.npy and x-second.npy for x.npy; returns them."""
    if out.suffix != ".npy":
        raise ValueError(f"expected a file that ends in .npy for the embeddings of pairs, got {out}")
    files = [out.with_name(f"{out.stem}-{side}.npy") for side in ("first", "second")]
    for file, z in zip(files, embed_run(path, source, device=device, root=root, second=second), strict=True):
        with replacing(file) as temporary, temporary.open("wb") as stream:
            np.save(stream, z.numpy(), allow_pickle=False)
    return files
