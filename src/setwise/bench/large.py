"""Large networks at 224 pixels: images a second, and the share of what the device could compute at most."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from setwise.bench.plain import PlainStep, plain_loop, plain_network
from setwise.data import ImageSet
from setwise.recipe import Recipe

SIZE, IMAGES = 224, 2048
_SIMCLR: dict[str, Any] = {"objective": "nt-xent", "batch": 256, "head": {"hidden": 2048, "out": 128}}
RECIPES = {
    name: Recipe.read(_SIMCLR | {"encoder": encoder, "optimizer": "adamw"})
    for name, encoder in {"resnet50": "torchvision/resnet50", "vit-s16": "timm/vit_small_patch16_224"}.items()
}
# Dense bfloat16 operations a second by NVIDIA's data sheets, by a part of the device's name.
PEAKS = {"H200": 989e12, "H100 80GB HBM3": 989e12, "A100": 312e12}
BACKWARD = 2  # times the operations of the forward pass
PARTS = 4


def forward_flops(recipe: Recipe, data: ImageSet, device: torch.device) -> int:
    """Floating-point operations of encoder and head for one image, as torch counts them."""
    model = PlainStep(recipe, data, device).model.eval()
    count = FlopCounterMode(display=False)
    image = torch.zeros(1, *data.images.shape[1:], device=device)
    with count, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):  # attention as matrix products, which are counted
        model(image)
    return count.get_total_flops()


def peak(device: torch.device) -> float | None:
    """Dense bfloat16 operations a second of the device, if they are known."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return next((number for part, number in PEAKS.items() if part in name), None)


def measure(
    recipe: Recipe,
    data: ImageSet,
    device: torch.device,
    our_steps: Callable[..., list[float]],
    *,
    seconds: float,
    workers: int | None,
    console: Console,
) -> dict[str, Any]:
    """Our step, compiled and not and in parts, beside the plain one: milliseconds, images a second, share, memory.

    ``workers`` is None for no torchvision. Images are counted, not views, of which there are two for each. Operations
    are those of a plain step: what parts compute twice counts once.
    """
    ways: dict[str, Callable[[], float]] = {
        "setwise": lambda: statistics.median(our_steps(recipe, data, device, seconds)),
        "setwise, compiled": lambda: statistics.median(our_steps(recipe, data, device, seconds, compile=True)),
        f"setwise, compiled, {PARTS} parts": lambda: statistics.median(
            our_steps(replace(recipe, parts=PARTS), data, device, seconds, compile=True)
        ),
        "plain torch, nothing loaded": lambda: plain_network(recipe, data, device, seconds),
    }
    if workers is not None:
        ways["torch + torchvision"] = lambda: plain_loop(recipe, data, device, seconds, workers)
    flops = 2 * recipe.batch * (1 + BACKWARD) * forward_flops(recipe, data, device)
    most, rows = peak(device), {}
    for name, run in ways.items():
        console.print(f"{recipe.encoder.name}, {name} ...", end="\r")
        _empty(device)
        try:
            ms = run()
        except ImportError as error:  # torchvision is not a dependency of ours
            console.print(f"no comparison with torchvision: {error}")
            continue
        row = {"ms": ms, "images_per_second": 1e3 * recipe.batch / ms, "flops_per_second": 1e3 * flops / ms}
        row |= {} if most is None else {"share_of_peak": row["flops_per_second"] / most}
        row |= {"peak_bytes": torch.cuda.max_memory_allocated(device)} if device.type == "cuda" else {}
        rows[name] = row
    about = {"encoder": recipe.encoder.name, "batch": recipe.batch, "size": list(data.images.shape[2:])}
    return {**about, "step_flops": flops, "peak_flops_per_second": most, "ways": rows}


def _empty(device: torch.device) -> None:
    """Let go of what the way before held, and count the memory of the next one from here."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def show(console: Console, record: dict[str, Any]) -> None:
    """A table of all ways of all large networks."""
    table = Table(title=f"SimCLR steps of large networks, {record['hardware']['name']}, torch {torch.__version__}")
    for column in ("encoder", "way", "step", "images/s", "TFLOP/s", "of the peak", "memory"):
        table.add_column(column, justify="left" if column in ("encoder", "way") else "right")
    for large in record["large"].values():
        for way, row in large["ways"].items():
            share = f"{100 * row['share_of_peak']:.1f} %" if "share_of_peak" in row else "-"
            memory = f"{row['peak_bytes'] / 2**30:.1f} GiB" if "peak_bytes" in row else "-"
            speeds = f"{row['images_per_second']:,.0f}", f"{row['flops_per_second'] / 1e12:.1f}"
            table.add_row(large["encoder"], way, f"{row['ms']:.1f} ms", *speeds, share, memory)
    console.print(table)
