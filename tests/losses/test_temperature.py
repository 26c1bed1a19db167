"""A temperature that is learned: its value against a number's, its gradient against finite differences."""

import copy
import functools
import math

import pytest
import torch
from torch import Tensor, nn

import setwise as sw

# Every loss with a temperature, and every place where margin, clamp, blocks or the reduction meet it.
LOSSES = {
    "infonce": lambda t: sw.InfoNCE(t),
    "infonce-symmetric-blocks": lambda t: sw.InfoNCE(t, symmetric=True, block_size=2),
    "infonce-euclidean": lambda t: sw.InfoNCE(t, similarity="euclidean"),
    "nt-xent": lambda t: sw.NTXent(t),
    "nt-xent-log-mean-clamp": lambda t: sw.NTXent(t, reduction="log-mean", clamp=0.1),
    "nt-xent-sqeuclidean-blocks": lambda t: sw.NTXent(t, similarity="sqeuclidean", clamp=-4.0, block_size=5),
    "sparse-clr": lambda t: sw.SparseCLR(temperature=t),
    "sparse-clr-cross-clamp-blocks": lambda t: sw.SparseCLR(
        0.7, temperature=t, candidates="cross", clamp=0.1, block_size=4
    ),
    "nt-logistic": lambda t: sw.NTLogistic(t),
    "nt-logistic-hardest": lambda t: sw.NTLogistic(t, negatives="hardest", symmetric=True),
    **{
        f"assignment-{mining}-{smoothing}-{reduction}": lambda t, m=mining, s=smoothing, r=reduction: sw.AssignmentLoss(
            mining=m, smoothing=s, reduction=r, margin=0.3, temperature=t
        )
        for mining, smoothing in (
            ("batch-hard", "entropy"),
            ("batch-hard", "sparse"),
            ("one-to-one", "entropy"),
            ("one-to-one", "sparse"),
            ("one-to-one", "sinkhorn"),
            ("one-to-one", "sparsemap"),
        )
        for reduction in ("mean", "sum")
    },
    "set": lambda t: sw.SetContrastive(sw.NTXent(t), beta=0.7),
}


def learned(value: float = 0.6) -> nn.Parameter:
    return nn.Parameter(torch.tensor(value, dtype=torch.float64))


@pytest.mark.parametrize("name", LOSSES)
def test_the_value_is_that_of_the_number_and_the_gradient_that_of_differences(views, name):
    loss = LOSSES[name](learned())
    pair = views(6, 4)
    torch.testing.assert_close(loss(*pair), LOSSES[name](0.6)(*pair), rtol=1e-10, atol=1e-12)
    parameter, step = next(loss.parameters()), 1e-6
    (gradient,) = torch.autograd.grad(loss(*pair), parameter)
    above, below = (LOSSES[name](0.6 + sign * step)(*pair).item() for sign in (1, -1))
    assert gradient.item() == pytest.approx((above - below) / (2 * step), rel=1e-6, abs=1e-8)


@pytest.mark.parametrize(
    "function",
    [
        sw.functional.info_nce,
        functools.partial(sw.functional.nt_xent, reduction="log-mean", clamp=0.1),
        sw.functional.sparse_clr,
        sw.functional.nt_logistic,
        functools.partial(sw.functional.assignment_loss, smoothing="entropy", margin=0.2),
        functools.partial(sw.functional.assignment_loss, mining="one-to-one", smoothing="sinkhorn", reduction="sum"),
    ],
)
def test_functions_take_a_function_of_a_parameter(views, function):
    def value(logarithm: Tensor, z_a: Tensor, z_b: Tensor) -> Tensor:
        return function(z_a, z_b, temperature=logarithm.exp())

    assert torch.autograd.gradcheck(value, (learned(-0.5), *views(5, 3)))


def test_scores_are_not_written_to():
    scores = torch.eye(3)
    sw.functional.score_assignment_loss(scores, smoothing="entropy", margin=0.5, temperature=torch.tensor(0.5))
    assert torch.equal(scores, torch.eye(3))


def test_a_parameter_is_the_modules(views):
    pair, parameter = views(6, 4), learned(0.07)
    loss = sw.SetContrastive(sw.InfoNCE(temperature=parameter), beta=0.5)
    assert [*loss.parameters()] == [parameter]
    assert "temperature=tensor(0.0700, dtype=torch.float64, requires_grad=True)" in repr(loss)
    other = copy.deepcopy(loss)
    with torch.no_grad():
        parameter.fill_(0.5)
    assert not torch.equal(other(*pair), loss(*pair)), "a copy has a temperature of its own"
    other.load_state_dict(loss.state_dict())
    torch.testing.assert_close(other(*pair), loss(*pair))
    assert loss.float().pairwise.temperature.dtype == torch.float32
    replaced = torch.func.functional_call(loss, {"pairwise.temperature": torch.tensor(0.2)}, pair)
    torch.testing.assert_close(replaced, sw.SetContrastive(sw.InfoNCE(0.2), beta=0.5)(*pair), rtol=1e-6, atol=0)
    assert not [*sw.InfoNCE(0.07).state_dict()], "a number is no state"


def test_a_tensor_is_a_buffer(views):
    pair, loss = views(6, 4), sw.NTXent(torch.tensor(0.2))
    assert ([*loss.parameters()], [*loss.state_dict()]) == ([], ["temperature"])
    torch.testing.assert_close(loss(*pair), sw.NTXent(torch.tensor(0.2).item())(*pair))
    assert loss.double().temperature.dtype == torch.float64


@pytest.mark.parametrize("name", LOSSES)
def test_values_that_no_loss_can_take(views, name):
    pair = views(6, 4)
    for bad in (torch.tensor([0.5]), torch.tensor(1), torch.tensor(0.5 + 0j)):
        with pytest.raises(
            ValueError, match=r"expected temperature to be a number or a floating-point tensor of shape"
        ):
            LOSSES[name](bad)
    parameter = learned()
    loss = LOSSES[name](parameter)
    for bad in (0.0, -0.1, math.nan, math.inf):  # after a step too long
        with torch.no_grad():
            parameter.fill_(bad)
        with pytest.raises(ValueError, match="expected temperature to stay finite and above 0, got a tensor of"):
            loss(*pair)


def test_no_temperature_without_smoothing_or_on_another_device():
    with pytest.raises(ValueError, match='expected temperature 1.0 with smoothing="none"'):
        sw.AssignmentLoss(temperature=learned(1.0))
    with pytest.raises(ValueError, match="expected temperature on device cpu like the embeddings, got meta; move"):
        sw.InfoNCE(learned().to("meta"))(torch.eye(3), torch.eye(3))


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature")
@pytest.mark.parametrize("name", [x for x in LOSSES if "one-to-one" not in x])
def test_on_a_gpu_the_same_without_a_wait(views, name):
    there = views(64, 16, noise=2.0)
    here = [z.detach().float().cuda().requires_grad_() for z in there]
    loss, expected = LOSSES[name](nn.Parameter(torch.tensor(0.6))).cuda(), LOSSES[name](learned())
    loss(*here)  # compiles what it needs
    torch.cuda.set_sync_debug_mode("error")
    try:
        gradients = torch.autograd.grad(loss(*here), (*loss.parameters(), *here))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for got, want in zip(
        gradients, torch.autograd.grad(expected(*there), (*expected.parameters(), *there)), strict=True
    ):
        assert (got.cpu().double() - want).norm() < 2e-3 * want.norm() + 1e-6  # one of them is 0
    with torch.no_grad():
        next(loss.parameters()).fill_(math.nan)
    assert loss(*here).isnan()
