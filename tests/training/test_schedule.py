"""Learning rates by hand and against torch's own schedulers, orders, batch sizes."""

import pytest
import torch

import setwise.register as register
from setwise.recipe import Recipe
from setwise.training.schedule import batch_sizes, epoch_order, epoch_rates


def all_rates(name, *, lr, epochs, steps=5, warmup=0):
    tree = {"epochs": epochs, "optimizer": {"name": "adam", "lr": lr}, "schedule": {"name": name, "warmup": warmup}}
    return torch.cat([epoch_rates(Recipe.read(tree), epoch, steps) for epoch in range(epochs)])


@pytest.mark.parametrize("warmup", [0, 2])
def test_cosine_equals_torch_after_the_warm_up(warmup):
    rates = all_rates("cosine", lr=0.3, epochs=10, warmup=warmup)
    torch.testing.assert_close(rates[: 5 * warmup], 0.03 * torch.arange(1, 5 * warmup + 1, dtype=torch.float64))
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50 - 5 * warmup)
    for rate in rates[5 * warmup :].tolist():
        assert rate == pytest.approx(scheduler.get_last_lr()[0], rel=1e-9)
        optimizer.step()
        scheduler.step()


@pytest.mark.parametrize("name", ["cosine", "steps", "constant"])
def test_a_warm_up_may_last_as_long_as_the_training(name):
    rates = all_rates(name, lr=1.0, epochs=2, warmup=2)
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
    assert register.schedule[name].make(0.4, at, 8, warmup=2) == pytest.approx(0.4 * share, abs=1e-12)


def test_orders_are_permutations_of_their_own():
    orders = [epoch_order(50, seed=seed, epoch=epoch) for seed in (1, 2) for epoch in (0, 1)]
    assert all(torch.equal(order.sort().values, torch.arange(50)) for order in orders)
    assert len({tuple(order.tolist()) for order in orders}) == 4
    assert torch.equal(orders[0], epoch_order(50, seed=1, epoch=0))


@pytest.mark.parametrize(
    ("samples", "drop", "processes", "sizes"),
    [
        (10, False, 1, [4, 4, 2]),
        (10, True, 1, [4, 4]),
        (9, False, 1, [4, 4]),  # one image alone has nothing to be compared with
        (11, False, 2, [4, 4, 2]),
        (13, False, 4, [4, 4, 4]),
        (3, False, 1, [3]),
        (3, True, 1, []),
    ],
)
def test_batch_sizes(samples, drop, processes, sizes):
    assert batch_sizes(samples, 4, drop_last=drop, processes=processes) == sizes
