"""The usual loop, to compare with: torchvision's transforms in a DataLoader's workers, a network, plain NT-Xent."""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from setwise.bench.timing import milliseconds
from setwise.data import ImageSet
from setwise.encoders import create, projection_head
from setwise.recipe import Recipe

WARM_UP = 20  # steps, beside those whose batches the workers have ready


class PlainStep:
    """SimCLR's step as most people write it, with the recipe's encoder, head and rate: Adam, bf16 on a GPU."""

    def __init__(self, recipe: Recipe, data: ImageSet, device: torch.device) -> None:
        channels, height, width = data.images.shape[1:]
        encoder = create(recipe.encoder.name, channels=channels, image_size=(height, width), **recipe.encoder.options)
        features = int(encoder.features)  # type: ignore[arg-type]
        self.model = nn.Sequential(encoder, projection_head(features, recipe.head.hidden, recipe.head.out)).to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=recipe.optimizer["lr"])
        self.device = device

    def __call__(self, views: Tensor) -> None:
        """One step on first views and second views, [2B, C, H, W]."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            z = self.model(views.to(self.device, non_blocking=True))
        z = normalize(z.float())
        scores = z @ z.T / 0.5
        scores.fill_diagonal_(float("-inf"))
        targets = torch.arange(len(z), device=self.device).roll(len(z) // 2)
        self.optimizer.zero_grad()
        cross_entropy(scores, targets).backward()  # type: ignore[no-untyped-call,unused-ignore]
        self.optimizer.step()


def plain_network(recipe: Recipe, data: ImageSet, device: torch.device, seconds: float) -> float:
    """Milliseconds of such a step on views that are on the device already: nothing is loaded or transformed."""
    step = PlainStep(recipe, data, device)
    views = torch.randn(2 * recipe.batch, *data.images.shape[1:], device=device)
    return milliseconds(lambda: step(views), device, seconds)


def plain_loop(recipe: Recipe, data: ImageSet, device: torch.device, seconds: float, workers: int) -> float:
    """Mean milliseconds of such a step with a DataLoader whose workers make the recipe's views by torchvision."""
    from torch.utils.data import DataLoader, Dataset
    from torchvision import transforms  # type: ignore[import-not-found,unused-ignore]

    strength = recipe.views["brightness"]
    view = transforms.Compose(
        [
            transforms.ToPILImage(),
            transforms.RandomResizedCrop(tuple(data.images.shape[2:]), scale=(0.08, 1.0)),
            transforms.RandomHorizontalFlip(),
            transforms.RandomApply([transforms.ColorJitter(strength, strength, strength, strength / 4)], p=0.8),
            transforms.RandomGrayscale(0.2),
            transforms.ToTensor(),
            transforms.Normalize(data.mean, data.std),
        ]
    )

    class Pairs(Dataset[tuple[Tensor, Tensor]]):
        def __len__(self) -> int:
            return len(data)

        def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
            return view(data.images[index]), view(data.images[index])

    loader = DataLoader(
        Pairs(),
        batch_size=recipe.batch,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        pin_memory=device.type == "cuda",
        persistent_workers=workers > 0,
    )
    step = PlainStep(recipe, data, device)
    # Workers have batches ready before the first step: begin to measure when these are used up.
    warm_up = WARM_UP + 2 * workers if device.type == "cuda" else 1
    turn, began = 0, 0.0
    while True:
        for a, b in loader:
            if turn == warm_up:
                began = time.perf_counter()
            step(torch.cat([a, b]))
            if device.type == "cuda":
                torch.cuda.synchronize()
            turn += 1
            passed = time.perf_counter() - began
            if turn >= warm_up + 3 and passed >= seconds:
                # The mean, since batches come in bursts: most steps are short and few are long.
                return 1e3 * passed / (turn - warm_up)
