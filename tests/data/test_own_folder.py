"""Folders of one's own images: layouts, sizes, splits, and training on them."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

import setwise as sw
from setwise.cli import main
from setwise.data import DataError, has_test_split
from setwise.data.formats.folder import default_size
from setwise.recipe import Recipe
from setwise.runs.pretraining import splits

RNG = np.random.default_rng(0)


def write(folder, *names, size=(40, 36)):
    """Noise under these names; ``size`` is (height, width)."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(RNG.integers(0, 256, (*size, 3), dtype=np.uint8)).save(path)


@pytest.fixture
def photos(tmp_path):
    return tmp_path / "photos"


@pytest.mark.parametrize(
    ("files", "classes", "labels", "test"),
    [
        (["b.png", "a.jpg"], (), [-1, -1], None),
        (["x/2.png", "y/1.png", "x/1.png"], ("x", "y"), [0, 0, 1], None),
        (["x/1.png", "x/2.png"], (), [-1, -1], None),  # one folder tells nothing apart
        (["x/1.png", "y/z/2.png"], (), [-1, -1], None),
        (["x/1.png", "y/2.png", "3.png"], (), [-1, -1, -1], None),
        (["train/x/1.png", "train/y/2.png", "test/y/3.png"], ("x", "y"), [0, 1], [1]),
        (["train/x/1.png", "train/y/2.png", "val/x/3.png"], ("x", "y"), [0, 1], [0]),
        (["train/x/deep/er/1.png", "train/y/2.png", "val/y/z/3.png"], ("x", "y"), [0, 1], [1]),
        (["train/x/y/1.png", "train/y/x/2.png"], ("x", "y"), [0, 1], None),
        (["train/1.png", "test/2.png"], (), [-1], [-1]),
        (["train/all/1.png", "train/all/2.png"], ("all",), [0, 0], None),
        (["train/1.png", "bus/2.png", "car/3.png"], ("bus", "car", "train"), [0, 1, 2], None),  # a class, no split
        # CUHK-03 has such names, but of two views and counted from 00.
        (["trip_03.jpg", "IMG_0001.jpg"], (), [-1, -1], None),
        ([f"{album}_0{k}.png" for album in ("trip", "zoo") for k in range(1, 10)], (), [-1] * 18, None),
        ([f"trip_0{k}.png" for k in range(10)], (), [-1] * 10, None),
        ([f"shot{k}_00.png" for k in range(3)], (), [-1] * 3, None),
        ([f"trip_{k:02}.png" for k in range(1, 13)], (), [-1] * 12, None),
        ([f"2024_05_{k:02}.png" for k in range(1, 13)], (), [-1] * 12, None),
    ],
)
def test_places_tell_splits_and_classes(photos, files, classes, labels, test):
    write(photos, *files)
    (photos / "notes.txt").write_text("no image")
    train = sw.data.load(photos)
    assert (train.name, train.classes, train.labels.tolist()) == ("photos", classes, labels)
    own = [file for file in files if not file.startswith(("test/", "val/"))]
    assert sorted(train.paths) == sorted(own)
    for k, path in enumerate(train.paths):
        with Image.open(photos / path) as image:
            assert np.array_equal(train.images[k].permute(1, 2, 0), np.array(image))
    assert has_test_split(photos) == (test is not None)
    if test is None:
        with pytest.raises(DataError, match="expected a folder test or val"):
            sw.data.load(photos, split="test")
    else:
        assert sw.data.load(photos, split="test").labels.tolist() == test


def test_what_is_left_out_is_counted(photos):
    write(photos, "train/x/1.png", "train/y/1.png", "train/stray.png", "train/y/.hidden.png")
    for name in ("a.HEIC", "b.heic", "README"):
        (photos / "train" / "x" / name).write_text("")
    found = sw.data.load(photos)
    assert len(found) == 2
    assert "1 (no ending), 2 .heic" in found.notes[1]
    assert found.notes[2].endswith(": 1")


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([(40, 36)] * 3, (40, 36)),
        ([(600, 400)] * 3, (224, 224)),  # no photo of a camera is trained on whole
        ([(512, 20)] * 2, (512, 20)),
        ([(100, 90), (300, 64), (70, 400)], (64, 64)),  # shorter sides 64, 70, 90
        ([(100, 127), (300, 128), (70, 400), (999, 998)], (96, 96)),  # 70, 100, 128, 998: the lower median
        ([(10, 14), (12, 16)], (10, 10)),
    ],
)
def test_the_default_size(photos, sizes, expected):
    for k, size in enumerate(sizes):
        write(photos, f"{k}.png", size=size)
    assert default_size(sorted(photos.iterdir()))[0] == expected
    assert sw.data.load(photos).images.shape[2:] == expected


@pytest.mark.parametrize(
    ("size", "largest", "expected"),
    [((120, 80), 60, (60, 40)), ((120, 80), 120, (120, 80)), ((600, 400), 64, (64, 64)), ((200, 1), 20, (20, 1))],
)
def test_no_side_is_longer_than_the_largest(photos, size, largest, expected):
    write(photos, "a.png", "b.png", size=size)
    assert sw.data.load(photos, options={"largest": largest}).images.shape[2:] == expected
    assert sw.data.load(photos, size=70, options={"largest": largest}).images.shape[2:] == (70, 70)  # as asked
    with pytest.raises(ValueError, match="expected largest"):
        sw.data.load(photos, options={"largest": 0})


def test_a_photo_on_its_side_has_the_size_that_people_see(photos):
    exif = Image.Exif()
    exif[0x0112] = 6
    write(photos, "a.png", size=(30, 20))
    for name in ("b.jpg", "c.webp", "d.tiff", "e.png"):
        Image.new("RGB", (30, 20)).save(photos / name, exif=exif)
    assert sw.data.load(photos).images.shape == (5, 3, 30, 20)


def test_images_are_in_the_order_of_their_folders(photos):
    names = ["a/1", "a-b/1", "a b/1", "a/b-c/1", "a/b/1", "a/b.c/1", "B/2", "é/1", "a\x01/1", "a1/1"]
    write(photos, *(f"{name}.png" for name in names))
    assert list(sw.data.load(photos).paths) == sorted((f"{name}.png" for name in names), key=lambda x: x.split("/"))


def test_sizes_are_written_as_people_write_them():
    for given, expected in (("64", 64), ("128x64", (128, 64)), ("128,64", (128, 64)), ([128, 64], (128, 64))):
        recipe = Recipe.read({}).changed({"data": "photos/", "size": given})
        assert recipe.data.options["size"] == expected
        assert Recipe.read(json.loads(json.dumps(recipe.tree()))) == recipe
    moved = recipe.changed({"skip_broken": "true"}).changed({"data": "elsewhere/"})
    assert moved.data.options == {"size": (128, 64), "largest": None, "skip_broken": True, "follow_links": False}
    assert moved.changed({"data": "digits"}).data.options == {}
    for bad in ("large", "64x", "1x2x3"):
        with pytest.raises(ValueError, match="expected size"):
            recipe.changed({"size": bad})


def test_a_tenth_is_held_out_by_the_seed_with_its_paths(photos):
    write(photos, *(f"{'xyz'[k % 3]}/{k:02}.png" for k in range(30)))
    whole = sw.data.load(photos)
    recipe = Recipe.read({"data": str(photos)})
    parts = {seed: splits(recipe.changed({"split_seed": seed}), None) for seed in (0, 0, 1)}
    for train, test in parts.values():
        assert (len(train), len(test)) == (27, 3)
        assert sorted(train.paths + test.paths) == sorted(whole.paths)
        for part in (train, test):
            for k, path in enumerate(part.paths):
                assert torch.equal(part.images[k], whole.images[whole.paths.index(path)])
                assert part.classes[part.labels[k]] == path[0]
    assert parts[0][1].paths != parts[1][1].paths


@pytest.mark.parametrize("labelled", [True, False])
def test_a_folder_needs_nothing_else(photos, tmp_path, capsys, monkeypatch, labelled):
    for k in range(24):
        write(photos, f"{'xy'[k % 2] if labelled else ''}/{k}.png".lstrip("/"), size=(40 + k, 50))
    monkeypatch.chdir(tmp_path)
    command = ["pretrain", "photos/", "--epochs", "1", "--batch", "8", "--probe.epochs", "1", "--device", "cpu"]
    main(command)
    (tmp_path / "runs" / "photos" / "seed-1").rename(tmp_path / "run")
    shown = capsys.readouterr().out
    assert "photos: 22 images to train on" in shown
    assert "32x32" in shown
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert record["data"] == {"name": "photos", "train": 22, "test": 2}
    assert ("probe_accuracy" in record["final"]) == labelled
    assert ("view_retrieval_accuracy" in record["final"]) != labelled
    assert ("same_class" in sw.load_run("run").checkpoint.history[0]["structure"]) == labelled
    assert str(tmp_path) not in (tmp_path / "run" / "record.json").read_text()
    size = ["--size", "48x32", "--out", "sized"]
    main([*command, *size])
    main([*command, *size, "--resume"])
    assert sw.load_run("sized").checkpoint.data["shape"] == [3, 48, 32]
    if labelled:
        assert sw.load_run("sized").probe(device="cpu")["probe_accuracy"] >= 0
    else:
        with pytest.raises(ValueError, match="expected images with classes"):
            sw.load_run("sized").probe(device="cpu")


@pytest.mark.parametrize("method", ["supervised", "deepcluster"])
def test_methods_that_need_classes_say_so(photos, tmp_path, method):
    write(photos, "1.png", "2.png")
    with pytest.raises(ValueError, match=f"expected images with classes for method '{method}', got none"):
        sw.pretrain(photos, method=method, changes={"epochs": 1}, out=tmp_path / "run", device="cpu")


def test_paths_and_labels_fit_the_images():
    images, unknown = torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.full((2,), -1)
    assert sw.data.ImageSet("x", "train", images, unknown, (), paths=("a", "b")).paths == ("a", "b")
    with pytest.raises(DataError, match="a path for each of 2 images"):
        sw.data.ImageSet("x", "train", images, unknown, (), paths=("a",))
    with pytest.raises(DataError, match="labels of -1"):
        sw.data.ImageSet("x", "train", images, unknown + 1, ())


def test_a_path_to_a_data_set_by_name_takes_its_own_options(photos):
    write(photos, "a_00.png", "a_05.png", "b_01.png", "b_06.png")
    recipe = Recipe.read({"data": str(photos)})
    found = sw.data.load_matched(photos, photos.parent / "root", split="all", options=recipe.data.options)
    assert found.images.shape == (4, 3, 128, 64)  # CUHK-03's form
