"""SimCLR and SparseCLR, with or without a set-level term: two views of each image, a head, a loss."""

from __future__ import annotations

from torch import Tensor

import setwise.register as register
from setwise.losses.combined import SetContrastive
from setwise.losses.modules import mean_over_pairs
from setwise.losses.parallel import Processes, distributed
from setwise.methods.method import Batch, Method, Parts, by_item, by_view


@register.method(
    "contrastive",
    about="Two or more views of each image, an encoder, a head, the objective's loss: SimCLR, SparseCLR.",
    takes=("objective",),
)
class Contrastive(Method):
    """Any ``loss(z_a, z_b)`` on the head's embeddings of the views; BatchNorm sees all of them as one batch.

    Of more than two views, the mean over all pairs of them.
    """

    def __init__(self, parts: Parts, *, views: int = 2) -> None:
        super().__init__()
        if views < 2:
            raise ValueError(f"expected at least two views to contrast, got {views}; give --method.views 2")
        self.encoder, self.head, self.loss = parts.encoder, parts.head(), parts.loss()
        self.views, self.count = parts.views, views

    def encode(self, batch: Batch) -> tuple[Tensor, ...]:
        """The encoder's features of every view, [B, V, F]."""
        return (by_item(self.encoder(batch.view(self.views, count=self.count)), self.count),)

    def compare(self, encoded: tuple[Tensor, ...], batch: Batch) -> dict[str, Tensor]:
        """The loss, and its pairwise and set-level parts where it has them. The head sees the whole batch."""
        h = by_view(encoded[0])
        z = self.head(h).chunk(self.count)
        if isinstance(self.loss, SetContrastive):
            return self.loss.terms(z, features=h.chunk(self.count) if self.loss.on == "features" else None)
        return {"loss": mean_over_pairs(self.loss, z)}

    def share(self, processes: Processes) -> None:
        """The loss becomes that of all processes' embeddings."""
        self.loss = distributed(self.loss, group=processes.group, gradient=processes.gradient)
