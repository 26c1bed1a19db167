"""Exports: the same features from the files, whole or not there, and errors for files that are anything else."""

import hashlib
import json
import logging
import os
import sys

import pytest
import torch
from safetensors.torch import load_file, save, save_file
from torch import nn

import setwise as sw
from setwise.evaluation import export as module
from setwise.evaluation import extract, frozen, load_encoder
from setwise.evaluation.export import export, load_config

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
CONFIG = {"name": "conv4", "stem": "cifar", "mean": MEAN, "std": STD, "classes": ("cat", "dög")}


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
    digest = hashlib.sha256((exported / "encoder.safetensors").read_bytes()).hexdigest()
    assert about == {
        "format": "setwise encoder 1",
        "setwise": sw.__version__,
        "name": "conv4",
        "stem": "cifar",
        "channels": 3,
        "size": [16, 16],
        "features": 64,
        "mean": list(MEAN),
        "std": list(STD),
        "classes": ["cat", "dög"],
        "weights_sha256": digest,
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
    ("name", "channels", "stem"), [("resnet8", 1, "cifar"), ("resnet18", 3, "imagenet"), ("conv4", 1, "cifar")]
)
def test_other_encoders(name, channels, stem, tmp_path):
    encoder = trained_encoder(name, channels, **({"stem": stem} if name == "resnet18" else {}))
    config = CONFIG | {"name": name, "stem": stem, "mean": MEAN[:channels], "std": STD[:channels]}
    export(encoder, config, tmp_path, image_shape=(channels, 16, 16), onnx=False)
    images = torch.rand(3, channels, 16, 16)
    assert torch.equal(load_encoder(tmp_path)(images), encoder.eval()(images))


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


@pytest.fixture
def logged():
    """What the exporter's registration of operators logs."""
    records = []
    handler = logging.Handler()
    handler.emit = records.append
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    logger.addHandler(handler)
    yield records
    logger.removeHandler(handler)
    assert not logger.filters


def test_the_graph_alone_gives_the_features(tmp_path, capfd, logged):
    pytest.importorskip("onnxscript")
    encoder, state = trained_encoder(), torch.random.get_rng_state()
    with frozen(encoder):
        paths = export(encoder, CONFIG, tmp_path, image_shape=(3, 16, 16))
    assert torch.equal(state, torch.random.get_rng_state())
    assert capfd.readouterr() == ("", "")
    assert not logged
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
    paths = export(encoder, CONFIG | {"name": name}, tmp_path, image_shape=(3, 32, 32))
    check_graph(encoder, paths, (3, 32, 32))


def current_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_features_through_the_package_are_the_graphs(tmp_path):
    pytest.importorskip("onnxscript")
    digits = sw.data.load("digits", split="test")
    encoder = trained_encoder(channels=1)
    config = CONFIG | {"mean": digits.mean, "std": digits.std, "classes": digits.classes}
    paths = export(encoder, config, tmp_path, image_shape=tuple(digits.images.shape[1:]))
    expected = extract(encoder, digits, device="cpu")
    torch.testing.assert_close(run_graph(paths["onnx"], digits.images / 255), expected, rtol=1e-4, atol=1e-5)


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
        (
            with_other_weights,
            r"expected encoder\.onnx to give the encoder's features to 0\.0001 .* nothing was written",
        ),
        (with_two_images, "expected a graph for any number of images, got one for 2"),
    ],
)
def test_a_wrong_graph_is_not_written(change, message, graph, folder, monkeypatch):
    wrong = type(graph).FromString(graph.SerializeToString())
    change(wrong)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    monkeypatch.setattr(module, "_graph", lambda model, image_shape: wrong.SerializeToString())
    with pytest.raises(RuntimeError, match=message):
        export(trained_encoder(), CONFIG | {"classes": ()}, folder, image_shape=(3, 16, 16))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_wrong_weights_are_not_written(folder, monkeypatch):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    monkeypatch.setattr("safetensors.torch.save", lambda tensors: save({k: v * 2 for k, v in tensors.items()}))
    with pytest.raises(RuntimeError, match=r"expected encoder\.safetensors to give the encoder's features"):
        export(trained_encoder(), CONFIG, folder, image_shape=(3, 16, 16), onnx=False)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_without_the_packages(package, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ModuleNotFoundError, match=rf"got .*{package}.*; pip install onnx onnxruntime onnxscript,"):
        export(trained_encoder(), CONFIG, tmp_path / "new", image_shape=(3, 16, 16))
    assert not (tmp_path / "new").exists()
    export(trained_encoder(), CONFIG, tmp_path / "new", image_shape=(3, 16, 16), onnx=False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "resnet9"}, "expected name to be one of .* got 'resnet9'"),
        (
            {"name": "resnet8"},
            r"expected the weights of resnet8 .* in the encoder, got blocks\.0\..* as no such tensor",
        ),
        ({"stem": "big"}, "expected stem to be one of"),
        ({"mean": (0.5,)}, r"expected mean as 3 numbers, one a channel, got \[0\.5\]"),
        ({"mean": 0.5}, "expected mean as 3 numbers, one a channel, got 0.5"),
        ({"std": (0.5, 0.0, 0.5)}, "expected std to be a finite number above 0, got 0.0"),
        ({"classes": (1, 2)}, r"expected classes as a list of names, got \[1, 2\]"),
        ({"more": 1}, r"expected a config with the fields classes, mean, name, std, stem, got \['classes', .*'more'"),
    ],
)
def test_configs_that_do_not_fit(changes, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        export(trained_encoder(), CONFIG | changes, tmp_path / "new", image_shape=(3, 16, 16), onnx=False)
    assert not (tmp_path / "new").exists()


def test_other_things_that_do_not_fit(tmp_path):
    with pytest.raises(ValueError, match="expected image_shape as \\(C, H, W\\), got \\(16, 16\\)"):
        export(trained_encoder(), CONFIG, tmp_path, image_shape=(16, 16), onnx=False)
    with pytest.raises(ValueError, match="expected images of at most 4,194,304 values, got 3 x 100000 x 100000"):
        export(trained_encoder(), CONFIG, tmp_path, image_shape=(3, 100_000, 100_000), onnx=False)
    grey = CONFIG | {"mean": (0.5,), "std": (0.5,)}
    with pytest.raises(ValueError, match=r"got blocks\.0\.weight as .* \(8, 3, 3, 3\), not .* \(8, 1, 3, 3\)"):
        export(trained_encoder(), grey, tmp_path, image_shape=(1, 16, 16), onnx=False)
    broken = trained_encoder()
    broken.blocks[0].weight.data[0] = float("nan")
    with pytest.raises(ValueError, match="expected finite features of random images"):
        export(broken, CONFIG, tmp_path, image_shape=(3, 16, 16), onnx=False)
    assert not list(tmp_path.iterdir())


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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "a file that is not JSON"),
        (b"\xff\xfe{}", "a file that is not JSON"),
        (b"[" * 100_000, "a file that is not JSON"),
        (b"[1, 2]", 'a file without "format"'),
        (b'{"architectures": ["BertModel"]}', 'a file without "format"'),
        (b'{"format": "setwise encoder 2"}', 'a file without "format": "setwise encoder 1"'),
        (b'{"format": "setwise encoder 1"}', "a difference in the fields channels, classes, features"),
    ],
)
def test_foreign_configs(text, message, folder):
    (folder / "config.json").write_bytes(text)
    with pytest.raises(ValueError, match=message):
        load_encoder(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "__import__('os')"}, "expected name to be one of"),
        ({"name": ["conv4"]}, "expected name to be one of"),
        ({"name": "resnet8"}, r"expected the weights of resnet8 .* as no such tensor"),
        ({"stem": 3}, "expected stem to be one of"),
        ({"channels": 10**9}, "expected mean as 1000000000 numbers"),
        ({"channels": True}, "expected channels to be a positive integer, got True"),
        ({"channels": "3"}, "expected channels to be a positive integer, got '3'"),
        ({"size": 16}, r"expected size as \[H, W\], got 16"),
        ({"size": [16, 0]}, "expected size to be a positive integer, got 0"),
        ({"features": 65}, "expected 64 features for conv4, got 65"),
        ({"mean": [0.5, 0.5, float("nan")]}, "expected mean to be a finite number, got nan"),
        ({"std": [0.5, 0.5, "0"]}, "expected std to be a finite number above 0, got '0'"),
        ({"classes": "abc"}, "expected classes as a list of names, got 'abc'"),
        ({"weights_sha256": None}, "got other bytes"),
        ({"extra": 1}, "a difference in the fields extra"),
        ({"classes": ...}, "a difference in the fields classes"),
    ],
)
def test_configs_that_make_no_sense(changes, message, folder):
    rewrite(folder, **changes)
    with pytest.raises(ValueError, match=message):
        load_encoder(folder)


def altered(tensors, name, change):
    return tensors | {name: change(tensors[name])}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: {k: v for k, v in t.items() if k != "blocks.1.bias"}, r"blocks\.1\.bias as no such tensor, not"),
        (lambda t: t | {"extra": torch.zeros(1)}, r"got extra as torch\.float32 \(1,\), not no such tensor"),
        (
            lambda t: altered(t, "blocks.1.bias", lambda x: x[:-1].clone()),
            r"blocks\.1\.bias as .* \(7,\), not .* \(8,\)",
        ),
        (
            lambda t: altered(t, "blocks.1.bias", torch.Tensor.double),
            r"blocks\.1\.bias as torch\.float64 .* not .*float32",
        ),
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


def test_weights_of_another_export(folder):
    other = trained_encoder()
    other.blocks[0].weight.data += 1
    save_file(other.state_dict(), folder / "encoder.safetensors")
    with pytest.raises(ValueError, match="damaged or of another export, export again"):
        load_encoder(folder)
