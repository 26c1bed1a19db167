"""k-means: by hand, against scikit-learn, in pieces, at the edges, and without waiting for a device."""

import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score
from torch.utils._python_dispatch import TorchDispatchMode

from setwise.methods.kmeans import _plus_plus, kmeans


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def blobs(clusters=8, each=40, dimensions=5, spread=0.05):
    centres = torch.randn(clusters, dimensions, generator=seeded(1)) * 3
    truth = torch.arange(clusters).repeat(each)
    return centres[truth] + spread * torch.randn(len(truth), dimensions, generator=seeded(2)), truth


def cloud(n=1500, dimensions=10):
    return torch.randn(n, dimensions, generator=seeded(3)) * torch.linspace(0.3, 2, dimensions)


def test_kmeans_takes_five_starts_of_thirty_iterations():
    points = torch.randn(1500, 10, generator=seeded(3))  # not settled by then
    found = kmeans(points, 12, generator=seeded())
    for starts, iterations in ((5, 30), (4, 30), (6, 30), (5, 29), (5, 31)):
        other = kmeans(points, 12, generator=seeded(), starts=starts, iterations=iterations)
        assert torch.equal(other.centres, found.centres) == ((starts, iterations) == (5, 30))


@pytest.mark.parametrize(("dtype", "shift"), [(torch.float32, 1000), (torch.float64, 0), (torch.bfloat16, 0)])
def test_kmeans_finds_blobs(dtype, shift):
    points, truth = blobs()
    found = kmeans(points.to(dtype) + shift, 8, generator=seeded())
    assert adjusted_rand_score(truth, found.labels) == 1
    assert found.centres.dtype == torch.promote_types(dtype, torch.float32)
    expected = KMeans(8, n_init=5, random_state=0).fit(points.to(dtype).float().numpy())
    assert found.inertia.item() == pytest.approx(expected.inertia_, rel=0.02)


def test_kmeans_is_as_good_as_scikit_learns():
    points = cloud()
    found = kmeans(points, 40, generator=seeded())
    expected = KMeans(40, n_init=5, max_iter=30, random_state=0).fit(points.numpy())
    assert found.inertia.item() == pytest.approx(expected.inertia_, rel=0.03)


def test_labels_centres_and_inertia_belong_together():
    points = cloud()
    found = kmeans(points, 20, generator=seeded())
    distances = torch.cdist(points.double(), found.centres.double()).square()
    assert torch.equal(found.labels, distances.argmin(1))
    assert found.inertia.item() == pytest.approx(distances.amin(1).sum().item(), rel=1e-5)
    again = found.centres.double()
    for _ in range(200):  # further iterations improve it little: 30 were nearly enough
        labels = torch.cdist(points.double(), again).argmin(1)
        again = torch.stack([points[labels == k].double().mean(0) for k in range(20)])
    better = torch.cdist(points.double(), again).square().amin(1).sum().item()
    assert better <= found.inertia.item() <= 1.05 * better


@pytest.mark.parametrize("chunk", [1, 1000, 7777, 10**9])
def test_chunks_do_not_matter(chunk):
    points = cloud(400)
    whole, found = (kmeans(points, 10, generator=seeded(), chunk=c) for c in (10**9, chunk))
    assert torch.equal(found.labels, whole.labels)
    torch.testing.assert_close(found.centres, whole.centres)
    assert found.inertia.item() == pytest.approx(whole.inertia.item(), rel=1e-6)


def test_the_generator_decides():
    points = cloud()
    a, b, c = (kmeans(points, 20, generator=seeded(s)) for s in (5, 5, 6))
    assert torch.equal(a.labels, b.labels)
    assert torch.equal(a.centres, b.centres)
    assert not torch.equal(a.labels, c.labels)


@pytest.mark.parametrize("clusters", [3, 7, 50])
def test_fewer_distinct_points_than_clusters(clusters):
    distinct = torch.tensor([[0.0, 0], [1, 5], [4, 2]])
    truth = torch.arange(3).repeat(10)
    found = kmeans(distinct[truth], clusters, generator=seeded())
    assert adjusted_rand_score(truth, found.labels) == 1
    assert found.inertia.item() == pytest.approx(0, abs=1e-4)
    # A cluster without points keeps its centre, which was a point; it does not go to the mean, to 0 or to NaN.
    assert torch.cdist(found.centres, distinct).amin(1).max() < 1e-3


def test_equal_points_are_one_cluster():
    found = kmeans(torch.full((20, 3), 0.7), 5, generator=seeded())
    assert len(found.labels.unique()) == 1
    assert found.inertia == 0
    assert torch.allclose(found.centres, torch.tensor(0.7))
    assert kmeans(torch.ones(1, 2), 4, generator=seeded()).labels.shape == (1,)


def test_starts_are_drawn_by_squared_distance():
    starts = 30_000
    centres = _plus_plus(torch.tensor([[0.0], [1.0], [3.0]]), 2, starts, seeded()).view(starts, 2)
    for first, chances in ((0.0, {1.0: 0.1, 3.0: 0.9}), (1.0, {0.0: 0.2, 3.0: 0.8}), (3.0, {0.0: 9 / 13, 1.0: 4 / 13})):
        second = centres[centres[:, 0] == first, 1]
        assert len(second) == pytest.approx(starts / 3, rel=0.05)
        assert (second != first).all()
        for value, chance in chances.items():
            assert (second == value).float().mean().item() == pytest.approx(chance, abs=0.015)


def test_starts_at_the_edge_of_chance(monkeypatch):
    points = torch.tensor([[1.0], [0.0], [3.0]])
    monkeypatch.setattr(torch, "rand", lambda *shape, dtype, **_: torch.zeros(shape, dtype=dtype))
    # The smallest draw takes the first point, then the first that is not a centre; when all are, the last.
    assert _plus_plus(points, 5, 1, seeded()).flatten().tolist() == [1, 0, 3, 3, 3]
    below_one = 1 - 2.0**-53
    monkeypatch.setattr(torch, "rand", lambda *shape, dtype, **_: torch.full(shape, below_one, dtype=dtype))
    assert _plus_plus(points, 5, 1, seeded()).flatten().tolist() == [3, 0, 1, 3, 3]


class Watch(TorchDispatchMode):
    """Counts operations that would wait for a device."""

    waits = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        waiting = ("_local_scalar_dense", "lift_fresh", "nonzero", "masked_select", "is_nonzero", "equal")
        self.waits += function.name().split("::")[1].split(".")[0] in waiting
        return function(*args, **(kwargs or {}))


def test_iterations_do_not_wait_for_the_device():
    points, found = cloud(100), []
    for clusters, starts, iterations in ((2, 1, 1), (20, 5, 30)):
        with Watch() as watch:
            kmeans(points, clusters, generator=seeded(), starts=starts, iterations=iterations, chunk=1000)
        found.append(watch.waits)
    assert found == [0, 0]
