"""Encoders of the paper: images in, features out. Each says how many ``features`` it gives."""

from __future__ import annotations

from typing import Literal

from torch import nn

from setwise.checks import check_count, check_option
from setwise.encoders.conv4 import Conv4
from setwise.encoders.heads import projection_head
from setwise.encoders.initial import xavier_weights_
from setwise.encoders.resnet import CifarResNet, ResNet

NAMES = ("conv4", "resnet8", "resnet32", "resnet56", "resnet18", "resnet34")
Name = Literal["conv4", "resnet8", "resnet32", "resnet56", "resnet18", "resnet34"]

__all__ = ["NAMES", "CifarResNet", "Conv4", "ResNet", "create", "projection_head"]


def create(
    name: Name,
    *,
    channels: int = 3,
    stem: Literal["imagenet", "cifar"] = "imagenet",
    initial: Literal["released", "xavier"] = "released",
) -> nn.Module:
    """The encoder ``name`` (one of ``NAMES``) for images of ``channels`` channels; ``stem`` is for resnet18 and 34.

    ``initial`` weights: as the released code draws them, or as the paper says.

    Examples:
        >>> encoder = sw.encoders.create("conv4", channels=1)
        >>> encoder(torch.zeros(2, 1, 8, 8)).shape, encoder.features
        (torch.Size([2, 64]), 64)
    """
    check_option(initial, ("released", "xavier"), "initial")
    encoder = _create(name, channels, stem)
    if initial == "xavier":
        xavier_weights_(encoder)
    return encoder


def _create(name: Name, channels: int, stem: Literal["imagenet", "cifar"]) -> nn.Module:
    check_option(name, NAMES, "the encoder's name")
    check_count(channels, "channels")
    if name == "conv4":
        return Conv4(channels)
    if name == "resnet18":
        return ResNet(18, channels, stem=stem)
    if name == "resnet34":
        return ResNet(34, channels, stem=stem)
    return CifarResNet(int(name.removeprefix("resnet")), channels)
