"""What is known of a data set that its makers offer as files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from setwise.checks import see
from setwise.data.api import DataError
from setwise.data.fetching.limits import open_plain
from setwise.data.root import fetch_command

MB = 10**6


@dataclass(frozen=True)
class Archive:
    """A file of the makers, and their MD5."""

    url: str
    md5: str


@dataclass(frozen=True)
class Published:
    """A data set in files: how to recognise it, to check it and to get it.

    ``find(path)`` is the place of its files at or directly below ``path``, None if they are not there. ``verify(path)``
    raises a DataError unless they are complete, as far as the makers fixed what that is. An archive may unpack to
    ``most_bytes`` and ``most_files``, well above what the official ones need.
    """

    name: str
    find: Callable[[Path], Path | None]
    download: int  # bytes of the official archive, about
    verify: Callable[[Path], None] = lambda path: None
    archives: tuple[Archive, ...] = ()
    most_bytes: int = 400 * MB
    most_files: int = 100
    by_hand: str = ""  # how to get it where there are no archives

    def installed(self, root: Path) -> Path | None:
        """The folder that has it: root/NAME, by ``fetch`` or by hand, or root itself."""
        return next((place for place in (root / self.name, root) if place.is_dir() and self.find(place)), None)

    def place_in(self, path: Path) -> Path:
        """What ``find`` gives; raises where that is None."""
        place = self.find(path)
        if place is None:
            raise DataError(f"expected the files of {self.name} in {path}, got others; give another --source")
        return place

    def located(self, root: Path, source_path: Path | None) -> Path:
        """``source_path`` if a person named one, else where it is installed; raises if that is nowhere."""
        place = source_path or self.installed(root)
        if place is None:
            raise DataError(
                f"expected {self.name} in {root / self.name}, got none; run `{fetch_command(self.name, root)}`, or say "
                "where it is, by --root (root= in Python) or by its path in place of its name, "
                + see("how-to/your-data#by-name")
            )
        return place


def file_digest(path: Path, algorithm: str) -> str:
    """Hexadecimal digest of a file."""
    with open_plain(path) as file:
        return hashlib.file_digest(file, algorithm).hexdigest()
