"""Networks of timm and torchvision as encoders, ours by torchvision's names; stand-ins where they are not installed."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, max_pool2d, relu

import setwise as sw
from setwise.encoders import settled
from setwise.encoders.backbones import backbone, to_torchvision
from setwise.recipe import Recipe


class Block(nn.Module):
    """torchvision's BasicBlock, written down from its documentation."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(before, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.downsample = None
        if stride == 2:
            self.downsample = nn.Sequential(nn.Conv2d(before, width, 1, 2, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(relu(self.bn1(self.conv1(x)))))
        return relu(y + (x if self.downsample is None else self.downsample(x)))


class TorchvisionResNet(nn.Module):
    """torchvision's ResNet of basic blocks, with its names."""

    def __init__(self, depths: tuple[int, ...] = (2, 2, 2, 2), width: int = 64) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width)
        before = width
        for stage, depth in enumerate(depths):
            blocks = []
            for i in range(depth):
                blocks.append(Block(before, width * 2**stage, 2 if stage and not i else 1))
                before = width * 2**stage
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(before, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = max_pool2d(relu(self.bn1(self.conv1(x))), 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(adaptive_avg_pool2d(x, 1).flatten(1))


def scrambled(encoder: nn.Module) -> nn.Module:
    """With no two weights alike, so that a swap shows."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, x in encoder.state_dict().items():
            if x.ndim == 1:
                x.copy_(0.5 + torch.rand(x.shape, generator=generator))
            elif name.endswith("num_batches_tracked"):
                x.fill_(7)
    return encoder.eval()


@pytest.mark.parametrize(("name", "depths"), [("resnet18", (2, 2, 2, 2)), ("resnet34", (3, 4, 6, 3))])
@pytest.mark.parametrize("library", ["", "torchvision.models", "timm"])
def test_our_weights_load_by_torchvisions_names(package, library, name, depths):
    make = {"torchvision.models": "get_model", "timm": "create_model"}
    theirs = getattr(package(library), make[library])(name) if library else TorchvisionResNet(depths)
    encoder = scrambled(sw.encoders.create(name))
    state = to_torchvision(encoder)
    missing = theirs.load_state_dict(state, strict=False)
    assert not missing.unexpected_keys
    assert sorted(missing.missing_keys) == ["fc.bias", "fc.weight"]
    theirs.fc = nn.Identity()
    theirs.load_state_dict(state)  # strictly
    images = torch.randn(2, 3, 64, 48, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(theirs.eval()(images), encoder(images), rtol=1e-4, atol=1e-5)


def test_only_what_torchvision_has_is_given_its_names():
    for encoder in (sw.encoders.create("resnet18", stem="cifar"), sw.encoders.create("resnet8")):
        with pytest.raises(ValueError, match='expected a ResNet-18 or -34 with stem="imagenet"'):
            to_torchvision(encoder)


@pytest.fixture
def stand_in(monkeypatch):
    """Modules with the few functions of torchvision.models and timm that are used; what they were requested for."""
    requested = {}

    class Timm(nn.Module):
        num_features = 12

        def __init__(self, hidden: int | None) -> None:
            super().__init__()
            self.features = nn.Linear(1, 1)  # a part, as in timm's densenet
            self.head_hidden_size = hidden

        def forward(self, images: Tensor) -> Tensor:
            return torch.ones(len(images), self.head_hidden_size or 12)

    def get_model(name: str, *, weights: str | None, image_size: int = 224) -> nn.Module:
        requested["weights"] = weights
        if name == "vit_b_16":
            return nn.Sequential(nn.Flatten(), nn.Linear(3 * image_size**2, 5), nn.Linear(5, 1000))
        if name == "squeezenet1_0":
            return nn.Conv2d(3, 1000, 1)
        if name == "inception_v3":
            return nn.Sequential(nn.Linear(3, 1000), nn.Linear(3, 1000))
        if name == "vgg11":
            return nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(48, 5), nn.Linear(5, 1000)))
        return TorchvisionResNet((1, 1, 1, 1), width=4)

    def create_model(name: str, **options: object) -> nn.Module:
        requested.update(name=name, **options)
        return Timm(20 if name == "mobilenetv3_small_050" else None)

    vision, models, timm = ModuleType("torchvision"), ModuleType("torchvision.models"), ModuleType("timm")
    models.get_model, vision.models = get_model, models
    models.list_models = lambda module: ["resnet18", "resnet34", "vgg11", "vit_b_16", "squeezenet1_0", "inception_v3"]
    names = ["resnet18", "resnet18d", "mobilenetv3_small_050", "vit_small"]
    timm.create_model, timm.list_models = create_model, lambda: names
    timm.get_pretrained_cfg = lambda name: (
        SimpleNamespace(fixed_input_size=name == "vit_small", input_size=(3, 96, 96)) if name in names else None
    )
    for module in (vision, models, timm):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return requested


def test_torchvision_without_its_classifier(stand_in):
    torch.manual_seed(0)
    theirs = TorchvisionResNet((1, 1, 1, 1), width=4).eval()
    torch.manual_seed(0)
    ours = backbone("torchvision/resnet18").eval()
    images = torch.randn(2, 3, 32, 32)
    assert ours.features == 32
    assert ours(images).shape == (2, 32)
    torch.testing.assert_close(theirs.fc(ours(images)), theirs(images))
    assert not any("fc" in name for name in ours.state_dict())
    assert stand_in["weights"] is None
    backbone("torchvision/resnet18", pretrained=True)
    assert stand_in["weights"] == "DEFAULT"


def test_a_classifier_inside_another_part(stand_in):
    torch.manual_seed(0)
    parts = nn.Flatten(), nn.Linear(48, 5)
    torch.manual_seed(0)
    ours, images = backbone("torchvision/vgg11"), torch.randn(2, 3, 4, 4)
    torch.testing.assert_close(ours(images), nn.Sequential(*parts)(images))
    assert ours(images).min() < 0  # nothing in the classifier's place
    assert ours.features == 5


def test_one_channel_is_a_grey_image(stand_in):
    torch.manual_seed(0)
    colour = backbone("torchvision/resnet18").eval()
    torch.manual_seed(0)
    grey = backbone("torchvision/resnet18", channels=1).eval()
    images = torch.randn(2, 1, 32, 32)
    torch.testing.assert_close(grey(images), colour(images.expand(2, 3, 32, 32)))
    assert all(p.requires_grad and p.is_leaf for p in grey.parameters())


def test_timm_is_requested_for_features(stand_in):
    found = backbone("timm/resnet18d", channels=5, pretrained=True)
    assert found.features == 12
    assert stand_in == {"name": "resnet18d", "pretrained": True, "in_chans": 5, "num_classes": 0}
    found = backbone("timm/mobilenetv3_small_050")
    assert found.features == 20 == found(torch.ones(2, 3, 8, 8)).shape[1]
    sw.encoders.create("timm/resnet18", channels=1, img_size=8)
    assert stand_in == {"name": "resnet18", "pretrained": False, "in_chans": 1, "num_classes": 0, "img_size": 8}
    assert sw.encoders.create("torchvision/resnet18", pretrained=True).features == 32
    assert stand_in["weights"] == "DEFAULT"


def images(*size: int) -> sw.data.ImageSet:
    pixels = torch.zeros(8, 3, *size, dtype=torch.uint8)
    return sw.data.ImageSet(
        "black", "train", pixels, torch.zeros(8, dtype=torch.int64), ("a",), (0.5,) * 3, (0.25,) * 3
    )


@pytest.mark.parametrize(
    ("name", "size", "made_for"),
    [
        ("timm/vit_small", (64, 64), 64),
        ("timm/vit_small", (64, 32), (64, 32)),
        ("timm/vit_small", (96, 96), None),  # as it is
        ("timm/resnet18", (64, 64), None),  # any
        ("torchvision/vit_b_16", (8, 8), 8),
        ("torchvision/resnet18", (64, 64), None),
    ],
)
def test_a_network_is_made_for_the_images_and_the_checkpoint_says_so(stand_in, name, size, made_for):
    recipe = Recipe.read({"encoder": name})
    encoder = sw.Parts(recipe, images(*size)).encoder
    if name.startswith("timm"):
        assert stand_in.get("img_size") == made_for
    kept = settled(recipe.encoder, size)
    assert kept["img_size"] == made_for
    again = sw.encoders.create(kept.name, **kept.options)  # without the images
    assert {key: x.shape for key, x in again.state_dict().items()} == {
        key: x.shape for key, x in encoder.state_dict().items()
    }
    assert Recipe.read(Recipe.read({"encoder": kept.tree()}).tree()).encoder == kept
    given = Recipe.read({"encoder": {"name": name, "img_size": 7}}).encoder
    assert settled(given, size) == given


@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        ({"name": "torchvision/vit_b_16", "img_size": 9}, r"8 x 8 pixels, got torchvision/vit_b_16.*\(mat1 .*no --enc"),
        ({"name": "timm/odd"}, r"expected 12 features of an image from timm/odd, got shape \(1, 3\)"),
    ],
)
def test_a_network_that_does_not_take_the_images_is_named(stand_in, monkeypatch, encoder, message):
    timm, modes = sys.modules["timm"], []
    make = timm.create_model

    def create_model(name: str, **options: object) -> nn.Module:
        network = make(name, **options)
        monkeypatch.setattr(network, "forward", lambda images: modes.append(network.training) or torch.zeros(1, 3))
        return network

    monkeypatch.setattr(timm, "create_model", create_model)
    timm.list_models().append("odd")
    with pytest.raises(ValueError, match=message):
        sw.Parts(Recipe.read({"encoder": encoder}), images(8, 8))
    assert not any(modes), "in eval mode"


@pytest.mark.parametrize(
    ("name", "channels", "message"),
    [
        ("torchvision/resnet19", 3, "got 'resnet19'.*did you mean torchvision/resnet"),
        ("timm/resnet18b", 3, "got 'resnet18b'; did you mean timm/resnet18"),
        ("timm/qqq", 3, "got 'qqq'"),
        ("resnet18", 3, "expected timm/NAME or torchvision/NAME, got 'resnet18'"),
        ("torchvision/squeezenet1_0", 3, "one linear classifier, got 0 in 'torchvision/squee"),
        ("torchvision/inception_v3", 3, "one linear classifier, got 2"),
        ("torchvision/resnet18", 4, "expected 1 or 3 channels"),
        ("timm/resnet18", 0, "expected channels"),
    ],
)
def test_bad_requests(stand_in, name, channels, message):
    with pytest.raises(ValueError, match=message):
        backbone(name, channels=channels)


def test_a_missing_or_broken_package_is_named(monkeypatch):
    for library in ("timm", "torchvision"):
        monkeypatch.setitem(sys.modules, library, None)
        monkeypatch.setitem(sys.modules, "torchvision.models", None)
        with pytest.raises(ModuleNotFoundError, match=rf"the package {library}, got .*pip install timm torchvision"):
            backbone(f"{library}/resnet18")

    def fail(name: str) -> None:
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr("setwise.checks.importlib", SimpleNamespace(import_module=fail))
    with pytest.raises(ModuleNotFoundError, match="operator torchvision::nms does not"):
        backbone("torchvision/resnet18")


REAL = {
    **{f"torchvision/{name}": 32 for name in ("resnet18", "densenet121", "mobilenet_v3_small", "swin_t")},
    **{f"timm/{name}": 32 for name in ("resnet18", "densenet121", "mobilenetv3_small_050", "vgg11")},
    "torchvision/vit_b_16": 224,
    "timm/vit_tiny_patch16_224": 224,
}


@pytest.mark.parametrize(("name", "size"), REAL.items())
def test_real_networks(package, name, size):
    package(name.partition("/")[0].replace("torchvision", "torchvision.models"))
    encoder = backbone(name, channels=1)
    with torch.no_grad():
        features = encoder.eval()(torch.randn(2, 1, size, size))
    assert features.shape == (2, encoder.features)
    assert not any(isinstance(m, nn.Linear) and m.out_features == 1000 for m in encoder.modules())


@pytest.mark.parametrize(
    "name", ["timm/vit_tiny_patch16_224", "timm/swin_tiny_patch4_window7_224", "torchvision/vit_b_16"]
)
def test_real_networks_are_made_for_the_images(package, name):
    package(name.partition("/")[0].replace("torchvision", "torchvision.models"))
    assert sw.Parts(Recipe.read({"encoder": name}), images(96, 96)).features > 100


def test_unknown_names_are_answered_from_the_real_lists(package):
    package("torchvision.models")
    for name in ("resnet19", "fasterrcnn_resnet50_fpn"):  # the latter is a detector
        with pytest.raises(ValueError, match=f"got {name!r}"):
            backbone(f"torchvision/{name}")
