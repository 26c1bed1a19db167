"""BYOL (Grill et al. 2020): predict what a slowly moving copy of yourself says of another view. No negatives.

    setwise pretrain --use examples/byol.py --method my-byol --method.momentum 0.99

It shows a method of your own: modules that are not trained, an act after each step, and many processes:

    torchrun --nproc-per-node 2 -m setwise.cli pretrain --use examples/byol.py --method my-byol
"""

import copy
import math

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

import setwise as sw


@sw.register.method("my-byol", about="Predict a slowly moving copy of yourself.", takes=("views",))
class BYOL(sw.Method):
    """An encoder with its head, a predictor, and the target: a copy of encoder and head that no gradient reaches."""

    def __init__(self, parts: sw.Parts, *, momentum: float = 0.99) -> None:
        super().__init__()
        size = parts.recipe.head
        self.encoder, self.head, self.views, self.momentum = parts.encoder, parts.head(), parts.views, momentum
        self.predictor = sw.encoders.projection_head(size.out, size.hidden, size.out)
        self.target = copy.deepcopy(nn.Sequential(self.encoder, self.head)).requires_grad_(False)

    def forward(self, batch: sw.Batch) -> dict[str, Tensor]:
        """Two minus twice the cosine of each view's prediction and the other view's target."""
        x = batch.view(self.views, count=2)
        goal = self.target(x).roll(len(batch.images), 0)  # [2B, E], the other view's
        return {"loss": 2 - 2 * cosine_similarity(self.predictor(self.head(self.encoder(x))), goal).mean()}

    def after_step(self, step: Tensor, total: int) -> None:
        """Move the target towards the encoder, ever slower: the momentum rises to 1 along a cosine."""
        rate = (1 - self.momentum) * (1 + torch.cos(math.pi * step / total)) / 2
        online = (*self.encoder.parameters(), *self.head.parameters())
        with torch.no_grad():
            for slow, fast in zip(self.target.parameters(), online, strict=True):
                slow.add_((fast - slow) * rate)

    def share(self, processes: sw.Processes) -> None:
        """Nothing to do over many processes: the loss is a mean over images."""
