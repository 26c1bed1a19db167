"""``fetch`` and ``check``: install data sets whole or not at all, one process at a time.

root/NAME/                 an installed data set, with its manifest
root/.NAME.lock            held while one is being installed
root/.NAME-partial/        being unpacked; nothing reads it, the next installation removes it
root/.downloads/           unfinished downloads
root/.decoded/             images decoded once, if it can be written: see fetching/cache.py, store.py
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

import setwise.register as register
from setwise.checks import check_option, see
from setwise.data.api import DataError
from setwise.data.fetching.archives import MANIFEST, Writer, copy_folder, unpack
from setwise.data.fetching.download import download
from setwise.data.fetching.limits import MANIFEST_FILE, open_plain
from setwise.data.fetching.published import Published, file_digest
from setwise.data.formats import PUBLISHED, cuhk03
from setwise.data.root import OPTION, fetch_command, root_of
from setwise.locks import locked

VERSION = 1  # of the manifest
FEW_FILES = 1000  # up to here each is flushed by itself; beyond, one sync of the system is faster


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
    check_option(name, tuple(register.data), "the data set")
    if name not in PUBLISHED:
        raise DataError(f"expected a data set to fetch, got {name!r}, which has no files to fetch; just load it")
    published, where = PUBLISHED[name], root_of(root)
    if source is None and not published.archives:
        page = see("how-to/your-data#cuhk-03") if name == cuhk03.NAME else see("how-to/your-data#by-name")
        raise DataError(
            f"expected a --source for {name}, which must be downloaded by hand; "
            f"{published.by_hand}, or put it into {where / name}, {page}"
        )
    place = where / name
    if (place / MANIFEST).is_file() and not force:  # without a lock: a root may be shared and not to be written
        return place
    where.mkdir(parents=True, exist_ok=True)
    with locked(where / f".{name}.lock", option=OPTION, wait=True):
        if (place / MANIFEST).is_file() and not force:  # another process just did it
            return place
        if place.exists() and not (place / MANIFEST).is_file():
            raise DataError(
                f"expected to install {name} at {place}, got something there that fetch did not install; "
                "move it away, or load it as it is"
            )
        local, downloaded = _local(published, str(source or published.archives[0].url), where)
        try:
            _install(published, local, place, md5)
        except DataError:
            if downloaded:  # it would be refused again
                local.unlink(missing_ok=True)
            raise
        if downloaded:
            local.unlink(missing_ok=True)
    return place


def _local(published: Published, source: str, root: Path) -> tuple[Path, bool]:
    """The source as a local path, and whether it was downloaded for that."""
    parts = urlsplit(source)
    if parts.scheme in ("http", "https"):
        base = re.sub(r"[^\w.-]", "_", parts.path.rsplit("/", 1)[-1])[-80:]
        dest = root / ".downloads" / f"{hashlib.sha256(source.encode()).hexdigest()[:8]}-{base}"
        if not dest.is_file():  # else complete, but not installed: the process was stopped, or the disk was full
            download(source, dest, most_bytes=published.most_bytes)
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


def _install(published: Published, source: Path, place: Path, md5: str | None) -> None:
    partial, old = (place.with_name(f".{published.name}-{end}") for end in ("partial", "old"))
    for left in (partial, old):  # by a process that was killed; the lock says that it is gone
        shutil.rmtree(left, ignore_errors=True)
    partial.mkdir()
    try:
        writer = Writer(partial, published.most_bytes, published.most_files, source)
        if source.is_dir():
            copy_folder(source, published.place_in(source), writer)
        else:
            _check_md5(published, source, md5)
            if source.suffix == ".mat" and published.find(source):
                with source.open("rb") as stream:
                    writer.file(cuhk03.MAT, stream, source.stat().st_size)
            else:
                unpack(source, writer)
        try:
            published.place_in(partial)
            published.verify(partial)
        except DataError as error:
            raise DataError(str(error).replace(str(partial), str(source))) from error
        manifest = {"version": VERSION, "name": published.name, "source": str(source), "files": writer.files}
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


def _check_md5(published: Published, archive: Path, md5: str | None) -> None:
    expected = [md5.lower()] if md5 is not None else [known.md5 for known in published.archives]
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
    place: Path | None = None
    files: int = 0
    size: int = 0
    managed: bool = False  # installed by fetch, so every file has a checksum
    problems: list[str] = field(default_factory=list)


def check(name: str, root: str | os.PathLike[str] | None = None) -> Report:
    """Compare an installed data set with its manifest, file by file, then with what its makers published."""
    check_option(name, tuple(register.data), "the data set")
    if name not in PUBLISHED:
        return Report(name)
    published, where = PUBLISHED[name], root_of(root)
    place = published.installed(where)
    if place is None:
        return Report(name, problems=[f"expected {name} in {where}, got none; run `{fetch_command(name, where)}`"])
    managed = (place / MANIFEST).is_file()
    problems: list[str] = []
    files: dict[str, tuple[int, str]] = {}
    try:
        files = _read_manifest(place / MANIFEST, name) if managed else {}
    except DataError as error:
        problems.append(str(error))
    for file, (size, digest) in files.items():
        path = place / file
        if not path.is_file():
            problems.append(f"expected {path}, got no such file")
        elif path.stat().st_size != size:
            problems.append(f"expected {path} of {size:,} bytes, got {path.stat().st_size:,}")
        elif file_digest(path, "sha256") != digest:
            problems.append(f"expected {path} with SHA-256 {digest}, got another: its content has changed")
    try:
        published.verify(place)
    except DataError as error:
        problems.append(str(error))
    return Report(name, place, len(files), sum(size for size, _ in files.values()), managed, problems)


def _read_manifest(path: Path, name: str) -> dict[str, tuple[int, str]]:
    try:
        with open_plain(path, most_bytes=MANIFEST_FILE) as file:
            manifest = json.loads(file.read(MANIFEST_FILE))
        files = {str(file): (int(size), str(digest)) for file, (size, digest) in manifest["files"].items()}
        usable = manifest["version"] == VERSION and manifest["name"] == name
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DataError(
            f"expected the manifest of {name} in {path}, got {error!r}; fetch it again with --force"
        ) from error
    outside = [file for file in files if Path(file).is_absolute() or ".." in Path(file).parts]
    if not usable or outside:
        raise DataError(f"expected the manifest of {name} in {path}, got another one; fetch it again with --force")
    return files
