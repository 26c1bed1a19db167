"""Deep InfoMax's scores of every place of a feature map, by four kernels around three matrix products in bf16.

The rows between the two layers are 256 channels of every place, for a map with its own features and for one with
another image's: 67 MB in bf16 each for 128 images of 32×32, and the time is that of reading and writing them. Plain
torch does so about 59 times in a step: a bias, a ReLU, a sum and their gradients are passes of their own. Here it is
about 26 times (local.cu): 12 of them are the products', 3 the first layer's and its gradients'. To that end
- the first layer's bias is added to what is the same at every place, not to the places;
- of either ReLU's input only the signs are kept, a bit each;
- with m the signs of u + bias, u = h W^T and s = v . relu(u + bias) + c, all but the places' gradient follow from
  G = (m grad s)^T h and t = sum m grad s: that of W is v G, that of the bias v t, that of v sum(G W) + bias t.
A captured step on Conv-4, 128 images of 32×32 (H200, torch 2.11), takes 1.17 ms instead of 2.34 ms.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import gcd
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import conv2d, linear, relu

from setwise.kernels.conv_plan import processors_of
from setwise.kernels.nvrtc import compile_kernel, or_none

FILES = ("bf16.cu", "local.cu")
NAMES = ("hidden", "scores", "scores_backward", "hidden_backward")
CHANNELS = (8, 16, 32, 64, 128, 256)  # a row is the work of one warp, or of a part of it
THREADS = 256
BLOCKS = 8  # a multiprocessor: twice as many as there is room for, so that none is idle for long
PARTS = 32  # of a product; with 256 channels they are 128 tiles of 128×128


class Kernels:
    """The kernels of local.cu on a device, and what they return: rows are bf16, all else float32."""

    def __init__(self, channels: int, processors: int) -> None:
        self.channels, self.most = channels, BLOCKS * processors
        self.kernels = {name: compile_kernel(FILES, name, {"CHANNELS": channels}) for name in NAMES}

    def run(self, name: str, blocks: int, *args: Any) -> None:
        """Launch a kernel."""
        self.kernels[name](grid=(blocks, 1, 1), block=(THREADS, 1, 1), args=args)

    def blocks(self, rows: int, most: int) -> int:
        """Blocks for ``rows``, up to ``most`` of them; a block takes a few rows at a time."""
        return max(1, min(most, -(-rows * self.channels // (8 * THREADS))))

    def _empty(self, like: Tensor, rows: int) -> Tensor:
        return like.new_empty(rows, self.channels, dtype=torch.bfloat16)

    def _bits(self, like: Tensor, rows: int) -> Tensor:
        return like.new_empty(rows, self.channels // 8, dtype=torch.uint8)

    def hidden(self, places: Tensor, whole: Tensor) -> tuple[Tensor, Tensor]:
        """relu(places [B, S, C] + whole [B, C]) and the same with whole.roll(1, 0), [2BS, C]; what was let through."""
        images, size, _ = places.shape
        h, through = self._empty(places, 2 * images * size), self._bits(places, 2 * images * size)
        blocks = images * self.blocks(size, self.most // images)
        self.run("hidden", blocks, places, whole, h, through, images, size)
        return h, through

    def scores(self, u: Tensor, bias: Tensor, weight: Tensor, constant: Tensor) -> tuple[Tensor, Tensor]:
        """relu(u [R, C] + bias) @ weight + constant, [R]; what was let through."""
        rows = len(u)
        scores, through = bias.new_empty(rows), self._bits(u, rows)
        self.run("scores", self.blocks(rows, self.most), u, bias, weight, constant, scores, through, rows)
        return scores, through

    def scores_backward(self, grad: Tensor, through: Tensor) -> tuple[Tensor, Tensor]:
        """grad [R] in every channel that was let through, [R, C]; its sums [C]."""
        rows = len(grad)
        blocks = self.blocks(rows, self.most)
        spread, partial = self._empty(grad, rows), grad.new_empty(blocks, self.channels)
        self.run("scores_backward", blocks, grad, through, spread, partial, rows)
        return spread, partial.sum(0)

    def product(self, spread: Tensor, h: Tensor) -> Tensor:
        """spread^T h, [C, C], in float32: summed over parts of the rows, for enough blocks to have work."""
        parts = (gcd(len(h), PARTS), -1, self.channels)
        return torch.bmm(spread.view(parts).mT, h.view(parts), out_dtype=torch.float32).sum(0)

    def hidden_backward(self, grad: Tensor, through: Tensor, images: int) -> tuple[Tensor, Tensor]:
        """The two halves of grad [2BS, C], where let through: their sum [B, S, C], their sums over places [B, 2, C]."""
        size = len(grad) // (2 * images)
        parts = self.blocks(size, self.most // images)
        out = self._empty(grad, images * size).view(images, size, -1)
        partial = grad.new_empty(images, parts, 2, self.channels, dtype=torch.float32)
        self.run("hidden_backward", images * parts, grad, through, out, partial, images, size)
        return out, partial.sum(1)


@cache
def _kernels(channels: int, device: torch.device, processors: int) -> Kernels | None:
    return or_none(lambda: Kernels(channels, processors), "the kernels of local scores", "plain torch", device)


class _LocalScores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        places: Tensor,
        whole: Tensor,
        weight: Tensor,
        bias: Tensor,
        last: Tensor,
        constant: Tensor,
        kernels: Kernels,
    ) -> Tensor:
        h, through_h = kernels.hidden(places, whole)
        scores, through_u = kernels.scores(torch.mm(h, weight.to(h.dtype).mT), bias, last, constant)
        ctx.kernels = kernels
        ctx.save_for_backward(h, through_h, through_u, weight, bias, last)
        return scores.view(2, *places.shape[:2])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        h, through_h, through_u, weight, bias, last = ctx.saved_tensors
        kernels: Kernels = ctx.kernels
        spread, total = kernels.scores_backward(grad.contiguous().flatten(), through_u)
        product, scaled = kernels.product(spread, h), last[:, None] * weight
        grad_h = torch.mm(spread, scaled.to(h.dtype))
        grad_places, sums = kernels.hidden_backward(grad_h, through_h, grad.shape[1])
        grad_whole = sums[:, 0] + sums[:, 1].roll(-1, 0)
        grad_last = (product * weight).sum(1) + bias * total
        return grad_places, grad_whole, last[:, None] * product, last * total, grad_last, grad.sum()[None], None


def _plain(module: nn.Module) -> bool:
    names = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return type(module) is nn.Conv2d and not any(getattr(module, name) for name in names)


def _kernels_for(feature_map: Tensor, second: nn.Conv2d, last: nn.Conv2d) -> Kernels | None:
    """None where the kernels do not serve."""
    x = feature_map
    if not x.is_cuda or torch.version.hip is not None or torch.compiler.is_compiling() or not x.numel():
        return None
    if torch.cuda.get_device_capability(x.device) < (8, 0) or x.dtype not in (torch.float32, torch.bfloat16):
        return None
    dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
    if dtype != torch.bfloat16 or second.out_channels not in CHANNELS or not _plain(second) or not _plain(last):
        return None
    return _kernels(second.out_channels, x.device, processors_of(x.device))


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32)).contiguous()


def local_scores(
    feature_map: Tensor, features: Tensor, first: nn.Conv2d, second: nn.Conv2d, last: nn.Conv2d
) -> tuple[Tensor, Tensor]:
    """Scores [B, 1, H, W] of feature maps [B, C, H, W] with their features [B, F], and with those of the image before.

    last(relu(second(relu(first(both, stacked))))), 1×1 convolutions. The first is linear: it is computed once for the
    maps and once for the features, which are the same at every place, and nothing is stacked. For the second scores
    the latter are moved, which are the smaller.

    In bf16 on a CUDA device, by autocast or by the tensors' type, kernels of our own do it, which can be captured in
    a CUDA graph once it was called outside of one; they give float32, and the same bits for the same input.
    """
    channels = feature_map.shape[1]
    of_map, of_features = first.weight[:, :channels], first.weight[:, channels:, 0, 0]
    kernels = _kernels_for(feature_map, second, last)
    if kernels is None:
        places, whole = conv2d(feature_map, of_map, first.bias), linear(features, of_features)[:, :, None, None]
        own, other = (last(relu(second(relu(places + x)))) for x in (whole, whole.roll(1, 0)))
        return own, other
    places = conv2d(feature_map, of_map)
    assert first.bias is not None
    assert second.bias is not None
    assert last.bias is not None
    with torch.autocast(places.device.type, enabled=False):  # small, and in float32 without a rounding
        whole = linear(_wide(features), _wide(of_features), _wide(first.bias))
    given = (second.weight.flatten(1), second.bias, last.weight.flatten(), last.bias)
    rows = places.permute(0, 2, 3, 1).flatten(1, 2).contiguous()  # as they lie, if the maps are channels-last
    apply: Callable[..., Tensor] = _LocalScores.apply
    own, other = apply(rows, whole, *map(_wide, given), kernels).view(2, len(places), 1, *places.shape[2:])
    return own, other
