"""Compare objectives: which preset one is, apart from its weight, and what else differs."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from setwise.losses.objective import Objective
from setwise.losses.presets import PRESETS, beta_of, objective_of
from setwise.paper.numbers import WORDS
from setwise.recipe import Recipe, flat


def weight_of(recipe: Recipe) -> float | None:
    """The weight of its set-level term; None where it has none."""
    terms = recipe.objective.terms if recipe.objective is not None else ()
    return terms[0].weight if terms else None


def same_objective(one: Recipe, other: Recipe) -> bool:
    """Whether both minimise the same, apart from the weight of the set-level term."""
    return _form(one.objective) == _form(other.objective)


def preset_of(recipe: Recipe) -> str:
    """The preset that its objective is, apart from the weight; "" if it is none."""
    return _presets().get(_form(recipe.objective), "")


def objective_words(recipe: Recipe, other: Recipe) -> str:
    """What of its objective differs from the other's, in words."""
    mine, theirs = (flat(one.tree()) for one in (recipe, other))
    return ", ".join(
        f"{path.removeprefix('objective.')} {value}"
        for path, value in sorted(mine.items())
        if path.startswith("objective.") and theirs.get(path) != value
    )


@cache
def _presets() -> dict[str, str]:
    names: dict[str, str] = {}
    for name in sorted(PRESETS, key=lambda name: name not in WORDS):  # of two equal ones, the one that has words
        objective = objective_of(name, 0.5 if beta_of(name) != "none" else None)
        names.setdefault(_form(objective), name)
    return names


def _form(objective: Objective | None) -> str:
    """The objective without the weight of its term, as text."""
    if objective is None:
        return ""
    tree: dict[str, Any] = objective.tree()
    if len(tree["terms"]) == 1:
        weight = tree["terms"][0].pop("weight")
        if tree["weight"] != 1 and round(tree["weight"] + weight, 9) == 1:  # both weights are one number
            tree["weight"] = "the rest"
    return json.dumps(tree, sort_keys=True)
