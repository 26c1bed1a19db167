"""Convolution, batch normalisation, residual, ReLU and pool as one layer of training, on tensor cores in bf16.

Small images of few channels leave a GPU idle: with 16 channels the library's kernels take ten times what their memory
traffic needs, and every normalisation, addition and cast is a launch of its own. Here a layer is two launches forwards
and five backwards (conv.cu, conv_weights.cu, norm.cu). Plain torch does it where these kernels do not serve.

Milliseconds on an H200 with torch 2.11 (results/bench-kernels-h200.json; benchmarks/kernels.py measures them again).
"Encoder" is its forward and backward pass, "step" a captured training step of SimCLR with QARe. torch.compile is in its
default mode, for Conv-4 in max-autotune, which is faster.

              encoder: ours  torch.compile  plain torch      step: ours  torch.compile  plain torch
    Conv-4            0.123     0.270 (2.2x)      0.437           0.371     0.522 (1.4x)      0.689
    ResNet-32          1.56      3.22 (2.1x)       4.27            1.86      3.52 (1.9x)       4.55
    ResNet-18          12.9      10.8 (0.8x)       14.5            13.4      11.3 (0.8x)       15.2

ResNet-18 uses the kernels in its first stage only, through the same blocks as ResNet-32.
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
from setwise.kernels.nvrtc import compiled_or_none, has_bf16, unchanged, usable

ALIGNED = 16  # bytes that a thread reads at once


@cache
def _plan(layer: Layer, device: torch.device, processors: int) -> Plan | None:
    what = "the kernels of a convolution"
    return compiled_or_none(lambda: Plan(layer, device, processors), what, "plain torch", device)


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
        peers = getattr(norm, "processes", None)  # that share this norm's batch, an equal part each
        many = 1
        if peers is not None and peers.size > 1:  # the moments of all processes' parts, then the counts of all
            both = peers.gather(partial[None]).split([2 * parts * channels, parts], dim=1)
            many, partial = peers.size, torch.cat([piece.flatten() for piece in both])
            parts *= many
        if layer.pool == "none":
            y, items = torch.empty_like(c), c.numel() // 8
        elif layer.pool == "average":
            y, items = _images(x, channels, (height // 2, width // 2)), c.numel() // 32
        else:
            y, items = c.new_empty(layer.images, channels), layer.images
        saved = gamma.new_empty(4, channels)
        # One bit for each value that passes the ReLU. Without a residual, c alone tells.
        masked = residual is not None and layer.relu
        through = torch.empty(c.numel() // 8, dtype=torch.uint8, device=c.device) if masked else None
        given = [c, c if residual is None else residual, partial, parts, gamma, beta]
        state = [norm.running_mean, norm.running_var, norm.num_batches_tracked, float(norm.momentum), float(norm.eps)]
        plan.run(NORMALISE, *given, *state, saved, y, c if through is None else through, items, many * layer.pixels)
        ctx.plan, ctx.eps, ctx.peers, ctx.many = plan, norm.eps, peers, many
        ctx.save_for_backward(x, weight, gamma, beta, residual, c, saved, through)
        return (y, x) if layer.through else y

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_through: Tensor | None = None) -> tuple[Tensor | None, ...]:
        x, weight, gamma, beta, residual, c, saved, through = ctx.saved_tensors
        plan: Plan = ctx.plan
        layer = plan.layer
        if torch.is_grad_enabled() and ctx.many > 1:
            raise RuntimeError("expected one derivative over many processes, got a second one; use one process")
        if torch.is_grad_enabled():  # for a gradient of the gradient: torch derives it
            inputs = [x, weight, gamma, beta, residual]
            wanted = [t for t, needed in zip(inputs, ctx.needs_input_grad, strict=False) if needed]
            c = F.conv2d(x, weight.to(x.dtype), None, layer.stride, layer.kernel // 2)
            c = F.batch_norm(c, None, None, gamma, beta, training=True, eps=ctx.eps)
            y = _finish(c, residual, layer.relu, layer.pool)
            outputs, grads = ((y, x), (grad, grad_through)) if layer.through else ((y,), (grad,))
            gradients = iter(torch.autograd.grad(outputs, wanted, grads, create_graph=True))
            return *(next(gradients) if needed else None for needed in ctx.needs_input_grad[:5]), None, None
        grad = _whole(grad)
        grad_through = None if grad_through is None else _whole(grad_through)
        other = c if through is None else through
        parts, items = plan.parts(SUM_GRADIENT), c.numel() // 8
        partial = saved.new_empty(parts, 2, layer.channels_out)
        plan.run(SUM_GRADIENT, grad, c, other, saved, partial, items)
        if ctx.many > 1:
            parts, partial = ctx.many * parts, ctx.peers.gather(partial)
        grad_c, grad_gamma, grad_beta = torch.empty_like(c), torch.empty_like(gamma), torch.empty_like(beta)
        grad_residual = torch.empty_like(c) if layer.grad_residual else None
        out = [grad_c, grad_c if grad_residual is None else grad_residual, grad_gamma, grad_beta]
        plan.run(SPREAD_GRADIENT, grad, c, other, saved, partial, parts, *out, items, ctx.many * layer.pixels)
        if ctx.many > 1:  # sums over all processes, where one process's are wanted: their mean will be taken
            grad_gamma, grad_beta = grad_gamma / ctx.many, grad_beta / ctx.many
        grad_x = grad_weight = None
        if ctx.needs_input_grad[1]:
            parts, elements = plan.parts(WEIGHT_GRADIENT), 32 * plan.parts(SUM_WEIGHTS)
            partial, grad_weight = saved.new_empty(parts, elements), torch.empty_like(weight)
            plan.run(WEIGHT_GRADIENT, x, grad_c, partial, layer.images)
        if ctx.needs_input_grad[0] and layer.channels_in % 8 == 0:
            grad_x, more = torch.empty_like(x), grad_c if grad_through is None else grad_through
            # It reads nothing that WEIGHT_GRADIENT writes, so it may start beside that kernel's last blocks.
            plan.run(TURNED, grad_c, weight, more, grad_x, saved, layer.images, early=grad_weight is not None)
        elif ctx.needs_input_grad[0]:
            sizes = (x.shape, weight.to(x.dtype), grad_c, layer.stride, layer.kernel // 2)
            grad_x = conv2d_input(*sizes)  # type: ignore[no-untyped-call]
            grad_x = grad_x if grad_through is None else grad_x + grad_through
        if grad_weight is not None:
            plan.run(SUM_WEIGHTS, partial, grad_weight, parts)
        return grad_x, grad_weight, grad_gamma, grad_beta, grad_residual, None, None


def _whole(grad: Tensor) -> Tensor:
    """In the kernels' memory order and aligned: a part of a larger tensor may begin anywhere."""
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
    """What the kernels compute; None where they do not serve."""
    if x.dim() != 4 or not usable(x, torch.float32, torch.bfloat16) or not has_bf16(x):
        return None
    if not torch.is_autocast_enabled("cuda") or torch.get_autocast_dtype("cuda") != torch.bfloat16:
        return None
    shared = hasattr(norm, "processes")  # by training/processes.py
    if not unchanged(nn.Conv2d, conv) or not unchanged(type(norm) if shared else nn.BatchNorm2d, norm):
        return None
    if not norm.training or not norm.track_running_stats or not norm.affine or norm.momentum is None:
        return None
    weight, (kernel, _), (stride, _) = conv.weight, conv.kernel_size, conv.stride
    plain = conv.bias is None and conv.groups == 1 and conv.padding_mode == "zeros" and _same(conv.dilation, 1)
    square = _same(conv.kernel_size, kernel) and _same(conv.stride, stride) and _same(conv.padding, kernel // 2)
    if not plain or not square or kernel not in (1, 3) or stride not in (1, 2):
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


def _plan_for(x: Tensor, layer: Layer | None) -> Plan | None:
    return None if layer is None else _plan(layer, x.device, processors_of(x.device))


def conv_norm(
    x: Tensor,
    conv: nn.Conv2d,
    norm: nn.BatchNorm2d,
    *,
    residual: Tensor | None = None,
    relu: bool = True,
    pool: Pool = "none",
) -> Tensor:
    """A layer: pool(relu(norm(conv(x)) + residual)), where residual, ReLU and pool are optional.

    ``pool``: "average" of 2×2, [B, C, H/2, W/2], or "global", [B, C]. Our kernels serve in training mode on a CUDA
    device under bf16 autocast, for channels-last images [B, C, H, W] of at most 64 channels whose sides are powers of
    two. Their results are the same from run to run. A CUDA graph can capture them after one call outside of it. Where
    ``norm`` has an attribute ``processes``, its statistics are those of all processes' images.
    """
    plan = _plan_for(x, _layer(x, conv, norm, residual, relu, pool))
    if plan is None:
        return _finish(norm(conv(x)), residual, relu, pool)
    apply: Callable[..., Tensor] = _ConvNorm.apply
    return apply(x.to(torch.bfloat16), conv.weight, norm.weight, norm.bias, residual, norm, plan)


def conv_norm_through(x: Tensor, conv: nn.Conv2d, norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """relu(norm(conv(x))), and ``x`` for a shortcut: our kernel adds the shortcut's gradient to that of ``x``."""
    plan = _plan_for(x, _layer(x, conv, norm, through=True))
    if plan is None:
        return F.relu(norm(conv(x))), x
    apply: Callable[..., tuple[Tensor, Tensor]] = _ConvNorm.apply
    return apply(x.to(torch.bfloat16), conv.weight, norm.weight, norm.bias, None, norm, plan)
