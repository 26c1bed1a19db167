"""Our losses in sentence-transformers: a loss for ``SentenceTransformerTrainer``, with hard negatives and caching."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from setwise.checks import check_count, check_loss, imported, see
from setwise.losses.combined import SetContrastive
from setwise.losses.modules import InfoNCE

PAGE = see("how-to/other-libraries#sentence-transformers")
theirs = imported("sentence_transformers.base.losses", "'sentence-transformers>=5.7'", PAGE)
CachedLossMixin: Any = theirs.CachedLossMixin


class SetLoss(CachedLossMixin, nn.Module):  # type: ignore[misc]
    """Any setwise ``loss(z_a, z_b)`` of the columns (anchor, positive, negative_1, ..., negative_n) of a dataset.

        loss = SetLoss(model, setwise.SetContrastive(setwise.InfoNCE(), beta=0.5))
        SentenceTransformerTrainer(model=model, train_dataset=pairs, loss=loss).train()

    The default, ``InfoNCE(temperature=0.05)``, is sentence-transformers' ``MultipleNegativesRankingLoss`` (scale=20).
    As there, the negatives of every row are further candidates of all rows: ``loss(z_a, z_b, negatives)``. Set-level
    terms of a ``SetContrastive`` see anchors and positives alone, since negatives have no partner.

    ``mini_batch_size`` embeds that many rows at a time, twice, and keeps the activations of these alone (GradCache).
    The loss and its gradients are the same; it is their ``CachedMultipleNegativesRankingLoss``. The loss then may have
    no parameters of its own, such as a learned temperature. A loss from ``setwise.distributed`` is of the batches of
    all processes, their ``gather_across_devices``; it takes no hard negatives.
    """

    loss: Callable[..., Tensor]

    def __init__(
        self, model: Any, loss: Callable[..., Tensor] | None = None, *, mini_batch_size: int | None = None
    ) -> None:
        super().__init__()
        loss = InfoNCE(temperature=0.05) if loss is None else loss
        check_loss(loss, "loss")
        check_count(mini_batch_size, "mini_batch_size")
        if isinstance(loss, SetContrastive) and loss.on == "features":
            raise ValueError('expected a loss on="embeddings", got on="features"; a SentenceTransformer has no others')
        self.uses_gradient_cache = mini_batch_size is not None  # they ask for it
        if self.uses_gradient_cache:
            _check_can_be_cached(model, loss)
        self.model, self.loss, self.mini_batch_size = model, loss, mini_batch_size

    def forward(self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor | None = None) -> Tensor:
        """The loss of the tokens of each column; ``labels`` are not used."""
        if self.uses_gradient_cache:
            value: Tensor = CachedLossMixin.forward_cached(self, sentence_features, labels)
            return value
        return self.compute_loss_from_embeddings([self.model(x)["sentence_embedding"] for x in sentence_features])

    def compute_loss_from_embeddings(self, embeddings: list[Tensor], labels: Tensor | None = None) -> Tensor:
        """The loss of the embeddings [N, E] of each column."""
        if len(embeddings) < 2:
            raise ValueError(f"expected columns anchor and positive at least, got {len(embeddings)}; add the other one")
        z_a, z_b, *negatives = embeddings
        if not negatives:
            return self.loss(z_a, z_b)
        extra = torch.cat(negatives)
        if isinstance(self.loss, SetContrastive):
            pairwise, term = self.loss.pairwise(z_a, z_b, extra), self.loss.regularizer(z_a, z_b)
            value: Tensor = self.loss.alpha * pairwise + self.loss.beta * term
            return value
        return self.loss(z_a, z_b, extra)

    def calculate_loss(
        self, reps: list[list[Tensor]], labels: Tensor | None = None, *, with_backward: bool = False
    ) -> Tensor:
        """The loss of embeddings in mini-batches, and their gradients if wanted: sentence-transformers calls it."""
        value = self.compute_loss_from_embeddings([torch.cat(column) for column in reps])
        if not with_backward:
            return value
        value.backward()  # type: ignore[no-untyped-call]
        return value.detach()

    def get_config_dict(self) -> dict[str, Any]:
        """What a model card says of the loss."""
        return {"loss": " ".join(repr(self.loss).split()), "mini_batch_size": self.mini_batch_size}


def _check_can_be_cached(model: Any, loss: object) -> None:
    if isinstance(loss, nn.Module) and any(x.requires_grad for x in loss.parameters()):
        raise ValueError(
            "expected a loss without parameters for mini_batch_size, got a learned one; fix its temperature, or leave "
            f"mini_batch_size out, {PAGE}"
        )
    if theirs.has_static_embedding_input(model):
        raise ValueError(
            "expected a model whose batches can be split for mini_batch_size, got a StaticEmbedding, whose tokens are "
            f"in one row; leave mini_batch_size out, {PAGE}"
        )
