"""Read images with Pillow: PNG, JPEG, WebP, GIF (the first frame), BMP, TIFF. An error names the file and the reason.

Every image becomes RGB with eight bits a channel, upright as its EXIF tag says. Of sixteen bits the upper eight stay,
as Pillow does it for colours. What is transparent lies on white.
"""

from __future__ import annotations

import ctypes
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from setwise.checks import see
from setwise.data.api import DataError
from setwise.data.fetching.limits import IMAGE_FILE, IMAGE_PIXELS, LARGEST_SIZE, PIXELS_PER_BYTE, open_plain, set_bytes
from setwise.data.progress import progress_bar
from setwise.walking import SUFFIXES

Size = int | tuple[int, int]  # of both sides, or (height, width)
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
MODES = ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "CMYK", "YCbCr")  # eight bits a channel or fewer
ORIENTATION, ON_ITS_SIDE = 0x0112, (5, 6, 7, 8)  # the EXIF tag, and its values that exchange height and width
RESIZE = "give a smaller --size (size= in Python), such as 64 or 128x64 (height x width)"
SPARE = 2  # a JPEG is halved while it stays this many times as high and wide as what it is resized to
LARGE = 2**24  # pixels; processes that decode images beyond take turns
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


def read_image(
    path: str | Path,
    size: tuple[int, int] | None = None,
    *,
    crop: bool = False,
    turn: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> npt.NDArray[np.uint8]:
    """One image as RGB, uint8 [H, W, 3], resized (bilinear) to ``size`` = (height, width) if that differs.

    ``crop``: see ``to_array``; then the decoder itself halves large JPEGs. Images that take much memory are decoded
    within ``turn()``.
    """
    from PIL import Image

    with _opened(path) as image:
        small = None
        if crop and size is not None and image.format in ("JPEG", "MPO"):
            form, whole = size if _swaps_sides(image) else size[::-1], image.size  # width, height, as stored
            small = image.draft(None, (SPARE * form[0], SPARE * form[1]))  # halved while it stays that large
        with turn() if image.width * image.height > LARGE else nullcontext():
            if small is None or image.size == whole:
                return to_array(image, size, crop=crop)
            # The last row and column may be of less than a whole pixel: the decoder says how much is in the picture.
            box = _around_centre(small[1][2:], form)
            image = image if image.mode == "RGB" else image.convert("RGB")
            return to_array(image.resize(form, Image.Resampling.BILINEAR, box=box), None)


def _around_centre(size: tuple[float, float], form: tuple[int, int]) -> tuple[float, float, float, float]:
    """The largest box of that form in an image of that size, both (width, height): left, top, right, bottom."""
    scale = min(size[0] / form[0], size[1] / form[1])
    width, height = scale * form[0], scale * form[1]
    left, top = (size[0] - width) / 2, (size[1] - height) / 2
    return max(0.0, left), max(0.0, top), min(size[0], left + width), min(size[1], top + height)


@contextmanager
def _opened(path: str | Path) -> Iterator[Any]:
    """Open an image within the limits. Only its header is read here, not its pixels."""
    from PIL import Image

    try:
        with open_plain(path, most_bytes=IMAGE_FILE) as file, Image.open(file, formats=FORMATS) as image:
            pixels, length = image.width * image.height, os.fstat(file.fileno()).st_size
            if pixels > IMAGE_PIXELS:
                raise ValueError(f"{image.width} x {image.height} pixels, more than {IMAGE_PIXELS:,}")
            if pixels > length * PIXELS_PER_BYTE[image.format if image.format in FORMATS else "JPEG"]:  # not "MPO"
                raise ValueError(f"{image.width} x {image.height} pixels in {length:,} bytes, which cannot hold them")
            yield image
    except DataError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"expected an image at {path}, got no such file; fetch the data set again") from error
    except Exception as error:  # Pillow's decoders raise a dozen unrelated types on damaged bytes.
        raise DataError(
            f"expected {path} to be a whole image, got {type(error).__name__}: {error}; "
            "replace the file or fetch the data set again"
        ) from error


def to_array(image: Any, size: tuple[int, int] | None, *, crop: bool = False) -> npt.NDArray[np.uint8]:
    """A Pillow image as RGB, uint8 [H, W, 3], resized (bilinear) to ``size`` = (height, width) if that differs.

    ``crop`` keeps its proportions: the largest part of that form around its centre is resized.
    """
    from PIL import Image, ImageOps

    if image.mode not in MODES and not image.mode.startswith("I;16"):
        raise ValueError(f"pixels of mode {image.mode}, whose range is unknown; eight or sixteen bits can be read")
    ImageOps.exif_transpose(image, in_place=True)  # upright, as every viewer shows it
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGB", image.size, "white")
        white.paste(image, mask=image)
        image = white
    elif image.mode != "RGB":
        image = image.convert("RGB")
    if size is not None and image.size != size[::-1]:
        bilinear = Image.Resampling.BILINEAR
        image = ImageOps.fit(image, size[::-1], bilinear) if crop else image.resize(size[::-1], bilinear)
    return np.asarray(image, np.uint8)


def read_images(paths: Sequence[Path], size: tuple[int, int] | None, *, exact: bool = False) -> npt.NDArray[np.uint8]:
    """All images as uint8 [N, 3, H, W].

    Without ``size`` they must all be as large as the first one; with ``exact`` they must be of ``size`` already.
    """
    if not paths:
        raise DataError("expected at least one image, got none; nothing says how large they are")
    resize = None if exact else size
    if size is not None:
        out = room(len(paths), size[0] * size[1])
    else:
        with _opened(paths[0]) as image:
            out = room(len(paths), image.width * image.height)  # before a pixel of them is decoded
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


def image_size(path: str | Path) -> tuple[int, int]:
    """Height and width of an image that stands upright, from its header."""
    with _opened(path) as image:
        width, height = image.size
        return (width, height) if _swaps_sides(image) else (height, width)


def _swaps_sides(image: Any) -> bool:
    """Whether the EXIF tag exchanges height and width."""
    # Pillow looks for a PNG's EXIF tag behind its pixels, and turns the size of a TIFF itself.
    tagged = image.format not in ("PNG", "TIFF") or "exif" in image.info
    return tagged and image.getexif().get(ORIENTATION) in ON_ITS_SIDE


def format_and_size(
    path: str | Path, *, turn: Callable[[], AbstractContextManager[None]] = nullcontext
) -> tuple[str, tuple[int, int]]:
    """The format of an image by its content, its height and width; every pixel is decoded."""
    with _opened(path) as image:
        form = image.format
        with turn() if image.width * image.height > LARGE else nullcontext():
            height, width, _ = to_array(image, None).shape
    return form, (height, width)


@contextmanager
def quiet_pillow() -> Iterator[None]:
    """No warnings of Pillow about files that it can read after all, and no lines of libtiff on stderr."""
    before = _hush_libtiff(None)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if before is not None:
            _hush_libtiff(before)


def _hush_libtiff(handler: int | None) -> int | None:
    """Give Pillow's libtiff another function for its errors, none to say nothing; returns the one before.

    libtiff prints them itself, beside the exception that Pillow raises. Where it is built into Pillow it keeps its own.
    """
    from PIL import _imaging

    try:
        change = ctypes.CDLL(_imaging.__file__).TIFFSetErrorHandler
    except (AttributeError, OSError):
        return None
    change.argtypes, change.restype = [ctypes.c_void_p], ctypes.c_void_p
    before: int | None = change(handler)
    return before


def reason(error: DataError) -> str:
    """What is wrong with an image, in a few words, without its path."""
    from PIL import UnidentifiedImageError

    cause = error.__cause__
    if isinstance(cause, UnidentifiedImageError):  # its own words have the path
        return f"its content is none of {', '.join(FORMATS)}"
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return str(error if cause is None else cause) or type(cause).__name__


def room(count: int, pixels: int) -> npt.NDArray[np.uint8]:
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
