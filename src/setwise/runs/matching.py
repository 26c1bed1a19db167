"""Instance matching from its recipe to its record: the paper's Table 1, and what lies beyond it.

The epoch is chosen by the validation split's matching accuracy; its test accuracy is what counts. Then, with that
epoch's weights: the quadratic assignment, whose weight is chosen on the validation split too, and both assignments
averaged over many held-out sets where the data has any (one set of 220 is too noisy to tell losses apart).
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import setwise.records as records
from setwise.assignment.linear import matching_accuracy
from setwise.data import ImageSet, MatchedSet, halves_to_spare, load, load_matched, matched_halves
from setwise.evaluation.features import extract
from setwise.evaluation.matching import choose_weight, match, match_quadratic
from setwise.methods import Matching
from setwise.recipe import Recipe
from setwise.report.matching_page import write_page
from setwise.training.checkpoint import replacing
from setwise.training.engine import Engine, untrained
from setwise.training.loop import RunOptions, train
from setwise.training.progress import print_line

BEST = "best.safetensors"  # the weights of the chosen epoch
HELD_OUT = 20  # sets
LEAST = 6  # identities: the fewest of which 70, 15 and 15 % are at least one each


@dataclass(frozen=True)
class MatchingData:
    """The three splits by identity, and further identities that no split has, in sets as large as the test split."""

    train: MatchedSet
    val: MatchedSet
    test: MatchedSet
    held_out: list[MatchedSet]


def matching_data(recipe: Recipe, root: Path | None) -> MatchingData:
    """The recipe's data: CUHK-03's two cameras, or the halves of the images of any other set.

    Halves of a set's own test images are the held-out sets; CUHK-03 has none, nor has a folder without a test folder.
    """
    data = recipe.data
    return _matching_data(data.source, root, data.split_seed, data.instances, tuple(data.options.items()))


@lru_cache(maxsize=1)  # many runs in a row are of the same data
def _matching_data(
    name: str, root: Path | None, seed: int, instances: int | None, options: tuple[tuple[str, Any], ...]
) -> MatchingData:
    train_set, val, test = (
        load_matched(name, root, split=split, seed=seed, instances=instances, options=dict(options))
        for split in ("train", "val", "test")
    )
    sizes = [len(train_set), len(val), len(test)]
    if not all(sizes):
        raise ValueError(
            f"expected at least {LEAST} identities in {name}, so that train, val and test have some, got {sum(sizes)}; "
            "give more images, or a larger --instances"
        )
    held_out = []
    if halves_to_spare(name):
        more = matched_halves(load(name, root, split="test", options=dict(options), pixels="resident"))
        count = min(HELD_OUT, len(more) // len(test))
        held_out = [
            more.select(torch.arange(i * len(test), (i + 1) * len(test)), split="held out") for i in range(count)
        ]
    return MatchingData(train_set, val, test, held_out)


class _Embedder(nn.Module):
    """A matching method as an encoder of single images."""

    def __init__(self, method: Matching) -> None:
        super().__init__()
        self.method = method

    def forward(self, images: Tensor) -> Tensor:
        return self.method.embed(images)


def embed(method: Matching, data: MatchedSet, device: torch.device) -> tuple[Tensor, Tensor]:
    """Embeddings [N, E] of the first shot of every identity in both views, on the CPU."""
    double = next(method.parameters()).dtype == torch.float64
    found = []
    for images in (data.first_a, data.first_b):
        labels = torch.zeros(len(images), dtype=torch.int64)
        one = ImageSet(data.name, data.split, images, labels, ("any",), data.mean, data.std)
        z = extract(_Embedder(method), one, device=device, precision="float64" if double else "float32")
        found.append(z.cpu())
    return found[0], found[1]


def run_matching(
    recipe: Recipe,
    folder: Path,
    *,
    name: str,
    seed: int,
    how: RunOptions,
    root: Path | None = None,
    evaluate: bool = True,
    images: ImageSet | None = None,
) -> dict[str, Any]:
    """Train, choose the epoch, match the test split both ways, write record and page; returns the record."""
    if images is not None:
        raise ValueError("expected the name or path of data for matching, got an ImageSet; save it as a folder")
    data, device = matching_data(recipe, root), how.device

    def after_epoch(engine: Engine, history: list[dict[str, Any]]) -> dict[str, float]:
        assert isinstance(engine.method, Matching)
        val = matching_accuracy(*embed(engine.method, data.val, device))
        if val > max((row["val_accuracy"] for row in history), default=-1.0):
            engine.keep()
        return {"val_accuracy": val}

    sizes = {split: len(getattr(data, split)) for split in ("train", "val", "test")}
    if how.processes.first and not how.quiet:
        halves = ", each the left and the right half of an image" if data.train.name.endswith("-halves") else ""
        counts = " / ".join(map(str, sizes.values()))
        print_line(f"{data.train.name}: {counts} items for train / val / test{halves}", sys.stdout)
    title = f"{name} seed {seed}"
    engine, last = train(recipe, data.train, folder, seed=seed, how=how, title=title, after_epoch=after_epoch)
    about = {"name": data.train.name, **sizes, "held_out_sets": len(data.held_out)}
    record = records.of_run(name, engine, last, about)
    if not how.processes.first:
        return record
    if evaluate:
        method = engine.method
        assert isinstance(method, Matching)
        if engine.kept:  # there is none after no epoch at all
            method.load_state_dict(engine.kept)
        _write(folder / BEST, method)
        began = time.perf_counter()
        record["final"] = evaluate_matching(method, data, last.history, device)
        record["timings"]["evaluation_seconds"] = time.perf_counter() - began
        start = untrained(recipe, data.train, seed).to(device)
        assert isinstance(start, Matching)
        write_page(folder, record, data.test, embed(start, data.test, device), embed(method, data.test, device))
    records.write(folder / records.FILE, record)
    return record


def evaluate_matching(
    method: Matching, data: MatchingData, history: list[dict[str, Any]], device: torch.device
) -> dict[str, Any]:
    """Accuracies of the chosen epoch's weights: linear and quadratic, on the test split and the held-out sets.

    Epoch 0 is before the first one. What is infinite, such as the margin of one identity, is None.
    """
    best = max(history, key=lambda row: row["val_accuracy"], default={"epoch": 0})  # the first of equals
    val, test = embed(method, data.val, device), embed(method, data.test, device)
    found = match(*test)
    weight = choose_weight([val])
    final: dict[str, Any] = {
        "best_epoch": best["epoch"],
        "val_accuracy": match(*val).accuracy,
        "test_accuracy": found.accuracy,
        "quadratic_weight": weight,
        "quadratic_val_accuracy": match_quadratic(*val, weight=weight).accuracy,
        "quadratic_test_accuracy": match_quadratic(*test, weight=weight).accuracy,
        **{f"rank{k}": share for k, share in found.rank.items()},
        "mean_average_precision": found.mean_average_precision,
        "greedy_accuracy": found.greedy_accuracy,
        "greedy_gap": _finite(found.greedy_gap),
        "margin": _finite(found.margin),
    }
    if data.held_out:
        pairs = [embed(method, one, device) for one in data.held_out]
        final["held_out_accuracy"] = statistics.fmean(match(*pair).accuracy for pair in pairs)
        final["quadratic_held_out_accuracy"] = statistics.fmean(
            match_quadratic(*pair, weight=weight).accuracy for pair in pairs
        )
    return final


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _write(path: Path, method: Matching) -> None:
    from safetensors.torch import save_file

    tensors = {name: x.detach().cpu().contiguous() for name, x in method.state_dict().items()}
    with replacing(path) as temporary:
        save_file(tensors, temporary)
