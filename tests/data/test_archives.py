"""Archives: honest ones come out whole; hostile ones leave nothing outside the target."""

import hashlib
import io
import os
import stat
import tarfile
import zipfile

import pytest

from setwise.data import DataError
from setwise.data.fetching.archives import Writer, copy_folder, unpack

FILES = {"a/one.bin": b"1" * 5000, "a/b/two.txt": b"two", "three": b""}


@pytest.fixture
def writer(tmp_path):
    target = tmp_path / "jail" / "target"
    target.mkdir(parents=True)
    return Writer(target, 100_000, 10, tmp_path / "archive")


def tar(path, members, mode="w:gz"):
    """``members``: (TarInfo or name, content)."""
    with tarfile.open(path, mode) as file:
        for info, content in members:
            info = tarfile.TarInfo(info) if isinstance(info, str) else info
            if info.isreg() and not info.size:
                info.size = len(content)
            file.addfile(info, io.BytesIO(content))


def zipped(path, members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for info, content in members:
            file.writestr(zipfile.ZipInfo(info) if isinstance(info, str) else info, content)


def folder(name):
    info = tarfile.TarInfo(name)
    info.type, info.mode = tarfile.DIRTYPE, 0o755
    return info


def below(place):
    return {p.relative_to(place).as_posix(): p.read_bytes() for p in place.rglob("*") if p.is_file()}


@pytest.mark.parametrize("kind", ["w:gz", "w", "zip", "folder"])
def test_honest_archives_come_out_whole(writer, tmp_path, kind):
    source = tmp_path / "source"
    if kind == "folder":
        for name, content in FILES.items():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes(content)
        (source / ".setwise.json").write_bytes(b"an older one")
        (source / ".decoded").mkdir()
        (source / ".decoded" / "images.npy").write_bytes(b"not of the set")
        copy_folder(source, source, writer)
    elif kind == "zip":
        zipped(source, [("a/", b""), *FILES.items()])
        unpack(source, writer)
    else:
        folders = [(folder(name), b"") for name in (".", "./a")]  # the first is that of `tar -C folder .`
        tar(source, [*folders, *FILES.items()], kind)
        unpack(source, writer)
    assert below(writer.target) == FILES
    assert writer.files == {name: (len(c), hashlib.sha256(c).hexdigest()) for name, c in FILES.items()}


def test_a_data_set_may_have_all_that_it_can_have(tmp_path):
    files = {f"{k}/file": b"1" for k in range(60)}  # headers are most of such a tar
    tar(tmp_path / "source", [*((folder(str(k)), b"") for k in range(60)), *files.items()])
    (tmp_path / "target").mkdir()
    unpack(tmp_path / "source", Writer(tmp_path / "target", 60, 60, tmp_path / "source"))
    assert below(tmp_path / "target") == files


OUTSIDE = ["../out", "a/../../out", "/tmp/out", "a/../..", "..", "", "c:/out", "a\\..\\..\\out", "./../out"]


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize("write", [tar, zipped])
def test_members_outside_the_target_are_refused(writer, tmp_path, name, write):
    source = tmp_path / "source"
    write(source, [("fine", b"x"), (name, b"evil")])
    with pytest.raises(DataError, match="a path that leads outside the target; do not|IndexError.*it is damaged"):
        unpack(source, writer)
    assert set(below(tmp_path / "jail")) == {"target/fine"}


@pytest.mark.parametrize(
    "kind",
    [
        *(tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE),
        *(tarfile.FIFOTYPE, tarfile.CONTTYPE, tarfile.GNUTYPE_SPARSE),
    ],
)
def test_links_and_devices_in_tars_are_refused(writer, tmp_path, kind):
    info = tarfile.TarInfo("evil")
    info.type, info.linkname = kind, "../../secret"
    (tmp_path / "secret").write_bytes(b"secret")
    tar(tmp_path / "source", [(info, b""), ("evil/more", b"x")])
    with pytest.raises(DataError, match="evil"):
        unpack(tmp_path / "source", writer)
    assert not list(writer.target.iterdir())


def test_links_in_zips_and_folders_are_refused(writer, tmp_path):
    info = zipfile.ZipInfo("evil")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    zipped(tmp_path / "source", [(info, "/etc/passwd")])
    with pytest.raises(DataError, match="'evil', a link, device or other special file"):
        unpack(tmp_path / "source", writer)
    (tmp_path / "folder").mkdir()
    os.symlink("/etc/passwd", tmp_path / "folder" / "evil")
    with pytest.raises(DataError, match="'evil', a link or device; copy what it points to"):
        copy_folder(tmp_path / "folder", tmp_path / "folder", writer)
    assert not list(writer.target.iterdir())


def test_bombs_are_refused_before_they_fill_the_disk(writer, tmp_path):
    source, bomb = tmp_path / "source", bytes(50_000_000)
    for write in (tar, zipped):
        write(source, [("bomb", bomb)])
        with pytest.raises(DataError, match="'bomb', which goes beyond 100,000 bytes"):
            unpack(source, writer)
    assert sum(len(c) for c in below(tmp_path / "jail").values()) <= writer.most_bytes


def test_the_bytes_that_come_count_not_the_size_declared(writer):
    with pytest.raises(DataError, match="'more', which goes beyond 100,000 bytes"):
        writer.file("more", io.BytesIO(bytes(3_000_000)), 10)
    assert (writer.target / "more").stat().st_size <= writer.most_bytes
    with pytest.raises(DataError, match="expected 'less' of 10 bytes in .*archive, got 4; fetch it again"):
        writer.file("less", io.BytesIO(b"four"), 10)
    assert writer.files == {}


def header(kind, size, name="././@LongLink"):
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    return info.tobuf(format=tarfile.GNU_FORMAT)


@pytest.mark.parametrize("kind", [b"L", b"K", b"x", b"g", b"X"])
@pytest.mark.parametrize("size", [-1, 4097, 10**6, 2**62])  # the last is written in base 256
def test_a_large_header_is_refused_before_it_is_read(writer, tmp_path, kind, size):
    raw = header(kind, size) + b"a" * 8192 + header(b"0", 0, "x") + bytes(1024)
    (tmp_path / "source").write_bytes(raw)
    with pytest.raises(DataError, match=r"a header of -?[\d,]+ bytes, more than 4,096|a link"):
        unpack(tmp_path / "source", writer)
    assert not list(writer.target.iterdir())


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_honest_long_names_and_pax_headers_are_read(writer, tmp_path, form):
    name = "/".join(letter * 120 for letter in "ab\u00e9")
    info = tarfile.TarInfo(name)
    info.size, info.mtime = 3, 1.5  # a fraction needs a pax header
    pax = {"comment": "as git archive writes it"} if form == tarfile.PAX_FORMAT else None
    with tarfile.open(tmp_path / "source", "w", format=form, pax_headers=pax) as file:
        file.addfile(folder("c" * 150))
        file.addfile(info, io.BytesIO(b"abc"))
        file.addfile(tarfile.TarInfo("empty"))
    unpack(tmp_path / "source", writer)
    assert below(writer.target) == {name: b"abc", "empty": b""}
    assert (writer.target / ("c" * 150)).is_dir()


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (b"22 GNU.sparse.major=1\n", "a sparse file"),
        (b"9 size=9\n", "two sizes"),
        (b"99 path=x\n", "damaged"),
        (b"0 path=x\n", "damaged"),
        (b"1" * 600, "damaged"),
        (b"-9 path=x\n", "damaged"),
        (b"15 path=../out\n", "leads outside"),
    ],
)
def test_pax_headers_that_no_data_set_has(writer, tmp_path, payload, said):
    raw = header(b"x", len(payload)) + payload.ljust(1024, b"\0")[: -(-len(payload) // 512) * 512]
    (tmp_path / "source").write_bytes(raw + header(b"0", 3, "x") + b"abc".ljust(512, b"\0") + bytes(1024))
    with pytest.raises(DataError, match=said):
        unpack(tmp_path / "source", writer)
    (tmp_path / "source").write_bytes(raw + bytes(1024))
    with pytest.raises(DataError, match="a header without a member"):
        unpack(tmp_path / "source", writer)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["a/" * 40 + "b"], "a path of more than 1,024 bytes or 32 parts"),
        (["/".join(["a" * 200] * 6)], "a path of more than"),
        ([folder("a/" * 40 + "b")], "a path of more than"),
        ([f"f{k}" for k in range(11)], "'f10', one file more than 10"),
        ([folder(f"d{k}") for k in range(50)], "one of too many members"),
        (["x", "x"], "occurs twice"),
        (["y", "y/z"], "a file and a folder"),
        (["z" * 300], "cannot be used"),
        ([".setwise.json"], "cannot be used"),  # no archive brings a manifest
    ],
)
def test_names_and_numbers_that_no_data_set_has(writer, tmp_path, names, said):
    tar(tmp_path / "source", [(name, b"") for name in names])
    with pytest.raises(DataError, match=said):
        unpack(tmp_path / "source", writer)


@pytest.mark.parametrize("write", [tar, zipped])
def test_damaged_archives_are_named(tmp_path, write):
    source = tmp_path / "source"
    write(source, [("one", os.urandom(20_000))])
    whole = source.read_bytes()
    flipped = bytearray(whole)
    flipped[10_000] ^= 1
    for k, raw in enumerate((whole[:10_000], bytes(flipped), whole[:-10])):
        source.write_bytes(raw)
        target = tmp_path / str(k)
        target.mkdir()
        with pytest.raises(DataError, match=r"source.*fetch it again"):
            unpack(source, Writer(target, 100_000, 10, source))
    source.write_bytes(b"no archive")
    with pytest.raises(DataError, match="expected a .zip, .tar.gz or .tar archive"):
        unpack(source, Writer(target, 100_000, 10, source))
