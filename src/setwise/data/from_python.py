"""Images that Python already has, as an ``ImageSet``: files, arrays, torch and Hugging Face data sets."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from setwise.data.api import DataError, ImageSet
from setwise.data.formats.decode import Size, height_and_width, quiet_pillow, room, to_array
from setwise.data.formats.folder import default_size, size_for
from setwise.data.index import Files, stats
from setwise.data.loading import load
from setwise.data.pixels import Pixels
from setwise.data.root import root_of
from setwise.data.store import decoded

CHANNELS = (1, 3)


def from_images(
    images: Any,
    labels: Iterable[int | str] | None = None,
    *,
    classes: Sequence[str] | None = None,
    size: Size | None = None,
    skip_broken: bool = False,
    name: str = "images",
) -> ImageSet:
    """An ``ImageSet`` for ``sw.pretrain``, of images in any of these forms.

    A folder's path, as for ``load``. A list of files. An array or tensor of uint8, [N, H, W], [N, H, W, C] or
    [N, C, H, W] with 1 or 3 channels. A data set with a length: of images, or of pairs of an image and a label, as
    torch's and torchvision's are; a column of Hugging Face's ``datasets``, with its labels beside it. Its images are
    Pillow's, uint8 arrays, or floats from 0 to 1; they become RGB. Without ``size`` the rule for folders counts, and
    each item is asked for twice.

    Examples:
        >>> sw.data.from_images(torch.zeros(2, 32, 32, 3, dtype=torch.uint8), labels=["cat", "dog"]).classes
        ('cat', 'dog')
    """
    shape = None if size is None else height_and_width(size)
    paths: tuple[str, ...] = ()
    elsewhere: Pixels | None = None
    if isinstance(images, (str, os.PathLike)):
        if labels is not None or classes is not None:
            raise ValueError(
                "expected no labels for a folder, whose class folders are the labels; give a list of files"
            )
        return load(images, size=size, options={"skip_broken": skip_broken})
    if isinstance(images, (np.ndarray, Tensor)):
        array = _channels_first(images)
        if shape is not None and shape != array.shape[2:]:
            array = _fitted(array.transpose(0, 2, 3, 1), shape)[:, : array.shape[1]]
        pixels = torch.from_numpy(array)
    elif not hasattr(images, "__len__") or not hasattr(images, "__getitem__") or not len(images):
        raise ValueError(f"expected images with a length above 0, got {type(images).__name__}; a list of them will do")
    elif isinstance(images[0], (str, os.PathLike)):
        files = [os.path.abspath(file) for file in images]
        above = os.path.commonpath([os.path.dirname(file) for file in files])
        below = Files(Path(above), [os.path.relpath(file, above) for file in files], stats(files))
        found = decoded(below, shape or default_size(files)[0], root_of(None))
        if found.broken and not (skip_broken and found.whole):
            shown = "\n".join(f"  {images[k]}: {why}" for k, why in found.broken)
            raise DataError(f"expected whole images, got {len(found.broken):,} that cannot be read:\n{shown}")
        paths = tuple(os.fspath(images[k]) for k in found.whole)
        labels = None if labels is None else _labels_at(list(labels), found.whole, len(files))
        pixels, elsewhere = found.images, found.pixels
    else:
        with quiet_pillow():
            own = [] if labels is None else list(labels)
            pixels = torch.from_numpy(_fitted(images, shape, None if own else own))
        labels = own or None
        classes = classes if classes is not None else getattr(images, "classes", None)
    numbers, names = _numbered(labels, classes, len(pixels))
    half, quarter = (0.5,) * pixels.shape[1], (0.25,) * pixels.shape[1]
    return ImageSet(name, "train", pixels, numbers, names, half, quarter, paths, pixels=elsewhere)


def _channels_first(images: npt.NDArray[Any] | Tensor) -> npt.NDArray[np.uint8]:
    """An array of images as uint8 [N, C, H, W]."""
    array = images.numpy(force=True) if isinstance(images, Tensor) else images
    if array.dtype == np.uint8 and array.ndim == 3:
        array = array[:, None]
    elif array.ndim == 4 and array.shape[1] not in CHANNELS and array.shape[3] in CHANNELS:
        array = array.transpose(0, 3, 1, 2)
    if array.dtype != np.uint8 or array.ndim != 4 or array.shape[1] not in CHANNELS:
        raise ValueError(
            "expected images of uint8, [N, H, W], [N, H, W, C] or [N, C, H, W] with 1 or 3 channels, got "
            f"{array.dtype} of shape {array.shape}"
        )
    return np.ascontiguousarray(array)


def _fitted(images: Any, shape: tuple[int, int] | None, labels: list[int | str] | None = None) -> npt.NDArray[np.uint8]:
    """Items one by one as RGB, uint8 [N, 3, H, W]; ``labels`` takes those of pairs."""
    count = len(images)
    if shape is None:
        shape, _ = size_for([_pillow(images[k])[0].size[::-1] for k in range(count)])
    out = room(count, shape[0] * shape[1]).reshape(count, 3, *shape)
    for k in range(count):
        image, label = _pillow(images[k])
        out[k] = to_array(image, shape, crop=True).transpose(2, 0, 1)
        if labels is not None and label is not None:
            labels.append(label)
    return out


def _pillow(item: Any) -> tuple[Any, int | str | None]:
    """An item as Pillow's image, upright, and its label."""
    from PIL import Image, ImageOps

    label = None
    if isinstance(item, (tuple, list)) and len(item) == 2:
        item, label = item
        label = label if isinstance(label, str) else int(label)
    if isinstance(item, Image.Image):
        return ImageOps.exif_transpose(item), label  # a copy
    array = item.numpy(force=True) if isinstance(item, Tensor) else item
    if not isinstance(array, np.ndarray):
        advice = 'give a column, as in data["image"], and labels=data["label"]' if isinstance(item, dict) else ""
        raise ValueError(f"expected images as Pillow's or as arrays, got {type(item).__name__}; {advice}".rstrip("; "))
    if array.dtype.kind == "f" and array.size and array.min() >= 0 and array.max() <= 1:
        array = np.rint(255 * array).astype(np.uint8)
    elif array.dtype != np.uint8:
        raise ValueError(
            f"expected images of uint8, or of floats from 0 to 1, got {array.dtype}; do not normalise them"
        )
    pixels = _channels_first(array[None])[0]
    return Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)), label


def _labels_at(labels: list[int | str], rows: list[int], count: int) -> list[int | str]:
    if len(labels) != count:
        raise ValueError(f"expected a label for each of {count} images, got {len(labels)}")
    return [labels[k] for k in rows]


def _numbered(
    labels: Iterable[int | str] | None, classes: Sequence[str] | None, count: int
) -> tuple[Tensor, tuple[str, ...]]:
    """Labels as int64 [N], and the names of the classes."""
    if labels is None:
        return torch.full((count,), -1, device="cpu"), ()
    given = [label if isinstance(label, str) else int(label) for label in labels]
    if len(given) != count:
        raise ValueError(f"expected a label for each of {count} images, got {len(given)}")
    words = sorted({label for label in given if isinstance(label, str)})
    if words:
        names = tuple(classes) if classes is not None else tuple(words)
        unknown = [label for label in given if label not in names]
        if unknown:
            raise ValueError(f"expected labels among the classes, got {unknown[0]!r}")
        given = [names.index(label) for label in given if isinstance(label, str)]
    else:
        names = tuple(classes) if classes is not None else tuple(map(str, range(max(map(int, given)) + 1)))
    return torch.tensor(given, device="cpu"), names
