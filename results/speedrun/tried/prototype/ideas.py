"""What the runs in this folder registered, as it was: a network, and small parts of an image as its views.

Since then the package has them: the encoder "quick", `views.crop = "part"` and `method.against = "mean"`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

import setwise as sw
from setwise.methods.contrastive import Contrastive
from setwise.methods.many_patches import ManyPatches
from setwise.methods.method import Batch, Parts, by_item


class Group(nn.Module):
    """Convolutions, of which the first one's output is halved."""

    def __init__(self, channels_in: int, channels: int, depth: int, act: nn.Module, skip: bool) -> None:
        super().__init__()
        widths = [channels_in, *[channels] * depth]
        self.convs = nn.ModuleList([nn.Conv2d(a, channels, 3, 1, 1, bias=False) for a in widths[:-1]])
        self.norms = nn.ModuleList([nn.BatchNorm2d(channels) for _ in range(depth)])
        self.pool, self.act, self.skip = nn.MaxPool2d(2), act, skip

    def forward(self, x: Tensor) -> Tensor:
        """[B, C_in, H, W] → [B, C, H/2, W/2]."""
        x = self.act(self.norms[0](self.pool(self.convs[0](x))))
        first = x
        for i in range(1, len(self.convs)):
            y = self.norms[i](self.convs[i](x))
            if self.skip and i == len(self.convs) - 1:
                y = y + first
            x = self.act(y)
        return x


class Quick(nn.Module):
    """Three groups; with last="wide" a further layer, which the features come from."""

    least = 8

    def __init__(self, channels: int, *, a: int, b: int, c: int, depth: int, stem: int, last: str, wide: int) -> None:
        super().__init__()
        self.act = nn.GELU()
        self.stem = nn.Conv2d(channels, stem, 3, 1, 1, bias=False)
        self.norm = nn.BatchNorm2d(stem)
        pairs = ((stem, a), (a, b), (b, c))
        self.groups = nn.Sequential(*[Group(i, o, depth, self.act, depth > 2) for i, o in pairs])
        self.features = wide if last == "wide" else c
        self.last: nn.Module = nn.BatchNorm1d(c, affine=False) if last == "norm" else nn.Identity()
        if last == "wide":
            self.last = nn.Sequential(nn.Linear(c, wide, bias=False), nn.BatchNorm1d(wide), nn.ReLU())
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Features of images."""
        return self.last(self.groups(self.act(self.norm(self.stem(x)))).mean((2, 3)))


@sw.register.encoder("quick", about="Three groups of wide convolutions.")
def quick(
    channels: int,
    *,
    a: int = 128,
    b: int = 384,
    c: int = 512,
    depth: int = 3,
    stem: int = 32,
    act: Literal["relu", "gelu"] = "gelu",
    last: Literal["none", "norm", "wide"] = "none",
    wide: int = 2048,
    pools: int = 3,
) -> nn.Module:
    """The network; ``act`` and ``pools`` were never changed."""
    return Quick(channels, a=a, b=b, c=c, depth=depth, stem=stem, last=last, wide=wide)


def crops(batch: Batch, views: sw.views.Views, count: int, side: int) -> Tensor:
    """[count · B, C, side, side]: pixels as they are, then flip and colours."""
    x, (b, c, h, w) = batch.images, batch.images.shape
    top = torch.randint(0, h - side + 1, (count, b), device=x.device)
    left = torch.randint(0, w - side + 1, (count, b), device=x.device)
    k = torch.arange(side, device=x.device)
    rows = (top[..., None] + k)[:, :, None, :, None]
    cols = (left[..., None] + k)[:, :, None, None, :]
    item = torch.arange(b, device=x.device)[None, :, None, None, None]
    channel = torch.arange(c, device=x.device)[None, None, :, None, None]
    cut = x[item, channel, rows, cols].flatten(0, 1)
    keys = (torch.arange(count, device=x.device)[:, None] * 1_000_003 + batch.samples).flatten()
    return replace(batch, images=cut, samples=keys, others=None).view(
        replace(views, crop="none", size=None, early=(), until=()), count=1
    )


@sw.register.method("native", about="Many native crops agree with their mean.", takes=("terms",))
class Native(ManyPatches):
    """EMP-SSL's loss; ``big`` and ``big_side`` were never used."""

    def __init__(
        self,
        parts: Parts,
        *,
        patches: int = 20,
        invariance: float = 200.0,
        distortion: float = 0.2,
        side: int = 16,
        big: int = 0,
        big_side: int = 32,
    ) -> None:
        super().__init__(parts, patches=patches, invariance=invariance, distortion=distortion)
        self.side = side

    def encode(self, batch: Batch) -> tuple[Tensor, ...]:
        """The features of every crop."""
        return (by_item(self.encoder(crops(batch, self.views, self.patches, self.side)), self.patches),)


@sw.register.method("native-xent", about="NT-Xent of each native crop against the others' mean.", takes=("objective",))
class NativeContrast(Contrastive):
    """``pairs`` was never used."""

    def __init__(
        self, parts: Parts, *, patches: int = 8, side: int = 16, pairs: Literal["mean", "all"] = "mean"
    ) -> None:
        super().__init__(parts, views=2)
        self.patches, self.side = patches, side

    def encode(self, batch: Batch) -> tuple[Tensor, ...]:
        """The features of every crop."""
        return (by_item(self.encoder(crops(batch, self.views, self.patches, self.side)), self.patches),)

    def compare(self, encoded: tuple[Tensor, ...], batch: Batch) -> dict[str, Tensor]:
        """The mean over crops."""
        h = encoded[0].transpose(0, 1).flatten(0, 1)
        z = normalize(self.head(h).float(), dim=1).unflatten(0, (self.patches, -1))
        total = z.sum(0)
        return {"loss": torch.stack([self.loss(one, total - one) for one in z]).mean()}
