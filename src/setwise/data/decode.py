"""PNG and JPEG files to arrays, with Pillow; whatever is wrong with a file is an error that names it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from setwise.checks import see
from setwise.data.errors import DataError

if TYPE_CHECKING:
    from rich.progress import Progress

SUFFIXES = (".png", ".jpg", ".jpeg")
# Pillow's other readers are many, old, and not needed.
FORMATS = ("PNG", "JPEG")
# Eight bits a channel or fewer; Pillow would clip sixteen, not scale them.
MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")
RESIZE = "resize the files, or in Python pass size=(height, width)"
SHOW_PROGRESS_FROM = 2_000  # images; fewer take about a second


def is_image(path: Path) -> bool:
    """Whether the name says PNG or JPEG, and is not hidden."""
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def read_image(path: Path, size: tuple[int, int] | None = None) -> npt.NDArray[np.uint8]:
    """One image as RGB, uint8 [H, W, 3], resized (bilinear) to ``size`` = (height, width) if that differs."""
    from PIL import Image

    try:
        with warnings.catch_warnings():
            # Pillow warns from 89 million pixels and refuses from twice that; refuse from the first.
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path, formats=FORMATS) as image:
                return to_array(image, size)
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
    image = ImageOps.exif_transpose(image).convert("RGB")  # upright, as every viewer shows it
    if size is not None and image.size != size[::-1]:
        image = image.resize(size[::-1], Image.Resampling.BILINEAR)
    return np.asarray(image, np.uint8)


def read_images(paths: Sequence[Path], size: tuple[int, int] | None, *, exact: bool = False) -> npt.NDArray[np.uint8]:
    """All images as uint8 [N, 3, H, W].

    Without ``size`` they must all be as large as the first one; with ``exact`` they must be of ``size`` already.
    """
    resize = None if exact else size
    if size is None:
        if not paths:
            raise DataError("expected at least one image, got none; nothing says how large they are")
        size = read_image(paths[0]).shape[:2]
    out = np.empty((len(paths), 3, *size), np.uint8)
    bar, progress = progress_bar(len(paths) >= SHOW_PROGRESS_FROM)
    with bar:
        task = progress.add_task("decoding images", total=len(paths)) if progress else None
        for k, path in enumerate(paths):
            image = read_image(path, resize)
            if image.shape[:2] != size:
                raise DataError(
                    f"expected {path} to be {size[0]}x{size[1]} (height x width) like the others, "
                    f"got {image.shape[0]}x{image.shape[1]}; "
                    + ("fetch the data set again" if exact else f"{RESIZE}, {see('how-to/your-data#one-size')}")
                )
            out[k] = image.transpose(2, 0, 1)
            if progress and task is not None and k % 100 == 0:
                progress.update(task, completed=k)
    return out


def progress_bar(shown: bool) -> tuple[AbstractContextManager[Any], Progress | None]:
    """A rich progress bar on stderr, or nothing where nobody looks."""
    if not shown:
        return nullcontext(), None
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
    return bar, bar
