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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from setwise.checks import see
from setwise.data.api import DataError
from setwise.data.fetching.limits import PATH_PARTS
from setwise.data.formats.decode import OWN_SUFFIXES

Stat = tuple[int, int]
SPLITS = ("train", "test", "val")
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
    seen = Listing(folder, "train")
    return any(True for _ in _walk(folder, seen, follow_links=False)) or bool(seen.unusable)


def instead_of_images(folder: Path) -> str:
    """What lies in a folder without images, in words."""
    seen = Listing(folder, "train")
    for _ in _walk(folder, seen, follow_links=False):
        pass
    return _only(seen)


def list_split(folder: Path, split: str, *, follow_links: bool = False) -> Listing:
    """The images of "train", "test" or "val"; "test" may be in the folder val. Without splits all are train's."""
    found = Listing(folder, split)
    if not has_train(folder):
        if split != "train":
            raise _no_test(folder)
        files = _sorted(_walk(folder, found, follow_links=follow_links))
        depths = {path.count(os.sep) for path, _ in files}
        two = os.path.join(folder, "").count(os.sep) + 1  # separators in photos/a/1.jpg
        names = sorted({_parent(path) for path, _ in files}) if depths == {two} else []
        if not files:
            raise _no_images(folder, found)
        return _labelled(found, files, names if len(names) > 1 else [])
    if split == "test":
        split = found.split = test_split(folder) or ""
    if not (folder / split).is_dir() or not split:
        raise _no_test(folder)
    names = [path.name for path in _folders(folder / "train")]
    files = []
    for place in _folders(folder / split) if names else [folder / split]:
        if names and place.name not in names:
            raise DataError(f"expected the classes of {folder / 'train'}, got {place.name!r} in {folder / split} too")
        inside = Listing(folder, split)
        here = _sorted(_walk(place, inside, follow_links=follow_links))
        if not here and not inside.unusable and (split == "train" or inside.others):
            raise _no_images(place, inside)
        files += here
        found.unusable += inside.unusable
        found.others += inside.others
    if names:
        found.strays = sum(_is_own(entry.name) for entry in os.scandir(folder / split) if entry.is_file())
    if not files and not found.unusable:
        raise DataError(f"expected images as {folder / split}/CLASS/*.png or *.jpg, got none; {SEE}")
    return _labelled(found, files, names)


def _labelled(found: Listing, files: list[tuple[str, Stat]], names: list[str]) -> Listing:
    number = {name: k for k, name in enumerate(names)}
    above = os.path.join(found.folder, "").count(os.sep) + has_train(found.folder)  # the class is the folder below it
    found.paths, found.stats, found.classes = [path for path, _ in files], [stat for _, stat in files], tuple(names)
    found.labels = [number[path.split(os.sep)[above]] if names else -1 for path in found.paths]
    return found


def _sorted(files: Iterable[tuple[str, Stat]]) -> list[tuple[str, Stat]]:
    """By folders first: photos/a/1.jpg before photos/a-b/1.jpg."""
    return sorted(files, key=lambda file: file[0].replace(os.sep, "\0"))  # which no name has, and no letter is below


def _parent(path: str) -> str:
    return path.rsplit(os.sep, 2)[-2]


def _walk(
    place: str | Path, found: Listing, *, follow_links: bool, above: frozenset[str] = frozenset()
) -> Iterator[tuple[str, Stat]]:
    """The images in ``place`` and below. Links out of the folder are refused, so are links to folders, unless followed.

    ``above``: the folders on the way here, so that links cannot lead in circles.
    """
    above |= {os.path.realpath(place)}
    with os.scandir(place) as entries:
        for entry in entries:
            path = entry.path
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                if entry.is_symlink() and not follow_links:
                    found.unusable.append((path, "a link to a folder; --follow-links reads it"))
                elif os.path.realpath(path) in above:
                    found.unusable.append((path, "a link to a folder that it lies in"))
                elif path.count(os.sep) - str(found.folder).count(os.sep) > PATH_PARTS:
                    found.unusable.append((path, f"more than {PATH_PARTS} folders deep"))
                else:
                    yield from _walk(path, found, follow_links=follow_links, above=above)
            elif not _is_own(entry.name):
                found.others[os.path.splitext(entry.name)[1].lower() or "(no ending)"] += 1
            elif not entry.is_file():
                found.unusable.append((path, "a link to nothing" if entry.is_symlink() else "a pipe or device"))
            elif entry.is_symlink() and not follow_links and not _inside(path, found.folder):
                found.unusable.append((path, "a link out of the folder; --follow-links reads it"))
            else:
                status = entry.stat()
                yield path, (status.st_size, status.st_mtime_ns)


def _inside(link: str, folder: Path) -> bool:
    return Path(os.path.realpath(link)).is_relative_to(os.path.realpath(folder))


def _is_own(name: str) -> bool:
    return name.lower().endswith(OWN_SUFFIXES) and not name.startswith(".")


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _no_images(place: Path, found: Listing) -> DataError:
    if found.unusable:
        path, why = found.unusable[0]
        return DataError(f"expected images in {place}, got {found.relative(path)}: {why}")
    expected = f"expected {', '.join(OWN_SUFFIXES)} files in {place}, got {_only(found)}"
    return DataError(f"{expected}; convert them, or move the folder away, {SEE}")


def _only(found: Listing) -> str:
    return f"only {', '.join(sorted(found.others))}" if found.others else "no files"


def _no_test(folder: Path) -> DataError:
    return DataError(
        f"expected a folder test or val in {folder} beside train, got neither; --validation N keeps training images "
        f"apart, --no-evaluate needs none, {SEE}"
    )
