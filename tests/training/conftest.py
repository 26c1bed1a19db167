"""A small training set for the tests of training."""

from dataclasses import replace

import pytest

from setwise.data import ImageSet, load
from setwise.recipe import Recipe


@pytest.fixture(scope="session")
def digits() -> ImageSet:
    """The first 200 digits."""
    whole = load("digits")
    return replace(whole, images=whole.images[:200], labels=whole.labels[:200])


@pytest.fixture
def recipe() -> Recipe:
    """SimCLR with QARe, three steps and a partial one an epoch."""
    return Recipe.read(
        {"objective": {"loss": "info-nce", "terms": [{"term": "qare", "weight": 0.5}]}, "epochs": 3, "batch": 60}
    )
