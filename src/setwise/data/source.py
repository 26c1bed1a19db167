"""Fetch, verify and install data sets: whole or not at all, one process at a time.

root/NAME/                 an installed data set, with its manifest
root/.NAME.lock            held while one is being installed
root/.NAME-partial/        being unpacked; never looked at, removed by the next installation
root/.downloads/           what has come of a download so far
root/.decoded/             images decoded once, if it can be written: see cache.py
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from setwise.checks import see
from setwise.data.archives import MANIFEST, Writer, copy_folder, unpack
from setwise.data.catalogue import Entry, entry_of, file_digest, find, not_found, verify
from setwise.data.download import download
from setwise.data.errors import DataError
from setwise.data.limits import MANIFEST_FILE, open_plain
from setwise.data.root import PLACE, fetch_command, root_of
from setwise.locks import locked

VERSION = 1  # of the manifest
FEW_FILES = 1000  # up to here each is flushed by itself; beyond, one sync of the system is faster


def locate(name: str, root: Path) -> Path | None:
    """The folder with the data set ``name``: installed, or put by hand in root/NAME or in root itself."""
    return next((place for place in (root / name, root) if place.is_dir() and find(name, place)), None)


def fetch(
    name: str,
    root: str | os.PathLike[str] | None = None,
    source: str | os.PathLike[str] | None = None,
    *,
    md5: str | None = None,
    force: bool = False,
) -> Path:
    """Install the data set ``name`` below ``root`` and return its folder; at once if it is there already.

    ``source`` is a URL (http, https, file), a local archive, or a folder; the makers' URL if None. An archive must have
    the makers' MD5, or the ``md5`` given here for one that you made yourself. ``force`` replaces an installation.
    """
    entry, where = entry_of(name), root_of(root)
    if name == "digits":
        raise DataError("expected a data set to fetch, got 'digits', which comes with scikit-learn; just load it")
    if source is None and not entry.archives:
        raise DataError(
            f"expected a --source for {name}, which must be downloaded by hand; "
            f"{entry.by_hand}, or put it into {where / name}, {see('how-to/your-data#cuhk-03')}"
        )
    place = where / name
    if (place / MANIFEST).is_file() and not force:  # without a lock: a root may be shared and not to be written
        return place
    where.mkdir(parents=True, exist_ok=True)
    with locked(where / f".{name}.lock", option=PLACE, wait=True):
        if (place / MANIFEST).is_file() and not force:  # another process just did it
            return place
        if place.exists() and not (place / MANIFEST).is_file():
            raise DataError(
                f"expected to install {name} at {place}, got something there that fetch did not install; "
                "move it away, or load it as it is"
            )
        given, fetched = _local(entry, str(source if source is not None else entry.archives[0].url), where)
        try:
            _install(entry, given, place, md5)
        except DataError:
            if fetched:  # it would be refused again
                given.unlink(missing_ok=True)
            raise
        if fetched:
            given.unlink(missing_ok=True)
    return place


def _local(entry: Entry, source: str, root: Path) -> tuple[Path, bool]:
    """The source as a local path, and whether it was downloaded for that."""
    parts = urlsplit(source)
    if parts.scheme in ("http", "https"):
        base = re.sub(r"[^\w.-]", "_", parts.path.rsplit("/", 1)[-1])[-80:]
        dest = root / ".downloads" / f"{hashlib.sha256(source.encode()).hexdigest()[:8]}-{base}"
        if not dest.is_file():  # else complete, but not installed: the process was stopped, or the disk was full
            download(source, dest, most_bytes=entry.most_bytes)
        return dest, True
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        path = Path(url2pathname(parts.path))
    elif "://" in source:
        raise ValueError(f"expected a source over http, https or file, or a path, got {source!r}")
    else:
        path = Path(source).expanduser()
    if not path.is_file() and not path.is_dir():
        got = "a pipe or device" if path.exists() else "no such file"
        raise DataError(f"expected an archive or a folder at {path}, got {got}; is the path right?")
    return path.resolve(), False


def _install(entry: Entry, source: Path, place: Path, md5: str | None) -> None:
    partial, old = place.with_name(f".{entry.name}-partial"), place.with_name(f".{entry.name}-old")
    for left in (partial, old):  # by a process that was killed; the lock says that it is gone
        shutil.rmtree(left, ignore_errors=True)
    partial.mkdir()
    try:
        writer = Writer(partial, entry.most_bytes, entry.most_files, source)
        if source.is_dir():
            part = find(entry.name, source)
            if part is None:
                raise not_found(entry.name, source)
            copy_folder(source, part, writer)
        else:
            _check_md5(entry, source, md5)
            if source.suffix == ".mat" and entry.name == "cuhk03":
                with source.open("rb") as stream:
                    writer.file("cuhk-03.mat", stream, source.stat().st_size)
            else:
                unpack(source, writer)
        try:
            verify(entry.name, partial)
        except DataError as error:
            raise DataError(str(error).replace(str(partial), str(source))) from error
        manifest = {"version": VERSION, "name": entry.name, "source": str(source), "files": writer.files}
        (partial / MANIFEST).write_text(json.dumps(manifest, indent=0))
        _flush(partial, [*writer.files, MANIFEST])
        if place.exists():
            os.replace(place, old)
        # The one step that makes it visible: before it nothing is there, after it everything.
        os.replace(partial, place)
        _flush_folder(place.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def _check_md5(entry: Entry, archive: Path, md5: str | None) -> None:
    expected = [md5.lower()] if md5 is not None else [known.md5 for known in entry.archives]
    if expected and (got := file_digest(archive, "md5")) not in expected:
        raise DataError(
            f"expected {archive} with MD5 {' or '.join(expected)}, got {got}; it is damaged or another file: "
            "fetch it again, or pass md5= if you made it yourself"
        )


def _flush(folder: Path, files: list[str]) -> None:
    """Bring everything to the disk before it gets its final name: a power cut must not leave empty files there."""
    if len(files) > FEW_FILES and hasattr(os, "sync"):
        os.sync()
        return
    for file in files:
        with (folder / file).open("r+b") as stream:  # not "rb": Windows flushes only what may be written
            os.fsync(stream.fileno())
    for place in {(folder / file).parent for file in files}:
        _flush_folder(place)


def _flush_folder(folder: Path) -> None:
    if os.name != "posix":
        return  # elsewhere a folder cannot be opened
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class Report:
    """What ``check`` found: ``problems`` is empty if all is well."""

    name: str
    place: Path | None
    files: int = 0
    size: int = 0
    managed: bool = False  # installed by fetch, so every file has a checksum
    problems: list[str] = field(default_factory=list)


def check(name: str, root: str | os.PathLike[str] | None = None) -> Report:
    """Compare an installed data set with its manifest, file by file, then count and measure what it holds."""
    entry_of(name)
    if name == "digits":
        return Report(name, None)
    place = locate(name, where := root_of(root))
    if place is None:
        run = fetch_command(name, root)
        return Report(name, None, problems=[f"expected {name} in {where}, got none; run `{run}`"])
    managed = (place / MANIFEST).is_file()
    report = Report(name, place, managed=managed)
    files: dict[str, tuple[int, str]] = {}
    if managed:
        try:
            files = _read_manifest(place / MANIFEST, name)
        except DataError as error:
            report.problems.append(str(error))
    for file, (size, digest) in files.items():
        path = place / file
        if not path.is_file():
            report.problems.append(f"expected {path}, got no such file")
        elif path.stat().st_size != size:
            report.problems.append(f"expected {path} of {size:,} bytes, got {path.stat().st_size:,}")
        elif file_digest(path, "sha256") != digest:
            report.problems.append(f"expected {path} with SHA-256 {digest}, got another: its content has changed")
    try:
        verify(name, place)
    except DataError as error:
        report.problems.append(str(error))
    total = sum(size for size, _ in files.values())
    return Report(name, place, files=len(files), size=total, managed=managed, problems=report.problems)


def _read_manifest(path: Path, name: str) -> dict[str, tuple[int, str]]:
    try:
        with open_plain(path, most_bytes=MANIFEST_FILE) as file:
            found = json.loads(file.read(MANIFEST_FILE))
        files = {str(file): (int(size), str(digest)) for file, (size, digest) in found["files"].items()}
        usable = found["version"] == VERSION and found["name"] == name
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DataError(
            f"expected the manifest of {name} in {path}, got {error!r}; fetch it again with --force"
        ) from error
    outside = [file for file in files if Path(file).is_absolute() or ".." in Path(file).parts]
    if not usable or outside:
        raise DataError(f"expected the manifest of {name} in {path}, got another one; fetch it again with --force")
    return files
