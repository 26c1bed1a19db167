"""Maps and clusters of points whose groups are known."""

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score
from sklearn.neighbors import KNeighborsClassifier

from setwise.evaluation import layout as module
from setwise.evaluation.layout import clusters, layout, reduced


def groups(count=150, *, many=4, features=20, seed=0):
    generator = np.random.default_rng(seed)
    middles, of = generator.normal(size=(many, features)), generator.integers(many, size=count)
    return (middles[of] + 0.1 * generator.normal(size=(count, features))).astype(np.float32), of


def test_a_map_keeps_groups_together():
    x, of = groups()
    places, how = layout(reduced(x))
    assert places.shape == (150, 2)
    assert "t-SNE" in how
    assert KNeighborsClassifier(5).fit(places, of).score(places, of) > 0.99


def test_of_many_points_a_sample_is_fitted_and_the_others_stand_near_it(monkeypatch):
    monkeypatch.setattr(module, "FITTED", 60)
    x, of = groups()
    places, how = layout(reduced(x))
    assert "60 images drawn at random" in how
    assert "other 90" in how
    assert np.isfinite(places).all()
    assert KNeighborsClassifier(5).fit(places, of).score(places, of) > 0.98


def test_umap(package):
    package("umap")
    x, of = groups(120)
    places, how = layout(reduced(x), method="umap")
    assert "UMAP" in how
    assert KNeighborsClassifier(5).fit(places, of).score(places, of) > 0.98


def test_umap_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "umap", None)
    with pytest.raises(ModuleNotFoundError, match="pip install umap-learn, or use t-SNE"):
        layout(reduced(groups()[0]), method="umap")


@pytest.mark.parametrize("fitted", [8000, 60], ids=["all", "in small batches"])
def test_the_number_of_clusters_is_found_or_taken(monkeypatch, fitted):
    monkeypatch.setattr(module, "FITTED", fitted)
    x, of = groups()
    found, how = clusters(reduced(x))
    assert how.startswith("4 clusters")
    assert adjusted_rand_score(of, found) > 0.99
    assert (np.diff(np.bincount(found)) <= 0).all(), "the largest first"
    assert len(set(clusters(reduced(x), count=7)[0].tolist())) == 7


@pytest.mark.parametrize("count", [1, 2, 5, 12])
@pytest.mark.parametrize("same", [False, True], ids=["different", "all the same"])
def test_few_points_and_equal_points(count, same):
    x = np.ones((count, 6), np.float32) if same else groups(count, features=6)[0]
    points = reduced(x)
    assert layout(points)[0].shape == (count, 2)
    assert np.isfinite(layout(points)[0]).all()
    assert clusters(points)[0].shape == (count,)
    assert clusters(points, count=3)[0].max() < 3
