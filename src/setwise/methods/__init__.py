"""Methods: what one step computes, one small file each."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from setwise.data import ImageSet, MatchedSet
from setwise.encoders import create as create_by_name
from setwise.encoders import projection_head
from setwise.losses.presets import presets
from setwise.methods.contrastive import Contrastive
from setwise.methods.deepcluster import DeepCluster
from setwise.methods.deepinfomax import DeepInfoMax
from setwise.methods.matching import Matching
from setwise.methods.method import Batch, Method
from setwise.methods.rotation import Rotation
from setwise.methods.supervised import Supervised
from setwise.recipe import CONTRASTIVE, Recipe
from setwise.views import Views, preset

__all__ = [
    "Batch",
    "Contrastive",
    "DeepCluster",
    "DeepInfoMax",
    "Matching",
    "Method",
    "Rotation",
    "Supervised",
    "create",
    "create_encoder",
]


CONV4_SIDE = 8  # pixels: three pools halve them


def create_encoder(recipe: Recipe, channels: int) -> nn.Module:
    """The recipe's encoder for images of ``channels`` channels, with fresh weights."""
    return create_by_name(recipe.encoder, channels=channels, stem=recipe.stem, initial=recipe.initial)


def create(recipe: Recipe, data: ImageSet | MatchedSet) -> Method:
    """The recipe's method for a training set, with fresh weights from torch's generator."""
    if isinstance(data, MatchedSet) != (recipe.method == "matching"):
        kind = "a matched set" if recipe.method == "matching" else "labelled images"
        raise ValueError(f"expected {kind} for method {recipe.method!r}, got {data!r}")
    size = tuple(data.images.shape[2:])
    if recipe.encoder == "conv4" and min(size) < CONV4_SIDE:
        raise ValueError(
            f"expected images of at least {CONV4_SIDE} x {CONV4_SIDE} pixels for conv4, got {size[0]} x {size[1]}; "
            "--encoder resnet8 takes any"
        )
    encoder = create_encoder(recipe, data.images.shape[1])
    features = int(encoder.features)  # type: ignore[arg-type]
    views = _views(recipe, data)
    if isinstance(data, MatchedSet):
        assert recipe.loss is not None
        return Matching(encoder, features, recipe.embedding, presets(recipe.loss, beta=recipe.beta), views)
    if recipe.method in CONTRASTIVE:
        assert recipe.loss is not None
        loss = presets(recipe.loss, beta=recipe.beta)
        return Contrastive(encoder, projection_head(features, recipe.hidden, recipe.embedding), loss, views)
    if recipe.method in ("supervised", "random"):
        return Supervised(encoder, features, len(data.classes), views)
    if recipe.method == "rotation":
        return Rotation(encoder, features, views)
    if recipe.method == "deepcluster":
        return DeepCluster(encoder, features, len(data), len(data.classes), recipe.hidden, views)
    return DeepInfoMax(encoder, features, data.images.shape[1], views, adversarial=recipe.adversarial)


def _views(recipe: Recipe, data: ImageSet | MatchedSet) -> Views:
    return replace(preset(recipe.views, mean=data.mean, std=data.std), padding=recipe.padding)
