"""Nearest others, near-duplicates and outliers against all pairs in float64."""

import pytest
import torch

from setwise.evaluation import neighbours as module
from setwise.evaluation.neighbours import nearest, neighbourhood


def items(count=200, *, copies=20, seed=0):
    """Random rows, some of them with copies that differ a little."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 12, generator=generator)
    near = x[:copies] + 0.02 * torch.randn(copies, 12, generator=generator)
    return torch.cat([x, near, x[:3]]) * (0.1 + torch.rand(count + copies + 3, 1, generator=generator))


def all_cosines(x):
    unit = torch.nn.functional.normalize(x.double())
    return unit @ unit.mT


@pytest.mark.parametrize("block", [2**26, 1000], ids=["one block", "blocks of rows"])
@pytest.mark.parametrize("threshold", [0.6, 0.99])
def test_equals_all_pairs(monkeypatch, block, threshold):
    monkeypatch.setattr(module, "BLOCK", block)
    x = items()
    cosine = all_cosines(x)
    assert (cosine - threshold).abs().min() > 1e-5, "rounding decides nothing"
    found = neighbourhood(x, k=5, threshold=threshold)
    expected = {(i, j) for i, j in (cosine >= threshold).nonzero().tolist() if i < j}
    assert {tuple(pair) for pair in found.pairs.tolist()} == expected
    assert found.count == len(found.pairs) == len(expected) > 20
    torch.testing.assert_close(
        found.pair_cosine.double(), torch.stack([cosine[i, j] for i, j in found.pairs.tolist()]), atol=1e-6, rtol=0
    )
    assert (found.pair_cosine.diff() <= 0).all()
    others = cosine.fill_diagonal_(-2).sort(descending=True).values[:, :5]
    torch.testing.assert_close(found.cosine.double(), others, atol=1e-6, rtol=0)
    torch.testing.assert_close(cosine.gather(1, found.index), others, atol=1e-6, rtol=0)
    torch.testing.assert_close(found.distance.double(), 1 - others.mean(1), atol=1e-6, rtol=0)


def test_too_many_pairs_keep_the_nearest_and_count_all(monkeypatch):
    monkeypatch.setattr(module, "KEPT", 10)
    monkeypatch.setattr(module, "BLOCK", 1000)
    x = items()
    cosine = all_cosines(x).triu(1)
    found = neighbourhood(x, k=2, threshold=0.5)
    assert found.count == int((cosine >= 0.5).sum())
    best = cosine.flatten().sort(descending=True).values[:10]
    torch.testing.assert_close(found.pair_cosine.double(), best, atol=1e-6, rtol=0)


def test_a_group_has_near_duplicates_of_its_first_row_only():
    angle = torch.tensor([0.0, 0.1, 0.2, 0.3, 2.0, 2.0, 4.0])  # a chain, two copies, one alone
    x = torch.stack([angle.cos(), angle.sin()], 1)
    threshold = float(torch.tensor(0.15).cos())
    groups = neighbourhood(x, k=3, threshold=threshold).groups()
    assert sorted(groups[0]) == [4, 5], "the nearest first"
    cosine = all_cosines(x)
    rows = [row for group in groups for row in group]
    assert len(rows) == len(set(rows))
    for group in groups:
        first = next(iter(group))
        assert len(group) > 1
        for row, value in group.items():
            assert value == pytest.approx(float(cosine[first, row]), abs=1e-6)
            assert value >= threshold - 1e-6


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_rows(count):
    found = neighbourhood(torch.eye(3)[:count], k=10, threshold=0.9)
    assert found.index.shape == (count, count - 1)
    assert found.count == 0
    assert found.groups() == []


def test_nearest_to_queries():
    x, queries = items(), items(10, copies=1, seed=3)
    cosine, rows = nearest(queries, x, k=7)
    unit, others = (torch.nn.functional.normalize(z.double()) for z in (queries, x))
    expected = (unit @ others.mT).sort(descending=True)
    torch.testing.assert_close(cosine.double(), expected.values[:, :7], atol=1e-6, rtol=0)
    assert (rows == expected.indices[:, :7]).float().mean() > 0.95  # copies may change places
