"""Methods: what one step computes, one small file each. What is registered here is what a recipe can name."""

from __future__ import annotations

import setwise.register as register
from setwise.data import ImageSet, MatchedSet
from setwise.data.pairs import PairSet, TrainingSet
from setwise.methods.contrastive import Contrastive
from setwise.methods.deepcluster import DeepCluster
from setwise.methods.deepinfomax import DeepInfoMax
from setwise.methods.matching import Matching
from setwise.methods.method import Batch, Method, Parts
from setwise.methods.pairs import Pairs
from setwise.methods.rotation import Rotation
from setwise.methods.supervised import Supervised
from setwise.recipe import Recipe

__all__ = [
    "Batch",
    "Contrastive",
    "DeepCluster",
    "DeepInfoMax",
    "Matching",
    "Method",
    "Pairs",
    "Parts",
    "Rotation",
    "Supervised",
    "create",
]


def create(recipe: Recipe, data: TrainingSet) -> Method:
    """The recipe's method for a training set, with fresh weights from torch's generator."""
    entry = register.method[recipe.method.name]
    wanted: type[TrainingSet] = MatchedSet if recipe.matched else PairSet if recipe.pairs else ImageSet
    if not isinstance(data, wanted):
        kind = "a matched set" if recipe.matched else "pairs" if recipe.pairs else "labelled images"
        raise ValueError(f"expected {kind} for method {recipe.method.name!r}, got {data!r}")
    method = entry.make(Parts(recipe, data), **recipe.method.options)
    if not isinstance(method, Method):
        raise ValueError(
            f"expected {recipe.method.name!r} to make a setwise Method, got {type(method).__name__}; subclass sw.Method"
        )
    return method
