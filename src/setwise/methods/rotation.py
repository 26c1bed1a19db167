"""RotationNet (Gidaris, Singh and Komodakis 2018): by how much was the image turned?"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import setwise.register as register
from setwise.losses.parallel import Processes
from setwise.methods.method import Batch, Method, Parts
from setwise.views import Views

TURNS = 4  # by 0, 90, 180, 270 degrees: the ones that need no interpolation


def turned(images: Tensor) -> Tensor:
    """The images [B, C, N, N] turned by 0, 90, 180 and 270 degrees, one batch [4B, C, N, N]: first all of one turn."""
    if images.shape[-1] != images.shape[-2]:
        raise ValueError(
            f"expected square images, which stay in shape when they are turned, got {tuple(images.shape[-2:])}; "
            "crop or resize them"
        )
    return torch.cat([images.rot90(turn, (2, 3)) for turn in range(TURNS)])


class Rotation(Method):
    """Cross-entropy of the turn, of all four turns of one view of each image; BatchNorm sees them as one batch."""

    def __init__(self, encoder: nn.Module, features: int, views: Views) -> None:
        super().__init__()
        self.encoder, self.classifier, self.views = encoder, nn.Linear(features, TURNS), views

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """The loss, and the share of the turns that are told correctly."""
        images = turned(batch.view(self.views))
        if batch.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        logits = self.classifier(self.encoder(images))
        turns = torch.arange(TURNS, device=logits.device)[:, None].expand(TURNS, len(batch.images)).flatten()
        hits = (logits.argmax(1) == turns).float().mean()
        return {"loss": cross_entropy(logits, turns), "accuracy": hits}

    def share(self, peers: Processes) -> None:
        """Nothing to do: the loss is a mean over samples."""


@register.method("rotation", about="By how much was the image turned?")
def rotation(parts: Parts) -> Method:
    """RotationNet."""
    return Rotation(parts.encoder, parts.features, parts.views)
