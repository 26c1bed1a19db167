"""Random and mutated bytes: readers raise DataError or read; they write nothing outside their root and always end."""

import gzip
import io
import shutil
import tarfile
import tempfile
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

import setwise as sw
from setwise.data import DataError
from setwise.data.fetching.archives import Writer, unpack
from setwise.data.formats import cifar, tiny_imagenet
from setwise.data.formats.decode import FORMATS, read_image

FUZZ = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
FEW = settings(FUZZ, max_examples=15)  # each of these starts a process


@st.composite
def mutated(draw, valid):
    """``valid`` with a few bytes overwritten, a slice cut out or doubled, or its end cut off; or anything at all."""
    raw = bytearray(valid)
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=400))
    for _ in range(draw(st.integers(1, 6))):
        if not raw:
            break
        at = draw(st.integers(0, len(raw) - 1))
        change = draw(st.sampled_from(["byte", "byte", "byte", "ends", "cut", "double", "truncate"]))
        if change == "byte":
            raw[at] = draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
        elif change == "ends":  # headers and directories are at the ends
            raw[draw(st.sampled_from([at % 300, -1 - at % 300])) % len(raw)] = draw(st.integers(0, 255))
        elif change == "truncate":
            del raw[at:]
        else:
            piece = raw[at : at + draw(st.integers(1, 60))]
            raw[at : at + len(piece)] = b"" if change == "cut" else piece * 2
    return bytes(raw)


def read_or_refuse(call, *named):
    """What ``call`` returns, or None where it refuses with a DataError that names one of these; nothing else comes."""
    try:
        return call()
    except DataError as error:
        message = str(error)
    assert any(str(name) in message for name in named), message
    return None


@pytest.fixture
def box():
    """A folder of its own for every example, inside a jail that must stay as it is."""

    def make():
        shutil.rmtree(jail, ignore_errors=True)
        (jail / "root").mkdir(parents=True)
        return jail / "root"

    def intact():
        assert [p.name for p in jail.iterdir()] == ["root"]

    with tempfile.TemporaryDirectory() as place:
        jail = Path(place) / "jail"
        make.intact = intact
        yield make


SMALL = replace(cifar.CIFAR100, records={"train": 3, "test": 2}, digests={})
RECORDS = np.arange(3 * 3074, dtype=np.uint32).astype(np.uint8).reshape(3, 3074) % 100


@FUZZ
@given(mutated(RECORDS.tobytes()))
def test_cifar_binaries(monkeypatch, box, raw):
    monkeypatch.setitem(cifar.SPECS, "cifar100", SMALL)
    root = box()
    (root / "train.bin").write_bytes(raw)
    if found := read_or_refuse(lambda: sw.data.load("cifar100", root), "train.bin"):
        assert len(raw) == 3 * 3074
        assert found.labels.tolist() == [raw[k * 3074 + 1] for k in range(3)]


def a_tar(mode, form=tarfile.PAX_FORMAT):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode, format=form) as file:
        for name, content in (("a/one", b"1" * 900), ("a/two", b"2"), ("l" * 150 + "/" + "x" * 120, b"3")):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    return out.getvalue()


def a_zip():
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in (("a/one", b"1" * 900), ("a/two", b"2"), ("three", bytes(5000))):
            file.writestr(name, content)
    return out.getvalue()


PLAIN, GNU, PACKED, ZIPPED = a_tar("w"), a_tar("w", tarfile.GNU_FORMAT), a_tar("w:gz"), a_zip()


def with_sums(raw):
    """The checksums of a tar's headers made right again: the damage gets past them."""
    raw = bytearray(raw)
    for at in range(0, len(raw) - 511, 512):
        if raw[at + 257 : at + 262] == b"ustar":
            raw[at + 148 : at + 156] = b" " * 8
            raw[at + 148 : at + 155] = b"%06o\0" % sum(raw[at : at + 512])
    return bytes(raw)


@settings(FUZZ, max_examples=400)
@given(
    mutated(PLAIN)
    | (mutated(PLAIN) | mutated(GNU)).map(with_sums)
    # A mutated tar in a sound gzip: the damage gets past the checksum of the compression.
    | mutated(PLAIN).map(lambda raw: gzip.compress(raw, compresslevel=1))
    | mutated(PACKED)
    | mutated(ZIPPED)
)
def test_archives(box, raw):
    root = box()
    (root / "archive").write_bytes(raw)
    (root / "target").mkdir()
    writer = Writer(root / "target", 20_000, 20, root / "archive")
    read_or_refuse(lambda: unpack(root / "archive", writer), root / "archive")
    box.intact()
    assert {p.name for p in root.iterdir()} == {"archive", "target"}
    files = [p for p in (root / "target").rglob("*") if not p.is_dir()]
    assert all(p.is_file() and not p.is_symlink() for p in files)
    assert sum(p.stat().st_size for p in files) <= 20_000


@FUZZ
@given(st.data())
def test_annotations(small_tiny, data):
    file = small_tiny / "val" / "val_annotations.txt"
    rows = "".join(f"val_{k}.JPEG\t{('n03', 'n01', 'n02')[k % 3]}\t0\t32\t44\t62\n" for k in range(6))
    file.write_bytes(data.draw(mutated(rows.encode())))
    if found := read_or_refuse(lambda: tiny_imagenet.listing(small_tiny, "val"), file):
        files, classes = found
        assert [path.parent for path, _ in files] == [small_tiny / "val" / "images"] * 6
        assert all(0 <= label < len(classes) for _, label in files)


def picture(kind):
    out = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (9, 7, 3), dtype=np.uint8)).save(out, kind)
    return out.getvalue()


@settings(FUZZ, max_examples=300)
@given(st.one_of([mutated(picture(kind)) for kind in FORMATS]))
def test_images(box, raw):
    path = box() / "image.png"
    path.write_bytes(raw)
    found = read_or_refuse(lambda: read_image(path, (8, 6)), path)
    assert found is None or found.shape == (8, 6, 3)
    box.intact()


@FEW
@given(st.data())
def test_mat_files(write_mat, box, data):
    root = box()
    mat = root / "cuhk-03.mat"
    write_mat(mat, {"labeled": [[[np.full((4, 3, 3), p, np.uint8)] * 10] for p in range(5)]})
    mat.write_bytes(data.draw(mutated(mat.read_bytes())))
    if found := read_or_refuse(lambda: sw.data.load_matched(mat, root, split="all"), mat, "both cameras"):
        assert found.images.dtype == torch.uint8
        assert found.images.shape[1:] == (3, 128, 64)
    box.intact()
    assert {p.name for p in root.iterdir()} <= {"cuhk-03.mat", ".decoded"}
