"""Views of images on a CUDA device: one launch draws their parameters and applies them.

Every function here returns None where no kernel serves; setwise.views then computes the same in plain torch.
"""

from __future__ import annotations

from functools import cache
from math import factorial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from setwise.kernels.nvrtc import compile_kernel, compiled_or_none, usable

BLOCKS = 8  # of four random words, for each sample and view
TRIES = 10  # crops that are tried until one fits into the image
EXP_HALVINGS = 4
EXP_COEFFICIENTS = tuple(1 / factorial(k) for k in range(12))  # (3 / 16)^12 / 12! < 1e-17
THREADS = 256  # a block; two blocks a multiprocessor for two views of 128 images on an H200


class Ranges(NamedTuple):
    """What parameters are drawn from, as numbers that mean the same to both implementations: low ends and lengths."""

    crop: str
    area: tuple[float, float]
    log_aspect: tuple[float, float]
    padding: int
    fallback: tuple[int, int, int, int]  # the box that takes the place of ten that did not fit
    flip: float
    jitter: float
    factors_low: tuple[float, ...]  # of brightness, contrast, saturation, hue
    factors_span: tuple[float, ...]
    grey: float


class Finish(NamedTuple):
    """What becomes of values in [0, 1]: scaled and shifted by channel, and stored."""

    scale: tuple[float, ...]
    shift: tuple[float, ...]
    dtype: torch.dtype
    channels_last: bool


class Parameters(NamedTuple):
    """What is done to each of B images."""

    box: Tensor  # [B, 4] int32: top, left, height, width of the crop; where it leaves the image there is black
    flip: Tensor  # [B] bool: left and right change places after the crop
    jitter: Tensor  # [B] bool: whether ``factors`` apply
    factors: Tensor  # [B, 4] float32: of brightness, contrast, saturation; shift of the hue in turns
    order: Tensor  # [B, 4] int32: which of these four comes first, second, ...
    grey: Tensor  # [B] bool
    blur: Tensor  # [B] float32: the blur's sigma in pixels of the view, 0 for none
    solarize: Tensor  # [B] bool

    @property
    def fused(self) -> tuple[Tensor, ...]:
        """Those of one launch. Blur and solarisation come after it, in setwise.views.blur."""
        return self[: self._fields.index("blur")]


def _list(numbers: tuple[float, ...], suffix: str = "") -> str:
    return "{" + ", ".join(f"{x!r}{suffix}" for x in numbers) + "}"


def _defines(ranges: Ranges | None, finish: Finish | None) -> dict[str, object]:
    """Constants of the kernel's text; what a kernel does not use is given too, for the text to compile."""
    found: dict[str, object] = {"TRIES": TRIES, "EXP_HALVINGS": EXP_HALVINGS}
    found["EXP_COEFFICIENTS"] = _list(EXP_COEFFICIENTS)
    none = (0.0,) * 4
    padding = ranges.padding if ranges and ranges.crop == "padded" else 0
    found |= {"RESIZED": int(ranges is not None and ranges.crop == "resized"), "PADDING": padding}
    found["AREA_LOW"], found["AREA_SPAN"] = map(repr, ranges.area if ranges else (0.0, 0.0))
    found["LOG_ASPECT_LOW"], found["LOG_ASPECT_SPAN"] = map(repr, ranges.log_aspect if ranges else (0.0, 0.0))
    found["FACTORS_LOW"] = _list(ranges.factors_low if ranges else none)
    found["FACTORS_SPAN"] = _list(ranges.factors_span if ranges else none)
    for name in ("flip", "jitter", "grey"):
        found[name.upper()] = repr(float(getattr(ranges, name))) if ranges else "0.0"
    scale, shift = (finish.scale, finish.shift) if finish else ((1.0,), (0.0,))
    found |= {"CHANNELS": len(scale), "SCALE": _list(scale, "f"), "SHIFT": _list(shift, "f")}
    found["HALF_OUT"] = int(finish is not None and finish.dtype == torch.bfloat16)
    return found


@cache
def _kernel(name: str, ranges: Ranges | None, finish: Finish | None, device: torch.device) -> Any:
    return compiled_or_none(
        lambda: compile_kernel("views.cu", name, _defines(ranges, finish)),
        f"the kernel {name}",
        "plain torch, which waits for the device,",
        device,
    )


def _kernel_for(name: str, ranges: Ranges | None, finish: Finish | None, x: Tensor) -> Any:
    # The fallback box depends on the size of the images and is an argument, not a part of the text.
    ranges = ranges._replace(fallback=(0, 0, 0, 0)) if ranges else None
    finish = finish._replace(channels_last=False) if finish else None
    return _kernel(name, ranges, finish, x.device) if usable(x) else None


def draw(
    ranges: Ranges, samples: Tensor, seed: Tensor, epoch: Tensor, view: int, size: tuple[int, int]
) -> Parameters | None:
    """Parameters of one view of each sample [B], as setwise.views.draw has them, the same bits; no blur yet."""
    kernel = _kernel_for("draw_views", ranges, None, samples)
    if kernel is None:
        return None
    b, device = len(samples), samples.device
    found = Parameters(
        box=torch.empty(b, 4, dtype=torch.int32, device=device),
        flip=torch.empty(b, dtype=torch.bool, device=device),
        jitter=torch.empty(b, dtype=torch.bool, device=device),
        factors=torch.empty(b, 4, device=device),
        order=torch.empty(b, 4, dtype=torch.int32, device=device),
        grey=torch.empty(b, dtype=torch.bool, device=device),
        blur=torch.zeros(b, device=device),
        solarize=torch.zeros(b, dtype=torch.bool, device=device),
    )
    with torch.cuda.device(device):
        arguments = [samples.contiguous(), seed, epoch, *found.fused, view, *size, *ranges.fallback]
        kernel(grid=(b, 1, 1), block=(32, 1, 1), args=arguments)
    return found


def _empty(finish: Finish, views: int, images: Tensor) -> tuple[Tensor, list[int]]:
    """Room for views [V, B, C, H, W], and the steps from channel to channel and from pixel to pixel in it."""
    b, c, h, w = images.shape
    if finish.channels_last:
        return images.new_empty(views, b, h, w, c, dtype=finish.dtype).movedim(-1, 2), [1, c]
    return images.new_empty(views, b, c, h, w, dtype=finish.dtype), [h * w, 1]


def apply(images: Tensor, parameters: Parameters, finish: Finish) -> Tensor | None:
    """The views [B, C, H, W] that ``parameters`` make of ``images``, as setwise.views.render has them."""
    kernel = _kernel_for("apply_views", None, finish, images)
    if kernel is None:
        return None
    out, steps = _empty(finish, 1, images)
    given = [x.contiguous() for x in parameters.fused]
    with torch.cuda.device(images.device):
        arguments = [images.contiguous(), *given, out, *images.shape[2:], *steps]
        kernel(grid=(len(images), 1, 1), block=(THREADS, 1, 1), args=arguments)
    return out[0]


def views(
    ranges: Ranges, finish: Finish, images: Tensor, samples: Tensor, seed: Tensor, epoch: Tensor, first: int, count: int
) -> Tensor | None:
    """``count`` views from the ``first`` on, drawn and applied: [count, B, C, H, W]."""
    kernel = _kernel_for("views", ranges, finish, images)
    if kernel is None:
        return None
    out, steps = _empty(finish, count, images)
    with torch.cuda.device(images.device):
        tensors = [images.contiguous(), samples.contiguous(), seed, epoch, out]
        arguments = [*tensors, *images.shape[2:], *ranges.fallback, first, *steps]
        kernel(grid=(len(images), count, 1), block=(THREADS, 1, 1), args=arguments)
    return out
