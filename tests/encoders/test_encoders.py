"""Encoders: sizes known from the papers, shapes, initial weights."""

import sys

import numpy as np
import pytest
import torch
from torch import nn

import setwise as sw
import setwise.register as register
from setwise.encoders import settled
from setwise.recipe import Recipe


@pytest.mark.parametrize(
    "name", [name for name, one in register.encoder.items() if not name.endswith("/") and not one.takes]
)
def test_features_of_images(name):
    model = sw.encoders.create(name).eval()
    features = model(torch.randn(2, 3, 32, 32))
    assert features.shape == (2, model.features)
    assert sw.encoders.create(name, channels=1)(torch.randn(2, 1, 32, 32)).shape == (2, model.features)


def plain(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """A basic block, layer by layer."""
    y = block.norm2(block.conv2(block.norm1(block.conv1(x)).relu()))
    return (y + block.shortcut(x)).relu()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ["conv4", "resnet8", "resnet18"])
def test_features_are_those_of_the_layers_one_by_one(name, training):
    torch.manual_seed(0)
    model, images = sw.encoders.create(name).double().train(training), torch.randn(3, 3, 32, 32).double()
    if name == "conv4":
        expected = model.blocks(images)
    else:
        x = model.stem(images)
        for block in model.blocks:
            x = plain(block, x)
        # Three stages, or four, of which the first keeps the resolution.
        assert x.shape[-2:] == ((8, 8) if name == "resnet8" else (1, 1))
        expected = x.mean((2, 3))
        if name == "resnet8":
            expected = model.project(expected)
    torch.testing.assert_close(model(images), expected)
    first = model.first(images)
    assert first.shape[1:] == {"conv4": (8, 32, 32), "resnet8": (16, 32, 32), "resnet18": (64, 16, 16)}[name]
    assert (first >= 0).all()
    torch.testing.assert_close(model.rest(first), expected)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_quick_is_its_layers_one_by_one(depth):
    torch.manual_seed(0)
    model = sw.encoders.create("quick", channels=1, widths=(4, 6, 5), depth=depth).double()
    images = torch.randn(3, 1, 16, 24).double()
    gelu, x = nn.GELU(), model.stem(images)
    for stage in model.stages:
        x = y = gelu(stage.norms[0](nn.MaxPool2d(2)(stage.convs[0](x))))
        if depth > 1:
            y = stage.norms[1](stage.convs[1](y))
        if depth > 2:
            y = x + stage.norms[2](stage.convs[2](gelu(y)))
        x = gelu(y) if depth > 1 else y
    assert x.shape == (3, 5, 2, 3)
    torch.testing.assert_close(model(images), x.mean((2, 3)))
    # 9 weights for each pair of channels, two numbers for each norm.
    pairs = [(1, 32), (32, 4), (4, 6), (6, 5)]
    more = sum((depth - 1) * (9 * n * n + 2 * n) for n in (4, 6, 5))
    assert sum(p.numel() for p in model.parameters()) == sum(9 * a * b + 2 * b for a, b in pairs) + more


def test_quick_says_what_it_takes():
    for widths in ((4, 6), (4, 0, 2)):
        with pytest.raises(ValueError, match="expected three positive integers as widths, such as 128,384,512, got"):
            sw.encoders.create("quick", widths=widths)
    with pytest.raises(ValueError, match="expected depth to be a positive integer, got 0"):
        sw.encoders.create("quick", depth=0)


@pytest.mark.parametrize("layers", [1, 2, 4])
def test_a_head_has_as_many_linear_layers_as_said(layers):
    head = sw.encoders.projection_head(7, 5, 3, layers=layers)
    widths = [(m.in_features, m.out_features) for m in head if isinstance(m, nn.Linear)]
    assert widths == {1: [(7, 3)], 2: [(7, 5), (5, 3)], 4: [(7, 5), (5, 5), (5, 5), (5, 3)]}[layers]
    assert [type(m) for m in head] == [nn.Linear, nn.BatchNorm1d, nn.LeakyReLU] * (layers - 1) + [nn.Linear]
    made = sw.Parts(Recipe.read({"head": {"layers": layers}}), sw.data.load("digits", split="train")).head()
    assert sum(isinstance(m, nn.Linear) for m in made) == layers


@pytest.mark.parametrize("depth", [8, 32, 56])
def test_depth_counts_the_layers_with_weights(depth):
    layers = [m for m in sw.encoders.create(f"resnet{depth}").modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    assert sum(not (isinstance(m, nn.Conv2d) and m.kernel_size == (1, 1)) for m in layers) == depth


# He et al.'s Table 6 has 0.46 M for ResNet-32, with shortcuts without parameters and a layer for 10 classes: 464,154.
# torchvision has 11,689,512 and 21,797,672 with a layer for 1000 classes.
SHORTCUTS = 16 * 32 + 2 * 32 + 32 * 64 + 2 * 64
SIZES = {
    "conv4": 9 * (3 * 8 + 8 * 16 + 16 * 32 + 32 * 64) + 2 * (8 + 16 + 32 + 64),
    "resnet32": 464_154 - (64 * 10 + 10) + (64 * 64 + 64) + SHORTCUTS,
    "resnet18": 11_689_512 - (512 * 1000 + 1000),
    "resnet34": 21_797_672 - (512 * 1000 + 1000),
}


@pytest.mark.parametrize(("name", "expected"), SIZES.items())
def test_sizes_are_the_published_ones(name, expected):
    assert sum(p.numel() for p in sw.encoders.create(name).parameters()) == expected


@pytest.mark.parametrize(
    ("options", "small"),
    [
        ({}, False),
        ({"stem": "cifar"}, True),
        ({"image_size": (64, 48)}, True),
        ({"image_size": (64, 65)}, False),
        ({"image_size": (32, 32), "stem": "imagenet"}, False),
    ],
)
def test_the_stem_follows_the_images_unless_it_is_named(options, small):
    model = sw.encoders.create("resnet18", **options)
    assert model.stem(torch.randn(1, 3, 32, 32)).shape[-2:] == ((32, 32) if small else (8, 8))


def test_a_recipe_takes_the_stem_for_its_images():
    recipe = Recipe.read({}).changed({"encoder": "resnet18"})
    assert recipe.encoder["stem"] == "auto"
    stem = sw.Parts(recipe, sw.data.load("digits", split="train")).encoder.stem
    assert stem[0].kernel_size == (3, 3)
    for size, name in (((64, 64), "cifar"), ((224, 224), "imagenet")):
        assert settled(recipe.encoder, size).options == {"stem": name, "weights": "released", "width": 64}
    other = Recipe.read({}).encoder
    assert settled(other, (8, 8)) is other


def test_initial_weights_are_the_released_codes():
    torch.manual_seed(0)
    conv = sw.encoders.create("resnet56").blocks[-1].conv2
    assert conv.weight.std().item() == pytest.approx((2 / (9 * 64)) ** 0.5, rel=0.02)
    first = sw.encoders.create("conv4").blocks[0]  # three channels in, eight out
    assert first.weight.std().item() == pytest.approx((2 / (9 * 8)) ** 0.5, rel=0.15)


def test_initial_weights_as_the_paper_says():
    torch.manual_seed(0)
    model = sw.encoders.create("resnet8", weights="xavier")
    for layer, both_fans in ((model.blocks[1].conv1, 9 * (16 + 32)), (model.project, 64 + 64)):
        bound = (6 / both_fans) ** 0.5
        assert 0.98 * bound < layer.weight.abs().max() <= bound
        assert layer.weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.05)
    assert (model.project.bias == 0).all()


def test_head():
    assert [tuple(layer.weight.shape) for layer in sw.encoders.projection_head()[::3]] == [(256, 64), (64, 256)]
    head = sw.encoders.projection_head(512, 128, 32)
    assert head(torch.randn(4, 512)).shape == (4, 32)
    assert [type(layer).__name__ for layer in head] == ["Linear", "BatchNorm1d", "LeakyReLU", "Linear"]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet33", {}, "did you mean 'resnet34'"),
        ("resnet18", {"stem": "cifra"}, "got 'cifra'; did you mean 'cifar'"),
        ("conv4", {"weight": "xavier"}, "got 'weight'; did you mean 'weights'"),
        ("timm/resnet18", {"pretrain": True}, "did you mean 'pretrained'"),
        ("conv4", {"channels": 0}, "expected channels"),
    ],
)
def test_errors(name, options, message):
    with pytest.raises(ValueError, match=message):
        sw.encoders.create(name, **options)


def test_depths_that_do_not_exist():
    with pytest.raises(ValueError, match=r"expected depth 6n \+ 2 .*, got 18"):
        sw.encoders.CifarResNet(18)
    with pytest.raises(ValueError, match="expected depth 18 or 34, got 50"):
        sw.encoders.ResNet(50)


def test_a_narrow_resnet_has_fewer_of_all_channels():
    def convolutions(encoder):
        return [module for module in encoder.modules() if isinstance(module, torch.nn.Conv2d)]

    wide, narrow = (sw.encoders.create("resnet18", stem="cifar", width=width) for width in (64, 24))
    assert (wide.features, narrow.features) == (512, 192)
    for a, b in zip(convolutions(wide), convolutions(narrow), strict=True):
        assert 3 * a.out_channels == 8 * b.out_channels
        assert a.in_channels == b.in_channels == 3 or 3 * a.in_channels == 8 * b.in_channels
    assert narrow(torch.zeros(2, 3, 32, 32)).shape == (2, 192)
    for bad in (0, 1.5, None):
        with pytest.raises(ValueError, match="expected width to be a positive integer, got"):
            sw.encoders.ResNet(18, width=bad)


@pytest.fixture
def ideas(tmp_path, monkeypatch):
    """A module of a user's, with an encoder of each form; gone afterwards."""
    text = """
from torch import nn

class Flat(nn.Sequential):
    def __init__(self, channels, width=4, *, scale: float = 1.0):
        super().__init__(nn.Flatten(), nn.Linear(64 * channels, width))
        self.features, self.scale = width, scale

class Same(Flat):
    pass

def with_more(channels, **others):
    return Flat(channels, **others)

def silent(channels):
    return nn.Linear(1, 1)

number = 3
"""
    (tmp_path / "setwise_test_ideas.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(register.encoder, "_entries", dict(register.encoder._entries))
    yield "setwise_test_ideas"
    sys.modules.pop("setwise_test_ideas", None)


def test_an_encoder_of_ones_own(ideas):
    found = sw.encoders.create(f"{ideas}:Flat", channels=2, width=6, scale="0.5")
    assert (found(torch.zeros(3, 2, 8, 8)).shape, found.scale) == ((3, 6), 0.5)
    assert sw.encoders.create(f"{ideas}:Same", channels=1).features == 4
    assert sw.encoders.create(f"{ideas}:with_more", channels=1).features == 4
    for name, message in (
        ("silent", "whose attribute `features` says how many it gives, got Linear"),
        ("number", "to be a function that makes the encoder, got int"),
        ("Flet", "module:function that can be imported, got .*no attribute 'Flet'"),
    ):
        with pytest.raises(ValueError, match=message):
            sw.encoders.create(f"{ideas}:{name}")
    with pytest.raises(ValueError, match="expected width to be a whole number, got 'wide'"):
        sw.encoders.create(f"{ideas}:Flat", width="wide")


def test_a_file_imports_nothing(ideas):
    """A recipe or a checkpoint may come from anyone."""
    tree = {"encoder": {"name": f"{ideas}:Flat", "width": 6}}
    with pytest.raises(ValueError, match=r"expected the encoder to be registered, .* files import nothing: name it"):
        Recipe.read(tree)
    assert ideas not in sys.modules
    register.encoder.trust(f"{ideas}:Flat")  # a person named it
    recipe = Recipe.read(tree)
    assert Recipe.read(recipe.tree()) == recipe
    assert recipe.encoder.options == {"width": 6, "scale": 1.0}


@pytest.mark.parametrize("pool", ["mean", "max", "mean-then-max"])
def test_quick_pools_its_maps_as_it_is_told(pool):
    encoder, x = sw.encoders.create("quick", channels=3, widths=(4, 4, 6), pool=pool), torch.randn(5, 3, 24, 16)
    for training in (True, False):
        encoder.train(training)
        maps = encoder.stages(encoder.stem(x)).detach().numpy()
        assert maps.shape == (5, 6, 3, 2)
        largest = pool == "max" or (pool == "mean-then-max" and not training)
        expected = maps.max((2, 3)) if largest else maps.mean((2, 3))
        np.testing.assert_allclose(encoder(x).detach().numpy(), expected, rtol=1e-4, atol=1e-6)
