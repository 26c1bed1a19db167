"""Small data sets in the exact form of the real ones, and a server that misbehaves on request."""

import hashlib
import io
import struct
import tarfile
import threading
import zipfile
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from setwise.data.fetching import download
from setwise.data.formats import cifar, tiny_imagenet

RECORDS = 12


# --- CIFAR ---------------------------------------------------------------------------------------------------------


def python2_pickle(value, memo=None):
    """A pickle as Python 2's cPickle wrote CIFAR's, protocol 2, opcode by opcode."""
    top = memo is None
    memo = [0] if top else memo

    def put():
        memo[0] += 1
        return b"q" + bytes([memo[0]]) if memo[0] < 256 else b"r" + struct.pack("<I", memo[0])

    def string(text):
        raw = text.encode("latin-1") if isinstance(text, str) else text
        head = b"U" + bytes([len(raw)]) if len(raw) < 256 else b"T" + struct.pack("<i", len(raw))
        return head + raw + put()

    def integer(n):
        return (
            b"K" + bytes([n])
            if 0 <= n < 256
            else b"M" + struct.pack("<H", n)
            if 0 <= n < 65536
            else b"J" + struct.pack("<i", n)
        )

    if isinstance(value, dict):
        items = b"".join(string(k) + python2_pickle(v, memo) for k, v in value.items())
        out = b"}" + put() + b"(" + items + b"u"
    elif isinstance(value, list):
        out = b"]" + put() + b"(" + b"".join(python2_pickle(v, memo) for v in value) + b"e"
    elif isinstance(value, np.ndarray):
        fortran = value.flags.f_contiguous and not value.flags.c_contiguous
        dtype = b"cnumpy\ndtype\n" + put() + string("u1") + b"K\x00K\x01\x87" + put() + b"R" + put()
        dtype += b"(K\x03" + string("|") + b"NNN" + integer(-1) * 2 + b"K\x00t" + put() + b"b"
        out = b"cnumpy.core.multiarray\n_reconstruct\n" + put() + b"cnumpy\nndarray\n" + put()
        out += b"K\x00\x85" + put() + string("b") + b"\x87" + put() + b"R" + put()
        shape = b"".join(map(integer, value.shape)) + b"\x86" + put()
        out += b"(K\x01" + shape + dtype + (b"\x88" if fortran else b"\x89")
        out += string(value.tobytes(order="F" if fortran else "C")) + b"t" + put() + b"b"
    elif isinstance(value, str):
        out = string(value)
    else:
        out = integer(value)
    return b"\x80\x02" + out + b"." if top else out


@dataclass
class Cifar:
    name: str
    images: dict  # split -> [N, 3072]
    labels: dict

    def publish(self, path: Path, raw: bytes) -> None:
        """Write a python batch, and let the reader take it for the makers'."""
        path.write_bytes(raw)
        cifar.SPECS[self.name].digests[path.name] = hashlib.md5(raw).hexdigest()

    def write(self, root: Path, layout: str) -> Path:
        spec = cifar.SPECS[self.name]
        folder = root / spec.folders[layout]
        folder.mkdir(parents=True)
        for split in ("train", "test"):
            for k, file in enumerate(spec.files[split]):
                rows = slice(k * RECORDS, (k + 1) * RECORDS)
                x, y = self.images[split][rows], self.labels[split][rows]
                if layout == "binary":
                    coarse = [y // 5] if self.name == "cifar100" else []
                    (folder / f"{file}.bin").write_bytes(np.column_stack([*coarse, y, x]).astype(np.uint8).tobytes())
                    continue
                batch = {"batch_label": f"{file} of 5", spec.label_key: y.tolist(), "data": x}
                if self.name == "cifar100":
                    batch["coarse_labels"] = (y // 5).tolist()
                batch["filenames"] = [f"{i}.png" for i in range(len(y))]
                self.publish(folder / file, python2_pickle(batch))
        return folder


@pytest.fixture
def small_cifar(monkeypatch):
    """Makes CIFAR sets of 12 images a file, and lets the reader expect that."""

    def make(name="cifar10", seed=0):
        spec = cifar.SPECS[name]
        small = replace(spec, records=dict.fromkeys(spec.records, RECORDS), digests={})
        monkeypatch.setitem(cifar.SPECS, name, small)
        rng = np.random.default_rng(seed)
        count = {split: RECORDS * len(spec.files[split]) for split in spec.files}
        return Cifar(
            name,
            {split: rng.integers(0, 256, (n, 3072), dtype=np.uint8) for split, n in count.items()},
            {split: rng.integers(0, len(spec.classes), n) for split, n in count.items()},
        )

    return make


# --- archives ------------------------------------------------------------------------------------------------------


def tar_of(folder: Path, archive: Path) -> Path:
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, arcname=folder.name)
    return archive


def zip_of(folder: Path, archive: Path) -> Path:
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for path in sorted(folder.rglob("*")):
            file.write(path, path.relative_to(folder.parent))
    return archive


def jpeg(pixels) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=95)
    return out.getvalue()


@pytest.fixture
def make():
    """The writers above."""
    return SimpleNamespace(python2_pickle=python2_pickle, tar_of=tar_of, zip_of=zip_of, jpeg=jpeg)


@pytest.fixture
def small_tiny(monkeypatch, tmp_path):
    """A tiny-ImageNet of 3 classes, 4 train images each and 6 val images, in the layout of the official zip."""
    monkeypatch.setattr(tiny_imagenet, "CLASSES", 3)
    monkeypatch.setattr(tiny_imagenet, "TRAIN_PER_CLASS", 4)
    monkeypatch.setattr(tiny_imagenet, "VAL", 6)
    root, rng = tmp_path / "made" / "tiny-imagenet-200", np.random.default_rng(0)

    def picture(path, grey=False):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(rng.integers(0, 256, (64, 64) if grey else (64, 64, 3), dtype=np.uint8)))

    classes = ["n03", "n01", "n02"]
    for name in classes:
        for k in range(4):
            picture(root / "train" / name / "images" / f"{name}_{k}.JPEG", grey=k == 0)
        (root / "train" / name / f"{name}_boxes.txt").write_text("n01_0.JPEG\t0\t0\t62\t62\n")
    rows = []
    for k in range(6):
        picture(root / "val" / "images" / f"val_{k}.JPEG")
        rows.append(f"val_{k}.JPEG\t{classes[k % 3]}\t0\t32\t44\t62\n")
    (root / "val" / "val_annotations.txt").write_text("".join(rows))
    (root / "wnids.txt").write_text("\n".join(classes))
    picture(root / "test" / "images" / "test_0.JPEG")
    return root


# --- a server ------------------------------------------------------------------------------------------------------


@dataclass
class Behaviour:
    """What the server does; ``cuts`` are the bytes after which it drops its first, second, ... connection."""

    content: bytes = b""
    cuts: list = field(default_factory=list)
    ranges: bool = True
    etag: str | None = '"one"'
    length: int | None = None  # what it says, if not the truth
    status: list = field(default_factory=list)  # errors to answer with first
    chunked: bool = False
    stall: bool = False
    wrong_start: bool = False
    url: str = ""
    seen: list = field(default_factory=list)  # (Range, If-Range) of each request
    release: threading.Event = field(default_factory=threading.Event)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_GET(self):
        how: Behaviour = self.server.how
        self.close_connection = True
        asked = self.headers.get("Range")
        how.seen.append((asked, self.headers.get("If-Range")))
        if how.status:
            self.send_error(how.status.pop(0))
            return
        start = 0
        same = self.headers.get("If-Range") in (None, how.etag)
        if asked and how.ranges and same:
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            if start >= len(how.content):
                self.send_error(416)
                return
            self.send_response(206)
            shown = start + 1 if how.wrong_start else start
            self.send_header("Content-Range", f"bytes {shown}-{len(how.content) - 1}/{len(how.content)}")
        else:
            self.send_response(200)
        body = how.content[start:]
        if how.etag:
            self.send_header("ETag", how.etag)
        if how.chunked:
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Content-Length", str(len(body) if how.length is None else how.length))
        self.end_headers()
        cut = how.cuts.pop(0) if how.cuts else len(body)
        if how.chunked:
            self.wfile.write(b"%x\r\n" % len(body) + body[:cut])
            if cut >= len(body):
                self.wfile.write(b"\r\n0\r\n\r\n")
        else:
            self.wfile.write(body[:cut])
        self.wfile.flush()
        if how.stall:
            how.release.wait(10)


@pytest.fixture
def server(monkeypatch):
    """A real HTTP server on loopback; the downloader does not wait between its attempts."""
    monkeypatch.setattr(download, "WAIT", 0.0)
    monkeypatch.setenv("no_proxy", "*")
    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    running.daemon_threads = True
    running.how = how = Behaviour(url=f"http://127.0.0.1:{running.server_port}/set.tar.gz")
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield how
    how.release.set()
    running.shutdown()
    running.server_close()
    thread.join()
