"""The kernels around a convolution: their own text on a CPU against torch in float64."""

import ctypes
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import avg_pool2d, batch_norm

from setwise.kernels.conv_plan import Layer, normalisation
from setwise.kernels.nvrtc import source

PRELUDE = f'#include "{Path(__file__).parent / "bf16.h"}"\n'
PRELUDE += "static float rsqrtf(float x) { return 1.0f / std::sqrt(x); }\n"
RUN = """
extern "C" void run_normalise(int order, int blocks, uint4* c, uint4* residual, float* partial, int parts, float* gamma,
                              float* beta, float* mean, float* var, i64* tracked, double momentum, double epsilon,
                              float* saved, uint4* out, u8* through, int items, int pixels) {
    turn_order = order;
    launch(normalise, blocks, THREADS, c, residual, partial, parts, gamma, beta, mean, var, tracked, momentum, epsilon,
           saved, out, through, items, pixels);
}
extern "C" void run_sum_gradient(int order, int blocks, uint4* grad, uint4* c, u8* through, float* saved,
                                 float* partial, int items) {
    turn_order = order;
    launch(sum_gradient, blocks, THREADS, grad, c, through, saved, partial, items);
}
extern "C" void run_spread_gradient(int order, int blocks, uint4* grad, uint4* c, u8* through, float* saved,
                                    float* partial, int parts, uint4* grad_c, uint4* grad_residual, float* grad_gamma,
                                    float* grad_beta, int items, int pixels) {
    turn_order = order;
    launch(spread_gradient, blocks, THREADS, grad, c, through, saved, partial, parts, grad_c, grad_residual, grad_gamma,
           grad_beta, items, pixels);
}
"""
# images, side, channels, pool, residual, ReLU, multiprocessors
CASES = [
    (3, 4, 8, "none", False, True, 132),
    (5, 8, 16, "none", True, True, 2),
    (2, 8, 64, "none", True, True, 132),
    (3, 8, 32, "none", True, False, 1),
    (3, 4, 16, "none", False, False, 1),
    (3, 8, 8, "average", False, True, 1),
    (2, 8, 32, "average", True, True, 3),
    (9, 4, 64, "global", True, True, 132),
    (9, 4, 16, "global", False, True, 1),
]


@pytest.fixture(scope="module")
def on_cpu(for_cpu):
    def build(launches):
        defines = {key: value for launch in launches for key, value in launch.defines}
        return for_cpu(PRELUDE + source(launches[0].files, defines) + RUN)

    return cache(build)


def given(values):
    for x in values:
        if isinstance(x, torch.Tensor):
            assert x.is_contiguous()
            yield ctypes.c_void_p(x.data_ptr())
        else:
            yield ctypes.c_double(x) if isinstance(x, float) else x


def moments(c, parts):
    """What convolve leaves of [pixels, channels]: mean and squared deviations of each part, then the parts' sizes."""
    pieces = np.array_split(c.double().numpy(), parts)
    rows = [np.stack([x.mean(0), ((x - x.mean(0)) ** 2).sum(0)]) for x in pieces]
    return torch.from_numpy(np.concatenate([*map(np.ravel, rows), [len(x) for x in pieces]]).astype(np.float32))


@pytest.mark.parametrize("order", [1, 40])
@pytest.mark.parametrize("case", CASES)
def test_a_layer_forwards_and_backwards(on_cpu, case, order):
    images, side, channels, pool, residual, relu, processors = case
    layer = Layer(images, side, side, 8, channels, 3, 1, True, pool, relu, residual, residual, False)
    launches = normalisation(layer, processors)
    library = on_cpu(launches)
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    pixels = images * side * side
    c = (1.5 * normal(pixels, channels) + 3).bfloat16()
    other = normal(pixels, channels).bfloat16()
    gamma, beta = 1 + 0.2 * normal(channels), normal(channels)
    mean, var, tracked = torch.zeros(channels), torch.ones(channels), torch.zeros((), dtype=torch.int64)
    shape = {"none": (pixels,), "average": (pixels // 4,), "global": (images,)}[pool]
    y = torch.full((*shape, channels), float("nan")).bfloat16()
    saved, through = (
        torch.full((4, channels), float("nan")),
        torch.full((pixels * channels // 8,), 85, dtype=torch.uint8),
    )
    parts = 3
    items = {"none": pixels * channels // 8, "average": pixels * channels // 32, "global": images}[pool]
    forward = [c, other, moments(c, parts), parts, gamma, beta, mean, var, tracked, 0.1, 1e-5, saved, y, through]
    library.run_normalise(order, launches[0].grid[0], *given([*forward, items, pixels]))

    leaves = [x.double().requires_grad_() for x in (c, other, gamma, beta)]
    running = [torch.zeros(channels).double(), torch.ones(channels).double()]
    images_first = [x.view(images, side, side, channels).permute(0, 3, 1, 2) for x in leaves[:2]]
    before = batch_norm(images_first[0], *running, *leaves[2:], training=True, momentum=0.1, eps=1e-5)
    before = before + images_first[1] if residual else before
    after = before.relu() if relu else before
    expected = {"none": after, "average": avg_pool2d(after, 2), "global": after.mean((2, 3))[:, :, None, None]}[pool]
    flat = expected.permute(0, 2, 3, 1).reshape(-1, channels)
    torch.testing.assert_close(y.double(), flat, rtol=2**-8, atol=1e-6)
    torch.testing.assert_close(mean.double(), running[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(var.double(), running[1], rtol=1e-5, atol=1e-6)
    assert tracked == 1
    if residual and relu:
        open_ = before.permute(0, 2, 3, 1).reshape(-1).detach().numpy() > 0
        assert (np.packbits(open_, bitorder="little") == through.numpy()).all()
    else:
        assert (through == 85).all(), "nothing is written that nobody reads"

    grad = normal(*flat.shape).bfloat16()
    flat.backward(grad.double())
    parts, items = launches[1].grid[0], pixels * channels // 8
    partial = torch.full((parts, 2, channels), float("nan"))
    library.run_sum_gradient(order, parts, *given([grad, c, through, saved, partial, items]))
    found = [torch.full_like(x, float("nan")) for x in (c, other, gamma, beta)]
    backward = [grad, c, through, saved, partial, parts, *found, items, pixels]
    library.run_spread_gradient(order, launches[2].grid[0], *given(backward))
    for name, mine, leaf in zip(("c", "residual", "gamma", "beta"), found, leaves, strict=True):
        if name == "residual" and not residual:
            assert mine.isnan().all()
            continue
        scale = leaf.grad.abs().max().item()
        torch.testing.assert_close(mine.double(), leaf.grad, rtol=2**-8, atol=1e-5 * scale, msg=name)
