"""BYOL (Grill et al. 2020): predict a slowly moving copy's embedding of another view. No negatives."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

import setwise.register as register
from setwise.encoders import projection_head
from setwise.losses.parallel import Processes
from setwise.methods.method import Batch, Method, Parts, by_item, by_view, check_views, mean_of_others
from setwise.methods.momentum import check_momentum, follow, frozen_copy


def regression(predictions: Tensor, targets: Tensor) -> Tensor:
    """2 - 2 · cos(p, t), the mean over rows: the squared distance of unit vectors. No gradient reaches the targets."""
    return 2 - 2 * cosine_similarity(predictions, targets.detach()).mean()


@register.method(
    "byol", about="Predict what a slowly moving copy says of the other view. No negatives.", takes=("terms",)
)
class BYOL(Method):
    """The mean over all views of 2 - 2 · cos(prediction of one view, the copy's mean embedding of the others).

    ``momentum``: of the copy, at the start; it rises to 1. ``predictor``: the width of its hidden layer. ``views``: of
    each image.
    """

    def __init__(self, parts: Parts, *, momentum: float = 0.99, predictor: int = 256, views: int = 2) -> None:
        super().__init__()
        check_momentum(momentum)
        check_views(views)
        self.count = views
        self.encoder, self.views, self.terms = parts.encoder, parts.views, parts.terms()
        self.head, self.predictor = self.heads(parts, predictor)
        self.momentum = momentum
        self.target_encoder, self.target_head = frozen_copy(self.encoder), frozen_copy(self.head)

    def heads(self, parts: Parts, predictor: int) -> tuple[nn.Module, nn.Module]:
        """The head, and the predictor behind it."""
        out = parts.recipe.head.out
        return parts.head(), projection_head(out, predictor, out)

    def encode(self, batch: Batch) -> tuple[Tensor, ...]:
        """The features of all views, and the copy's, [B, V, F] each."""
        x = batch.view(self.views, count=self.count)
        with torch.no_grad():
            targets = self.target_encoder(x)
        return by_item(self.encoder(x), self.count), by_item(targets, self.count)

    def compare(self, encoded: tuple[Tensor, ...], batch: Batch) -> dict[str, Tensor]:
        """The loss; terms are of the embeddings before the predictor."""
        h, targets = map(by_view, encoded)
        z = self.head(h)
        with torch.no_grad():
            targets = mean_of_others(self.target_head(targets), self.count)
        return self.terms(self.own(self.predictor(z), targets), z.chunk(self.count), h.chunk(self.count))

    def own(self, predictions: Tensor, targets: Tensor) -> Tensor:
        """The loss of the predictions [V · B, E] of all views."""
        return regression(predictions, targets)

    def after_step(self, step: Tensor, total: int) -> None:
        """Move the copy towards the encoder and its head."""
        for slow, fast in ((self.target_encoder, self.encoder), (self.target_head, self.head)):
            follow(slow, fast, momentum=self.momentum, step=step, total=total)

    def share(self, processes: Processes) -> None:
        """The loss is a mean over images; terms become those of all processes' views."""
        self.terms.share(processes)
