"""The encoder compiled: the same weights up to rounding, the same checkpoint; a compiler that fails is no end."""

import copy

import pytest
import torch
from torch import nn

import setwise.register as register
from setwise.evaluation.features import extract
from setwise.recipe import Recipe
from setwise.training import loop
from setwise.training.compilation import compile_encoder
from setwise.training.engine import Engine
from setwise.training.loop import RunOptions

CPU = torch.device("cpu")


class Small(nn.Module):
    features = 6

    def __init__(self, channels):
        super().__init__()
        self.first, self.last = nn.Linear(64 * channels, 8), nn.Linear(8, 6)

    def forward(self, images):
        return self.last(torch.tanh(self.first(images.flatten(1))))


@pytest.fixture(autouse=True)
def mine(registries):
    register.encoder("small", about="A test's.")(Small)


RECIPE = {"encoder": "small", "batch": 90, "epochs": 1, "objective": "nt-xent", "precision": "float64"}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # of torch's own compiler
def test_two_compiled_steps_are_two_plain_ones(tmp_path, digits, monkeypatch):
    compiled, compile = [], torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda *given, **options: compiled.append(options) or compile(*given, **options)
    )
    data = digits.select(torch.arange(180), split="train")
    recipe = Recipe.read(RECIPE)
    ends = [
        loop.train(recipe, data, tmp_path / str(choice), seed=1, how=RunOptions(CPU, quiet=True, compile=choice))
        for choice in (False, True)
    ]
    (plain, first), (other, last) = ends
    assert compiled == [{"dynamic": False}]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] >= 1
    assert list(last.tensors) == list(first.tensors), "plain names"
    for name, x in first.tensors.items():
        torch.testing.assert_close(last.tensors[name], x, rtol=1e-9, atol=1e-11)
    assert last.history[0]["loss"] == pytest.approx(first.history[0]["loss"], rel=1e-9)
    features = [extract(engine.method.encoder, data, device=CPU, precision="float64") for engine in (plain, other)]
    torch.testing.assert_close(*features)
    copied = copy.deepcopy(other.method.encoder)
    copied.last.bias.data += 1  # a copy computes with its own weights
    x = torch.randn(2, 1, 8, 8, dtype=torch.float64)
    torch.testing.assert_close(copied.eval()(x), other.method.encoder.eval()(x) + 1)


def test_a_compiler_that_fails_is_named_and_done_without(digits, monkeypatch):
    def failing(function, **options):
        def call(*inputs):
            raise RuntimeError("no C compiler\nand more")

        return call

    monkeypatch.setattr(torch, "compile", failing)
    with pytest.warns(RuntimeWarning, match=r"could not be compiled \(RuntimeError: no C compiler\); training goes on"):
        engine = Engine(Recipe.read(RECIPE), digits, seed=1, device=CPU, compile=True)
    other = Engine(Recipe.read(RECIPE), digits, seed=1, device=CPU)
    for one in (engine, other):
        one.begin(0)
        one.step()
    assert "forward" not in vars(engine.method.encoder)
    for name, x in other.tensors().items():
        assert torch.equal(engine.tensors()[name], x), "the attempt left no trace"


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # of torch's own compiler
def test_the_gradient_of_a_maximum_stays_finite_when_compiled_in_bfloat16():
    torch.manual_seed(0)
    encoder = register.encoder["quick"].make(channels=3, widths=(8, 8, 8), depth=1, pool="max")
    x = torch.randn(32, 3, 16, 16).bfloat16()
    compile_encoder(encoder)
    with torch.autocast("cpu", torch.bfloat16):
        features = encoder.train()(x)
    (features.float() * torch.randn(features.shape)).sum().backward()
    for name, parameter in encoder.named_parameters():
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().sum() > 0, name
