"""Any folder of images: train/CLASS/*.png|jpg|jpeg, and test/ or val/ of the same form."""

from __future__ import annotations

from pathlib import Path

import torch

from setwise.checks import check_option, see
from setwise.data.decode import RESIZE, is_image, read_image, read_images
from setwise.data.errors import DataError
from setwise.data.sets import DEFAULT_MEAN, DEFAULT_STD, ImageSet

SPLITS = ("train", "test", "val")


def is_folder(folder: Path) -> bool:
    """Whether ``folder`` has a train folder of class folders."""
    train = folder / "train"
    return train.is_dir() and any(path.is_dir() for path in train.iterdir())


def load(folder: Path, split: str, size: tuple[int, int] | None) -> ImageSet:
    """One split, in memory, as RGB; labels count the sorted class folders of train.

    ``split="test"`` takes val where there is no test folder. ``size`` = (height, width) resizes (bilinear); without it
    all images must be of one size, that of train. Mean 0.5 and std 0.25: nothing is known about the images.
    """
    check_option(split, SPLITS, "split")
    if split == "test" and not (folder / "test").is_dir():
        split = "val"
        if not (folder / "val").is_dir():
            raise DataError(
                f"expected a folder test or val in {folder}, one folder a class, got neither; without one, "
                "--validation N keeps training images apart, --no-evaluate needs none, "
                + see("how-to/your-data#folder")
            )
    train = _class_folders(folder / "train")
    classes = tuple(path.name for path in train)
    number = {name: k for k, name in enumerate(classes)}
    paths: list[Path] = []
    labels: list[int] = []
    for place in _class_folders(folder / split):
        if place.name not in number:
            raise DataError(f"expected the classes of {folder / 'train'}, got {place.name!r} in {folder / split} too")
        found = _images(place, empty=split != "train")
        paths += found
        labels += [number[place.name]] * len(found)
    if not paths:
        raise DataError(
            f"expected images as {folder / split}/CLASS/*.png or *.jpg, got none; {see('how-to/your-data#folder')}"
        )
    if split != "train" and size is None:
        _check_size(paths[0], _images(train[0])[0])
    return ImageSet(
        name=folder.name,
        split=split,
        images=torch.from_numpy(read_images(paths, size)),
        labels=torch.tensor(labels, device="cpu"),
        classes=classes,
        mean=(DEFAULT_MEAN,) * 3,
        std=(DEFAULT_STD,) * 3,
    )


def _images(place: Path, *, empty: bool = False) -> list[Path]:
    """The images of a class folder; ``empty`` allows one without any files. Folders within would be lost: an error."""
    within = (path.relative_to(place) for path in place.glob("*/**/*") if is_image(path))
    inner = next((path for path in within if not any(part.startswith(".") for part in path.parts)), None)
    if inner is not None:
        raise DataError(
            f"expected the images of a class in {place} itself, got {inner} there; move such images up, or their "
            f"folder beside the other classes, {see('how-to/your-data#folder')}"
        )
    if found := sorted(path for path in place.iterdir() if is_image(path)):
        return found
    others = [path for path in place.iterdir() if path.is_file() and not path.name.startswith(".")]
    if empty and not others:
        return []
    endings = ", ".join(sorted({path.suffix or "(no ending)" for path in others}))
    raise DataError(
        f"expected .png, .jpg or .jpeg files in {place}, got {f'only {endings}' if others else 'no files'}; "
        f"convert them, or move the folder away, {see('how-to/your-data#folder')}"
    )


def _check_size(image: Path, of_train: Path) -> None:
    got, expected = (read_image(path).shape[:2] for path in (image, of_train))
    if got != expected:
        raise DataError(
            f"expected {image} to be {expected[0]}x{expected[1]} (height x width) like {of_train}, "
            f"got {got[0]}x{got[1]}; {RESIZE}, {see('how-to/your-data#one-size')}"
        )


def _class_folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise DataError(
            f"expected a folder {folder} with one folder a class, got none; {see('how-to/your-data#folder')}"
        )
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
