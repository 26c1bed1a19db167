"""Views from given parameters by plain torch operations; kernels/views.cu is the same in one launch.

The operations are torchvision's, on values in [0, 1] that are clamped after each part of the jitter and never rounded
to bytes on the way. A crop is at most as large as the image, so that enlarging it is bilinear with no need of
antialiasing. Every operation here rounds a value in the same way wherever it is in memory, and a sample's sums run over
nothing but its own pixels: its view is the same bits in whatever batch it is computed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from setwise.kernels.views import Finish, Parameters

GREY = (0.2989, 0.587, 0.114)  # of red, green, blue: torchvision's
CENTRES = (0.0, 1 / 3, -1 / 3)  # hues of red, green, blue in turns
CHUNK = 2**20  # values worked on at a time: a few such arrays fit into a cache


def cut(images: Tensor, corners: Tensor, size: Sequence[int]) -> Tensor:
    """Parts [V, B, C, h, w] of images [B, C, H, W], h x w = ``size``, with these corners: top and left [2, V, B]."""
    b, c = images.shape[:2]
    rows, columns = (
        start[..., None] + torch.arange(n, device=images.device) for start, n in zip(corners, size, strict=True)
    )
    item = torch.arange(b, device=images.device)[:, None, None, None]
    channel = torch.arange(c, device=images.device)[:, None, None]
    return images[item, channel, rows[:, :, None, :, None], columns[:, :, None, None, :]]


def _neighbours(box: Tensor, flip: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """The two places in the image, and their weights, that each row and column of the enlarged crop lies between.

    Both [2, B, max(size), 2], rows first. A place outside of the image has weight 0, hence is black.
    """
    sizes = box.new_tensor(size).view(2, 1, 1)
    start, crop = box.T.reshape(2, 2, -1, 1)
    places = torch.arange(max(size), device=box.device) + 0.5
    mirrored = torch.where(flip[:, None], size[1] - places, places)
    x = torch.stack([places.expand_as(mirrored), mirrored]).mul_(crop / sizes).sub_(0.5).clamp_(min=0)
    near = x.int()
    share = x.sub_(near)
    at = torch.stack([near, (near + 1).minimum(crop - 1)], -1).add_(start[..., None])
    weights = torch.stack([1 - share, share], -1)
    if not ((start >= 0) & (start + crop <= sizes)).all():
        inside = at.clamp(min=0).minimum(sizes[..., None] - 1)
        at, weights = inside, weights.mul_(inside == at)
    return at, weights


def _blended(table: Tensor, pairs: Tensor, weights: Tensor) -> Tensor:
    """Weighted sums of two rows of the table each: rows are contiguous, and a bag is the fastest way to join them."""
    return F.embedding_bag(pairs.view(-1, 2), table, mode="sum", per_sample_weights=weights.reshape(-1, 2))


def cropped(images: Tensor, at: Tensor, box: Tensor, flip: Tensor, scratch: Tensor) -> Tensor:
    """Crops of the images number ``at`` [B], enlarged to their size, flipped, in [0, 1]: float32 [B, C, H, W].

    ``scratch`` [B, C, H, W] is room to work in.
    """
    b, c, h, w = images.shape
    if not flip.any() and (box == box.new_tensor([0, 0, h, w])).all():
        return images.index_select(0, at) * (1 / 255)
    (rows, columns), (row_weights, column_weights) = _neighbours(box, flip, (h, w))
    # First within the rows. For that columns are made contiguous, which is fastest while the images are bytes,
    table = scratch.view(b, w, c, h).copy_(images.permute(0, 3, 1, 2).contiguous()).view(b * w, c * h)
    pairs = at.int().view(-1, 1, 1) * w + columns[:, :w]
    turned = _blended(table, pairs, column_weights[:, :w] / 255).view(b, w, c, h)
    # and for the columns rows again, as int32: torch moves them about twice as fast as float32.
    table = scratch.view(torch.int32).copy_(turned.view(torch.int32).permute(0, 2, 3, 1)).view(torch.float32)
    del turned  # see _apply
    planes = torch.arange(0, b * c * h, h, dtype=torch.int32, device=images.device).view(b, c, 1, 1)
    pairs, weights = planes + rows[:, None, :h], row_weights[:, None, :h].expand(-1, c, -1, -1)
    return _blended(table.view(-1, w), pairs, weights).view(b, c, h, w)


def grey_of(x: Tensor) -> Tensor:
    """The lightness [B, P] of colours [B, C, P]; of one channel, itself."""
    if x.shape[1] == 1:
        return x[:, 0].clone()
    red, green, blue = x.unbind(1)
    return (red * GREY[0]).add_(green, alpha=GREY[1]).add_(blue, alpha=GREY[2])


def brighten(x: Tensor, factor: Tensor) -> None:
    """Blend [B, C, P] with black, in place: clamp(f x + (1 - f) 0, 0, 1) for the factors f [B, 1]."""
    x.mul_(factor[:, None]).clamp_(0, 1)


def contrast(x: Tensor, factor: Tensor) -> None:
    """Blend with the mean lightness of the image, in place."""
    # A single long row torch would divide between threads, and add it up in another order than one of several.
    means = x.mean(2, keepdim=True) if x[..., 0].numel() > 1 else x.repeat(2, 1, 1).mean(2, keepdim=True)[:1]
    mean = grey_of(means).mul_(1 - factor)
    x.mul_(factor[:, None]).add_(mean[:, None]).clamp_(0, 1)


def saturate(x: Tensor, factor: Tensor) -> None:
    """Blend with the lightness of the pixel, in place; one channel is left as it is."""
    if x.shape[1] == 3:
        torch.lerp(grey_of(x)[:, None], x, factor[:, None], out=x).clamp_(0, 1)


def shift_hue(x: Tensor, turns: Tensor) -> None:
    r"""Turn the hue in HSV by ``turns`` [B, 1], in place; one channel is left as it is.

    With R, G, B moved and scaled to a minimum of 0 and a maximum of 1, the hue in sixths of a turn is

        h = +-(1 + G + B - R),    the sign that of G - B,

    and a channel whose own hue is t away from it, |t| <= 6, has min + chroma * (clamp(||t| - 3|, 1, 2) - 1):
    the six cases of the textbook without a branch. Here h and t are multiplied by the chroma, which may be 0.
    """
    if x.shape[1] == 1:
        return
    red, green, blue = x.unbind(1)
    low, high = x.amin(1), x.amax(1)
    chroma = high - low
    base = low - chroma
    hue = (green + blue).sub_(red).sub_(base).copysign_(green - blue)
    away = turns - turns.new_tensor(CENTRES)
    away.sub_(away.round())  # at most half a turn
    torch.addcmul(hue[:, None], chroma[:, None], away[..., None], value=6, out=x)
    x.abs_().sub_(chroma[:, None], alpha=3).abs_().add_(base[:, None]).clamp_(low[:, None], high[:, None])


def leave(x: Tensor, factor: Tensor) -> None:
    """Samples without jitter stay as they are."""


PARTS = (brighten, contrast, saturate, shift_hue, leave)


def jittered(x: Tensor, spare: Tensor, factors: Tensor, counts: list[list[int]], moves: Tensor) -> Tensor:
    """The colour jitter of x [B, C, P], whose memory and that of ``spare`` is overwritten.

    For each of four turns: the number of samples that are due each part, and their ``factors`` [4, B] in this order.
    ``moves`` [3, B] is where they come from in the turn before; they are moved when they are due, to be in the caches.
    """
    for turn, lengths in enumerate(counts):
        if turn:
            x, spare, sources = spare, x, torch.split(moves[turn - 1], lengths)
        runs = zip(PARTS, torch.split(x, lengths), torch.split(factors[turn, :, None], lengths), strict=True)
        for k, (part, colours, factor) in enumerate(runs):
            if turn:
                torch.index_select(spare, 0, sources[k], out=colours)
            if len(colours):
                part(colours, factor)
    return x


def _apply(images: Tensor, parameters: Parameters, finish: Finish, out: Tensor) -> None:
    b, c, h, w = images.shape
    box, flip, jitter, factors, order, grey = parameters.fused
    # In every turn the samples are in the order of the part that they are due, those without jitter last: a part is
    # then a few operations on one slice. ``at`` says which sample is at each place, ``places`` where each sample is.
    turns = torch.where(jitter[:, None], order, PARTS.index(leave)).T.contiguous()
    at = turns.argsort()
    places = at.argsort()
    # One block of memory, used again and again: malloc hands back to the system what is free beyond twice the largest
    # block it has seen, and to have it mapped and cleared anew in every call costs more than the arithmetic. So the
    # block is larger than what is used of it, which costs nothing.
    scratch = torch.empty(6, b, c, h, w, device=images.device)[0]
    x = cropped(images, at[0], box[at[0]], flip[at[0]], scratch).view(b, c, h * w)
    if jitter.any():
        cells = turns + torch.arange(0, 4 * len(PARTS), len(PARTS), device=x.device)[:, None]
        counts = cells.flatten().bincount(minlength=4 * len(PARTS)).view(4, -1).tolist()
        moves = places[:-1].gather(1, at[1:])
        x = jittered(x, scratch.view(x.shape), factors.gather(1, order.long()).T.gather(1, at), counts, moves)
    if c == 3:
        which = places[-1].masked_select(grey)
        x.index_copy_(0, which, grey_of(x.index_select(0, which))[:, None].expand(-1, c, -1))
    scale, shift = x.new_tensor([finish.scale, finish.shift])[..., None]
    x.mul_(scale).add_(shift)
    if out.dtype == x.dtype and out.is_contiguous():
        torch.index_select(x, 0, places[-1], out=out.view(x.shape))
    else:
        out.copy_(x.index_select(0, places[-1]).view(out.shape))


def apply(images: Tensor, parameters: Parameters, finish: Finish) -> Tensor:
    """The views [B, C, H, W] that ``parameters`` make of ``images``, without blur and solarisation."""
    memory_format = torch.channels_last if finish.channels_last else torch.contiguous_format
    out = torch.empty(images.shape, dtype=finish.dtype, device=images.device, memory_format=memory_format)
    if not out.numel():
        return out
    with torch.inference_mode():  # a seventh of the time is saved; ``out`` stays an ordinary tensor
        step = max(1, CHUNK // images[0].numel())
        for start in range(0, len(images), step):
            chunk = slice(start, start + step)
            _apply(images[chunk], Parameters(*(x[chunk] for x in parameters)), finish, out[chunk])
    return out
