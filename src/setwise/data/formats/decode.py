"""Read PNG and JPEG files with Pillow. An error names the file and what is wrong with it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from setwise.checks import see
from setwise.data.api import DataError
from setwise.data.fetching.limits import IMAGE_FILE, IMAGE_PIXELS, LARGEST_SIZE, PIXELS_PER_BYTE, open_plain, set_bytes
from setwise.data.progress import progress_bar

Size = int | tuple[int, int]  # of both sides, or (height, width)
SUFFIXES = (".png", ".jpg", ".jpeg")
# Pillow's other readers are many, old, and not needed.
FORMATS = ("PNG", "JPEG")
# Eight bits a channel or fewer; Pillow would clip sixteen, not scale them.
MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")
RESIZE = "resize the files, or in Python pass size=(height, width)"
SHOW_PROGRESS_FROM = 2_000  # images; fewer take about a second


def height_and_width(size: Size) -> tuple[int, int]:
    """``size`` as (height, width)."""
    pair = size if isinstance(size, tuple) else (size, size)
    if not 1 <= min(pair) <= max(pair) <= LARGEST_SIZE:
        raise ValueError(
            f"expected size to be (height, width) or one number for both, 1 to {LARGEST_SIZE} each, got {size!r}"
        )
    return pair


def is_image(path: Path) -> bool:
    """Whether the name says PNG or JPEG, and is not hidden."""
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def read_image(path: Path, size: tuple[int, int] | None = None) -> npt.NDArray[np.uint8]:
    """One image as RGB, uint8 [H, W, 3], resized (bilinear) to ``size`` = (height, width) if that differs."""
    with _opened(path) as image:
        return to_array(image, size)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open an image within the limits. Only its header is read here, not its pixels."""
    from PIL import Image

    try:
        with open_plain(path, most_bytes=IMAGE_FILE) as file, Image.open(file, formats=FORMATS) as image:
            pixels, length = image.width * image.height, os.fstat(file.fileno()).st_size
            if pixels > IMAGE_PIXELS:
                raise ValueError(f"{image.width} x {image.height} pixels, more than {IMAGE_PIXELS:,}")
            if pixels > length * PIXELS_PER_BYTE["PNG" if image.format == "PNG" else "JPEG"]:
                raise ValueError(f"{image.width} x {image.height} pixels in {length:,} bytes, which cannot hold them")
            yield image
    except DataError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"expected an image at {path}, got no such file; fetch the data set again") from error
    except Exception as error:  # Pillow's decoders raise a dozen unrelated types on damaged bytes.
        raise DataError(
            f"expected {path} to be a whole PNG or JPEG image, got {type(error).__name__}: {error}; "
            "replace the file or fetch the data set again"
        ) from error


def to_array(image: Any, size: tuple[int, int] | None) -> npt.NDArray[np.uint8]:
    """A Pillow image as RGB, uint8 [H, W, 3], resized (bilinear) to ``size`` = (height, width) if that differs."""
    from PIL import Image, ImageOps

    if image.mode not in MODES:
        raise ValueError(f"pixels of mode {image.mode}, not eight bits a channel")
    ImageOps.exif_transpose(image, in_place=True)  # upright, as every viewer shows it
    if image.mode != "RGB":
        image = image.convert("RGB")
    if size is not None and image.size != size[::-1]:
        image = image.resize(size[::-1], Image.Resampling.BILINEAR)
    return np.asarray(image, np.uint8)


def read_images(paths: Sequence[Path], size: tuple[int, int] | None, *, exact: bool = False) -> npt.NDArray[np.uint8]:
    """All images as uint8 [N, 3, H, W].

    Without ``size`` they must all be as large as the first one; with ``exact`` they must be of ``size`` already.
    """
    if not paths:
        raise DataError("expected at least one image, got none; nothing says how large they are")
    resize = None if exact else size
    if size is not None:
        out = _room(len(paths), size[0] * size[1])
    else:
        with _opened(paths[0]) as image:
            out = _room(len(paths), image.width * image.height)  # before a pixel of them is decoded
            size = to_array(image, None).shape[:2]
    out = out.reshape(len(paths), 3, *size)
    with progress_bar(shown=len(paths) >= SHOW_PROGRESS_FROM) as bar:
        task = bar.add_task("decoding images", total=len(paths))
        for k, path in enumerate(paths):
            with _opened(path) as image:
                # The header tells another number of pixels. A photo on its side has the same number.
                decode = resize is not None or image.width * image.height == size[0] * size[1]
                pixels = to_array(image, resize) if decode else None
                shape = image.size[::-1] if pixels is None else pixels.shape[:2]
            if pixels is None or shape != size:
                raise DataError(
                    f"expected {path} to be {size[0]}x{size[1]} (height x width) like the others, got "
                    f"{shape[0]}x{shape[1]}; {RESIZE}, or fetch the data set again, {see('how-to/your-data#one-size')}"
                )
            out[k] = pixels.transpose(2, 0, 1)
            bar.advance(task)
    return out


def _room(count: int, pixels: int) -> npt.NDArray[np.uint8]:
    """Memory for RGB images [N, 3, pixels]; raises if there is not enough."""
    needed, most = 3 * count * pixels, set_bytes()
    limit = f"{most:,} bytes of memory"
    try:
        if needed <= most:
            return np.empty((count, 3, pixels), np.uint8)
    except MemoryError:
        limit = "the memory that this process may have"
    raise DataError(
        f"expected images that take at most {limit}, got {count:,} of {pixels:,} pixels, which take {needed:,} bytes; "
        f"{RESIZE}, or use fewer, {see('how-to/your-data#limits')}"
    )
