"""Encoders: images, token ids or vectors in, features out. Each says how many ``features`` it gives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from typing import Any

import torch
from torch import nn

import setwise.register as register
from setwise.checks import check_count
from setwise.encoders.conv4 import Conv4  # first, as in every list of encoders

# isort: split
from setwise.encoders.backbones import Backbone, backbone, fitting_size, to_torchvision
from setwise.encoders.heads import normed_head, projection_head
from setwise.encoders.quick import Quick
from setwise.encoders.resnet import CifarResNet, ResNet, stem_for
from setwise.encoders.vectors import MLP, Bag
from setwise.losses.objective import Choice

__all__ = [
    "MLP",
    "Bag",
    "CifarResNet",
    "Conv4",
    "Quick",
    "ResNet",
    "backbone",
    "create",
    "normed_head",
    "projection_head",
    "to_torchvision",
]


def create(name: str, *, channels: int = 3, image_size: tuple[int, int] | None = None, **options: object) -> nn.Module:
    """The encoder of that name for images of ``channels`` channels, with fresh weights.

    For other items, ``channels`` is the size of the vocabulary, or the length of the vectors.

    ``name``: one of ``sw.register.encoder``, "timm/NAME", "torchvision/NAME", or your own as "module:function", which
    is called with ``channels``, and with ``image_size`` (height, width) if it has such a parameter. ``options`` are
    the entry's, such as ``weights="xavier"``.

    Examples:
        >>> encoder = sw.encoders.create("conv4", channels=1)
        >>> encoder(torch.zeros(2, 1, 8, 8)).shape, encoder.features
        (torch.Size([2, 64]), 64)
    """
    check_count(channels, "channels")
    register.encoder.trust(name)
    entry = register.encoder[name]
    size = {"image_size": image_size} if "image_size" in signature(entry.make).parameters else {}
    encoder = entry.make(channels=channels, **size, **entry.fill(options))
    if not isinstance(encoder, nn.Module) or not isinstance(getattr(encoder, "features", None), int):
        raise ValueError(
            f"expected {name!r} to make an nn.Module whose attribute `features` says how many it gives, got "
            f"{type(encoder).__name__}; set self.features in it"
        )
    return encoder


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode inside the block; every module's own mode afterwards, also after an error."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def check_size(encoder: nn.Module, name: str, channels: int, size: tuple[int, int]) -> None:
    """Raise unless a network of timm or torchvision takes images of that size: one black image goes through it."""
    if not isinstance(encoder, Backbone):
        return
    try:
        with evaluating(encoder), torch.no_grad():
            found = encoder(torch.zeros(1, channels, *size)).shape
    except Exception as error:  # each network has its own
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(
            f"expected a network for images of {size[0]} x {size[1]} pixels, got {name}, which fails on them "
            f"({reason}); give another --size, such as 224, and no --encoder.img-size"
        ) from error
    if found != (1, encoder.features):
        raise ValueError(f"expected {encoder.features} features of an image from {name}, got shape {tuple(found)}")


def settled(encoder: Choice, image_size: tuple[int, int]) -> Choice:
    """The same encoder with all that the images' size decides: what a checkpoint keeps.

    The stem of ResNets, where it is "auto", and the size of networks of timm and torchvision that are made for one.
    """
    more: dict[str, Any] = {}
    if encoder.name in ("resnet18", "resnet34") and encoder["stem"] == "auto":
        more = {"stem": stem_for(image_size)}
    elif encoder.name.startswith(("timm/", "torchvision/")) and encoder["img_size"] is None:
        more = {"img_size": fitting_size(encoder.name, image_size)}
    return Choice(encoder.name, encoder.options | more) if more else encoder
