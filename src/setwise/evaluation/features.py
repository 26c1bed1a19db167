"""Features of a whole data set by an encoder, and a check that the encoder stayed frozen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import torch
from torch import Tensor, nn

from setwise.checks import check_count, check_option
from setwise.data import ImageSet
from setwise.encoders import evaluating
from setwise.recipe import PRECISIONS
from setwise.views import preset


def extract(
    encoder: nn.Module,
    image_set: ImageSet,
    *,
    device: torch.device | str,
    precision: str = "float32",
    batch: int | None = None,
    views: str = "none",
    view: int = 0,
) -> Tensor:
    """Features [N, F] of every image, float32 on ``device``: eval mode, normalised images, nothing random.

    Or of view number ``view`` of each by the preset ``views``, which seed 0 and the image's place decide.

    ``encoder`` is on ``device`` already; afterwards each of its parts has its own mode again. It computes in
    ``precision``: "float32" (on a GPU too, without TF32), "bfloat16" by autocast, or "float64" for an encoder of that
    dtype. It computes ``batch`` images at a time, by default 1024 on a GPU and 128 on a CPU, which is fastest there.
    The batch changes nothing but the rounding: in eval mode no image's features depend on another image.
    """
    check_option(precision, PRECISIONS, "precision")
    if batch is not None:
        check_count(batch, "batch")
    if not isinstance(image_set, ImageSet) or not len(image_set):
        shape = getattr(image_set, "shape", None)
        got = repr(image_set) if shape is None else f"a tensor of shape {tuple(shape)}"
        raise ValueError(
            "expected images as an ImageSet, which has the mean and std to normalise them by, and not an empty one, "
            f"got {got:.200}; setwise.data.load gives one, setwise.data.ImageSet(...) makes one of your tensors"
        )
    device = torch.empty(0, device=device).device  # "cuda" becomes "cuda:0", as tensors call it
    dtype = torch.float64 if precision == "float64" else torch.float32
    _check_encoder(encoder, device, dtype)
    made = preset(views, mean=image_set.mean, std=image_set.std)
    places = torch.arange(len(image_set), device=device)
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")
    chunks: list[Tensor] = []
    with evaluating(encoder), _plain_convolutions(device), torch.no_grad(), autocast:
        rows = int(batch or (128 if device.type == "cpu" else 1024))
        for images, samples in zip(image_set.chunks(rows), torch.split(places, rows), strict=True):
            last = device.type == "cuda"
            x = made(images.to(device), samples=samples, seed=0, epoch=0, view=view, channels_last=last)
            features = encoder(x.to(dtype))
            if features.ndim != 2 or len(features) != len(images):
                raise ValueError(
                    f"expected features of shape ({len(images)}, F) from the encoder, got {tuple(features.shape)}"
                )
            chunks.append(features.float())
    return torch.cat(chunks)


@contextmanager
def frozen(encoder: nn.Module) -> Iterator[None]:
    """Raise RuntimeError if a parameter or buffer of ``encoder`` has other bits, or is another, after the block.

    with frozen(encoder):
        features = extract(encoder, data, device="cuda")
    """
    before = {name: x.detach().clone() for name, x in _tensors(encoder)}
    yield
    after = dict(_tensors(encoder))
    for name in sorted(before.keys() | after.keys()):
        if name not in before or name not in after:
            what = "appeared" if name in after else "disappeared"
        elif not _same_bits(before[name], after[name].detach()):
            what = "changed"
        else:
            continue
        raise RuntimeError(
            f"expected a frozen encoder, but {name} {what}; was it in training mode, or given to an optimiser?"
        )


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return chain(model.named_parameters(), model.named_buffers())


def _same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal as bytes: NaN is the same as itself and -0 is not 0."""
    if (a.shape, a.dtype, a.device) != (b.shape, b.dtype, b.device):
        return False
    return torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


def _check_encoder(encoder: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
    for name, x in _tensors(encoder):
        if x.device != device:
            raise ValueError(f"expected the encoder on {device}, got {name} on {x.device}; move it with .to()")
        if x.is_floating_point() and x.dtype != dtype:
            raise ValueError(
                f"expected an encoder of {dtype} for this precision, got {name} of {x.dtype}; "
                "convert it with .float() or .double()"
            )


@contextmanager
def _plain_convolutions(device: torch.device) -> Iterator[None]:
    """Convolutions in float32 proper, without a search for the fastest algorithm.

    cuDNN's default rounds what it multiplies to 10 bits. With its search the first features of CIFAR-10 took 19 s on an
    H200, and 2 s once it was done.
    """
    if device.type != "cuda":
        yield
        return
    cudnn = torch.backends.cudnn
    before = cudnn.allow_tf32, cudnn.benchmark
    cudnn.allow_tf32 = cudnn.benchmark = False
    try:
        yield
    finally:
        cudnn.allow_tf32, cudnn.benchmark = before
