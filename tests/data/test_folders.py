"""tiny-ImageNet and folders of images, against Pillow."""

import io
import os
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

import setwise as sw
from setwise.data import decode, tiny_imagenet
from setwise.data.cache import cached
from setwise.data.errors import DataError


def pixels(path):
    with Image.open(path) as image:
        return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)


def test_tiny_imagenet_reads_train_folders_and_val_annotations(small_tiny, tmp_path):
    root = tmp_path / "root"
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


def test_the_decoded_images_are_mapped_and_kept(small_tiny, tmp_path, monkeypatch):
    root = tmp_path / "root"
    first = sw.data.load(small_tiny, root)
    (file,) = root.glob(".decoded/*/images.npy")
    monkeypatch.setattr(decode, "read_image", None)  # a second decoding would fail
    again = sw.data.load(small_tiny, root)
    assert torch.equal(first.images, again.images)
    # Mapped, not read: what the file holds now is what the tensor shows; and a write stays out of the file.
    mapped = np.lib.format.open_memmap(file, mode="r+")
    mapped[5] = 77
    mapped.flush()
    assert (sw.data.load(small_tiny, root).images[5] == 77).all()
    again.images[0] = 1
    assert not (sw.data.load(small_tiny, root).images[0] == 1).all()


def test_a_cache_is_mapped(tmp_path):
    (array,) = cached(tmp_path, "key", [], ("x",), lambda place: np.save(place / "x.npy", np.arange(6)))
    assert isinstance(array, np.memmap)
    assert array.tolist() == [0, 1, 2, 3, 4, 5]


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
        with pytest.raises(DataError, match=r"n03_3.JPEG to be a whole PNG or JPEG image, got OSError.*fetch"):
            sw.data.load(small_tiny, tmp_path / "root")
        assert [p.name for p in (tmp_path / "root" / ".decoded").iterdir() if p.is_dir()] == []
    path.write_bytes(whole)
    assert len(sw.data.load(small_tiny, tmp_path / "root")) == 12


def test_an_image_of_another_size_is_not_resized(small_tiny, tmp_path):
    Image.new("RGB", (32, 64)).save(small_tiny / "val" / "images" / "val_2.JPEG")
    with pytest.raises(DataError, match=r"val_2.JPEG to be 64x64 .* got 64x32; fetch the data set again"):
        sw.data.load(small_tiny, tmp_path / "root", split="val")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda root: (root / "train" / "n01" / "images" / "n01_0.JPEG").unlink(),
            "expected 4 images in .*n01/images, got 3",
        ),
        (lambda root: shutil.rmtree(root / "train" / "n02"), "expected 3 class folders in .*train, got 2"),
        (lambda root: (root / "val" / "images" / "val_3.JPEG").unlink(), "line 4 of .*val_annotations.txt"),
    ],
)
def test_incomplete_tiny_imagenets_are_refused(small_tiny, tmp_path, change, said):
    change(small_tiny)
    with pytest.raises(DataError, match=said):
        sw.data.load("tiny-imagenet", small_tiny, split="val" if "line" in said else "train")


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


def test_images_are_resized_on_request_only(pictures):
    odd = pictures / "train" / "crow" / "9.png"
    Image.new("L", (20, 5), 90).save(odd)
    with pytest.raises(DataError, match=r"9.png to be 10x14 \(height x width\) like the others, got 5x20; pass size="):
        sw.data.load(pictures)
    found = sw.data.load(pictures, size=(8, 6))
    assert found.images.shape == (7, 3, 8, 6)
    with Image.open(pictures / "train" / "auk" / "0.png") as image:
        expected = np.array(image.resize((6, 8), Image.Resampling.BILINEAR))
    assert np.array_equal(found.images[0].permute(1, 2, 0).numpy(), expected)
    assert (found.images[6] == 90).all()
    with pytest.raises(ValueError, match=r"expected size to be \(height, width\)"):
        sw.data.load(pictures, size=(8, 0))


def test_folders_that_are_no_data_set(pictures, tmp_path):
    with pytest.raises(DataError, match="got no such file or folder"):
        sw.data.load(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"expected CIFAR, tiny-ImageNet, CUHK-03 or train/CLASS.* got none of them"):
        sw.data.load(tmp_path / "empty")
    (tmp_path / "set.tar.gz").write_bytes(b"x")
    with pytest.raises(DataError, match="unpack it: `setwise data fetch NAME --source"):
        sw.data.load(tmp_path / "set.tar.gz")
    (pictures / "val" / "dodo").mkdir()
    with pytest.raises(DataError, match="got 'dodo' in .*val too"):
        sw.data.load(pictures, split="val")
    for file in pictures.glob("train/*/*"):
        file.unlink()
    with pytest.raises(DataError, match=r"expected images as .*train/CLASS/\*.png or \*.jpg, got none"):
        sw.data.load(pictures)


def test_decompression_bombs_and_other_formats_are_refused(pictures, monkeypatch):
    path = pictures / "train" / "auk" / "0.png"
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(DataError, match="0.png to be a whole PNG or JPEG image, got DecompressionBombWarning"):
        sw.data.load(pictures)
    monkeypatch.undo()
    Image.fromarray(np.full((10, 14), 40_000, np.uint16)).save(path)
    with pytest.raises(DataError, match="0.png .* got ValueError: pixels of mode I;16, not eight bits a channel"):
        sw.data.load(pictures)
    out = io.BytesIO()
    Image.new("RGB", (14, 10)).save(out, "BMP")
    path.write_bytes(out.getvalue())
    with pytest.raises(DataError, match="0.png to be a whole PNG or JPEG image, got UnidentifiedImageError"):
        sw.data.load(pictures)
