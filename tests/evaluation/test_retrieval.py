"""How many images find their own second view, against a search by hand."""

import numpy as np
import pytest
import torch
from torch import nn

import setwise as sw
from setwise.evaluation import retrieval
from setwise.evaluation.retrieval import view_retrieval


class Pooled(nn.Module):
    """Means of the quarters of an image."""

    features = 12

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.scale * nn.functional.adaptive_avg_pool2d(x, 2).flatten(1)


@pytest.fixture
def data():
    """Blocks of random colours."""
    blocks = torch.randint(256, (40, 3, 2, 2), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return sw.data.from_images(blocks.repeat_interleave(8, 2).repeat_interleave(8, 3))


@pytest.mark.parametrize("most", [5_000, 7], ids=["all", "some"])
def test_against_a_search_by_hand(data, most, monkeypatch):
    monkeypatch.setattr(retrieval, "MOST", most)
    monkeypatch.setattr(retrieval, "ROWS", 9)
    encoder = Pooled()
    rows = torch.arange(40) if most > 40 else torch.tensor([0, 5, 11, 17, 22, 28, 34])
    views = sw.views.preset("self-supervised", mean=data.mean, std=data.std)
    pair = views.pair(data.images[rows], samples=torch.arange(len(rows)), seed=0, epoch=0)
    a, b = (encoder(view).detach().double().numpy() for view in pair)
    found = 0
    for i in range(len(rows)):
        cosines = [a[i] @ b[j] / np.sqrt((a[i] @ a[i]) * (b[j] @ b[j])) for j in range(len(rows))]
        found += max(range(len(rows)), key=cosines.__getitem__) == i
    assert 0 < found < len(rows)
    assert view_retrieval(encoder, data, device="cpu") == pytest.approx(found / len(rows))


def test_perfect_and_constant_features(data, monkeypatch):
    encoder = Pooled()
    monkeypatch.setattr(retrieval, "VIEWS", "none")  # both views are the image itself
    assert view_retrieval(encoder, data, device="cpu") == 1
    with torch.no_grad():
        encoder.scale.zero_()
    assert view_retrieval(encoder, data, device="cpu") == 1 / len(data)
