"""Does a set-level term help once the plain loss is tuned? Bitext retrieval on Multi30k, all tuned with one budget.

    python benchmarks/multi30k.py ROOT [--out FILE.json] [--part 1/4] [--sizes 1000 4000] [--second fr]
    python benchmarks/multi30k.py --show [--out FILE.json]

ROOT has the folder multi30k. For each number of training pairs, InfoNCE alone and with each of three terms:

1. Twenty-four trials, at the same points of a Halton sequence for all: temperature, epochs, weight decay, and the
   weight of the term where there is one. One seed, tested on the validation split.
2. The trial with the best recall@1, the mean of both ways, again with ten fresh seeds, tested on the test split.
3. A setting that nobody tuned, with the same ten seeds: temperature 0.05, 20 epochs.

Every run that ends is in FILE.json at once: the same command goes on where it was stopped. ``--part 2/4`` does every
fourth of the twelve settings from the second on, so that four processes share the work and the file.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch

from setwise.methods import Pairs
from setwise.paper.recipes import recipe as recipe_by_name
from setwise.paper.tuning import between, radical_inverse
from setwise.recipe import Recipe
from setwise.records.statistics import mean_std, paired_difference
from setwise.runs import choose_device
from setwise.runs.pairs import evaluate_pairs, pair_data
from trials import Results, trained

TRIALS = 24
SKIP = 20  # the first points of the sequence lie on a line
TEMPERATURES = (0.02, 0.5)
DECAYS = (1e-3, 1.0)  # of AdamW
EPOCHS = {1000: (20, 40, 80, 120), 4000: (20, 40, 80, 120), 29000: (4, 8, 16, 24)}
# Weights of each term: from, to, and of the untuned setting.
TERMS = {
    "plain": None,
    "qare": (0.1, 10.0, 1.0),
    "gap": (3.0, 1000.0, 300.0),
    "structural-difference": (0.3, 100.0, 30.0),
}
UNTUNED = {"objective.temperature": 0.05, "epochs": 20}
SEED, SEEDS = 1, range(11, 21)  # of the trials, of the tests
MEASURE = "recall1"


def trial(size: int, term: str, number: int) -> dict[str, Any]:
    """What trial ``number``, from 1 on, changes of the recipe."""
    heat, length, decay, weight = (radical_inverse(SKIP + number, base) for base in (2, 3, 5, 7))
    choices = EPOCHS[size]
    changes = {
        "objective.temperature": between(*TEMPERATURES, heat),
        "epochs": choices[int(len(choices) * length)],
        "optimizer.weight_decay": between(*DECAYS, decay),
    }
    limits = TERMS[term]
    return changes if limits is None else changes | terms(term, between(limits[0], limits[1], weight))


def terms(term: str, weight: float) -> dict[str, Any]:
    """The change that adds a term."""
    return {"objective.terms": [{"term": term, "weight": weight}]}


def base(size: int, second: str, split: str) -> Recipe:
    """The named recipe with so many pairs, tested on that split."""
    changes = {"optimizer": "adamw", "optimizer.lr": 0.01, "optimizer.weight_decay": 0.0}
    changes |= {"data.instances": size, "data.second": second, "data.test": split}
    return recipe_by_name("pairs/multi30k-bag-infonce").changed(changes)


def run(recipe: Recipe, seed: int, root: Path, device: torch.device) -> dict[str, Any]:
    """Train and test, without files."""
    train, test = pair_data(recipe, root)
    method, about = trained(recipe, train, seed, device)
    assert isinstance(method, Pairs)
    began = time.perf_counter()
    final = evaluate_pairs(method, test, device)
    about["seconds"]["evaluate"] = round(time.perf_counter() - began, 3)
    return about | {"final": final}


def tune_and_test(args: argparse.Namespace, size: int, term: str, results: Results) -> None:
    """All runs of one setting that are not in the file yet."""
    device = choose_device(args.device)

    def done(stage: str, name: str, changes: dict[str, Any], seed: int) -> float:
        key = f"{size}/{args.second}/{term}/{stage}/{name}"
        found = results.read().get(key)
        if found is None:
            recipe = base(size, args.second, "val" if stage == "trial" else "test").changed(changes)
            about = {"pairs": size, "term": term, "stage": stage, "seed": seed, "changes": changes}
            found = about | run(recipe, seed, args.root, device)
            results.add(key, found)
            print(f"{key:48} {100 * found['final'][MEASURE]:6.2f}  {found['seconds']}", flush=True)
        return float(found["final"][MEASURE])

    points = [trial(size, term, number) for number in range(1, args.trials + 1)]
    reached = [done("trial", f"{k:02}", changes, SEED) for k, changes in enumerate(points, 1)]
    best = points[reached.index(max(reached))]
    limits = TERMS[term]
    untuned = UNTUNED if limits is None else UNTUNED | terms(term, limits[2])
    for seed in SEEDS:
        done("tuned", f"seed-{seed}", best, seed)
        done("untuned", f"seed-{seed}", untuned, seed)


def show(results: Results) -> None:
    """Means over the seeds, and differences to the plain loss, seed by seed, with 95 % intervals."""
    runs = [(key.split("/"), one) for key, one in results.read().items()]
    cells: dict[tuple[str, ...], dict[int, float]] = {}
    chosen: dict[tuple[str, ...], Any] = {}
    for (size, second, term, stage, _), one in runs:
        if stage != "trial":
            cells.setdefault((second, stage, size, term), {})[one["seed"]] = 100 * one["final"][MEASURE]
            chosen[second, stage, size, term] = one["changes"]
    for key in sorted(cells, key=lambda key: (key[0], key[1], int(key[2]), list(TERMS).index(key[3]))):
        mean, plain = mean_std([*cells[key].values()]), cells.get((*key[:3], "plain"), {})
        found = None if key[3] == "plain" else paired_difference(cells[key], plain)
        difference = "" if found is None else f"{found.mean:+.2f} [{found.low:+.2f}, {found.high:+.2f}]"
        spread = "" if mean.std is None else f" ± {mean.std:.2f}"
        print(f"{' '.join(key):42} n {mean.n:2}  {mean.mean:6.2f}{spread}  {difference:24} {chosen[key]}")


def main() -> None:
    """Run what is not in the file yet."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("root", type=Path, nargs="?", help="the folder with multi30k in it")
    parser.add_argument("--out", type=Path, default=Path("results/multi30k.json"))
    parser.add_argument("--part", default="1/1", help="K/N: every Nth setting from the Kth on")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(EPOCHS), choices=list(EPOCHS))
    parser.add_argument("--terms", nargs="+", default=list(TERMS), choices=list(TERMS))
    parser.add_argument("--second", default="de", choices=("de", "fr"))
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--show", action="store_true", help="print the table of what is in the file")
    args = parser.parse_args()
    results = Results(args.out)
    if args.show:
        return show(results)
    if args.root is None:
        parser.error("expected ROOT, the folder with multi30k in it")
    part, parts = map(int, args.part.split("/"))
    cells = [(size, term) for size in args.sizes for term in args.terms]
    for size, term in cells[part - 1 :: parts]:
        tune_and_test(args, size, term, results)


if __name__ == "__main__":
    main()
