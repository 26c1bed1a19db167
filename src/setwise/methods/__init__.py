"""Methods: what one step computes, one small file each. What is registered here is what a recipe can name."""

from __future__ import annotations

import setwise.register as register
from setwise.data import ImageSet, MatchedSet
from setwise.data.pairs import PairSet, TrainingSet
from setwise.methods.byol import BYOL
from setwise.methods.contrastive import Contrastive
from setwise.methods.deepcluster import DeepCluster
from setwise.methods.deepinfomax import DeepInfoMax
from setwise.methods.dino import DINO
from setwise.methods.many_patches import ManyPatches
from setwise.methods.matching import Matching
from setwise.methods.method import Batch, Method, Parts
from setwise.methods.mocov3 import MoCoV3
from setwise.methods.neighbours import Neighbours
from setwise.methods.pairs import Pairs
from setwise.methods.rotation import Rotation
from setwise.methods.simsiam import SimSiam
from setwise.methods.supervised import Supervised
from setwise.methods.swav import SwAV
from setwise.recipe import Recipe

__all__ = [
    "BYOL",
    "DINO",
    "Batch",
    "Contrastive",
    "DeepCluster",
    "DeepInfoMax",
    "ManyPatches",
    "Matching",
    "Method",
    "MoCoV3",
    "Neighbours",
    "Pairs",
    "Parts",
    "Rotation",
    "SimSiam",
    "Supervised",
    "SwAV",
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
