"""Run records: one self-contained JSON file a run, written by the program only."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import scipy
import torch

from setwise.recipe import Recipe
from setwise.training.checkpoint import Checkpoint, write_text
from setwise.training.engine import Engine
from setwise.version import __version__

FORMAT = "setwise run 1"
FILE = "record.json"


def surroundings(device: torch.device) -> dict[str, Any]:
    """Where and with what something ran: commit, versions, hardware, command."""
    hardware: dict[str, Any] = {"device": device.type, "machine": platform.machine(), "cores": os.cpu_count()}
    if device.type == "cuda":
        hardware |= {"name": torch.cuda.get_device_name(device), "cuda": torch.version.cuda}
    else:
        hardware |= {"name": _processor(), "threads": torch.get_num_threads()}
    return {
        "commit": _commit(),
        "versions": {
            "setwise": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "scipy": scipy.__version__,
        },
        "hardware": hardware,
        "command": [Path(sys.argv[0]).name, *map(plain_path, sys.argv[1:])],
    }


def plain_path(word: str) -> str:
    """An absolute path's last part, any other word itself: where things lie on a machine is nobody's business."""
    option, equals, path = word.partition("=") if word.startswith("--") else ("", "", word)
    return option + equals + (Path(path).name if Path(path).is_absolute() else path)


def of_run(name: str, engine: Engine, last: Checkpoint, data: dict[str, Any]) -> dict[str, Any]:
    """The record of a run that has ended; ``data`` says what it was trained and tested on."""
    return {
        "name": name,
        "recipe": engine.recipe.as_json() | {"data": plain_path(engine.recipe.data)},
        "seed": engine.seed,
        "precision": engine.precision,
        "processes": engine.processes.size,
        **surroundings(engine.device),
        "data": data,
        "timings": {"training_seconds": last.seconds},
        "epochs": last.history,
        "final": {},
    }


def write(folder: Path, record: dict[str, Any]) -> Path:
    """Write ``record`` into a run's folder, whole or not at all. Its numbers are finite: JSON has no others."""
    path = folder / FILE
    try:
        text = json.dumps({"format": FORMAT, **record}, indent=1, allow_nan=False)
    except ValueError as error:
        raise ValueError(f"expected finite numbers for {path}, got others ({error}); None stands for them") from error
    write_text(path, text + "\n")
    return path


def read(path: Path) -> dict[str, Any]:
    """The record in a run's folder, or in a file."""
    path = path / FILE if path.is_dir() else path
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"expected a run record at {path}, got {error}") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise ValueError(f"expected a record that setwise wrote at {path}, got another file")
    return found


def whole_recipe(record: dict[str, Any]) -> dict[str, Any]:
    """A record's recipe; a field that is younger than the record has its default, what was done before the choice."""
    found = record.get("recipe")
    return {one.name: one.default for one in fields(Recipe)} | (found if isinstance(found, dict) else {})


def _commit() -> str | None:
    """The commit of the source that runs, "+" if it was changed since; None where it is not a checkout."""
    source = Path(__file__).parent

    def git(*words: str) -> str:
        run = subprocess.run(["git", "-C", str(source), *words], capture_output=True, text=True, timeout=10, check=True)
        return run.stdout.strip()

    try:
        if not git("ls-files", __file__):
            return None
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--", str(source)) else "")
    except (OSError, subprocess.SubprocessError):
        return os.environ.get("SETWISE_COMMIT")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()
