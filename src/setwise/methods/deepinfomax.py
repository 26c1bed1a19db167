"""Deep InfoMax (Hjelm et al. 2019), its local objective: features that fit their own feature map and no other."""

from __future__ import annotations

from typing import Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

import setwise.register as register
from setwise.encoders import evaluating
from setwise.kernels import local_scores
from setwise.kernels.views import BLOCKS
from setwise.losses.parallel import Processes
from setwise.methods.method import Batch, Method, Parts
from setwise.views.philox import words_of

PRIOR_WEIGHT = 0.1  # of matching the prior; the local objective has weight 1
LOCAL_WIDTH = 256
PRIOR_WIDTHS = (512, 128)
# The last word of a Philox counter is 16 view + block. The draws take view numbers that no run counts up to, and of
# their sixteen blocks those from BLOCKS on.
FIRST_VIEW = 2**27
WORD_BITS = 24  # of the 32 that are used: float32 holds them exactly, and below 1


@runtime_checkable
class TwoPartEncoder(Protocol):
    """An encoder in two parts: ``forward(x) == rest(first(x))``."""

    def first(self, images: Tensor) -> Tensor:
        """The first layer's feature map [B, C, H, W]: convolution, BatchNorm, ReLU, and no pool yet."""

    def rest(self, feature_map: Tensor) -> Tensor:
        """Features [B, F]."""


def prior_draws(samples: Tensor, features: int, *, seed: Tensor, epoch: Tensor) -> Tensor:
    """Uniform numbers in [0, 1), [B, F] float32, of each sample on its own: from (seed, epoch, sample) alone.

    ``samples`` [B], ``seed`` and ``epoch`` [] int64. The same bits in any batch and on any device.
    """
    place = torch.arange(-(-features // 4), device=samples.device)  # of counters, of which each gives four words
    free = 16 - BLOCKS
    last = 16 * (FIRST_VIEW + place // free) + BLOCKS + place % free
    words = words_of(samples, seed, epoch, last[:, None])  # [4, F / 4, B]
    words = words.permute(2, 1, 0).flatten(1)[:, :features]
    return (words >> (32 - WORD_BITS)).float() * 2.0**-WORD_BITS


class LocalDiscriminator(nn.Module):
    """A score of every place of a feature map, with the features of an image: 1 x 1 convolutions of both, stacked."""

    def __init__(self, channels: int, features: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels + features, LOCAL_WIDTH, 1)
        self.second = nn.Conv2d(LOCAL_WIDTH, LOCAL_WIDTH, 1)
        self.last = nn.Conv2d(LOCAL_WIDTH, 1, 1)

    def forward(self, feature_map: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """Scores [B, 1, H, W] of each feature map with its own features, and with those of the image before."""
        return local_scores(feature_map, features, self.first, self.second, self.last)


@register.method("deepinfomax", about="Features that fit their own feature map and no other.")
class DeepInfoMax(Method):
    r"""Local mutual information by the Jensen-Shannon estimator, and features matched to a uniform prior.

        local = mean softplus(-T(M_i, y_i)) + mean softplus(T(M_{i+1}, y_i))
        prior = mean softplus(-D(u_i)) + mean softplus(D(y_i)),    u_i uniform in [0, 1)^F
        loss  = local + 0.1 prior

    M_i is the first layer's feature map of image i of the batch, y_i its features, i + 1 counted around the batch; the
    scores T and D are trained beside the encoder. ``adversarial``, as published: D minimises ``prior`` and the encoder
    maximises it, in one backward pass, in which the gradient changes its sign between the two. Otherwise both minimise
    it, and the encoder helps D. That defeats the term's purpose, but the code base of the paper's authors does it, and
    so it is the way to the paper's number.

    Over many processes, i + 1 is counted around the whole batch.
    """

    processes: Processes | None = None  # of many, if there are

    def __init__(self, parts: Parts, *, adversarial: bool = True) -> None:
        super().__init__()
        encoder, features = parts.encoder, parts.features
        if not isinstance(encoder, TwoPartEncoder):
            raise ValueError(
                "expected an encoder with the methods first(images) and rest(feature_map), whose first layer gives "
                f"the local features, got {type(encoder).__name__}; setwise's encoders have them"
            )
        self.encoder, self.views, self.adversarial = encoder, parts.views, adversarial
        self.local = LocalDiscriminator(_width(encoder, parts.channels), features)
        a, b = PRIOR_WIDTHS
        self.prior = nn.Sequential(nn.Linear(features, a), nn.ReLU(), nn.Linear(a, b), nn.ReLU(), nn.Linear(b, 1))

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """The loss and its two parts, before their weights; ``prior`` is what the discriminator minimises."""
        if len(batch.images) < 2 and self.processes is None:
            raise ValueError(
                "expected at least two images, whose feature maps are compared, got 1; drop the last batch"
            )
        encoder = cast(TwoPartEncoder, self.encoder)
        feature_map = encoder.first(batch.view(self.views))
        y = encoder.rest(feature_map)
        local = _discrimination_loss(*self._scores(feature_map, y))
        draws = prior_draws(batch.samples, y.shape[1], seed=batch.seed, epoch=batch.epoch).to(y.dtype)
        prior = _discrimination_loss(self.prior(draws), self.prior(_reversed(y) if self.adversarial else y))
        return {"loss": local + PRIOR_WEIGHT * prior, "local": local, "prior": prior}

    def share(self, processes: Processes) -> None:
        """The first image of each process is compared with the last one of the process before."""
        self.processes = processes

    def _scores(self, feature_map: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Scores of each feature map with its own features, and with those of the image before in the whole batch."""
        if self.processes is None:
            own, other = self.local(feature_map, y)
            return own, other
        before = self.processes.gather(y[-1:])[self.processes.rank - 1, None]
        # As a last row, for they are counted around; its own scores are left out.
        own, other = self.local(torch.cat([feature_map, feature_map[:1]]), torch.cat([y, before]))
        return own[:-1], other[:-1]


def _discrimination_loss(true: Tensor, false: Tensor) -> Tensor:
    """-log sigmoid(true) - log(1 - sigmoid(false)), means of both; in float32 at least, also under autocast."""
    true, false = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in (true, false))
    return softplus(-true).mean() + softplus(false).mean()


def _reversed(x: Tensor) -> Tensor:
    """``x`` itself, exactly; gradients change their sign on the way back (Ganin and Lempitsky 2015)."""
    return 2 * x.detach() - x


@torch.no_grad()
def _width(encoder: nn.Module, channels: int) -> int:
    """Channels of the first layer's feature map: those of a black image's."""
    with evaluating(encoder):  # BatchNorm's statistics stay as they are
        black = next(encoder.parameters()).new_zeros(1, channels, 32, 32)
        return cast(TwoPartEncoder, encoder).first(black).shape[1]
