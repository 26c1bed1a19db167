"""Which images lie in a folder, and what their places say of splits and classes. Nothing is opened here.

photos/*.jpg                        no classes
photos/a/*.jpg, photos/b/*.jpg      two or more folders, all images directly in them: classes
photos/2024/05/*.jpg, ...           any other nesting: no classes
photos/train/..., photos/test/...   splits (val in place of test); train/CLASS/... has classes, train/*.jpg none

Hidden files and folders do not count.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from setwise.checks import see
from setwise.data.api import DataError
from setwise.walking import OWN_SUFFIXES, SPLITS, Stat, Walk, images, is_own, walk

SEE = see("how-to/your-data#folder")


@dataclass
class Listing:
    """The images of one split of ``folder``, in order, and what else lies there."""

    folder: Path
    split: str
    paths: list[str] = field(default_factory=list)
    stats: list[Stat] = field(default_factory=list)  # of each: bytes, and when it was changed, in nanoseconds
    labels: list[int] = field(default_factory=list)  # -1 where there are no classes
    classes: tuple[str, ...] = ()
    unusable: list[tuple[str, str]] = field(default_factory=list)  # links and pipes, with the reason
    others: Counter[str] = field(default_factory=Counter)  # files that are no images, by their endings
    strays: int = 0  # images of no class, beside the folders of the classes

    @cached_property
    def names(self) -> list[str]:
        """The paths below the folder."""
        start = len(os.path.join(self.folder, ""))
        names = [path[start:] for path in self.paths]
        return names if os.sep == "/" else [name.replace(os.sep, "/") for name in names]

    def relative(self, path: str) -> str:
        """The path below the folder."""
        return path[len(os.path.join(self.folder, "")) :].replace(os.sep, "/")


def one_line(name: str) -> str:
    """A name for a list with one line a file."""
    return name.replace("\n", "\\n").replace("\r", "\\r")


def has_train(folder: Path) -> bool:
    """Whether the folder is made of splits: train has class folders, or nothing but test and val lies beside it."""
    train = folder / "train"
    return train.is_dir() and (bool(_folders(train)) or all(path.name in SPLITS for path in _folders(folder)))


def test_split(folder: Path) -> str | None:
    """The name of the split to test on, if the folder has one."""
    names = ("test", "val") if has_train(folder) else ()
    return next((name for name in names if (folder / name).is_dir()), None)


def has_images(folder: Path) -> bool:
    """Whether there is an image in it, by the names."""
    seen = Walk()
    return any(True for _ in images(str(folder), str(folder), seen)) or bool(seen.unusable)


def instead_of_images(folder: Path) -> str:
    """What lies in a folder without images, in words."""
    return _only(walk(folder, folder))


def list_split(folder: Path, split: str, *, follow_links: bool = False) -> Listing:
    """The images of "train", "test" or "val"; "test" may be in the folder val. Without splits all are train's."""
    found = Listing(folder, split)
    if not has_train(folder):
        if split != "train":
            raise _no_test(folder)
        inside = walk(folder, folder, follow_links=follow_links)
        if not inside.paths:
            raise _no_images(folder, found, inside)
        places = set(inside.places)
        one = os.path.join(folder, "").count(os.sep)  # separators in photos/a
        flat = all(place.count(os.sep) == one and place != str(folder) for place in places)
        return _labelled(found, [inside], sorted(map(os.path.basename, places)) if flat and len(places) > 1 else [])
    if split == "test":
        split = found.split = test_split(folder) or ""
    if not (folder / split).is_dir() or not split:
        raise _no_test(folder)
    names = [path.name for path in _folders(folder / "train")]
    walks = []
    for place in _folders(folder / split) if names else [folder / split]:
        if names and place.name not in names:
            raise DataError(f"expected the classes of {folder / 'train'}, got {place.name!r} in {folder / split} too")
        inside = walk(place, folder, follow_links=follow_links)
        if not inside.paths and not inside.unusable and (split == "train" or inside.others):
            raise _no_images(place, found, inside)
        walks.append(inside)
    if names:
        found.strays = sum(is_own(entry.name) for entry in os.scandir(folder / split) if entry.is_file())
    if not any(inside.paths or inside.unusable for inside in walks):
        raise DataError(f"expected images as {folder / split}/CLASS/*.png or *.jpg, got none; {SEE}")
    return _labelled(found, walks, names)


def _labelled(found: Listing, walks: Sequence[Walk], names: list[str]) -> Listing:
    number = {name: k for k, name in enumerate(names)}
    above = os.path.join(found.folder, "").count(os.sep) + has_train(found.folder)  # the class is the folder below it
    found.classes = tuple(names)
    for inside in walks:
        label = {place: number[place.split(os.sep)[above]] if names else -1 for place in set(inside.places)}
        found.paths += inside.paths
        found.stats += inside.stats
        found.labels += [label[place] for place in inside.places]
        found.unusable += inside.unusable
        found.others += inside.others
    return found


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _no_images(place: Path, found: Listing, inside: Walk) -> DataError:
    if inside.unusable:
        path, why = inside.unusable[0]
        return DataError(f"expected images in {place}, got {found.relative(path)}: {why}")
    expected = f"expected {', '.join(OWN_SUFFIXES)} files in {place}, got {_only(inside)}"
    return DataError(f"{expected}; convert them, or move the folder away, {SEE}")


def _only(found: Walk) -> str:
    return f"only {', '.join(sorted(found.others))}" if found.others else "no files"


def _no_test(folder: Path) -> DataError:
    return DataError(
        f"expected a folder test or val in {folder} beside train, got neither; --validation N keeps training images "
        f"apart, --no-evaluate needs none, {SEE}"
    )
