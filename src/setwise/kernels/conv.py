"""Convolution, batch normalisation, residual, ReLU and pool as one step of training, on tensor cores in bf16.

Small images of few channels leave a GPU idle: the library's kernels for 16 channels take ten times what their memory
traffic would, and every normalisation, addition and cast is a launch of its own. Here a layer is two launches
forwards and five backwards (conv.cu, conv_weights.cu, norm.cu), and plain torch where they cannot be had.

A captured step of SimCLR with QARe and Adam, two views of 128 images of 32×32 (H200, torch 2.11), takes 1.92 ms with
ResNet-32 instead of 4.82 ms, and 0.40 ms with Conv-4 instead of 0.77 ms; an encoder's step alone, of 2048 images,
7.7 ms instead of 25.5 ms and 0.39 ms instead of 2.27 ms. ResNet-18, where only the first stage is ours: 4.1 ms instead
of 4.7 ms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.grad import conv2d_input

from setwise.kernels.conv_plan import (
    CONVOLVE,
    IMAGE_CHANNELS,
    NORMALISE,
    SIDES,
    SPREAD_GRADIENT,
    SUM_GRADIENT,
    SUM_WEIGHTS,
    TURNED,
    WEIGHT_GRADIENT,
    WIDTHS,
    Layer,
    Plan,
    Pool,
    processors_of,
)
from setwise.kernels.nvrtc import or_none

ALIGNED = 16  # bytes that are read at once


@cache
def _plan(layer: Layer, device: torch.device, processors: int) -> Plan | None:
    return or_none(lambda: Plan(layer, device, processors), "the kernels of a convolution", "plain torch", device)


def _images(like: Tensor, channels: int, size: tuple[int, int]) -> Tensor:
    shape = (like.shape[0], channels, *size)
    return torch.empty(shape, dtype=torch.bfloat16, device=like.device, memory_format=torch.channels_last)


class _ConvNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        gamma: Tensor,
        beta: Tensor,
        residual: Tensor | None,
        norm: nn.BatchNorm2d,
        plan: Plan,
    ) -> Tensor | tuple[Tensor, Tensor]:
        layer = plan.layer
        channels, (height, width) = layer.channels_out, layer.out
        assert norm.running_mean is not None
        assert norm.running_var is not None
        assert norm.num_batches_tracked is not None
        assert norm.momentum is not None
        parts = plan.parts(CONVOLVE)
        c, partial = _images(x, channels, layer.out), gamma.new_empty(parts * (2 * channels + 1))
        plan.run(CONVOLVE, x, weight, x, c, partial, layer.images)
        if layer.pool == "none":
            y, items = torch.empty_like(c), c.numel() // 8
        elif layer.pool == "average":
            y, items = _images(x, channels, (height // 2, width // 2)), c.numel() // 32
        else:
            y, items = c.new_empty(layer.images, channels), layer.images
        saved = gamma.new_empty(4, channels)
        # What the ReLU lets through, a bit each, where a residual has a say in it; else it follows from c.
        masked = residual is not None and layer.relu
        through = torch.empty(c.numel() // 8, dtype=torch.uint8, device=c.device) if masked else None
        given = [c, c if residual is None else residual, partial, parts, gamma, beta]
        state = [norm.running_mean, norm.running_var, norm.num_batches_tracked, float(norm.momentum), float(norm.eps)]
        plan.run(NORMALISE, *given, *state, saved, y, c if through is None else through, items, layer.pixels)
        ctx.plan, ctx.eps = plan, norm.eps
        ctx.save_for_backward(x, weight, gamma, beta, residual, c, saved, through)
        return (y, x) if layer.through else y

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_through: Tensor | None = None) -> tuple[Tensor | None, ...]:
        x, weight, gamma, beta, residual, c, saved, through = ctx.saved_tensors
        plan: Plan = ctx.plan
        layer = plan.layer
        if torch.is_grad_enabled():  # a gradient of the gradient is wanted: let torch derive it
            inputs = [x, weight, gamma, beta, residual]
            wanted = [t for t, needed in zip(inputs, ctx.needs_input_grad, strict=False) if needed]
            c = F.conv2d(x, weight.to(x.dtype), None, layer.stride, layer.kernel // 2)
            c = F.batch_norm(c, None, None, gamma, beta, training=True, eps=ctx.eps)
            y = _finish(c, residual, layer.relu, layer.pool)
            outputs, grads = ((y, x), (grad, grad_through)) if layer.through else ((y,), (grad,))
            found = iter(torch.autograd.grad(outputs, wanted, grads, create_graph=True))
            return *(next(found) if needed else None for needed in ctx.needs_input_grad[:5]), None, None
        grad = _whole(grad)
        grad_through = None if grad_through is None else _whole(grad_through)
        other = c if through is None else through
        parts, items = plan.parts(SUM_GRADIENT), c.numel() // 8
        partial = saved.new_empty(parts, 2, layer.channels_out)
        plan.run(SUM_GRADIENT, grad, c, other, saved, partial, items)
        grad_c, grad_gamma, grad_beta = torch.empty_like(c), torch.empty_like(gamma), torch.empty_like(beta)
        grad_residual = torch.empty_like(c) if layer.grad_residual else None
        out = [grad_c, grad_c if grad_residual is None else grad_residual, grad_gamma, grad_beta]
        plan.run(SPREAD_GRADIENT, grad, c, other, saved, partial, parts, *out, items, layer.pixels)
        grad_x = grad_weight = None
        if ctx.needs_input_grad[1]:
            parts, elements = plan.parts(WEIGHT_GRADIENT), 32 * plan.parts(SUM_WEIGHTS)
            partial, grad_weight = saved.new_empty(parts, elements), torch.empty_like(weight)
            plan.run(WEIGHT_GRADIENT, x, grad_c, partial, layer.images)
        if ctx.needs_input_grad[0] and layer.channels_in % 8 == 0:
            grad_x, more = torch.empty_like(x), grad_c if grad_through is None else grad_through
            # Reads nothing of the kernel before, if that is the one above, and runs beside its last blocks.
            plan.run(TURNED, grad_c, weight, more, grad_x, saved, layer.images, early=grad_weight is not None)
        elif ctx.needs_input_grad[0]:
            sizes = (x.shape, weight.to(x.dtype), grad_c, layer.stride, layer.kernel // 2)
            grad_x = conv2d_input(*sizes)  # type: ignore[no-untyped-call]
            grad_x = grad_x if grad_through is None else grad_x + grad_through
        if grad_weight is not None:
            plan.run(SUM_WEIGHTS, partial, grad_weight, parts)
        return grad_x, grad_weight, grad_gamma, grad_beta, grad_residual, None, None


def _whole(grad: Tensor) -> Tensor:
    """In the kernels' order, and where 16 bytes may be read at once: a part of a larger tensor may begin anywhere."""
    grad = grad.contiguous(memory_format=torch.channels_last if grad.dim() == 4 else torch.contiguous_format)
    return grad if grad.data_ptr() % ALIGNED == 0 else grad.clone()


def _finish(y: Tensor, residual: Tensor | None, relu: bool, pool: Pool) -> Tensor:
    if residual is not None:
        y = y + residual
    if relu:
        y = F.relu(y)
    if pool == "average":
        return F.avg_pool2d(y, 2)
    return y.mean((2, 3)) if pool == "global" else y


def _hooked(*modules: nn.Module) -> bool:
    names = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, name) for module in modules for name in names)


def _same(values: Sequence[int] | int | str, expected: int) -> bool:
    return values in (expected, (expected, expected))


def _layer(
    x: Tensor,
    conv: nn.Conv2d,
    norm: nn.BatchNorm2d,
    residual: Tensor | None = None,
    relu: bool = True,
    pool: Pool = "none",
    through: bool = False,
) -> Layer | None:
    """What the kernels are to compute; None where they do not serve."""
    if not x.is_cuda or torch.version.hip is not None or torch.compiler.is_compiling():
        return None
    if torch.cuda.get_device_capability(x.device) < (8, 0):  # no products of bf16
        return None
    if not torch.is_autocast_enabled("cuda") or torch.get_autocast_dtype("cuda") != torch.bfloat16:
        return None
    if type(conv) is not nn.Conv2d or type(norm) is not nn.BatchNorm2d or _hooked(conv, norm):
        return None
    if not norm.training or not norm.track_running_stats or not norm.affine or norm.momentum is None:
        return None
    weight, (kernel, _), (stride, _) = conv.weight, conv.kernel_size, conv.stride
    plain = conv.bias is None and conv.groups == 1 and conv.padding_mode == "zeros" and _same(conv.dilation, 1)
    square = _same(conv.kernel_size, kernel) and _same(conv.stride, stride) and _same(conv.padding, kernel // 2)
    if not plain or not square or kernel not in (1, 3) or stride not in (1, 2):
        return None
    if x.dim() != 4 or x.dtype not in (torch.float32, torch.bfloat16) or not x.shape[0]:
        return None
    images, channels, height, width = x.shape
    if conv.out_channels not in WIDTHS or (channels not in WIDTHS and channels > IMAGE_CHANNELS):
        return None
    if height // stride not in SIDES or width // stride not in SIDES or height % stride or width % stride:
        return None
    parameters: list[Any] = [weight, norm.weight, norm.bias, norm.running_mean, norm.running_var]
    if any(p.dtype != torch.float32 or p.device != x.device for p in parameters):
        return None
    last = weight.is_contiguous(memory_format=torch.channels_last)
    if not (last or weight.is_contiguous()) or not x.is_contiguous(memory_format=torch.channels_last):
        return None
    if any(t.data_ptr() % ALIGNED for t in (x, weight, *([] if residual is None else [residual]))):
        return None
    if residual is not None:
        shape = (images, conv.out_channels, height // stride, width // stride)
        fits = residual.shape == shape and residual.dtype == torch.bfloat16 and residual.device == x.device
        if not fits or not residual.is_contiguous(memory_format=torch.channels_last):
            return None
    wanted = residual is not None and residual.requires_grad and torch.is_grad_enabled()
    sizes = (images, height, width, channels, conv.out_channels, kernel, stride, last)
    return Layer(*sizes, pool, relu, residual is not None, wanted, through)


def conv_norm(
    x: Tensor,
    conv: nn.Conv2d,
    norm: nn.BatchNorm2d,
    *,
    residual: Tensor | None = None,
    relu: bool = True,
    pool: Pool = "none",
) -> Tensor:
    """A layer: pool(relu(norm(conv(x)) + residual)), each part but the first two if it is asked for.

    ``pool``: "average" of 2×2, [B, C, H/2, W/2], or "global", [B, C]. In training mode on a CUDA device under bf16
    autocast, with images [B, C, H, W] in the channels-last format, at most 64 channels, and sides that are powers of
    two, the layer is a few kernels of our own, which can be captured in a CUDA graph once it was called outside of
    one; their results are the same from run to run. Elsewhere it is the modules themselves.
    """
    layer = _layer(x, conv, norm, residual, relu, pool)
    plan = _plan(layer, x.device, processors_of(x.device)) if layer is not None else None
    if plan is None:
        return _finish(norm(conv(x)), residual, relu, pool)
    apply: Callable[..., Tensor] = _ConvNorm.apply
    return apply(x.to(torch.bfloat16), conv.weight, norm.weight, norm.bias, residual, norm, plan)


def conv_norm_through(x: Tensor, conv: nn.Conv2d, norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """relu(norm(conv(x))), and ``x`` itself for a shortcut, whose gradient is added where that of ``x`` is computed."""
    layer = _layer(x, conv, norm, through=True)
    plan = _plan(layer, x.device, processors_of(x.device)) if layer is not None else None
    if plan is None:
        return _finish(norm(conv(x)), None, True, "none"), x
    apply: Callable[..., tuple[Tensor, Tensor]] = _ConvNorm.apply
    return apply(x.to(torch.bfloat16), conv.weight, norm.weight, norm.bias, None, norm, plan)
