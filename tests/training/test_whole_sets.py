"""Batches of whole sets: nothing divided, nothing twice, every epoch another draw, the same sizes."""

import numpy as np
import pytest
import torch

from setwise.training.whole_sets import WholeSets


def sets_of(counts, seed=0):
    """The set of each row, in a random order, with names that are no places."""
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.permutation(np.repeat(100 - 3 * np.arange(len(counts)), counts)))


def batches(whole, seed=1, epoch=0):
    return torch.split(whole.order(seed=seed, epoch=epoch)[: sum(whole.sizes)], whole.sizes)


@pytest.mark.parametrize("drop_last", [False, True])
def test_batches_have_whole_sets(drop_last):
    sets = sets_of([1, 2, 3, 4, 5, 5, 5, 2, 2, 9, 1, 1, 7, 8, 3, 3, 6, 4, 4, 4])
    whole = WholeSets(sets, 20, drop_last=drop_last)
    assert max(whole.sizes) <= 20
    assert len(sets) - sum(whole.sizes) <= (11 if drop_last else 9), "a batch with room for any set, or a single set"
    for epoch in range(5):
        order = whole.order(seed=1, epoch=epoch)
        assert sorted(order.tolist()) == list(range(len(sets))), "every row once"
        for rows in batches(whole, epoch=epoch):
            inside = sets[rows].unique()
            assert len(inside) >= 2
            assert torch.isin(sets, inside).sum() == len(rows), "no row of these sets is elsewhere"
    assert not torch.equal(whole.order(seed=1, epoch=0), whole.order(seed=1, epoch=1))
    assert not torch.equal(whole.order(seed=1, epoch=0), whole.order(seed=2, epoch=0))
    assert torch.equal(whole.order(seed=1, epoch=3), WholeSets(sets, 20, drop_last=drop_last).order(seed=1, epoch=3))


def test_groups_that_divide_the_batch_fill_it():
    sets = torch.arange(96) // 4
    whole = WholeSets(sets, 16, drop_last=False, processes=4)
    assert whole.sizes == [16] * 6
    together = {
        tuple(sorted(sets[rows].unique().tolist())) for epoch in range(9) for rows in batches(whole, epoch=epoch)
    }
    assert len(together) > 40, "sets meet others in every epoch"


def test_a_last_batch_of_one_set_is_left_out_and_another_set_in_every_epoch():
    sets = torch.arange(20) // 4
    whole = WholeSets(sets, 8, drop_last=False)
    assert whole.sizes == [8, 8]
    left = {int(sets[whole.order(seed=1, epoch=epoch)[16]]) for epoch in range(30)}
    assert left == {0, 1, 2, 3, 4}
    assert WholeSets(torch.arange(24) // 4, 16, drop_last=False).sizes == [16, 8]
    assert WholeSets(torch.arange(24) // 4, 16, drop_last=True).sizes == [16]
    assert WholeSets(torch.arange(32) // 4, 16, drop_last=True).sizes == [16, 16]


def test_what_cannot_be_batched():
    one, several = torch.zeros(4, dtype=torch.int64), torch.arange(20) // 5
    for sets, batch, advice in ((several, 9, "--batch of 10"), (one, 99, "add others"), (one, 4, "add others")):
        with pytest.raises(ValueError, match=f"expected at least two whole sets in a batch.*{advice}"):
            WholeSets(sets, batch, drop_last=False)
    with pytest.raises(
        ValueError, match="expected batches of whole sets that 2 processes can share equally, got one of"
    ):
        WholeSets(torch.arange(18) // 3, 9, drop_last=False, processes=2)
