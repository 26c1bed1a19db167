"""Instance matching as a method: which shots, which views, and that it learns to match."""

import pytest
import torch

from setwise import methods
from setwise.data import MatchedSet, load, matched_halves
from setwise.methods.deepinfomax import FIRST_VIEW
from setwise.methods.matching import draw_shots
from setwise.paper.recipes import recipe as named
from setwise.views import philox as generator

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def shots() -> MatchedSet:
    """Four identities with 1 to 3 shots of a view; every image is filled with its own number."""
    images = torch.arange(13, dtype=torch.uint8).view(13, 1, 1, 1).expand(13, 1, 8, 8).contiguous()
    a = torch.tensor([[0, 1, 2], [3, -1, -1], [4, 5, -1], [6, 7, 8]])
    b = torch.tensor([[9], [10], [11], [12]])
    return MatchedSet("toy", "train", images, a, b, tuple("abcd"), (0.0,), (1.0,))


def key(value: int) -> torch.Tensor:
    return torch.tensor(value)


def test_shots_are_of_the_right_identity_and_view(shots):
    rows = torch.tensor([2, 0, 3, 1])
    seen = [set() for _ in range(4)]
    for epoch in range(60):
        places, keys = draw_shots(shots, rows, seed=key(5), epoch=key(epoch))
        for i, row in enumerate(rows.tolist()):
            assert places[i] in shots.shots_a[row]
            assert places[i] >= 0
            assert places[4 + i] == 9 + row
            seen[row].add(places[i].item())
    assert seen == [{0, 1, 2}, {3}, {4, 5}, {6, 7, 8}]
    assert keys.tolist() == [4, 0, 6, 2, 5, 1, 7, 3]


def test_shots_are_uniform_and_do_not_depend_on_the_batch(shots):
    counts = torch.zeros(13)
    for epoch in range(900):
        places, _ = draw_shots(shots, torch.tensor([0]), seed=key(1), epoch=key(epoch))
        counts[places[0]] += 1
    assert (counts[:3] - 300).abs().max() < 50  # 3.5 standard deviations
    whole, _ = draw_shots(shots, torch.arange(4), seed=key(1), epoch=key(3))
    for row in range(4):
        alone, _ = draw_shots(shots, torch.tensor([row]), seed=key(1), epoch=key(3))
        assert alone.tolist() == [whole[row], whole[4 + row]]


def test_no_view_and_no_prior_shares_a_counter_with_the_shots(shots, monkeypatch):
    seen, philox = [], generator.philox

    def spy(counter, key):
        seen.append(counter)
        return philox(counter, key)

    monkeypatch.setattr(generator, "philox", spy)
    draw_shots(shots, torch.arange(4), seed=key(1), epoch=key(2))
    # The last word is 16 view + block: a view's number that no run counts up to, and below those of the prior.
    assert (seen[0][3] >= 16 * 2**26).all()
    assert (seen[0][3] < 16 * FIRST_VIEW).all()


def test_the_kind_of_data_must_fit():
    digits = load("digits")
    for name, data in (("digits-matching-triplet", digits), ("digits-conv4-simclr", matched_halves(digits))):
        with pytest.raises(ValueError, match=f"for method .*, got {type(data).__name__}"):
            methods.create(named(f"paper/{name}"), data)
