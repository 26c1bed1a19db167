"""Learning rates against torch's own schedulers, orders, batch sizes."""

from dataclasses import replace

import pytest
import torch

from setwise.recipe import Recipe
from setwise.training.schedule import batch_sizes, epoch_order, epoch_rates


def test_cosine_equals_torch():
    recipe = Recipe(loss="paper/simclr", schedule="cosine", lr=0.3, epochs=4)
    rates = torch.cat([epoch_rates(recipe, epoch, 5) for epoch in range(4)])
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    for rate in rates.tolist():
        assert rate == pytest.approx(scheduler.get_last_lr()[0], rel=1e-9)
        optimizer.step()
        scheduler.step()


def test_steps_and_constant():
    steps = Recipe(method="supervised", schedule="steps", lr=0.1, epochs=8)
    assert [epoch_rates(steps, e, 2).tolist() for e in (3, 4, 5, 6)] == [
        pytest.approx([x, x]) for x in (0.1, 0.01, 0.01, 0.001)
    ]
    assert epoch_rates(Recipe(loss="paper/simclr", lr=0.2), 7, 3).tolist() == [0.2] * 3


def test_warm_up_rises_in_a_line_and_never_stands_still():
    recipe = Recipe(loss="paper/simclr", schedule="cosine", warmup=2, lr=1.0, epochs=10)
    rates = torch.cat([epoch_rates(recipe, epoch, 5) for epoch in range(10)])
    torch.testing.assert_close(rates[:10], torch.arange(1, 11, dtype=torch.float64) / 10)
    assert (rates > 0).all()
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)
    for rate in rates[10:].tolist():  # the whole of it in the epochs that are left
        assert rate == pytest.approx(scheduler.get_last_lr()[0], rel=1e-9)
        optimizer.step()
        scheduler.step()
    with_it, without = (replace(recipe, schedule="steps", warmup=warmup) for warmup in (2, 0))
    for epoch in range(2, 10):
        assert torch.equal(epoch_rates(with_it, epoch, 5), epoch_rates(without, epoch, 5)), "nothing comes early"


@pytest.mark.parametrize("schedule", ["cosine", "steps", "constant"])
def test_a_warm_up_may_last_as_long_as_the_training(schedule):
    recipe = Recipe(loss="paper/simclr", schedule=schedule, warmup=2, lr=1.0, epochs=2)
    rates = torch.cat([epoch_rates(recipe, epoch, 5) for epoch in range(2)])
    torch.testing.assert_close(rates, torch.arange(1, 11, dtype=torch.float64) / 10)


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
