"""tiny-ImageNet in the layouts that people keep it in; what it is like inside, test_folders.py knows."""

import shutil

import pytest
import torch

import setwise as sw
from setwise.data import DataError


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
