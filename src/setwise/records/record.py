"""Run records: one self-contained JSON file a run. ``of_run`` makes it, ``write`` writes it, ``read`` reads it.

What a record holds ("setwise run 2"):

    format, name, seed       the format; what the run is called; its seed
    recipe                   every field that decided the run, as ``Recipe.tree`` gives it
    precision, processes     what it computed in, and over how many processes
    commit, versions, hardware, command        of the process that evaluated it
    earlier                  the same of other processes that trained a part of it, each with its first epoch; if any
    data                     the data's name and how many images each split has
    timings                  seconds: of all training, of each part of the evaluation
    epochs                   a column for each measure, "epoch" the first: {"epoch": [1, 2], "loss": [5.5, 5.2]};
                             six significant digits
    structure                of some epochs, columns likewise, and spectra of the last one; see ``records.structure``
    final                    what was measured in the end; accuracies are shares of one

Learning rate, seconds and images per second of every epoch, and all spectra, are in the run's folder (metrics.csv and
metrics.jsonl). "setwise run 1" had them too, with a row for each epoch; ``read`` gives the same for both formats.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from setwise.recipe import Recipe, flat, upgrade
from setwise.records.structure import columns_of_looks
from setwise.training.checkpoint import Checkpoint, write_text
from setwise.training.engine import Engine
from setwise.training.environment import environment, plain_path

FORMAT, FIRST_FORMAT = "setwise run 2", "setwise run 1"
FILE = "record.json"
LARGEST = 16 * 2**20  # bytes of a record that is read; one of 200 epochs has about 10 KiB
DIGITS = 6
PER_EPOCH = ("structure", "lr", "seconds", "images_per_second")  # of a history, not among a record's epochs


def of_run(name: str, engine: Engine, last: Checkpoint, data: dict[str, Any]) -> dict[str, Any]:
    """The record of a run that has ended, without final numbers; ``data`` names its data and their sizes."""
    here = environment(engine.device)
    earlier = [one for one in last.resumptions if one | here != one]
    return {
        "format": FORMAT,
        "name": name,
        "recipe": _private(engine.recipe).tree(),
        "seed": engine.seed,
        "precision": engine.precision,
        "processes": engine.processes.size,
        **here,
        **({"earlier": earlier} if earlier else {}),
        "data": data,
        "timings": {"training_seconds": last.seconds},
        **_columns(last.history),
        "final": {},
    }


def _columns(history: object) -> dict[str, Any]:
    """The epochs and looks of a run's history, a list of rows, as a record has them."""
    rows = [row for row in history if isinstance(row, dict)] if isinstance(history, list) else []
    names = dict.fromkeys(name for row in rows for name in row if name not in PER_EPOCH)
    epochs = {name: [_rounded(row.get(name)) for row in rows] for name in names}
    looks = columns_of_looks(rows)
    return {"epochs": epochs, **({"structure": looks} if looks else {})}


def _rounded(value: Any) -> Any:
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def write(path: Path, record: dict[str, Any]) -> None:
    """Write ``record``, whole or not at all. Its numbers are finite: JSON has no others."""
    try:
        text = json.dumps({**record, "format": FORMAT}, separators=(",", ":"), allow_nan=False)
    except ValueError as error:
        raise ValueError(f"expected finite numbers for {path}, got others ({error}); None stands for them") from error
    write_text(path, text + "\n")


def read(path: Path, *, run: bool = True) -> Any:
    """The record in a run's folder, or in a file, as if today's version had written it; ValueError for any other file.

    With ``run`` false: the content of any JSON file. Pipes are not opened, huge files not read whole.
    """
    path = path / FILE if run and path.is_dir() else path
    try:
        if not path.is_file():
            raise ValueError("no plain file")
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
        if len(data) > LARGEST:
            raise ValueError(f"a file of more than {LARGEST // 2**20} MiB")
        record = json.loads(data.decode())
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"expected a record at {path}, got {error}") from error
    if not run:
        return record
    if not isinstance(record, dict) or record.get("format") not in (FORMAT, FIRST_FORMAT):
        raise ValueError(f"expected a record that setwise wrote at {path}, got another file")
    if record["format"] == FIRST_FORMAT:
        record |= {"format": FORMAT, **_columns(record.get("epochs"))}
    return record


def recipe_of(record: dict[str, Any]) -> Recipe:
    """A record's recipe. Fields that are younger than the record have their defaults."""
    return recipe_from(recipe_text(record))


def recipe_text(record: dict[str, Any]) -> str:
    """A record's recipe as JSON: the same for all seeds of a run, so that ``recipe_from`` and others read it once."""
    try:
        return json.dumps(record.get("recipe", {}))
    except RecursionError as error:
        raise ValueError("expected a recipe's tables, got tables within tables without end") from error


@lru_cache(maxsize=1024)  # the seeds of a run have one recipe, and their records lie beside each other
def recipe_from(text: str) -> Recipe:
    """The recipe of ``recipe_text``."""
    return Recipe.read(json.loads(text))


@lru_cache(maxsize=1024)
def fields_from(text: str) -> dict[str, Any]:
    """Every field of the recipe of ``recipe_text`` by its path, whether what it names is registered here or not."""
    tree = json.loads(text)
    return flat(upgrade(tree) if "initial" in tree else tree)


def _private(recipe: Recipe) -> Recipe:
    """The recipe without the path of its data. Paths are private: records keep only the last part."""
    return replace(recipe, data=replace(recipe.data, source=plain_path(recipe.data.source)))
