"""Learning rates against torch's own schedulers, orders, batch sizes."""

import pytest
import torch

from setwise.recipe import Recipe
from setwise.training.schedule import batch_sizes, epoch_order, epoch_rates, learning_rate


def scheduled(name, *, lr, epochs, **options):
    tree = {"epochs": epochs, "optimizer": {"name": "adam", "lr": lr}, "schedule": {"name": name, **options}}
    return Recipe.read(tree)


def test_cosine_equals_torch():
    recipe = scheduled("cosine", lr=0.3, epochs=4)
    rates = torch.cat([epoch_rates(recipe, epoch, 5) for epoch in range(4)])
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    for rate in rates.tolist():
        assert rate == pytest.approx(scheduler.get_last_lr()[0], rel=1e-9)
        optimizer.step()
        scheduler.step()


def test_steps_and_constant():
    steps = scheduled("steps", lr=0.1, epochs=8)
    assert [epoch_rates(steps, e, 2).tolist() for e in (3, 4, 5, 6)] == [
        pytest.approx([x, x]) for x in (0.1, 0.01, 0.01, 0.001)
    ]
    assert epoch_rates(scheduled("constant", lr=0.2, epochs=200), 7, 3).tolist() == [0.2] * 3


def test_warm_up_rises_in_a_line_and_never_stands_still():
    recipe = scheduled("cosine", warmup=2, lr=1.0, epochs=10)
    rates = torch.cat([epoch_rates(recipe, epoch, 5) for epoch in range(10)])
    torch.testing.assert_close(rates[:10], torch.arange(1, 11, dtype=torch.float64) / 10)
    assert (rates > 0).all()
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)
    for rate in rates[10:].tolist():  # the whole of it in the epochs that are left
        assert rate == pytest.approx(scheduler.get_last_lr()[0], rel=1e-9)
        optimizer.step()
        scheduler.step()
    with_it, without = (scheduled("steps", warmup=warmup, lr=1.0, epochs=10) for warmup in (2, 0))
    for epoch in range(2, 10):
        assert torch.equal(epoch_rates(with_it, epoch, 5), epoch_rates(without, epoch, 5)), "nothing comes early"


@pytest.mark.parametrize("schedule", ["cosine", "steps", "constant"])
def test_a_warm_up_may_last_as_long_as_the_training(schedule):
    recipe = scheduled(schedule, warmup=2, lr=1.0, epochs=2)
    rates = torch.cat([epoch_rates(recipe, epoch, 5) for epoch in range(2)])
    torch.testing.assert_close(rates, torch.arange(1, 11, dtype=torch.float64) / 10)


@pytest.mark.parametrize(
    ("name", "at", "share"),
    [
        ("constant", 3.0, 1.0),
        ("constant", 0.5, 0.25),
        ("steps", 3.9, 1.0),
        ("steps", 4.0, 0.1),
        ("steps", 6.0, 0.01),
        ("cosine", 1.0, 0.5),
        ("cosine", 2.0, 1.0),
        ("cosine", 4.0, 0.75),
        ("cosine", 8.0, 0.0),
    ],
)
def test_schedules_by_hand(name, at, share):
    """Of eight epochs, two of them to warm up."""
    recipe = Recipe.read(
        {"epochs": 8, "schedule": {"name": name, "warmup": 2}, "optimizer": {"name": "sgd", "lr": 0.4}}
    )
    assert learning_rate(recipe, at) == pytest.approx(0.4 * share, abs=1e-12)


def test_unknown_ones_are_answered_with_the_nearest():
    for tree, said in (
        ({"optimizer": "adamm"}, "expected the optimizer to be registered, .*did you mean 'adam'"),
        ({"schedule": "cosin"}, "expected the schedule to be registered, .*did you mean 'cosine'"),
        (
            {"optimizer": {"name": "adam", "momentum": 0.9}},
            "expected an option of 'adam', one of lr, weight_decay, got",
        ),
        ({"optimizer": {"name": "sgd", "lr": "fast"}}, "expected lr to be .* got 'fast'"),
        ({"schedule": {"name": "cosine", "warmup": 300}}, "expected warmup of at most the 200 epochs, got 300"),
        ({"optimizer": {"name": "sgd", "momentum": 1.0}}, "expected momentum below 1"),
    ):
        with pytest.raises(ValueError, match=said):
            Recipe.read(tree)


def test_orders_are_permutations_of_their_own():
    orders = [epoch_order(50, seed=seed, epoch=epoch) for seed in (1, 2) for epoch in (0, 1)]
    assert all(torch.equal(order.sort().values, torch.arange(50)) for order in orders)
    assert len({tuple(order.tolist()) for order in orders}) == 4
    assert torch.equal(orders[0], epoch_order(50, seed=1, epoch=0))


@pytest.mark.parametrize(
    ("samples", "batch", "drop", "processes", "sizes"),
    [
        (10, 4, False, 1, [4, 4, 2]),
        (10, 4, True, 1, [4, 4]),
        (9, 4, False, 1, [4, 4]),  # one image alone has nothing to be compared with
        (11, 4, False, 2, [4, 4, 2]),
        (13, 4, False, 4, [4, 4, 4]),
        (3, 4, False, 1, [3]),
        (3, 4, True, 1, []),
    ],
)
def test_batch_sizes(samples, batch, drop, processes, sizes):
    assert batch_sizes(samples, batch, drop_last=drop, processes=processes) == sizes
