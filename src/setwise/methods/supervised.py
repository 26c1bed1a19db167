"""The supervised upper bound: a linear classifier on the encoder, trained together with it."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import setwise.register as register
from setwise.losses.parallel import Processes
from setwise.methods.method import Batch, Method, Parts
from setwise.views import Views


class Supervised(Method):
    """Cross-entropy of the labels."""

    def __init__(self, encoder: nn.Module, features: int, classes: int, views: Views) -> None:
        super().__init__()
        self.encoder, self.classifier, self.views = encoder, nn.Linear(features, classes), views

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """The loss, and the share of the batch that is classified correctly."""
        logits = self.classifier(self.encoder(batch.view(self.views)))
        hits = (logits.argmax(1) == batch.labels).float().mean()
        return {"loss": cross_entropy(logits, batch.labels), "accuracy": hits}

    def share(self, peers: Processes) -> None:
        """Nothing to do: the loss is a mean over samples."""


@register.method("supervised", about="A classifier on the labels: the upper bound.")
def supervised(parts: Parts) -> Method:
    """The upper bound."""
    return Supervised(parts.encoder, parts.features, parts.classes, parts.views)


@register.method("random", about="An encoder that is never trained: the lower bound.")
def untrained(parts: Parts) -> Method:
    """What ``supervised`` begins with."""
    if parts.recipe.epochs:
        raise ValueError(f"expected epochs = 0 for method 'random', which is never trained, got {parts.recipe.epochs}")
    return supervised(parts)
