"""CIFAR-10 and CIFAR-100, in the python and in the binary layout of the official archives."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

import setwise.register as register
from setwise.checks import check_option
from setwise.data.api import DataError, ImageSet
from setwise.data.fetching.published import MB, Archive, Published, file_digest
from setwise.data.formats.pickles import read_batch

TORONTO = "https://www.cs.toronto.edu/~kriz"
SPLITS = ("train", "test")
PIXELS = 3 * 32 * 32
Layout = Literal["binary", "python"]

CLASSES_10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_FINE = (
    "apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can "
    "castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin "
    "elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster "
    "man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck "
    "pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk "
    "skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger "
    "tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm"
)
CLASSES_100 = tuple(_FINE.split())


@dataclass(frozen=True)
class Spec:
    """What the makers' files of one of the two sets look like."""

    name: str
    classes: tuple[str, ...]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    folders: dict[Layout, str]
    files: dict[str, tuple[str, ...]]  # of each split, without the ".bin" of the binary layout
    records: dict[str, int]  # images in one file of each split
    label_bytes: int  # in a binary record; the last of them is the (fine) label
    label_key: str  # in a python batch
    archives: tuple[Archive, ...]
    digests: dict[str, str]  # of the makers' files: MD5 of the python, SHA-1 of the binary ones


CIFAR10 = Spec(
    name="cifar10",
    classes=CLASSES_10,
    mean=(0.491, 0.482, 0.447),
    std=(0.247, 0.243, 0.262),
    folders={"binary": "cifar-10-batches-bin", "python": "cifar-10-batches-py"},
    files={"train": tuple(f"data_batch_{k}" for k in range(1, 6)), "test": ("test_batch",)},
    records={"train": 10_000, "test": 10_000},
    label_bytes=1,
    label_key="labels",
    archives=(
        Archive(f"{TORONTO}/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
        Archive(f"{TORONTO}/cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a"),
    ),
    digests={
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
        "data_batch_1.bin": "aadd24acce27caa71bf4b10992e9e7b2d74c2540",
        "data_batch_2.bin": "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
        "data_batch_3.bin": "1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
        "data_batch_4.bin": "aab85764eb3584312d3c7f65fd2fd016e36a258e",
        "data_batch_5.bin": "26e2849e66a845b7f1e4614ae70f4889ae604628",
        "test_batch.bin": "67eb016db431130d61cd03c7ad570b013799c88c",
    },
)
CIFAR100 = Spec(
    name="cifar100",
    classes=CLASSES_100,
    mean=(0.507, 0.487, 0.441),
    std=(0.267, 0.256, 0.276),
    folders={"binary": "cifar-100-binary", "python": "cifar-100-python"},
    files={"train": ("train",), "test": ("test",)},
    records={"train": 50_000, "test": 10_000},
    label_bytes=2,
    label_key="fine_labels",
    archives=(
        Archive(f"{TORONTO}/cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),
        Archive(f"{TORONTO}/cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85"),
    ),
    digests={"train": "16019d7e3df5f24257cddd939b257f8d", "test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
)
SPECS = {spec.name: spec for spec in (CIFAR10, CIFAR100)}


@register.data("cifar10", about="Photos, 60,000 images of 10 classes, 3x32x32.")
def cifar10(root: Path, split: str, source_path: Path | None = None) -> ImageSet:
    """CIFAR-10."""
    return read("cifar10", PUBLISHED["cifar10"].located(root, source_path), split)


@register.data("cifar100", about="Photos, 60,000 images of 100 classes, 3x32x32.")
def cifar100(root: Path, split: str, source_path: Path | None = None) -> ImageSet:
    """CIFAR-100 with its 100 fine labels."""
    return read("cifar100", PUBLISHED["cifar100"].located(root, source_path), split)


def find(name: str, folder: Path) -> Path | None:
    """Where the batches are, at or directly below ``folder``."""
    batches = _find(SPECS[name], folder)
    return batches[0] if batches else None


def read(name: str, folder: Path, split: str) -> ImageSet:
    """One split, read from the batches at or below ``folder``."""
    check_option(split, SPLITS, "split")
    spec = SPECS[name]
    batches = _find(spec, folder)
    if batches is None:
        raise DataError(f"expected {' or '.join(spec.folders.values())} in {folder}, got neither")
    place, layout = batches
    count, files = spec.records[split], _files(spec, split, layout)
    # One array for all batches, filled one by one: the peak is one batch above what is returned.
    images = np.empty((count * len(files), PIXELS), np.uint8)
    labels = np.empty(count * len(files), np.int64)
    for k, file in enumerate(files):
        path, rows = place / file, slice(k * count, (k + 1) * count)
        if not path.is_file():
            raise DataError(f"expected {path}, got no such file; {_fetch_again(spec)}")
        images[rows], labels[rows] = _read_binary(path, spec, count) if layout == "binary" else _read_python(path, spec)
        if labels[rows].max(initial=0) >= len(spec.classes):
            raise DataError(f"expected labels below {len(spec.classes)} in {path}, got others; {_fetch_again(spec)}")
    return ImageSet(
        name=name,
        split=split,
        images=torch.from_numpy(images).reshape(-1, 3, 32, 32),
        labels=torch.from_numpy(labels),
        classes=spec.classes,
        mean=spec.mean,
        std=spec.std,
    )


def verify(name: str, folder: Path) -> None:
    """Raise unless every batch can be read and has its makers' checksum; CIFAR-100's binary ones have none."""
    spec, place = SPECS[name], find(name, folder)
    for file in sorted(place.iterdir()) if place else ():
        digest = spec.digests.get(file.name) if file.suffix == ".bin" else None
        if digest and file_digest(file, "sha1") != digest:  # the checksum of a python batch is compared as it is read
            raise DataError(f"expected {file} as its makers published it, got another checksum; {_fetch_again(spec)}")
    for split in SPLITS:
        read(name, folder, split)


def _fetch_again(spec: Spec) -> str:
    """What to do about a damaged file."""
    return f"it is damaged: fetch it again with `setwise data fetch {spec.name} --force`"


def _find(spec: Spec, folder: Path) -> tuple[Path, Layout] | None:
    """Their place and layout, binary before python."""
    layouts: tuple[Layout, ...] = ("binary", "python")
    for layout in layouts:
        for place in (folder / spec.folders[layout], folder):
            if any((place / file).is_file() for split in SPLITS for file in _files(spec, split, layout)):
                return place, layout
    return None


def _files(spec: Spec, split: str, layout: Layout) -> tuple[str, ...]:
    return tuple(f"{file}.bin" if layout == "binary" else file for file in spec.files[split])


def _read_binary(path: Path, spec: Spec, count: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    record = spec.label_bytes + PIXELS
    if (size := path.stat().st_size) != count * record:
        raise DataError(
            f"expected {path} of {count * record:,} bytes, {count:,} records of {record}, got {size:,}; "
            + _fetch_again(spec)
        )
    rows = np.fromfile(path, np.uint8, count=count * record).reshape(count, record)
    return rows[:, spec.label_bytes :], rows[:, spec.label_bytes - 1]


def _read_python(path: Path, spec: Spec) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    batch = read_batch(path, spec.digests[path.name])
    return batch[b"data"], np.array(batch[spec.label_key.encode()], np.int64)


PUBLISHED = {
    name: Published(name, partial(find, name), 170 * MB, partial(verify, name), spec.archives)
    for name, spec in SPECS.items()
}
