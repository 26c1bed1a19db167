"""Two forms of a data set: labelled images, or two views of the same identities. pairs.py has the third.

A source is a function that is registered under a name and gives one of them. Its keyword arguments are its options:

    @sw.register.data("stripes", about="Stripes in some directions.")
    def stripes(root: Path, split: str, *, count: int = 512) -> ImageSet: ...

``root`` is the folder of data sets, ``split`` "train", "test" or what else it has. A source that a person may also name
by a path takes ``source_path``, that path or None; formats/ has such. One that can leave pixels outside the memory
takes ``placement``, which says where they are to live. A source of a matched set gives all identities,
whatever the split: the library splits them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import Tensor

from setwise.checks import check_count, check_option

if TYPE_CHECKING:
    from setwise.data.pixels import Pixels

TRAIN_SHARE, VAL_SHARE = 0.70, 0.15
PARTS = ("train", "val", "test", "all")  # of a matched set
PADDING = -1


Where = Literal["auto", "resident", "mapped", "files"]


@dataclass(frozen=True)
class Placement:
    """Where decoded pixels are to live: in memory, in a file of decoded images, or in their files.

    "auto" is resident up to half of the available memory, or to ``most_bytes`` if they are less; then mapped if the
    disk has room for that, then files. ``wait``: resident pixels that a file has stay there until
    ``ImageSet.in_memory`` reads them.
    """

    pixels: Where = "auto"
    most_bytes: int | None = None
    wait: bool = False

    def __post_init__(self) -> None:
        """Raise unless there is such a place."""
        check_option(self.pixels, get_args(Where), "pixels")


class DataError(ValueError):
    """A data set is missing, damaged or not what its name says; the message names the file and what to do."""


@dataclass(frozen=True, eq=False, repr=False)
class ImageSet:
    """N labelled images of one split.

    ``images`` uint8 [N, C, H, W], ``labels`` int64 [N] with values in ``range(len(classes))``. ``mean`` and ``std``
    [C] normalise images in [0, 1]: ``(images / 255 - mean) / std``; the defaults are for colour images of which nobody
    published any. ``images`` may be mapped from a file: writing to it changes the tensor, never the file.

    ``pixels`` are the images where these are too many for the memory. Then ``images`` has a shape, on the device
    "meta", and no values: ``read`` gives some of them, wherever they are.

    Images without labels have no ``classes``, and the label -1. ``paths`` name the files, below their folder, where
    there are any. ``notes`` say, for people, how the images were read.
    """

    name: str
    split: str
    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.25, 0.25, 0.25)
    paths: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    pixels: Pixels | None = None

    def __post_init__(self) -> None:
        """Raise unless the parts fit together."""
        _check_images(self.images, self.mean, self.std)
        n = len(self.images)
        if self.paths and len(self.paths) != n:
            raise DataError(f"expected a path for each of {n} images, or none at all, got {len(self.paths)}")
        if self.labels.shape != (n,) or self.labels.dtype != torch.long:
            raise DataError(
                f"expected labels int64 of shape ({n},), got {self.labels.dtype} {tuple(self.labels.shape)}"
            )
        low, high = (int(self.labels.min()), int(self.labels.max())) if n else (0, 0)
        if n and not self.classes and (low, high) != (-1, -1):
            raise DataError(f"expected labels of -1 for images without classes, got {low} to {high}")
        if n and self.classes and not 0 <= low <= high < len(self.classes):
            raise DataError(f"expected labels from 0 to {len(self.classes) - 1}, got {low} to {high}")

    def __len__(self) -> int:
        """Number of images."""
        return len(self.images)

    def __repr__(self) -> str:
        """Name, split and sizes, not the pixels."""
        shape = "x".join(map(str, self.images.shape))
        return f"ImageSet({self.name!r}, split={self.split!r}, images={shape}, classes={len(self.classes)})"

    def read(self, rows: Tensor | slice) -> Tensor:
        """These images, uint8 [n, C, H, W], wherever they are."""
        return self.images[rows] if self.pixels is None else self.pixels[rows]

    def chunks(self, size: int) -> Iterator[Tensor]:
        """All images in order, ``size`` at a time."""
        if self.pixels is None:
            return iter(torch.split(self.images, size))
        rows = torch.split(torch.arange(len(self), device="cpu"), size)
        shape = self.images.shape[1:]
        return self.pixels.batches(rows, lambda n: torch.empty(n, *shape, dtype=torch.uint8, device="cpu"))

    def in_memory(self) -> ImageSet:
        """The same images, read if they are to be resident and wait in a file."""
        if self.pixels is None or not self.pixels.resident:
            return self
        return replace(self, images=self.pixels[:], pixels=None)

    def select(self, rows: Tensor, *, split: str) -> ImageSet:
        """The images ``rows`` (int64 [n]) alone, with their labels and paths."""
        paths = tuple(self.paths[i] for i in rows.tolist()) if self.paths else ()
        pixels = None if self.pixels is None else self.pixels.select(rows)
        images = _rows(self.images, rows) if pixels is None else self.images.new_empty(pixels.shape)
        return replace(self, split=split, images=images, labels=self.labels[rows], paths=paths, pixels=pixels)


@dataclass(frozen=True, eq=False, repr=False)
class MatchedSet:
    """Two views of the same N identities, each with one or more shots.

    ``images`` uint8 [M, C, H, W] holds every shot; row i of ``shots_a`` and ``shots_b``, int64 [N, S], lists the
    images of identity i in view A and in view B, the first ones first, padded with -1. Every identity has both views.
    """

    name: str
    split: str
    images: Tensor
    shots_a: Tensor
    shots_b: Tensor
    identities: tuple[str, ...]
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.25, 0.25, 0.25)

    def __post_init__(self) -> None:
        """Raise unless the parts fit together."""
        _check_images(self.images, self.mean, self.std)
        for name, shots in (("shots_a", self.shots_a), ("shots_b", self.shots_b)):
            if shots.dtype != torch.long or shots.ndim != 2 or len(shots) != len(self.identities) or not shots.shape[1]:
                raise DataError(
                    f"expected {name} int64 of shape ({len(self.identities)}, S), one row an identity, "
                    f"got {shots.dtype} {tuple(shots.shape)}"
                )
            if shots.numel() and not PADDING <= int(shots.min()) <= int(shots.max()) < len(self.images):
                raise DataError(f"expected {name} to index {len(self.images)} images, got {int(shots.max())}")
            missing = shots[:, 0] == PADDING
            if missing.any():
                raise DataError(f"expected every identity in both views, got {int(missing.sum())} without {name}")

    def __len__(self) -> int:
        """Number of identities."""
        return len(self.identities)

    def __repr__(self) -> str:
        """Name, split and sizes, not the pixels."""
        shape = "x".join(map(str, self.images.shape))
        return f"MatchedSet({self.name!r}, split={self.split!r}, identities={len(self)}, images={shape})"

    @property
    def first_a(self) -> Tensor:
        """The first shot of every identity in view A, uint8 [N, C, H, W]."""
        return self.images[self.shots_a[:, 0]]

    @property
    def first_b(self) -> Tensor:
        """The first shot of every identity in view B, uint8 [N, C, H, W]."""
        return self.images[self.shots_b[:, 0]]

    def select(self, rows: Tensor, *, split: str) -> MatchedSet:
        """The identities ``rows`` (int64 [n]) alone, with only the images that they use."""
        a, b = self.shots_a[rows], self.shots_b[rows]
        shots = torch.cat([a, b], dim=1)  # [n, S_A + S_B]
        mask = torch.zeros(len(self.images), dtype=torch.bool, device="cpu")
        mask[shots[shots != PADDING]] = True
        used = mask.nonzero().flatten()
        place = torch.full((len(self.images) + 1,), PADDING, device="cpu")  # one more, the last, for padding: -1
        place[used] = torch.arange(len(used), device="cpu")
        return replace(
            self,
            split=split,
            images=self.images[used],
            shots_a=place[a],
            shots_b=place[b],
            identities=tuple(self.identities[i] for i in rows.tolist()),
        )

    def labelled(self) -> ImageSet:
        """All shots as single images, with their identity as the label."""
        labels = torch.empty(len(self.images), dtype=torch.long, device="cpu")
        for shots in (self.shots_a, self.shots_b):
            rows, columns = (shots != PADDING).nonzero(as_tuple=True)
            labels[shots[rows, columns]] = rows
        return ImageSet(self.name, self.split, self.images, labels, self.identities, self.mean, self.std)

    def part(self, split: str, *, seed: int = 0) -> MatchedSet:
        """One of ``parts``, or, for "all", the whole."""
        return self if split == "all" else self.parts(seed=seed)[split]

    def parts(self, *, seed: int = 0) -> dict[str, MatchedSet]:
        """Random split by identity: 70 % train, 15 % val, the rest test, as ``split_sizes`` rounds."""
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed), device="cpu")
        train, val, _ = split_sizes(len(self))
        rows = {"train": order[:train], "val": order[train : train + val], "test": order[train + val :]}
        return {split: self.select(r.sort().values, split=split) for split, r in rows.items()}


def split_sizes(n: int) -> tuple[int, int, int]:
    """Identities in train, val, test: round(0.70 n), round(0.15 n), the rest; CUHK-03's 1,467 give 1,027, 220, 220."""
    train, val = round(TRAIN_SHARE * n), round(VAL_SHARE * n)
    return train, val, n - train - val


def matched_halves(image_set: ImageSet, *, instances: int | None = None, seed: int = 0) -> MatchedSet:
    """Any image set as a matching problem: view A is the left half of an image, view B its right half.

    ``instances`` of the images are drawn without replacement by ``seed``, in the order drawn; None keeps all of them
    in their order. The middle column of an odd width is in neither half.

    Examples:
        >>> halves = sw.data.matched_halves(sw.data.load("digits"), instances=100)
        >>> len(halves), halves.images.shape
        (100, torch.Size([200, 1, 8, 4]))
    """
    check_count(instances, "instances")
    n, width = len(image_set), image_set.images.shape[-1]
    if width < 2:
        raise ValueError(f"expected images at least two pixels wide, got {width}; they have no halves")
    if instances is None:
        rows = torch.arange(n, device="cpu")
    elif instances <= n:
        rows = torch.randperm(n, generator=torch.Generator().manual_seed(seed), device="cpu")[:instances]
    else:
        raise ValueError(
            f"expected at most the {n} images of {image_set.name}, got instances={instances}; "
            "None (--instances None) takes all"
        )
    whole, half = image_set.images[rows], width // 2
    shots = torch.arange(2 * len(rows), device="cpu").reshape(2, -1, 1)
    return MatchedSet(
        name=f"{image_set.name}-halves",
        split=image_set.split,
        images=torch.cat([whole[..., :half], whole[..., width - half :]]),
        shots_a=shots[0],
        shots_b=shots[1],
        identities=tuple(map(str, rows.tolist())),
        mean=image_set.mean,
        std=image_set.std,
    )


def _rows(images: Tensor, rows: Tensor) -> Tensor:
    """These images, eight bytes at a time where they can be read so: torch is twice as fast then."""
    eights = len(images) > 0 and images[0].numel() % 8 == 0
    if not eights or not images.is_contiguous() or images.storage_offset() % 8:
        return images[rows]
    return images.flatten(1).view(torch.int64)[rows].view(torch.uint8).view(-1, *images.shape[1:])


def _check_images(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
    if images.dtype != torch.uint8 or images.ndim != 4:
        raise DataError(f"expected images uint8 of shape (N, C, H, W), got {images.dtype} {tuple(images.shape)}")
    if not len(mean) == len(std) == images.shape[1]:
        raise DataError(f"expected a mean and a std for {images.shape[1]} channels, got {len(mean)} and {len(std)}")
