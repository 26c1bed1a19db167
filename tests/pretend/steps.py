"""Captured steps of every method, loss, term and optimiser on the GPU of gpu.py.

python steps.py FOLDER prints what went wrong, by the case's name, as JSON, and the kernels that were launched; with
"compare" behind it, how far each case ends from the same run on the CPU.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gpu

if __name__ == "__main__":
    gpu.load(gpu.build(Path(sys.argv[1])))  # before torch

import stand_ins
import torch

import setwise as sw
import setwise.register as register
from setwise.data import PairSet, load, matched_halves
from setwise.data.pairs import Side
from setwise.evaluation.features import extract
from setwise.evaluation.knn import knn_accuracy
from setwise.evaluation.probe import linear_probe
from setwise.evaluation.retrieval import pair_retrieval, view_retrieval
from setwise.paper.recipes import recipe as named
from setwise.recipe import Recipe
from setwise.training import optimizers
from setwise.training.engine import Engine

SHORT: dict[str, Any] = {"epochs": 2, "batch": 60}
QARE = [{"term": "qare", "weight": 0.5}]
OWN_LOSS: dict[str, dict[str, Any]] = {
    "byol": {},
    "simsiam": {"views": 3},
    "many-patches": {"patches": 3},
    "mocov3": {},
    "swav": {"prototypes": 20, "small": 1, "small_side": 1.0},
    "dino": {"prototypes": 20, "small": 1, "small_side": 1.0},
}
PAPER = ("simclr-qare", "sparseclr-qare", "supervised", "rotation", "deepcluster", "deepinfomax")


def recipes() -> dict[str, Recipe]:
    """Recipes for images."""
    found = {
        name: Recipe.read(
            {"method": {"name": name} | options, "objective": {"loss": "built-in", "terms": QARE}, "ema": 0.9} | SHORT
        )
        for name, options in OWN_LOSS.items()
    }
    found |= {name: replace(named(f"released/digits-conv4-{name}"), **SHORT) for name in PAPER}
    trees: dict[str, dict[str, Any]] = {
        **{f"loss {one}": {"objective": {"loss": one}} for one in register.loss if one != "built-in"},
        **{
            f"term {one}": {"objective": {"loss": "info-nce", "terms": [{"term": one, "weight": 0.1}]}}
            for one in register.term
        },
        **{f"optimizer {one}": {"optimizer": {"name": one, "lr": 0.01}} for one in register.optimizer},
        "resnet18": {"encoder": "resnet18"},
        "parts": {"parts": 2},
        "float32": {"precision": "float32"},
        "wrong partners": {"data": {"source": "digits", "wrong_partners": 0.1}},
        "multi-crop": {"method": {"name": "contrastive", "views": 3, "small": 2, "small_side": 1.0}},
        "small parts": {
            "method": {"name": "contrastive", "views": 4, "against": "mean"},
            "encoder": {"name": "quick", "widths": (8, 8, 8)},
            "views": {"preset": "patches", "crop": "part", "size": (8, 8)},
        },
        "neighbours": {
            "method": {"name": "neighbours", "views": 3, "start": 0.4},
            "objective": {"loss": "nt-xent", "terms": QARE},
        },
        "growing parts": {
            "method": {"name": "contrastive", "views": 3},
            "encoder": "resnet8",
            "views": {"preset": "patches", "crop": "part", "size": (7, 7), "early": (4, 6), "until": (0.25, 0.7)},
        },
    }
    return found | {name: Recipe.read(tree | SHORT) for name, tree in trees.items()}


def cases() -> dict[str, tuple[Recipe, Any]]:
    """Recipes and what they train on."""
    whole = load("digits")
    digits = replace(whole, images=whole.images[:130], labels=whole.labels[:130])
    found: dict[str, tuple[Recipe, Any]] = {name: (recipe, digits) for name, recipe in recipes().items()}
    tree = {"method": "matching", "encoder": "resnet8", "objective": {"loss": "triplet", "terms": QARE}}
    found["matching"] = Recipe.read(tree | SHORT | {"batch": 40}), matched_halves(digits)

    generator = torch.Generator().manual_seed(0)
    sides = [Side(torch.randn(96, width, generator=generator)) for width in (12, 10)]
    pairs = PairSet("noise", "train", *sides)
    labelled, grouped = replace(pairs, labels=torch.arange(96) // 2), replace(pairs, sets=torch.arange(96) // 8)
    one_to_one = {"loss": "assignment", "mining": "one-to-one", "similarity": "cosine", "symmetric": True}
    changes: dict[str, tuple[dict[str, Any], PairSet]] = {
        "pairs": ({"terms": QARE}, pairs),
        "learned temperature": ({"method.learn_temperature": True}, pairs),
        **{f"labels {one}": ({"objective.loss": one}, labelled) for one in ("info-nce", "nt-xent", "sparse-clr")},
        **{
            f"sets {loss} {truth}": ({"objective.loss": loss, "method.truth": truth, "method.softness": 0.0}, grouped)
            for loss in ("info-nce", "nt-xent", "sparse-clr", "triplet")
            for truth in ("same", "hard", "one-to-one")
        },
        "sets priced": ({"method.truth": "one-to-one", "method.price": -0.3, "method.softness": 0.0}, grouped),
        "sets soft": ({"method.truth": "one-to-one", "method.softness": 0.1}, grouped),
        "sets soft, hard": ({"method.truth": "hard", "method.softness": 0.1, "method.price": -0.3}, grouped),
        "sets qare": ({"terms": QARE, "method.truth": "hard"}, grouped),
        "sets assignment": ({"objective": one_to_one}, grouped),
        "sinkhorn": ({"objective": one_to_one | {"smoothing": "sinkhorn", "temperature": 0.1}}, pairs),
        "sets sinkhorn": ({"objective": one_to_one | {"smoothing": "sinkhorn", "temperature": 0.1}}, grouped),
    }
    base = named("pairs/feature-pairs-mlp-infonce").changed(SHORT | {"batch": 48})
    return found | {name: (base.changed(change), data) for name, (change, data) in changes.items()}


def evaluations() -> dict[str, Callable[[], object]]:
    """What is done without a capture: tensors must not be on the wrong device."""
    digits, device = load("digits", split="test"), torch.device("cuda")
    encoder = sw.encoders.create("conv4", channels=1).to(device).eval()
    a, b, few = (torch.randn(n, 8, device=device) for n in (32, 32, 24))
    labels, sets, few_sets = (torch.arange(n, device=device) // 8 for n in (32, 32, 24))
    given: Any = (a, labels, b, labels)
    return {
        "align": lambda: sw.align(a, b, sets=(sets, sets)),
        "align priced": lambda: sw.align(a, few, sets=(sets, few_sets), price=-0.1),
        "match": lambda: sw.match(a, b),
        "match ids": lambda: sw.match(a, few, ids_a=sets, ids_b=few_sets, price=0.4),
        "quadratic truth": lambda: sw.InfoNCE()(a, b, sets=sw.Sets(sets, sets, "quadratic")),
        "sparsemap": lambda: sw.AssignmentLoss(mining="one-to-one", smoothing="sparsemap")(a, b),
        "knn": lambda: knn_accuracy(*given, classes=4),
        "probe": lambda: linear_probe(*given, classes=4, seed=1, epochs=2, lr=1e-3, batch=16),
        "features": lambda: extract(encoder, digits, device=device),
        "retrieval": lambda: pair_retrieval(a, b),
        "views": lambda: view_retrieval(encoder, digits, device=device),
    }


def mistakes() -> dict[str, Callable[[], object]]:
    """What must not pass: each waits for the device."""
    x, y = torch.randn(8, 4, device="cuda"), torch.randn(8, 4, device="cuda")
    host = torch.randn(8, 4)
    return {
        "a value": lambda: x.sum().item(),
        "a shape": lambda: x[x > 0],
        "to the host": lambda: x.cpu(),
        "to the device": lambda: x + host.to("cuda"),
        "a constant": lambda: x * torch.tensor([1.0, 2.0, 3.0, 4.0], device="cuda"),
        "a solver of the CPU": lambda: sw.AssignmentLoss(mining="one-to-one", smoothing="sparsemap")(x, y),
    }


def outcome(work: Callable[[], object]) -> str:
    """What goes wrong; "" if nothing does."""
    try:
        work()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return ""


def train(recipe: Recipe, data: Any) -> None:
    """Two epochs: a full batch is captured before the first, others when they come again."""
    engine = Engine(recipe, data, seed=1, device=torch.device("cuda"))
    for epoch in range(2):
        engine.begin(epoch)
        for _ in range(engine.steps):
            engine.step()
    assert engine._graphs, "no step was captured"
    engine.means()


# In float64, which is compared, these need torch's eigenvalues, for which a GPU is waited for.
EIGENVALUES = ("many-patches", *(f"term {one}" for one in ("qare", "gap", "nuclear-norm", "coding-rate")))


def difference(recipe: Recipe, data: Any) -> float:
    """The largest between the tensors of a run here, captured and replayed, and of one on the CPU; two epochs each."""
    recipe, found = replace(recipe, precision="float64"), []
    if recipe.objective is not None and any(one.term.name == "qare" for one in recipe.objective.terms):
        recipe = recipe.changed({"terms": [{"term": "frobenius", "weight": 0.5}]})
    for device in ("cuda", "cpu"):
        engine = Engine(recipe, data, seed=1, device=torch.device(device))
        for epoch in range(2):
            engine.begin(epoch)
            for _ in range(engine.steps):
                engine.step()
        found.append({name: x.cpu() for name, x in engine.tensors().items() if x.is_floating_point()})
    return max(float((x - found[1][name]).abs().max()) for name, x in found[0].items())


def compare() -> None:
    """Captured steps, with plain code in place of kernels, against a CPU's; prints the difference of each case."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    found: dict[str, float | str] = {}
    optimizers._working = lambda matrix: matrix  # type: ignore[assignment]  # a GPU's Muon multiplies in bfloat16
    with gpu.install(plain=True):
        for name, case in cases().items():
            if name not in EIGENVALUES:
                try:
                    found[name] = difference(*case)
                except Exception as error:
                    found[name] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    print(json.dumps(found))


def main() -> None:
    """All cases."""
    torch.set_num_threads(1)
    warnings.simplefilter("error", RuntimeWarning)  # plain torch took the place of a kernel
    with gpu.install():
        failed = {name: outcome(partial(train, *case)) for name, case in cases().items()}
        failed |= {name: outcome(work) for name, work in evaluations().items()}
        refused = {}
        for name, work in mistakes().items():
            with gpu.graph():
                refused[name] = outcome(work)
    print(json.dumps({"cases": failed, "mistakes": refused, "kernels": sorted(stand_ins.launched)}))


if __name__ == "__main__":
    compare() if "compare" in sys.argv else main()
