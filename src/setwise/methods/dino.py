"""DINO (Caron et al. 2021): give the classes that a slowly moving copy, centred and sharpened, gives another view."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, normalize

import setwise.register as register
from setwise.checks import check_number
from setwise.losses.parallel import Processes
from setwise.methods.crops import Crops, swapped_cross_entropy
from setwise.methods.method import Batch, Method, Parts
from setwise.methods.momentum import check_momentum, follow, frozen_copy

STD = 0.02  # of fresh weights


class Head(nn.Module):
    """Three layers with GELU, then the cosine to each of ``prototypes`` directions: weights of length 1, no bias."""

    def __init__(self, features: int, hidden: int, out: int, prototypes: int) -> None:
        super().__init__()
        layers = [nn.Linear(a, b) for a, b in ((features, hidden), (hidden, hidden), (hidden, out))]
        for layer in layers:
            nn.init.trunc_normal_(layer.weight, std=STD)
            nn.init.zeros_(layer.bias)
        self.layers = nn.Sequential(layers[0], nn.GELU(), layers[1], nn.GELU(), layers[2])
        self.last = nn.Linear(out, prototypes, bias=False)

    def forward(self, h: Tensor) -> Tensor:
        """The embeddings [N, E]."""
        z: Tensor = self.layers(h)
        return z

    def scores(self, z: Tensor, *, trained: Tensor) -> Tensor:
        """[N, K] of the embeddings; the last layer has a gradient where ``trained`` [] says so."""
        weight = torch.where(trained, self.last.weight, self.last.weight.detach())
        with torch.autocast(z.device.type, enabled=False):
            return linear(normalize(z.to(weight.dtype)), normalize(weight))


@register.method(
    "dino", about="Give the classes that a slowly moving copy gives another view: for transformers.", takes=("terms",)
)
class DINO(Method):
    """Cross-entropy of each view's classes and those that the copy gives to the other large views.

    The copy's scores are centred, by a mean that moves with ``center_momentum``, and sharpened by
    ``target_temperature``, which rises from ``first_temperature`` within ``temperature_epochs``. The last layer is not
    trained for the first ``freeze`` epochs. ``momentum`` of the copy rises to 1. ``small`` views are as in ``SwAV``;
    the copy sees none.
    """

    processes = Processes()
    center: Tensor  # [K], a buffer

    def __init__(
        self,
        parts: Parts,
        *,
        momentum: float = 0.996,
        prototypes: int = 1024,
        temperature: float = 0.1,
        target_temperature: float = 0.04,
        first_temperature: float = 0.04,
        temperature_epochs: int = 0,
        center_momentum: float = 0.9,
        freeze: int = 1,
        views: int = 2,
        small: int = 0,
        small_side: float = 0.5,
        small_area: tuple[float, float] = (0.05, 0.4),
    ) -> None:
        super().__init__()
        check_momentum(momentum)
        temperatures = {"target_temperature": target_temperature, "first_temperature": first_temperature}
        for name, value in ({"temperature": temperature} | temperatures).items():
            check_number(value, name, above=0)
        check_number(prototypes, "prototypes", least=1)
        self.crops = Crops(parts, views=views, small=small, small_side=small_side, small_area=small_area)
        size = parts.recipe.head
        self.encoder, self.views, self.terms = parts.encoder, parts.views, parts.terms()
        self.head = Head(parts.features, size.hidden, size.out, prototypes)
        self.target_encoder, self.target_head = frozen_copy(self.encoder), frozen_copy(self.head)
        self.register_buffer("center", torch.zeros(prototypes))
        self.momentum, self.center_momentum, self.freeze = momentum, center_momentum, freeze
        self.temperature, self.temperatures = temperature, (first_temperature, target_temperature)
        self.temperature_epochs = temperature_epochs

    def encode(self, batch: Batch) -> tuple[Tensor, ...]:
        """The copy's features of the large views, and the features of every view."""
        images = self.crops.images(batch)
        with torch.no_grad():
            targets = self.crops.encode(self.target_encoder, images[:1])
        return *targets, *self.crops.encode(self.encoder, images)

    def compare(self, encoded: tuple[Tensor, ...], batch: Batch) -> dict[str, Tensor]:
        """The loss; terms are of the embeddings of the large views."""
        h, crops = self.crops.joined(encoded[1:]), self.crops
        z, trained = self.head(h), batch.epoch >= self.freeze
        logs = (self.head.scores(z, trained=trained) / self.temperature).log_softmax(1)
        with torch.no_grad():
            scores = self.target_head.scores(self.target_head(crops.joined(encoded[:1])), trained=trained)
            targets = ((scores - self.center) / self.target_temperature(batch.epoch)).softmax(1)
            self.center.lerp_(self.processes.mean(scores.mean(0)), 1 - self.center_momentum)
        own = swapped_cross_entropy([*targets.chunk(crops.count)], [*logs.chunk(crops.total)])
        large = [x.chunk(crops.total)[: crops.count] for x in (z, h)]
        return self.terms(own, *large)

    def target_temperature(self, epoch: Tensor) -> Tensor | float:
        """The copy's temperature: it rises in a straight line, and then stays."""
        first, last = self.temperatures
        if not self.temperature_epochs:
            return last
        return first + (last - first) * (epoch / self.temperature_epochs).clamp(max=1)

    def after_step(self, step: Tensor, total: int) -> None:
        """Move the copy towards the encoder and its head."""
        for slow, fast in ((self.target_encoder, self.encoder), (self.target_head, self.head)):
            follow(slow, fast, momentum=self.momentum, step=step, total=total)

    def share(self, processes: Processes) -> None:
        """The center is of the images of all processes; the loss is a mean over images."""
        self.processes = processes
        self.terms.share(processes)
