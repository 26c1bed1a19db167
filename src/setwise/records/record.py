"""Run records: one self-contained JSON file a run, written by the program only."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from setwise.recipe import Recipe, flat, upgrade
from setwise.records.statistics import number
from setwise.training.checkpoint import Checkpoint, write_text
from setwise.training.engine import Engine
from setwise.training.environment import environment, plain_path

FORMAT = "setwise run 1"
FILE = "record.json"
LARGEST = 16 * 2**20  # bytes of a record that is read; one of 200 epochs has less than 1 MiB


def of_run(name: str, engine: Engine, last: Checkpoint, data: dict[str, Any]) -> dict[str, Any]:
    """The record of a run that has ended; ``data`` says what it was trained and tested on.

    Commit, versions, hardware and command are of the process that evaluates it. "earlier" are those of others that
    trained a part of it, if there were any, each with the epoch that it began in.
    """
    here = environment(engine.device)
    earlier = [one for one in last.resumptions if one | here != one]
    return {
        "name": name,
        "recipe": _private(engine.recipe).tree(),
        "seed": engine.seed,
        "precision": engine.precision,
        "processes": engine.processes.size,
        **here,
        **({"earlier": earlier} if earlier else {}),
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


def read_json(path: Path) -> Any:
    """What a JSON file holds. A ValueError for anything else: a pipe is not opened, nor is a huge file read whole."""
    try:
        if not path.is_file():
            raise ValueError("no plain file")
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
        if len(data) > LARGEST:
            raise ValueError(f"a file of more than {LARGEST // 2**20} MiB")
        return json.loads(data.decode())
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"expected a record at {path}, got {error}") from error


def read(path: Path) -> dict[str, Any]:
    """The record in a run's folder, or in a file."""
    path = path / FILE if path.is_dir() else path
    found = read_json(path)
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise ValueError(f"expected a record that setwise wrote at {path}, got another file")
    return found


def check_final(record: dict[str, Any]) -> None:
    """Raise unless a record has final numbers, whose accuracies, where there are any, can be such."""
    final = record.get("final")
    if not isinstance(final, dict) or not final:
        raise ValueError("expected a run that was evaluated, got one without final numbers")
    for measure, value in final.items():
        share = number(value)
        if measure.endswith("accuracy") and value is not None and (share is None or not 0 <= share <= 1):
            raise ValueError(f"expected {measure} to be a share, from 0 to 1, got {str(value)[:40]}")


def recipe_of(record: dict[str, Any]) -> Recipe:
    """A record's recipe; a field that is younger than the record has its default, what was done before the choice."""
    try:
        return _recipe(json.dumps(record.get("recipe", {})))
    except RecursionError as error:
        raise ValueError("expected a recipe's tables, got tables within tables without end") from error


@lru_cache(maxsize=256)  # the seeds of a run have one recipe, and their records lie beside each other
def _recipe(text: str) -> Recipe:
    return Recipe.read(json.loads(text))


def fields_of(record: dict[str, Any]) -> dict[str, Any]:
    """Every field of a record's recipe by its path, whether what it names is registered here or not."""
    tree = record.get("recipe")
    if not isinstance(tree, dict):
        raise ValueError("expected a record with its recipe, got none")
    return flat(upgrade(tree) if "initial" in tree else tree)


def _private(recipe: Recipe) -> Recipe:
    """The recipe with a path's last part alone: where things lie on a machine is nobody's business."""
    return replace(recipe, data=replace(recipe.data, source=plain_path(recipe.data.source)))
