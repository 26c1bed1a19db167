"""Gaussian blur and solarisation of views, by plain torch operations on any device: torchvision's, on values in [0, 1].

Both come after all that the fused kernel does and before the normalisation. Nothing here waits for a GPU, and a graph
can capture it: there all images are blurred, those without blur by the weights 0, ..., 0, 1, 0, ..., 0. On a CPU only
those that are drawn are. A view is the same bits in whatever batch it is computed, as in render.py.

What it costs on a GPU, counted and not measured: 90 small launches to draw and 50 more, of which some fifteen go over
all pixels in float32.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from setwise.kernels.views import Finish

CPU_CHUNK = 2**20  # values worked on at a time: a few such arrays fit into a cache,
CHUNK = 2**26  # or into the memory of a GPU
LEAST = 0.01  # a sigma in pixels whose weights are exactly 0, ..., 0, 1, 0, ..., 0


def radius_of(size: tuple[int, int]) -> int:
    """Pixels on each side that a blur looks at: a twentieth of the shorter side, hence a tenth in all; at least one.

    The kernel has 2 · radius + 1 pixels, 23 for 224 x 224 as in SimCLR. An image of one row or column has no blur.
    """
    side = min(size)
    return min(max(1, side // 20), side - 1)


def weights_of(sigma: Tensor, radius: int) -> Tensor:
    """exp(-d² / 2 sigma²) for d = -radius, ..., radius, divided by their sum: float32 [B, 2 · radius + 1].

    In float64 until the end: how a sum or an exponential is rounded may depend on its place in the batch.
    """
    distance = torch.arange(-radius, radius + 1, dtype=torch.float64, device=sigma.device)
    weights = (distance / sigma.double().clamp(min=LEAST)[:, None]).square_().mul_(-0.5).exp_()
    return (weights / weights.sum(1, keepdim=True)).float()


def _along(x: Tensor, weights: Tensor) -> Tensor:
    """Blur [G, N, M] along N with ``weights`` [G, K]; beyond its ends it is mirrored about the first and last value.

    A bag of K rows each, joined by weights: several times as fast on a CPU as a convolution with as many groups.
    """
    (g, n, m), k = x.shape, weights.shape[1]
    starts, places, steps = (
        torch.arange(*ends, dtype=torch.int32, device=x.device) for ends in ((0, g * n, n), (n,), (k,))
    )
    at = (places[:, None] + steps - k // 2).abs_()
    at = (n - 1) - ((n - 1) - at).abs_()
    rows, each = starts[:, None, None] + at, weights[:, None].expand(g, n, k)
    bags = F.embedding_bag(rows.view(-1, k), x.view(g * n, m), mode="sum", per_sample_weights=each.reshape(-1, k))
    return bags.view(g, n, m)


def _moved(x: Tensor, order: Sequence[int]) -> Tensor:
    """Permuted in memory, as int32: torch moves them about twice as fast as float32."""
    return x.view(torch.int32).permute(*order).contiguous().view(torch.float32)


def blurred(x: Tensor, sigma: Tensor) -> Tensor:
    """Images [B, C, H, W], float32, each blurred with its own sigma [B], in pixels; 0 changes nothing."""
    b, c, h, w = x.shape
    weights = weights_of(sigma, radius_of((h, w)))
    turned = _along(_moved(x, (0, 3, 1, 2)).view(b, w, c * h), weights).view(b, w, c, h)
    planes = _moved(turned, (0, 2, 3, 1)).view(b * c, h, w)
    return _along(planes, weights[:, None].expand(b, c, -1).flatten(0, 1)).view(b, c, h, w)


def _rows(x: Tensor, drawn: Tensor) -> Sequence[Tensor | slice]:
    """The rows of x that are drawn, some at a time. To ask for them would wait for a GPU: there all rows."""
    on_cpu, values = x.device.type == "cpu", max(1, x[:1].numel())
    step = max(1, (CPU_CHUNK if on_cpu else CHUNK) // values)
    if on_cpu:
        return torch.split(drawn.nonzero()[:, 0], step)
    return [slice(start, start + step) for start in range(0, len(x), step)]


def finished(x: Tensor, finish: Finish, *, blur: Tensor | None, solarize: Tensor | None) -> Tensor:
    """Blur views [B, C, H, W] in [0, 1] with sigma ``blur`` [B], then solarise, normalise and store them.

    Solarising inverts the upper half: x becomes min(x, 1 - x). On bytes it is Pillow's with a threshold of 128. None:
    nothing is blurred, or solarised. ``x`` is float32 and contiguous, and is overwritten.
    """
    if blur is not None:
        for rows in _rows(x, blur):
            x[rows] = blurred(x[rows], blur[rows])
    if solarize is not None:
        for rows in _rows(x, solarize):
            part = x[rows]
            x[rows] = torch.where(solarize[rows, None, None, None], part.minimum(1 - part), part)
    for channel, scale, shift in zip(x.unbind(1), finish.scale, finish.shift, strict=True):
        channel.mul_(scale).add_(shift)  # numbers, not a tensor of them: a copy to a GPU cannot be captured
    memory_format = torch.channels_last if finish.channels_last else torch.contiguous_format
    return x.to(finish.dtype, memory_format=memory_format)
