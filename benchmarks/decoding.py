"""Time decoding a folder of JPEGs of mixed sizes: ours into a file of decoded images, torchvision's ImageFolder beside.

    python benchmarks/decoding.py [--images 20000] [--workers 16] [--size 224] [--folder FOLDER] [--json FILE]

It makes the images: smooth noise of several scales with edges, 200 to 2,000 pixels a side, seeded. Both candidates have
as many processes. They take turns in one run, and the smallest time of each counts. Where torchvision does not import,
a DataLoader with the same transforms in Pillow stands for it, and is named so. Beside that: the share of the processes'
time that is Pillow's own, and how far images that the JPEG decoder halved are from images that were decoded whole.
"""

from __future__ import annotations

import argparse
import io
import json
import mmap
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import PIL
import torch
from PIL import Image, ImageFile, ImageOps, JpegImagePlugin
from torch.utils.data import DataLoader, Dataset, get_worker_info

import setwise as sw
from setwise.data import index, workers
from setwise.data.formats import decode

CLASSES = 10
SIDES = (200, 2000)  # pixels
SCALES = ((8, 45.0), (32, 30.0), (128, 16.0), (400, 8.0))  # cells in 1,000 pixels, and how strong
BATCH = 64


def photo(seed: int) -> bytes:
    """A JPEG that compresses like a photo."""
    rng = np.random.default_rng(seed)
    width, height = (int(side) for side in rng.integers(SIDES[0], SIDES[1] + 1, 2))
    picture = np.full((height, width, 3), 127, np.float32)
    for cells, strength in SCALES:
        shape = (max(2, height * cells // 1000), max(2, width * cells // 1000))
        for channel in range(3):
            noise = Image.fromarray(rng.normal(size=shape).astype(np.float32))
            picture[..., channel] += strength * np.asarray(noise.resize((width, height), Image.Resampling.BICUBIC))
    for _ in range(12):
        top, left = rng.integers(0, height - 10), rng.integers(0, width - 10)
        down, right = rng.integers(5, height // 2), rng.integers(5, width // 2)
        picture[top : top + down, left : left + right] += 30 * rng.normal(size=3)
    out = io.BytesIO()
    image = Image.fromarray(picture.clip(0, 255).astype(np.uint8))
    image.save(out, "JPEG", quality=int(rng.integers(75, 96)))
    return out.getvalue()


def make(folder: Path, count: int, distinct: int) -> int:
    """Write ``count`` files, of which ``distinct`` differ; their bytes. What is there stays."""
    for k in range(CLASSES):
        (folder / f"class-{k}").mkdir(parents=True, exist_ok=True)
    total = 0

    def write(k: int, _: workers.Place) -> int:
        raw, size = b"", 0
        for copy in range(k, count, distinct):
            path = folder / f"class-{copy % CLASSES}" / f"{copy:06}.jpg"
            if not path.exists():
                raw = raw or photo(k)
                path.write_bytes(raw)
            size += path.stat().st_size
        return size

    def add(found: list[tuple[int, int]]) -> None:
        nonlocal total
        total += sum(size for _, size in found)

    workers.for_each(write, min(count, distinct), add, died=lambda _: 0, title="making images", shown=True)
    return total


class PillowFolder(Dataset[Any]):
    """What torchvision's ImageFolder, Resize and CenterCrop do, with Pillow alone."""

    def __init__(self, folder: Path, side: int) -> None:
        """``side`` of the square."""
        self.paths, self.side = sorted(folder.glob("*/*.jpg")), side

    def __len__(self) -> int:
        """Number of files."""
        return len(self.paths)

    def __getitem__(self, k: int) -> tuple[torch.Tensor, int]:
        """An image, uint8 [3, side, side], and a label."""
        with self.paths[k].open("rb") as file:
            image = Image.open(file).convert("RGB")
        scale = self.side / min(image.size)
        width, height = (max(self.side, int(scale * side)) for side in image.size)
        image = image.resize((width, height), Image.Resampling.BILINEAR)
        left, top = round((width - self.side) / 2), round((height - self.side) / 2)
        image = image.crop((left, top, left + self.side, top + self.side))
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous(), 0


def theirs(folder: Path, side: int) -> tuple[str, Dataset[Any]]:
    """The candidate beside ours, and its name."""
    try:
        from torchvision import __version__ as version
        from torchvision import transforms
        from torchvision.datasets import ImageFolder
    except (ImportError, RuntimeError):  # the latter: built for another torch
        return "a DataLoader with the same transforms in Pillow", PillowFolder(folder, side)
    steps = [transforms.Resize(side), transforms.CenterCrop(side), transforms.PILToTensor()]
    return f"torchvision {version} ImageFolder + DataLoader", ImageFolder(folder, transforms.Compose(steps))


def time_theirs(data: Dataset[Any], count: int) -> float:
    """Seconds of one epoch."""
    began = time.perf_counter()
    for _ in DataLoader(data, batch_size=BATCH, num_workers=count, multiprocessing_context="fork"):
        pass
    return time.perf_counter() - began


def time_ours(folder: Path, root: Path, side: int) -> float:
    """Seconds until all images are in the file, and open."""
    shutil.rmtree(root, ignore_errors=True)
    began = time.perf_counter()
    sw.data.load(folder, root, size=side, pixels="mapped")
    return time.perf_counter() - began


def pillow_share(folder: Path, root: Path, side: int, count: int) -> float:
    """Share of the processes' time, from the first image to the last, within calls of Pillow."""
    spent, depth = np.frombuffer(mmap.mmap(-1, 8 * (count + 1)), np.float64), [0]

    def timed(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **options: Any) -> Any:
            depth[0] += 1
            began = time.perf_counter()
            try:
                return call(*args, **options)
            finally:
                depth[0] -= 1
                info = get_worker_info()
                if not depth[0] and info is not None:
                    spent[info.id] += time.perf_counter() - began

        return run

    places = [(Image, "open"), (ImageFile.ImageFile, "load"), (JpegImagePlugin.JpegImageFile, "draft")]
    places += [(Image.Image, name) for name in ("convert", "resize", "getexif", "tobytes")] + [(ImageOps, "fit")]
    kept = [(owner, name, getattr(owner, name)) for owner, name in places]
    try:
        for owner, name, call in kept:
            setattr(owner, name, timed(call))
        seconds = time_ours(folder, root, side)
    finally:
        for owner, name, call in kept:
            setattr(owner, name, call)
    return float(spent.sum()) / (count * seconds)


def difference(folder: Path, side: int, count: int = 200) -> dict[str, float]:
    """Images as we read them against images that were decoded whole, in steps of 255."""
    paths = sorted(folder.glob("*/*.jpg"))[:count]
    ours = [decode.read_image(path, (side, side), crop=True).astype(int) for path in paths]
    spare, decode.SPARE = decode.SPARE, 10**6
    try:
        whole = [decode.read_image(path, (side, side), crop=True).astype(int) for path in paths]
    finally:
        decode.SPARE = spare
    halved = [np.abs(a - b) for a, b in zip(ours, whole, strict=True) if (a != b).any()]
    noise = [10 * np.log10(255**2 / np.square(one).mean()) for one in halved]
    return {
        "images": len(paths),
        "halved": len(halved),
        "mean_absolute_of_halved": float(np.mean([one.mean() for one in halved])) if halved else 0.0,
        "largest": float(max((one.max() for one in halved), default=0)),
        "psnr_mean": float(np.mean(noise)) if halved else float("inf"),
        "psnr_least": float(min(noise, default=float("inf"))),
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--distinct", type=int, default=1_000, help="how many differ; the others are copies")
    parser.add_argument("--workers", type=int, default=workers.processors())
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir(), "setwise-decoding"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    count, side, folder = options.workers, options.size, options.folder / f"jpegs-{options.images}"
    workers.processors = lambda *_, **__: count
    index.FEW_FILES = 0
    root = options.folder / "root"
    size = make(folder, options.images, options.distinct)
    for path in folder.glob("*/*.jpg"):
        path.read_bytes()  # neither waits for the disk
    name, data = theirs(folder, side)
    seconds: dict[str, list[float]] = {"ours": [], name: []}
    for _ in range(options.repeats):
        seconds[name].append(time_theirs(data, count))
        seconds["ours"].append(time_ours(folder, root, side))
    rates = {who: options.images / min(times) for who, times in seconds.items()}
    began = time.perf_counter()
    sw.data.load(folder, root, size=side, pixels="mapped")
    again = time.perf_counter() - began
    found = {
        "images": options.images,
        "mean_kilobytes": size / options.images / 1000,
        "size": side,
        "workers": count,
        "seconds": seconds,
        "images_per_second": rates,
        "ratio": rates["ours"] / rates[name],
        "second_start_seconds": again,
        "pillow_share": pillow_share(folder, root, side, count),
        "difference": difference(folder, side),
        "versions": {"python": sys.version.split()[0], "torch": torch.__version__, "pillow": PIL.__version__},
        "machine": platform.processor() or platform.machine(),
    }
    for who, rate in rates.items():
        print(f"{who}: {rate:,.0f} images/s by {count} processes")
    print(f"ratio: {found['ratio']:.2f}; Pillow's own share of our processes' time: {found['pillow_share']:.0%}")
    print(f"second start: {again:.2f} s")
    print(f"against whole decoding: {found['difference']}")
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
