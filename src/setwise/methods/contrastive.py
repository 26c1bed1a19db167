"""SimCLR and SparseCLR, with or without a set-level term: two views of each image, a head, a loss."""

from __future__ import annotations

from torch import Tensor, nn

import setwise.register as register
from setwise.losses.modules import SetContrastive, mean_over_pairs
from setwise.losses.parallel import Processes, distributed
from setwise.methods.method import Batch, Method, Parts
from setwise.views import Views


class Contrastive(Method):
    """Any ``loss(z_a, z_b)`` on the head's embeddings of ``count`` views; BatchNorm sees all of them as one batch.

    Of more than two views, the mean over all pairs of them.
    """

    def __init__(self, encoder: nn.Module, head: nn.Module, loss: nn.Module, views: Views, *, count: int = 2) -> None:
        super().__init__()
        if count < 2:
            raise ValueError(f"expected at least two views to contrast, got {count}; give --method.views 2")
        self.encoder, self.head, self.loss, self.views, self.count = encoder, head, loss, views, count

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """The loss, and its pairwise and set-level parts where it has them."""
        h = self.encoder(batch.view(self.views, count=self.count))
        z = self.head(h).chunk(self.count)
        if isinstance(self.loss, SetContrastive):
            return self.loss.terms(z, features=h.chunk(self.count) if self.loss.on == "features" else None)
        return {"loss": mean_over_pairs(self.loss, z)}

    def share(self, peers: Processes) -> None:
        """The loss becomes that of all processes' embeddings."""
        self.loss = distributed(self.loss, group=peers.group, gradient=peers.gradient)


@register.method(
    "contrastive",
    about="Two or more views of each image, an encoder, a head, the objective's loss: SimCLR, SparseCLR.",
    takes=("objective",),
)
def contrastive(parts: Parts, *, views: int = 2) -> Method:
    """SimCLR, SparseCLR and what else the objective says."""
    return Contrastive(parts.encoder, parts.head(), parts.loss(), parts.views, count=views)
