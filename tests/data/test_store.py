"""Decoded images that are kept: the same bytes wherever they live, decoded once, whatever happens in between."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

import setwise as sw
from setwise.cli import main
from setwise.data import DataError, store, workers
from setwise.data.fetching import limits
from setwise.data.formats import decode
from setwise.data.index import VERSION
from setwise.recipe import Recipe
from setwise.runs import pretraining

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
RNG = np.random.default_rng(0)


def noise(height, width):
    small = RNG.integers(0, 256, (max(2, height // 8), max(2, width // 8), 3), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


def write(folder, count, *, start=0):
    folder.mkdir(exist_ok=True)
    for k in range(start, start + count):
        noise(40 + k % 7, 50 - k % 5).save(folder / f"{k:03}.png")


def rows(data):
    """All pixels, wherever they live."""
    return data.read(slice(None))


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("SETWISE_DATA", str(tmp_path / "root"))
    return tmp_path / "root"


@pytest.fixture
def photos(tmp_path):
    write(tmp_path / "photos", 40)
    return tmp_path / "photos"


@pytest.fixture
def decodes(tmp_path, monkeypatch):
    """The names of the files that were decoded since it was last asked; processes share the list."""
    log, read = tmp_path / "decodes", decode.read_image

    def noted(path, *args, **options):
        with log.open("a") as file:
            file.write(os.path.basename(path) + "\n")
        return read(path, *args, **options)

    monkeypatch.setattr(store, "read_image", noted)

    def since():
        found = Counter(log.read_text().split("\n")[:-1]) if log.exists() else Counter()
        log.unlink(missing_ok=True)
        return found

    return since


def test_the_same_bytes_everywhere_and_pillows(tmp_path, root):
    place, size = tmp_path / "mixed", (48, 32)
    place.mkdir()
    exif = Image.Exif()
    exif[0x0112] = 6
    noise(300, 700).save(place / "a.jpg")
    noise(300, 700).save(place / "b.jpg", exif=exif)  # on its side
    noise(500, 900).convert("CMYK").save(place / "c.jpg")
    noise(200, 100).save(place / "d.png")
    noise(90, 90).convert("P").save(place / "e.gif")
    noise(60, 40).save(place / "f.jpg")  # too small to be halved
    state = torch.get_rng_state()
    found = {where: sw.data.load(place, size=size, pixels=where) for where in ("resident", "mapped", "files")}
    assert found["resident"].pixels is None
    assert found["mapped"].images.device.type == found["files"].images.device.type == "meta"
    whole = rows(found["resident"])
    assert whole.shape == (6, 3, 48, 32)
    for where in ("mapped", "files"):
        assert torch.equal(rows(found[where]), whole)
        part = found[where].select(torch.tensor([4, 0, 1, 3]), split="part")
        assert torch.equal(part.read(torch.tensor([2, 0])), whole[[1, 4]])
        assert torch.equal(torch.cat(list(part.chunks(3))), whole[[4, 0, 1, 3]])
    assert torch.equal(torch.get_rng_state(), state)
    listed = sw.data.from_images([place / name for name in found["files"].paths], size=size)
    assert torch.equal(listed.images, whole)
    for k, name in enumerate(found["mapped"].paths):
        with Image.open(place / name) as image:
            # JPEG's own halving: what stays is at least twice as large as needed. These sides are multiples of 4.
            scale = {"a.jpg": 2, "b.jpg": 4, "c.jpg": 4}.get(name, 1)
            if image.format == "JPEG":
                image.draft(None, (image.width // scale, image.height // scale))
            expected = ImageOps.fit(
                ImageOps.exif_transpose(image).convert("RGB"), size[::-1], Image.Resampling.BILINEAR
            )
            with Image.open(place / name) as full:
                close = ImageOps.fit(
                    ImageOps.exif_transpose(full).convert("RGB"), size[::-1], Image.Resampling.BILINEAR
                )
        assert np.array_equal(whole[k].permute(1, 2, 0), np.array(expected)), name
        assert np.abs(np.array(expected, int) - np.array(close, int)).mean() < 2


@pytest.mark.parametrize(("height", "width", "turned"), [(427, 640, False), (1003, 801, True), (399, 1207, True)])
def test_halved_jpegs_are_where_whole_ones_are(tmp_path, monkeypatch, height, width, turned):
    """Whose sides are no multiples of what they are divided by."""
    exif = Image.Exif()
    exif[0x0112] = 8 if turned else 1
    noise(height // 4, width // 4).resize((width, height)).save(tmp_path / "one.jpg", quality=95, exif=exif)
    found = decode.read_image(tmp_path / "one.jpg", (48, 64), crop=True)
    with Image.open(tmp_path / "one.jpg") as image:
        whole = ImageOps.fit(ImageOps.exif_transpose(image), (64, 48), Image.Resampling.BILINEAR)
    error = np.square(found.astype(float) - np.array(whole, float)).mean()
    assert error > 0
    assert 10 * np.log10(255**2 / error) > 48


def test_few_files_are_not_kept_and_many_are_decoded_once(photos, root, decodes, monkeypatch):
    first = sw.data.load(photos)
    assert not root.exists()
    assert len(decodes()) == 40
    monkeypatch.setattr("setwise.data.index.FEW_FILES", 10)
    for where in ("resident", "mapped", "auto"):
        again = sw.data.load(photos, pixels=where)
        assert torch.equal(rows(again), first.images)
        assert decodes() == (Counter(first.paths) if where == "resident" else Counter())
    monkeypatch.setattr(decode, "image_size", None)  # the default size is kept too
    assert sw.data.load(photos).images.shape == first.images.shape
    parts = [sw.data.load(photos, size=size, pixels="mapped") for size in (16, (8, 24))]
    assert [len(list(root.rglob("*.index"))), *(len(part) for part in parts)] == [3, 40, 40]


def test_resident_pixels_that_wait_are_read_once_and_only_where_they_are_left(photos, root, monkeypatch):
    whole = sw.data.load(photos, size=32).images
    assert sw.data.load(photos, size=32, wait=True).pixels is None, "few files are in no file"
    monkeypatch.setattr("setwise.data.index.FEW_FILES", 0)
    waiting = sw.data.load(photos, size=32, wait=True)
    reads, read = [], sw.data.pixels.StoredPixels.read
    monkeypatch.setattr(
        sw.data.pixels.StoredPixels,
        "read",
        lambda self, rows, out: (reads.extend(rows.tolist()), read(self, rows, out))[1],
    )
    places = torch.tensor([5, 3, 39])
    some = waiting.select(places, split="train").in_memory()
    assert (some.pixels, reads) == (None, [5, 3, 39])
    assert torch.equal(some.images, whole[places])
    assert torch.equal(waiting.in_memory().images, whole)
    mapped = sw.data.load(photos, size=32, pixels="mapped", wait=True)
    assert mapped.in_memory() is mapped
    reads.clear()
    train, test = pretraining.splits(Recipe.read({"data": {"source": str(photos), "size": 32}}), root)
    assert sorted(reads) == list(range(40)), "a run reads each image once, whether it trains on it or holds it out"
    order = [waiting.paths.index(path) for path in train.paths + test.paths]
    assert torch.equal(torch.cat([train.images, test.images]), whole[order])


def test_many_images_are_the_same_in_memory_of_their_own(photos, root, monkeypatch):
    monkeypatch.setattr("setwise.data.index.FEW_FILES", 0)
    waiting = sw.data.load(photos, size=32, wait=True)
    few = waiting.in_memory().images
    monkeypatch.setattr(sw.data.pixels, "PART_BYTES", 3 * 3 * 32 * 32)
    many = waiting.in_memory().images
    assert torch.equal(many, few)
    many.zero_()  # a copy, not the file
    assert torch.equal(waiting.in_memory().images, few)


def test_a_device_gets_images_that_wait_through_little_memory(photos, root, monkeypatch):
    monkeypatch.setattr("setwise.data.index.FEW_FILES", 0)
    waiting = sw.data.load(photos, size=32, wait=True).select(torch.tensor([7, 3, 39, 8, 0]), split="train")
    monkeypatch.setattr(sw.data.pixels, "WAY_BYTES", 2 * 3 * 32 * 32)
    out = torch.zeros(5, 3, 32, 32, dtype=torch.uint8)
    assert waiting.pixels.copy_to(out) is out
    assert torch.equal(out, waiting.read(slice(None)))
    assert waiting.pixels.onto(torch.device("meta")).shape == out.shape


def test_a_run_whose_images_wait_until_they_are_on_the_device_is_the_same(photos, root, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("setwise.data.index.FEW_FILES", 0)
    for name in "ab":
        (photos / name).mkdir()
    for k, path in enumerate(sorted(photos.glob("*.png"))):
        path.rename(photos / "ab"[k % 2] / path.name)
    options = {"changes": {"size": 32, "epochs": 2, "probe.epochs": 2}, "device": "cpu", "quiet": False}
    plain = sw.pretrain(photos, out=tmp_path / "plain", **options)
    moved, onto = [], sw.data.pixels.StoredPixels.onto
    monkeypatch.setattr(
        sw.data.pixels.StoredPixels, "onto", lambda self, device: (moved.append(len(self)), onto(self, device))[1]
    )
    monkeypatch.setattr(sw.data.ImageSet, "in_memory", lambda self: self)  # as for a GPU
    waited = sw.pretrain(photos, out=tmp_path / "waited", **options)
    assert moved == [36]
    assert capsys.readouterr().out.count("stay in the memory of cpu") == 2
    accuracies = [{k: v for k, v in run.record["final"].items() if k != "timings"} for run in (plain, waited)]
    assert accuracies[0] == accuracies[1]
    for one, other in zip(plain.encoder.parameters(), waited.encoder.parameters(), strict=True):
        assert torch.equal(one, other)


def test_where_pixels_live_follows_their_size(photos, root, monkeypatch):
    total = 40 * 3 * 32 * 32
    assert sw.data.load(photos, size=32, most_bytes=total).pixels is None
    mapped = sw.data.load(photos, size=32, most_bytes=total - 1)
    assert isinstance(mapped.pixels, sw.data.pixels.StoredPixels)
    monkeypatch.setattr(store, "available_bytes", lambda: 2 * total - 1)
    assert sw.data.load(photos, size=32, most_bytes=2 * total).pixels is not None
    with pytest.raises(ValueError, match="expected pixels"):
        sw.data.load(photos, pixels="here")
    with pytest.raises(ValueError, match="auto or resident for digits"):
        sw.data.load("digits", pixels="mapped")


@pytest.mark.parametrize("part", [1, 5 * 3 * 64, 10**9])
def test_many_rows_are_read_by_threads(tmp_path, monkeypatch, part):
    monkeypatch.setattr(sw.data.pixels, "PART_BYTES", part)
    images = torch.randint(0, 256, (40, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    (tmp_path / "images").write_bytes(images.numpy().tobytes())
    pixels = sw.data.pixels.StoredPixels(tmp_path / "images", images.shape)
    places = torch.tensor([7, 8, 9, 3, 3, 39, 0, 1, 20])
    assert torch.equal(pixels[:], images)
    assert torch.equal(pixels[places], images[places])
    (tmp_path / "images").write_bytes(b"short")
    with pytest.raises(DataError, match="got an end"):
        pixels[:]


def test_a_full_disk_is_told_before_it_happens(photos, root, decodes, monkeypatch):
    whole = rows(sw.data.load(photos, size=32))
    decodes()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9 - 1000, 1000))
    with pytest.raises(DataError, match=r"expected 122,880 bytes of disk for 40 .* got 1,000 that are free"):
        sw.data.load(photos, size=32, pixels="mapped")
    assert not decodes()
    with pytest.warns(RuntimeWarning, match="whenever they are needed"):
        found = sw.data.load(photos, size=32, most_bytes=0)
    assert "in their files" in found.pixels.where
    assert torch.equal(rows(found), whole)
    monkeypatch.setattr("setwise.data.index.FEW_FILES", 0)
    with pytest.warns(RuntimeWarning, match="in memory"):
        assert torch.equal(rows(sw.data.load(photos, size=32)), whole)


def test_no_place_to_write(photos, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("SETWISE_DATA", str(tmp_path / "file" / "root"))
    with pytest.warns(RuntimeWarning, match="no place with locks"):
        assert "in their files" in sw.data.load(photos, size=32, pixels="mapped").pixels.where


def test_changed_files_alone_are_decoded_anew(photos, root, decodes):
    before = sw.data.load(photos, size=32, pixels="mapped")
    old = rows(before)
    decodes()
    noise(60, 70).save(photos / "003.png")
    os.utime(photos / "003.png", ns=(1, 10**18))
    (photos / "005.png").unlink()
    write(photos, 2, start=40)
    after = sw.data.load(photos, size=32, pixels="mapped")
    assert decodes() == Counter(["003.png", "040.png", "041.png"])
    assert after.paths == tuple(sorted(path.name for path in photos.iterdir()))
    assert torch.equal(rows(after), rows(sw.data.load(photos, size=32)))
    assert torch.equal(rows(before), old)  # who reads it reads on
    decodes()
    for path in photos.iterdir():
        os.utime(path, ns=(1, 2 * 10**18))
    assert torch.equal(rows(sw.data.load(photos, size=32, pixels="mapped")), rows(after))
    (images,) = root.rglob("*.images")  # rows of old files went
    assert images.stat().st_size == 41 * 3 * 32 * 32
    assert torch.equal(rows(before), old)


@pytest.mark.parametrize("damage", ["cut", "line", "torn", "header", "no images", "version"])
def test_a_damaged_file_is_made_again(photos, root, decodes, monkeypatch, damage):
    monkeypatch.setattr(store, "WRITE_SECONDS", 0)
    whole = rows(sw.data.load(photos, size=32, pixels="mapped"))
    decodes()
    (index,), (images,) = root.rglob("*.index"), root.rglob("*.images")
    raw, few = bytearray(index.read_bytes()), 40
    if damage == "cut":
        os.truncate(images, images.stat().st_size - 3 * 32 * 32 - 1)
        few = 2
    elif damage == "line":
        raw[-10] ^= 1
        few = workers.CHUNK
    elif damage == "torn":
        raw, few = raw[:-10], workers.CHUNK
    elif damage == "header":
        raw[12] ^= 1
    elif damage == "no images":
        images.unlink()
    else:
        monkeypatch.setattr("setwise.data.index.VERSION", VERSION + 1)
    index.write_bytes(raw)
    assert torch.equal(rows(sw.data.load(photos, size=32, pixels="mapped")), whole)
    assert 0 < len(decodes()) <= few
    assert torch.equal(rows(sw.data.load(photos, size=32, pixels="mapped")), whole)
    assert not decodes()


def test_broken_files_are_remembered_until_they_change(photos, root, decodes):
    (photos / "007.png").write_bytes(b"no image")
    for _ in range(2):
        with pytest.raises(DataError, match=r"got 1 that cannot be read.*\n  007.png: its content is none of"):
            sw.data.load(photos, size=32, pixels="mapped")
    assert decodes()["007.png"] == 1
    found = sw.data.load(photos, size=32, pixels="mapped", options={"skip_broken": True})
    assert "007.png" not in found.paths
    assert torch.equal(rows(found), rows(sw.data.load(photos, size=32, options={"skip_broken": True})))
    lazy = sw.data.load(photos, size=32, pixels="files", options={"skip_broken": True})
    assert lazy.paths == found.paths
    met = sw.data.load(photos, size=32, pixels="files")
    for read in (rows, lambda data: list(data.chunks(16))):
        with pytest.raises(DataError, match=r"007.png .*setwise data check.*--skip-broken"):
            read(met)
    noise(50, 50).save(photos / "007.png")
    assert len(sw.data.load(photos, size=32, pixels="mapped")) == 40
    (photos / "none").mkdir()
    (photos / "none" / "x.png").touch()
    with pytest.raises(DataError, match="none is left"):
        sw.data.load(photos / "none", size=32, pixels="mapped")


def test_a_file_that_ends_the_decoder_is_named(photos, root, monkeypatch):
    read = decode.read_image

    def crash(path, *args, **options):
        if str(path).endswith(("011.png", "030.png")):
            os.kill(os.getpid(), signal.SIGSEGV)
        return read(path, *args, **options)

    whole = rows(sw.data.load(photos, size=32))
    for module in (store, sw.data.pixels):
        monkeypatch.setattr(module, "read_image", crash)
    for where in ("mapped", "resident"):
        with pytest.raises(DataError, match="got 2 that cannot be read") as caught:
            sw.data.load(photos, size=32, pixels=where)
        for name in ("011.png", "030.png"):
            assert f"  {name}: decoding it ended the process: " in str(caught.value)
    found = sw.data.load(photos, size=32, pixels="mapped", options={"skip_broken": True})
    kept = [k for k in range(40) if k not in (11, 30)]
    assert torch.equal(rows(found), whole[kept])
    with pytest.raises(DataError, match=r"a process that died.*(011|030)\.png"):
        list(sw.data.load(photos, size=32, pixels="files").chunks(20))
    monkeypatch.setattr(store, "read_image", read)
    assert len(sw.data.load(photos, size=32, pixels="mapped")) == 40  # it may have been for lack of memory


# A process that decodes slowly, and notes what; it is killed, or has a twin.
SLOW = """
import os, sys, time
import setwise as sw
from setwise.data import store
photos, log = sys.argv[1:]
read = store.read_image
store.WRITE_SECONDS = 0

def slow(path, *args, **options):
    with open(log, "a") as file:
        file.write(os.path.basename(path) + "\\n")
    time.sleep(0.02)
    return read(path, *args, **options)

store.read_image = slow
data = sw.data.load(photos, size=32, pixels="mapped")
print(int(data.read(slice(None)).sum()))
"""


def test_killed_decoding_goes_on(tmp_path, root):
    photos, log = tmp_path / "photos", tmp_path / "log"
    write(photos, 120)
    whole = rows(sw.data.load(photos, size=32))
    command = [sys.executable, "-c", SLOW, str(photos), str(log)]
    with subprocess.Popen(command) as process:
        while not (found := list(root.rglob("*.index"))) or found[0].stat().st_size < 1000:
            time.sleep(0.005)
        process.kill()
    lines = [line for line in found[0].read_bytes().split(b"\n") if line][1:]
    known = {name for line in lines for name, *_ in json.loads(line[9:])}
    assert 0 < len(known) < 120
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    times = Counter(log.read_text().split())
    assert {times[name] for name in known} == {1}
    assert set(times) == {path.name for path in photos.iterdir()}
    assert int(done.stdout) == int(whole.sum())
    assert torch.equal(rows(sw.data.load(photos, size=32, pixels="mapped")), whole)


def test_two_processes_share(photos, tmp_path, root):
    command = [sys.executable, "-c", SLOW, str(photos), str(tmp_path / "log")]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = {process.communicate()[0] for process in both}
    assert [process.returncode for process in both] == [0, 0]
    assert said == {f"{int(rows(sw.data.load(photos, size=32)).sum())}\n"}
    assert Counter((tmp_path / "log").read_text().split()) == Counter(path.name for path in photos.iterdir())


def test_training_does_not_depend_on_where_pixels_live(photos, tmp_path, root, capsys):
    weights = {}
    for where in ("resident", "mapped", "files"):
        command = ["pretrain", str(photos), "--size", "32", "--epochs", "1", "--batch", "8", "--device", "cpu"]
        main([*command, "--pixels", where, "--out", str(tmp_path / where)])
        assert {"resident": "in the memory", "mapped": "in a file of", "files": "in their files"}[
            where
        ] in capsys.readouterr().out
        weights[where] = sw.load_run(tmp_path / where).encoder.state_dict()
    for name, value in weights["resident"].items():
        assert torch.equal(value, weights["mapped"][name])
        assert torch.equal(value, weights["files"][name])


def test_what_is_kept_is_shown_and_removed(photos, root, capsys):
    data = sw.data.load(photos, size=32, pixels="mapped")
    main(["data", "list"])
    assert f"0.1 MB {photos}" in capsys.readouterr().out
    main(["data", "clean", str(root)])
    assert "no decoded images" in capsys.readouterr().out
    main(["data", "clean", str(photos)])
    assert "removed" in capsys.readouterr().out
    assert not list(root.rglob("*.images"))
    assert rows(data).shape == (40, 3, 32, 32)


@pytest.mark.parametrize("version", [1, 2])
def test_control_groups_limit_the_memory(tmp_path, version):
    mount = tmp_path / ("memory" if version == 1 else "cgroup")
    names = (
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache")
        if version == 1
        else ("memory.max", "memory.current", "file")
    )
    for place, limit in ((mount / "a" / "b", "max"), (mount / "a", "1000"), (mount, "5000")):
        place.mkdir(parents=True, exist_ok=True)
        (place / names[0]).write_text(f"{limit}\n")
        (place / names[1]).write_text("700\n")
        (place / "memory.stat").write_text(f"anon 400\n{names[2]} 300\n")
    assert sorted(limits._left_in(mount, "/a/b")) == [600, 4600]
    assert limits.available_bytes() > 0
