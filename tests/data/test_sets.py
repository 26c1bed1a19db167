"""The two forms, the split by identity, and matched halves."""

import math

import numpy as np
import pytest
import torch

import setwise as sw
from setwise.data import split_sizes
from setwise.recipe import Recipe


def images(n, width=6):
    x = torch.randint(0, 256, (n, 3, 4, width), generator=torch.Generator().manual_seed(1)).to(torch.uint8)
    return sw.data.ImageSet("made", "train", x, torch.arange(n) % 3, ("a", "b", "c"), (0.5,) * 3, (0.25,) * 3)


def matched(rows_a, rows_b):
    x = torch.arange(12, dtype=torch.uint8).reshape(12, 1, 1, 1)
    names = tuple(f"id{k}" for k in range(len(rows_a)))
    return sw.data.MatchedSet("made", "all", x, torch.tensor(rows_a), torch.tensor(rows_b), names, (0.5,), (0.25,))


def test_halves_are_the_two_sides_of_the_same_image():
    whole = images(5, width=7)
    halves = sw.data.matched_halves(whole)
    assert len(halves) == 5
    assert torch.equal(halves.first_a, whole.images[:, :, :, :3])
    assert torch.equal(halves.first_b, whole.images[:, :, :, 4:])  # column 3 is in neither
    assert halves.identities == ("0", "1", "2", "3", "4")


def test_halves_draw_instances_by_seed():
    whole = images(50)
    one, same, other = (sw.data.matched_halves(whole, instances=20, seed=s) for s in (0, 0, 1))
    assert one.identities == same.identities != other.identities
    assert len(set(one.identities)) == 20
    for k, name in enumerate(one.identities):
        assert torch.equal(torch.cat([one.first_a[k], one.first_b[k]], dim=-1), whole.images[int(name)])


def test_split_sizes_by_hand():
    assert split_sizes(1467) == (1027, 220, 220)  # the paper's identities
    assert split_sizes(100) == (70, 15, 15)
    assert split_sizes(1) == (1, 0, 0)
    assert all(sum(split_sizes(n)) == n and min(split_sizes(n)) >= 0 for n in range(200))


def test_parts_share_no_identity_and_keep_every_shot_with_its_identity():
    a = [[0, 1], [2, -1], [4, -1], [6, 7], [10, -1]]
    b = [[3, -1], [5, -1], [8, 9], [11, -1], [1, -1]]
    whole = matched(a, b)
    parts = whole.parts(seed=3)
    assert {k: len(p) for k, p in parts.items()} == {"train": 4, "val": 1, "test": 0}
    assert sorted(name for p in parts.values() for name in p.identities) == list(whole.identities)
    for part in parts.values():
        for k, name in enumerate(part.identities):
            for found, truth in ((part.shots_a[k], a), (part.shots_b[k], b)):
                # The one pixel of image k is k.
                values = [int(part.images[i].item()) for i in found if i >= 0]
                assert values == [i for i in truth[int(name[2:])] if i >= 0]
    assert len(parts["val"].images) == len({int(x) for x in parts["val"].images.flatten()})
    assert whole.parts(seed=3)["train"].identities == parts["train"].identities
    assert any(whole.parts(seed=s)["train"].identities != parts["train"].identities for s in range(4, 9))


IMAGES, LABELS = torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.zeros(2, dtype=torch.long)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: sw.data.ImageSet("x", "train", IMAGES.float(), LABELS, ("a",)), "images uint8 .* got torch.float32"),
        (lambda: sw.data.ImageSet("x", "train", IMAGES, LABELS + 1, ("a",)), "labels from 0 to 0, got 1 to 1"),
        (lambda: sw.data.ImageSet("x", "train", IMAGES, LABELS[:1], ("a",)), r"labels int64 of shape \(2,\)"),
        (lambda: sw.data.ImageSet("x", "train", IMAGES, LABELS, ("a",), (0.5,), (0.5,)), "3 channels, got 1 and 1"),
        (lambda: matched([[0], [1]], [[2], [-1]]), "every identity in both views, got 1 without shots_b"),
        (lambda: matched([[12]], [[1]]), "shots_a to index 12 images, got 12"),
        (lambda: matched([[0, -2]], [[1, -1]]), "shots_a to index 12 images"),
        *((lambda rows=rows: matched([[0]], rows), "shots_b int64") for rows in ([[0], [1]], [0], [[]], [[0.0]])),
        (lambda: sw.data.matched_halves(images(5), instances=6), "at most the 5 images of made, got instances=6"),
        (lambda: sw.data.matched_halves(images(5, width=1)), "at least two pixels wide, got 1"),
    ],
)
def test_forms_are_checked(make, said):
    with pytest.raises(ValueError, match=f"expected .*{said}"):
        make()


def test_digits_are_scikit_learns():
    from sklearn.datasets import load_digits

    truth = load_digits()
    train, test = sw.data.load("digits"), sw.data.load("digits", split="test")
    assert (len(train), len(test)) == (1297, 500)
    assert train.images.shape[1:] == (1, 8, 8)
    assert train.classes == tuple("0123456789")
    # Every image once, with its label; 255/16 of the grey value, undone exactly.
    both = torch.cat([train.images, test.images]).squeeze(1).double() * 16 / 255
    rows = np.column_stack([both.round().flatten(1).numpy(), torch.cat([train.labels, test.labels]).numpy()])
    expected = np.column_stack([truth.data, truth.target])
    assert np.array_equal(rows[np.lexsort(rows.T)], expected[np.lexsort(expected.T)])
    assert train.images.max() == 255
    np.testing.assert_allclose(train.mean[0], train.images.numpy().mean() / 255)
    np.testing.assert_allclose(train.std[0], train.images.numpy().std() / 255)
    # The split is a promise: the first labels of each, written down.
    assert train.labels[:8].tolist() == [6, 5, 5, 7, 9, 9, 8, 4]
    assert test.labels[:8].tolist() == [3, 0, 7, 1, 3, 8, 3, 4]


def test_load_matched_splits_the_halves_of_the_digits():
    parts = {
        split: sw.data.load_matched("digits", split=split, instances=100, seed=5) for split in ("train", "val", "test")
    }
    assert [len(p) for p in parts.values()] == [70, 15, 15]
    whole = sw.data.load_matched("digits", split="all", instances=100, seed=5)
    assert sorted(whole.identities) == sorted(n for p in parts.values() for n in p.identities)
    assert whole.split == "all"
    digits = sw.data.load("digits")
    assert whole.identities == sw.data.matched_halves(digits, instances=100, seed=5).identities
    assert whole.identities != sw.data.load_matched("digits", split="all", instances=100).identities
    for k, name in enumerate(parts["val"].identities):
        assert torch.equal(parts["val"].first_b[k], digits.images[int(name), :, :, 4:])


def test_names_and_options_are_checked():
    with pytest.raises(ValueError, match="did you mean 'cifar10'"):
        sw.data.load("cifar1O")
    with pytest.raises(ValueError, match="expected split to be one of 'train', 'test', got 'val'"):
        sw.data.load("digits", split="val")
    for options in ({"size": (8, 8)}, {"boxes": "labeled"}, {"options": {"count": 3}}):
        with pytest.raises(ValueError, match="expected an option of 'digits'"):
            sw.data.load("digits", **options)
    with pytest.raises(ValueError, match="expected seed=None for digits, got 3"):
        sw.data.load("digits", seed=3)
    with pytest.raises(ValueError, match="expected split to be one of"):
        sw.data.load_matched("digits", split="everything")


def test_the_default_device_does_not_matter():
    with torch.device("meta"):  # as torch.set_default_device does
        digits = sw.data.load("digits")
        halves = sw.data.matched_halves(digits, instances=20).parts(seed=1)
    assert torch.equal(digits.images, sw.data.load("digits").images)
    assert [len(part) for part in halves.values()] == [14, 3, 3]


@pytest.mark.usefixtures("registries")
def test_a_source_of_your_own_is_one_of_the_list():
    @sw.register.data("grey", about="One grey.")
    def grey(root, split, *, count: int = 3, path: str = ""):
        return path or sw.data.ImageSet(
            "grey", split, torch.zeros(count, 1, 2, 2, dtype=torch.uint8), torch.zeros(count).long(), ("a",), (0,), (1,)
        )

    assert len(sw.data.load("grey", options={"count": 5})) == 5
    assert len(sw.data.load_matched("grey", split="all", options={"count": 5})) == 5
    assert Recipe.read({"data": {"source": "grey", "count": 4}}).data.options == {"count": 4, "path": ""}
    with pytest.raises(ValueError, match="did you mean 'grey'"):
        sw.data.load("gray")
    with pytest.raises(ValueError, match="expected the data source 'grey' to give a .*ImageSet, got str"):
        sw.data.load("grey", options={"path": "x"})
    assert {"digits", "cifar10", "cifar100", "tiny-imagenet", "cuhk03", "image-folder"} <= sw.register.data.keys()
    assert Recipe.read({"data": "cuhk03"}).data.options == {"boxes": "labeled", "size": (128, 64)}
    with pytest.raises(ValueError, match="expected a field of data.* did you mean 'validation'"):
        Recipe.read({"data": {"source": "digits", "validaton": 3}})


@pytest.mark.parametrize("shape", [(3, 8, 8), (1, 3, 3), (3, 5, 7)])
@pytest.mark.parametrize("start", [0, 1], ids=["aligned", "not"])
def test_images_are_selected_with_their_labels_and_paths(shape, start):
    n = 20
    whole = torch.randint(0, 256, (start + n * math.prod(shape),), generator=torch.Generator().manual_seed(0))
    pixels = whole.to(torch.uint8)[start:].view(n, *shape)
    labels, paths = torch.arange(n) % 4, tuple(f"{k}.png" for k in range(n))
    channels = {"mean": (0.5,) * shape[0], "std": (0.25,) * shape[0]}
    data = sw.data.ImageSet("some", "train", pixels, labels, tuple("abcd"), paths=paths, **channels)
    rows = torch.tensor([3, 3, 19, 0])
    part = data.select(rows, split="test")
    assert (part.images.shape, part.images.dtype) == ((4, *shape), torch.uint8)
    for i, k in enumerate(rows.tolist()):
        assert torch.equal(part.images[i], pixels[k])
        assert (part.labels[i], part.paths[i]) == (labels[k], paths[k])
    part.images.zero_()
    assert data.images.any(), "a copy"
    assert data.select(rows[:0], split="test").images.shape == (0, *shape)
    with pytest.raises(IndexError):
        data.select(torch.tensor([n]), split="test")
