"""Local scores of Deep InfoMax: the kernels' own text on a CPU, the gradients' formula, the kernels on a GPU."""

import copy
import ctypes
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import conv2d, linear, relu

from setwise.kernels import local as module
from setwise.kernels.local import CHANNELS, FILES, THREADS, Kernels, local_scores
from setwise.kernels.nvrtc import source
from setwise.training.capture import captured

PRELUDE = f'#include "{Path(__file__).parent / "bf16.h"}"\n'
RUN = """
template <class... Arguments>
void run(void (*kernel)(Arguments...), int order, int blocks, Arguments... arguments) {
    turn_order = order;
    launch(kernel, blocks, THREADS, arguments...);
}
extern "C" void run_hidden(int order, int blocks, uint4* places, float* whole, uint4* h, u8* through, int n, int size) {
    run<const uint4*, const float*>(hidden, order, blocks, places, whole, h, through, n, size);
}
extern "C" void run_scores(int order, int blocks, uint4* u, float* a, float* b, float* c, float* out, u8* t, int rows) {
    run<const uint4*, const float*, const float*, const float*>(scores, order, blocks, u, a, b, c, out, t, rows);
}
extern "C" void run_scores_backward(int order, int blocks, float* grad, u8* t, uint4* out, float* partial, int rows) {
    run<const float*, const u8*>(scores_backward, order, blocks, grad, t, out, partial, rows);
}
extern "C" void run_hidden_backward(int order, int blocks, uint4* grad, u8* t, uint4* out, float* p, int n, int size) {
    run<const uint4*, const u8*>(hidden_backward, order, blocks, grad, t, out, p, n, size);
}
"""


class OnCPU(Kernels):
    """The kernels' own text, compiled for the CPU; arguments and blocks are those of a GPU."""

    def __init__(self, library, channels, processors, order=1):
        self.library, self.order = library, order
        self.channels, self.most = channels, module.BLOCKS * processors

    def run(self, name, blocks, *args):
        assert all(x.is_contiguous() for x in args if isinstance(x, torch.Tensor))
        given = (x if isinstance(x, int) else ctypes.c_void_p(x.data_ptr()) for x in args)
        getattr(self.library, f"run_{name}")(self.order, blocks, *given)

    def product(self, spread, h):
        return spread.float().mT @ h.float()


class Formula:
    """What the kernels compute, in plain torch and any type."""

    def hidden(self, places, whole):
        h = torch.cat([places + x[:, None] for x in (whole, whole.roll(1, 0))]).flatten(0, 1).relu()
        return h, h > 0

    def scores(self, u, bias, weight, constant):
        return relu(u + bias) @ weight + constant, u + bias > 0

    def scores_backward(self, grad, through):
        return grad[:, None] * through, (grad[:, None] * through).sum(0)

    def product(self, spread, h):
        return spread.mT @ h

    def hidden_backward(self, grad, through, images):
        halves = (grad * through).view(2, images, -1, grad.shape[1])
        return halves.sum(0), halves.sum(2).transpose(0, 1)


@pytest.fixture
def poisoned():
    torch.use_deterministic_algorithms(True, warn_only=True)  # fills new memory with NaN
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="module")
def on_cpu(for_cpu):
    return cache(lambda channels: for_cpu(PRELUDE + source(FILES, {"CHANNELS": channels}) + RUN))


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def same(a, b):
    """To the bit."""
    return a.dtype == b.dtype and torch.equal(*(x.flatten().view(torch.uint8) for x in (a, b)))


def bits(x):
    return torch.from_numpy(np.packbits(x.numpy() > 0, axis=1, bitorder="little"))


# channels, images, places, multiprocessors
SHAPES = [
    (256, 3, 9, 132),
    (256, 2, 70, 1),
    (128, 1, 7, 1),
    (64, 4, 25, 2),
    (16, 2, 33, 1),
    (8, 5, 1, 2),
    (8, 2, 700, 1),
]


def results(kernels, images, size, device="cpu"):
    """Random arguments of all kernels, and what they return; on the CPU."""
    c, rows = kernels.channels, 2 * images * size
    shapes = [(images, c), (c,), (c,), (1,), (rows,)]
    given = [normal(images, size, c).bfloat16(), *(normal(*x, seed=1 + i) for i, x in enumerate(shapes))]
    given.append(normal(rows, c, seed=9).bfloat16())
    places, whole, bias, weight, constant, grad, u = (x.to(device) for x in given)
    h, through = kernels.hidden(places, whole)
    found = [h, through, *kernels.scores(u, bias, weight, constant), *kernels.scores_backward(grad, through)]
    return given, [x.cpu() for x in (*found, *kernels.hidden_backward(u, through, images))]


def check(given, found):
    """Sums against float64, and rows to the bit: what is rounded once can be nothing else."""
    places, whole, bias, weight, constant, grad, u = given
    h, through, scores, through_u, spread, total, grad_places, sums = found
    added = torch.cat([places.float() + x[:, None] for x in (whole, whole.roll(1, 0))]).flatten(0, 1)
    assert same(h, added.relu().bfloat16())
    assert torch.equal(through, bits(added))
    exact = relu(u.double() + bias) @ weight.double() + constant
    torch.testing.assert_close(scores.double(), exact, rtol=1e-5, atol=1e-5)
    assert torch.equal(through_u, bits(u + bias))
    mask = added > 0
    assert same(spread, torch.where(mask, grad.bfloat16()[:, None], 0))
    torch.testing.assert_close(total.double(), (grad.double()[:, None] * mask).sum(0), rtol=1e-5, atol=1e-4)
    halves = torch.where(mask, u.float(), 0).view(2, *places.shape)
    assert same(grad_places, (halves[0] + halves[1]).bfloat16())
    torch.testing.assert_close(sums.double(), halves.double().sum(2).transpose(0, 1), rtol=1e-5, atol=1e-4)


@pytest.mark.usefixtures("poisoned")
class TestText:
    @pytest.mark.parametrize(("channels", "images", "size", "processors"), SHAPES)
    def test_against_float64(self, on_cpu, channels, images, size, processors):
        check(*results(OnCPU(on_cpu(channels), channels, processors), images, size))

    @pytest.mark.parametrize(("channels", "images", "size", "processors"), SHAPES[1:6:2])
    def test_threads_wait_for_what_they_read(self, on_cpu, channels, images, size, processors):
        orders = (1, 0, 2, 57)  # in turn, backwards, and all over the block
        found = [results(OnCPU(on_cpu(channels), channels, processors, x), images, size)[1] for x in orders]
        for others in found[1:]:
            for a, b in zip(found[0], others, strict=True):
                assert same(a, b)

    def test_nan_stays(self, on_cpu):
        kernels, zero = OnCPU(on_cpu(8), 8, 1), torch.zeros(8)
        places = torch.zeros(2, 3, 8).bfloat16()
        places[1, 2, 5] = float("nan")
        h, through = kernels.hidden(places, torch.zeros(2, 8))
        assert h.isnan().nonzero().tolist() == [[5, 5], [11, 5]]
        assert through.flatten().tolist() == [0] * 5 + [32] + [0] * 5 + [32]
        assert kernels.scores(h, zero, zero + 1, zero[:1])[0].isnan().nonzero().flatten().tolist() == [5, 11]


def layers(features=6, channels=5, width=16, *, dtype=torch.float32, device="cpu"):
    torch.manual_seed(0)
    sizes = ((channels + features, width), (width, width), (width, 1))
    return nn.ModuleList([nn.Conv2d(*size, 1) for size in sizes]).to(device, dtype)


def inputs(images, height, width, *, channels=5, features=6, device="cpu"):
    maps, y = normal(images, channels, height, width).relu(), normal(images, features, seed=1)
    return maps.to(device).contiguous(memory_format=torch.channels_last), y.to(device)


def plain(feature_map, features, first, second, last):
    """As it was before there were kernels."""
    channels = feature_map.shape[1]
    places = conv2d(feature_map, first.weight[:, :channels], first.bias)
    whole = linear(features, first.weight[:, channels:, 0, 0])[:, :, None, None]
    return tuple(last(relu(second(relu(places + x)))) for x in (whole, whole.roll(1, 0)))


def step(function, maps, y, given, *, autocast=False, weights=None):
    """Scores, and gradients of maps, features and parameters."""
    given = copy.deepcopy(given)
    leaves = [maps.clone().requires_grad_(), y.clone().requires_grad_()]
    with torch.autocast(maps.device.type, torch.bfloat16, enabled=autocast):
        scores = function(*leaves, *given)
    weights = [normal(*s.shape, seed=7 + i).to(s) for i, s in enumerate(scores)] if weights is None else weights
    sum((s * w.to(s)).sum() for s, w in zip(scores, weights, strict=True)).backward()
    return [*(s.detach() for s in scores), *(x.grad for x in (*leaves, *given.parameters()))]


def error(got, expected):
    got, expected = got.double(), expected.double()
    return ((got - expected).norm() / (expected.norm() + 1e-30)).item()


def doubled(maps, y, given):
    return maps.double(), y.double(), copy.deepcopy(given).double()


class TestFormula:
    @pytest.mark.parametrize("shape", [(2, 1, 1), (3, 4, 3), (7, 2, 5)])
    @pytest.mark.parametrize("autocast", [False, True])
    def test_a_cpu_does_what_it_did(self, shape, autocast):
        given = (*inputs(*shape), layers())
        for a, b in zip(*(step(f, *given, autocast=autocast) for f in (local_scores, plain)), strict=True):
            assert same(a, b)

    @pytest.mark.parametrize("shape", [(1, 2, 2), (2, 1, 1), (3, 4, 3), (7, 2, 5)])
    def test_gradients_are_those_of_autograd(self, shape, monkeypatch):
        given = doubled(*inputs(*shape), layers())
        monkeypatch.setattr(module, "_kernels_for", lambda *_: Formula())
        for a, b in zip(*(step(f, *given) for f in (local_scores, plain)), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)

    def test_one_of_two_scores_and_weights_that_stay(self, monkeypatch):
        monkeypatch.setattr(module, "_kernels_for", lambda *_: Formula())
        maps, y, given = doubled(*inputs(3, 4, 3), layers())
        given[1].weight.requires_grad_(False)
        with torch.no_grad():
            given[2].weight[0, 3] = 0  # nothing is divided by it
        found = []
        for function in (local_scores, plain):
            again = copy.deepcopy(given)
            function(maps, y, *again)[1].square().sum().backward()
            assert again[1].weight.grad is None
            found.append([p.grad for p in again.parameters() if p.requires_grad])
        for a, b in zip(*found, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)

    @pytest.mark.usefixtures("poisoned")
    @pytest.mark.parametrize(("shape", "width"), [((3, 7, 5), 256), ((6, 8, 9), 64)])
    def test_bf16_with_the_text_of_the_kernels(self, on_cpu, shape, width, monkeypatch):
        given = (*inputs(*shape), layers(width=width))
        exact, without = step(plain, *doubled(*given)), step(plain, *given, autocast=True)
        kernels = OnCPU(on_cpu(width), width, 3)
        monkeypatch.setattr(module, "_kernels_for", lambda *_: kernels)
        got = step(local_scores, *given, autocast=True)
        assert got[0].dtype == got[1].dtype == torch.float32
        for a, b, e in zip(got, without, exact, strict=True):
            assert a.shape == e.shape
            assert error(a, e) <= 2 * error(b, e) + 1e-5

    @pytest.mark.parametrize("channels", CHANNELS)
    @pytest.mark.parametrize("processors", [1, 33, 132])
    def test_blocks(self, channels, processors):
        kernels = OnCPU(None, channels, processors)
        at_a_time = 8 * THREADS // channels
        for rows in (1, at_a_time, at_a_time + 1, 1024, 2**18):
            for most in (0, 1, kernels.most):
                blocks = kernels.blocks(rows, most)
                assert 1 <= blocks <= max(most, 1)
                assert (blocks - 1) * at_a_time < rows  # none is without a row


@pytest.mark.gpu
class TestKernels:
    """As in test_conv.py, a ReLU whose input is rounded to another sign changes whole entries of a gradient."""

    @pytest.fixture(autouse=True)
    def deterministic(self):
        with torch.backends.cudnn.flags(deterministic=True):  # the first layer is the library's
            yield

    @pytest.mark.usefixtures("poisoned")
    @pytest.mark.parametrize(("channels", "images", "size", "processors"), [*SHAPES, (256, 128, 1024, 132)])
    def test_each_against_float64(self, channels, images, size, processors):
        kernels = module._kernels(channels, torch.device("cuda", 0), processors)
        first, again = (results(kernels, images, size, "cuda") for _ in range(2))
        check(*first)
        assert all(same(a, b) for a, b in zip(first[1], again[1], strict=True))

    @pytest.mark.parametrize("shape", [(128, 32, 32), (80, 32, 32), (33, 5, 16)])
    def test_errors_are_no_more_than_twice_those_of_plain_torch(self, shape):
        given = (*inputs(*shape, channels=8, features=64, device="cuda"), layers(64, 8, 256, device="cuda"))
        grads = [normal(shape[0], 1, *shape[1:], seed=i).cuda() / shape[0] for i in (7, 8)]
        exact, without = step(plain, *doubled(*given), weights=grads), step(plain, *given, autocast=True, weights=grads)
        got, again = (step(local_scores, *given, autocast=True, weights=grads) for _ in range(2))
        assert got[0].dtype == torch.float32  # else it was plain torch
        for a, b, c, e in zip(got, again, without, exact, strict=True):
            assert torch.equal(a, b)
            assert a.shape == e.shape
            assert error(a, e) <= 2 * error(c, e) + 1e-5

    def test_tensors_in_bf16_and_maps_in_torchs_layout(self):
        maps, y = inputs(5, 6, 7, device="cuda")
        given = layers(width=64, device="cuda")
        expected = step(local_scores, maps, y, given, autocast=True)
        got = step(local_scores, maps.contiguous(), y, given, autocast=True)
        half = step(local_scores, maps.bfloat16(), y.bfloat16(), copy.deepcopy(given).bfloat16())
        assert half[0].dtype == torch.float32
        for a, b, e in zip(got, half, expected, strict=True):
            assert error(a, e) < 0.1
            assert error(b, e) < 0.2

    @pytest.mark.parametrize("rows", [2, 70, 2**18])
    def test_product(self, rows):
        kernels = module._kernels(256, torch.device("cuda", 0), 132)
        a, b = (normal(rows, 256, seed=i).cuda().bfloat16() for i in (0, 1))
        got = kernels.product(a, b)
        assert got.dtype == torch.float32
        assert error(got, a.double().mT @ b.double()) < 1e-4

    def test_left_to_torch(self):
        maps, y = inputs(4, 8, 8, device="cuda")
        found = []
        for width, autocast, hook in ((64, True, False), (24, True, False), (64, False, False), (64, True, True)):
            given = layers(width=width, device="cuda")
            if hook:
                given[1].register_forward_hook(lambda *_: None)
            with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
                scores = local_scores(maps, y, *given)[0]
            found.append(scores.dtype == (torch.float32 if autocast else None))
        assert found == [True, False, False, False]

    def test_capture_and_replay(self):
        maps, y = inputs(40, 16, 16, channels=8, features=64, device="cuda")
        given = layers(64, 8, 256, device="cuda")
        twin = copy.deepcopy(given)

        def run(of):
            of.zero_grad()
            with torch.autocast("cuda", torch.bfloat16):
                own, other = local_scores(maps, y, *of)
            (own.exp().mean() + other.square().mean()).backward()
            return own.detach()  # what keeps the graph keeps its stream, which is not the capture's

        found = []
        replay = captured(lambda: found.append(run(given)))
        for seed in range(3):
            maps.copy_(normal(*maps.shape, seed=seed))
            replay()
            assert torch.equal(found[-1], run(twin))
            for a, b in zip(given.parameters(), twin.parameters(), strict=True):
                assert torch.equal(a.grad, b.grad)
