"""Fair baselines: SimCLR with and without a set-level term, each tuned in as many trials on validation images.

A trial is a point of a Halton sequence, the same for all: temperature, learning rate, weight decay and width of the
head, and the weight of the term where there is one. The first trial has the recipe's own numbers. A trial is short and
has one seed. The winner then trains as long as the recipe says, with fresh seeds, and is tested once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import setwise.records as records
from setwise.losses.presets import objective_of
from setwise.paper.recipes import recipe
from setwise.recipe import Recipe

EPOCHS = 50  # of a trial
VALIDATION = 5000  # training images that a trial is tested on
TRIALS = {"conv4": 24, "resnet32": 12}
SKIP = 20  # the first points of the sequence lie on a line
PRIMES = (2, 3, 5, 7, 11)
# Weights from the first to the last, and the one of the first trial.
TERMS = {
    "plain": None,
    "qare": (0.1, 10.0, 1.0),
    "gap": (1.0, 100.0, 10.0),
    "control": (1.0, 100.0, 10.0),
    "frobenius": (0.1, 10.0, 1.0),
}
LONG = ("plain", "qare", "gap")  # of ResNet-32, whose runs take long


def radical_inverse(number: int, base: int) -> float:
    """The digits of ``number`` mirrored at the point: 0.011 for 110 in base 2."""
    value, place = 0.0, 1.0
    while number:
        number, digit = divmod(number, base)
        place /= base
        value += digit * place
    return value


def terms_of(encoder: str) -> tuple[str, ...]:
    """The objectives that are tuned with an encoder."""
    return tuple(term for term in TERMS if encoder == "conv4" or term in LONG)


def trial(encoder: str, number: int) -> tuple[dict[str, Any], float]:
    """What trial ``number`` changes of the recipe, from 1 on; and, from 0 to 1, where it lies among the weights.

    ResNet-32, whose trials take long, has the temperature alone.
    """
    if number == 1:
        return {}, 0.5
    t, lr, decay, width, weight = (radical_inverse(SKIP + number, base) for base in PRIMES)
    changes: dict[str, Any] = {"objective.temperature": between(0.05, 1.0, t)}
    if encoder == "conv4":
        changes |= {
            "optimizer.lr": between(3e-4, 1e-2, lr),
            "optimizer.weight_decay": between(1e-7, 1e-4, decay),
            "head.hidden": (128, 256, 512, 1024)[int(4 * width)],
        }
    return changes, weight


def between(low: float, high: float, share: float) -> float:
    """The number at ``share`` of the way from ``low`` to ``high`` on a logarithmic scale, to two digits."""
    return float(f"{low * (high / low) ** share:.2g}")


def tried(data: str, encoder: str, term: str, number: int) -> Recipe:
    """The recipe of a trial, as long as it would be for the test."""
    name = f"released/{data}-{encoder}-simclr"
    changes, share = trial(encoder, number)
    start, weights = recipe(name), TERMS[term]
    if weights is not None:
        low, high, first = weights
        weight = first if number == 1 else between(low, high, share)
        start = start.changed({"objective": objective_of(f"ablation/simclr-{term}", weight).tree()})
    return start.changed(changes)


def variant(term: str, number: int) -> str:
    """The trial's place among records."""
    return f"tuning-{term}-{number:02}"


def tested(term: str) -> str:
    """The place of the winner's runs on the test images."""
    return f"tuned-{term}"


# The term and the number of every trial by its place among records; no number for the winners' tests.
PLACES: dict[str, tuple[str, int | None]] = {
    **{variant(term, number): (term, number) for term in TERMS for number in range(1, max(TRIALS.values()) + 1)},
    **{tested(term): (term, None) for term in TERMS},
}


def winner(results: Path, data: str, encoder: str, term: str, *, seed: int) -> int:
    """The trial with the best accuracy on validation images, the first of equal ones; all must have been made."""
    accuracies = []
    for number in range(1, TRIALS[encoder] + 1):
        path = results / "runs" / f"released/{data}-{encoder}-simclr" / variant(term, number) / f"seed-{seed}.json"
        if not path.exists():
            raise ValueError(
                f"expected the records of all {TRIALS[encoder]} trials of {term} on {data}, {encoder}, got none at "
                f"{path}; `setwise reproduce tuning --data {data}` makes them"
            )
        accuracies.append(records.read(path)["final"]["probe_accuracy"])
    return accuracies.index(max(accuracies)) + 1
