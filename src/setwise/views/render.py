"""Views from given parameters by plain torch operations; kernels/views.cu is the same in one launch.

The operations are torchvision's, on values in [0, 1] that are clamped after each part of the jitter and never rounded
to bytes on the way. A crop is at most as large as the image, so that enlarging it is bilinear with no need of
antialiasing. Sums and products are rounded one by one, never fused, and a sample's sums run over nothing but its own
pixels: its view is the same bits in whatever batch it is computed.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from setwise.kernels.views import Finish, Parameters

GREY = (0.2989, 0.587, 0.114)  # of red, green, blue: torchvision's
CENTRES = (0.0, 2.0, -2.0)  # hues of red, green, blue in sixths of a turn
CHUNK = 2**20  # values worked on at a time: a few such arrays fit into a cache


def _between(start: Tensor, crop: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Two neighbours in the image, and their weights, for each of ``size`` places of the enlarged crop: [2, B, size].

    A place outside of the image has weight 0, hence is black.
    """
    places = torch.arange(size, device=start.device) + 0.5
    x = (places * (crop / size)[:, None]).sub_(0.5).clamp_(min=0)
    last = crop[:, None] - 1
    near = x.int().minimum(last)
    share = x.sub_(near)
    at = torch.stack([near, (near + 1).minimum(last)]).add_(start[:, None])
    inside = (at >= 0) & (at < size)
    return at.clamp_(0, size - 1).long(), torch.stack([1 - share, share]).mul_(inside)


def cropped(images: Tensor, at: Tensor, box: Tensor, flip: Tensor, scratch: Tensor) -> Tensor:
    """Crops of the images number ``at`` [B], enlarged to their size, flipped, in [0, 1]: float32 [B, C, H, W].

    ``scratch`` [2, B, C, H, W] is room to work in.
    """
    b, c, h, w = images.shape
    if not flip.any() and (box == box.new_tensor([0, 0, h, w])).all():
        return images.index_select(0, at) * (1 / 255)
    top, left, height, width = box.unbind(1)
    rows, row_weights = _between(top, height, h)
    columns, column_weights = _between(left, width, w)
    columns, column_weights = (torch.where(flip[:, None], x.flip(-1), x) for x in (columns, column_weights))
    # Rows are contiguous, and a bag of two weighted rows is the fastest way to join them.
    planes = at[:, None] * c + torch.arange(c, device=images.device)
    bags = planes[..., None, None] * h + rows.movedim(0, -1)[:, None]  # [B, C, H, 2]
    weights = (row_weights / 255).movedim(0, -1)[:, None].expand_as(bags)
    table = scratch[0].copy_(images).view(-1, w)
    x = F.embedding_bag(bags.reshape(-1, 2), table, mode="sum", per_sample_weights=weights.reshape(-1, 2))
    x = x.view(b, c, h, w)
    for part, column, weight in zip(scratch, columns, column_weights, strict=True):
        torch.gather(x, 3, column[:, None, None].expand_as(x), out=part)
        part.mul_(weight[:, None, None])
    return torch.add(scratch[0], scratch[1], out=x)


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
    rows = x.flatten(0, 1)
    # A single long row torch would divide between threads, and add it up in another order than one of several.
    means = rows.mean(1) if len(rows) > 1 else rows.repeat(2, 1).mean(1)[:1]
    mean = grey_of(means.view(*x.shape[:2], 1)).mul_(1 - factor)
    x.mul_(factor[:, None]).add_(mean[:, None]).clamp_(0, 1)


def saturate(x: Tensor, factor: Tensor) -> None:
    """Blend with the lightness of the pixel, in place; one channel is left as it is."""
    if x.shape[1] == 3:
        grey = grey_of(x).mul_(1 - factor)
        x.mul_(factor[:, None]).add_(grey[:, None]).clamp_(0, 1)


def shift_hue(x: Tensor, turns: Tensor) -> None:
    r"""Turn the hue in HSV by ``turns`` [B, 1], in place; one channel is left as it is.

    With R, G, B moved and scaled to a minimum of 0 and a maximum of 1, the hue in sixths of a turn is

        h = +-(1 + G + B - R),    the sign that of G - B,

    and a channel whose own hue is t away from it, |t| <= 6, has min + chroma * (clamp(||t| - 3|, 1, 2) - 1):
    the six cases of the textbook without a branch.
    """
    if x.shape[1] == 1:
        return
    red, green, blue = x.unbind(1)
    low = torch.minimum(red, green).minimum(blue)
    chroma = torch.maximum(red, green).maximum(blue).sub_(low)
    # Without chroma every hue gives the same grey: 0 / tiny is as good as any.
    hue = (green + blue).sub_(red).sub_(low).div_(chroma.clamp(min=torch.finfo(x.dtype).tiny)).add_(1)
    hue = torch.copysign(hue, green - blue).add_(6 * turns)
    hue.sub_((hue * (1 / 6)).round_(), alpha=6)  # in [-3, 3]
    share = hue[:, None] - hue.new_tensor(CENTRES).view(3, 1)
    share.abs_().sub_(3).abs_().clamp_(1, 2).mul_(chroma[:, None])
    torch.add(share, low.sub_(chroma)[:, None], out=x)


PARTS = (brighten, contrast, saturate, shift_hue)


def _apply(images: Tensor, parameters: Parameters, finish: Finish, out: Tensor) -> None:
    b, c, h, w = images.shape
    # Samples are kept in the order of the part whose turn it is, those without jitter last: a part is then a few
    # operations on one slice. ``at`` says which sample is at each place.
    turns = torch.where(parameters.jitter[:, None], parameters.order, len(PARTS)).T.contiguous()
    orders = turns.argsort().unbind()
    at = orders[0]
    # One block of memory, used again and again: malloc hands back to the system what is free beyond twice the largest
    # block it has seen, and to have it mapped and cleared anew in every call costs more than the arithmetic.
    scratch = torch.empty(2, b, c, h, w, device=images.device)
    x = cropped(images, at, parameters.box[at], parameters.flip[at], scratch).view(b, c, h * w)
    spare = scratch[0].view(b, c, h * w)
    for turn, now in zip(turns, orders, strict=True) if parameters.jitter.any() else ():
        if now is not at:
            torch.index_select(x, 0, at.argsort()[now], out=spare)
            x, spare, at = spare, x, now
        counts = turn.bincount(minlength=len(PARTS) + 1).tolist()
        runs = zip(PARTS, torch.split(x, counts), torch.split(parameters.factors[at], counts), strict=False)
        for k, (part, colours, factors) in enumerate(runs):
            if len(colours):
                part(colours, factors[:, k, None])
    if c == 3:
        which = parameters.grey[at].nonzero()[:, 0]
        x.index_copy_(0, which, grey_of(x.index_select(0, which))[:, None].expand(-1, c, -1))
    scale, shift = (x.new_tensor(numbers).view(c, 1) for numbers in (finish.scale, finish.shift))
    x.mul_(scale).add_(shift)
    if out.dtype == x.dtype and out.is_contiguous():
        torch.index_select(x, 0, at.argsort(), out=out.view(b, c, h * w))
    else:
        out.copy_(x.index_select(0, at.argsort()).view(out.shape))


def apply(images: Tensor, parameters: Parameters, finish: Finish) -> Tensor:
    """The views [B, C, H, W] that ``parameters`` make of ``images``."""
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
