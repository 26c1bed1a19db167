"""Instance matching: embeddings of two views of the same identities, such that the best assignment is the true one."""

from __future__ import annotations

from typing import Literal, cast

import torch
from torch import Tensor, nn

import setwise.register as register
from setwise.data import MatchedSet
from setwise.losses.combined import SetContrastive
from setwise.losses.parallel import Processes, distributed
from setwise.methods.method import Batch, Method, Parts
from setwise.recipe import Recipe
from setwise.similarity import normalize
from setwise.views.draw import below
from setwise.views.philox import words_of

# The choice of a shot takes a view number that no run counts up to; deepinfomax's draws begin at 2^27.
SHOT_VIEW = 2**26


def draw_shots(data: MatchedSet, rows: Tensor, *, seed: Tensor, epoch: Tensor) -> tuple[Tensor, Tensor]:
    """One random shot of each view of the identities ``rows`` [B]: places of images [2B], and keys of their own [2B].

    First all of view A, then all of view B. The choice depends on (seed, epoch, identity) alone; ``epoch`` counts
    passes where an epoch has several.
    """
    words = words_of(rows, seed, epoch, 16 * SHOT_VIEW)[:2]  # [2, B]
    shots = [side[rows] for side in (data.shots_a, data.shots_b)]
    chosen = [
        side.gather(1, below(word, (side >= 0).sum(1))[:, None])[:, 0] for side, word in zip(shots, words, strict=True)
    ]
    return torch.cat(chosen), torch.cat([2 * rows, 2 * rows + 1])


def passes_of_an_epoch(recipe: Recipe, data: object) -> int:
    """How often an epoch passes over the items: once, or as often as an identity has shots in a view.

    That is the mean over identities and both views, rounded: an epoch then draws about as many shots as there are.
    """
    if not isinstance(data, MatchedSet) or recipe.method.options.get("passes_over") != "shots":
        return 1
    shots = sum(int((side >= 0).sum()) for side in (data.shots_a, data.shots_b))
    return int(shots / (2 * len(data)) + 0.5)


@register.method(
    "matching", about="Two views of the same identities, one-to-one: instance matching.", takes=("objective", "matched")
)
class Matching(Method):
    """Any ``loss(z_a, z_b)`` on unit vectors: encoder, one linear layer, length 1.

    Each step takes one random shot of each view of its identities. An epoch passes once over the identities; with
    ``passes_over="shots"`` as often as they have shots in a view, see ``passes_of_an_epoch``.
    """

    def __init__(self, parts: Parts, *, passes_over: Literal["identities", "shots"] = "identities") -> None:
        super().__init__()
        self.encoder, self.project = parts.encoder, nn.Linear(parts.features, parts.recipe.head.out)
        self.loss, self.views = parts.loss(), parts.views

    def embed(self, images: Tensor) -> Tensor:
        """Unit vectors [B, E], float32 at least, of normalised images."""
        z = self.project(self.encoder(images))
        return normalize(z if z.dtype == torch.float64 else z.float())

    def encode(self, batch: Batch) -> tuple[Tensor, ...]:
        """The unit vectors of both views; ``batch`` is first all A, then all B."""
        return self.embed(batch.view(self.views)).chunk(2)

    def compare(self, encoded: tuple[Tensor, ...], batch: Batch) -> dict[str, Tensor]:
        """The loss, and its pairwise and set-level parts where it has them."""
        z_a, z_b = encoded
        if isinstance(self.loss, SetContrastive):
            return self.loss.terms(z_a, z_b)
        return {"loss": cast(Tensor, self.loss(z_a, z_b))}

    def share(self, processes: Processes) -> None:
        """The loss becomes that of all processes' embeddings."""
        self.loss = distributed(self.loss, group=processes.group, gradient=processes.gradient)
