"""Small hostile files: each is refused by its name, at once, before it takes memory."""

import bz2
import gzip
import io
import json
import lzma
import os
import re
import struct
import subprocess
import sys
import tarfile
import zipfile
import zlib
from pathlib import Path

import pytest
from PIL import Image

from setwise.data import DataError
from setwise.data.fetching import limits
from setwise.data.formats import decode

pytestmark = pytest.mark.skipif(not hasattr(os, "wait4"), reason="measures processes as Unix does")

MB = 2**20
MOST_MB, MOST_SECONDS = 64, 10  # each took more than 130 MB, or did not end, before there were limits

# Each file is read by a process of its own, forked when everything is imported; its peak above that is what counts.
READ = """
import json, os, resource, signal, sys, time
from pathlib import Path
import setwise as sw
from setwise.data.fetching import archives
from setwise.data.formats import PUBLISHED
files, root = Path(sys.argv[1]), Path(sys.argv[2])
sw.data.load("digits")

def read(name):
    file = files / name
    if name.endswith((".zip", ".tar.gz")):
        entry = PUBLISHED["cuhk03"]
        target = root / name
        target.mkdir(parents=True)
        archives.unpack(file, archives.Writer(target, entry.most_bytes, entry.most_files, file))
    elif name == "source.pipe":
        sw.data.fetch("cuhk03", root, file)
    elif name == "batches.bin":
        raise ValueError(sw.data.check("cifar10", file).problems)
    elif name == "bombs":
        sw.data.load(file, size=3000)
    elif name != "nothing":
        sw.data.load(file, split="test" if name.endswith(".pickle") else "train")

told = {}
for name in sys.argv[3:]:
    out, into = os.pipe()
    start, child = time.monotonic(), os.fork()
    if child == 0:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, used + 2**30))
        try:
            read(name)
            said = "read"
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(into, said[:2000].encode())
        os._exit(0)
    os.close(into)
    while not (ended := os.wait4(child, os.WNOHANG))[0]:
        if time.monotonic() - start > float(os.environ["SECONDS"]):
            os.kill(child, signal.SIGKILL)
        time.sleep(0.01)
    told[name] = dict(
        seconds=time.monotonic() - start, mb=ended[2].ru_maxrss / 1024, status=ended[1],
        said=os.read(out, 2000).decode(),
    )
print(json.dumps(told))
"""


def header(kind, size, name="x"):
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    return info.tobuf(format=tarfile.GNU_FORMAT)


def packed(*parts):
    out = io.BytesIO()
    with gzip.open(out, "wb", compresslevel=1) as file:
        for part, times in parts:
            for _ in range(times):
                file.write(part)
    return out.getvalue()


def zipped(method, data):
    """One member that says it has 1,000 bytes."""
    head = struct.pack("<HHHHHIIIHH", 20, 0, method, 0, 33, 0, len(data), 1000, 4, 0)
    local = b"PK\3\4" + head + b"bomb" + data
    central = b"PK\1\2" + struct.pack("<H", 20) + head + struct.pack("<HHHII", 0, 0, 0, 0, 0) + b"bomb"
    return local + central + b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 1, 1, len(central), len(local), 0)


def bzip2_bomb():
    packer = bz2.BZ2Compressor()
    data = b"".join(packer.compress(bytes(MB)) for _ in range(150)) + packer.flush()
    return zipped(zipfile.ZIP_BZIP2, data)


def lzma_bomb():
    packing = [{"id": lzma.FILTER_LZMA1, "preset": 0, "lc": 3, "lp": 0, "pb": 2, "dict_size": 2**16}]
    packer = lzma.LZMACompressor(lzma.FORMAT_RAW, filters=packing)
    data = b"".join(packer.compress(bytes(MB)) for _ in range(150)) + packer.flush()
    return zipped(zipfile.ZIP_LZMA, struct.pack("<BBHBI", 9, 4, 5, 93, 2**16) + data)


def zip_of_many():
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        file.writestr("a", b"")
    raw = out.getvalue()
    central, end = raw.index(b"PK\1\2"), raw.index(b"PK\5\6")
    many = raw[central:end] * 400_000
    return raw[:central] + many + raw[end : end + 12] + struct.pack("<II", len(many), central) + raw[end + 20 :]


def pax_bomb():
    fields = b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n"
    count = 4 * MB
    numbers = f"{count}\n".encode()
    return packed(
        (header(b"x", len(fields)) + fields.ljust(512, b"\0") + header(b"0", 4 * count + len(numbers)) + numbers, 1),
        (b"0\n" * MB, 2 * count // MB),
        (bytes(1024), 1),
    )


def sparse_bomb():
    first = bytearray(header(b"S", 0))
    first[482] = 1  # there is another block of the map
    first[148:156] = b" " * 8
    first[148:155] = b"%06o\0" % sum(first)
    block = b"00000000001\0" * 42 + b"\1".ljust(8, b"\0")
    return packed((bytes(first), 1), (block * 2048, 50), (bytes(1024), 1))


def nested_lists():
    """Each list holds the one before it twice: to show the last one is 2^60 steps."""
    lists = b"".join(b"]q%c(h%ch%ce" % (k, k - 1, k - 1) for k in range(1, 60))
    return b"\x80\x04]q\0" + lists + b"U\1a\x93."


def huge_shape():
    number = b"\x8a\xff" + b"\xff" * 254 + b"\x7f"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85U\1b\x87R"
    dtype = b"cnumpy\ndtype\nU\2u1K\0K\1\x87R"
    return b"\x80\2}U\4data" + array + b"(K\1(" + number * 10_000 + b"t" + dtype + b"\x89U\1xtbs."


def png(width, height):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    packer = zlib.compressobj(9)
    data = b"".join(packer.compress(bytes(1 + 3 * width)) for _ in range(height)) + packer.flush()
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def lying_jpeg(width, height):
    out = io.BytesIO()
    Image.new("RGB", (8, 8)).save(out, "JPEG")
    raw = bytearray(out.getvalue())
    at = raw.index(b"\xff\xc0")
    raw[at + 5 : at + 9] = struct.pack(">HH", height, width)
    return bytes(raw)


FILES = {
    "bzip2.zip": bzip2_bomb,
    "lzma.zip": lzma_bomb,
    "many.zip": zip_of_many,
    "long-name.tar.gz": lambda: packed((header(b"L", 200 * MB), 1), (b"a" * MB, 200), (header(b"0", 0), 1)),
    "pax-digits.tar.gz": lambda: packed((header(b"x", 10**5), 1), (b"1" * 100_352, 1), (header(b"0", 0), 1)),
    "pax-sparse.tar.gz": pax_bomb,
    "sparse.tar.gz": sparse_bomb,
    "nested.pickle": nested_lists,
    "shape.pickle": huge_shape,
}
OTHERS = ("bombs", "liar", "pipe", "source.pipe", "batches.bin")
LARGEST = {"many.zip": 20 * MB}  # of what is made here; the others have less than 3 MB


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What reading each of them took and said, by name."""
    files = tmp_path_factory.mktemp("hostile")
    for name, make in FILES.items():
        path = files / name
        if name.endswith(".pickle"):
            path.mkdir()
            path /= "test_batch"
        path.write_bytes(make())
        assert path.stat().st_size < LARGEST.get(name, 3 * MB)
    for name in ("bombs", "liar", "pipe"):
        (files / name / "train" / "class").mkdir(parents=True)
    bomb = png(3000, 3000)
    assert len(bomb) < 30_000
    for k in range(60):
        (files / "bombs" / "train" / "class" / f"{k}.png").write_bytes(bomb)
    (files / "liar" / "train" / "class" / "0.jpg").write_bytes(lying_jpeg(65_500, 1_300))
    os.mkfifo(files / "pipe" / "train" / "class" / "x.png")
    os.mkfifo(files / "source.pipe")
    (files / "batches.bin").mkdir()
    (files / "batches.bin" / "test_batch.bin").touch()
    os.mkfifo(files / "batches.bin" / "data_batch_1.bin")
    run = subprocess.run(
        [sys.executable, "-c", READ, str(files), str(files / "root"), "nothing", *FILES, *OTHERS],
        env=os.environ | {"SECONDS": str(MOST_SECONDS)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["nothing"]["said"] == "read"
    return found


@pytest.mark.parametrize(
    ("name", "named"),
    [
        *((name, name) for name in FILES),
        *(("bombs", "60 of 9,000,000 pixels"), ("liar", "0.jpg"), ("pipe", "x.png"), ("source.pipe", "source.pipe")),
        ("batches.bin", "data_batch_1.bin"),
    ],
)
def test_a_hostile_file_is_refused_at_once(told, name, named):
    found, idle = told[name], told["nothing"]
    assert found["status"] == 0, found
    assert re.match("(DataError|ValueError): ", found["said"]), found
    assert named in found["said"]
    assert found["seconds"] < MOST_SECONDS
    assert found["mb"] - idle["mb"] < MOST_MB


def test_images_that_take_more_than_the_limit_are_not_decoded(tmp_path, monkeypatch):
    path = tmp_path / "one.png"
    Image.new("RGB", (10, 20)).save(path)
    assert decode.read_images([path] * 5, None).shape == (5, 3, 20, 10)
    monkeypatch.setattr(decode, "set_bytes", lambda: 5 * 3 * 200 - 1)
    monkeypatch.setattr(decode, "to_array", None)  # decoding would be another error
    for size in (None, (20, 10)):
        with pytest.raises(DataError, match=r"at most 2,999 bytes of memory, got 5 of 200 pixels.*your-data#limits"):
            decode.read_images([path] * 5, size)


def test_an_image_of_another_size_is_known_by_its_header(tmp_path, monkeypatch):
    Image.new("RGB", (10, 20)).save(tmp_path / "one.png")
    (tmp_path / "two.png").write_bytes(png(3000, 3000)[:3000])  # its pixels are not all there
    with pytest.raises(DataError, match="two.png to be 20x10 .* like the others, got 3000x3000"):
        decode.read_images([tmp_path / "one.png", tmp_path / "two.png"], None)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_the_most_compressed_honest_images_are_read(tmp_path, kind):
    path = tmp_path / "blank.png"
    for mode in ("1", "L", "RGB") if kind == "PNG" else ("L", "RGB"):
        options = {"quality": 1, "optimize": True, "progressive": True} if kind == "JPEG" else {"compress_level": 9}
        Image.new(mode, (4000, 2000)).save(path, kind, **options)
        assert decode.read_image(path).shape == (2000, 4000, 3)


def test_files_longer_than_their_limit_and_folders_are_not_opened(tmp_path):
    (tmp_path / "file").write_bytes(bytes(11))
    with limits.open_plain(tmp_path / "file", most_bytes=11) as file:
        assert file.read() == bytes(11)
    with pytest.raises(DataError, match="file of at most 10 bytes, got 11"):
        limits.open_plain(tmp_path / "file", most_bytes=10)
    with pytest.raises(DataError, match="to be a plain file"):
        limits.open_plain(tmp_path)


def test_the_documentation_has_every_limit():
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "your-data.md").read_text()
    table = page[page.index("{#limits}") :]
    for name, value in vars(limits).items():
        if name.isupper() and isinstance(value, int):
            assert f"| {value:,} |" in table or f"| {value // MB:,} MiB |" in table, name
