"""SimCLR and SparseCLR, with or without a set-level term: two views of each image, a head, a loss."""

from __future__ import annotations

from torch import Tensor, nn

from setwise.losses.modules import SetContrastive
from setwise.losses.parallel import Peers, distributed
from setwise.methods.method import Batch, Method
from setwise.views import Views


class Contrastive(Method):
    """Any ``loss(z_a, z_b)`` on the head's embeddings of two views; BatchNorm sees both views as one batch."""

    def __init__(self, encoder: nn.Module, head: nn.Module, loss: nn.Module, views: Views) -> None:
        super().__init__()
        self.encoder, self.head, self.loss, self.views = encoder, head, loss, views

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """The loss, and its pairwise and set-level parts where it has them."""
        h = self.encoder(batch.pair(self.views))
        z_a, z_b = self.head(h).chunk(2)
        if isinstance(self.loss, SetContrastive):
            h_a, h_b = h.chunk(2)
            return self.loss.terms(z_a, z_b, (h_a, h_b) if self.loss.on == "features" else None)
        return {"loss": self.loss(z_a, z_b)}

    def share(self, peers: Peers) -> None:
        """The loss becomes that of all processes' embeddings."""
        self.loss = distributed(self.loss, group=peers.group, gradient=peers.gradient)
