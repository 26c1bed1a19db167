"""timm's and torchvision's networks as encoders, and our ResNet-18 and -34 by torchvision's names."""

from __future__ import annotations

from difflib import get_close_matches

from torch import Tensor, nn

import setwise.register as register
from setwise.checks import check_count, imported, see
from setwise.encoders.resnet import BasicBlock, ResNet, Size

WANTED = ("timm torchvision", see("how-to/other-libraries#timm-and-torchvision"))
CLASSES = 1000  # outputs of every classifier in torchvision.models, ImageNet's
PARTS = {"conv1": "conv1", "norm1": "bn1", "conv2": "conv2", "norm2": "bn2", "shortcut": "downsample"}


class Backbone(nn.Module):
    """A network without its classifier: images [B, C, H, W] in, ``features`` numbers each out."""

    def __init__(self, network: nn.Module, features: int) -> None:
        super().__init__()
        self.network, self.features = network, features  # beside it: some networks have parts named ``features``

    def forward(self, images: Tensor) -> Tensor:
        """Features [B, F] of images [B, C, H, W]."""
        features: Tensor = self.network(images)
        return features


LIBRARIES = {"timm/": "timm", "torchvision/": "torchvision.models"}  # by how the names of their networks begin


def check_package(name: str) -> None:
    """Raise if the encoder is of a library that is not here."""
    for family, module in LIBRARIES.items():
        if name.startswith(family):
            imported(module, *WANTED)


@register.encoder("timm/", about="Any network of timm, without its classifier.")
def timm_network(
    name: str,
    channels: int,
    image_size: Size | None = None,
    *,
    pretrained: bool = False,
    img_size: int | Size | None = None,
) -> Backbone:
    """timm's network ``name``; those that are made for one size take ``img_size``, else ``image_size``."""
    timm = imported("timm", *WANTED)
    _check_name(name, timm.list_models(), "timm")
    img_size = fitting_size(f"timm/{name}", image_size) if img_size is None else img_size
    size = {} if img_size is None else {"img_size": img_size}
    network = timm.create_model(name, pretrained=pretrained, in_chans=channels, num_classes=0, **size)
    # Where they differ, the pooled features pass one more layer before the classifier.
    return Backbone(network, int(getattr(network, "head_hidden_size", None) or network.num_features))


@register.encoder("torchvision/", about="Any classifier of torchvision, without its last layer.")
def torchvision_network(
    name: str,
    channels: int,
    image_size: Size | None = None,
    *,
    pretrained: bool = False,
    img_size: int | Size | None = None,
) -> Backbone:
    """torchvision's network ``name``; with one channel it makes of an image what it makes of a grey one in three.

    ``img_size`` is for ViTs, which are made for one size: ``image_size`` if it is not given.
    """
    models = imported("torchvision.models", *WANTED)
    _check_name(name, models.list_models(module=models), "torchvision")
    if channels not in (1, 3):
        raise ValueError(f"expected 1 or 3 channels for torchvision's networks, got {channels}; timm's take any number")
    img_size = fitting_size(f"torchvision/{name}", image_size) if img_size is None else img_size
    size = {} if img_size is None else {"image_size": img_size}
    network = models.get_model(name, weights="DEFAULT" if pretrained else None, **size)
    classifiers = [
        (place, layer)
        for place, layer in network.named_modules()
        if isinstance(layer, nn.Linear) and layer.out_features == CLASSES
    ]
    if len(classifiers) != 1:
        raise ValueError(
            f"expected a network with one linear classifier, got {len(classifiers)} in 'torchvision/{name}'; "
            "take another, or timm's"
        )
    place, classifier = classifiers[0]
    network.set_submodule(place, nn.Identity())
    if channels == 1:  # the sum of the weights for three equal channels
        first = next(layer for layer in network.modules() if isinstance(layer, nn.Conv2d))
        first.weight = nn.Parameter(first.weight.detach().sum(1, keepdim=True))
        first.in_channels = 1
    return Backbone(network, classifier.in_features)


def fitting_size(name: str, image_size: Size | None) -> int | Size | None:
    """The ``img_size`` that the network needs for images of this size; None if it takes them as it is."""
    family, _, member = name.partition("/")
    if image_size is None:
        return None
    usual: Size | None = None  # the size that it is made for, if it is made for one
    if family == "timm":
        about = imported("timm", *WANTED).get_pretrained_cfg(member)
        usual = tuple(about.input_size[1:]) if about is not None and about.fixed_input_size else None
    elif family == "torchvision" and member.startswith("vit_"):
        usual = (224, 224)
    height, width = image_size
    return None if usual in (None, image_size) else height if height == width else image_size


def backbone(name: str, *, channels: int = 3, pretrained: bool = False, img_size: int | None = None) -> Backbone:
    """The network ``name``, "timm/..." or "torchvision/...", without its classifier, for any loop with our losses.

    ``pretrained`` fetches the library's own weights. timm adapts its first layer to any number of ``channels``,
    torchvision's networks take 3 or 1. ``img_size`` is for networks that are made for one size, such as ViTs.
    """
    check_count(channels, "channels")
    if not name.startswith(("timm/", "torchvision/")):
        raise ValueError(f"expected timm/NAME or torchvision/NAME, got {name!r}; encoders.create makes all others")
    options = {"pretrained": pretrained} | ({} if img_size is None else {"img_size": img_size})
    network: Backbone = register.encoder.make(name, options, channels=channels)
    return network


def to_torchvision(encoder: nn.Module) -> dict[str, Tensor]:
    """Weights of our ResNet-18 or -34 by the names of torchvision and timm; all they want but ``fc``.

    network = torchvision.models.resnet18()
    network.fc = torch.nn.Identity()
    network.load_state_dict(to_torchvision(encoder))
    """
    if not isinstance(encoder, ResNet) or not isinstance(encoder.stem[3], nn.MaxPool2d):
        what = "one with the stem for small images" if isinstance(encoder, ResNet) else type(encoder).__name__
        raise ValueError(
            f'expected a ResNet-18 or -34 with stem="imagenet", got {what}; torchvision has no such network'
        )
    weights = {f"conv1.{name}": x for name, x in encoder.stem[0].state_dict().items()}
    weights |= {f"bn1.{name}": x for name, x in encoder.stem[1].state_dict().items()}
    stage = place = 0
    for block in encoder.blocks:
        assert isinstance(block, BasicBlock)
        # A stage begins where the width changes, and with the first block.
        stage, place = (stage + 1, 0) if not stage or isinstance(block.shortcut, nn.Sequential) else (stage, place + 1)
        for name, x in block.state_dict().items():
            part, _, rest = name.partition(".")
            weights[f"layer{stage}.{place}.{PARTS[part]}.{rest}"] = x
    return weights


def _check_name(name: str, known: list[str], library: str) -> None:
    if name in known:
        return
    near = [f"{library}/{x}" for x in get_close_matches(name, known, n=3, cutoff=0.3)]
    hint = f"did you mean {', '.join(near)}?" if near else f"{library}'s list_models() lists them"
    raise ValueError(f"expected the name of one of {library}'s {len(known)} networks, got {name!r}; {hint}")
