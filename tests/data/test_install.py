"""Installation: whole or not at all, once, verified; and the command line on top of it."""

import errno
import hashlib
import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

import setwise as sw
from setwise.cli import main
from setwise.data import DataError, installing
from setwise.data.fetching.cache import cached
from setwise.data.fetching.published import Archive
from setwise.data.formats import PUBLISHED, cifar


def md5(path):
    return hashlib.md5(path.read_bytes()).hexdigest()


def visible(root):
    return sorted(p.name for p in root.iterdir() if not p.name.startswith(".")) if root.exists() else []


@pytest.fixture
def packed(small_cifar, make, tmp_path):
    """A small CIFAR-10 as the official archive packs it."""
    made = small_cifar()
    made.write(tmp_path / "made", "binary")
    made.archive = make.tar_of(tmp_path / "made" / "cifar-10-batches-bin", tmp_path / "set.tar.gz")
    return made


@pytest.mark.parametrize("kind", ["path", "file URL", "http URL", "folder"])
def test_every_source_installs_the_same(packed, server, tmp_path, kind):
    server.content = packed.archive.read_bytes()
    given = {
        "path": packed.archive,
        "file URL": packed.archive.as_uri(),
        "http URL": server.url,
        "folder": tmp_path / "made",
    }[kind]
    root = tmp_path / "root"
    place = sw.data.fetch("cifar10", root, given, md5=md5(packed.archive))
    assert place == root / "cifar10"
    found = sw.data.load("cifar10", root)
    assert np.array_equal(found.images.numpy().reshape(-1, 3072), packed.images["train"])
    files = json.loads((place / ".setwise.json").read_text())["files"]
    assert set(files) == {
        f"cifar-10-batches-bin/{n}.bin" for n in [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]
    }
    for name, (size, digest) in files.items():
        raw = (tmp_path / "made" / name).read_bytes()
        assert (size, digest) == (len(raw), hashlib.sha256(raw).hexdigest())
    assert visible(root) == ["cifar10"]
    assert not list(root.glob(".downloads/*")), "the download is not kept"
    assert not (root / ".cifar10-partial").exists()
    assert sw.data.check("cifar10", root).problems == []
    # Installed is installed: the source is not looked at again, and nothing is written.
    (root / ".cifar10.lock").unlink()
    (root / ".cifar10.lock").mkdir()  # cannot be opened, not even by root
    assert sw.data.fetch("cifar10", root, tmp_path / "nowhere") == place


def test_the_makers_checksum_is_demanded(packed, server, tmp_path, monkeypatch):
    root, right = tmp_path / "root", md5(packed.archive)
    with pytest.raises(DataError, match=f"MD5 c32a1d4a.* or c58f3010.*, got {right}"):
        sw.data.fetch("cifar10", root, packed.archive)
    altered = bytearray(packed.archive.read_bytes())
    altered[len(altered) // 2] ^= 4
    for content in (bytes(altered), bytes(altered), packed.archive.read_bytes()[:5000]):
        server.content = content
        with pytest.raises(DataError, match="with MD5"):
            sw.data.fetch("cifar10", root, server.url, md5=right)
        assert not list(root.glob(".downloads/*")), "a wrong file is not kept for the next time"
    assert [asked for asked, _ in server.seen] == [None] * 3
    assert visible(root) == []
    # The same by default, with the makers' URL and checksum.
    server.content = packed.archive.read_bytes()
    monkeypatch.setitem(PUBLISHED, "cifar10", replace(PUBLISHED["cifar10"], archives=(Archive(server.url, right),)))
    assert sw.data.fetch("cifar10", root) == root / "cifar10"


def test_a_complete_download_survives_a_full_disk(packed, server, tmp_path, monkeypatch):
    server.content, root = packed.archive.read_bytes(), tmp_path / "root"

    def full(*args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(installing, "unpack", full)
        with pytest.raises(OSError, match="No space left"):
            sw.data.fetch("cifar10", root, server.url, md5=md5(packed.archive))
    assert visible(root) == []
    assert not (root / ".cifar10-partial").exists()
    sw.data.fetch("cifar10", root, server.url, md5=md5(packed.archive))
    assert len(server.seen) == 1
    assert not list(root.glob(".downloads/*"))


def test_official_checksums():
    assert {name: {archive.md5 for archive in entry.archives} for name, entry in PUBLISHED.items()} == {
        "cifar10": {"c58f30108f718f92721af3b95e74349a", "c32a1d4ab5d03f1284b67883e8d87530"},
        "cifar100": {"eb9058c3a382ffc7106e4002c42a8d85", "03b5dce01913d631647c71ecec9e9cb8"},
        "tiny-imagenet": {"90528d7ca1a48142e341f4ef8d21d0de"},
        "cuhk03": set(),
        "multi30k": set(),
    }


def test_an_incomplete_archive_is_not_installed(packed, make, tmp_path):
    (tmp_path / "made" / "cifar-10-batches-bin" / "data_batch_2.bin").unlink()
    archive = make.tar_of(tmp_path / "made" / "cifar-10-batches-bin", tmp_path / "set.tar.gz")
    for given in (archive, tmp_path / "made"):
        with pytest.raises(DataError, match=rf"expected {given}.*data_batch_2.bin, got no such file"):
            sw.data.fetch("cifar10", tmp_path / "root", given, md5=md5(archive))
        with pytest.raises(DataError, match=f"expected the files of cifar100 in {given}, got others"):
            sw.data.fetch("cifar100", tmp_path / "root", given, md5=md5(archive))
    assert visible(tmp_path / "root") == []


def test_what_lies_beside_a_data_set_is_not_copied(packed, tmp_path):
    beside = tmp_path / "made" / "another"  # more files than CIFAR can have
    beside.mkdir()
    for k in range(101):
        (beside / f"{k}.png").touch()
    (tmp_path / "made" / "link").symlink_to(beside)
    place = sw.data.fetch("cifar10", tmp_path / "root", tmp_path / "made")
    assert [path.name for path in place.iterdir() if path.is_dir()] == ["cifar-10-batches-bin"]


def test_files_that_are_not_the_makers_are_refused(packed, tmp_path):
    digests, made = cifar.SPECS["cifar10"].digests, tmp_path / "made"
    digests["test_batch.bin"] = hashlib.sha1((made / "cifar-10-batches-bin/test_batch.bin").read_bytes()).hexdigest()
    sw.data.fetch("cifar10", tmp_path / "one", made)
    digests["test_batch.bin"] = "0" * 40
    with pytest.raises(DataError, match="test_batch.bin as its makers published it, got another checksum"):
        sw.data.fetch("cifar10", tmp_path / "two", made)


def test_tiny_imagenet_from_its_zip(small_tiny, make, tmp_path):
    archive = make.zip_of(small_tiny, tmp_path / "tiny-imagenet-200.zip")
    sw.data.fetch("tiny-imagenet", tmp_path / "root", archive, md5=md5(archive))
    found = sw.data.load("tiny-imagenet", tmp_path / "root", split="val")
    assert torch.equal(found.images, sw.data.load(small_tiny, tmp_path / "other", split="val").images)
    assert sw.data.check("tiny-imagenet", tmp_path / "root").problems == []


def test_cuhk03_needs_a_file_given_by_hand(write_mat, tmp_path):
    with pytest.raises(DataError, match="expected a --source for cuhk03"):
        sw.data.fetch("cuhk03", tmp_path / "root")
    mat = tmp_path / "mine.mat"
    write_mat(mat, {"labeled": [[[np.full((4, 3, 3), p, np.uint8)] * 10] for p in range(5)]})
    with pytest.raises(DataError, match=f"mine.mat with MD5 {'0' * 32}, got {md5(mat)}"):
        sw.data.fetch("cuhk03", tmp_path / "root", mat, md5="0" * 32)
    place = sw.data.fetch("cuhk03", tmp_path / "root", mat)
    assert (place / "cuhk-03.mat").read_bytes() == mat.read_bytes()
    assert len(sw.data.load_matched("cuhk03", tmp_path / "root", split="all")) == 5


def test_what_is_there_is_not_overwritten(packed, tmp_path):
    root = tmp_path / "root"
    (root / "cifar10").mkdir(parents=True)
    (root / "cifar10" / "mine").write_text("precious")
    for force in (False, True):
        with pytest.raises(DataError, match="fetch did not install"):
            sw.data.fetch("cifar10", root, tmp_path / "made", force=force)
    assert (root / "cifar10" / "mine").read_text() == "precious"


def test_force_replaces_an_installation(packed, small_cifar, tmp_path):
    root = tmp_path / "root"
    other = small_cifar(seed=1)
    other.write(tmp_path / "other", "python")
    for given, force, expected in (("made", False, packed), ("other", False, packed), ("other", True, other)):
        sw.data.fetch("cifar10", root, tmp_path / given, force=force)
        found = sw.data.load("cifar10", root).images.numpy().reshape(-1, 3072)
        assert np.array_equal(found, expected.images["train"])
    assert not list(root.glob("cifar10/cifar-10-batches-bin"))
    with pytest.raises(DataError):  # and one that fails leaves the old one
        sw.data.fetch("cifar10", root, tmp_path / "nowhere", force=True)
    assert sw.data.check("cifar10", root).problems == []


def test_check_finds_what_changed(packed, tmp_path):
    root = tmp_path / "root"
    place = sw.data.fetch("cifar10", root, tmp_path / "made") / "cifar-10-batches-bin"
    one, two, three = (place / f"data_batch_{k}.bin" for k in (1, 2, 3))
    raw = bytearray(one.read_bytes())
    raw[100] ^= 1
    one.write_bytes(raw)
    assert len(sw.data.check("cifar10", root).problems) == 1
    two.write_bytes(two.read_bytes()[:-1])
    three.unlink()
    text = "\n".join(sw.data.check("cifar10", root).problems)
    assert "data_batch_1.bin with SHA-256" in text
    assert "data_batch_2.bin of 36,876 bytes, got 36,875" in text
    assert "data_batch_3.bin, got no such file" in text
    foreign = '{"version": 1, "name": "cifar100", "files": {}}'
    for manifest in ("", "[]", foreign, '{"version": 1, "files": {"/etc": 3}}', "[" * 100_000):
        (root / "cifar10" / ".setwise.json").write_text(manifest)
        assert any("expected the manifest of cifar10" in p for p in sw.data.check("cifar10", root).problems)


@pytest.mark.parametrize(
    ("name", "source", "said"),
    [
        ("cifar10", "nowhere.tar.gz", "got no such file"),
        ("cifar10", "ftp://example.org/x", "expected a source over http"),
        ("cifar-100", None, "did you mean 'cifar100'"),
        ("digits", None, "'digits', which has no files to fetch"),
    ],
)
def test_bad_sources(tmp_path, name, source, said):
    with pytest.raises(ValueError, match=said):
        sw.data.fetch(name, tmp_path, source)


def test_a_file_system_without_locks_is_named(packed, tmp_path, monkeypatch):
    fcntl, root = pytest.importorskip("fcntl"), tmp_path / "root"
    root.mkdir()

    def refuse(*args):
        raise OSError(errno.ENOLCK, "no locks here")

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", refuse)
        with pytest.raises(OSError, match=f"with locks for {root}, got: no locks here"):
            sw.data.fetch("cifar10", root, tmp_path / "made")
        monkeypatch.setenv("SETWISE_DATA", str(root))
        with pytest.warns(RuntimeWarning, match="got no place with locks"):
            cached(root, "key", root, [], ("x",), lambda place: np.save(place / "x.npy", np.arange(3)))
    assert visible(root) == []
    assert sw.data.fetch("cifar10", root, tmp_path / "made") == root / "cifar10"


# --- other processes -----------------------------------------------------------------------------------------------

PRELUDE = """
import json, os, signal, sys, time
from dataclasses import replace
from pathlib import Path
import setwise as sw
from setwise.data import installing
from setwise.data.fetching import archives, download
from setwise.data.formats import cifar
spec = cifar.SPECS["cifar10"]
cifar.SPECS["cifar10"] = replace(spec, records={"train": 12, "test": 12}, digests={})
"""

KILL = """
given, md5, base = sys.argv[1:]
POINTS = {
    "second file": (archives.Writer, "file", 2), "verify": (cifar, "read", 1),
    "manifest": (installing.json, "dumps", 1),
    "flush": (installing, "_flush", 1), "before the rename": (os, "replace", 1),
    "after the rename": (installing, "_flush_folder", 3),  # two folders of the set, then the root
}
told = {}
for name, (owner, attribute, at) in POINTS.items():
    root = Path(base) / name.replace(" ", "-")
    child = os.fork()
    if child == 0:
        original, calls = getattr(owner, attribute), 0
        def stop(*args, **kwargs):
            global calls
            calls += 1
            if calls == at:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*args, **kwargs)
        setattr(owner, attribute, stop)
        sw.data.fetch("cifar10", root, given, md5=md5)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    left = sorted(p.name for p in root.iterdir())
    try:
        looks = len(sw.data.load("cifar10", root))
    except sw.data.DataError as error:
        looks = str(error)
    sw.data.fetch("cifar10", root, given, md5=md5)
    told[name] = dict(status=status, left=left, looks=looks, after=sw.data.check("cifar10", root).problems,
                      end=sorted(p.name for p in root.iterdir()))
print(json.dumps(told))
"""


def test_a_kill_at_any_step_leaves_nothing_that_looks_complete(packed, tmp_path):
    run = subprocess.run(
        [sys.executable, "-c", PRELUDE + KILL, str(packed.archive), md5(packed.archive), str(tmp_path / "roots")],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    told = json.loads(run.stdout)
    assert len(told) == 6
    for point, found in told.items():
        assert found["status"] == 9, point  # it was killed, at that point
        if point == "after the rename":
            assert found["looks"] == 60, "from the rename on it is complete"
        else:
            assert "expected cifar10 in" in found["looks"], point
            assert ".cifar10-partial" in found["left"], point
            assert "cifar10" not in found["left"], point
        # The next fetch is not disturbed by what was left, and clears it away.
        assert found["after"] == []
        assert found["end"] == [".cifar10.lock", "cifar10"]


TWICE = """
url, md5, root, log = sys.argv[1:]
unpack = installing.unpack
def slowly(*args):
    with open(log, "a") as file: file.write("begin ")
    time.sleep(0.5)
    unpack(*args)
    with open(log, "a") as file: file.write("end ")
installing.unpack = slowly
print("ready", flush=True)
sys.stdin.readline()
print(len(list(sw.data.fetch("cifar10", root, url, md5=md5).rglob("*.bin"))), len(sw.data.load("cifar10", root)))
"""


def test_two_processes_at_once_install_once(packed, server, tmp_path):
    server.content = packed.archive.read_bytes()
    log = tmp_path / "log"
    command = [sys.executable, "-c", PRELUDE + TWICE, server.url, md5(packed.archive), str(tmp_path / "root"), str(log)]
    both = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        assert [p.stdout.readline() for p in both] == ["ready\n"] * 2
        for p in both:  # both are loaded: they start within milliseconds
            p.stdin.write("go\n")
            p.stdin.flush()
        assert [p.communicate(timeout=60)[0] for p in both] == ["6 60\n"] * 2
    finally:
        for p in both:
            p.kill()
            p.communicate()
    assert log.read_text() == "begin end ", "one unpacked, the other waited"
    assert len(server.seen) == 1


# --- the command line ----------------------------------------------------------------------------------------------


def test_the_commands(packed, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    root = tmp_path / "root"

    def run(*command):
        main(["data", *command, "--root", str(root)])
        return capsys.readouterr().out

    def listed():
        lines = [line.split() for line in run("list").splitlines()]
        return {words[0]: words[-1] for words in lines if words and words[0] in sw.register.data}

    assert listed().items() >= (dict.fromkeys(PUBLISHED, "no") | {"digits": "yes", "image-folder": "yes"}).items()
    given = ("--source", str(packed.archive), "--md5", md5(packed.archive))
    assert "cifar10 is in" in run("fetch", "cifar10", *given)
    out = run("check", "cifar10")
    assert "6 files" in out
    assert "train: 60 images of 3x32x32, 10 classes" in out
    assert listed()["cifar10"] == "cifar10/"
    (root / "cifar10" / "cifar-10-batches-bin" / "test_batch.bin").write_bytes(b"short")
    with pytest.raises(SystemExit) as stopped:
        run("check", "cifar10")
    assert stopped.value.code == 1
    assert "test_batch.bin of 36,876 bytes, got 5" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="^setwise: expected .*did you mean 'tiny-imagenet'"):
        run("check", "imagenet")
