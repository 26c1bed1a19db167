"""What the studies of pairs share: a run without files, and the file of all runs."""

from __future__ import annotations

import gc
import json
import platform
import time
from pathlib import Path
from typing import Any

import torch

from setwise.data import PairSet
from setwise.locks import locked
from setwise.methods import Method
from setwise.recipe import Recipe
from setwise.training.checkpoint import write_text
from setwise.training.engine import Engine


def trained(
    recipe: Recipe, pairs: PairSet, seed: int, device: torch.device, *, capture: bool = True
) -> tuple[Method, dict[str, Any]]:
    """The method after training, without files; the last epoch's loss, the seconds, and where that was."""
    began = time.perf_counter()
    engine = Engine(recipe, pairs, seed=seed, device=device, capture=capture)
    ready = time.perf_counter()
    for epoch in range(recipe.epochs):
        engine.begin(epoch)
        for _ in range(engine.steps):
            engine.step()
    loss, method = engine.means()["loss"], engine.method
    seconds = {"prepare": ready - began, "train": time.perf_counter() - ready}
    del engine
    gc.collect()  # its graphs refer to it
    where = torch.cuda.get_device_name() if device.type == "cuda" else platform.machine()
    about = {"loss": loss, "seconds": {name: round(x, 3) for name, x in seconds.items()}}
    return method, about | {"device": where, "torch": torch.__version__}


class Results:
    """The file of all runs by their keys, a line for each, which several processes write."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def read(self) -> dict[str, Any]:
        """All runs so far."""
        return json.loads(self.path.read_text()) if self.path.exists() else {}

    def add(self, key: str, one: dict[str, Any]) -> None:
        """Keep a run."""
        with locked(self.path.with_suffix(".lock"), option="--out", wait=True):
            runs = sorted((self.read() | {key: one}).items())
            lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(run, sort_keys=True)}" for name, run in runs)
            write_text(self.path, f"{{\n{lines}\n}}\n")
