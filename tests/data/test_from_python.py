"""Images that Python has already, in every form, against the arrays that they were made of."""

import numpy as np
import pytest
import torch
from PIL import Image

import setwise as sw
from setwise.data import DataError

PIXELS = np.random.default_rng(0).integers(0, 256, (12, 20, 16, 3), dtype=np.uint8)
FIRST = torch.from_numpy(PIXELS.transpose(0, 3, 1, 2).copy())  # channels first
LABELS = [k % 2 for k in range(12)]


class Pairs(torch.utils.data.Dataset):
    """As torch's and torchvision's are."""

    classes = ("cat", "dog")

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, k):
        return self.items[k]


PILLOW = [Image.fromarray(one) for one in PIXELS]


@pytest.mark.parametrize(
    "given",
    [
        PIXELS,
        FIRST,
        list(PIXELS),
        list(FIRST),
        PILLOW,  # such as a column of Hugging Face's
        Pairs(PILLOW),
        Pairs(list(FIRST.float() / 255)),  # torchvision's ToTensor
    ],
    ids=["last", "first", "arrays", "tensors", "pillow", "dataset", "floats"],
)
def test_images_in_every_form(given):
    found = sw.data.from_images(given)
    assert torch.equal(found.images, FIRST)
    assert (found.classes, found.labels.tolist()) == ((), [-1] * 12)
    with_labels = sw.data.from_images(given, LABELS, classes=("cat", "dog"))
    assert torch.equal(with_labels.images, FIRST)
    assert (with_labels.classes, with_labels.labels.tolist()) == (("cat", "dog"), LABELS)
    small = sw.data.from_images(given, size=8)
    expected = PILLOW[3].resize((8, 8), Image.Resampling.BILINEAR, box=(0, 2, 16, 18))
    assert np.array_equal(small.images[3].permute(1, 2, 0), np.array(expected))


def test_pairs_bring_their_labels():
    found = sw.data.from_images(Pairs(list(zip(PILLOW, map(torch.tensor, LABELS), strict=True))))
    assert torch.equal(found.images, FIRST)
    assert (found.classes, found.labels.tolist()) == (("cat", "dog"), LABELS)
    words = sw.data.from_images([(image, "yx"[k % 2]) for k, image in enumerate(PILLOW)])
    assert (words.classes, words.labels.tolist()) == (("x", "y"), [1 - label for label in LABELS])


def test_grey_arrays_stay_grey():
    grey = PIXELS[..., 0]
    for given in (grey, grey[..., None], torch.from_numpy(grey)[:, None]):
        assert torch.equal(sw.data.from_images(given).images, FIRST[:, :1])
    assert sw.data.from_images(grey, size=8).images.shape == (12, 1, 8, 8)


def test_a_list_of_files_and_a_folder(tmp_path):
    for k, image in enumerate(PILLOW):
        image.save(tmp_path / f"{k:02}.png")
    files = sorted(tmp_path.iterdir())
    found = sw.data.from_images([str(file) for file in files], LABELS)
    assert torch.equal(found.images, FIRST)
    assert found.paths == tuple(map(str, files))
    assert torch.equal(sw.data.from_images(tmp_path).images, FIRST)
    files[1].write_text("no image")
    with pytest.raises(DataError, match="01.png: "):
        sw.data.from_images(files, LABELS)
    rest = sw.data.from_images(files, LABELS, skip_broken=True)
    assert rest.labels.tolist() == LABELS[:1] + LABELS[2:]
    assert torch.equal(rest.images[1], FIRST[2])


def test_mixed_sizes_take_the_rule_of_folders():
    sizes = [(70, 99), (64, 200), (300, 90)]
    assert sw.data.from_images([Image.new("RGB", size) for size in sizes]).images.shape == (3, 3, 64, 64)


@pytest.mark.parametrize(
    ("given", "options", "said"),
    [
        (PIXELS.astype(np.float32), {}, "uint8"),
        (PIXELS[..., :2], {}, "1 or 3 channels"),
        ([PIXELS[0] - 128.0], {}, "floats from 0 to 1"),
        ([{"image": PILLOW[0]}], {}, "column"),
        ([], {}, "a length above 0"),
        (iter(PILLOW), {}, "a length above 0"),
        (PIXELS, {"labels": [1, 2]}, "a label for each of 12 images, got 2"),
        (PILLOW[:2], {"labels": ["x", "y"], "classes": ("x",)}, "got 'y'"),
        ("photos", {"labels": [1]}, "no labels for a folder"),
    ],
)
def test_other_forms_are_refused(given, options, said):
    with pytest.raises(ValueError, match=said):
        sw.data.from_images(given, **options)


def test_a_run_on_images_of_python(tmp_path):
    changes = {"epochs": 1, "batch": 4, "probe.epochs": 1}
    data = sw.data.from_images(PIXELS, LABELS, size=16, name="mine")
    run = sw.pretrain(data, changes=changes, out=tmp_path / "run", device="cpu")
    assert run.record["data"] == {"name": "mine", "train": 11, "test": 1}
    assert run.record["recipe"]["data"]["source"] == "python:mine"
    again = sw.pretrain(data, changes=changes, out=tmp_path / "run", device="cpu", resume=True)
    assert torch.equal(again.embed(data.images), run.embed(data.images))
    with pytest.raises(ValueError, match="expected the name or path of data for matching"):
        sw.pretrain(data, recipe="paper/digits-matching-infonce", out=tmp_path / "match", device="cpu")


def test_a_run_on_images_of_python_is_probed_on_them(tmp_path):
    data = sw.data.from_images(np.tile(PIXELS, (4, 1, 1, 1)), 4 * LABELS, name="mine")
    run = sw.pretrain(data, changes={"epochs": 1, "probe.epochs": 3}, out=tmp_path / "run", device="cpu")
    with pytest.raises(ValueError, match=r"a run on images from Python, .* got none; give them: run.probe\(data\)"):
        run.probe(device="cpu")
    measured = run.probe(data, device="cpu")
    assert {name: measured[name] for name in run.record["final"]} == run.record["final"]  # the same split
    for k, pixels in enumerate(PIXELS):
        (tmp_path / "files" / "xy"[k % 2]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(tmp_path / "files" / "xy"[k % 2] / f"{k}.png")
    assert "probe_accuracy" in run.probe(tmp_path / "files", device="cpu")


@pytest.mark.filterwarnings("ignore")  # the library's own
@pytest.mark.parametrize("form", [None, "torch", "numpy"])
def test_a_column_of_hugging_face(form):
    datasets = pytest.importorskip("datasets", reason="needs Hugging Face's datasets")
    kinds = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
    data = datasets.Dataset.from_dict({"image": PILLOW, "label": LABELS}, features=kinds).with_format(form)
    names = data.features["label"].names
    found = sw.data.from_images(data["image"], data["label"], classes=names)
    assert torch.equal(found.images, FIRST)
    assert (found.classes, found.labels.tolist()) == (("cat", "dog"), LABELS)
    assert torch.equal(sw.data.from_images(data.select(range(3, 7))["image"]).images, FIRST[3:7])
    with pytest.raises(ValueError, match=r'give a column, as in data\["image"\]'):
        sw.data.from_images(data)
