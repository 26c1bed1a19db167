"""The launches of a layer in conv.py: constants and blocks of each kernel."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from setwise.checks import check_count
from setwise.kernels.nvrtc import Kernel, compile_kernel

Pool = Literal["none", "average", "global"]
POOLS: tuple[Pool, ...] = ("none", "average", "global")

THREADS = 256
WARPS = THREADS // 32
WIDTHS = (8, 16, 32, 64)  # channels; above, the library's kernels are faster
IMAGE_CHANNELS = 7  # at most, of a first layer, which loads them one by one
SIDES = (4, 8, 16, 32, 64, 128, 256)  # pixels of an image's side, which tiles fill exactly
TILE_WIDTH = 32
SHARED_FOR_TWO = 113 * 1024  # bytes of shared memory with which two blocks fit on a multiprocessor of an H200
MOST_PARTS = 4  # into which runs divide a device
JOBS = 4  # pairs of 16 x 16 channels whose weights' gradient one block sums


class Layer(NamedTuple):
    """What a layer's kernels are compiled for."""

    images: int
    height: int
    width: int
    channels_in: int
    channels_out: int
    kernel: int
    stride: int
    weights_last: bool  # whether weights lie in memory as [O, k, k, I]
    pool: Pool
    relu: bool
    residual: bool
    grad_residual: bool
    through: bool  # whether the input also goes to a shortcut, whose gradient is added here

    @property
    def out(self) -> tuple[int, int]:
        """Height and width after the convolution."""
        return self.height // self.stride, self.width // self.stride

    @property
    def pixels(self) -> int:
        """Values of a channel after the convolution."""
        return self.images * self.out[0] * self.out[1]


class Launch(NamedTuple):
    """A kernel's text, its constants, and its number of blocks."""

    files: tuple[str, ...]
    name: str
    defines: tuple[tuple[str, object], ...]
    shared_bytes: int
    grid: tuple[int, int, int]


class Tile(NamedTuple):
    """What a block computes at a time: output pixels of one image or of several."""

    images: int
    height: int
    width: int

    @property
    def pixels(self) -> int:
        """All of them."""
        return self.images * self.height * self.width

    def reach(self, kernel: int, stride: int) -> int:
        """Input pixels of the tile."""
        return self.images * ((self.height - 1) * stride + kernel) * ((self.width - 1) * stride + kernel)

    def number(self, images: int, height: int, width: int) -> int:
        """Tiles of a batch."""
        return -(-images // self.images) * (height // self.height) * (width // self.width)


def _tile(pixels: int, height: int, width: int) -> Tile:
    across = min(width, TILE_WIDTH, pixels)
    down = min(height, pixels // across)
    return Tile(pixels // (across * down), down, across)


def _warps(pixels: int, channels: int) -> int | None:
    """How many warps divide the pixels; the rest divide the channels. Two products of 16 pixels each, if possible."""
    for rows in (2, 1, 4):
        down = min(WARPS, pixels // (16 * rows))
        if down and channels * down // WARPS >= 8:
            return down
    return None


def _busy(blocks: int, processors: int) -> bool:
    """Whether so many blocks keep the device busy: 128 on the H200's 132 multiprocessors do."""
    return 4 * blocks >= 3 * processors


def _padded(channels: int) -> int:
    return -(-channels // 16) * 16


def _requested(shared_bytes: int) -> int:
    """Above 48 KB, to which the statistics' own 3 KB count, shared memory has to be requested."""
    return max(shared_bytes, 48 * 1024) if shared_bytes > 45 * 1024 else shared_bytes


def convolution(layer: Layer, processors: int, *, turned: bool = False) -> Launch:
    """The launch of ``convolve``: forwards, or ``turned`` for the gradient of the input."""
    channels_in, channels_out = layer.channels_in, layer.channels_out
    inside, outside, stride = (layer.height, layer.width), layer.out, layer.stride
    if turned:
        channels_in, channels_out, inside, outside, stride = channels_out, channels_in, outside, inside, 1
    pixels = 256 if max(channels_in, channels_out) <= 32 and stride == 1 else 128
    # Two blocks a multiprocessor hide each other's waiting; with 64 channels, each has half of the weights.
    own = channels_out // 2 if channels_in * channels_out >= 64 * 64 else channels_out
    while pixels > 64 and _warps(pixels // 2, own):
        if _busy(_tile(pixels, *outside).number(layer.images, *outside), processors):
            break
        pixels //= 2
    tile, down = _tile(pixels, *outside), _warps(pixels, own)
    assert down is not None
    pitch = _padded(channels_in) + 8
    weights = (own + 8) * _padded(channels_in) if turned else own * pitch
    shared = _requested(2 * (layer.kernel**2 * weights + 2 * pitch * tile.reach(layer.kernel, stride)))
    resident = 2 if shared <= SHARED_FOR_TWO else 1
    defines: dict[str, object] = {
        "IN": channels_in,
        "OUT": channels_out,
        "OWN": own,
        "KERNEL": layer.kernel,
        "STRIDE": stride,
        "DILATE": layer.stride if turned else 1,
        "TURNED": int(turned),
        "STATISTICS": int(not turned),
        "ADD": int(turned and layer.through),
        "WARPS_M": down,
        "WARPS_N": WARPS // down,
    }
    defines |= _places(inside, outside, tile) | {"LAST": int(layer.weights_last), "RESIDENT": resident}
    groups = channels_out // own
    grid = (min(tile.number(layer.images, *outside), max(1, resident * processors // groups)), groups, 1)
    return Launch(("bf16.cu", "conv_tiles.cu", "conv.cu"), "convolve", tuple(defines.items()), shared, grid)


def _places(inside: tuple[int, int], outside: tuple[int, int], tile: Tile) -> dict[str, object]:
    names = ("IN_H", "IN_W", "OUT_H", "OUT_W", "IMAGES", "TILE_H", "TILE_W")
    return dict(zip(names, (*inside, *outside, *tile), strict=True))


def weight_gradient(layer: Layer, processors: int) -> tuple[Launch, Launch]:
    """The launches that sum the weights' gradient in parts, and the parts."""
    jobs_in = _padded(layer.channels_in) // 16
    jobs_out = min(_padded(layer.channels_out) // 16, JOBS // jobs_in)
    jobs = jobs_in * jobs_out
    down = _padded(layer.channels_out) // (16 * jobs_out)
    outside = layer.out
    pixels = 256 if max(layer.channels_in, layer.channels_out) <= 32 and layer.stride == 1 else 128
    while pixels > 16 * WARPS // jobs:
        if _busy(_tile(pixels, *outside).number(layer.images, *outside) * down, processors):
            break
        pixels //= 2
    tile = _tile(pixels, *outside)
    pitch, pitch_out = _padded(layer.channels_in) + 8, 16 * jobs_out + 8
    shared = 2 * 2 * (pitch * tile.reach(layer.kernel, layer.stride) + pitch_out * tile.pixels)
    # The same memory then holds half of the warps' sums.
    shared = max(shared, 4 * WARPS // 2 * 32 * 8 * layer.kernel**2)
    resident = 2 if shared <= SHARED_FOR_TWO else 1
    defines: dict[str, object] = {
        "IN": layer.channels_in,
        "OUT": layer.channels_out,
        "KERNEL": layer.kernel,
        "STRIDE": layer.stride,
        "DILATE": 1,
        "JOBS_IN": jobs_in,
        "JOBS_OUT": jobs_out,
    }
    defines |= _places((layer.height, layer.width), outside, tile) | {"RESIDENT": resident}
    parts = min(tile.number(layer.images, *outside), max(1, resident * processors // down))
    sums: dict[str, object] = {"SUM_WEIGHTS": 1, "IN": layer.channels_in, "OUT": layer.channels_out}
    sums |= {"TAPS": layer.kernel**2, "LAST": int(layer.weights_last), "CHANNELS": 8}
    elements = layer.kernel**2 * _padded(layer.channels_in) * _padded(layer.channels_out)
    files = ("bf16.cu", "conv_tiles.cu", "conv_weights.cu")
    return (
        Launch(files, "weight_gradient", tuple(defines.items()), shared, (parts, down, 1)),
        Launch(("bf16.cu", "norm.cu"), "sum_weights", tuple(sums.items()), 0, (elements // 32, 1, 1)),
    )


def normalisation(layer: Layer, processors: int) -> tuple[Launch, Launch, Launch]:
    """The launches of normalise, sum_gradient and spread_gradient."""
    defines: dict[str, object] = {"CHANNELS": layer.channels_out, "RELU": int(layer.relu)}
    defines |= {"RESIDUAL": int(layer.residual), "POOL": POOLS.index(layer.pool)}
    if layer.pool != "none":
        defines |= {"HEIGHT": layer.out[0], "WIDTH": layer.out[1]}
    items = layer.pixels * layer.channels_out // 8
    most = 2 * processors
    blocks = min(most, -(-items // THREADS))
    first = -(-layer.images // WARPS) if layer.pool == "global" else blocks
    # Each block of the next launch reads all sums of this one, so keep them few; but no more than 16 items a thread.
    few = min(blocks, max(most * 16 // layer.channels_out, items // (16 * THREADS)))

    def launch(name: str, grid: int, more: dict[str, object]) -> Launch:
        constants = {name.upper(): 1} | defines | more
        return Launch(("bf16.cu", "norm.cu"), name, tuple(constants.items()), 0, (grid, 1, 1))

    return (
        launch("normalise", first, {}),
        launch("sum_gradient", max(few, 1), {}),
        launch("spread_gradient", blocks, {"GRAD_RESIDUAL": int(layer.grad_residual)}),
    )


_kernels: dict[tuple[object, ...], Kernel] = {}
_runs = 1


def share_device(runs: int) -> None:
    """From now on, plan layers for a device on which this many runs train at once."""
    global _runs
    check_count(runs, "runs")
    _runs = runs


def processes_share() -> bool:
    """Whether NVIDIA's MPS runs here. Without it processes take turns, each with the whole device."""
    folder = os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps"
    return Path(folder, "nvidia-cuda-mps-control.pid").exists()


def processors_for(count: int) -> int:
    """Multiprocessors, of ``count``, to plan a layer for: a part of them where many runs share the device.

    Fewer blocks with more work wait less, and other runs use what they leave free. On an H200, 12 Conv-4 runs in
    processes make 386 runs an hour if planned for all 132, and 467, 472, 458, 411 if for 44, 33, 22, 11; 6 ResNet-32
    runs make 28.7 for 132 and 40.1 for 33.
    """
    return max(1, count // min(_runs, MOST_PARTS))


def processors_of(device: torch.device) -> int:
    """``processors_for`` this CUDA device."""
    return processors_for(torch.cuda.get_device_properties(device).multi_processor_count)


def _compile(launch: Launch, device: torch.device) -> Kernel:
    key = (*launch[:4], device)
    if key not in _kernels:
        with torch.cuda.device(device):
            _kernels[key] = compile_kernel(launch.files, launch.name, dict(launch.defines), launch.shared_bytes)
    return _kernels[key]


class Plan:
    """The compiled kernels of a layer on a device."""

    def __init__(self, layer: Layer, device: torch.device, processors: int) -> None:
        self.layer, self.device = layer, device
        self.early = torch.cuda.get_device_capability(device)[0] >= 9
        launches = [convolution(layer, processors), *weight_gradient(layer, processors)]
        launches += normalisation(layer, processors)
        if layer.channels_in % 8 == 0:
            launches.append(convolution(layer, processors, turned=True))
        with ThreadPoolExecutor(len(launches)) as threads:
            kernels = list(threads.map(lambda launch: _compile(launch, device), launches))
        self.launches, self.kernels = launches, kernels

    def parts(self, which: int) -> int:
        """Blocks of a launch: each leaves its own sums."""
        return self.launches[which].grid[0]

    def run(self, which: int, *args: Any, early: bool = True) -> None:
        """Launch a kernel: in the order of CONVOLVE, ... below."""
        grid, early = self.launches[which].grid, early and self.early
        self.kernels[which](grid=grid, block=(THREADS, 1, 1), args=args, early=early)


CONVOLVE, WEIGHT_GRADIENT, SUM_WEIGHTS, NORMALISE, SUM_GRADIENT, SPREAD_GRADIENT, TURNED = range(7)
