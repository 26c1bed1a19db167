"""DeepCluster: whitening against scikit-learn, and what an epoch begins with."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from sklearn.metrics import adjusted_rand_score
from torch import nn
from torch.nn.functional import log_softmax

import setwise as sw
from setwise.data import ImageSet
from setwise.methods import Batch, DeepCluster, deepcluster
from setwise.methods.deepcluster import whitened
from setwise.views import Views, preset


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def cloud(n=1500, dimensions=10):
    return torch.randn(n, dimensions, generator=seeded(3)) * torch.linspace(0.3, 2, dimensions)


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


@pytest.mark.parametrize("dimensions", [10, 5, 1])
def test_whitening_is_scikit_learns(dimensions, monkeypatch):
    features = cloud() @ torch.randn(10, 10, generator=seeded(4)) + 3
    expected = unit(PCA(dimensions, whiten=True, svd_solver="full").fit_transform(features.double().numpy()))
    monkeypatch.setattr(deepcluster, "ROWS", 700)  # in three parts
    found = whitened(features, dimensions)
    assert found.dtype == torch.float32
    assert found.norm(dim=1).numpy() == pytest.approx(1, abs=1e-6)
    for column in range(dimensions):
        sign = np.sign(found[0, column].item() * expected[0, column])
        np.testing.assert_allclose(found[:, column].numpy(), sign * expected[:, column], atol=2e-5)


def test_directions_without_variance_are_left_out():
    # Copies, constants and dead features add nothing: all angles stay what they were.
    features = cloud(300, 4)
    more = torch.cat([features, 2 * features[:, :2], torch.full((300, 1), 5.0), torch.zeros(300, 2)], 1)
    expected, found = whitened(features, 4), whitened(more, 9)
    assert found.isfinite().all()
    torch.testing.assert_close(found @ found.T, expected @ expected.T, atol=1e-4, rtol=0)
    assert (found[:, 4:] == 0).all()


@pytest.mark.parametrize("value", [0.0, 0.1, -1e6])
@pytest.mark.parametrize("n", [1, 2, 2000])
def test_constant_features_are_zero(value, n):
    features = torch.full((n, 6), value)
    assert (whitened(features, 6) == 0).all()
    noise = 1e-7 * torch.randn(n, 6, generator=seeded())
    assert (whitened(features * (1 + noise), 6) == 0).all()


def test_small_but_real_variance_counts():
    features = cloud(300, 2).double() * torch.tensor([1, 1e-5]).double()
    assert adjusted_rand_score(whitened(features, 2)[:, 1] > 0, features[:, 1] > features[:, 1].mean()) > 0.9


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_whitened_features_have_float32_at_least(dtype):
    found = whitened(cloud().to(dtype), 5)
    assert found.dtype == torch.promote_types(dtype, torch.float32)
    torch.testing.assert_close(found.double(), whitened(cloud().to(dtype).double(), 5), atol=1e-5, rtol=0)


# ---- the method


def make_batch(data, rows, *, epoch=0, **form):
    return Batch(data.images[rows], rows, data.labels[rows], torch.tensor(1), torch.tensor(epoch), **form)


class Flat(nn.Module):
    """The pixels, through a BatchNorm that would show which mode it is in."""

    def __init__(self, features=16):
        super().__init__()
        self.norm = nn.BatchNorm1d(features)
        self.seen = []

    def forward(self, x):
        self.seen.append((self.training, x.detach().clone()))
        return self.norm(x.flatten(1))


def patterns(counts=(3, 5, 4, 6, 2, 7, 4, 4, 8, 3)):
    """Images of as many kinds as there are counts, in random order, and which is which."""
    kinds = torch.randint(0, 256, (len(counts), 1, 4, 4), generator=seeded(), dtype=torch.uint8)
    truth = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    truth = truth[torch.randperm(len(truth), generator=seeded(1))]
    data = ImageSet("patterns", "train", kinds[truth], torch.zeros_like(truth), ("all",), (0.5,), (0.25,))
    return data, truth


def make_method(data, encoder=None, features=16, *, views=None, hidden=12, classes=1):
    torch.manual_seed(0)
    parts = {"views": views or Views(mean=data.mean, std=data.std), "samples": len(data), "classes": classes}
    recipe = SimpleNamespace(head=SimpleNamespace(hidden=hidden))
    return DeepCluster(SimpleNamespace(encoder=encoder or Flat(), features=features, recipe=recipe, **parts))


def conv4():
    torch.manual_seed(0)
    return sw.encoders.create("conv4", channels=1)


def test_kinds_of_images_become_clusters():
    data, truth = patterns()
    method = make_method(data)
    method.begin_epoch(data, seed=1, epoch=0)
    assert method.clusters.shape == (len(data),)
    assert method.weights.shape == (10,)  # ten clusters a class
    assert adjusted_rand_score(truth, method.clusters) == 1
    # 46 images: a cluster of 8 has weight 38/46.
    sizes = np.bincount(truth.numpy())
    for kind in range(10):
        (cluster,) = method.clusters[truth == kind].unique().tolist()
        assert method.weights[cluster].item() == pytest.approx(1 - sizes[kind] / 46)


def test_loss_is_the_weighted_mean():
    data, _ = patterns()
    method = make_method(data).double()
    method.begin_epoch(data, seed=1, epoch=0)
    with torch.no_grad():
        method.classifier[-1].weight.mul_(100)
    rows = torch.tensor([4, 30, 7, 19, 2])
    terms = method(make_batch(data, rows, dtype=torch.float64))
    logits = method.classifier(
        method.encoder(Views(mean=data.mean, std=data.std)(data.images[rows], samples=rows, seed=0, epoch=0).double())
    )
    top = bottom = hits = 0.0
    for row, log_chances in zip(rows, log_softmax(logits, 1), strict=True):
        cluster = int(method.clusters[row])
        weight = 1 - (method.clusters == cluster).sum().item() / len(data)
        top, bottom = top - weight * log_chances[cluster].item(), bottom + weight
        hits += int(log_chances.argmax()) == cluster
    assert terms["loss"].item() == pytest.approx(top / bottom, rel=1e-9)
    assert terms["accuracy"].item() == pytest.approx(hits / 5)


@pytest.mark.parametrize("training", [True, False])
def test_features_are_of_the_images_as_they_are_and_leave_the_encoder_so(monkeypatch, training):
    data, _ = patterns()
    method = make_method(data, views=preset("self-supervised", mean=data.mean, std=data.std)).train(training)
    before, state = method.encoder.norm.running_mean.clone(), torch.get_rng_state()
    monkeypatch.setattr(deepcluster, "IMAGES", 10)
    method.begin_epoch(data, seed=1, epoch=0)
    modes, seen = zip(*method.encoder.seen, strict=True)
    assert [len(x) for x in seen] == [10, 10, 10, 10, 6]
    assert not any(modes)
    torch.testing.assert_close(torch.cat(seen), (data.images / 255 - 0.5) / 0.25, atol=1e-5, rtol=0)
    assert method.encoder.training == method.encoder.norm.training == training
    assert torch.equal(method.encoder.norm.running_mean, before)
    assert torch.equal(torch.get_rng_state(), state)
    assert not method.clusters.requires_grad


def test_the_last_layer_starts_afresh_in_place():
    data, _ = patterns()
    method = make_method(data)
    parameters = {name: (p, p.data_ptr(), p.detach().clone()) for name, p in method.named_parameters()}
    buffers = {name: b.data_ptr() for name, b in method.named_buffers()}
    method.begin_epoch(data, seed=1, epoch=0)
    for name, p in method.named_parameters():
        same, address, before = parameters[name]
        assert p is same
        assert p.data_ptr() == address
        assert torch.equal(p, before) == (name not in ("classifier.3.weight", "classifier.3.bias"))
    assert {name: b.data_ptr() for name, b in method.named_buffers()} == buffers
    wide = make_method(data, hidden=2000)
    wide.begin_epoch(data, seed=1, epoch=0)
    last = wide.classifier[-1]
    assert last.weight.std().item() == pytest.approx(0.01, rel=0.02)
    assert abs(last.weight.mean().item()) < 3 * 0.01 / len(last.weight.flatten()) ** 0.5
    assert (last.bias == 0).all()


def test_seed_and_epoch_decide():
    data = sw.data.load("digits")
    found = []
    for seed, epoch in ((1, 0), (1, 0), (2, 0), (1, 1)):
        method = make_method(data, conv4(), 64, classes=10)
        torch.manual_seed(len(found))  # which must not matter
        method.begin_epoch(data, seed=seed, epoch=epoch)
        found.append((method.clusters, method.classifier[-1].weight))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
    for other in found[2:]:
        assert not torch.equal(found[0][0], other[0])
        assert not torch.equal(found[0][1], other[1])
    # Better than chance at digits before any training, as clusters of random features are.
    labels, clusters = data.labels, found[0][0]
    majority = sum(int(labels[clusters == k].bincount().max()) for k in clusters.unique())
    assert majority / len(data) > 0.5


@pytest.mark.parametrize(("features", "kept"), [(16, 16), (64, 64), (512, 256)])
def test_wide_features_keep_half_their_dimensions(monkeypatch, features, kept):
    seen = []

    def spy(x, dimensions):
        seen.append((x.shape[1], dimensions))
        return whitened(x, dimensions)

    monkeypatch.setattr(deepcluster, "whitened", spy)
    data, _ = patterns()
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(16, features))
    make_method(data, encoder, features).begin_epoch(data, seed=1, epoch=0)
    assert seen == [(features, kept)]


class Constant(nn.Module):
    def __init__(self):
        super().__init__()
        self.value = nn.Parameter(torch.full((16,), 0.3))

    def forward(self, x):
        return self.value.expand(len(x), 16) + 0 * x.flatten(1)


def test_one_cluster_of_everything():
    # All features alike: the weight of their cluster would be 0, and the weighted mean 0 / 0.
    data, _ = patterns()
    method = make_method(data, Constant())
    method.begin_epoch(data, seed=1, epoch=0)
    assert len(method.clusters.unique()) == 1
    with torch.autocast("cpu", torch.bfloat16):
        terms = method(make_batch(data, torch.arange(8), dtype=torch.bfloat16))
    assert terms["loss"].dtype == torch.float32
    assert terms["loss"].item() == pytest.approx(np.log(10), abs=0.1)
    terms["loss"].backward()
    assert all(p.grad.isfinite().all() for p in method.parameters())


def test_other_data_than_it_is_for():
    data, _ = patterns()
    with pytest.raises(ValueError, match="expected the 46 images that this method is for, got 45"):
        make_method(data).begin_epoch(patterns((2, 5, 4, 6, 2, 7, 4, 4, 8, 3))[0], seed=1, epoch=0)
