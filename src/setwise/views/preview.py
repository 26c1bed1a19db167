"""A contact sheet: images beside their views."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from setwise.checks import check_count
from setwise.data import load
from setwise.views.pipeline import Views, preset

if TYPE_CHECKING:
    from PIL.Image import Image

TILE = 96  # pixels that the longer side of an image takes at least
GAP = 4
BACKGROUND = 192  # neither black nor white, which views often are


def contact_sheet(images: Tensor, views: Views, *, columns: int = 8, seed: int = 0, epoch: int = 0) -> Image:
    """A row for each of ``images`` [B, C, H, W], uint8: itself, a gap, and ``columns`` of its views.

    Views are shown before normalisation, their pixels enlarged without smoothing. The samples are numbered from 0.
    """
    from PIL import Image

    check_count(columns, "columns")
    if not len(images):
        raise ValueError(f"expected at least one image, got shape {tuple(images.shape)}")
    samples = torch.arange(len(images), device=images.device)
    tiles = [images]
    for view in range(columns):
        shown = views(images, samples=samples, seed=seed, epoch=epoch, view=view)
        mean, std = (shown.new_tensor(x).view(1, -1, 1, 1) for x in (views.mean, views.std))
        tiles.append((shown * std + mean).mul_(255).round_().clamp_(0, 255).byte())
    sheet = torch.stack(tiles, 1).cpu()  # [B, 1 + columns, C, H, W]
    b, n, _, h, w = sheet.shape
    scale = max(1, -(-TILE // max(h, w)))
    sheet = sheet.expand(b, n, 3, h, w).repeat_interleave(scale, 3).repeat_interleave(scale, 4)
    h, w = scale * h, scale * w
    canvas = torch.full((3, GAP + b * (h + GAP), 3 * GAP + n * (w + GAP)), BACKGROUND, dtype=torch.uint8)
    for i in range(b):
        for j in range(n):
            top, left = GAP + i * (h + GAP), GAP + j * (w + GAP) + 2 * GAP * (j > 0)
            canvas[:, top : top + h, left : left + w] = sheet[i, j]
    return Image.fromarray(canvas.movedim(0, 2).contiguous().numpy())


def write_preview(name: str, root: Path | None, views: str, *, images: int, columns: int, seed: int, out: Path) -> Path:
    """Write a contact sheet of ``images`` random images of a data set to the PNG file ``out``, and return that."""
    check_count(images, "images")
    data = load(name, root)
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed), device="cpu")[:images]
    sheet = contact_sheet(data.read(order), preset(views, mean=data.mean, std=data.std), columns=columns, seed=seed)
    out.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(out, format="PNG")
    return out
