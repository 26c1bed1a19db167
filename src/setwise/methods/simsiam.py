"""SimSiam (Chen and He 2021): predict what you say of the other view yourself, and send no gradient there."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import cosine_similarity

import setwise.register as register
from setwise.encoders import normed_head
from setwise.losses.parallel import Processes
from setwise.methods.method import Batch, Method, Parts, by_item, by_view


@register.method(
    "simsiam", about="Predict your own embedding of the other view, without a gradient there.", takes=("terms",)
)
class SimSiam(Method):
    """The mean over both views of -cos(prediction of one view, embedding of the other).

    The head has three layers, the last with a BatchNorm without weights, and the predictor a narrow middle, as in the
    paper. ``predictor``: its width.
    """

    def __init__(self, parts: Parts, *, predictor: int = 64) -> None:
        super().__init__()
        hidden, out = parts.recipe.head.hidden, parts.recipe.head.out
        self.encoder, self.views, self.terms = parts.encoder, parts.views, parts.terms()
        self.head = normed_head((parts.features, hidden, hidden, out), norm_last=True)
        self.predictor = normed_head((out, predictor, out))

    def encode(self, batch: Batch) -> tuple[Tensor, ...]:
        """The features of both views, [B, 2, F]."""
        return (by_item(self.encoder(batch.view(self.views, count=2)), 2),)

    def compare(self, encoded: tuple[Tensor, ...], batch: Batch) -> dict[str, Tensor]:
        """The loss; terms are of the embeddings before the predictor."""
        h = by_view(encoded[0])
        z = self.head(h)
        other = z.detach().roll(len(batch.labels), 0)
        return self.terms(-cosine_similarity(self.predictor(z), other).mean(), z.chunk(2), h.chunk(2))

    def share(self, processes: Processes) -> None:
        """The loss is a mean over images; terms become those of all processes' views."""
        self.terms.share(processes)
