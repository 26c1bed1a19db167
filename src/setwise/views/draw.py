"""The parameters of views, drawn per sample by plain torch operations; kernels/views.cu draws the same bits.

A sample has nine blocks of four words from Philox. The key is the seed; the counter is the low and the high word of
the sample's index, the epoch, and 16 view + block:

    blocks 0-4   ten tries of a crop: area, aspect, area, aspect
    block 5      top, left, flip, whether to jitter
    block 6      brightness, contrast, saturation, hue
    block 7      order of the jitter's parts, greyscale, two words unused
    block 8      whether to blur, sigma, whether to solarise, one word unused; drawn only for views that do either

What is real is computed in float64 by operations that IEEE 754 rounds correctly (+ - * / sqrt, and an exponential
made of them), one rounding each, so that the parameters are the same bits on every device.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import torch
from torch import Tensor

from setwise.kernels.views import BLOCKS, EXP_COEFFICIENTS, EXP_HALVINGS, TRIES, Parameters, Ranges
from setwise.views.philox import words_of

ORDERS = tuple(permutations(range(4)))  # lexicographic


def exponential(x: Tensor) -> Tensor:
    """exp(x) for float64 |x| <= 3 to 1e-14, by correctly rounded operations only: exp(x / 16)^16, a series inside."""
    x = x * 0.5**EXP_HALVINGS
    y = torch.full_like(x, EXP_COEFFICIENTS[-1])
    for coefficient in reversed(EXP_COEFFICIENTS[:-1]):
        y = y.mul_(x).add_(coefficient)
    for _ in range(EXP_HALVINGS):
        y = y.mul_(y)
    return y


def uniform(words: Tensor) -> Tensor:
    """The words as numbers in [0, 1), float64, exact."""
    return words.double().mul_(2.0**-32)


def below(words: Tensor, n: Tensor | int) -> Tensor:
    """Uniform integers in [0, n): the high half of word * n."""
    return (words * n) >> 32


def fallback_box(size: tuple[int, int], aspect: tuple[float, float]) -> tuple[int, int, int, int]:
    """The central crop that takes the place of ten that did not fit: as much of the image as its aspect allows."""
    height, width = size
    if width / height < aspect[0]:
        h, w = max(1, round(width / aspect[0])), width
    elif width / height > aspect[1]:
        h, w = height, max(1, round(height * aspect[1]))
    else:
        h, w = height, width
    return (height - h) // 2, (width - w) // 2, h, w


def resized_box(words: Tensor, size: tuple[int, int], ranges: Ranges) -> Tensor:
    """Top, left, height, width [4, B] of a crop of random area and aspect: the first of ten tries that fits."""
    tries = uniform(words[:, : TRIES // 2]).view(2, 2, TRIES // 2, -1)
    area, aspect = tries.permute(1, 2, 0, 3).reshape(2, TRIES, -1)
    area = area.mul_(ranges.area[1]).add_(ranges.area[0]).mul_(size[0] * size[1])
    aspect = exponential(aspect.mul_(ranges.log_aspect[1]).add_(ranges.log_aspect[0]))
    sides = torch.stack([area / aspect, area * aspect]).sqrt_().round_().long()  # [2, TRIES, B]
    limits = sides.new_tensor(size).view(2, 1, 1)
    high, wide = (sides > 0) & (sides <= limits)
    fits, first = (high & wide).byte().max(0)  # the first of several
    sides = sides.gather(1, first.expand(2, 1, -1))
    box = torch.cat([below(words[:2, 5:6], limits - sides + 1), sides])[:, 0]
    return torch.where(fits.bool(), box, box.new_tensor(ranges.fallback)[:, None])


def draw(
    ranges: Ranges, samples: Tensor, seed: Tensor, epoch: Tensor, view: int | Tensor, size: tuple[int, int]
) -> Parameters:
    """Parameters of a view of each sample. ``samples`` [B], ``seed`` and ``epoch`` [] int64; ``view`` may be [B]."""
    blocks = torch.arange(BLOCKS, device=samples.device)[:, None] + 16 * view
    words = words_of(samples, seed, epoch, blocks)  # [4, BLOCKS, B]
    if ranges.crop == "resized":
        box = resized_box(words, size, ranges)
    else:
        margin = ranges.padding if ranges.crop == "padded" else 0
        corner = below(words[:2, 5], 2 * margin + 1) - margin
        box = torch.cat([corner, corner.new_tensor(size)[:, None].expand_as(corner)])
    switches, colours, rest = uniform(words[:, 5:]).unbind(1)  # [4, B] each
    low, span = colours.new_tensor([ranges.factors_low, ranges.factors_span])[..., None]
    orders = torch.tensor(ORDERS, dtype=torch.int32, device=samples.device)
    return Parameters(
        box=box.T.int().contiguous(),
        flip=switches[2] < ranges.flip,
        jitter=switches[3] < ranges.jitter,
        factors=(colours * span + low).T.float().contiguous(),
        order=orders[below(words[0, 7], len(ORDERS))],
        grey=rest[1] < ranges.grey,
        blur=torch.zeros(len(samples), device=samples.device),
        solarize=torch.zeros(len(samples), dtype=torch.bool, device=samples.device),
    )


def draw_corners(
    samples: Tensor,
    seed: Tensor,
    epoch: Tensor,
    first: int,
    count: int,
    size: Sequence[int],
    part: Sequence[int] | None,
) -> Tensor:
    """Top and left [2, V, B] of a part of each image, in ``count`` views from the ``first`` on: uniform, from block 5.

    ``size`` and ``part``: height and width of the images and of their parts; without ``part`` all of it is one.
    """
    views = torch.arange(first, first + count, device=samples.device)[:, None]
    top, left = words_of(samples, seed, epoch, 16 * views + 5)[:2]  # [V, B] each
    places = [whole - one + 1 for whole, one in zip(size, part or size, strict=True)]
    return torch.stack([below(top, places[0]), below(left, places[1])])


def draw_blur(
    samples: Tensor,
    seed: Tensor,
    epoch: Tensor,
    first: int,
    blur: Sequence[float],
    solarize: Sequence[float],
    *,
    sigma: tuple[float, float],
) -> tuple[Tensor, Tensor]:
    """The blur's sigma, 0 for none, and whether to solarise: float32 and bool [V, B], of V views from the ``first`` on.

    ``blur`` and ``solarize`` have the probability of each of these. Nothing is copied to the device, so that a graph
    can capture this: the numbers are arguments of launches.
    """
    views = torch.arange(first, first + len(blur), device=samples.device)[:, None]
    blurs, strength, solarizes, _ = uniform(words_of(samples, seed, epoch, 16 * views + BLOCKS))  # [V, B] each
    drawn = torch.stack([row < p for row, p in zip(blurs, blur, strict=True)])
    sigmas = strength.mul_(sigma[1] - sigma[0]).add_(sigma[0]).float().mul_(drawn)
    return sigmas, torch.stack([row < p for row, p in zip(solarizes, solarize, strict=True)])
