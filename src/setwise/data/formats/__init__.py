"""One file for each layout on a disk. Importing them registers our own data sources."""

from __future__ import annotations

from pathlib import Path

from setwise.checks import see
from setwise.data.api import DataError
from setwise.data.fetching.published import Published
from setwise.data.formats import (
    captions,
    cifar,
    cuhk03,
    digits,
    feature_pairs,
    folder,
    halves,
    multi30k,
    text_pairs,
    tiny_imagenet,
)
from setwise.data.formats.listing import has_images, has_train, instead_of_images
from setwise.walking import OWN_SUFFIXES

__all__ = ["PUBLISHED", "digits", "halves", "kind_of_path", "recognise"]

PUBLISHED: dict[str, Published] = {
    one.name: one for one in (*cifar.PUBLISHED.values(), tiny_imagenet.PUBLISHED, cuhk03.PUBLISHED, multi30k.PUBLISHED)
}
ENDINGS = {  # of your own files; the first that fits counts
    "captions.tsv": captions.NAME,
    ".tsv": text_pairs.NAME,
    ".tsv.gz": text_pairs.NAME,
    ".npy": feature_pairs.NAME,
}


def kind_of_path(path: str | Path) -> str:
    """The source that a path of one's own belongs to, by its ending: folders of images where it has no other."""
    return next((name for ending, name in ENDINGS.items() if str(path).lower().endswith(ending)), folder.NAME)


def recognise(path: Path) -> str:
    """The name of the source that can read what lies at ``path``."""
    for name, published in PUBLISHED.items():
        if published.find(path):
            return name
    if path.is_dir() and (has_train(path) or has_images(path)):
        return folder.NAME
    if path.is_file() and kind_of_path(path) != folder.NAME:
        return kind_of_path(path)
    if path.suffix.lower() in OWN_SUFFIXES and path.is_file():
        raise DataError(f"expected a folder of images, got one image, {path}; give its folder")
    if path.is_file():
        raise DataError(
            f"expected a folder, a .mat, .tsv or .npy file, got {path}; unpack an archive: "
            f"`setwise data fetch NAME --source {path}`"
        )
    if not path.exists():
        raise DataError(
            f"expected a data set at {path}, got no such file or folder; "
            "give the path where it is now; for a run that is there already, as --data PATH"
        )
    raise DataError(
        f"expected CIFAR, tiny-ImageNet, CUHK-03 or images ({', '.join(OWN_SUFFIXES)}) in {path}, got "
        f"{instead_of_images(path)}; convert others to one of these, {see('how-to/your-data#folder')}"
    )
