"""Exports: the same features from the files, whole or not there, and errors for files that are anything else."""

import hashlib
import json
import os
import sys

import pytest
import torch
from safetensors.torch import load_file, save
from torch import nn

import setwise as sw
from setwise.evaluation import export as module
from setwise.evaluation import frozen, load_encoder
from setwise.evaluation.export import export, load_config

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
CONFIG = {"name": "conv4", "options": {}, "mean": MEAN, "std": STD, "classes": ("cat", "dög")}


def trained_encoder(name: str = "conv4", channels: int = 3, **options) -> nn.Module:
    """An encoder whose BatchNorm has seen images, left in training mode."""
    torch.manual_seed(0)
    encoder = sw.encoders.create(name, channels=channels, **options)
    for _ in range(3):
        encoder(2 * torch.randn(8, channels, 16, 16) + 1)
    return encoder


def features(encoder: nn.Module, images: torch.Tensor) -> torch.Tensor:
    mean, std = (torch.tensor(x).view(-1, 1, 1) for x in (MEAN, STD))
    with torch.no_grad():
        return encoder.eval()((images - mean) / std)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A folder with weights and config, read by many tests and written to by none."""
    folder = tmp_path_factory.mktemp("exported")
    export(trained_encoder(), CONFIG, folder, image_shape=(3, 16, 16), onnx=False)
    return folder


@pytest.fixture
def folder(exported, tmp_path):
    """The same, to be damaged."""
    for name in ("config.json", "encoder.safetensors"):
        (tmp_path / name).write_bytes((exported / name).read_bytes())
    return tmp_path


def rewrite(folder, data: bytes | None = None, **changes) -> None:
    """Replace the weights by ``data`` and fields of the config, whose checksum stays right."""
    if data is not None:
        (folder / "encoder.safetensors").write_bytes(data)
        changes = {"weights_sha256": hashlib.sha256(data).hexdigest()} | changes
    about = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps({k: v for k, v in about.items() if v is not ...}))


def test_weights_and_config(exported):
    assert sorted(p.name for p in exported.iterdir()) == ["config.json", "encoder.safetensors"]
    tensors, expected = load_file(exported / "encoder.safetensors"), trained_encoder().state_dict()
    assert tensors.keys() == expected.keys()
    assert all(torch.equal(tensors[name], expected[name]) for name in expected)
    about = load_config(exported)
    assert about == {
        "format": "setwise encoder 2",
        "setwise": sw.__version__,
        "name": "conv4",
        "options": {"weights": "released"},
        "channels": 3,
        "size": (16, 16),
        "features": 64,
        "mean": MEAN,
        "std": STD,
        "classes": ("cat", "dög"),
        "weights_sha256": hashlib.sha256((exported / "encoder.safetensors").read_bytes()).hexdigest(),
        "onnx": None,
    }


def test_a_loaded_encoder_is_the_encoder(exported):
    state = torch.random.get_rng_state()
    loaded = load_encoder(exported)
    assert torch.equal(state, torch.random.get_rng_state())
    assert not any(part.training for part in loaded.modules())
    assert all(p.requires_grad and not p.is_meta for p in loaded.parameters())
    images = torch.rand(6, 3, 16, 16)
    assert torch.equal(features(loaded, images), features(trained_encoder(), images))


@pytest.mark.parametrize(
    ("name", "channels", "options"),
    [("resnet8", 1, {"weights": "xavier"}), ("resnet18", 3, {"stem": "imagenet"}), ("resnet18", 3, {"stem": "cifar"})],
)
def test_other_encoders_and_their_options(name, channels, options, tmp_path):
    encoder = trained_encoder(name, channels, **options)
    config = CONFIG | {"name": name, "options": options, "mean": MEAN[:channels], "std": STD[:channels]}
    export(encoder, config, tmp_path, image_shape=(channels, 16, 16), onnx=False)
    images = torch.rand(3, channels, 16, 16)
    assert torch.equal(load_encoder(tmp_path)(images), encoder.eval()(images))
    assert load_config(tmp_path)["options"].items() >= options.items()


@pytest.mark.usefixtures("registries")
def test_options_of_an_encoder_from_outside_are_kept_and_nothing_is_downloaded(tmp_path):
    class Wide(nn.Module):
        def __init__(self, channels, features):
            super().__init__()
            self.features, self.linear = features, nn.Linear(channels, features)
            self.register_buffer("scale", torch.full((1,), 2.0), persistent=False)

        def forward(self, images):
            return self.scale * self.linear(images.mean((2, 3)))

    @sw.register.encoder("wide", about="The mean colour, spread.")
    def wide(channels: int, *, features: int = 2, pretrained: bool = False) -> nn.Module:
        assert not pretrained
        return Wide(channels, features)

    config = CONFIG | {"name": "wide", "options": {"features": 7, "pretrained": True}}
    encoder = Wide(3, 7)
    export(encoder, config, tmp_path, image_shape=(3, 4, 4), onnx=False)
    images = torch.rand(5, 3, 4, 4)
    assert torch.equal(load_encoder(tmp_path)(images), encoder(images))


@pytest.mark.parametrize(("name", "stem"), [("conv4", "cifar"), ("resnet18", "imagenet")])
def test_exports_of_the_first_format_are_read(name, stem, tmp_path):
    encoder = trained_encoder(name, **({"stem": stem} if name == "resnet18" else {})).eval()
    data = save(encoder.state_dict())
    (tmp_path / "encoder.safetensors").write_bytes(data)
    about = {
        **{"format": "setwise encoder 1", "setwise": "0.1.0", "name": name, "stem": stem, "channels": 3},
        **{"size": [16, 16], "features": encoder.features, "mean": MEAN, "std": STD, "classes": ["cat", "dog"]},
        **{"weights_sha256": hashlib.sha256(data).hexdigest(), "onnx": None},
    }
    (tmp_path / "config.json").write_text(json.dumps(about))
    images = torch.rand(3, 3, 16, 16)
    assert torch.equal(load_encoder(tmp_path)(images), encoder(images))
    config = {field: about[field] for field in ("name", "stem", "mean", "std", "classes")}
    export(encoder, config, tmp_path / "new", image_shape=(3, 16, 16), onnx=False)  # as callers gave it
    assert torch.equal(load_encoder(tmp_path / "new")(images), encoder(images))


def test_the_encoder_is_left_as_it_is_and_may_be_of_another_dtype(tmp_path):
    encoder = trained_encoder().double().to(memory_format=torch.channels_last)
    state = torch.random.get_rng_state()
    with frozen(encoder):
        export(encoder, CONFIG, tmp_path, image_shape=(3, 16, 16), onnx=False)
    assert torch.equal(state, torch.random.get_rng_state())
    assert encoder.training
    loaded = load_encoder(tmp_path)
    assert loaded.blocks[0].weight.dtype == torch.float32
    images = torch.rand(6, 3, 16, 16)
    torch.testing.assert_close(features(loaded, images), features(encoder.float(), images), rtol=1e-5, atol=1e-6)


def run_graph(path, images: torch.Tensor) -> torch.Tensor:
    session = pytest.importorskip("onnxruntime").InferenceSession(path, providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(["features"], {"images": images.numpy()})[0])


def check_graph(encoder: nn.Module, paths, shape: tuple[int, int, int]) -> None:
    model = pytest.importorskip("onnx").load(paths["onnx"])
    (images,), (found,) = model.graph.input, model.graph.output
    assert [d.dim_param or d.dim_value for d in images.type.tensor_type.shape.dim] == ["batch", *shape]
    assert [d.dim_param or d.dim_value for d in found.type.tensor_type.shape.dim] == ["batch", encoder.features]
    for n in (1, 3, 8):
        pixels = torch.rand(n, *shape)
        expected = features(encoder, pixels)
        torch.testing.assert_close(run_graph(paths["onnx"], pixels), expected, rtol=1e-4, atol=1e-5)


def test_the_graph_alone_gives_the_features(tmp_path, capfd, caplog):
    pytest.importorskip("onnxscript")
    encoder, state = trained_encoder(), torch.random.get_rng_state()
    with frozen(encoder):
        paths = export(encoder, CONFIG, tmp_path, image_shape=(3, 16, 16))
    assert torch.equal(state, torch.random.get_rng_state())
    assert capfd.readouterr() == ("", "")
    assert not [record for record in caplog.records if "exporter" in record.name]
    assert {kind: path.name for kind, path in paths.items()} == {
        "weights": "encoder.safetensors",
        "config": "config.json",
        "onnx": "encoder.onnx",
    }
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(p.name for p in paths.values())
    assert paths["onnx"].stat().st_mode & 0o777 == 0o666 & ~current_umask()
    check_graph(encoder, paths, (3, 16, 16))
    about = load_config(tmp_path)["onnx"]
    assert about["sha256"] == hashlib.sha256(paths["onnx"].read_bytes()).hexdigest()
    assert 0 <= about["relative_difference"] <= 1e-5
    assert 0 <= about["max_abs_difference"] <= 1e-5

    # A later export without a graph takes the old graph away: it would be of other weights.
    export(trained_encoder(), CONFIG, tmp_path, image_shape=(3, 16, 16), onnx=False)
    assert not paths["onnx"].exists()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), [("resnet18", {"stem": "cifar"}), ("resnet32", {})])
def test_the_graph_of_larger_encoders(name, options, tmp_path):
    pytest.importorskip("onnxscript")
    encoder = trained_encoder(name, **options)
    paths = export(encoder, CONFIG | {"name": name, "options": options}, tmp_path, image_shape=(3, 32, 32))
    check_graph(encoder, paths, (3, 32, 32))


def current_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    """The graph of ``trained_encoder``, as onnx reads it."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    paths = export(trained_encoder(), CONFIG, tmp_path_factory.mktemp("graph"), image_shape=(3, 16, 16))
    return onnx.load(paths["onnx"])


def with_other_weights(model) -> None:
    weight = max(model.graph.initializer, key=lambda x: len(x.raw_data))
    weight.raw_data = (torch.frombuffer(bytearray(weight.raw_data), dtype=torch.float32) * 1.01).numpy().tobytes()


def with_two_images(model) -> None:
    for x in (*model.graph.input, *model.graph.output):
        x.type.tensor_type.shape.dim[0].dim_value = 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (with_other_weights, r"expected encoder\.onnx to give the encoder's features .* nothing was written"),
        (with_two_images, "expected a graph for any number of images, got one for 2"),
        (None, r"expected encoder\.safetensors to give the encoder's features"),
    ],
)
def test_wrong_files_are_not_written(change, message, graph, folder, monkeypatch):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    if change:
        wrong = type(graph).FromString(graph.SerializeToString())
        change(wrong)
        monkeypatch.setattr(module, "_graph", lambda model, image_shape: wrong.SerializeToString())
    else:
        monkeypatch.setattr("safetensors.torch.save", lambda tensors: save({k: v * 2 for k, v in tensors.items()}))
    with pytest.raises(RuntimeError, match=message):
        export(trained_encoder(), CONFIG | {"classes": ()}, folder, image_shape=(3, 16, 16))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_without_the_packages(package, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ModuleNotFoundError, match=rf"got .*{package}.*; pip install onnx onnxruntime onnxscript,"):
        export(trained_encoder(), CONFIG, tmp_path / "new", image_shape=(3, 16, 16))
    assert not (tmp_path / "new").exists()
    export(trained_encoder(), CONFIG, tmp_path / "new", image_shape=(3, 16, 16), onnx=False)


@pytest.mark.parametrize(
    ("changes", "shape", "message"),
    [
        ({"name": "resnet9"}, (3, 16, 16), "got 'resnet9'"),
        ({"name": "resnet8"}, (3, 16, 16), r"the weights of resnet8 .* got blocks\.0\..* as no such tensor"),
        ({"options": {"stem": "big"}}, (3, 16, 16), "expected an option of 'conv4'"),
        ({"std": (0.5, 0.0, 0.5)}, (3, 16, 16), "expected mean, and std above 0, for 3 channels"),
        ({"more": 1}, (3, 16, 16), "fields, got a difference in more"),
        ({}, (16, 16), r"expected image_shape as \(C, H, W\), got \(16, 16\)"),
        ({}, (3, 100_000, 100_000), "expected images of at most 4,194,304 values, got 3 x 100000 x 100000"),
        ({"mean": (0.5,), "std": (0.5,)}, (1, 16, 16), r"got blocks\.0\.weight as .* \(8, 3, 3, 3\), not .* \(8, 1,"),
        (None, (3, 16, 16), "expected finite features of random images"),
    ],
)
def test_what_does_not_fit_is_not_written(changes, shape, message, tmp_path):
    encoder = trained_encoder()
    if changes is None:
        encoder.blocks[0].weight.data[0] = float("nan")
    with pytest.raises(ValueError, match=message):
        export(encoder, CONFIG | (changes or {}), tmp_path / "new", image_shape=shape, onnx=False)
    assert not (tmp_path / "new").exists()


def test_missing_files(folder):
    with pytest.raises(ValueError, match=r"expected an exported encoder, got no file .*config\.json"):
        load_encoder(folder / "elsewhere")
    run = folder.rename(folder.parent / "encoder").parent
    for load in (load_encoder, load_config):
        with pytest.raises(ValueError, match=rf"got no file {run}/config\.json; did you mean {run}/encoder\?$"):
            load(run)
    (run / "encoder").rename(folder)
    (folder / "encoder.safetensors").unlink()
    with pytest.raises(ValueError, match=r"got no file .*encoder\.safetensors; `setwise export` writes one"):
        load_encoder(folder)


@pytest.mark.parametrize("text", [b"", b"\xff\xfe{}", b"[" * 100_000, b"[1, 2]", b'{"architectures": ["BertModel"]}'])
def test_foreign_configs(text, folder):
    (folder / "config.json").write_bytes(text)
    with pytest.raises(ValueError, match="expected what `setwise export` writes at .*config.json, got a file"):
        load_encoder(folder)


@pytest.mark.parametrize(
    "changes",
    [
        *({"name": name} for name in ("os:system", ["conv4"], "resnet8", "timm/")),
        *({"options": options} for options in ({"stem": 3}, {"weights": "best"}, [1], None)),
        *({"channels": channels} for channels in (10**9, True, None, 0)),
        *({"size": size} for size in (16, [16, 0], [16])),
        *({"mean": mean} for mean in ([0.5, 0.5, float("nan")], [0.5, 0.5, float("inf")], [0.5], 0.5)),
        *({"std": std} for std in ([0.5, 0.5, 0], [0.5, 0.5, "wide"])),
        *({"features": 65}, {"classes": 3}, {"weights_sha256": None}, {"extra": 1}, {"classes": ...}),
        *({"format": name} for name in ("setwise encoder 3", ["setwise encoder 1"])),
    ],
)
def test_configs_that_make_no_sense(changes, folder):
    rewrite(folder, **changes)
    with pytest.raises(ValueError, match=r"^expected .*(config\.json|encoder\.safetensors)"):
        load_encoder(folder)


def altered(tensors, name, change):
    return tensors | {name: change(tensors[name])}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: {k: v for k, v in t.items() if k != "blocks.1.bias"}, r"blocks\.1\.bias as no such tensor, not"),
        (lambda t: t | {"extra": torch.zeros(1)}, r"got extra as torch\.float32 \(1,\), not no such tensor"),
        (lambda t: altered(t, "blocks.1.bias", lambda x: x[:-1].clone()), r"bias as .* \(7,\), not .* \(8,\)"),
        (lambda t: altered(t, "blocks.1.bias", torch.Tensor.double), r"bias as torch\.float64 .* not .*float32"),
        (lambda t: {}, "as no such tensor"),
    ],
)
def test_other_tensors(change, message, folder):
    rewrite(folder, save(change(load_file(folder / "encoder.safetensors"))))
    with pytest.raises(ValueError, match=message):
        load_encoder(folder)


def test_damaged_weights(folder):
    whole = (folder / "encoder.safetensors").read_bytes()
    flipped = bytearray(whole)
    flipped[-100] ^= 1  # one bit of one weight, which no format but a checksum notices
    for data in (bytes(flipped), whole[:-1], whole + b"\0", b""):
        (folder / "encoder.safetensors").write_bytes(data)
        with pytest.raises(ValueError, match=r"expected .*encoder\.safetensors to be the file that config\.json"):
            load_encoder(folder)


@pytest.mark.parametrize("seed", range(40))
def test_damaged_headers_with_a_right_checksum(seed, folder):
    """A file that means harm comes with a config that fits."""
    generator = torch.Generator().manual_seed(seed)
    data = bytearray((folder / "encoder.safetensors").read_bytes())
    header = 8 + int.from_bytes(data[:8], "little")
    for place in torch.randint(header, (1 + seed % 4,), generator=generator).tolist():
        data[place] = int(torch.randint(256, (), generator=generator))
    rewrite(folder, bytes(data))
    with pytest.raises(ValueError, match="expected a safetensors file|expected the weights of conv4"):
        load_encoder(folder)
