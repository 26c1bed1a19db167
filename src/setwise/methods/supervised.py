"""The supervised upper bound: a linear classifier on the encoder, trained together with it."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import setwise.register as register
from setwise.losses.parallel import Processes
from setwise.methods.method import Batch, Method, Parts


@register.method("supervised", about="A classifier on the labels: the upper bound.")
class Supervised(Method):
    """Cross-entropy of the labels."""

    def __init__(self, parts: Parts) -> None:
        super().__init__()
        self.encoder, self.views = parts.encoder, parts.views
        self.classifier = nn.Linear(parts.features, parts.classes)

    def encode(self, batch: Batch) -> tuple[Tensor, ...]:
        """The classifier's scores of one view of each image."""
        return (self.classifier(self.encoder(batch.view(self.views))),)

    def compare(self, encoded: tuple[Tensor, ...], batch: Batch) -> dict[str, Tensor]:
        """The loss, and the share of the batch that is classified correctly."""
        (logits,) = encoded
        hits = (logits.argmax(1) == batch.labels).float().mean()
        return {"loss": cross_entropy(logits, batch.labels), "accuracy": hits}

    def share(self, processes: Processes) -> None:
        """Nothing to do: the loss is a mean over samples."""


@register.method("random", about="An encoder that is never trained: the lower bound.")
def random(parts: Parts) -> Method:
    """What ``supervised`` begins with."""
    if parts.recipe.epochs:
        raise ValueError(f"expected epochs = 0 for method 'random', which is never trained, got {parts.recipe.epochs}")
    return Supervised(parts)
