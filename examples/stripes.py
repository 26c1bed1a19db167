"""Images of stripes, made when they are asked for: which way do they run?

    setwise pretrain stripes --use examples/stripes.py --data.noise 0.5

It shows a source of data of your own. The same call gives the same images, so that a run can be resumed.
"""

import math
from pathlib import Path

import torch

import setwise as sw


@sw.register.data("stripes", about="Stripes in some directions, under noise: made, not read.")
def stripes(root: Path, split: str, *, count: int = 512, size: int = 16, directions: int = 4, noise: float = 0.2):
    """``count`` grey images of ``size`` x ``size`` pixels; nothing is read from ``root``."""
    generator = torch.Generator().manual_seed(0 if split == "train" else 1)
    labels = torch.arange(count) % directions
    angle = (math.pi / directions * labels)[:, None, None]
    shift, width = torch.rand(2, count, 1, 1, generator=generator)
    y, x = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    waves = torch.sin((x * angle.cos() + y * angle.sin()) * (1 + width) + 2 * math.pi * shift)  # [N, H, W]
    grey = 0.5 + 0.25 * waves + noise * torch.randn(count, size, size, generator=generator)
    images = (255 * grey.clamp(0, 1)).to(torch.uint8)[:, None]
    names = tuple(f"{180 * i // directions} degrees" for i in range(directions))
    return sw.data.ImageSet("stripes", split, images, labels, names, mean=(0.5,), std=(0.25,))
