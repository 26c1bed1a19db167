"""Checkpoints: one safetensors file with every tensor and a JSON text, whole or absent. Reading one runs no code."""

from __future__ import annotations

import contextlib
import glob
import json
import math
import os
import secrets
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
    """A run after ``step`` steps of ``epoch``, with the metrics of the epochs before."""

    recipe: Recipe
    seed: int
    epoch: int
    step: int
    history: list[dict[str, Any]]
    tensors: dict[str, Tensor] = field(repr=False)
    data: dict[str, Any] = field(default_factory=dict)  # what the encoder was trained on: channels, size, mean, std
    seconds: float = 0.0  # of training so far
    resumptions: list[dict[str, Any]] = field(default_factory=list)  # each start: its epoch and its environment

    def encoder_state(self) -> dict[str, Tensor]:
        """The encoder's weights: of the chosen epoch if the run chose one, as matching does; their mean; the last."""
        for prefix in ("kept.encoder.", "mean.encoder.", "model.encoder."):
            state = {name.removeprefix(prefix): x for name, x in self.tensors.items() if name.startswith(prefix)}
            if state:
                return state
        return {}


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path`` that takes its place, whole and on disk, if the block ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    temporary.touch(exist_ok=False)
    rights = temporary.stat().st_mode
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.chmod(rights)  # safetensors puts a file of its own there, which nobody else may read
        temporary.replace(path)
        with contextlib.suppress(OSError):  # the new name lasts through a power cut, where the system can do that
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
    finally:
        temporary.unlink(missing_ok=True)


def remove_unfinished(path: Path) -> None:
    """Remove half-written files that killed processes left of ``path``. Keep others from writing it meanwhile."""
    for unfinished in path.parent.glob(f".{glob.escape(path.name)}." + "[a-z0-9_]" * 8):  # version 0.1 used any letter
        unfinished.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text)


def save(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint. If that fails, the one from before stays."""
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
        "sittings": checkpoint.resumptions,  # the name that files have
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
        found = Checkpoint(
            recipe=Recipe.read(about["recipe"]),
            **{name: about[name] for name in ("seed", "epoch", "step", "history")},
            tensors=tensors,
            data=dict(about["data"]),
            seconds=float(about["seconds"]),
            resumptions=about.get("sittings", []),  # older files do not know
        )
        for problem in _problems(found):
            raise ValueError(problem)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{foreign}one that this version cannot read ({error}){instead}") from error
    return found


def _problems(found: Checkpoint) -> Iterator[str]:
    """What no run can have written."""
    recipe, counts = found.recipe, (found.seed, found.epoch, found.step)
    if not all(isinstance(x, int) and x >= 0 for x in counts) or not math.isfinite(found.seconds):
        yield f"seed, epoch and step {counts}, {found.seconds} seconds"
    for name, rows in (("history", found.history), ("resumptions", found.resumptions)):
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            yield f"a {name} that is no list of tables"
    if not isinstance(found.data.get("shape", []), list):
        yield f"images of shape {found.data['shape']!r}"
    if found.epoch > recipe.epochs or (found.epoch == recipe.epochs and found.step):
        yield f"step {found.step} of epoch {found.epoch} of a run of {recipe.epochs} epochs"
    images = found.data.get("count")
    if isinstance(images, int) and found.step and found.step * recipe.batch >= images:
        yield f"step {found.step} of an epoch of {images} images in batches of {recipe.batch}"
    if [row.get("epoch") for row in found.history] != list(range(1, found.epoch + 1)):
        yield f"a history of {len(found.history)} epochs, not of the {found.epoch} that are done, in order"


def _crc32(tensors: Mapping[str, Tensor], about: dict[str, Any] | None) -> int:
    """The checksum of ``about`` and of every tensor's name, type, shape and bytes; of the bytes alone without it."""
    total = 0 if about is None else zlib.crc32(json.dumps(about).encode())
    for name in sorted(tensors):
        x = tensors[name]
        if about is not None:
            total = zlib.crc32(f"{name} {x.dtype} {tuple(x.shape)}".encode(), total)
        total = zlib.crc32(x.reshape(-1).view(torch.uint8).numpy().data, total)
    return total
