"""SwAV (Caron et al. 2020): predict the cluster of another view, where all clusters are filled alike."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, normalize

import setwise.register as register
from setwise.checks import check_number
from setwise.losses.parallel import Processes
from setwise.methods.crops import Crops, swapped_cross_entropy
from setwise.methods.method import Batch, Method, Parts


@torch.no_grad()
def sinkhorn_codes(scores: Tensor, processes: Processes, *, epsilon: float, iterations: int) -> Tensor:
    """Soft assignments [N, K] of rows to clusters, each cluster of an equal share: Sinkhorn-Knopp of exp(scores / ε).

    In the log domain. Clusters are filled alike over the rows of all processes; rows come last, so each sums to 1.
    """
    logs = scores / epsilon
    for _ in range(iterations):
        logs = logs - processes.gather(logs.logsumexp(0)[None]).logsumexp(0)
        logs = logs - logs.logsumexp(1, keepdim=True)
    return logs.exp()


@register.method("swav", about="Predict the other view's cluster; all clusters are filled alike.", takes=("terms",))
class SwAV(Method):
    """Cross-entropy of each view's clusters, by softmax, and the codes of the other large views, by Sinkhorn-Knopp.

    ``prototypes``: directions that embeddings are compared with, one for each cluster, of length 1; not trained for the
    first ``freeze`` epochs. ``temperature`` is the softmax's, ``epsilon`` and ``iterations`` are Sinkhorn-Knopp's.
    ``small`` views of ``small_area`` of an image, in ``small_side`` of its pixels each way, predict too.
    """

    processes = Processes()

    def __init__(
        self,
        parts: Parts,
        *,
        prototypes: int = 1000,
        temperature: float = 0.1,
        epsilon: float = 0.05,
        iterations: int = 3,
        freeze: int = 1,
        views: int = 2,
        small: int = 0,
        small_side: float = 0.5,
        small_area: tuple[float, float] = (0.05, 0.4),
    ) -> None:
        super().__init__()
        for name, value in (("temperature", temperature), ("epsilon", epsilon)):
            check_number(value, name, above=0)
        for name, value in (("prototypes", prototypes), ("iterations", iterations)):
            check_number(value, name, least=1)
        self.crops = Crops(parts, views=views, small=small, small_side=small_side, small_area=small_area)
        self.encoder, self.head, self.views, self.terms = parts.encoder, parts.head(), parts.views, parts.terms()
        self.prototypes = nn.Linear(parts.recipe.head.out, prototypes, bias=False)
        self.prototypes.weight.data.copy_(normalize(self.prototypes.weight.data))
        self.temperature, self.epsilon, self.iterations, self.freeze = temperature, epsilon, iterations, freeze

    def encode(self, batch: Batch) -> tuple[Tensor, ...]:
        """The features of every view."""
        return self.crops.encode(self.encoder, self.crops.images(batch))

    def compare(self, encoded: tuple[Tensor, ...], batch: Batch) -> dict[str, Tensor]:
        """The loss; terms are of the embeddings of the large views."""
        h, crops = self.crops.joined(encoded), self.crops
        z = self.head(h)
        with torch.autocast(z.device.type, enabled=False):
            weight = torch.where(batch.epoch >= self.freeze, self.prototypes.weight, self.prototypes.weight.detach())
            scores = linear(normalize(z.to(weight.dtype)), weight).chunk(crops.total)
            codes = [
                sinkhorn_codes(one, self.processes, epsilon=self.epsilon, iterations=self.iterations)
                for one in scores[: crops.count]
            ]
            own = swapped_cross_entropy(codes, [(one / self.temperature).log_softmax(1) for one in scores])
        large = [x.chunk(crops.total)[: crops.count] for x in (z, h)]
        return self.terms(own, *large)

    def after_step(self, step: Tensor, total: int) -> None:
        """Prototypes stay of length 1."""
        self.prototypes.weight.copy_(normalize(self.prototypes.weight))

    def share(self, processes: Processes) -> None:
        """Clusters are filled by the images of all processes."""
        self.processes = processes
        self.terms.share(processes)
