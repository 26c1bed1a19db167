"""Many patches (EMP-SSL, Tong et al. 2023): small crops of an image agree with their mean, images fill the space."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

import setwise.register as register
from setwise.checks import check_number
from setwise.encoders import normed_head
from setwise.losses.gram import coding_rates
from setwise.losses.parallel import Processes
from setwise.methods.method import Batch, Method, Parts, by_item, by_view


@register.method(
    "many-patches",
    about="Many small crops of each image agree with their mean: EMP-SSL, for few epochs.",
    takes=("terms",),
)
class ManyPatches(Method):
    """invariance · (1 - mean cos(z, mean of the image's patches)) - mean coding rate of each patch number.

    ``patches``: crops of each image, drawn as the recipe's views are: ``--views patches`` is the paper's.
    ``distortion``: ε² of the coding rate. The head has three layers; its embeddings have length 1.
    Terms see the first two patches: all are drawn alike.
    """

    processes: Processes | None = None  # of many, if there are

    def __init__(self, parts: Parts, *, patches: int = 20, invariance: float = 200.0, distortion: float = 0.2) -> None:
        super().__init__()
        if patches < 2:
            raise ValueError(f"expected at least two patches of each image, got {patches}; give --method.patches 20")
        check_number(invariance, "invariance", least=0)
        check_number(distortion, "distortion", above=0)
        hidden, out = parts.recipe.head.hidden, parts.recipe.head.out
        self.encoder, self.views, self.terms = parts.encoder, parts.views, parts.terms()
        self.head = normed_head((parts.features, hidden, hidden, out))
        self.patches, self.invariance, self.distortion = patches, invariance, distortion

    def encode(self, batch: Batch) -> tuple[Tensor, ...]:
        """The features of every patch, [B, V, F]."""
        return (by_item(self.encoder(batch.view(self.views, count=self.patches)), self.patches),)

    def compare(self, encoded: tuple[Tensor, ...], batch: Batch) -> dict[str, Tensor]:
        """The loss, the patches' mean cosine to their mean, and the coding rate."""
        h = by_view(encoded[0])
        z = torch.unflatten(self.head(h), 0, (self.patches, -1))  # [V, B, E]
        with torch.autocast(z.device.type, enabled=False):
            z = normalize(z.to(torch.promote_types(z.dtype, torch.float32)), dim=2)
            cosine = cosine_similarity(z, z.mean(0, keepdim=True), dim=2).mean()
            rate = coding_rates(z, distortion=self.distortion, peers=self.processes).mean()
        own = self.invariance * (1 - cosine) - rate
        return self.terms(own, z[:2].unbind(), h.chunk(self.patches)[:2]) | {"cosine": cosine, "coding rate": rate}

    def share(self, processes: Processes) -> None:
        """The coding rate is of all processes' patches, the cosines of each one's own."""
        self.processes = processes
        self.terms.share(processes)
