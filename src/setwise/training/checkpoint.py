"""Checkpoints: one safetensors file with every tensor and a JSON text, whole or not there. Reading executes nothing."""

from __future__ import annotations

import contextlib
import glob
import json
import math
import os
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from setwise.checks import see
from setwise.recipe import Recipe
from setwise.training.errors import TrainingError

FORMAT = "setwise checkpoint 2"
OLDER = "setwise checkpoint 1"  # whose checksum is of the tensors' bytes alone, if it has one
KEY = "setwise"  # of the JSON text in safetensors' metadata


@dataclass(frozen=True)
class Checkpoint:
    """A run at a moment: ``step`` steps of ``epoch`` are done, and the metrics of the epochs before."""

    recipe: Recipe
    seed: int
    epoch: int
    step: int
    history: list[dict[str, Any]]
    tensors: dict[str, Tensor] = field(repr=False)
    data: dict[str, Any] = field(default_factory=dict)  # what the encoder was trained on: channels, size, mean, std
    seconds: float = 0.0  # of training so far
    sittings: list[dict[str, Any]] = field(default_factory=list)  # who trained it: surroundings, and from which epoch

    def encoder_state(self) -> dict[str, Tensor]:
        """The encoder's weights: those of the chosen epoch where one was chosen, as matching does."""
        for prefix in ("kept.encoder.", "model.encoder."):
            found = {name.removeprefix(prefix): x for name, x in self.tensors.items() if name.startswith(prefix)}
            if found:
                return found
        return {}


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path`` that takes its place, whole and on disk, if the block ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
        _sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def remove_unfinished(path: Path) -> None:
    """Remove what killed processes left of ``path``, half written. Only for one who keeps others from writing it."""
    for unfinished in path.parent.glob(f".{glob.escape(path.name)}." + "[a-z0-9_]" * 8):  # as mkstemp names them
        unfinished.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text)


def save(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint. If that fails, the one that was there before is intact."""
    from safetensors.torch import save_file

    tensors = {name: x.detach().cpu().contiguous() for name, x in checkpoint.tensors.items()}
    about = {
        "format": FORMAT,
        "recipe": checkpoint.recipe.tree(),
        "seed": checkpoint.seed,
        "epoch": checkpoint.epoch,
        "step": checkpoint.step,
        "history": checkpoint.history,
        "data": checkpoint.data,
        "seconds": checkpoint.seconds,
        "sittings": checkpoint.sittings,
    }
    about["crc32"] = _crc32(tensors, about)
    try:
        with replacing(path) as temporary:
            save_file(tensors, temporary, metadata={KEY: json.dumps(about)})
    except Exception as error:  # safetensors has an error class of its own for a full disk
        if isinstance(error, OSError) or type(error).__name__ == "SafetensorError":
            before = "the one from before is intact" if path.exists() else "there was none before"
            raise TrainingError(
                f"could not write the checkpoint {path}: {error}; {before}, "
                f"free some space and go on with --resume, {see('how-to/errors#space')}"
            ) from error
        raise


def load(path: str | os.PathLike[str]) -> Checkpoint:
    """Read a checkpoint, or the checkpoint of a run's folder."""
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if path.is_dir():
        path = path / "checkpoint.safetensors"
    if not path.is_file():  # nothing, or what must not be opened: a pipe would wait for ever
        raise ValueError(f"expected a checkpoint at {path}, got no file there; `setwise pretrain` writes one")
    foreign = f"expected a checkpoint that setwise wrote at {path}, got "
    instead = "; put a copy in its place, or remove it to begin again"
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {}).get(KEY, "null"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, ValueError, RecursionError) as error:
        raise ValueError(f"{foreign}a file that is damaged or of another kind ({error}){instead}") from error
    if not isinstance(about, dict) or about.get("format") not in (FORMAT, OLDER):
        raise ValueError(f"{foreign}a safetensors file of another program, or of a newer setwise{instead}")
    old, checksum = about["format"] == OLDER, about.pop("crc32", None)
    if checksum != _crc32(tensors, None if old else about) and not (old and checksum is None):
        raise ValueError(f"{foreign}one whose content has changed since{instead}")
    try:
        recipe = Recipe.read(about["recipe"])  # first: it tells what another version lacks
        counts = {name: about[name] for name in ("seed", "epoch", "step")}
        history, data, seconds = about["history"], dict(about["data"]), float(about["seconds"])
        sittings = about.get("sittings", [])  # older ones do not know
        if not all(isinstance(x, int) and x >= 0 for x in counts.values()) or not math.isfinite(seconds):
            raise ValueError(f"counters {counts}, {seconds} seconds")
        if not isinstance(history, list) or not all(isinstance(row, dict) for row in history):
            raise ValueError("a history that is no list of epochs")
        if not isinstance(sittings, list) or not all(isinstance(one, dict) for one in sittings):
            raise ValueError("sittings that are no list")
        if not isinstance(data.get("shape", []), list):
            raise ValueError(f"images of shape {data['shape']!r}")
        _check_counters(recipe, counts["epoch"], counts["step"], history, data.get("count"))
        return Checkpoint(
            recipe, **counts, history=history, tensors=tensors, data=data, seconds=seconds, sittings=sittings
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{foreign}one that this version cannot read ({error}){instead}") from error


def _check_counters(recipe: Recipe, epoch: int, step: int, history: list[dict[str, Any]], images: object) -> None:
    """Raise unless the run can have been at this step of this epoch, with this history."""
    if epoch > recipe.epochs or (epoch == recipe.epochs and step):
        raise ValueError(f"step {step} of epoch {epoch} of a run of {recipe.epochs} epochs")
    if isinstance(images, int) and step and step * recipe.batch >= images:
        raise ValueError(f"step {step} of an epoch of {images} images in batches of {recipe.batch}")
    if [row.get("epoch") for row in history] != list(range(1, epoch + 1)):
        raise ValueError(f"a history of {len(history)} epochs, not of the {epoch} that are done, in order")


def _crc32(tensors: Mapping[str, Tensor], about: dict[str, Any] | None) -> int:
    """The checksum of ``about`` and of every tensor's name, type, shape and bytes; of the bytes alone without it."""
    found = 0 if about is None else zlib.crc32(json.dumps(about).encode())
    for name in sorted(tensors):
        x = tensors[name]
        if about is not None:
            found = zlib.crc32(f"{name} {x.dtype} {tuple(x.shape)}".encode(), found)
        found = zlib.crc32(x.reshape(-1).view(torch.uint8).numpy().data, found)
    return found


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _sync_folder(folder: Path) -> None:
    """Make a rename last through a power cut, where the system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
