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
from pathlib import Path

import torch

from setwise.paper.recipes import recipe
from setwise.runs.matching import run_matching
from setwise.training.environment import environment
from setwise.training.loop import RunOptions

SEEDS = (1, 2, 3)


def accuracies(changes: dict[str, str]) -> dict[str, list[float]]:
    """Per cent, of each seed."""
    found: dict[str, list[float]] = {"val_accuracy": [], "held_out_accuracy": []}
    how = RunOptions(torch.device("cpu"), quiet=True)
    changed = recipe("paper/digits-matching-nt-logistic").changed(changes)
    for seed in SEEDS:
        with tempfile.TemporaryDirectory() as folder:
            record = run_matching(changed, Path(folder), name="x", seed=seed, how=how)
        for name, values in found.items():
            values.append(100 * record["final"][name])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    losses = {
        f"{similarity}, {negatives}": {"objective.similarity": similarity, "objective.negatives": negatives}
        for similarity in ("euclidean", "cosine")
        for negatives in ("mean", "sum", "hardest")
    }
    losses["InfoNCE, euclidean"] = {"objective.loss": "info-nce", "objective.similarity": "euclidean"}
    record = {"what": "nt-logistic", **environment(torch.device("cpu")), "seeds": SEEDS, "forms": {}}
    for name, changes in losses.items():
        found = record["forms"][name] = accuracies(changes)
        print(name, {key: round(statistics.fmean(values), 2) for key, values in found.items()}, flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
