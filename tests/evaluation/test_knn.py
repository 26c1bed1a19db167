"""Nearest neighbours: against scikit-learn, by hand, and where neighbours or votes are equal."""

import math

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier

from setwise.data import load
from setwise.encoders import create
from setwise.evaluation import extract, knn_accuracy


def clusters(n: int, *, classes: int = 5, dimensions: int = 6, seed: int = 0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, dimensions, generator=torch.Generator().manual_seed(99))
    y = torch.randint(classes, (n,), generator=generator)
    x = centres[y] + 1.2 * torch.randn(n, dimensions, generator=generator)
    return x.to(dtype), y


@pytest.mark.parametrize("temperature", [0.1, 1.0])
@pytest.mark.parametrize("k", [1, 7, 20, 150])
def test_sample_by_sample_as_scikit_learn(k, temperature):
    train, test = clusters(150), clusters(80, seed=1)
    reference = KNeighborsClassifier(
        k, metric="cosine", weights=lambda distance: np.exp((1 - distance) / temperature), algorithm="brute"
    ).fit(*(x.double().numpy() if x.is_floating_point() else x.numpy() for x in train))
    predicted = torch.from_numpy(reference.predict(test[0].double().numpy()))
    for row, guess in enumerate(predicted):
        one = slice(row, row + 1)
        found = knn_accuracy(*train, test[0][one], guess[None], classes=5, k=(k,), temperature=temperature)
        assert found == {k: 1.0}, row
    accuracy = (predicted == test[1]).double().mean().item()
    assert 0.3 < accuracy < 0.95  # neither trivial nor hopeless
    assert knn_accuracy(*train, *test, classes=5, k=(k,), temperature=temperature) == {k: pytest.approx(accuracy)}


@pytest.mark.parametrize("features", ["pixels", "encoder"])
def test_one_vote_each_on_digits_as_scikit_learn(features):
    train, test = (load("digits", split=split) for split in ("train", "test"))
    if features == "pixels":
        train_x, test_x = (one.images.flatten(1).double() for one in (train, test))
    else:
        torch.manual_seed(0)
        encoder = create("resnet8", channels=1)
        train_x, test_x = (extract(encoder, one, device="cpu").double() for one in (train, test))
    reference = KNeighborsClassifier(n_neighbors=10, metric="cosine").fit(train_x.numpy(), train.labels.numpy())
    predicted = torch.from_numpy(reference.predict(test_x.numpy()))
    known = {"classes": 10, "k": 10, "temperature": None}
    assert knn_accuracy(train_x, train.labels, test_x, predicted, **known) == {10: 1.0}, "sample by sample"
    accuracy = (predicted == test.labels).double().mean().item()
    assert knn_accuracy(train_x, train.labels, test_x, test.labels, **known) == {10: accuracy}
    assert 0.5 < accuracy < 0.99
    assert knn_accuracy(train_x, train.labels, test_x, predicted, **known | {"temperature": 0.01})[10] < 1


def test_one_vote_each_counts_and_the_first_of_equal_classes_wins():
    train_x = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.0, 1.0]])
    train_y, query = torch.tensor([2, 1, 1, 2, 0]), torch.tensor([[1.0, 0.0]])
    expected = {1: 2, 2: 1, 3: 1, 4: 1, 5: 1}  # votes: 2; 2, 1; 2, 1, 1; two each, twice
    for k, label in expected.items():
        assert knn_accuracy(train_x, train_y, query, torch.tensor([label]), classes=3, k=k, temperature=None) == {k: 1}


def test_the_temperature_is_a_tenth():
    # One neighbour is the query itself; two of another class outvote it once they are nearer than 0.1 log 2.
    query, label, train_y = torch.tensor([[1.0, 0.0]]), torch.tensor([0]), torch.tensor([0, 1, 1])
    for gap, expected in ((0.072, 1.0), (0.067, 0.0)):
        other = torch.tensor([1 - gap, math.sqrt(1 - (1 - gap) ** 2)])
        train_x = torch.stack([query[0], other, other * torch.tensor([1, -1])])
        assert knn_accuracy(train_x, train_y, query, label, classes=2, k=(3,)) == {3: expected}


@pytest.mark.parametrize("chunk", [1, 13, 79, 80, 10_000])
def test_chunks_do_not_matter(chunk):
    train, test = clusters(300), clusters(80, seed=1)
    assert knn_accuracy(*train, *test, classes=5, chunk=chunk) == knn_accuracy(*train, *test, classes=5)


def test_lengths_do_not_matter():
    (train_x, train_y), (test_x, test_y) = clusters(300), clusters(80, seed=1)
    scaled = train_x * 2.0 ** torch.arange(300).remainder(40).sub(20)[:, None]
    expected = knn_accuracy(train_x, train_y, test_x, test_y, classes=5)
    assert knn_accuracy(scaled, train_y, 1e-30 * test_x, test_y, classes=5) == expected


@pytest.mark.parametrize(("n", "ks"), [(19, []), (20, [20]), (199, [20]), (200, [20, 200])])
def test_k_is_within_the_training_set(n, ks):
    data = (*clusters(n), *clusters(80, seed=1))
    both = knn_accuracy(*data, classes=5)
    assert list(both) == ks, "by default those that it allows"
    for k in (20, (20,), np.int64(20)) if ks else ():
        assert knn_accuracy(*data, classes=5, k=k) == {20: both[20]}, "alone and with others"
    for k in (n + 1, (n, n + 1)):
        with pytest.raises(ValueError, match=f"expected k of at most {n}, .* got {n + 1}"):
            knn_accuracy(*data, classes=5, k=k)
    assert list(knn_accuracy(*data, classes=5, k=(1, n))) == [1, n]


def test_of_classes_with_equal_votes_the_first_wins():
    # Each of three classes has the same three weights, in another order of the samples.
    angles = torch.tensor([0.1, 0.2, 0.3, 0.3, 0.1, 0.2, 0.2, 0.3, 0.1], dtype=torch.float64)
    train_x = torch.stack([angles.cos(), angles.sin()], 1)
    train_y = torch.arange(3).repeat_interleave(3)
    query = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    for label, expected in ((0, 1.0), (1, 0.0), (2, 0.0)):
        found = knn_accuracy(train_x, train_y, query, torch.tensor([label]), classes=3, k=(9,))
        assert found == {9: expected}


def test_copies_are_equally_near_wherever_they_stand():
    # One direction in many lengths: their similarities to a query differ in the last bits unless these are cut off.
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, generator=generator)
    train_x = x * (0.5 + torch.rand(301, 1, generator=generator, dtype=torch.float64))
    train_y = torch.tensor([1] * 5 + [0] * 296)
    test_x = x + torch.randn(200, 64, generator=generator, dtype=torch.float64)
    found = knn_accuracy(train_x, train_y, test_x, torch.ones(200, dtype=torch.int64), classes=2, k=(5, 9, 10, 301))
    assert found == {5: 1.0, 9: 1.0, 10: 0.0, 301: 0.0}


def test_the_smallest_vote_counts():
    # 1 against 1 + exp(-20): equal in float32.
    train_x = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    train_y, query = torch.tensor([0, 1, 1]), torch.tensor([[1.0, 0.0]])
    assert knn_accuracy(train_x, train_y, query, torch.tensor([1]), classes=2, k=(2, 3)) == {2: 0.0, 3: 1.0}


def test_zero_features():
    train_x, test_x = torch.zeros(6, 3), torch.zeros(2, 3)
    train_y, test_y = torch.tensor([2, 1, 1, 0, 2, 2]), torch.tensor([1, 2])
    # All similarities are 0: the first k samples have one vote each, and 2 wins where there is a majority.
    found = knn_accuracy(train_x, train_y, test_x, test_y, classes=3, k=(1, 3, 6))
    assert found == {1: 0.5, 3: 0.5, 6: 0.5}
    assert knn_accuracy(train_x, train_y, test_x, torch.tensor([1, 1]), classes=3, k=(1, 3, 6)) == {1: 0, 3: 1, 6: 0}


def test_a_tiny_temperature_is_the_nearest_neighbour():
    train, test = clusters(300), clusters(80, seed=1)
    found = knn_accuracy(*train, *test, classes=5, k=(1, 50), temperature=1e-6)
    assert found[1] == found[50]


@pytest.mark.parametrize(
    "options", [{"k": ()}, {"k": 0}, {"k": (0,)}, {"temperature": 0.0}, {"chunk": 0}, {"classes": 4}, {"classes": 0}]
)
def test_bad_options(options):
    with pytest.raises(ValueError, match=f"expected (at least one )?({next(iter(options))}|train_y from 0 to 3)"):
        knn_accuracy(*clusters(100), *clusters(10, seed=1), **({"classes": 5} | options))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("test_x", lambda x: x / 0),
        ("test_x", lambda x: x[:, :5]),
        ("test_x", torch.Tensor.double),
        ("train_x", torch.Tensor.bfloat16),
        ("train_x", torch.Tensor.tolist),
        ("train_x", lambda x: x[:0]),
        ("train_y", torch.Tensor.int),
        ("test_y", lambda y: y[:9]),
    ],
)
def test_bad_tensors(name, change):
    names = ("train_x", "train_y", "test_x", "test_y")
    tensors = dict(zip(names, (*clusters(100), *clusters(10, seed=1)), strict=True))
    with pytest.raises(ValueError, match=f"expected {name} "):
        knn_accuracy(**tensors | {name: change(tensors[name])}, classes=5)


@pytest.mark.gpu
def test_a_gpu_gives_the_same():
    train, test = clusters(5000, dimensions=64), clusters(2000, dimensions=64, seed=1)
    here = knn_accuracy(*train, *test, classes=5)
    there = knn_accuracy(*(x.cuda() for x in (*train, *test)), classes=5)
    plain = {"classes": 5, "k": 10, "temperature": None}
    here |= knn_accuracy(*train, *test, **plain)
    there |= knn_accuracy(*(x.cuda() for x in (*train, *test)), **plain)
    for k in here:
        assert there[k] == pytest.approx(here[k], abs=1 / 2000)
    zeros = [torch.zeros_like(x) for x in (train[0], test[0])]
    expected = knn_accuracy(zeros[0], train[1], zeros[1], test[1], classes=5)
    assert knn_accuracy(zeros[0].cuda(), train[1].cuda(), zeros[1].cuda(), test[1].cuda(), classes=5) == expected
