"""Methods that guess a class learn to, by the engine, in two epochs of digits; Deep InfoMax is in its own file."""

import pytest
import torch

from setwise.data import load
from setwise.paper.recipes import recipe as named
from setwise.training.engine import Engine


@pytest.mark.parametrize(("name", "chance", "learned"), [("rotation", 0.25, 0.8), ("deepcluster", 0.01, 0.2)])
def test_accuracy_begins_at_chance_and_rises(name, chance, learned):
    recipe = named(f"released/digits-conv4-{name}").changed({"epochs": 2, "batch": 64, "lr": 1e-2, "views": "none"})
    engine, found = Engine(recipe, load("digits"), seed=1, device=torch.device("cpu")), []
    for epoch in range(2):
        engine.begin(epoch)
        for _ in range(engine.steps):
            engine.step()
            found.append(engine.means()["accuracy"])
    assert found[0] < chance + 0.1
    assert found[-1] > learned
