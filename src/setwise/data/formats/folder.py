"""Any folder of images: train/CLASS/*.png|jpg|jpeg, and test/ or val/ of the same form."""

from __future__ import annotations

from pathlib import Path

import torch

import setwise.register as register
from setwise.checks import check_option, see
from setwise.data.api import DataError, ImageSet
from setwise.data.formats.decode import Size, height_and_width, is_image, read_image, read_images

NAME = "image-folder"
SPLITS = ("train", "test", "val")


def is_folder(folder: Path) -> bool:
    """Whether ``folder`` has a train folder of class folders."""
    train = folder / "train"
    return train.is_dir() and any(path.is_dir() for path in train.iterdir())


@register.data(NAME, about="Your own images, train/CLASS/*.png|jpg: give the path of the folder in place of a name.")
def image_folder(root: Path, split: str, source_path: Path | None = None, *, size: Size | None = None) -> ImageSet:
    """One split, in memory, as RGB; labels count the sorted class folders of train.

    ``split="test"`` takes val where there is no test folder. ``size`` resizes (bilinear); without it all images must be
    of one size, that of train.
    """
    check_option(split, SPLITS, "split")
    if source_path is None:
        raise DataError(f"expected the path of a folder of images, got its kind, {NAME!r}; give the path instead")
    folder = source_path
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
        files = _images(place, empty=split != "train")
        paths += files
        labels += [number[place.name]] * len(files)
    if not paths:
        raise DataError(
            f"expected images as {folder / split}/CLASS/*.png or *.jpg, got none; {see('how-to/your-data#folder')}"
        )
    shape = None if size is None else height_and_width(size)
    of_train = shape is None and split != "train"
    if of_train:
        shape = read_image(_images(train[0])[0]).shape[:2]
    return ImageSet(
        name=folder.name,
        split=split,
        images=torch.from_numpy(read_images(paths, shape, exact=of_train)),
        labels=torch.tensor(labels, device="cpu"),
        classes=classes,
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
    if files := sorted(path for path in place.iterdir() if is_image(path)):
        return files
    others = [path for path in place.iterdir() if path.is_file() and not path.name.startswith(".")]
    if empty and not others:
        return []
    endings = ", ".join(sorted({path.suffix or "(no ending)" for path in others}))
    raise DataError(
        f"expected .png, .jpg or .jpeg files in {place}, got {f'only {endings}' if others else 'no files'}; "
        f"convert them, or move the folder away, {see('how-to/your-data#folder')}"
    )


def _class_folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise DataError(
            f"expected a folder {folder} with one folder a class, got none; {see('how-to/your-data#folder')}"
        )
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
