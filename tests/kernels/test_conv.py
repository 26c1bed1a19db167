"""Layers of convolution, normalisation, residual, ReLU and pool: the formula, and the kernels that take its place."""

import copy
from itertools import product

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import setwise as sw
from setwise.encoders.resnet import BasicBlock
from setwise.kernels import conv as fused
from setwise.kernels.conv import conv_norm, conv_norm_through
from setwise.kernels.conv_plan import (
    WARPS,
    Layer,
    convolution,
    normalisation,
    processes_share,
    processors_for,
    share_device,
    weight_gradient,
)

# images, side, channels in and out, kernel, stride, pool, residual, ReLU
RESNET = [
    (256, 32, 3, 16, 3, 1, "none", False, True),
    (256, 32, 16, 16, 3, 1, "none", True, True),
    (256, 32, 16, 32, 3, 2, "none", False, True),
    (256, 32, 16, 32, 1, 2, "none", False, False),
    (256, 16, 32, 32, 3, 1, "none", True, True),
    (256, 16, 32, 64, 3, 2, "none", False, True),
    (256, 16, 32, 64, 1, 2, "none", False, False),
    (256, 8, 64, 64, 3, 1, "none", True, True),
    (256, 8, 64, 64, 3, 1, "global", True, True),
]
CONV4 = [
    (256, 32, 3, 8, 3, 1, "average", False, True),
    (256, 16, 8, 16, 3, 1, "average", False, True),
    (256, 8, 16, 32, 3, 1, "average", False, True),
    (256, 4, 32, 64, 3, 1, "global", False, True),
]
OTHERS = [  # the last batch of an epoch, a few images, larger ones, one grey one
    (160, 32, 16, 16, 3, 1, "none", True, True),
    (7, 32, 16, 16, 3, 1, "none", True, True),
    (3, 4, 32, 64, 3, 1, "global", False, True),
    (6, 64, 16, 16, 3, 1, "none", True, True),
    (6, 64, 16, 32, 3, 2, "none", True, True),
    (5, 16, 64, 64, 3, 1, "average", True, True),
    (1, 8, 1, 8, 3, 1, "none", False, False),
]


def modules(channels_in, channels_out, kernel, stride, *, device="cpu", dtype=torch.float32):
    torch.manual_seed(0)
    conv = nn.Conv2d(channels_in, channels_out, kernel, stride, kernel // 2, bias=False)
    norm = nn.BatchNorm2d(channels_out)
    with torch.no_grad():
        norm.weight.uniform_(0.5, 1.5)
        norm.bias.normal_()
    return conv.to(device, dtype), norm.to(device, dtype)


class TestFormula:
    @pytest.mark.parametrize(
        ("pool", "relu", "residual"), list(product(["none", "average", "global"], *2 * [[False, True]]))
    )
    def test_is_what_it_says(self, pool, relu, residual):
        conv, norm = modules(3, 8, 3, 1, dtype=torch.float64)
        x, other = torch.randn(5, 3, 6, 6, dtype=torch.float64), torch.randn(5, 8, 6, 6, dtype=torch.float64)
        c = F.conv2d(x, conv.weight, padding=1)
        mean, variance = c.mean((0, 2, 3), keepdim=True), c.var((0, 2, 3), keepdim=True, correction=0)
        expected = (c - mean) / (variance + 1e-5).sqrt() * norm.weight[:, None, None] + norm.bias[:, None, None]
        expected = expected + other if residual else expected
        expected = expected.clamp(min=0) if relu else expected
        if pool == "average":
            expected = expected.unflatten(3, (3, 2)).unflatten(2, (3, 2)).mean((3, 5))
        elif pool == "global":
            expected = expected.mean((2, 3))
        got = conv_norm(x, conv, norm, residual=other if residual else None, relu=relu, pool=pool)
        torch.testing.assert_close(got, expected)
        torch.testing.assert_close(norm.running_mean, 0.1 * mean.flatten())
        assert norm.num_batches_tracked == 1

    def test_eval_mode_keeps_the_state_and_hooks_are_called(self):
        conv, norm = modules(3, 8, 3, 1)
        norm.eval()
        x, seen = torch.randn(5, 3, 6, 6), []
        for module in (conv, norm):
            module.register_forward_hook(lambda module, *_: seen.append(module))
        got = conv_norm(x, conv, norm, relu=False)
        assert seen == [conv, norm]
        torch.testing.assert_close(got, norm(conv(x)), rtol=0, atol=0)
        assert norm.num_batches_tracked == 0

    def test_through(self):
        conv, norm = modules(3, 8, 3, 1, dtype=torch.float64)
        x = torch.randn(5, 3, 6, 6, dtype=torch.float64, requires_grad=True)
        y, same = conv_norm_through(x, conv, norm)
        torch.testing.assert_close(y, conv_norm(x, conv, norm), rtol=0, atol=0)
        (y.sum() + same.pow(2).sum()).backward()
        got, x.grad = x.grad, None
        (conv_norm(x, conv, norm).sum() + x.pow(2).sum()).backward()
        torch.testing.assert_close(got, x.grad)


class TestEncoders:
    def test_names_of_parameters_stay(self):
        names = list(sw.encoders.create("conv4").state_dict())
        kinds = ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]
        norms = [[f"blocks.{4 * i + 1}.{kind}" for kind in kinds] for i in range(4)]
        assert names == [x for i in range(4) for x in (f"blocks.{4 * i}.weight", *norms[i])]
        names = list(sw.encoders.create("resnet8").state_dict())
        assert {"stem.0.weight", "blocks.1.shortcut.1.running_var", "project.bias"} < set(names)


def layer_of(images, side, channels_in, channels_out, kernel, stride, pool, residual, relu, last=True):
    return Layer(
        images, side, side, channels_in, channels_out, kernel, stride, last, pool, relu, residual, residual, False
    )


class TestPlans:
    @pytest.mark.parametrize("case", RESNET + CONV4 + OTHERS)
    def test_blocks_divide_the_work(self, case):
        for images, processors in product((1, 5, 160, 256, 2048), (1, 20, 108, 132)):
            layer = layer_of(images, *case[1:])
            directions = [False, True] if layer.channels_in % 8 == 0 else [False]
            convolutions = [convolution(layer, processors, turned=turned) for turned in directions]
            for launch in (*convolutions, *weight_gradient(layer, processors), *normalisation(layer, processors)):
                assert min(launch.grid) > 0
                assert launch.shared_bytes <= 227 * 1024
            for launch in convolutions:
                constants = dict(launch.defines)
                assert constants["WARPS_M"] * constants["WARPS_N"] == WARPS
                pixels = constants["IMAGES"] * constants["TILE_H"] * constants["TILE_W"]
                assert pixels % (16 * constants["WARPS_M"]) == 0
                assert constants["OWN"] % (8 * constants["WARPS_N"]) == 0
                assert constants["OUT_H"] % constants["TILE_H"] == constants["OUT_W"] % constants["TILE_W"] == 0
                assert launch.grid[0] <= -(-images // constants["IMAGES"]) * constants["OUT_H"] * constants["OUT_W"]

    def test_gradients_begin_where_sixteen_bytes_can_be_read(self):
        whole = torch.randn(65).bfloat16()
        for grad in (whole[1:].view(4, 16), whole[:64].view(4, 16), whole[:64].view(2, 2, 4, 4)):
            got = fused._whole(grad)
            assert got.data_ptr() % fused.ALIGNED == 0
            assert torch.equal(got, grad)
            assert got.dim() < 4 or got.is_contiguous(memory_format=torch.channels_last)

    def test_many_runs_share_a_device(self):
        try:
            for runs, processors, left in ((1, 132, 132), (3, 132, 44), (12, 132, 33), (12, 2, 1)):
                share_device(runs)
                assert processors_for(processors) == left
        finally:
            share_device(1)

    def test_processes_share_a_device_under_mps_only(self, tmp_path, monkeypatch):
        monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
        assert not processes_share()
        (tmp_path / "nvidia-cuda-mps-control.pid").write_text("123")
        assert processes_share()


def error(got, expected):
    got, expected = got.double(), expected.double()
    return ((got - expected).norm() / (expected.norm() + 1e-30)).item()


def last(x):
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x


@pytest.mark.gpu
class TestKernels:
    """Errors are against float64 and must stay under twice those of torch's own layers in bf16.

    Both round c and each gradient to bf16, and where that changes the sign of what goes into the ReLU, whole entries
    of a gradient differ: a few per cent of its norm. Hence a comparison rather than a bound.
    """

    def run(self, kind, conv, norm, x, residual, grad, relu, pool):
        conv, norm = copy.deepcopy(conv), copy.deepcopy(norm)
        if kind == "double":
            conv, norm, x, grad = conv.double(), norm.double(), x.double(), grad.double()
            residual = residual.double() if residual is not None else None
        leaves = [t.clone().requires_grad_() for t in (x, residual) if t is not None]
        other = leaves[1] if residual is not None else None
        with torch.autocast("cuda", torch.bfloat16, enabled=kind != "double"):
            if kind == "kernels":
                y = conv_norm(leaves[0], conv, norm, residual=other, relu=relu, pool=pool)
                assert type(y.grad_fn).__name__ == "_ConvNormBackward"
            else:
                y = fused._finish(norm(conv(leaves[0])), other, relu, pool)
        y.backward(grad.to(y.dtype))
        assert norm.num_batches_tracked == 1
        leaves += [conv.weight, norm.weight, norm.bias]
        return [y.detach(), *(leaf.grad for leaf in leaves), norm.running_mean, norm.running_var]

    def check(self, case, *, weights_last=True, offset=0.0):
        images, side, channels_in, channels_out, kernel, stride, pool, residual, relu = case
        conv, norm = modules(channels_in, channels_out, kernel, stride, device="cuda")
        conv = conv.to(memory_format=torch.channels_last) if weights_last else conv
        out = side // stride
        shape = {"none": (out, out), "average": (out // 2, out // 2), "global": ()}[pool]
        x = last((torch.randn(images, channels_in, side, side, device="cuda") + offset).bfloat16())
        other = last(torch.randn(images, channels_out, out, out, device="cuda").bfloat16()) if residual else None
        grad = last(torch.randn(images, channels_out, *shape, device="cuda").bfloat16())
        given = (conv, norm, x, other, grad, relu, pool)
        exact, got, again, plain = (self.run(kind, *given) for kind in ("double", "kernels", "kernels", "torch"))
        for a, b in zip(got, again, strict=True):
            assert torch.equal(a, b)
        for e, a, b in zip(exact, got, plain, strict=True):
            assert error(a, e) <= 2 * error(b, e) + 1e-5

    @pytest.mark.parametrize(
        ("case", "given"),
        [
            *((case, {}) for case in RESNET + CONV4 + OTHERS),
            *(((64, *case[1:]), {"weights_last": False}) for case in (RESNET[0], RESNET[6], RESNET[7])),
            (RESNET[1], {"offset": 30.0}),
        ],
    )
    def test_against_float64(self, case, given):
        self.check(case, **given)

    @pytest.mark.parametrize("case", [*CONV4, *RESNET[:3]])
    def test_on_a_smaller_gpu_and_with_nothing_read_that_was_not_written(self, case, monkeypatch):
        monkeypatch.setattr(fused, "processors_of", lambda _: 38)
        torch.use_deterministic_algorithms(True, warn_only=True)  # fills new memory with NaN
        try:
            self.check((160, *case[1:]))
        finally:
            torch.use_deterministic_algorithms(False)

    def test_a_gradient_that_begins_anywhere(self):
        conv, norm = modules(16, 16, 3, 1, device="cuda")
        x = last(torch.randn(4, 16, 8, 8, device="cuda").bfloat16())
        found = []
        for flat in (False, True):
            conv.zero_grad()
            with torch.autocast("cuda", torch.bfloat16):
                y = conv_norm(x, conv, norm, pool="global")
            ahead = torch.ones(1, device="cuda", dtype=y.dtype, requires_grad=True)
            (torch.cat([ahead, y.flatten()]) if flat else y.flatten()).float().square().sum().backward()
            found.append(conv.weight.grad.clone())
        assert torch.equal(*found)

    def test_statistics_with_a_huge_mean(self):
        # 64 and a deviation of 0.002 on top: of the squares' sum in float32 nothing of it would be left.
        conv, norm = modules(8, 8, 1, 1, device="cuda")
        x = last(torch.rand(256, 8, 32, 32, device="cuda").div(128).bfloat16())
        with torch.no_grad():
            x[:, 0] = 1
            conv.weight.zero_()
            conv.weight[:, 0], conv.weight[:, 1] = 64, 1
            norm.running_var.zero_()
        with torch.autocast("cuda", torch.bfloat16):
            conv_norm(x, conv, norm)
        expected = 0.1 * x[:, 1].double().var()
        torch.testing.assert_close(norm.running_var.double(), expected.expand(8), rtol=0.01, atol=0)

    @pytest.mark.parametrize(("side", "channels_in", "channels", "stride"), [(32, 16, 16, 1), (16, 32, 64, 2)])
    def test_a_block(self, side, channels_in, channels, stride, monkeypatch):
        torch.manual_seed(0)
        block = last_module(BasicBlock(channels_in, channels, stride))
        x = last(torch.randn(30, channels_in, side, side, device="cuda").bfloat16())
        found = []
        for kind in ("double", "kernels", "torch"):
            model, leaf = copy.deepcopy(block), x.clone()
            if kind == "double":
                model, leaf = model.double(), leaf.double()
            leaf.requires_grad_()
            with monkeypatch.context() as patch, torch.autocast("cuda", torch.bfloat16, enabled=kind != "double"):
                if kind == "torch":
                    patch.setattr(fused, "_layer", lambda *_, **__: None)
                y = model(leaf)
            torch.manual_seed(1)
            y.backward(last(torch.randn(y.shape, device="cuda")).to(y.dtype))
            found.append([y.detach(), leaf.grad, *(p.grad for p in model.parameters())])
        for e, a, b in zip(*found, strict=True):
            assert error(a, e) <= 2 * error(b, e) + 1e-5

    @pytest.mark.parametrize("name", ["conv4", "resnet8"])
    def test_capture_and_replay(self, name):
        torch.manual_seed(0)
        model = last_module(sw.encoders.create(name))
        twin = copy.deepcopy(model)
        images = last(torch.randn(40, 3, 32, 32, device="cuda").bfloat16())

        def step(of):
            of.zero_grad()
            with torch.autocast("cuda", torch.bfloat16):
                y = of(images)
            y.float().square().mean().backward()
            return y

        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            step(model)
        torch.cuda.current_stream().wait_stream(stream)
        model.load_state_dict(twin.state_dict())
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = step(model)
        for seed in range(3):
            torch.manual_seed(seed)
            images.copy_(torch.randn(images.shape, device="cuda"))
            graph.replay()
            assert torch.equal(y, step(twin))
            for a, b in zip(model.parameters(), twin.parameters(), strict=True):
                assert torch.equal(a.grad, b.grad)
        for a, b in zip(model.buffers(), twin.buffers(), strict=True):
            assert torch.equal(a, b)

    def test_left_to_torch(self):
        conv, norm = modules(16, 16, 3, 1, device="cuda")
        x = last(torch.randn(4, 16, 8, 8, device="cuda"))
        given = [(x, True, norm), (x.contiguous(), True, norm), (x[..., :6], True, norm), (x, False, norm)]
        given.append((x, True, copy.deepcopy(norm).eval()))
        names = []
        for images, autocast, n in given:
            with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
                names.append(type(conv_norm(images, conv, n).grad_fn).__name__)
        assert [name == "_ConvNormBackward" for name in names] == [True, False, False, False, False]

    def test_gradient_of_the_gradient(self):
        conv, norm = modules(16, 16, 3, 1, device="cuda")
        x = last(torch.randn(4, 16, 8, 8, device="cuda")).requires_grad_()
        with torch.autocast("cuda", torch.bfloat16):
            y = conv_norm(x, conv, norm)
        (grad,) = torch.autograd.grad(y.float().square().sum(), x, create_graph=True)
        grad.square().sum().backward()
        got, conv.weight.grad, x.grad = conv.weight.grad, None, None
        y = fused._finish(norm(conv(x)), None, True, "none")
        (grad,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        grad.square().sum().backward()
        assert error(got, conv.weight.grad) < 0.2

    def test_frozen_weights_and_images_that_need_a_gradient(self):
        conv, norm = modules(3, 16, 3, 1, device="cuda")
        conv.weight.requires_grad_(False)
        x = last(torch.randn(4, 3, 8, 8, device="cuda")).requires_grad_()
        with torch.autocast("cuda", torch.bfloat16):
            conv_norm(x, conv, norm, relu=False).float().pow(3).sum().backward()
        got, x.grad = x.grad, None
        norm(conv(x)).pow(3).sum().backward()
        assert conv.weight.grad is None
        assert got.dtype == torch.float32
        assert error(got, x.grad) < 0.02


def last_module(module):
    return module.cuda().to(memory_format=torch.channels_last)
