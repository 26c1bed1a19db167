"""tiny-ImageNet and folders of images, against Pillow."""

import io
import os
import shutil
from tempfile import TemporaryFile

import numpy as np
import pytest
import torch
from PIL import Image

import setwise as sw
from setwise import locks
from setwise.data import DataError
from setwise.data.fetching.cache import cached
from setwise.data.formats import decode, tiny_imagenet


def pixels(path):
    with Image.open(path) as image:
        return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)


def test_tiny_imagenet_reads_train_folders_and_val_annotations(small_tiny, tmp_path):
    root = tmp_path / "root"
    (small_tiny / "train" / "notes.txt").write_text("no class")
    (small_tiny / "train" / ".ipynb_checkpoints").mkdir()
    train = sw.data.load(small_tiny, root)
    val = sw.data.load(small_tiny.parent, root, split="test")
    assert train.classes == val.classes == ("n01", "n02", "n03")
    assert train.images.shape == (12, 3, 64, 64)
    assert (train.name, train.split, val.split) == ("tiny-imagenet", "train", "val")
    for k, path in enumerate(sorted(small_tiny.glob("train/*/images/*.JPEG"))):
        assert torch.equal(train.images[k], pixels(path))
        assert train.classes[train.labels[k]] == path.parent.parent.name
    for k in range(6):
        assert torch.equal(val.images[k], pixels(small_tiny / "val" / "images" / f"val_{k}.JPEG"))
        assert val.classes[val.labels[k]] == ["n03", "n01", "n02"][k % 3]
    assert train.mean == (0.5,) * 3


def test_images_in_folders_within_a_class_are_not_lost_silently(pictures):
    inner = pictures / "train" / "crow" / "more" / "still"
    inner.mkdir(parents=True)
    (inner / "notes.txt").write_text("no image")
    before = sw.data.load(pictures).images
    hidden = pictures / "train" / "crow" / ".cache"
    hidden.mkdir()
    Image.new("RGB", before.shape[:1:-1]).save(hidden / "thumbnail.png")
    assert torch.equal(sw.data.load(pictures).images, before)
    Image.new("RGB", before.shape[:1:-1]).save(inner / "one.png")
    found = sw.data.load(pictures)
    assert len(found) == len(before) + 1
    place = found.paths.index("train/crow/more/still/one.png")
    assert found.classes[found.labels[place]] == "crow"


def test_photos_are_upright(tmp_path):
    turned = np.zeros((32, 40, 3), np.uint8)
    turned[:, :20] = 200
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees to the right
    for name in ("a", "b"):
        place = tmp_path / "train" / name
        place.mkdir(parents=True)
        Image.fromarray(turned).save(place / "one.jpg", exif=exif, quality=100)
    found = sw.data.load(tmp_path).images
    assert found.shape == (2, 3, 40, 32)
    assert found[0, 0, :18].min() > 150 > 50 > found[0, 0, 22:].max()


def test_the_decoded_images_are_mapped_and_kept(small_tiny, tmp_path, monkeypatch):
    root = tmp_path / "root"
    first = sw.data.load(small_tiny, root)
    (file,) = root.glob(".decoded/*/images.npy")
    monkeypatch.setattr(decode, "to_array", None)  # a second decoding would fail
    again = sw.data.load(small_tiny, root)
    assert torch.equal(first.images, again.images)
    # Mapped, not read: what the file holds now is what the tensor shows; and a write stays out of the file.
    mapped = np.lib.format.open_memmap(file, mode="r+")
    mapped[5] = 77
    mapped.flush()
    assert (sw.data.load(small_tiny, root).images[5] == 77).all()
    again.images[0] = 1
    assert not (sw.data.load(small_tiny, root).images[0] == 1).all()


def numbers(place):
    np.save(place / "x.npy", np.arange(6))


def without_cache(root):
    """A root where decoded images cannot be kept, not even by root, whom no permissions stop."""
    root.mkdir()
    (root / ".decoded").write_text("a file, not a folder")
    return root


def test_a_root_that_cannot_be_written_keeps_its_images_in_the_default_root(small_tiny, tmp_path, monkeypatch):
    default = tmp_path / "default"
    monkeypatch.setenv("SETWISE_DATA", str(default))
    root, other = without_cache(tmp_path / "root"), tmp_path / "other"
    shutil.copytree(small_tiny, other)  # same names, sizes and times, one other image
    path = other / "train" / "n01" / "images" / "n01_0.JPEG"
    stamp, raw = path.stat(), bytearray(path.read_bytes())
    raw[-10] ^= 1
    path.write_bytes(raw)
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    found = [sw.data.load(place, root).images for place in (small_tiny, other)]
    assert torch.equal(found[0][0], pixels(small_tiny / "train" / "n01" / "images" / "n01_0.JPEG"))
    assert torch.equal(found[1][0], pixels(path))
    assert not torch.equal(found[0][0], found[1][0])
    assert len(list(default.glob(".decoded/*/images.npy"))) == 2
    monkeypatch.setattr(decode, "to_array", None)  # both are kept: a second decoding would fail
    for place, images in zip((small_tiny, other), found, strict=True):
        assert torch.equal(sw.data.load(place, root).images, images)


def test_what_a_root_that_cannot_be_written_has_already_is_used(tmp_path, monkeypatch):
    monkeypatch.setenv("SETWISE_DATA", str(tmp_path / "default"))
    cached(tmp_path / "root", "key", tmp_path, [], ("x",), numbers)

    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.mkdir", refuse)
    (array,) = cached(tmp_path / "root", "key", tmp_path, [], ("x",), None)
    assert array.tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("anothers", ["lock", "folder"])
def test_a_cache_of_another_user_is_passed_over(tmp_path, monkeypatch, anothers):
    monkeypatch.setenv("SETWISE_DATA", str(tmp_path / "default"))
    theirs = tmp_path / "root" / ".decoded"
    theirs.mkdir(parents=True)
    if anothers == "lock":
        cached(tmp_path / "root", "key", tmp_path, [], ("x",), numbers)
        (lock,), (kept,) = theirs.glob("*.lock"), theirs.glob("key-*-*")
        lock.unlink()
        lock.mkdir()  # cannot be opened, not even by root
        shutil.rmtree(kept)
    else:

        def only_default(dir):
            if dir == theirs:
                raise PermissionError(13, "Permission denied")
            return TemporaryFile(dir=dir)

        monkeypatch.setattr(locks, "TemporaryFile", only_default)
    (array,) = cached(tmp_path / "root", "key", tmp_path, [], ("x",), numbers)
    assert array.tolist() == [0, 1, 2, 3, 4, 5]
    assert len(list(tmp_path.glob("default/.decoded/key-*/x.npy"))) == 1


def test_where_nothing_can_be_kept_images_are_decoded_each_time(tmp_path, monkeypatch):
    root, default = without_cache(tmp_path / "root"), without_cache(tmp_path / "default")
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("SETWISE_DATA", str(default))
    for _ in range(2):
        with pytest.warns(RuntimeWarning, match=r"root/.decoded or .*default/.decoded, got no place .* each time: set"):
            (array,) = cached(root, "key", tmp_path, [], ("x",), numbers)
        assert array.tolist() == [0, 1, 2, 3, 4, 5]
        array[0] = 7  # still a copy of its own
    assert not list((tmp_path / "tmp").iterdir())
    monkeypatch.setattr("pathlib.Path.home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    monkeypatch.delenv("SETWISE_DATA")
    with pytest.warns(RuntimeWarning, match=r"decoded images in \S*root/.decoded, got no place"):
        cached(root, "key", tmp_path, [], ("x",), numbers)


@pytest.mark.parametrize("damage", ["newer", "other", "truncated cache", "lost cache file"])
def test_the_cache_follows_its_sources(small_tiny, tmp_path, damage):
    root = tmp_path / "root"
    before = sw.data.load(small_tiny, root).images.clone()
    path = small_tiny / "train" / "n01" / "images" / "n01_2.JPEG"
    (file,) = root.glob(".decoded/*/images.npy")
    if damage == "newer":
        raw, size = io.BytesIO(), path.stat().st_size
        Image.new("RGB", (64, 64), (200, 10, 10)).save(raw, "JPEG")
        path.write_bytes(raw.getvalue().ljust(size, b"\0"))  # as long as before: only the time tells
        assert path.stat().st_size == size
    elif damage == "other":
        stamp = path.stat()
        path.write_bytes((small_tiny / "train" / "n02" / "images" / "n02_3.JPEG").read_bytes())
        os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))  # an older file moved there, of another length
        assert path.stat().st_size != stamp.st_size
    elif damage == "truncated cache":
        file.write_bytes(file.read_bytes()[:-5])
    else:
        file.unlink()
    after = sw.data.load(small_tiny, root).images
    assert torch.equal(after[2], pixels(path))
    assert torch.equal(after[[0, 1, *range(3, 12)]], before[[0, 1, *range(3, 12)]])
    assert len(list(root.glob(".decoded/*/images.npy"))) == 1, "the stale one is gone"


def test_a_decoding_that_fails_leaves_no_cache(small_tiny, tmp_path):
    path = small_tiny / "train" / "n03" / "images" / "n03_3.JPEG"
    whole = path.read_bytes()
    path.write_bytes(whole[:500])
    for _ in range(2):
        with pytest.raises(DataError, match=r"n03_3.JPEG to be a whole image, got OSError.*fetch"):
            sw.data.load(small_tiny, tmp_path / "root")
        assert [p.name for p in (tmp_path / "root" / ".decoded").iterdir() if p.is_dir()] == []
    path.write_bytes(whole)
    assert len(sw.data.load(small_tiny, tmp_path / "root")) == 12


@pytest.mark.parametrize("kind", ["tiny-imagenet", "cuhk-03.mat"])
def test_a_full_disk_is_said_to_be_one(small_tiny, write_mat, tmp_path, kind):
    resource = pytest.importorskip("resource")
    source, load = small_tiny, sw.data.load
    if kind == "cuhk-03.mat":
        source, load = tmp_path / kind, sw.data.load_matched
        write_mat(source, {"labeled": [[[np.zeros((4, 3, 3), np.uint8)] * 10]] * 5})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, before[1]))  # less than the images need
    try:
        with pytest.raises(OSError, match=r"expected to keep decoded images in .*\.decoded, got: .*is the disk full\?"):
            load(source, tmp_path / "root")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [p.name for p in (tmp_path / "root" / ".decoded").iterdir() if p.is_dir()] == []
    assert len(load(source, tmp_path / "root"))


def test_an_image_of_another_size_is_not_resized(small_tiny, tmp_path):
    Image.new("RGB", (32, 64)).save(small_tiny / "val" / "images" / "val_2.JPEG")
    with pytest.raises(DataError, match=r"val_2.JPEG to be 64x64 .* got 64x32; .*fetch the data set again"):
        sw.data.load(small_tiny, tmp_path / "root", split="val")


@pytest.mark.parametrize(
    ("split", "lost", "said"),
    [
        ("train", "train/n01/images/n01_0.JPEG", "expected 4 images in .*n01, got 3"),
        ("train", "train/n02", "expected 3 class folders in .*train, got 2"),
        ("val", "val/images/val_3.JPEG", "line 4 of .*val_annotations.txt"),
    ],
)
def test_incomplete_tiny_imagenets_are_refused(small_tiny, split, lost, said):
    place = small_tiny / lost
    shutil.rmtree(place) if place.is_dir() else place.unlink()
    with pytest.raises(DataError, match=said):
        sw.data.load("tiny-imagenet", small_tiny, split=split)


@pytest.mark.parametrize(
    "row", ["../../../secret.JPEG\tn01", "val_5.JPEG\tn9", "val_0.JPEG\tn01", "val_5.JPEG", "\xff", "/val_5.JPEG\tn01"]
)  # fmt: skip
def test_annotations_name_only_listed_images_and_classes(small_tiny, row):
    file = small_tiny / "val" / "val_annotations.txt"
    (small_tiny.parent / "secret.JPEG").write_bytes((small_tiny / "val" / "images" / "val_0.JPEG").read_bytes())
    rows = file.read_text().splitlines()[:5]
    file.write_text("\n".join([*rows, row]), encoding="latin-1")
    with pytest.raises(DataError, match="expected line 6 of .*val_annotations.txt to name an image"):
        tiny_imagenet.listing(small_tiny, "val")
    file.write_text("\n".join(rows))
    with pytest.raises(DataError, match="expected 6 images in .*, got 6 and 5"):
        tiny_imagenet.listing(small_tiny, "val")


@pytest.mark.parametrize("inside", ["", "images"])
@pytest.mark.parametrize("annotated", [True, False])
def test_tiny_imagenet_with_val_sorted_into_classes_is_the_same(small_tiny, tmp_path, inside, annotated):
    official = [sw.data.load(small_tiny, tmp_path / "root", split=split) for split in ("train", "test")]
    for row in (small_tiny / "val" / "val_annotations.txt").read_text().splitlines():
        file, label, *_ = row.split("\t")
        place = small_tiny / "val" / label / inside
        place.mkdir(parents=True, exist_ok=True)
        (small_tiny / "val" / "images" / file).rename(place / file)
    (small_tiny / "val" / "images").rmdir()
    if not inside:
        for path in small_tiny.glob("train/*/images/*.JPEG"):
            path.rename(path.parent.parent / path.name)
        for path in small_tiny.glob("train/*/images"):
            path.rmdir()
    if not annotated:
        (small_tiny / "val" / "val_annotations.txt").unlink()
    place = sw.data.fetch("tiny-imagenet", tmp_path / "other", small_tiny)
    for split, expected in zip(("train", "test"), official, strict=True):
        for found in (sw.data.load(small_tiny, tmp_path / "new", split=split), sw.data.load(place, split=split)):
            assert (found.name, found.split, found.classes) == (expected.name, expected.split, expected.classes)
            assert torch.equal(found.images, expected.images)
            assert torch.equal(found.labels, expected.labels)
    next(small_tiny.glob("val/n01/**/*.JPEG")).unlink()
    with pytest.raises(DataError, match="expected 6 images in the class folders of .*val, got 5"):
        sw.data.load(small_tiny, tmp_path / "new", split="test")


def test_folders_with_as_many_classes_are_not_taken_for_tiny_imagenet(small_tiny, tmp_path):
    for split in ("val", "test"):
        shutil.rmtree(small_tiny / split)
    for path in small_tiny.glob("train/*/images/*.JPEG"):
        path.rename(path.parent.parent / path.name)
    for name in ("n01", "n02", "n03"):
        (small_tiny / "train" / name / "images").rmdir()
        (small_tiny / "val" / name).mkdir(parents=True)
        (small_tiny / "train" / name / f"{name}_3.JPEG").rename(small_tiny / "val" / name / "one.JPEG")
    assert sw.data.load(small_tiny, split="test").name == small_tiny.name


# --- any folder of images ------------------------------------------------------------------------------------------


@pytest.fixture
def pictures(tmp_path):
    rng, root = np.random.default_rng(0), tmp_path / "birds"
    for split, count in (("train", 3), ("val", 2)):
        for name in ("crow", "auk"):
            folder = root / split / name
            folder.mkdir(parents=True)
            for k in range(count):
                image = Image.fromarray(rng.integers(0, 256, (10, 14, 3), dtype=np.uint8))
                image.save(folder / f"{k}.{('png', 'jpg', 'JPEG')[k]}")
            (folder / "notes.txt").write_text("no image")
    return root


def test_a_folder_of_images(pictures):
    train, val = sw.data.load(pictures), sw.data.load(str(pictures), split="test")
    assert (train.name, train.split, val.split) == ("birds", "train", "val")
    assert train.classes == val.classes == ("auk", "crow")
    assert train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert val.labels.tolist() == [0, 0, 1, 1]
    assert torch.equal(train.images[4], pixels(pictures / "train" / "crow" / "1.jpg"))
    assert torch.equal(val.images[0], pixels(pictures / "val" / "auk" / "0.png"))


def test_images_are_resized_and_cropped(pictures):
    Image.new("L", (20, 5), 90).save(pictures / "train" / "crow" / "9.png")
    found = sw.data.load(pictures, size=(8, 6))
    assert found.images.shape == (7, 3, 8, 6)
    with Image.open(pictures / "train" / "auk" / "0.png") as image:
        expected = np.array(image.resize((6, 8), Image.Resampling.BILINEAR, box=(3.25, 0, 10.75, 10)))
    assert np.array_equal(found.images[0].permute(1, 2, 0).numpy(), expected)
    assert (found.images[6] == 90).all()
    square = sw.data.load(pictures, size=(8, 8)).images
    for size in (8, [8, 8], np.int64(8)):
        assert torch.equal(sw.data.load(pictures, size=size).images, square)
    assert sw.data.load_matched(pictures, size=8, split="all").images.shape[1:] == (3, 8, 4)
    for bad in ((8, 0), 0, 4097, 8.5, "large", True, (8,), (8, 8, 8), (8, None), torch.Size([])):
        with pytest.raises(ValueError, match="expected size to be"):
            sw.data.load(pictures, size=bad)


def test_a_name_that_nothing_has_suggests_what_lies_here_too(tmp_path, monkeypatch):
    (tmp_path / "holidays").mkdir()
    monkeypatch.chdir(tmp_path)
    for name, near in (("holydays", "holidays"), ("cifar-100", "cifar100")):
        with pytest.raises(ValueError, match=f"expected a folder, a file, or one of .* got '{name}'.* mean '{near}'"):
            sw.data.load(name)


def test_folders_that_are_no_data_set(pictures, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "set.tar.gz").write_bytes(b"x")
    (tmp_path / "a.JPG").write_bytes(b"x")
    (tmp_path / "phone").mkdir()
    for name in ("a.heic", "b.HEIC", "c.mov"):
        (tmp_path / "phone" / name).write_bytes(b"x")
    messages = {
        "nowhere": "no such file",
        "empty": "got no files;",
        "phone": "got only .heic, .mov; convert",
        "set.tar.gz": "unpack an archive",
        "a.JPG": "one image, .*give its folder",
    }
    for name, said in messages.items():
        with pytest.raises(DataError, match=said):
            sw.data.load(tmp_path / name)
    with pytest.raises(DataError, match="give the path"):
        sw.data.load("image-folder")
    (pictures / "val" / "dodo").mkdir()
    with pytest.raises(DataError, match="got 'dodo' in .*val too"):
        sw.data.load(pictures, split="val")
    for file in pictures.glob("val/*/*"):
        file.unlink()
    (pictures / "val" / "dodo").rmdir()
    with pytest.raises(DataError, match="expected images as .*val/CLASS"):
        sw.data.load(pictures, split="val")


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_class_of_which_nothing_is_read_is_refused(pictures, split):
    folder = pictures / split / "crow"
    for path in folder.iterdir():
        if path.suffix != ".txt":
            path.rename(path.with_suffix(".heic"))
    (folder / "LICENSE").write_text("")
    (folder / ".DS_Store").write_text("")
    with pytest.raises(DataError, match=rf"files in .*{split}/crow, got only \(no ending\), .heic, .txt"):
        sw.data.load(pictures, split=split)
    for path in folder.iterdir():
        path.unlink()
    (folder / ".gitkeep").write_text("")
    (folder / "more").mkdir()
    if split == "val":  # a class may be missing there
        assert sw.data.load(pictures, split=split).labels.tolist() == [0, 0]
    else:
        with pytest.raises(DataError, match="files in .*train/crow, got no files; "):
            sw.data.load(pictures)


def test_the_other_split_is_of_the_size_of_train(pictures):
    for path in pictures.glob("val/*/*.*g"):
        Image.new("RGB", (16, 12)).save(path)
    assert sw.data.load(pictures, split="test").images.shape == (4, 3, 10, 14)
    assert sw.data.load(pictures, split="test", size=(8, 8)).images.shape == (4, 3, 8, 8)


@pytest.mark.parametrize("strays", [["banner_01.jpg"], ["team_01.jpg", "team_07.jpg"]])
def test_pictures_beside_train_do_not_make_it_cuhk03(pictures, strays):
    for name in strays:
        Image.new("RGB", (30, 20)).save(pictures / name)
    assert sw.data.load(pictures).name == "birds"
    assert sw.data.check("cuhk03", pictures).place is None


def test_decompression_bombs_are_refused(pictures, monkeypatch):
    monkeypatch.setattr(decode, "IMAGE_PIXELS", 139)
    with pytest.raises(DataError, match="auk/0.png: 14 x 10 pixels, more than 139"):
        sw.data.load(pictures)
