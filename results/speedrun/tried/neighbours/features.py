"""Ten neighbours by other features of the runs in this folder, on their validation images: made features.csv.

    python features.py RUN DATA

RUN is the folder of a run by `setwise speedrun`, DATA that of the unpacked data sets. The network is `quick`, whose
maps "stages" gives; "max" and "mean" are over their places, "flip" adds the features of the mirrored image.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import normalize

from setwise.data import load
from setwise.evaluation.knn import knn_accuracy
from setwise.runs.pretraining import encoder_of, hold_out
from setwise.training import checkpoint

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
folder, root = (Path(word) for word in sys.argv[1:])
encoder = encoder_of(checkpoint.load(folder), folder).to(device).eval()
whole = load("cifar10", root, split="train")
sets = hold_out(whole, len(whole) // 10, seed=0, kind="validation")
mean, std = (torch.tensor(x, device=device).view(1, 3, 1, 1) for x in (sets[0].mean, sets[0].std))


def batches(images: Tensor) -> Iterator[Tensor]:
    """Normalised images."""
    for x in images.split(1000):
        yield (x.to(device).float() / 255 - mean) / std


@torch.no_grad()
def features(of: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """Of the training and of the validation images."""
    return [torch.cat([of(x) for x in batches(one.images)]) for one in sets]


def show(name: str, found: list[Tensor]) -> None:
    """A line: the share that ten neighbours name rightly."""
    given = [x for f, one in zip(found, sets, strict=True) for x in (f.float(), one.labels.to(device))]
    accuracy = knn_accuracy(*given, classes=10, k=10, temperature=None)[10]
    print(f'"{folder.parent.name} {folder.name}","{name}",{100 * accuracy:.2f}', flush=True)


def maps(x: Tensor, stages: int = 3) -> Tensor:
    """[B, C, H, W] behind so many stages."""
    y: Tensor = encoder.stages[:stages](encoder.stem(x))  # type: ignore[operator,index]
    return y


def power(k: int) -> Callable[[Tensor], Tensor]:
    """The mean of the k-th powers, and its k-th root."""
    return lambda x: maps(x).clamp(min=0).pow(k).mean((2, 3)).pow(1 / k)


plain = features(lambda x: maps(x).mean((2, 3)))
show("mean", plain)
centre, deviation = plain[0].mean(0), plain[0].std(0)
show("mean, centred", [x - centre for x in plain])
show("mean, standardised", [(x - centre) / deviation for x in plain])
least = plain[0].amin(0)
show("root of the mean", [(x - least).clamp(min=0).sqrt() for x in plain])
show("mean, flip", features(lambda x: maps(x).mean((2, 3)) + maps(x.flip(3)).mean((2, 3))))
show("mean of unit places", features(lambda x: normalize(maps(x), dim=1).mean((2, 3))))
show("mean without the border", features(lambda x: maps(x)[:, :, 1:-1, 1:-1].mean((2, 3))))
both = [(1, 0.5), (2, 1.0)]
two = features(lambda x: torch.cat([w * normalize(maps(x, k + 1).mean((2, 3))) for k, w in both], 1))
show("mean of two stages", two)
for k in (2, 4, 8):
    show(f"power mean of {k}", features(power(k)))
show("max", features(lambda x: maps(x).amax((2, 3))))
show("max, flip", features(lambda x: maps(x).amax((2, 3)) + maps(x.flip(3)).amax((2, 3))))
