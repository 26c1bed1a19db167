"""Embeddings as a picture: places in the plane by t-SNE or UMAP, and clusters by k-means."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
DIRECTIONS = 50  # principal ones, before anything else is computed
FITTED = 5_000  # points that t-SNE or UMAP place; they take seconds for these, minutes for 50,000
SCORED = 2_000  # points by which the number of clusters is chosen
NUMBERS = (2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 20, 24, 30)  # of clusters, that are tried
LEAST = 10  # points for t-SNE; fewer are placed by their two principal directions


def reduced(embeddings: Floats) -> Floats:
    """The rows, each of length 1, in their ``DIRECTIONS`` principal directions: [N, at most 50]."""
    from sklearn.decomposition import PCA

    lengths = np.linalg.norm(embeddings, axis=1, keepdims=True)
    unit = embeddings / np.where(lengths > 0, lengths, 1)
    count = min(DIRECTIONS, *unit.shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of embeddings that are all the same
        points: Floats = PCA(count, svd_solver="randomized", random_state=0).fit_transform(unit).astype(np.float32)
    return np.nan_to_num(points)


def layout(points: Floats, *, method: str = "tsne") -> tuple[Floats, str]:
    """Places [N, 2] for the eye, and how they were found, in words.

    Of more than ``FITTED`` points a sample is placed by ``method``, and each of the others between the three points of
    the sample that are nearest to it.
    """
    from sklearn.neighbors import KNeighborsRegressor

    count = len(points)
    if count < LEAST:
        flat = np.zeros((count, 2), np.float32)
        flat[:, : min(2, points.shape[1])] = points[:, :2]
        return flat, "Placed by their two principal directions: t-SNE needs more images."
    generator = np.random.default_rng(0)
    sample = np.sort(generator.permutation(count)[:FITTED])
    placed: Floats = _fit(points[sample], method)
    name = {"tsne": "t-SNE", "umap": "UMAP"}[method]
    words = f"Places by {name} of {points.shape[1]} principal directions"
    if len(sample) == count:
        return placed, f"{words}."
    others = np.setdiff1d(np.arange(count), sample)
    places = np.empty((count, 2), np.float32)
    places[sample] = placed
    places[others] = KNeighborsRegressor(3, weights="distance").fit(points[sample], placed).predict(points[others])
    # Points between the same three would hide one another.
    spread = np.median(np.abs(placed - np.median(placed, 0))) * 0.01
    places[others] += generator.normal(scale=spread, size=(len(others), 2)).astype(np.float32)
    return places, (
        f"{words}, for {len(sample):,} images drawn at random. Each of the other {len(others):,} stands between the "
        "three of these that are nearest to it."
    )


def _fit(points: Floats, method: str) -> Floats:
    if method == "umap":
        try:
            import umap
        except ImportError as error:
            raise ModuleNotFoundError(
                f"expected umap-learn for a map by UMAP, got {error}; pip install umap-learn, or use t-SNE"
            ) from error
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its own, about threads and its compiler
            places: Floats = umap.UMAP(n_neighbors=min(15, len(points) - 1), random_state=0).fit_transform(points)
        return places
    from sklearn.manifold import TSNE

    start: Any = points[:, :2] / (points[:, 0].std() or 1.0) * 1e-4
    if start.shape[1] < 2:
        start = np.concatenate([start, np.zeros_like(start)], 1)
    perplexity = min(30.0, (len(points) - 1) / 3)
    found: Floats = TSNE(2, init=start, perplexity=perplexity, max_iter=500, random_state=0).fit_transform(points)
    return found


def clusters(points: Floats, *, count: int | None = None) -> tuple[npt.NDArray[np.int64], str]:
    """A cluster for each point, the largest is 0, and how they were found, in words.

    Without ``count`` the number is that with the largest mean silhouette of a sample.
    """
    from sklearn.cluster import KMeans, MiniBatchKMeans
    from sklearn.metrics import silhouette_score

    different = len(np.unique(points.round(5), axis=0))
    words = f"{count} clusters by k-means, as asked"
    if count is None:
        sample = points[np.random.default_rng(0).permutation(len(points))[:SCORED]]
        most = min(different, len(sample)) - 1
        scores = {}
        for number in (number for number in NUMBERS if number <= most):
            found = KMeans(number, n_init=1, random_state=0).fit_predict(sample)
            if len(set(found.tolist())) > 1:
                scores[number] = float(silhouette_score(sample, found))
        count = max(scores, key=lambda number: scores[number], default=1)
        words = (
            f"{count} clusters by k-means, the number with the largest mean silhouette of {NUMBERS[0]} to {NUMBERS[-1]}"
        )
    count = max(1, min(count, different))
    kind = KMeans if len(points) <= FITTED else MiniBatchKMeans
    found = kind(count, n_init=3, random_state=0).fit_predict(points)
    order = np.argsort(-np.bincount(found, minlength=count), kind="stable")
    return np.argsort(order)[found].astype(np.int64), f"{words}."
