"""Our losses where open_clip's stands: ``ClipLoss`` with its arguments and its call. open_clip is not needed.

loss = open_clip.ClipLoss(local_loss=True, gather_with_grad=True, rank=rank, world_size=size)
loss = setwise.adapters.open_clip.ClipLoss(local_loss=True, gather_with_grad=True, rank=rank, world_size=size)
loss(image_features, text_features, logit_scale)                                                      # the same
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import torch
from torch import Tensor, nn

from setwise.checks import check_embeddings, check_loss, check_number, see
from setwise.losses.parallel import Processes
from setwise.losses.structured import row_losses
from setwise.similarity import full_precision


class ClipLoss(nn.Module):
    """open_clip's ``ClipLoss``, and beside it ``weight`` times any set-level ``term(image_features, text_features)``.

    Value and gradients are open_clip's in each of its four forms over R processes:

    - With ``gather_with_grad`` each process gets R times the gradient of its features. DDP averages it to the gradient
      of the whole batch.
    - Without it each process gets the gradient of its features once, so DDP averages it to 1/R of that. With
      ``local_loss`` besides, features have no gradient as candidates.
    - With ``local_loss`` the value is that of the process's own rows. The mean over processes is the whole loss.

    The term sees the batch of all processes in every form, so give it as it is, not through ``setwise.distributed``.
    Scores are plain products, as open_clip's: normalise the features, as its models do. They are computed in float32,
    also under autocast.
    """

    def __init__(
        self,
        local_loss: bool = False,
        gather_with_grad: bool = False,
        cache_labels: bool = False,
        rank: int = 0,
        world_size: int = 1,
        use_horovod: bool = False,
        *,
        term: Callable[..., Tensor] | None = None,
        weight: float = 1.0,
    ) -> None:
        super().__init__()
        if use_horovod:
            raise ValueError("expected use_horovod=False, got True; start the processes by torchrun")
        check_number(weight, "weight", least=0)
        if term is not None:
            check_loss(term, "term")
        self.local_loss, self.gather_with_grad, self.cache_labels = local_loss, gather_with_grad, cache_labels
        self.rank, self.world_size = rank, world_size
        self.term, self.weight = term, weight

    def forward(
        self,
        image_features: Tensor,
        text_features: Tensor,
        logit_scale: Tensor | float,
        logit_bias: Tensor | float | None = None,
        output_dict: bool = False,
    ) -> Tensor | dict[str, Tensor]:
        """The loss of features [N, E], row i of both the same item; as open_clip's, the sum of the ``output_dict``.

        ``logit_scale`` is one over the temperature. A ``logit_bias`` has no effect on this loss, and gradient 0.
        """
        check_embeddings(image_features, text_features)
        images, texts = self._of_all(image_features), self._of_all(text_features)
        first, anchors, candidates = 0, (images, texts), (texts, images)
        if self.local_loss and self.world_size > 1:
            first = self.rank * len(image_features)
            anchors = image_features, text_features
            if not self.gather_with_grad:
                candidates = texts.detach(), images.detach()
        partner = torch.arange(first, first + len(anchors[0]), device=images.device)
        losses = [
            row_losses(logit_scale * full_precision(x), full_precision(y), partner, None, "cosine", "entropy", 1.0)
            for x, y in zip(anchors, candidates, strict=True)
        ]
        contrastive = torch.cat(losses).mean()
        if isinstance(logit_bias, Tensor):
            contrastive = contrastive + 0 * logit_bias.sum()  # DDP expects a gradient of every parameter
        parts = {"contrastive_loss": contrastive}
        if self.term is not None:
            parts["set_loss"] = self.weight * self.term(images, texts)
        return parts if output_dict else reduce(torch.add, parts.values())

    def _of_all(self, features: Tensor) -> Tensor:
        """Features of all processes [R·N, E], with a gradient for those of this process at least."""
        if self.world_size == 1:
            return features
        peers = Processes()
        if (peers.rank, peers.size) != (self.rank, self.world_size):
            raise ValueError(
                f"expected torch.distributed with rank {self.rank} of {self.world_size} processes, got {peers.rank} of "
                f"{peers.size}; call torch.distributed.init_process_group first, {see('how-to/many-gpus#own-loop')}"
            )
        peers.check_equal_parts(features)
        if self.gather_with_grad:
            return peers.gather(features)
        every = [*peers.gather(features.detach()).chunk(self.world_size)]
        every[self.rank] = features
        return torch.cat(every)

    def extra_repr(self) -> str:
        """How it is spread over processes, and the term's weight."""
        names = ("local_loss", "gather_with_grad", "rank", "world_size", *(["weight"] if self.term is not None else []))
        return ", ".join(f"{name}={getattr(self, name)}" for name in names)
