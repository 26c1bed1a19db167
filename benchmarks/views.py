"""Time the self-supervised views: on the CPU against kornia, on a CUDA device by replays of a graph.

    python benchmarks/views.py [--json FILE] [--threads 1]

kornia is measured where it can be imported. On the CPU the candidates take turns in one run, and the smallest time of
each counts. On a CUDA device, where torchvision can be imported, its functions check the views for given parameters.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import Tensor

from setwise.views import Parameters, Views, preset

MEAN, STD = (0.491, 0.482, 0.447), (0.247, 0.243, 0.262)
CALLS, REPLAYS, SETS = 20, 50, 10  # calls in one graph, each on another of several sets of images
GPU_CASES = (
    # images, channels, height, width, dtype, channels last
    (128, 3, 32, 32, torch.float32, False),
    (128, 3, 32, 32, torch.bfloat16, True),
    (512, 3, 32, 32, torch.bfloat16, True),
    (2048, 3, 32, 32, torch.bfloat16, True),
    (128, 3, 64, 64, torch.bfloat16, True),
    (128, 3, 128, 64, torch.bfloat16, True),
    (128, 1, 8, 8, torch.float32, False),
)


def pictures(n: int, channels: int, height: int, width: int) -> Tensor:
    """Random images."""
    shape, generator = (n, channels, height, width), torch.Generator().manual_seed(0)
    return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)


def kornia_views() -> Callable[[Tensor], Tensor] | None:
    """The same augmentations of kornia, None where it is not installed."""
    try:
        import kornia.augmentation as K
    except ImportError:
        return None
    return K.AugmentationSequential(
        K.RandomResizedCrop((32, 32), scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3)),
        K.RandomHorizontalFlip(0.5),
        K.ColorJitter(0.8, 0.8, 0.8, 0.2, p=0.8),
        K.RandomGrayscale(p=0.2),
        K.Normalize(MEAN, STD),
    )


def cpu(repeats: int) -> dict[str, dict[str, float]]:
    """Milliseconds of one view of 256 CIFAR-sized images: smallest and median."""
    images, samples = pictures(256, 3, 32, 32), torch.arange(256)
    floats, views = images / 255, preset("self-supervised", mean=MEAN, std=STD)
    candidates: dict[str, Callable[[], object]] = {
        "setwise": lambda: views(images, samples=samples, seed=1, epoch=0),
        "setwise, two views": lambda: views.pair(images, samples=samples, seed=1, epoch=0),
    }
    theirs = kornia_views()
    if theirs is not None:
        candidates["kornia"] = lambda: theirs(floats)
        candidates["kornia, two views"] = lambda: (theirs(floats), theirs(floats))
    found: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(repeats + 3):
        for name, call in candidates.items():
            started = time.perf_counter()
            call()
            if turn >= 3:
                found[name].append(1e3 * (time.perf_counter() - started))
    return {name: {"least": min(ms), "median": statistics.median(ms)} for name, ms in found.items()}


def replay_milliseconds(call: Callable[[int], object], calls: int) -> float:
    """Median milliseconds of a call, by replays of a graph of several."""
    call(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for k in range(calls):
            call(k)
    times = []
    for _ in range(REPLAYS + 5):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / calls)
    return statistics.median(times[5:])


def call_milliseconds(call: Callable[[int], object]) -> float:
    """Median milliseconds of a call by the host's clock, without a graph, many in a row."""
    times = []
    for _ in range(10):
        torch.cuda.synchronize()
        started = time.perf_counter()
        for k in range(CALLS):
            call(k)
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - started) / CALLS)
    return statistics.median(times[2:])


def pair(views: Views, images: list[Tensor], samples: list[Tensor], options: dict[str, Any], k: int) -> Tensor:
    """Two views of one of the sets of images."""
    return views.pair(images[k % SETS], samples=samples[k % SETS], **options)


def gpu() -> list[dict[str, object]]:
    """Milliseconds of two views."""
    rows = []
    for n, c, h, w, dtype, channels_last in GPU_CASES:
        views = preset("self-supervised", mean=MEAN[:c], std=STD[:c])
        images = [pictures(n, c, h, w).roll(k, 0).cuda() for k in range(SETS)]
        samples = [torch.arange(n).cuda() + n * k for k in range(SETS)]
        options = {"seed": torch.tensor(1).cuda(), "epoch": torch.tensor(0).cuda()}
        options |= {"dtype": dtype, "channels_last": channels_last}
        call = partial(pair, views, images, samples, options)
        row: dict[str, object] = {"images": n, "shape": [c, h, w], "dtype": str(dtype), "channels last": channels_last}
        row["graph of 20"] = replay_milliseconds(call, CALLS)
        row["graph of 20, again"] = replay_milliseconds(call, CALLS)
        row["graph of one"] = replay_milliseconds(call, 1)
        row["call by call"] = call_milliseconds(call)
        rows.append(row)
    return rows


def torchvision_levels(n: int = 512) -> dict[str, float] | None:
    """Largest and mean difference to torchvision's functions on float tensors, in levels of 1 / 255."""
    try:
        from torchvision.transforms.v2 import functional as F
    except ImportError:
        return None
    views, samples = preset("self-supervised"), torch.arange(n).cuda()
    images = pictures(n, 3, 32, 32).float().cuda()
    images = torch.nn.functional.avg_pool2d(images, 5, 1, 2).sub(90).mul(6).clamp(0, 255).byte()  # smooth, saturated
    parameters = views.draw(samples, (32, 32), seed=0, epoch=0)
    expected = []
    for image, *given in zip(images, *(x.tolist() for x in parameters), strict=True):
        box, flip, jitter, factors, order, grey, *_ = given
        x = F.resized_crop(image / 255, *box, size=[32, 32], antialias=True)
        x = F.horizontal_flip(x) if flip else x
        parts = (F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue)
        for part in order if jitter else ():
            x = parts[part](x, factors[part])
        expected.append(F.rgb_to_grayscale(x, 3) if grey else x)
    away = 255 * (views.apply(images, parameters) - torch.stack(expected)).abs()
    return {
        "largest": away.max().item(),
        "mean": away.mean().item(),
        "share within 2": (away <= 2).float().mean().item(),
    }


def same_parameters(n: int = 100_000) -> bool:
    """Whether the device draws the bits that the CPU draws."""
    views: Views = preset("self-supervised")
    here = views.draw(torch.arange(n).cuda(), (32, 32), seed=1, epoch=2)
    there: Parameters = views.draw(torch.arange(n), (32, 32), seed=1, epoch=2)
    return all(torch.equal(a.cpu(), b) for a, b in zip(here, there, strict=True))


def main() -> None:
    """Print a table and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=40)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    record: dict[str, object] = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": platform.processor() or platform.machine(),
        "threads": options.threads,
    }
    times = cpu(options.repeats)
    record["one view of 256 x 3 x 32 x 32 on the CPU, ms"] = times
    for name, row in times.items():
        print(f"{name:20s} least {row['least']:7.2f} ms   median {row['median']:7.2f} ms")
    for suffix in ("", ", two views"):
        if "kornia" + suffix in times:
            ratio = {k: times["kornia" + suffix][k] / times["setwise" + suffix][k] for k in ("least", "median")}
            record["kornia / setwise" + suffix] = ratio
            print(f"kornia / setwise{suffix}: {ratio['least']:.2f} (least), {ratio['median']:.2f} (median)")
    if torch.cuda.is_available():
        record["device"] = torch.cuda.get_device_name()
        record["parameters the same on both"] = same_parameters()
        record["levels away from torchvision"] = torchvision_levels()
        print("parameters the same:", record["parameters the same on both"])
        print("levels away from torchvision:", record["levels away from torchvision"])
        rows = gpu()
        record["two views on the device, ms"] = rows
        for row in rows:
            print("  ".join(f"{k} {v:.4f}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()))
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
