"""Views: which augmentations, with which parameters, and the presets of the paper's experiments."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

import setwise.register as register
from setwise.checks import check_number, check_option
from setwise.kernels import views as kernels
from setwise.kernels.views import Finish, Parameters, Ranges
from setwise.views import blur as plain_blur
from setwise.views import draw as plain_draw
from setwise.views import render as plain_render

CROPS = ("none", "resized", "padded", "part")
DTYPES = (torch.float32, torch.bfloat16)
LIMITS = {
    **dict.fromkeys(("flip", "jitter", "grey", "area", "blur", "solarize"), (0.0, 1.0)),
    **dict.fromkeys(("brightness", "contrast", "saturation", "sigma"), (0.0, math.inf)),
    "hue": (0.0, 0.5),
    "aspect": (1 / 16, 16.0),  # up to here the exponential of draw.py is exact to 1e-14
}


@dataclass(frozen=True)
class Views:
    """Random views of images, computed for whole batches where the images are.

        views = preset("self-supervised", mean=(0.491, 0.482, 0.447), std=(0.247, 0.243, 0.262))
        a, b = views.pair(images[index], samples=index, seed=1, epoch=epoch)

    In this order: crop, flip, colour jitter, greyscale, blur, solarisation, normalisation, each as torchvision does it
    on images in [0, 1]. The defaults change nothing. Each sample's parameters come from (seed, epoch, sample, view)
    alone: a view does not depend on the batch, the process or the device.

    ``blur`` and ``solarize`` may be one probability for all views or several, one for each view in turn, the last for
    all further ones: ``blur=(1.0, 0.1), solarize=(0.0, 0.2)`` are BYOL's. Views of a ``size`` are blurred in that size.

    On a CUDA device a call is one launch, with some more for blur and solarisation, and waits for nothing. After a
    first call a CUDA graph can capture it; let ``seed``, ``epoch`` and ``samples`` be tensors there, and a replay reads
    what they then hold.
    """

    # "resized": random area and aspect, enlarged to the size of the image; "padded": a shift; "part": as many pixels as
    # ``size`` says, from anywhere in the image, as they are.
    crop: str = "none"
    area: tuple[float, float] = (0.08, 1.0)  # share of the image
    aspect: tuple[float, float] = (3 / 4, 4 / 3)  # width / height, uniform in its logarithm
    padding: int = 4  # pixels, black
    flip: float = 0.0  # probability
    brightness: float = 0.0  # factors are uniform in [max(0, 1 - x), 1 + x]
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0  # uniform in [-x, x] turns
    jitter: float = 0.0  # probability of these four, in random order
    grey: float = 0.0  # probability
    blur: float | tuple[float, ...] = 0.0  # probability, of all views or of each in turn
    sigma: tuple[float, float] = (0.1, 2.0)  # of the blur, in pixels of the view; uniform
    solarize: float | tuple[float, ...] = 0.0  # probability, of all views or of each in turn
    size: tuple[int, int] | None = None  # height and width of a view, at most the image's; the image's if none
    early: tuple[int, ...] = ()  # instead of ``size`` in the first parts of training, one after another: pixels a side
    until: tuple[float, ...] = ()  # the share of training at which each of these parts ends
    mean: float | tuple[float, ...] = 0.0  # a number for all channels, or a tuple of one for each
    std: float | tuple[float, ...] = 1.0

    def __post_init__(self) -> None:
        """Raise if a number makes no sense."""
        check_option(self.crop, CROPS, "crop")
        for name, (low, high) in LIMITS.items():
            values = _numbers(getattr(self, name), 1)
            if not values:
                raise ValueError(f"expected {name} to be a number or several, got none; give 0 for no {name}")
            for value in values:
                check_number(value, name, least=low)
                if value > high:
                    raise ValueError(f"expected {name} to be at most {high:g}, got {value!r}")
        for name in ("area", "aspect", "sigma"):
            ends = getattr(self, name)
            if len(ends) != 2 or not 0 < ends[0] <= ends[1]:
                raise ValueError(f"expected {name} to be two numbers, the smaller one first and above 0, got {ends!r}")
        if not isinstance(self.padding, int) or self.padding < 0:
            raise ValueError(f"expected padding to be a number of pixels, 0 or more, got {self.padding!r}")
        for value in _numbers(self.mean, 1):
            check_number(value, "mean")
        for value in _numbers(self.std, 1):
            check_number(value, "std", above=0)
        if self.size is not None and (len(self.size) != 2 or not all(isinstance(n, int) and n > 0 for n in self.size)):
            raise ValueError(f"expected size to be (height, width), whole numbers above 0, got {self.size!r}")
        ends = (0.0, *self.until, 1.0)
        if len(self.early) != len(self.until) or not all(a < b for a, b in itertools.pairwise(ends)):
            raise ValueError(
                "expected until to have a share of training between 0 and 1 for each size of early, in rising order, "
                f"got early {self.early!r} and until {self.until!r}; --views.early 16,24 --views.until 0.3,0.7 fits"
            )
        if any(not isinstance(n, int) or n < 1 for n in self.early):
            raise ValueError(f"expected early to be numbers of pixels above 0, got {self.early!r}")
        if not any(len(_numbers(self.mean, n)) == len(_numbers(self.std, n)) == n for n in (1, 3)):
            raise ValueError(f"expected mean and std of 1 or 3 numbers each, got {self.mean!r} and {self.std!r}")

    def at(self, share: float) -> Views:
        """The views when ``share`` of training is done: those of an ``early`` size before the last of ``until``."""
        part = sum(end <= share for end in self.until)
        if part == len(self.early):
            return self
        return replace(self, size=(self.early[part],) * 2)

    def ranges(self, size: tuple[int, int]) -> Ranges:
        """What the parameters for images of this size are drawn from."""
        widths = (self.brightness, self.contrast, self.saturation)
        low = *(max(0.0, 1.0 - x) for x in widths), -float(self.hue)
        high = *(1.0 + x for x in widths), float(self.hue)
        log_low, log_high = math.log(self.aspect[0]), math.log(self.aspect[1])
        return Ranges(
            crop=self.crop,
            area=(float(self.area[0]), float(self.area[1] - self.area[0])),
            log_aspect=(log_low, log_high - log_low),
            padding=self.padding,
            fallback=plain_draw.fallback_box(size, self.aspect),
            flip=float(self.flip),
            jitter=float(self.jitter),
            factors_low=low,
            factors_span=tuple(b - a for a, b in zip(low, high, strict=True)),
            grey=float(self.grey),
        )

    def _chances(self, first: int, count: int) -> tuple[list[float], list[float]]:
        """Probabilities of blur and of solarisation, for each of these views."""
        numbers, turns = (_numbers(self.blur, 1), _numbers(self.solarize, 1)), range(first, first + count)
        blur, solarize = ([float(each[min(view, len(each) - 1)]) for view in turns] for each in numbers)
        return blur, solarize

    def finish(self, channels: int, dtype: torch.dtype, channels_last: bool) -> Finish:
        """What becomes of values in [0, 1] in the end."""
        if dtype not in DTYPES:
            raise ValueError(f"expected dtype to be one of {', '.join(map(str, DTYPES))}, got {dtype}")
        means, stds = _numbers(self.mean, channels), _numbers(self.std, channels)
        if not len(means) == len(stds) == channels:
            raise ValueError(
                f"expected mean and std for the {channels} channel{'s' * (channels > 1)} of the images, "
                f"got {self.mean!r} and {self.std!r}; replace(views, mean=..., std=...) changes them, "
                "a number alone is for all channels"
            )
        scale = tuple(1 / float(std) for std in stds)
        shift = tuple(-float(mean) / float(std) for mean, std in zip(means, stds, strict=True))
        return Finish(scale, shift, dtype, channels_last)

    def draw(
        self,
        samples: Tensor,
        size: tuple[int, int],
        *,
        seed: int | Tensor,
        epoch: int | Tensor,
        view: int = 0,
    ) -> Parameters:
        """Parameters of view number ``view`` of the samples [B] (their places in the data set), H x W = ``size``.

        ``seed`` and ``epoch`` are integers or tensors [] of int64, of which the epoch counts modulo 2^32. The same
        bits on the CPU and on a GPU. Not of parts, which ``several`` cuts out before it draws the rest.
        """
        check_option(self.crop, CROPS[:3], "crop")
        seed, epoch = _keys(samples, seed, epoch, view)
        ranges = self.ranges(size)
        drawn = kernels.draw(ranges, samples, seed, epoch, view, size)
        drawn = plain_draw.draw(ranges, samples, seed, epoch, view, size) if drawn is None else drawn
        blur, solarize = self._chances(view, 1)
        if not any(blur + solarize):
            return drawn
        sigmas, solarized = plain_draw.draw_blur(samples, seed, epoch, view, blur, solarize, sigma=self.sigma)
        return drawn._replace(blur=sigmas[0], solarize=solarized[0])

    @torch.no_grad()
    def apply(
        self,
        images: Tensor,
        parameters: Parameters,
        *,
        dtype: torch.dtype = torch.float32,
        channels_last: bool = False,
    ) -> Tensor:
        """The views [B, C, H, W] that ``parameters`` make of ``images`` [B, C, H, W], uint8, C = 1 or 3.

        Of the jitter of images of one channel, brightness and contrast remain; greyscale leaves them as they are.
        """
        _check_images(images)
        _check_parameters(images, parameters)
        finish = self.finish(images.shape[1], dtype, channels_last)
        blur, solarize = parameters.blur, parameters.solarize
        if images.device.type == "cpu" and not blur.any() and not solarize.any():
            return plain_render.apply(images, parameters, finish)
        # On a GPU nobody asks whether any image is blurred: that would wait.
        plain = Finish((1.0,) * len(finish.scale), (0.0,) * len(finish.shift), torch.float32, channels_last=False)
        applied = kernels.apply(images, parameters, plain)
        applied = plain_render.apply(images, parameters, plain) if applied is None else applied
        return plain_blur.finished(applied, finish, blur=blur, solarize=solarize)

    def __call__(
        self,
        images: Tensor,
        *,
        samples: Tensor,
        seed: int | Tensor,
        epoch: int | Tensor,
        view: int = 0,
        dtype: torch.dtype = torch.float32,
        channels_last: bool = False,
    ) -> Tensor:
        """Draw and apply: one view [B, C, H, W] of each image."""
        options: Any = {"samples": samples, "seed": seed, "epoch": epoch, "dtype": dtype}
        return self.several(images, 1, first=view, channels_last=channels_last, **options)[0]

    def pair(
        self,
        images: Tensor,
        *,
        samples: Tensor,
        seed: int | Tensor,
        epoch: int | Tensor,
        dtype: torch.dtype = torch.float32,
        channels_last: bool = False,
    ) -> Tensor:
        """Views 0 and 1 of each image [2, B, C, H, W]: unpack them, or flatten(0, 1) for one batch of both."""
        options: Any = {"samples": samples, "seed": seed, "epoch": epoch, "dtype": dtype}
        return self.several(images, 2, channels_last=channels_last, **options)

    @torch.no_grad()
    def several(
        self,
        images: Tensor,
        count: int,
        *,
        samples: Tensor,
        seed: int | Tensor,
        epoch: int | Tensor,
        first: int = 0,
        dtype: torch.dtype = torch.float32,
        channels_last: bool = False,
    ) -> Tensor:
        """Views number ``first``, ``first`` + 1, ... of each image [count, B, C, H, W], or of ``size``.

        Smaller views, as of multi-crop, are made in the image's size and then reduced, with antialiasing.
        """
        _check_images(images)
        if count < 1:
            raise ValueError(f"expected at least one view, got count={count}")
        seed, epoch = _keys(samples, seed, epoch, first)
        blur, solarize = self._chances(first, count)
        if any(blur + solarize):
            finish = self.finish(images.shape[1], dtype, channels_last)
            plain = replace(self, blur=0.0, solarize=0.0, mean=0.0, std=1.0)
            x = plain.several(images, count, samples=samples, seed=seed, epoch=epoch, first=first).flatten(0, 1)
            sigmas, solarized = plain_draw.draw_blur(samples, seed, epoch, first, blur, solarize, sigma=self.sigma)
            x = plain_blur.finished(
                x,
                finish,
                blur=sigmas.flatten() if any(blur) else None,
                solarize=solarized.flatten() if any(solarize) else None,
            )
            return torch.unflatten(x, 0, (count, len(images)))
        if self.size is not None and any(n > m for n, m in zip(self.size, images.shape[2:], strict=True)):
            raise ValueError(f"expected views of at most {tuple(images.shape[2:])}, the images' size, got {self.size}")
        if self.crop == "part":
            options: Any = {"seed": seed, "epoch": epoch, "dtype": dtype, "channels_last": channels_last}
            corners = plain_draw.draw_corners(samples, seed, epoch, first, count, images.shape[2:], self.size)
            cut = plain_render.cut(images, corners, self.size or images.shape[2:])
            rest = replace(self, crop="none", size=None, early=(), until=())
            parts = [rest.several(x, 1, samples=samples, first=first + i, **options)[0] for i, x in enumerate(cut)]
            return _stacked(torch.cat(parts), count, channels_last)
        if self.size is not None and self.size != tuple(images.shape[2:]):
            whole = replace(self, size=None).several(
                images, count, samples=samples, seed=seed, epoch=epoch, first=first
            )
            small = interpolate(whole.flatten(0, 1), self.size, mode="bilinear", antialias=True).to(dtype)
            return _stacked(small, count, channels_last)
        if samples.shape != images.shape[:1] or samples.device != images.device:
            raise ValueError(
                f"expected samples of shape ({len(images)},) on {images.device}, one for each image, "
                f"got {tuple(samples.shape)} on {samples.device}"
            )
        size = (images.shape[2], images.shape[3])
        ranges, finish = self.ranges(size), self.finish(images.shape[1], dtype, channels_last)
        out = kernels.views(ranges, finish, images, samples, seed, epoch, first, count)
        if out is not None:
            return out
        view: int | Tensor = first
        if count > 1:
            view = torch.arange(first, first + count, device=samples.device).repeat_interleave(len(samples))
            images, samples = images.repeat(count, 1, 1, 1), samples.repeat(count)
        with torch.inference_mode():  # as in render.py
            parameters = plain_draw.draw(ranges, samples, seed, epoch, view, size)
        out = plain_render.apply(images, parameters, finish)
        pairs: Tensor = torch.unflatten(out, 0, (count, len(images) // count))
        return pairs


def _stacked(x: Tensor, count: int, channels_last: bool) -> Tensor:
    """``count`` views of each image [count · B, C, H, W] as [count, B, C, H, W]."""
    x = x.contiguous(memory_format=torch.channels_last) if channels_last else x
    views: Tensor = torch.unflatten(x, 0, (count, -1))
    return views


def _numbers(value: float | tuple[float, ...], channels: int) -> tuple[float, ...]:
    """One number a channel; a tuple is left as it is."""
    return (value,) * channels if isinstance(value, (int, float, np.integer, np.floating)) else tuple(value)


def _check_images(images: Tensor) -> None:
    if not isinstance(images, Tensor) or images.dtype != torch.uint8:
        kind = images.dtype if isinstance(images, Tensor) else type(images).__name__
        raise ValueError(f"expected images as a torch.uint8 tensor of values 0 to 255, got {kind}")
    if images.ndim != 4 or images.shape[1] not in (1, 3) or 0 in images.shape[2:]:
        raise ValueError(f"expected images of shape (B, C, H, W) with C = 1 or 3, got {tuple(images.shape)}")


def _check_parameters(images: Tensor, parameters: Parameters) -> None:
    b = len(images)
    shapes = {"box": (b, 4), "factors": (b, 4), "order": (b, 4)}
    dtypes = {"box": torch.int32, "order": torch.int32, "factors": torch.float32, "blur": torch.float32}
    for name, x in parameters._asdict().items():
        shape, dtype = shapes.get(name, (b,)), dtypes.get(name, torch.bool)
        if x.shape != shape or x.dtype != dtype or x.device != images.device:
            raise ValueError(
                f"expected {name} of shape {shape}, {dtype} on {images.device} for {b} images, "
                f"got {tuple(x.shape)}, {x.dtype} on {x.device}"
            )
    if images.device.type != "cpu" or torch.compiler.is_compiling():
        return
    if not (parameters.order.sort(1).values == torch.arange(4)).all():
        raise ValueError("expected order to have 0, 1, 2, 3 in each row, in any order, got other rows")
    sizes = parameters.box[:, 2:]
    if not ((sizes >= 1) & (sizes <= sizes.new_tensor(images.shape[2:]))).all():
        raise ValueError(f"expected boxes of 1 to {images.shape[2]} x {images.shape[3]} pixels, got others")
    if not ((parameters.blur >= 0) & parameters.blur.isfinite()).all():
        raise ValueError("expected blur to be sigmas in pixels, 0 for no blur, got others")


def _keys(samples: Tensor, seed: int | Tensor, epoch: int | Tensor, view: int) -> tuple[Tensor, Tensor]:
    """Seed and epoch as tensors beside the samples, without waiting for the device."""
    if not isinstance(samples, Tensor) or samples.dtype != torch.int64 or samples.ndim != 1:
        got = f"{samples.dtype}, {tuple(samples.shape)}" if isinstance(samples, Tensor) else type(samples).__name__
        raise ValueError(f"expected samples as an int64 tensor of shape (B,), places in the data set, got {got}")
    if not isinstance(view, int) or not 0 <= view < 2**28:
        raise ValueError(f"expected view to be an integer from 0 to 2^28 - 1, got {view!r}")
    keys = []
    for value, name in ((seed, "seed"), (epoch, "epoch")):
        if isinstance(value, Tensor):
            if value.ndim or value.dtype != torch.int64 or value.device != samples.device:
                raise ValueError(
                    f"expected {name} as an integer or an int64 tensor of shape () on {samples.device}, "
                    f"got {value.dtype}, {tuple(value.shape)} on {value.device}"
                )
            keys.append(value)
        elif isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63:
            keys.append(torch.full((), value, dtype=torch.int64, device=samples.device))
        else:
            raise ValueError(f"expected {name} to be an integer from 0 to 2^63 - 1, got {value!r}")
    return keys[0], keys[1]


_SELF_SUPERVISED = Views(
    crop="resized",
    flip=0.5,
    brightness=0.8,
    contrast=0.8,
    saturation=0.8,
    hue=0.2,
    jitter=0.8,
    grey=0.2,
)
PRESETS: dict[str, Views] = {}


def add_preset(name: str, views: Views, *, about: str) -> None:
    """Register ``views`` under ``name``: a preset whose options are all numbers of views, these by default."""
    register.views(name, about=about)(partial(Views, **vars(views)))
    PRESETS[name] = views


add_preset("self-supervised", _SELF_SUPERVISED, about="SimCLR's: crops, flips, strong colours; the paper's.")
add_preset(
    "modern",
    replace(_SELF_SUPERVISED, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1),
    about="The same with colours at half strength, as today's libraries train on CIFAR.",
)
add_preset(
    "patches",
    replace(
        _SELF_SUPERVISED, area=(0.25, 0.25), aspect=(1.0, 1.0), brightness=0.4, contrast=0.4, saturation=0.4, hue=0.2
    ),
    about="Squares of a quarter of the image, enlarged: for many-patches.",
)
add_preset(
    "parts",
    replace(
        _SELF_SUPERVISED,
        crop="part",
        size=(16, 16),
        brightness=0.4,
        contrast=0.4,
        saturation=0.4,
        hue=0.2,
    ),
    about="Squares of 16 pixels, cut out as they are, with strong colours: for small images, four or more of each.",
)
add_preset(
    "photos",
    replace(_SELF_SUPERVISED, area=(0.2, 1.0), brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1, blur=0.5),
    about="MoCo v2's and SimSiam's for large images: half of the views blurred.",
)
add_preset(
    "byol",
    replace(
        _SELF_SUPERVISED,
        brightness=0.4,
        contrast=0.4,
        saturation=0.2,
        hue=0.1,
        blur=(1.0, 0.1),
        solarize=(0.0, 0.2),
    ),
    about="BYOL's for large images: the first view is blurred, the second seldom, and solarised at times.",
)
add_preset("supervised", Views(crop="padded", padding=4, flip=0.5), about="Shifts and flips.")
add_preset("flip", Views(flip=0.5), about="Flips alone.")
add_preset(
    "matching",
    Views(flip=0.5, brightness=0.1, contrast=0.1, saturation=0.1, hue=0.1, jitter=1.0),
    about="Flips and weak colours: for views that are two pictures already.",
)
add_preset("none", Views(), about="The images as they are.")


def preset(name: str, *, mean: float | tuple[float, ...] = 0.0, std: float | tuple[float, ...] = 1.0) -> Views:
    """The views of that name, one of ``PRESETS``, with a normalisation: a number for all channels, or one for each.

    ``dataclasses.replace`` changes a number: 64 x 64 images take ``replace(preset("supervised"), padding=8)``.

    Examples:
        >>> views = sw.views.preset("self-supervised")
        >>> images = torch.zeros(2, 3, 32, 32, dtype=torch.uint8)
        >>> views.pair(images, samples=torch.arange(2), seed=0, epoch=0).shape  # two views of each
        torch.Size([2, 2, 3, 32, 32])
    """
    check_option(name, tuple(PRESETS), "preset")
    return replace(PRESETS[name], mean=mean, std=std)
