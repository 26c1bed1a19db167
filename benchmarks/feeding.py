"""Steps from images in a file against steps from images on the device, and the memory of the process meanwhile.

    python benchmarks/feeding.py --encoder resnet18 --size 64 --batch 512
    python benchmarks/feeding.py --encoder timm/vit_small_patch16_224 --size 224 --batch 256
    python benchmarks/feeding.py --encoder resnet18 --size 224 --batch 256 --only mapped --images 100000

The images are random bytes: time does not depend on what they show. Both kinds take turns in one process. With
``--only`` there is one kind, for a process whose memory is limited from outside. ``--folder`` keeps the file.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from setwise.data import ImageSet
from setwise.data.pixels import StoredPixels
from setwise.recipe import Recipe
from setwise.training.engine import Engine
from setwise.training.environment import environment

CHUNK = 1000  # images that are made at a time


def make(path: Path, images: int, size: int) -> StoredPixels:
    """A file of random images, unless it is there."""
    shape = (images, 3, size, size)
    if not path.exists():
        with path.open("wb") as file:
            for start in range(0, images, CHUNK):
                some = torch.randint(0, 256, (min(CHUNK, images - start), *shape[1:]), dtype=torch.uint8)
                some.numpy().tofile(file)
    return StoredPixels(path, shape)


def resident_megabytes() -> dict[str, int]:
    """The process's resident memory by kind, as Linux counts it."""
    lines = (line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {name: int(value.split()[0]) // 1024 for name, value in lines if name in ("VmRSS", "RssAnon", "RssFile")}


class Timed:
    """An engine and its times."""

    def __init__(self, recipe: Recipe, data: ImageSet, device: torch.device) -> None:
        self.engine = Engine(recipe, data, seed=1, device=device)
        self.times: list[float] = []
        self.memory: list[dict[str, int]] = []
        self.engine.begin(0)
        self.stretch(5)
        self.times.clear()

    def stretch(self, steps: int) -> None:
        """So many steps; their mean time in milliseconds."""
        began = time.perf_counter()
        for _ in range(steps):
            if self.engine.step_in_epoch == self.engine.steps:
                self.engine.begin(self.engine.epoch + 1)
            self.engine.step()
        self.engine.means()  # waits for the device
        self.times.append(1e3 * (time.perf_counter() - began) / steps)
        self.memory.append(resident_megabytes())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--encoder", default="resnet18")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--only", choices=["resident", "mapped"])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=40, help="of each kind in a round")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--folder", type=Path, help="where the file of images is, or is made; a temporary one if none")
    parser.add_argument("--out", type=Path, help="a JSON file")
    asked = parser.parse_args()
    device = torch.device(asked.device)
    recipe = Recipe.read(
        {"objective": "nt-xent", "encoder": asked.encoder, "batch": asked.batch, "epochs": 1000, "drop_last": True}
    )
    kinds = [asked.only] if asked.only else ["resident", "mapped"]
    with tempfile.TemporaryDirectory() as temporary:
        folder = asked.folder or Path(temporary)
        pixels = make(folder / f"images-{asked.images}-{asked.size}", asked.images, asked.size)
        labels, shape = torch.full((asked.images,), -1), pixels.shape
        mapped = ImageSet(
            "random", "train", torch.empty(shape, dtype=torch.uint8, device="meta"), labels, (), pixels=pixels
        )
        timed: dict[str, Timed] = {}
        for kind in kinds:
            data = mapped if kind == "mapped" else ImageSet("random", "train", pixels[:].to(device), labels, ())
            timed[kind] = Timed(recipe, data, device)
        for _ in range(asked.rounds):
            for one in timed.values():
                one.stretch(asked.steps)
    found: dict[str, Any] = {"what": "feeding", **environment(device)}
    for kind, one in timed.items():
        one.engine.close()
        found[kind] = {"ms": one.times, "median_ms": statistics.median(one.times), "megabytes": one.memory}
        print(
            f"{kind}: {found[kind]['median_ms']:.3f} ms a step; resident megabytes {one.memory[0]} to {one.memory[-1]}"
        )
    if len(kinds) == 2:
        found["share"] = found["resident"]["median_ms"] / found["mapped"]["median_ms"]
        print(f"steps a second from the file: {100 * found['share']:.1f} % of those from the device")
    if asked.out:
        asked.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
