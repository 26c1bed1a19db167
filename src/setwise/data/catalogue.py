"""What data sets there are, where they come from, and how one tells that a folder holds one."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from setwise.checks import check_option, see
from setwise.data import cifar, cuhk03, folder, tiny_imagenet
from setwise.data.errors import DataError
from setwise.data.limits import open_plain

MB = 10**6


@dataclass(frozen=True)
class Archive:
    """A file of the makers, and their MD5."""

    url: str
    md5: str


@dataclass(frozen=True)
class Entry:
    """A data set of the catalogue."""

    name: str
    what: str
    images: int
    shape: str
    classes: int
    download: int  # bytes of the official archive, about
    archives: tuple[Archive, ...] = ()
    # Well above what the official files need; beyond it something else is being unpacked.
    most_bytes: int = 400 * MB
    most_files: int = 100
    by_hand: str = ""  # why it cannot be fetched without a source


_TORONTO = "https://www.cs.toronto.edu/~kriz"
_ENTRIES = (
    Entry("digits", "handwriting", 1797, "1x8x8", 10, 0),
    Entry(
        name="cifar10",
        what="photos",
        images=60_000,
        shape="3x32x32",
        classes=10,
        download=170 * MB,
        archives=(
            Archive(f"{_TORONTO}/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
            Archive(f"{_TORONTO}/cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a"),
        ),
    ),
    Entry(
        name="cifar100",
        what="photos",
        images=60_000,
        shape="3x32x32",
        classes=100,
        download=169 * MB,
        archives=(
            Archive(f"{_TORONTO}/cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),
            Archive(f"{_TORONTO}/cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85"),
        ),
    ),
    Entry(
        name="tiny-imagenet",
        what="photos",
        images=110_000,
        shape="3x64x64",
        classes=200,
        download=248 * MB,
        archives=(Archive("http://cs231n.stanford.edu/tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de"),),
        most_bytes=1000 * MB,
        most_files=130_000,
    ),
    Entry(
        name="cuhk03",
        what="people",
        images=14_096,
        shape="3x128x64",
        classes=1467,
        download=1100 * MB,
        most_bytes=4000 * MB,
        most_files=60_000,
        by_hand=(
            "its makers send a link on request (the CUHK person re-identification page, CUHK03); "
            "then run `setwise data fetch cuhk03 --source cuhk-03.mat`"
        ),
    ),
)
CATALOGUE = {entry.name: entry for entry in _ENTRIES}


def entry_of(name: str) -> Entry:
    """The entry of that name; raises with the nearest one."""
    check_option(name, tuple(CATALOGUE), "the data set")
    return CATALOGUE[name]


def find(name: str, path: Path) -> Path | None:
    """Where the files of the data set ``name`` are, at or directly below ``path``; None if they are not there."""
    if name in cifar.SPECS:
        found = cifar.find(name, path)
        return found[0] if found else None
    if name == "tiny-imagenet":
        return tiny_imagenet.find(path)
    return path if name == "cuhk03" and cuhk03.find(path) is not None else None


def not_found(name: str, path: Path) -> DataError:
    """The error for a source that is another data set, or none."""
    return DataError(f"expected the files of {name} in {path}, got others; give another --source")


def recognise(path: Path) -> str:
    """Which data set lies at ``path``; "folder" for any folder of images."""
    for name in CATALOGUE:
        if find(name, path):
            return name
    if path.is_dir() and folder.is_folder(path):
        return "folder"
    if path.is_file():
        raise DataError(
            f"expected a folder or a .mat file, got {path}; unpack it: `setwise data fetch NAME --source {path}`"
        )
    if not path.exists():
        raise DataError(
            f"expected a data set at {path}, got no such file or folder; "
            "give the path where it is now, by --data on the command line"
        )
    raise DataError(
        f"expected CIFAR, tiny-ImageNet, CUHK-03 or train/CLASS/*.png|jpg at {path}, got none of them; "
        + see("how-to/your-data#folder")
    )


def verify(name: str, path: Path) -> None:
    """Raise unless ``path`` holds the data set ``name``, as far as its makers fixed what that is.

    CIFAR: every batch is read, and has its makers' checksum (CIFAR-100's binary ones have none). tiny-ImageNet: every
    class has its number of image files, and the annotations name all of val's; the images are not read. CUHK-03:
    cuhk-03.mat or a picture is there, no more; it may have fewer identities than the real set.
    """
    place = find(name, path)
    if place is None:
        raise not_found(name, path)
    if name in cifar.SPECS:
        for file in sorted(place.iterdir()):
            digest = cifar.SPECS[name].digests.get(file.name) if file.suffix == ".bin" else None
            if digest and file_digest(file, "sha1") != digest:  # python batches are known by theirs when they are read
                raise DataError(
                    f"expected {file} as its makers published it, got another checksum; {cifar.again(name)}"
                )
        for split in cifar.SPLITS:
            cifar.load(name, path, split)
    elif name == "tiny-imagenet":
        for split in ("train", "val"):
            tiny_imagenet.listing(path, split)


def file_digest(path: Path, algorithm: str) -> str:
    """Hexadecimal digest of a file."""
    with open_plain(path) as file:
        return hashlib.file_digest(file, algorithm).hexdigest()
