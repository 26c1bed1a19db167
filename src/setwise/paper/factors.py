"""Where a set-level term pays: one factor at a time from a short run of tuned SimCLR with Conv-4.

At every level of a factor SimCLR and SimCLR with each term have the same trials of one seed, on validation images:
temperatures, and weights of the term. The best of each trains with fresh seeds, the same for all, and is tested on the
test images. A gain of a point or more is then tested again, with seeds that have chosen nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from setwise.losses.presets import objective_of
from setwise.paper import tuning
from setwise.paper.recipes import recipe
from setwise.recipe import Recipe

# Of the 24 trials of plain SimCLR on CIFAR-10 the best one's, for fewer epochs: chosen for SimCLR, not for a term.
BASE: dict[str, Any] = {
    **{"epochs": 25, "optimizer.lr": 8.8e-3, "optimizer.weight_decay": 4.2e-7, "head.hidden": 1024},
    "evaluation.compressed": True,
}
TERMS = ("plain", "qare", "gap", "control")
# The trials: a temperature, and where the weight lies, from 0 to 1, among those of paper/tuning.py.
TRIED = ((0.14, 0.45), (0.07, 0.7), (0.28, 0.3), (0.43, 0.65), (0.9, 0.85))
SEEDS = 5  # of the tests
LATER, AGAIN = 20, 10  # seeds above the first test again, so many
TEMPERATURE = "objective.temperature"


@dataclass(frozen=True, eq=False)
class Level:
    """A point of the map: what it changes of the base, and the measure that counts."""

    key: str  # in words for a path
    factor: str
    label: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    measure: str = "probe_accuracy"

    @property
    def place(self) -> str:
        """The place of its runs: a level that changes nothing, only the measure, has those of the base."""
        return self.key if self.changes else "base"

    @property
    def tuned(self) -> bool:
        """Whether the temperature was chosen; where it is the factor, nobody could."""
        return TEMPERATURE not in self.changes

    def numbers(self, term: str) -> range:
        """The numbers of its trials, from 1 on; plain SimCLR at one temperature has one, and nothing to choose."""
        return range(1, 1 + (len(TRIED) if self.tuned or term != "plain" else 1))


def _levels() -> list[Level]:
    base, batch, epochs, images = "base: batch 128, 25 epochs, 64 dimensions", "batch", "epochs", "images"
    wrong, features, fixed = "wrong partners", "kNN of features", "temperature, not tuned"
    found = [Level("base", base, "linear probe")]
    # Adam's rate by the square root of the batch, downwards only: above its rate nothing was tried.
    found.append(Level("batch-16", batch, "16", {"batch": 16, "optimizer.lr": 3.1e-3}))
    found += [Level(f"batch-{n}", batch, f"{n:,}", {"batch": n}) for n in (512, 2048)]
    found += [Level(f"epochs-{n}", epochs, str(n), {"epochs": n}) for n in (10, 100)]
    # Fewer images, more epochs: with 25, 500 images would make 100 steps.
    more = {500: 250, 5000: 100}
    found += [Level(f"images-{n}", images, f"{n:,}", {"data.instances": n, "epochs": k}) for n, k in more.items()]
    found += [Level(f"wrong-{n}", wrong, f"{n} %", {"data.wrong_partners": n / 100}) for n in (5, 20, 40)]
    found.append(Level("long-tailed", "classes", "long-tailed, 100 to 1", {"data.imbalance": 100.0, "epochs": 100}))
    found += [Level(f"dimensions-{n}", "dimensions", str(n), {"head.out": n}) for n in (8, 512)]
    measures = {"32 bits": "", "8 bits": "_8bit", "1 bit": "_1bit", "first 16 of 64": "_first16"}
    found += [Level(f"knn{end}", features, name, {}, f"knn20{end}_accuracy") for name, end in measures.items()]
    found += [Level(f"temperature-{t:g}", fixed, f"{t:g}", {TEMPERATURE: t}) for t in (0.05, 0.2, 1.0)]
    return found


LEVELS = {level.key: level for level in _levels()}


class Point(NamedTuple):
    """A run's place on the map."""

    place: str
    term: str
    number: int
    test: bool  # on the test images


def variant(point: Point) -> str:
    """The run's place among records."""
    return f"{'mapped' if point.test else 'map'}-{point.place}-{point.term}-{point.number}"


# Every point by its place among records.
PLACES: dict[str, Point] = {
    variant(point): point
    for level in LEVELS.values()
    for term in TERMS
    for number in level.numbers(term)
    for point in (Point(level.place, term, number, test) for test in (False, True))
}


@cache
def recipe_of(data: str, point: Point) -> Recipe:
    """The recipe of a point; a trial's has validation images."""
    temperature, share = TRIED[point.number - 1]
    changes = BASE | {TEMPERATURE: temperature, "data.validation": 0 if point.test else tuning.VALIDATION}
    if (weights := tuning.TERMS[point.term]) is not None:
        weight = tuning.between(*weights[:2], share)
        changes["objective"] = objective_of(f"ablation/simclr-{point.term}", weight).tree()
    return recipe(f"released/{data}-conv4-simclr").changed(changes | dict(LEVELS[point.place].changes))
