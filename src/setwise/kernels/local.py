"""Deep InfoMax's scores of every place of a feature map: four kernels around three matrix products in bf16.

Between the two layers lie rows of 256 channels for every place, once with the image's own features and once with
another image's: 67 MB each in bf16 for 128 images of 32×32. Time goes into reading and writing them. Plain torch does
so about 59 times in a step, since each bias, ReLU, sum and gradient is a pass of its own. These kernels (local.cu) need
about 26 passes, of which the products take 12 and the first layer with its gradients 3:
- they add the first layer's bias to what is the same at every place, not to the places;
- they keep only the signs of each ReLU's input, one bit each;
- with m the signs of u + bias, u = h W^T and s = v . relu(u + bias) + c, all gradients but that of the places follow
  from G = (m grad s)^T h and t = sum m grad s: v G for W, v t for the bias, sum(G W) + bias t for v.

Milliseconds on an H200 with torch 2.11, Conv-4, 128 images of 32×32 (results/bench-kernels-h200.json;
benchmarks/kernels.py measures them again): the scores and their gradients take 0.640, with torch.compile 0.996 (1.6x),
in plain torch 1.80. A captured step takes 1.08, with torch.compile 1.54 (1.4x), in plain torch 2.46.
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
from setwise.kernels.nvrtc import compile_kernel, compiled_or_none, has_bf16, unchanged, usable

FILES = ("bf16.cu", "local.cu")
NAMES = ("hidden", "scores", "scores_backward", "hidden_backward")
CHANNELS = (8, 16, 32, 64, 128, 256)  # a row is the work of one warp, or of a part of it
THREADS = 256
BLOCKS = 8  # a multiprocessor: twice as many as it holds, so that none is idle for long
PARTS = 32  # of a product; with 256 channels they are 128 tiles of 128×128


class Kernels:
    """The kernels of local.cu on a device. Rows are bf16, all else float32; ``through`` are bits that a ReLU passed."""

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
        """relu(places [B, S, C] + whole [B, C]) and the same with whole.roll(1, 0), [2BS, C]; ``through``."""
        images, size, _ = places.shape
        h, through = self._empty(places, 2 * images * size), self._bits(places, 2 * images * size)
        blocks = images * self.blocks(size, self.most // images)
        self.run("hidden", blocks, places, whole, h, through, images, size)
        return h, through

    def scores(self, u: Tensor, bias: Tensor, weight: Tensor, constant: Tensor) -> tuple[Tensor, Tensor]:
        """relu(u [R, C] + bias) @ weight + constant, [R]; ``through``."""
        rows = len(u)
        scores, through = bias.new_empty(rows), self._bits(u, rows)
        self.run("scores", self.blocks(rows, self.most), u, bias, weight, constant, scores, through, rows)
        return scores, through

    def scores_backward(self, grad: Tensor, through: Tensor) -> tuple[Tensor, Tensor]:
        """grad [R] in every channel of ``through``, [R, C]; its sums [C]."""
        rows = len(grad)
        blocks = self.blocks(rows, self.most)
        spread, partial = self._empty(grad, rows), grad.new_empty(blocks, self.channels)
        self.run("scores_backward", blocks, grad, through, spread, partial, rows)
        return spread, partial.sum(0)

    def product(self, spread: Tensor, h: Tensor) -> Tensor:
        """spread^T h, [C, C], in float32: in parts of the rows, so that enough blocks have work."""
        parts = (gcd(len(h), PARTS), -1, self.channels)
        return torch.bmm(spread.view(parts).mT, h.view(parts), out_dtype=torch.float32).sum(0)

    def hidden_backward(self, grad: Tensor, through: Tensor, images: int) -> tuple[Tensor, Tensor]:
        """The halves of grad [2BS, C] where ``through``: their sum [B, S, C], their sums over places [B, 2, C]."""
        size = len(grad) // (2 * images)
        parts = self.blocks(size, self.most // images)
        out = self._empty(grad, images * size).view(images, size, -1)
        partial = grad.new_empty(images, parts, 2, self.channels, dtype=torch.float32)
        self.run("hidden_backward", images * parts, grad, through, out, partial, images, size)
        return out, partial.sum(1)


@cache
def _kernels(channels: int, device: torch.device, processors: int) -> Kernels | None:
    what = "the kernels of local scores"
    return compiled_or_none(lambda: Kernels(channels, processors), what, "plain torch", device)


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


def _kernels_for(feature_map: Tensor, second: nn.Conv2d, last: nn.Conv2d) -> Kernels | None:
    """None where the kernels do not serve."""
    x = feature_map
    if not usable(x, torch.float32, torch.bfloat16) or not has_bf16(x):
        return None
    dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
    if dtype != torch.bfloat16 or second.out_channels not in CHANNELS:
        return None
    if not unchanged(nn.Conv2d, second) or not unchanged(nn.Conv2d, last):
        return None
    return _kernels(second.out_channels, x.device, processors_of(x.device))


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32)).contiguous()


def local_scores(
    feature_map: Tensor, features: Tensor, first: nn.Conv2d, second: nn.Conv2d, last: nn.Conv2d
) -> tuple[Tensor, Tensor]:
    """Scores [B, 1, H, W] of feature maps [B, C, H, W] with their features [B, F], and with those of the image before.

    last(relu(second(relu(first(both, stacked))))), all 1×1 convolutions. The first is linear, so we apply it to the
    maps and to the features, which are the same at every place, and stack nothing. For the second scores we move the
    features, which are the smaller.

    In bf16 on a CUDA device, by autocast or by the tensors' type, our kernels do it. They return float32, and the same
    bits for the same input. A CUDA graph can capture them after one call outside of it.
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
