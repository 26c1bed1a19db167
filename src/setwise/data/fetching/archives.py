"""Unpack archives that may be hostile: no file lands outside the target, is a link, or goes beyond a limit."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import os
import stat
import struct
import tarfile
import zipfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO

from setwise.data.api import DataError
from setwise.data.fetching.limits import NAME_BYTES, PATH_BYTES, PATH_PARTS, TAR_HEADER, open_plain

MANIFEST = ".setwise.json"  # ours alone: no archive may bring one
CHUNK = 2**20
_DAMAGED = (
    *(tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError, struct.error),
    # What the standard library's readers also raise on damaged headers, encryption and unknown compression.
    *(ValueError, OverflowError, RuntimeError, IndexError, KeyError, MemoryError),
)


@dataclass
class Writer:
    """Writes new files below ``target``, within limits, and keeps their sizes and checksums."""

    target: Path
    most_bytes: int
    most_files: int
    source: Path
    written: int = 0
    files: dict[str, tuple[int, str]] = field(default_factory=dict)  # name -> size, SHA-256

    def refuse(self, name: str, why: str) -> DataError:
        """The error for a member that no data set contains."""
        return DataError(
            f"expected an archive of plain files in {self.source}, got {name[:200]!r}, {why}; "
            "do not use it, get it from its makers"
        )

    def place(self, name: str) -> PurePosixPath:
        """The checked relative path of a member."""
        path = PurePosixPath(name)
        if len(os.fsencode(name)) > PATH_BYTES or len(path.parts) > PATH_PARTS:
            raise self.refuse(name, f"a path of more than {PATH_BYTES:,} bytes or {PATH_PARTS} parts")
        if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name or "\0" in name or not path.parts:
            raise self.refuse(name, "a path that leads outside the target")
        if any(len(os.fsencode(part)) > NAME_BYTES for part in path.parts) or path.parts[0] == MANIFEST:
            raise self.refuse(name, "a name that cannot be used")
        return path

    def folder(self, name: str) -> None:
        """Make a folder; "." is the target itself, with which ``tar -C folder .`` begins."""
        if PurePosixPath(name).parts:
            self._make(self.target / self.place(name), name)

    def file(self, name: str, stream: IO[bytes], declared: int) -> None:
        """Copy one file; the size that counts is the number of bytes that come."""
        path = self.place(name)
        if len(self.files) >= self.most_files:
            raise self.refuse(name, f"one file more than {self.most_files:,}, the most this data set can have")
        if declared < 0 or self.written + declared > self.most_bytes:
            raise self._too_large(name)
        where, digest, size = self.target / path, hashlib.sha256(), 0
        self._make(where.parent, name)
        try:
            out = where.open("xb")
        except FileExistsError:
            raise self.refuse(name, "a name that occurs twice") from None
        with out:
            while chunk := stream.read(CHUNK):
                size += len(chunk)
                if self.written + size > self.most_bytes:
                    raise self._too_large(name)
                digest.update(chunk)
                out.write(chunk)
        if size != declared:
            raise DataError(f"expected {name!r} of {declared:,} bytes in {self.source}, got {size:,}; fetch it again")
        self.written += size
        self.files[path.as_posix()] = size, digest.hexdigest()

    def _too_large(self, name: str) -> DataError:
        return self.refuse(name, f"which goes beyond {self.most_bytes:,} bytes, the most this data set can have")

    def _make(self, folder: Path, name: str) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise self.refuse(name, "a file and a folder of the same name") from None


def unpack(archive: Path, writer: Writer) -> None:
    """Unpack a .zip, .tar.gz or .tar file, known by its first bytes."""
    with open_plain(archive) as file:
        head = file.read(512)
    try:
        if head.startswith(b"PK\x03\x04"):
            _unzip(archive, writer)
        elif head.startswith(b"\x1f\x8b"):
            with gzip.open(archive) as stream:
                _untar(stream, writer)
        elif head[257:262] == b"ustar":
            with archive.open("rb") as stream:
                _untar(stream, writer)
        else:
            raise DataError(
                f"expected a .zip, .tar.gz or .tar archive, got {archive}, which is none; give another --source"
            )
    except DataError:
        raise
    except (*_DAMAGED, OSError) as error:
        # A damaged zip makes its reader seek before the beginning; other trouble with the system is not the archive's.
        if isinstance(error, OSError) and not isinstance(error, gzip.BadGzipFile) and error.errno != errno.EINVAL:
            raise
        raise DataError(
            f"expected a whole archive in {archive}, got {type(error).__name__}: {error}; it is damaged: fetch it again"
        ) from error


def copy_folder(source: Path, part: Path, writer: Writer) -> None:
    """Copy the plain files of ``part``, which is ``source`` or a folder in it, but for hidden ones.

    Hidden are an earlier manifest, decoded images, locks. Other data sets and archives may lie beside ``part``.
    """
    for path in sorted(part.rglob("*")):
        hidden = any(name.startswith(".") for name in path.relative_to(part).parts)
        if hidden or (path.is_dir() and not path.is_symlink()):
            continue
        name = path.relative_to(source).as_posix()
        if not stat.S_ISREG(path.lstat().st_mode):
            raise DataError(f"expected plain files in {source}, got {name!r}, a link or device; copy what it points to")
        with open_plain(path) as stream:
            writer.file(name, stream, os.fstat(stream.fileno()).st_size)


class _Capped:
    """A stream with a limit. Headers count, so that a bomb cannot hide in them."""

    def __init__(self, stream: IO[bytes] | gzip.GzipFile, writer: Writer) -> None:
        self.stream, self.writer = stream, writer
        # A tar adds a header block and padding to each file; as much again for a folder each and long names.
        self.left = writer.most_bytes + 4 * 512 * writer.most_files + tarfile.RECORDSIZE

    def read(self, size: int = CHUNK) -> bytes:
        data = self.stream.read(min(size, CHUNK))
        self.left -= len(data)
        if self.left < 0:
            raise self.writer.refuse("the whole", "which unpacks to more than this data set can have")
        return data


class _Member(tarfile.TarInfo):
    """A member whose extra headers are small. Of a pax header only the path is used.

    tarfile reads a long name or a pax header whole, however long it says it is. It takes quadratic time and memory to
    parse pax, and keeps the map of a sparse file in a list.
    """

    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:  # tarfile's source says: may be overridden
        if self.type in (tarfile.GNUTYPE_SPARSE, tarfile.GNUTYPE_LONGLINK):
            raise tarfile.ReadError(f"{self.name[:200]!r}, a sparse file or a link")
        pax = self.type in (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
        if (pax or self.type == tarfile.GNUTYPE_LONGNAME) and not 0 <= self.size <= TAR_HEADER:
            raise tarfile.ReadError(f"a header of {self.size:,} bytes, more than {TAR_HEADER:,}")
        if not pax:
            return super()._proc_member(tar)  # type: ignore[misc, no-any-return]
        raw = tar.fileobj.read(-(-self.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE)[: self.size]
        try:
            member = self.fromtarfile(tar)
        except tarfile.HeaderError as error:  # tarfile would take it for the end
            raise tarfile.ReadError("a header without a member") from error
        fields = {} if self.type == tarfile.XGLTYPE else _pax_fields(raw)
        size = str(member.size).encode()
        if fields.get(b"size", size) != size or any(key.startswith(b"GNU.sparse") for key in fields):
            raise tarfile.ReadError(f"{member.name[:200]!r}, a sparse file, or one with two sizes")
        if b"path" in fields:
            member.name = fields[b"path"].decode(errors="surrogateescape")
        return member


def _pax_fields(raw: bytes) -> dict[bytes, bytes]:
    """The fields of a pax header: records ``LENGTH KEY=VALUE``, each with a line feed at its end."""
    fields = {}
    while raw:
        digits = raw[:5].partition(b" ")[0]
        length = int(digits) if digits.isdigit() else 0
        record, raw = raw[:length], raw[length:]
        if len(record) != length or not record.endswith(b"\n"):
            raise tarfile.ReadError("a pax header that is damaged")
        key, _, value = record[len(digits) + 1 : -1].partition(b"=")
        fields[key] = value
    return fields


def _untar(stream: IO[bytes] | gzip.GzipFile, writer: Writer) -> None:
    capped = _Capped(stream, writer)
    with tarfile.open(fileobj=capped, mode="r|", tarinfo=_Member) as tar:  # type: ignore[call-overload]
        for count, member in enumerate(tar):
            tar.members.clear()  # tarfile keeps all that it has seen
            if count > 2 * writer.most_files:
                raise writer.refuse(member.name, "one of too many members")
            if member.isdir():
                writer.folder(member.name)
            elif member.type in (tarfile.REGTYPE, tarfile.AREGTYPE):
                content = tar.extractfile(member)
                assert content is not None, "a regular member has content"
                writer.file(member.name, content, member.size)
            else:
                raise writer.refuse(member.name, "a link, device or other special file")
    while capped.read():
        pass  # to the end, where gzip keeps its checksum


class _ZipStream(io.FileIO):
    """A zip file whose directory is counted before zipfile makes an object of each entry."""

    def __init__(self, archive: Path, writer: Writer) -> None:
        super().__init__(archive)
        self.writer = writer

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size) or b""
        if data.count(b"PK\1\2") > 2 * self.writer.most_files:  # how each entry begins; zipfile reads all at once
            raise self.writer.refuse("the directory", "which has too many members")
        return data


def _unzip(archive: Path, writer: Writer) -> None:
    with _ZipStream(archive, writer) as stream, zipfile.ZipFile(stream) as file:
        for member in file.infolist():
            # zipfile inflates bzip2 and LZMA whole, whatever size is declared.
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise writer.refuse(
                    member.filename, "neither stored nor deflated, the two ways of packing that are read"
                )
            kind = stat.S_IFMT(member.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise writer.refuse(member.filename, "a link, device or other special file")
            if member.is_dir():
                writer.folder(member.filename)
            else:
                with file.open(member) as content:
                    writer.file(member.filename, content, member.file_size)
