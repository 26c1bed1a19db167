"""Which form NT-Logistic should have in instance matching, where the paper gives none: halves of digits, on a CPU.

    python benchmarks/nt_logistic.py --json results/nt-logistic.json

Its negatives' terms may be averaged, summed (as word2vec, which the paper cites, does) or the hardest taken; pairs may
be compared by Euclidean distance, as the matching recipe does everywhere else, or by cosine. The mean matching accuracy
of the validation split, and of the held-out sets, over three seeds; InfoNCE for comparison.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn

import setwise as sw
from setwise.experiments.matching import run_matching
from setwise.experiments.recipes import recipe
from setwise.experiments.records import surroundings
from setwise.losses import presets
from setwise.training.loop import How

PLACE = "paper/matching-nt-logistic"
SEEDS = (1, 2, 3)


@contextmanager
def instead(loss: nn.Module) -> Iterator[None]:
    """Let the preset stand for another loss."""
    usual = presets._PLAIN[PLACE]
    presets._PLAIN[PLACE] = lambda: loss
    try:
        yield
    finally:
        presets._PLAIN[PLACE] = usual


def accuracies(loss: nn.Module) -> dict[str, list[float]]:
    """Per cent, of each seed."""
    found: dict[str, list[float]] = {"val_accuracy": [], "held_out_accuracy": []}
    how = How(torch.device("cpu"), quiet=True)
    for seed in SEEDS:
        with instead(loss), tempfile.TemporaryDirectory() as folder:
            record = run_matching(
                recipe("paper/digits-matching-nt-logistic"), Path(folder), name="x", seed=seed, how=how
            )
        for name, values in found.items():
            values.append(100 * record["final"][name])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    losses: dict[str, nn.Module] = {
        f"{similarity}, {negatives}": sw.NTLogistic(similarity=similarity, negatives=negatives)
        for similarity in ("euclidean", "cosine")
        for negatives in ("mean", "sum", "hardest")
    }
    losses["InfoNCE, euclidean"] = sw.InfoNCE(similarity="euclidean")
    record = {"what": "nt-logistic", **surroundings(torch.device("cpu")), "seeds": SEEDS, "forms": {}}
    for name, loss in losses.items():
        found = record["forms"][name] = accuracies(loss)
        print(name, {key: round(statistics.fmean(values), 2) for key, values in found.items()}, flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
