"""Encoders: images in, features out. Each says how many ``features`` it gives."""

from __future__ import annotations

from typing import Literal

from torch import nn

import setwise.register as register
from setwise.checks import check_count
from setwise.encoders.backbones import backbone, to_torchvision
from setwise.encoders.conv4 import Conv4
from setwise.encoders.heads import projection_head
from setwise.encoders.initial import xavier_weights_
from setwise.encoders.resnet import CifarResNet, ResNet

__all__ = ["CifarResNet", "Conv4", "ResNet", "backbone", "create", "projection_head", "to_torchvision"]

Weights = Literal["released", "xavier"]  # initial ones: as the released code draws them, or as the paper says
Stem = Literal["imagenet", "cifar"]


def create(name: str, *, channels: int = 3, **options: object) -> nn.Module:
    """The encoder of that name for images of ``channels`` channels, with fresh weights.

    ``name``: one of ``sw.register.encoder``, "timm/NAME", "torchvision/NAME", or your own as "module:function", which
    is called with ``channels``. ``options`` are the entry's, such as ``weights="xavier"``.

    Examples:
        >>> encoder = sw.encoders.create("conv4", channels=1)
        >>> encoder(torch.zeros(2, 1, 8, 8)).shape, encoder.features
        (torch.Size([2, 64]), 64)
    """
    check_count(channels, "channels")
    register.encoder.trust(name)
    encoder = register.encoder.make(name, options, channels=channels)
    if not isinstance(encoder, nn.Module) or not isinstance(getattr(encoder, "features", None), int):
        raise ValueError(
            f"expected {name!r} to make an nn.Module whose attribute `features` says how many it gives, got "
            f"{type(encoder).__name__}; set self.features in it"
        )
    return encoder


@register.encoder(
    "conv4", about="Four small blocks, 64 features: the paper's shallow encoder; images of 8 x 8 and more."
)
def conv4(channels: int, *, weights: Weights = "released") -> nn.Module:
    """Conv-4."""
    return _drawn(Conv4(channels), weights)


@register.encoder("resnet8", about="The smallest residual network for small images, 64 features: for a CPU.")
def resnet8(channels: int, *, weights: Weights = "released") -> nn.Module:
    """ResNet-8."""
    return _drawn(CifarResNet(8, channels), weights)


@register.encoder("resnet32", about="The paper's residual network for small images, 64 features.")
def resnet32(channels: int, *, weights: Weights = "released") -> nn.Module:
    """ResNet-32."""
    return _drawn(CifarResNet(32, channels), weights)


@register.encoder("resnet56", about="A deeper one of the same kind, 64 features.")
def resnet56(channels: int, *, weights: Weights = "released") -> nn.Module:
    """ResNet-56."""
    return _drawn(CifarResNet(56, channels), weights)


@register.encoder("resnet18", about='ResNet-18, 512 features; stem "cifar" is for images of about 32 pixels.')
def resnet18(channels: int, *, stem: Stem = "imagenet", weights: Weights = "released") -> nn.Module:
    """ResNet-18."""
    return _drawn(ResNet(18, channels, stem=stem), weights)


@register.encoder("resnet34", about='ResNet-34, 512 features; stem "cifar" is for images of about 32 pixels.')
def resnet34(channels: int, *, stem: Stem = "imagenet", weights: Weights = "released") -> nn.Module:
    """ResNet-34."""
    return _drawn(ResNet(34, channels, stem=stem), weights)


@register.encoder("timm/", about="Any network of timm, without its classifier.")
def timm(name: str, channels: int, *, pretrained: bool = False, img_size: int | None = None) -> nn.Module:
    """A network of timm; ``img_size`` is for those that are made for one, such as ViTs."""
    return backbone(f"timm/{name}", channels=channels, pretrained=pretrained, img_size=img_size)


@register.encoder("torchvision/", about="Any classifier of torchvision, without its last layer.")
def torchvision(name: str, channels: int, *, pretrained: bool = False) -> nn.Module:
    """A network of torchvision."""
    return backbone(f"torchvision/{name}", channels=channels, pretrained=pretrained)


def _drawn(encoder: nn.Module, weights: Weights) -> nn.Module:
    if weights == "xavier":
        xavier_weights_(encoder)
    return encoder
