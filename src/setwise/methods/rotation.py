"""RotationNet (Gidaris, Singh and Komodakis 2018): by how much was the image turned?"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import setwise.register as register
from setwise.losses.parallel import Processes
from setwise.methods.method import Batch, Method, Parts

TURNS = 4  # by 0, 90, 180, 270 degrees: the ones that need no interpolation


def turned(images: Tensor) -> Tensor:
    """The images [B, C, N, N] turned by 0, 90, 180 and 270 degrees, one batch [4B, C, N, N]: first all of one turn."""
    if images.shape[-1] != images.shape[-2]:
        raise ValueError(
            f"expected square images, which stay in shape when they are turned, got {tuple(images.shape[-2:])}; "
            "crop or resize them"
        )
    return torch.cat([images.rot90(turn, (2, 3)) for turn in range(TURNS)])


@register.method("rotation", about="By how much was the image turned?")
class Rotation(Method):
    """Cross-entropy of the turn, of all four turns of one view of each image; BatchNorm sees them as one batch."""

    def __init__(self, parts: Parts) -> None:
        super().__init__()
        self.encoder, self.classifier, self.views = parts.encoder, nn.Linear(parts.features, TURNS), parts.views

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """The loss, and the share of turns that are right."""
        images = turned(batch.view(self.views))
        if batch.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        logits = self.classifier(self.encoder(images))
        turns = torch.arange(TURNS, device=logits.device)[:, None].expand(TURNS, len(batch.images)).flatten()
        hits = (logits.argmax(1) == turns).float().mean()
        return {"loss": cross_entropy(logits, turns), "accuracy": hits}

    def share(self, processes: Processes) -> None:
        """Nothing to do: the loss is a mean over samples."""
