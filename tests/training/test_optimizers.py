"""LARS by its equations, Muon by torch's own; both kept by checkpoints, both within a captured step."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

import setwise.register as register
from setwise.recipe import Recipe
from setwise.training.engine import Engine
from setwise.training.optimizers import orthogonal

OWN = ("lars", "muon", {"name": "muon", "filters": True})


def parameters() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(6, 4), (6,), (3, 2, 3, 3), (5, 7)]
    return [nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64)) for shape in shapes]


def stepped(made: torch.optim.Optimizer, weights: list[nn.Parameter], rate: torch.Tensor) -> list[torch.Tensor]:
    """The weights after steps of two rates, along gradients that are anyone's."""
    for step, lr in enumerate((0.5, 0.2)):
        rate.fill_(lr)
        for w in weights:
            w.grad = torch.sin(w.detach() + step)
        made.step()
    return [w.detach().clone() for w in weights]


def rate() -> torch.Tensor:
    return torch.zeros((), dtype=torch.float64)


@pytest.mark.parametrize(("trust", "clip"), [(0.02, False), (0.02, True), (2.0, True)])
def test_lars_is_its_equations(trust, clip):
    lr, weights = rate(), parameters()
    expected = [w.detach().numpy().copy() for w in weights]
    options = {"momentum": 0.8, "weight_decay": 0.1, "trust": trust, "clip": clip}
    found = stepped(register.optimizer["lars"].make([{"params": weights}], lr=lr, **options), weights, lr)
    for w, mine in zip(expected, found, strict=True):
        v = np.zeros_like(w)
        for step, now in enumerate((0.5, 0.2)):
            g, ratio, decay = np.sin(w + step), 1.0, 0.0
            if w.ndim > 1:
                size, slope = np.sqrt((w**2).sum()), np.sqrt((g**2).sum())
                ratio, decay = trust * size / (slope + 0.1 * size), 0.1
                ratio = min(ratio / now, 1) if clip else ratio
            v = 0.8 * v + now * ratio * (g + decay * w)
            w = w - v
        np.testing.assert_allclose(mine, w, rtol=1e-12)


def test_lars_moves_what_is_zero():
    w, lr = nn.Parameter(torch.zeros(2, 2)), torch.tensor(0.5)
    made = register.optimizer["lars"].make([{"params": [w]}], lr=lr)
    for slope in (0.0, 1.0):  # neither 0 / 0 nor a step of length 0 for ever
        w.grad = torch.full_like(w, slope)
        made.step()
    torch.testing.assert_close(w.detach(), torch.full((2, 2), -0.5))


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="needs torch 2.9 for torch.optim.Muon")
def test_muon_is_torchs_for_matrices_and_adamw_for_the_rest():
    lr, weights = rate(), parameters()
    groups = [{"params": weights[:2]}, {"params": weights[2:], "weight_decay": 0.3}]
    found = stepped(register.optimizer["muon"].make(groups, lr=lr, weight_decay=0.1), weights, lr)
    for i, mine in enumerate(found):
        alone, decay = parameters()[i], 0.1 if i < 2 else 0.3
        if alone.ndim == 2:
            theirs = torch.optim.Muon([alone], 0.0, decay, momentum=0.95, adjust_lr_fn="match_rms_adamw")
        else:
            theirs = torch.optim.AdamW([alone], 0.0, weight_decay=decay)
        for step, now in enumerate((0.5, 0.2)):
            theirs.param_groups[0]["lr"] = now
            alone.grad = torch.sin(alone.detach() + step)
            theirs.step()
        near = 0.03 if alone.ndim == 2 else 1e-12  # torch's own multiplies in bfloat16
        torch.testing.assert_close(mine, alone.detach(), rtol=near, atol=near, msg=lambda m, i=i: f"{i}: {m}")


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="needs torch 2.9 for torch.optim.Muon")
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_muon_takes_filters_as_rows_of_a_matrix(layout):
    lr, weights = rate(), parameters()
    filters = weights[2] = nn.Parameter(weights[2].detach().to(memory_format=layout))
    made = register.optimizer["muon"].make([{"params": weights}], lr=lr, weight_decay=0.1, filters=True)
    found = stepped(made, weights, lr)
    alone = nn.Parameter(parameters()[2].detach().flatten(1))  # the order of columns does not matter to it
    theirs = torch.optim.Muon([alone], 0.0, 0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    for step, now in enumerate((0.5, 0.2)):
        theirs.param_groups[0]["lr"] = now
        alone.grad = torch.sin(alone.detach() + step)
        theirs.step()
    torch.testing.assert_close(found[2].flatten(1), alone.detach(), rtol=0.02, atol=0.02)  # it multiplies in bf16
    plain = stepped(
        register.optimizer["muon"].make([{"params": (own := parameters())}], lr=lr, weight_decay=0.1), own, lr
    )
    for i in (0, 1, 3):
        torch.testing.assert_close(found[i], plain[i], rtol=0, atol=0)
    assert (found[2] - plain[2]).abs().max() > 0.1
    assert filters.is_contiguous(memory_format=layout)
    assert made.state[filters]["momentum_buffer"].shape == (3, 18)


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (5, 5), (1, 7), (30, 200)])
def test_the_polynomial_moves_singular_values_and_nothing_else(shape):
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    u, s, v = np.linalg.svd(matrix.numpy(), full_matrices=False)
    s /= np.linalg.norm(s)
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    np.testing.assert_allclose(orthogonal(matrix).numpy(), u * s @ v, atol=1e-12)
    torch.testing.assert_close(orthogonal(3 * matrix), orthogonal(matrix))
    assert not orthogonal(torch.zeros(shape)).any()


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="needs torch 2.9 for torch.optim.Muon")
@pytest.mark.parametrize("shape", [(6, 4), (40, 300), (300, 40)])
def test_a_long_step_of_muon_is_torchs_to_bfloat16(shape):
    gradient = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    found = []
    for make in (register.optimizer["muon"].make, torch.optim.Muon):
        w = nn.Parameter(torch.zeros(shape))
        more = {"adjust_lr_fn": "match_rms_adamw"} if make is torch.optim.Muon else {}
        made = make([{"params": [w]}], lr=1.0, **more)
        w.grad = gradient.clone()
        made.step()
        found.append(w.detach())
    assert (found[0] - found[1]).norm() < 0.05 * found[1].norm()


@pytest.mark.parametrize(("name", "kind"), [("adam", "Adam"), ("adamw", "AdamW"), ("sgd", "SGD")])
def test_torchs_own_take_the_same_steps_and_keep_no_graph(name, kind):
    found = []
    for make in (register.optimizer[name].make, getattr(torch.optim, kind)):
        lr, weights = rate(), parameters()
        more = {"momentum": 0.9} if name == "sgd" else {}
        made = make([{"params": weights}], lr=lr, weight_decay=0.1, **(more if found else {}))
        made.zero_grad()
        found.append(stepped(made, weights, lr))
        assert not any(x.requires_grad for state in made.state.values() for x in state.values())
        assert [w.grad is None for w in weights] == [False] * 4
        made.zero_grad()
        assert [w.grad is None for w in weights] == [True] * 4
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-14, atol=0)


@pytest.mark.parametrize("name", register.optimizer)
def test_a_first_step_waits_for_no_compiler(name):
    """torch's optimisers import it, which takes a second or two."""
    code = f"""
import sys, torch
from setwise.data import load
from setwise.recipe import Recipe
from setwise.training.engine import Engine
tree = {{"method": "contrastive", "epochs": 1, "batch": 50, "objective": "info-nce", "optimizer": "{name}"}}
recipe = Recipe.read(tree)
data = load("digits").select(torch.arange(100), split="train")
engine = Engine(recipe, data, seed=1, device=torch.device("cpu"))
engine.begin(0)
engine.step()
print("torch._dynamo" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


def engine(name: str, digits, device: str = "cpu", *, capture: bool = True) -> Engine:
    recipe = Recipe.read({"method": "supervised", "optimizer": name, "epochs": 2, "batch": 50, "precision": "float32"})
    made = Engine(recipe, digits, seed=1, device=torch.device(device), capture=capture)
    made.begin(0)
    return made


@pytest.mark.parametrize("name", OWN)
def test_a_checkpoint_has_all_of_it(name, digits):
    """Steps after a restart are the same to the bit."""
    whole, resumed = engine(name, digits), engine(name, digits)
    whole.step()
    resumed.restore({key: x.clone() for key, x in whole.tensors().items()})
    resumed.begin(0, 1)
    for one in (whole, resumed):
        one.step()
    mine, theirs = whole.tensors(), resumed.tensors()
    assert sum(key.startswith("optimizer.") for key in mine) >= len(list(whole.method.parameters()))
    assert all(torch.equal(x, theirs[key]) for key, x in mine.items())


@pytest.mark.gpu
@pytest.mark.parametrize("name", OWN)
def test_captured_steps_are_the_same(name, digits):
    found = []
    for capture in (True, False):
        one = engine(name, digits, "cuda", capture=capture)
        for _ in range(3):
            one.step()
        found.append(one.tensors())
    for key, x in found[0].items():
        torch.testing.assert_close(x, found[1][key], rtol=1e-3, atol=1e-4, msg=lambda m, key=key: f"{key}: {m}")
