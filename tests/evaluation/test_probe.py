"""The linear probe: step by step against nn.Linear, cross_entropy and torch.optim.Adam; its edges; on a GPU."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from setwise.evaluation import linear_probe, probe
from setwise.training.schedule import epoch_order


def clusters(n: int, *, classes: int = 4, dimensions: int = 5, noise: float = 1.0, seed: int = 0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, dimensions, generator=torch.Generator().manual_seed(99), dtype=torch.float64)
    y = torch.randint(classes, (n,), generator=generator)
    x = centres[y] + noise * torch.randn(n, dimensions, generator=generator, dtype=torch.float64)
    return x.to(dtype), y


class Reference:
    """The paper's probe as anyone would write it."""

    def __init__(self, weights: Tensor, lr: float) -> None:
        self.linear = nn.Linear(weights.shape[1] - 1, len(weights), dtype=torch.float64)
        self.linear.weight.data, self.linear.bias.data = weights[:, :-1].clone(), weights[:, -1].clone()
        self.optimizer = torch.optim.Adam(self.linear.parameters(), lr=lr, foreach=False)

    def step(self, x: Tensor, y: Tensor) -> tuple[Tensor, float]:
        logits = self.linear(x)
        loss = cross_entropy(logits, y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return logits.detach(), loss.item()

    def accuracy(self, x: Tensor, y: Tensor) -> float:
        return (self.linear(x).argmax(1) == y).double().mean().item()


@pytest.mark.parametrize(("n", "batch"), [(300, 64), (37, 8), (32, 8), (5, 8), (9, 1)])
def test_every_step_is_the_references(n, batch):
    """A sample's loss is that before the step that it is part of: one wrong step, and the epochs' losses differ."""
    (x, y), (test_x, test_y) = clusters(n), clusters(200, seed=1)
    found = linear_probe(x, y, test_x, test_y, classes=4, epochs=12, batch=batch, lr=0.01, seed=7)
    reference = Reference(probe.initial_weights(5, 4, seed=7), 0.01)
    for epoch in range(12):
        hits, losses = 0, 0.0
        for rows in epoch_order(n, seed=7, epoch=epoch).split(batch):
            logits, loss = reference.step(x[rows], y[rows])
            hits += int((logits.argmax(1) == y[rows]).sum())
            losses += loss * len(rows)
        assert found.train_loss[epoch] == pytest.approx(losses / n, rel=1e-9)
        assert found.train_accuracy[epoch] == hits / n
        assert found.test_accuracy[epoch] == reference.accuracy(test_x, test_y)
    assert found.accuracy == found.test_accuracy[-1]
    assert n < 300 or 0.5 < found.accuracy < 1
    assert len(found.test_accuracy) == len(found.train_loss) == len(found.train_accuracy) == 12
    assert found.seconds > 0


def test_a_captures_trial_runs_leave_no_trace(monkeypatch):
    def trial_runs(run):
        for _ in range(3):
            run()
        return run

    monkeypatch.setattr("setwise.training.capture.captured", trial_runs)
    data, weights = clusters(50), probe.initial_weights(5, 4, seed=0)
    plain, tried = (probe._Regression(*data, *data, weights.clone(), batch=16, lr=0.1) for _ in "ab")
    run = probe._captured(tried)
    assert torch.equal(tried.weight, weights)
    for _ in range(3):
        plain.epoch()
        run()
        assert torch.equal(tried.weight, plain.weight)
        assert torch.equal(tried.sums, plain.sums)


def test_defaults_are_the_papers_and_features_may_require_a_gradient():
    x, y = clusters(200)
    plain = linear_probe(x.clone().requires_grad_(), y, x, y, classes=4, seed=1)
    spelt = linear_probe(x, y, x, y, classes=4, epochs=100, batch=128, lr=1e-3, seed=1)
    assert len(plain.train_loss) == 100
    assert plain.train_loss == spelt.train_loss


def test_the_same_bits_for_the_same_seed_and_others_for_another():
    train, test = clusters(300, dtype=torch.float32), clusters(100, seed=1, dtype=torch.float32)
    copies = [x.clone() for x in (*train, *test)]
    state = torch.random.get_rng_state()
    runs = [linear_probe(*train, *test, classes=4, epochs=8, seed=seed) for seed in (1, 1, 2)]
    assert runs[0].train_loss == runs[1].train_loss
    assert runs[0].test_accuracy == runs[1].test_accuracy
    assert runs[0].train_loss != runs[2].train_loss
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(copies, (*train, *test), strict=True))
    linear_probe(*train, *test, classes=4, epochs=1, seed=2**63 - 1)  # the largest


def test_initial_weights_are_distributed_as_nn_linears():
    weights = probe.initial_weights(400, 300, seed=0)
    torch.manual_seed(0)
    linear = nn.Linear(400, 300)
    reference = torch.cat([linear.weight, linear.bias[:, None]], 1)
    assert weights.abs().max() <= 1 / 20
    assert weights[:, -1].abs().max() > 0.9 / 20
    assert weights.std().item() == pytest.approx(reference.std().item(), rel=0.01)
    assert abs(weights.mean().item()) < 1e-3
    seeds = torch.stack([probe.initial_weights(3, 2, seed=seed).flatten() for seed in (0, 1, 2, 2**32, 2**62)])
    assert len(seeds.unique(dim=0)) == 5


def test_classes_that_a_split_lacks():
    (x, y), (test_x, test_y) = clusters(300), clusters(200, seed=1)
    some = test_y != 2
    found = linear_probe(x, y, test_x[some], test_y[some], classes=6, epochs=20, lr=0.01, seed=1)
    assert 0.5 < found.accuracy < 1
    one = linear_probe(x, torch.zeros_like(y), x, torch.zeros_like(y), classes=1, epochs=2, seed=1)
    assert one.accuracy == 1
    assert one.train_loss[-1] == 0


@pytest.mark.parametrize(
    "options", [{"epochs": 0}, {"batch": 0}, {"lr": 0.0}, {"seed": -1}, {"seed": True}, {"seed": 2**63}]
)
def test_bad_options(options):
    data = clusters(50)
    with pytest.raises(ValueError, match=f"expected {next(iter(options))} to be"):
        linear_probe(*data, *data, **({"classes": 4, "epochs": 1, "seed": 1} | options))


def test_bad_features():
    (x, y), test = clusters(50), clusters(50, seed=1)
    with pytest.raises(ValueError, match="expected train_y from 0 to 2"):  # test_knn.py tries the other checks
        linear_probe(x, y, *test, classes=3, seed=1)
    huge = (3e38 / x.abs().max() * x).float()
    with pytest.raises(ValueError, match="expected a finite loss, got inf after 1 epochs"):
        linear_probe(huge, y, huge, y, classes=4, epochs=1, seed=1)


@pytest.mark.gpu
@pytest.mark.parametrize(("n", "batch"), [(2000, 128), (2048, 128), (50, 128)])
def test_a_captured_probe_is_the_cpus(n, batch):
    train, test = (clusters(m, dimensions=64, noise=4.0, seed=s) for m, s in ((n, 0), (1000, 1)))
    here = linear_probe(*train, *test, classes=4, epochs=20, batch=batch, seed=5)
    there = linear_probe(*(x.cuda() for x in (*train, *test)), classes=4, epochs=20, batch=batch, seed=5)
    np.testing.assert_allclose(there.train_loss, here.train_loss, rtol=1e-9)
    assert there.test_accuracy == here.test_accuracy
    single = [x.float().cuda() if x.is_floating_point() else x.cuda() for x in (*train, *test)]
    found = linear_probe(*single, classes=4, epochs=20, batch=batch, seed=5)
    np.testing.assert_allclose(found.train_loss, here.train_loss, rtol=1e-4)
    np.testing.assert_allclose(found.test_accuracy, here.test_accuracy, atol=0.003)


@pytest.mark.gpu
@pytest.mark.slow  # what it measures is the machine's
def test_a_probe_of_cifars_size_takes_seconds():
    train, test = (clusters(m, classes=10, dimensions=64, dtype=torch.float32) for m in (50_000, 10_000))
    found = linear_probe(*(x.cuda() for x in (*train, *test)), classes=10, seed=1)
    assert found.seconds < 3
