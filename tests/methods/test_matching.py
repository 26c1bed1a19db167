"""Instance matching as a method: which shots, which views, and that it learns to match."""

import pytest
import torch

from setwise import methods
from setwise.data import MatchedSet, load, matched_halves
from setwise.methods.deepinfomax import FIRST_VIEW
from setwise.methods.matching import draw_shots, passes_of_an_epoch
from setwise.paper.recipes import recipe as named
from setwise.recipe import Recipe
from setwise.training.engine import Engine
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


def many_shots(counts: list[tuple[int, int]]) -> MatchedSet:
    """Identities with so many shots of each view; images of noise."""
    most, total = max(max(pair) for pair in counts), sum(a + b for a, b in counts)
    place, tables = iter(range(total)), []
    for view in (0, 1):
        rows = [[next(place) for _ in range(pair[view])] for pair in counts]
        tables.append(torch.tensor([row + [-1] * (most - len(row)) for row in rows]))
    images = torch.randint(256, (total, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return MatchedSet("toy", "train", images, *tables, tuple(map(str, range(len(counts)))), (0.5,), (0.25,))


@pytest.mark.parametrize(
    ("counts", "passes"),
    [([(1, 1)] * 4, 1), ([(5, 5)] * 3 + [(4, 5)], 5), ([(1, 2), (3, 1)], 2), ([(1, 1), (1, 2)], 1)],
)
def test_an_epoch_over_shots_has_as_many_passes_as_the_mean_view_has_shots(counts, passes):
    data, recipe = many_shots(counts), named("paper/digits-matching-infonce")
    assert passes_of_an_epoch(recipe.changed({"method.passes_over": "shots"}), data) == passes
    assert passes_of_an_epoch(recipe, data) == 1


@pytest.mark.parametrize("drop_last", [False, True])
def test_an_epoch_over_shots_is_that_many_passes_over_identities(drop_last):
    data = many_shots([(3, 3)] * 10)
    recipe = named("paper/digits-matching-infonce").changed(
        {"batch": 4, "drop_last": drop_last, "schedule": "constant", "lr": 1e-3, "epochs": 6}
    )
    engines = [
        Engine(recipe.changed(changes), data, seed=3, device=CPU)
        for changes in ({}, {"method.passes_over": "shots", "epochs": 2})
    ]
    seen = [[], []]
    for engine, steps in zip(engines, seen, strict=True):
        draw = engine.batch
        engine.batch = lambda samples, images=None, phase=None, draw=draw, steps=steps: (
            steps.append(draw(samples)) or steps[-1]
        )
        for epoch in range(engine.recipe.epochs):
            engine.begin(epoch)
            for _ in range(engine.steps):
                engine.step()
    assert [engine.steps for engine in engines] == [2 + (not drop_last), 3 * (2 + (not drop_last))]
    for one, other in zip(*seen, strict=True):
        assert torch.equal(one.images, other.images)
        assert torch.equal(one.samples, other.samples)
        assert len(one.labels.unique()) == len(one.labels), "no identity is its own negative"
    assert all(torch.equal(x, y) for x, y in zip(*(e.method.state_dict().values() for e in engines), strict=True))
    # Begun in the middle of an epoch, the rest is the same: that is how a run resumes.
    engine, steps = engines[1], len(seen[1])
    engine.begin(1, engine.steps - 1)
    engine.step()
    assert len(seen[1]) == steps + 1
    assert torch.equal(seen[1][-1].images, seen[0][-1].images)


def test_a_recipe_without_the_field_means_what_it_meant():
    tree = named("paper/cifar10-matching-infonce").tree()
    assert tree["method"].pop("passes_over") == "identities"
    assert Recipe.read(tree) == named("paper/cifar10-matching-infonce")
    assert Recipe.read({**tree, "method": "matching"}) == named("paper/cifar10-matching-infonce")
    assert named("paper/cuhk03-matching-triplet-qare").method["passes_over"] == "shots"
