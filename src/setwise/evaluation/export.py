"""An encoder as files that need no setwise checkpoint: weights and their description, and one ONNX graph."""

from __future__ import annotations

import copy
import hashlib
import importlib
import json
import logging
import math
import os
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import setwise.register as register
from setwise.checks import is_number
from setwise.registry import Entry, convert
from setwise.training.checkpoint import replacing
from setwise.version import __version__

FORMAT, OLD_FORMAT = "setwise encoder 2", "setwise encoder 1"  # the old one knows the stem, no other options
WEIGHTS, CONFIG, ONNX = "encoder.safetensors", "config.json", "encoder.onnx"
_FLOATS = tuple[float, ...]
KINDS: dict[str, Any] = {
    **{"name": str, "channels": int, "size": tuple[int, int]},
    **{"mean": _FLOATS, "std": _FLOATS, "classes": tuple[str, ...]},
}
FIELDS = {*KINDS, "options", "format", "setwise", "features", "weights_sha256", "onnx"}
PACKAGES = ("onnx", "onnxruntime", "onnxscript")  # ONNX needs them all, nothing else does
OPSET = 18  # what the exporter writes without converting, and runtimes of 2023 already read
TOLERANCE = 1e-4  # of the largest feature; float32 sums in another order differ by about 1e-6
LARGEST = 2**22  # values of an image, C * H * W: 1,182 pixels a side in colour
BATCHES = (1, 2, 5)  # the graph is traced with 2 images and must take any number


def export(
    encoder: nn.Module,
    config: dict[str, Any],
    folder: str | os.PathLike[str],
    *,
    image_shape: tuple[int, int, int],
    onnx: bool = True,
) -> dict[str, Path]:
    """Write ``encoder.safetensors``, ``config.json`` and, with ``onnx``, ``encoder.onnx``; their paths by kind.

    ``config`` says what the encoder is: its ``name`` and ``options`` for ``encoders.create``, ``mean`` and ``std`` of
    its images, and the names of the ``classes`` it saw. ``image_shape`` is (C, H, W). The weights are float32 and
    have the names of the state_dict; the encoder itself is left as it is.

    The graph takes float32 images in [0, 1], [B, C, H, W] for any B, and normalises them itself: the one file is all
    that is needed to use it. ``config.json`` states how far its features are from torch's.

    Everything is written under other names, read back and compared with the encoder on random images before it
    appears, each file whole or not at all and ``config.json`` last. An ``encoder.onnx`` of an earlier export does
    not stay beside weights that it does not have.
    """
    from safetensors.torch import save

    if onnx and (missing := missing_packages()):
        raise ModuleNotFoundError(f"{missing}, or leave it out with --no-onnx (onnx=False)")
    about = _described(config, image_shape)
    folder = Path(folder)
    whole = _Normalised(copy.deepcopy(encoder).to("cpu", torch.float32), about).eval()
    tensors = {name: x.detach().contiguous() for name, x in whole.encoder.state_dict().items()}
    _build(about, tensors, "the encoder")  # an error before anything is written
    probes = [torch.rand(n, *image_shape, generator=torch.Generator().manual_seed(n), device="cpu") for n in BATCHES]
    expected = torch.cat([whole(images) for images in probes])
    if not expected.isfinite().all():
        raise ValueError("expected finite features of random images, got NaN or infinite ones; has training diverged?")
    about["features"] = expected.shape[1]
    with ExitStack() as files:
        config_path = files.enter_context(replacing(folder / CONFIG))  # the first to be entered is the last to appear
        graph_path = files.enter_context(replacing(folder / ONNX)) if onnx else None
        weights_path = files.enter_context(replacing(folder / WEIGHTS))
        weights_path.write_bytes(save(tensors))
        about["weights_sha256"] = _sha256(weights_path.read_bytes())
        if graph_path is not None:
            graph_path.write_bytes(_graph(whole, image_shape))
            about["onnx"] = _compared(graph_path.read_bytes(), probes, expected)
        config_path.write_text(json.dumps(about, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        loaded = _Normalised(_read(config_path, weights_path), about)
        _difference(torch.cat([loaded(images) for images in probes]), expected, WEIGHTS)
    if not onnx:
        (folder / ONNX).unlink(missing_ok=True)
    return {"weights": folder / WEIGHTS, "config": folder / CONFIG} | ({"onnx": folder / ONNX} if onnx else {})


def load_encoder(folder: str | os.PathLike[str]) -> nn.Module:
    """The encoder that ``export`` wrote, in eval mode on the CPU. It takes images normalised by its config's numbers.

    Only numbers and names are read, nothing is executed. Files that are missing, damaged, foreign or not of one
    export raise a ValueError that says so.
    """
    return _read(Path(folder) / CONFIG, Path(folder) / WEIGHTS)


def load_config(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """What ``export`` wrote about the encoder, checked."""
    return _read_config(Path(folder) / CONFIG)


class _Normalised(nn.Module):
    """The encoder of images in [0, 1]."""

    def __init__(self, encoder: nn.Module, about: dict[str, Any]) -> None:
        super().__init__()
        self.encoder = encoder
        self.mean: Tensor
        self.std: Tensor
        for name in ("mean", "std"):
            self.register_buffer(name, torch.tensor(about[name], dtype=torch.float32).view(-1, 1, 1))

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """Features [B, F] of images [B, C, H, W]."""
        features: Tensor = self.encoder((images - self.mean) / self.std)
        return features


def _described(config: dict[str, Any], image_shape: tuple[int, int, int]) -> dict[str, Any]:
    """All fields, with None for those that the export fills in; checked."""
    if len(image_shape) != 3:
        raise ValueError(f"expected image_shape as (C, H, W), got {image_shape!r}")
    if math.prod(image_shape) > LARGEST:  # random ones will be made, and a checkpoint can say anything
        raise ValueError(
            f"expected images of at most {LARGEST:,} values, got {' x '.join(map(str, image_shape))}; "
            "export with smaller images, encoders take any size"
        )
    about = {"format": FORMAT, "setwise": __version__, "features": None, "weights_sha256": None, "onnx": None}
    return _checked(about | {"channels": image_shape[0], "size": image_shape[1:]} | config)


def _checked(about: dict[str, Any]) -> dict[str, Any]:
    """The description with all options of its encoder; raises unless one can be built by it."""
    entry = _entry(about.get("name"))
    if "stem" in about:  # of the old format, whatever the encoder
        options = {"stem": about["stem"]} if "stem" in entry.options else {}
        about = {name: value for name, value in about.items() if name != "stem"} | {"options": options}
    if about.keys() != FIELDS:
        raise ValueError(f"expected other fields, got a difference in {', '.join(sorted(about.keys() ^ FIELDS))}")
    about |= {name: convert(about[name], kind, name) for name, kind in KINDS.items()}
    if min(about["channels"], *about["size"]) < 1:
        raise ValueError(f"expected at least one channel and pixel, got {about['channels']}, {about['size']}")
    mean, std = about["mean"], about["std"]
    numbers = all(map(is_number, (*mean, *std)))
    if not len(mean) == len(std) == about["channels"] or not numbers or min(std) <= 0:
        raise ValueError(f"expected mean, and std above 0, for {about['channels']} channels, got {mean!r} and {std!r}")
    if not isinstance(about["options"], dict):
        raise ValueError(f"expected options to be a table, got {about['options']!r}")
    return about | {"options": entry.fill(about["options"])}


def _entry(name: object) -> Entry[Any]:
    """The encoder's entry. A description imports nothing: "module:function" is refused unless it is registered."""
    return register.encoder[convert(name, str, "name")]


def _read_config(path: Path) -> dict[str, Any]:
    foreign = f"expected what `setwise export` writes at {path}, got "
    try:
        about = json.loads(_bytes(path).decode())
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{foreign}a file that is not JSON ({error})") from error
    if not isinstance(about, dict) or about.get("format") not in [FORMAT, OLD_FORMAT]:
        raise ValueError(f'{foreign}a file without "format": "{FORMAT}"')
    try:
        return _checked(about)
    except ValueError as error:
        raise ValueError(f"{foreign}one that makes no sense: {error}") from error


def _read(config: Path, weights: Path) -> nn.Module:
    from safetensors import SafetensorError
    from safetensors.torch import load

    about, data = _read_config(config), _bytes(weights)
    if _sha256(data) != about["weights_sha256"]:
        raise ValueError(
            f"expected {weights} to be the file that {config.name} was written with, got other bytes; "
            "it is damaged or of another export, export again"
        )
    try:
        tensors = load(data)
    except (SafetensorError, ValueError) as error:
        raise ValueError(f"expected a safetensors file at {weights}, got one that is damaged ({error})") from error
    model = _build(about, tensors, str(weights))
    if model.features != about["features"]:
        raise ValueError(f"expected {model.features} features for {about['name']}, got {about['features']} in {config}")
    return model


def _build(about: dict[str, Any], tensors: dict[str, Tensor], source: str) -> nn.Module:
    """The encoder of this description with these weights, in eval mode."""
    entry, options = _entry(about["name"]), about["options"]
    if "pretrained" in options:
        options = options | {"pretrained": False}  # the weights are here: nothing is downloaded
    # Without memory at first: what a foreign config asks for is compared with what is there before it is allocated.
    with torch.device("meta"):
        wanted = _kinds(entry.make(channels=about["channels"], **options).state_dict())
    present = _kinds(tensors)
    for name in sorted(wanted.keys() | present.keys()):
        want, got = (kinds.get(name, "no such tensor") for kinds in (wanted, present))
        if want != got:
            raise ValueError(
                f"expected the weights of {about['name']} ({about['channels']} channels, {options}) in "
                f"{source}, got {name} as {got}, not {want}"
            )
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        model: nn.Module = entry.make(channels=about["channels"], **options)
    model.load_state_dict(tensors, assign=True)
    return model.eval()


def _kinds(tensors: dict[str, Tensor]) -> dict[str, str]:
    return {name: f"{x.dtype} {tuple(x.shape)}" for name, x in tensors.items()}


def _graph(model: nn.Module, image_shape: tuple[int, int, int]) -> bytes:
    """The model as ONNX, for any number of images."""
    with _quiet():
        program = torch.onnx.export(
            model,
            (torch.zeros(2, *image_shape),),
            input_names=["images"],
            output_names=["features"],
            dynamic_shapes={"images": {0: torch.export.Dim("batch")}},
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    data: bytes = program.model_proto.SerializeToString()  # type: ignore[union-attr]
    return data


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's known messages about itself."""
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")

    def of_torchvision(record: logging.LogRecord) -> bool:
        return "torchvision is not installed" not in record.getMessage()

    logger.addFilter(of_torchvision)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated", FutureWarning)
            yield
    finally:
        logger.removeFilter(of_torchvision)


def _compared(data: bytes, probes: list[Tensor], expected: Tensor) -> dict[str, Any]:
    """How far onnxruntime's features are from torch's: a table for ``config.json``."""
    runtime = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1  # a few images; its threads would spin
    session = runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    (images,) = session.get_inputs()
    if isinstance(images.shape[0], int):
        raise RuntimeError(f"expected a graph for any number of images, got one for {images.shape[0]}")
    features = [torch.from_numpy(session.run(None, {"images": x.numpy()})[0]) for x in probes]
    largest, relative = _difference(torch.cat(features), expected, ONNX)
    return {
        "sha256": _sha256(data),
        "opset": OPSET,
        "onnxruntime": runtime.__version__,
        "max_abs_difference": largest,
        "relative_difference": relative,
    }


def _difference(features: Tensor, expected: Tensor, name: str) -> tuple[float, float]:
    """The largest difference, itself and relative to the largest feature; an error if that is too much."""
    largest, scale = float((features - expected).abs().max()), float(expected.abs().max())
    relative = largest / scale if scale else largest
    if not relative <= TOLERANCE:
        raise RuntimeError(
            f"expected {name} to give the encoder's features to {TOLERANCE:g} of the largest, got a difference of "
            f"{largest:.3g}, {relative:.3g} of it; nothing was written"
        )
    return largest, relative


def missing_packages() -> str:
    """Which package that writes ONNX is missing, and how to get it; an empty text if all are here."""
    for name in PACKAGES:
        try:
            importlib.import_module(name)
        except ImportError as error:
            return f"expected {', '.join(PACKAGES)} to write ONNX, got {error}; pip install {' '.join(PACKAGES)}"
    return ""


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        below = path.parent / "encoder"  # where `setwise export` puts that of a run
        hint = f"did you mean {below}?" if (below / CONFIG).is_file() else "`setwise export` writes one"
        raise ValueError(f"expected an exported encoder, got no file {path}; {hint}") from error


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
