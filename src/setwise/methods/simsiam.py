"""SimSiam (Chen and He 2021): predict your own embedding of the other view, which gets no gradient.

With more than two views it is FastSiam (Pototzky et al. 2022): predict the mean of the others.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import cosine_similarity

import setwise.register as register
from setwise.encoders import normed_head
from setwise.losses.parallel import Processes
from setwise.methods.method import Batch, Method, Parts, by_item, by_view, check_views, mean_of_others


@register.method(
    "simsiam", about="Predict your own embedding of the other view, without a gradient there.", takes=("terms",)
)
class SimSiam(Method):
    """The mean over all views of -cos(prediction of one view, mean embedding of the others).

    The head has three layers, the last with a BatchNorm without weights, and the predictor a narrow middle, as in the
    paper. ``predictor``: its width. ``views``: of each image.
    """

    def __init__(self, parts: Parts, *, predictor: int = 64, views: int = 2) -> None:
        super().__init__()
        check_views(views)
        self.count = views
        hidden, out = parts.recipe.head.hidden, parts.recipe.head.out
        self.encoder, self.views, self.terms = parts.encoder, parts.views, parts.terms()
        self.head = normed_head((parts.features, hidden, hidden, out), norm_last=True)
        self.predictor = normed_head((out, predictor, out))

    def encode(self, batch: Batch) -> tuple[Tensor, ...]:
        """The features of all views, [B, V, F]."""
        return (by_item(self.encoder(batch.view(self.views, count=self.count)), self.count),)

    def compare(self, encoded: tuple[Tensor, ...], batch: Batch) -> dict[str, Tensor]:
        """The loss; terms are of the embeddings before the predictor."""
        h = by_view(encoded[0])
        z = self.head(h)
        others = mean_of_others(z.detach(), self.count)
        own = -cosine_similarity(self.predictor(z), others).mean()
        return self.terms(own, z.chunk(self.count), h.chunk(self.count))

    def share(self, processes: Processes) -> None:
        """The loss is a mean over images; terms become those of all processes' views."""
        self.terms.share(processes)
