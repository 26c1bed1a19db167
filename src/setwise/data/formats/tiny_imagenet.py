"""tiny-ImageNet-200: the official zip's folders, decoded once into a file that is mapped into memory.

Many keep it with val's images sorted into folders of their classes, as train's are: read too, in the same order.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

import setwise.register as register
from setwise.checks import check_option
from setwise.data.api import DataError, ImageSet
from setwise.data.fetching.cache import cached
from setwise.data.fetching.limits import ANNOTATIONS as LONGEST_ANNOTATIONS
from setwise.data.fetching.limits import open_plain
from setwise.data.fetching.published import MB, Archive, Published
from setwise.data.formats.decode import is_image, read_images

SPLITS = ("train", "val", "test")
FOLDER = "tiny-imagenet-200"
SIZE = (64, 64)
CLASSES, TRAIN_PER_CLASS, VAL = 200, 500, 10_000
ANNOTATIONS = "val_annotations.txt"
AGAIN = "fetch it again with `setwise data fetch tiny-imagenet --force`"


@register.data("tiny-imagenet", about="Photos, 110,000 images of 200 classes, 3x64x64.")
def tiny_imagenet(root: Path, split: str, source_path: Path | None = None) -> ImageSet:
    """One split, its images mapped from a cache below ``root``.

    ``split="test"`` is val: the official test images have no labels. Classes are WordNet ids, sorted.
    """
    check_option(split, SPLITS, "split")
    split = "train" if split == "train" else "val"
    files, classes = listing(PUBLISHED.located(root, source_path), split)
    paths = [path for path, _ in files]

    def build(partial: Path) -> None:
        np.save(partial / "images.npy", read_images(paths, SIZE, exact=True))

    (images,) = cached(root, f"tiny-imagenet-{split}", paths[0], paths, ("images",), build)
    return ImageSet(
        name="tiny-imagenet",
        split=split,
        images=torch.from_numpy(images),
        labels=torch.tensor([label for _, label in files], device="cpu"),
        classes=classes,
    )


def find(folder: Path) -> Path | None:
    """Where the set is, at or directly below ``folder``."""
    for place in (folder / FOLDER, folder):
        if (place / "train").is_dir() and ((place / "val" / ANNOTATIONS).is_file() or _is_sorted(place)):
            return place
    return None


def _is_sorted(place: Path) -> bool:
    """Whether val has a folder for each of train's classes; and train as many of them as there are, and of images."""
    classes = _classes(place)
    return (
        len(classes) == CLASSES
        and all((place / "val" / name).is_dir() for name in classes)
        and len(_images(place / "train" / classes[0])) == TRAIN_PER_CLASS
    )


def _classes(place: Path) -> tuple[str, ...]:
    folders = (path for path in (place / "train").iterdir() if path.is_dir() and not path.name.startswith("."))
    return tuple(sorted(path.name for path in folders))


def _images(folder: Path) -> list[Path]:
    """The images of a class: officially in a folder of their own."""
    folder = folder / "images" if (folder / "images").is_dir() else folder
    return sorted(path for path in folder.iterdir() if is_image(path)) if folder.is_dir() else []


def listing(folder: Path, split: str) -> tuple[list[tuple[Path, int]], tuple[str, ...]]:
    """The files of a split ("train" or "val") with their labels, and the classes; raises unless it is complete."""
    place = find(folder)
    if place is None:
        raise DataError(f"expected {FOLDER} with train/ and val/{ANNOTATIONS} in {folder}, got none; {AGAIN}")
    classes = _classes(place)
    if len(classes) != CLASSES:
        raise DataError(f"expected {CLASSES} class folders in {place / 'train'}, got {len(classes)}; {AGAIN}")
    return (_train if split == "train" else _val)(place, classes), classes


def _in_folders(folder: Path, classes: tuple[str, ...]) -> list[tuple[Path, int]]:
    """The images that lie in folders of their classes, with their labels."""
    return [(path, label) for label, name in enumerate(classes) for path in _images(folder / name)]


def _train(place: Path, classes: tuple[str, ...]) -> list[tuple[Path, int]]:
    for name in classes:
        count = len(_images(place / "train" / name))
        if count != TRAIN_PER_CLASS:
            raise DataError(f"expected {TRAIN_PER_CLASS} images in {place / 'train' / name}, got {count}; {AGAIN}")
    return _in_folders(place / "train", classes)


def _val(place: Path, classes: tuple[str, ...]) -> list[tuple[Path, int]]:
    if _is_sorted(place):
        files = _in_folders(place / "val", classes)
        if len(files) != VAL:
            raise DataError(f"expected {VAL} images in the class folders of {place / 'val'}, got {len(files)}; {AGAIN}")
        return sorted(files, key=lambda pair: pair[0].name)
    annotations, folder = place / "val" / ANNOTATIONS, place / "val" / "images"
    with open_plain(annotations, most_bytes=LONGEST_ANNOTATIONS) as stream:
        rows = stream.read(LONGEST_ANNOTATIONS).decode("latin-1").split("\n")
    number = {name: k for k, name in enumerate(classes)}
    present = {path.name for path in folder.iterdir() if is_image(path)} if folder.is_dir() else set()
    labels: dict[str, int] = {}
    # Bytes, split at \n only: what is no text simply matches no file and no class.
    for line, row in enumerate(rows, start=1):
        if not row.strip():
            continue
        file, label, *_ = [*row.rstrip("\r").split("\t"), "", ""]
        # Only names that the folder itself lists: a row cannot point anywhere else.
        if file not in present or label not in number or file in labels:
            raise DataError(
                f"expected line {line} of {annotations} to name an image of {folder} and its class, once, "
                f"got {row[:80]!r}; {AGAIN}"
            )
        labels[file] = number[label]
    if len(labels) != VAL or len(present) != VAL:
        raise DataError(
            f"expected {VAL} images in {folder}, all of them in {annotations}, "
            f"got {len(present)} and {len(labels)}; {AGAIN}"
        )
    return [(folder / file, label) for file, label in sorted(labels.items())]


def verify(folder: Path) -> None:
    """Raise unless every class has its images, and val's annotations name all of val's. The images are not read."""
    for split in ("train", "val"):
        listing(folder, split)


PUBLISHED = Published(
    name="tiny-imagenet",
    find=find,
    verify=verify,
    download=248 * MB,
    archives=(Archive("http://cs231n.stanford.edu/tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de"),),
    most_bytes=1000 * MB,
    most_files=130_000,
)
