"""What a method is: something that turns a batch into a loss."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

import setwise.register as register
from setwise.checks import see
from setwise.data import ImageSet
from setwise.data.pairs import PairSet, Side, TrainingSet
from setwise.encoders import check_size, projection_head
from setwise.encoders import create as create_encoder
from setwise.losses.combined import SetContrastive
from setwise.losses.modules import mean_over_pairs
from setwise.losses.objective import Choice, Objective, build
from setwise.losses.parallel import Processes, distributed
from setwise.recipe import Recipe
from setwise.views import Views


class Parts:
    """What a method is made of: the recipe's encoder, head, loss and views, for a training set.

    The encoder is made at once, each head and loss by a call. Fresh weights come from torch's generator.

    Examples:
        >>> from setwise.recipe import Recipe
        >>> parts = sw.Parts(Recipe.read({"encoder": "resnet8"}), sw.data.load("digits", split="train"))
        >>> parts.features, parts.classes, type(parts.loss()).__name__
        (64, 10, 'InfoNCE')
    """

    def __init__(self, recipe: Recipe, data: TrainingSet) -> None:
        """For ``data``, whose channels, size, mean and classes decide some of it."""
        self.recipe = recipe
        if isinstance(data, PairSet):
            self._sides = data.first, data.second
        else:
            images = Side(data.images, mean=data.mean, std=data.std)
            self._sides = images, images
        self.channels = self._sides[0].width
        self.samples = len(data)
        self.labelled = isinstance(data, PairSet) and data.labels is not None
        self.in_sets = isinstance(data, PairSet) and data.sets is not None
        self._classes = len(data.classes) if isinstance(data, ImageSet) else 0
        self.encoder = _encoder(recipe.encoder, self._sides[0])
        self.features = int(self.encoder.features)  # type: ignore[arg-type]
        self.views, self.second_views = (
            register.views[recipe.views.name].make(mean=side.mean, std=side.std, **recipe.views.options)
            for side in self._sides
        )
        for n in recipe.views.options.get("early", ()):
            _check_takes(self.encoder, recipe.encoder.name, self.channels, (n, n))

    @property
    def alike(self) -> bool:
        """Whether one encoder can take both sides of pairs."""
        first, second = self._sides
        return (first.kind, first.shape) == (second.kind, second.shape)

    def second_encoder(self) -> nn.Module:
        """An encoder for the second side of pairs: the recipe's ``second_encoder``, or another of the first kind."""
        return _encoder(self.recipe.second_encoder or self.recipe.encoder, self._sides[1])

    @property
    def classes(self) -> int:
        """How many classes the images have. Only methods that need labels ask."""
        if not self._classes:
            raise ValueError(
                f"expected images with classes for method {self.recipe.method.name!r}, got none; contrastive methods "
                "need no classes"
            )
        return self._classes

    def head(self, features: int | None = None) -> nn.Module:
        """The recipe's projection head, of the encoder's ``features`` or of so many."""
        head = self.recipe.head
        return projection_head(features or self.features, head.hidden, head.out, layers=head.layers)

    def small_views(self, *, side: float, area: tuple[float, float]) -> Views:
        """Views of parts of the images, multi-crop's: ``area`` of an image, in ``side`` of its pixels each way."""
        if not 0 < side <= 1:
            raise ValueError(f"expected small_side above 0 and at most 1, a share of the images' side, got {side:g}")
        height, width = (max(1, round(side * n)) for n in self._sides[0].values.shape[2:])
        _check_takes(self.encoder, self.recipe.encoder.name, self.channels, (height, width))
        views: Views = self.views
        return replace(views, crop="resized", area=area, size=(height, width), early=(), until=())

    def loss(self, objective: Objective | None = None) -> nn.Module:
        """The recipe's objective as a module, or another."""
        objective = objective or self.recipe.objective
        if objective is None:
            raise ValueError(f"expected an objective for method {self.recipe.method.name!r}, got a recipe without one")
        return build(objective)

    def terms(self) -> Terms:
        """The recipe's terms, for a method with a loss of its own."""
        return Terms(self.loss())


class Terms(nn.Module):
    """The objective's terms beside a method's own loss: weight · own + Σ weight · term of every two views.

    A method that is registered with ``takes=("terms",)`` has them as ``parts.terms()``.
    """

    __call__: Callable[..., dict[str, Tensor]]

    def __init__(self, objective: nn.Module) -> None:
        super().__init__()
        self.weight, self.beta, self.on = 1.0, 0.0, "embeddings"
        self.term: Callable[..., Tensor] | None = None
        if isinstance(objective, SetContrastive):
            self.weight, self.beta, self.on = objective.alpha, objective.beta, objective.on
            self.term = objective.regularizer

    def forward(self, own: Tensor, embeddings: Sequence[Tensor], features: Sequence[Tensor]) -> dict[str, Tensor]:
        """The loss and, where there are terms, its parts. Terms see the embeddings of the views, or the features."""
        if self.term is None:
            return {"loss": own}
        terms = mean_over_pairs(self.term, features if self.on == "features" else embeddings)
        return {"loss": self.weight * own + self.beta * terms, "own": own, "regularizer": terms}

    def share(self, processes: Processes) -> None:
        """The terms become those of all processes' views."""
        if self.term is not None:
            self.term = distributed(self.term, group=processes.group, gradient=processes.gradient)


def by_item(h: Tensor, count: int) -> Tensor:
    """[B, V, F] of the V = ``count`` views [V · B, F] of each item: what ``encode`` gives."""
    return torch.unflatten(h, 0, (count, -1)).transpose(0, 1)


def by_view(h: Tensor) -> Tensor:
    """[V · B, F] of [B, V, F]: one batch again, all items of one view, then all of the next."""
    return h.transpose(0, 1).flatten(0, 1)


def mean_of_others(z: Tensor, views: int) -> Tensor:
    """For each row of z [V · B, E], all items of one view and then all of the next: the mean of its item's other views.

    Of two views, the other one itself.
    """
    others = torch.stack([z.roll(k * len(z) // views, 0) for k in range(1, views)])
    return others.mean(0)


def check_views(views: int) -> None:
    """Raise unless a view has another one to be compared with."""
    if views < 2:
        raise ValueError(f"expected at least two views of each image, got {views}; give --method.views 2")


def _encoder(choice: Choice, side: Side) -> nn.Module:
    """The encoder for these items; an error if it is for others."""
    name, kinds = choice.name, register.encoder[choice.name].takes or ("images",)
    if side.kind not in kinds and ":" not in name:  # one that a person named by its function may take anything
        fitting = [one for one, entry in register.encoder.items() if side.kind in (entry.takes or ("images",))]
        raise ValueError(
            f"expected an encoder of {side.kind} ({', '.join(fitting)}), got {name!r}, which is for "
            f"{' or '.join(kinds)}; give --encoder, or --second-encoder for the second side"
        )
    if side.kind != "images":
        return create_encoder(name, channels=side.width, **choice.options)
    height, width = side.values.shape[2:]
    encoder = create_encoder(name, channels=side.width, image_size=(height, width), **choice.options)
    _check_takes(encoder, name, side.width, (height, width))
    return encoder


def _check_takes(encoder: nn.Module, name: str, channels: int, size: tuple[int, int]) -> None:
    """Raise unless the encoder takes images of that size."""
    least = int(getattr(encoder, "least", 1))
    if min(size) < least:
        raise ValueError(
            f"expected images of at least {least} x {least} pixels for {name}, got {size[0]} x {size[1]}; "
            "--encoder resnet8 takes any"
        )
    check_size(encoder, name, channels, size)


@dataclass(frozen=True)
class Batch:
    """Images of one step, and what their views are drawn from: all of it on the device, none of it waited for.

    Of pairs, ``images`` is the first side, be it images or not, and ``second`` the second one. ``sets`` has the set of
    each row where only sets are known to belong together. ``phase`` is what the method's ``phase`` gave for this step.
    ``since`` is the share of training that was done when views of this size began.
    """

    images: Tensor  # uint8 [B, C, H, W]
    samples: Tensor  # int64 [B], places in the data set
    labels: Tensor  # int64 [B]
    seed: Tensor  # int64 []
    epoch: Tensor  # int64 []
    dtype: torch.dtype = torch.float32  # of the views
    channels_last: bool = False
    second: Tensor | None = None
    sets: Tensor | None = None  # int64 [B]
    phase: Hashable = None
    since: float = 0.0
    others: Tensor | None = None  # uint8 [B, C, H, W]: what views show after the first, where partners are wrong

    def view(self, views: Views, *, count: int = 1, first: int = 0) -> Tensor:
        """``count`` views of each image as one batch [count · B, C, H, W]: all of one, then all of the next.

        ``first`` is the number of the first of them. Views of the same number are the same, so draw each branch's own
        by other numbers: two large ones by 0 and 1, four small ones by ``first=2``.
        """
        if self.others is not None and first + count > 1:
            first_ones = replace(self, others=None)
            rest = replace(first_ones, images=self.others)
            if first > 0:
                return rest.view(views, count=count, first=first)
            return torch.cat([first_ones.view(views), rest.view(views, count=count - 1, first=1)])
        own = views.at(self.since) if hasattr(views, "at") else views  # views of a user's own class have one size
        x = own.several(
            self.images,
            count,
            samples=self.samples,
            seed=self.seed,
            epoch=self.epoch,
            first=first,
            dtype=torch.bfloat16 if self.dtype == torch.bfloat16 else torch.float32,
            channels_last=self.channels_last,
        )
        return x.flatten(0, 1).to(self.dtype)


class Method(nn.Module):
    """An encoder, whatever is trained beside it, and what one step computes.

    A new method is a class whose ``__init__(self, parts, *, ...)`` takes ``Parts`` and its own options, registered:
    ``@sw.register.method("name", about="...")``. It has ``encode`` and ``compare``, which let its batch come in parts,
    or a ``forward`` of its own. A random draw may depend on (seed, epoch, sample) only, so that a resumed run is the
    same run; what else has to survive a restart is a parameter or a buffer.

    Examples:
        >>> class Alike(sw.Method):
        ...     def __init__(self, parts):
        ...         super().__init__()
        ...         self.encoder, self.views = parts.encoder, parts.views
        ...
        ...     def encode(self, batch):
        ...         return self.encoder(batch.view(self.views, count=2)).chunk(2)
        ...
        ...     def compare(self, encoded, batch):
        ...         a, b = encoded
        ...         return {"loss": (a - b).square().mean()}
    """

    encoder: nn.Module

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Scalars of this batch, means over it: "loss" is minimised, the others are shown."""
        return self.compare(self.encode(batch), batch)

    def encode(self, batch: Batch) -> tuple[Tensor, ...]:
        """What the network makes of the batch's items, each for itself: tensors of one row for each item."""
        raise NotImplementedError(f"{type(self).__name__} has neither forward(batch) nor encode(batch)")

    def compare(self, encoded: tuple[Tensor, ...], batch: Batch) -> dict[str, Tensor]:
        """The scalars of ``forward``, from what ``encode`` made of all items; of ``batch``, labels and samples."""
        raise NotImplementedError(f"{type(self).__name__} has neither forward(batch) nor compare(encoded, batch)")

    def groups(self) -> list[dict[str, Any]]:
        """Groups of parameters for the optimiser, each with options of its own; one of all that can be trained.

        A group's own "lr" is its peak: the recipe's schedule moves it as it moves the others'.
        """
        return [{"params": [p for p in self.parameters() if p.requires_grad]}]

    def phase(self, step: int, total: int) -> Hashable:
        """The kind of step number ``step`` of ``total``, counted from 0; its batch carries it.

        A step that computes something else from some moment on, such as a loss of another form, is of another kind.
        Each kind is captured as a graph of its own.
        """
        return None

    def after_step(self, step: Tensor, total: int) -> None:
        """Called after each optimiser step, without gradients, within the captured graph: move a target network, say.

        ``step`` [] int64 on the device counts the steps done, from 1 to ``total``.
        """

    def begin_epoch(self, data: ImageSet, *, seed: int, epoch: int) -> None:
        """Called before each epoch with all training images on the device; outside of any capture."""

    def share(self, processes: Processes) -> None:
        """Called once before training over many processes: make the loss that of the whole batch.

        Each process has an equal part of every batch. BatchNorm is shared already, and gradients are averaged: a loss
        that is a mean over samples is right as it is, and this method does nothing. A loss that compares samples
        becomes ``distributed``, or keeps ``processes`` and gathers in ``forward`` what it compares.
        """
        raise ValueError(
            "expected a method that says how it works over many processes, got "
            f"{type(self).__name__} without share(processes), which might compare samples of one process only; "
            f"add share, or train with one process, {see('how-to/your-method#many-processes')}"
        )
