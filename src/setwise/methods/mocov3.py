"""MoCo v3 (Chen, Xie and He 2021): find the other view among all of the batch, as a slowly moving copy sees them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import setwise.register as register
from setwise.encoders import normed_head
from setwise.losses.modules import InfoNCE
from setwise.losses.parallel import Processes, distributed
from setwise.methods.byol import BYOL
from setwise.methods.method import Parts


@register.method(
    "mocov3", about="InfoNCE between predictions and a slowly moving copy's embeddings of the batch.", takes=("terms",)
)
class MoCoV3(BYOL):
    """2 · temperature · InfoNCE(predictions of one view, the copy's embeddings of the other), the mean over both ways.

    BYOL with negatives. The head ends in a BatchNorm without weights, as in the paper; there is no queue.
    """

    def __init__(self, parts: Parts, *, momentum: float = 0.99, predictor: int = 256, temperature: float = 0.2) -> None:
        super().__init__(parts, momentum=momentum, predictor=predictor)
        self.contrast, self.temperature = InfoNCE(temperature), temperature

    def heads(self, parts: Parts, predictor: int) -> tuple[nn.Module, nn.Module]:
        """The head, and the predictor behind it."""
        hidden, out = parts.recipe.head.hidden, parts.recipe.head.out
        head = normed_head((parts.features, hidden, out), norm_last=True)
        return head, normed_head((out, predictor, out))

    def own(self, predictions: Tensor, targets: Tensor) -> Tensor:
        """The loss of the predictions [2B, E] of both views."""
        both = zip(predictions.chunk(2), targets.chunk(2), strict=True)
        return 2 * self.temperature * torch.stack([self.contrast(q, k) for q, k in both]).mean()

    def share(self, processes: Processes) -> None:
        """Predictions look for their targets among those of all processes."""
        super().share(processes)
        self.contrast = distributed(self.contrast, group=processes.group, gradient=processes.gradient)
