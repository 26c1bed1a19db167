"""Compressed features against numpy and scikit-learn: bits by hand, neighbours by Hamming distance."""

import json

import numpy as np
import pytest
import torch
from sklearn.neighbors import NearestNeighbors

from setwise.cli import main
from setwise.evaluation.compression import SHORT, compressed, eight_bits, one_bit


@pytest.fixture(scope="module")
def features():
    generator = torch.Generator().manual_seed(0)
    train, test = (torch.randn(n, 24, generator=generator).relu() for n in (300, 40))
    train[:, 3] = test[:, 3] = 0.5  # constant
    return train, 1.5 * test


def test_eight_bits_are_the_nearest_of_256_steps(features):
    train, test = (x.double() for x in features)
    got = eight_bits(test, like=train).numpy()
    for d in range(24):
        steps = np.linspace(float(train[:, d].min()), float(train[:, d].max()), 256)
        want = steps[np.abs(test[:, d].numpy()[:, None] - steps).argmin(1)]  # beyond the ends: the ends
        assert got[:, d] == pytest.approx(want, abs=1e-12)
    assert len(np.unique(got[:, 0])) <= 256
    assert torch.equal(eight_bits(test, like=train)[:, 3], test[:, 3].clamp(max=0.5))


def test_cosines_of_bits_are_hamming_distances(features):
    train, test = features
    mean = train.numpy().mean(0)
    bits = [x.numpy() > mean for x in (train, test)]
    near = NearestNeighbors(metric="hamming").fit(bits[0]).kneighbors(bits[1], 1)[0][:, 0]
    a, b = (one_bit(x, like=train) for x in (train, test))
    assert set(a.unique().tolist()) == {-1.0, 1.0}
    closest = (b @ a.T / 24).max(1).values.numpy()
    assert closest == pytest.approx(1 - 2 * near, abs=1e-6)


def test_the_first_dimensions_are_cut_off(features):
    train, test = features
    a, b = compressed(train, test)[f"first{SHORT}"]
    assert torch.equal(a, train[:, :16])
    assert torch.equal(b, test[:, :16])


def test_a_run_measures_them_if_asked(tmp_path):
    run = ["pretrain", "--recipe", "paper/digits-conv4-simclr", "--device", "cpu", "--quiet", "--epochs", "1"]
    run += ["--probe.epochs", "1", "--instances", "300", "--seed", "1", "--out", str(tmp_path / "it"), "--compressed"]
    main(run)
    record = json.loads((tmp_path / "it" / "record.json").read_text())
    assert record["data"]["train"] == 300
    more = {f"knn20_{name}_accuracy" for name in ("8bit", "1bit", "first16")}
    assert {"probe_accuracy", "knn20_accuracy", *more} <= set(record["final"])
    assert abs(record["final"]["knn20_8bit_accuracy"] - record["final"]["knn20_accuracy"]) < 0.03
    main(["probe", str(tmp_path / "it"), "--device", "cpu"])  # the same images, though the source has more
