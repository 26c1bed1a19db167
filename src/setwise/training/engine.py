"""The engine: a method and a data set on a device, trained step by step; on a GPU a step is one captured graph."""

from __future__ import annotations

import copy
import itertools
import math
import os
import threading
import time
import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import setwise.register as register
from setwise.checks import see
from setwise.data import ImageSet, MatchedSet
from setwise.data.pairs import PairSet, TrainingSet
from setwise.data.subsets import partners
from setwise.losses.parallel import Processes
from setwise.methods import Batch, Method, create
from setwise.methods.matching import draw_shots, passes_of_an_epoch
from setwise.recipe import Recipe
from setwise.training.accumulation import average_gradients, backward_in_parts, check_divisible
from setwise.training.capture import DDP_WARM_UP, WARM_UP, captured, new_stream, within
from setwise.training.compilation import compile_encoder
from setwise.training.errors import TrainingError
from setwise.training.feeding import Feed, fits
from setwise.training.processes import share_norms
from setwise.training.schedule import batch_sizes, epoch_order, epoch_rates, view_start
from setwise.training.whole_sets import WholeSets

# What decides a step: its rows, the method's phase, the share of training since which views have this size.
Kind = tuple[int, Hashable, float]
_drawing = threading.Lock()  # torch has one generator for all threads


class Engine:
    """All that a run is made of, and how to take a step.

    Whatever changes from step to step lives on the device: the place in the epoch's order, the learning rate, the
    epoch's number, the sums of the loss's terms. A step reads and advances them itself, so that a GPU replays one
    graph (and others for the epoch's last, smaller batch and for each later phase of the method, which are captured
    when they come for the second time) and waits for nothing; ``begin`` sets them for an epoch, ``means`` reads them.
    Where views grow in the course of training, each of their sizes has graphs of its own.

    Images that do not fit onto the device are brought there batch by batch, ahead of the steps.

    Over many processes the batch is divided into equal parts, losses and BatchNorm are over all of it, DDP averages
    the gradients. Their steps are captured too where NCCL carries the messages.
    """

    def __init__(
        self,
        recipe: Recipe,
        data: TrainingSet,
        *,
        seed: int,
        device: torch.device,
        processes: Processes | None = None,
        capture: bool = True,
        compile: bool = False,
    ) -> None:
        if not 0 <= seed < 2**63:
            raise ValueError(f"expected a seed from 0 to 2^63 - 1, got {seed}")
        self.recipe, self.seed, self.device = recipe, seed, device
        self.processes = processes or Processes()
        on_gpu = device.type == "cuda"
        self.precision = recipe.precision if recipe.precision != "auto" else "bfloat16" if on_gpu else "float32"
        if on_gpu:
            _check_share()
            torch.backends.cudnn.benchmark = True
            torch.backends.cudnn.allow_tf32 = self.precision != "float32"  # float32 means float32
        self._sets: WholeSets | None = None
        one_pass, self.passes = self._batch_sizes(data), passes_of_an_epoch(recipe, data)
        self._steps_a_pass, self.sizes = len(one_pass), one_pass * self.passes
        self.steps = len(self.sizes)  # in an epoch
        method = untrained(recipe, data, seed)
        method.to(device, torch.float64 if self.precision == "float64" else torch.float32)
        if on_gpu:
            method.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if recipe.parts > 1:
            check_divisible(method, recipe.method.name)
        self.method: Method = method
        self.model: nn.Module = method
        self._stream: Any = None
        if self.processes.size > 1:
            method.share(self.processes)
            share_norms(method, device)
        if self.processes.joined:
            # BatchNorm's statistics are the same everywhere, there is nothing to broadcast.
            names = signature(DistributedDataParallel).parameters
            option = "forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers"  # torch < 2.13
            options: Any = {option: False}
            self._stream = new_stream() if on_gpu else None
            with within(self._stream) if on_gpu else nullcontext():  # the captured step has to be of the same stream
                self.model = DistributedDataParallel(method, **options)
        self._feed: Feed | None = None
        if isinstance(data, ImageSet) and not fits(data, device):
            self._feed = Feed(data, max(self.sizes, default=0) // self.processes.size, self.steps, device)
            self.data: TrainingSet = replace(data, labels=data.labels.to(device))
        else:
            self.data = _moved(data, device)
        self._partners: Tensor | None = None
        if recipe.data.wrong_partners:
            if self._feed is not None:
                raise ValueError(
                    f"expected images that fit into memory for wrong_partners, got {len(data)} that do not; train on "
                    "fewer (--instances), or leave it out"
                )
            self._partners = partners(len(data), recipe.data.wrong_partners, seed=seed).to(device)

        # What steps read and advance.
        rate_type = torch.float32 if on_gpu else torch.float64
        self._order = torch.zeros(sum(self.sizes), dtype=torch.int64, device=device)
        self._rates = torch.zeros(self.steps, dtype=rate_type, device=device)
        self._rate = torch.zeros((), dtype=rate_type, device=device)
        self._place, self._turn, self._epoch = (torch.zeros((), dtype=torch.int64, device=device) for _ in range(3))
        self._seed = torch.full((), seed, dtype=torch.int64, device=device)
        parts = {rows: rows // self.processes.size for rows in self.sizes}
        self._offsets = {
            rows: torch.arange(part, device=device) + self.processes.rank * part for rows, part in parts.items()
        }
        self._totals: dict[str, Tensor] = {}
        self.kept: dict[str, Tensor] = {}
        self.epoch = self.step_in_epoch = 0
        self.last_rate = float(recipe.optimizer["lr"])

        groups = method.groups()
        self._own_rates = []  # of groups with one: a tensor too, and what it is to the recipe's
        for group in groups:
            if "lr" in group:
                self._own_rates.append((torch.zeros_like(self._rate), group["lr"] / self.last_rate))
                group["lr"] = self._own_rates[-1][0]
        rate = {"lr": self._rate}  # a tensor, which the step itself sets
        self.optimizer = register.optimizer[recipe.optimizer.name].make(groups, **recipe.optimizer.options | rate)
        self._parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        self._moves = type(method).after_step is not Method.after_step  # needless counting takes 1 % of a small step
        self._mean: dict[str, Tensor] = {}  # of the encoder's weights and statistics, where the recipe has ema
        if recipe.ema:
            self._mean = {name: x.detach().clone() for name, x in method.encoder.state_dict().items()}
        self._graphs: dict[Kind, Callable[[], None]] = {}  # captured steps
        self._pool: Any = None  # the graphs' memory, where steps are captured
        self._taken: set[Kind] = set()  # kinds of steps that were taken before they are captured
        self.preparation_seconds = 0.0  # of compiling and capturing before the first step
        if recipe.epochs:
            began = time.perf_counter()
            self._prepare(capture and on_gpu and self.processes.capturable, compile)
            self.preparation_seconds = time.perf_counter() - began

    def begin(self, epoch: int, step: int = 0) -> None:
        """Go to a step of an epoch; at the epoch's first the sums start at 0 and the method prepares itself."""
        used, turns = sum(self.sizes) // self.passes, range(epoch * self.passes, (epoch + 1) * self.passes)
        self._order.copy_(torch.cat([self._epoch_order(turn)[:used] for turn in turns]))
        rates = epoch_rates(self.recipe, epoch, self.steps)
        self._rates.copy_(rates)
        self.last_rate = rates[-1].item()
        self._epoch.fill_(epoch)
        self._turn.fill_(step)
        self._place.fill_(sum(self.sizes[:step]))
        self.epoch, self.step_in_epoch = epoch, step
        self.method.train()
        if step == 0:
            for total in self._totals.values():
                total.zero_()
            if isinstance(self.data, ImageSet):
                self.method.begin_epoch(self.data, seed=self.seed, epoch=epoch)

    def _epoch_order(self, epoch: int) -> Tensor:
        if self._sets is not None:
            return self._sets.order(seed=self.seed, epoch=epoch)
        return epoch_order(len(self.data), seed=self.seed, epoch=epoch)

    def step(self) -> None:
        """One step, queued on the device."""
        kind = self._kind(self.sizes[self.step_in_epoch], self.epoch * self.steps + self.step_in_epoch)
        if self._feed is not None:
            self._feed.load(self.epoch, self.step_in_epoch, self._batches)
        if self._pool is None:
            self._step(*kind)
        elif kind not in self._graphs and kind not in self._taken:  # libraries choose their kernels for this kind
            with within(self._stream):
                self._step(*kind)
            self._taken.add(kind)
        else:
            if kind not in self._graphs:
                self._graphs[kind] = self._captured(*kind, warm_up=0)
            self._graphs[kind]()
        self.step_in_epoch += 1

    def _kind(self, rows: int, done: int) -> Kind:
        """The kind of the step of ``rows`` images that follows ``done`` others."""
        total = self.recipe.epochs * self.steps
        return rows, self.method.phase(done, total), view_start(self.recipe, done, total)

    def _step(self, rows: int, phase: Hashable, since: float) -> None:
        """The next batch, of ``rows`` images over all processes: its loss, the gradients, the weights, the sums."""
        samples = self._order[self._place + self._offsets[rows]]
        images = None if self._feed is None else self._feed.images[: len(samples)]
        batch = replace(self.batch(samples, images, phase), since=since)
        # An index of shape [1]: the host would read one of shape [].
        self._rate.copy_(self._rates[self._turn[None]][0])
        for rate, share in self._own_rates:
            torch.mul(self._rate, share, out=rate)
        self.optimizer.zero_grad()
        autocast = partial(torch.autocast, self.device.type, torch.bfloat16, enabled=self.precision == "bfloat16")
        if self.recipe.parts > 1:
            terms = backward_in_parts(self.method, batch, self.recipe.parts, autocast)
            if self.processes.size > 1:
                average_gradients(self._parameters, self.processes)
        else:
            with autocast():
                terms = self.model(batch)
            terms["loss"].backward()
        self.optimizer.step()
        self._turn.add_(1)
        if self._moves or self._mean:
            with torch.no_grad():
                done = self._epoch * self.steps + self._turn
                if self._moves:
                    self.method.after_step(done, self.recipe.epochs * self.steps)
                if self._mean:
                    self._move_mean(done)
        for name, term in terms.items():
            if name not in self._totals:
                self._totals[name] = self._zero()
            self._totals[name].add_(term.detach(), alpha=rows)
        self._place.add_(rows)

    def _move_mean(self, done: Tensor) -> None:
        """Move the mean weights: the mean of the first 1 / (1 - ema) steps; after those, each step counts 1 - ema."""
        share = (1 / done).clamp(min=1 - self.recipe.ema)
        for name, x in self.method.encoder.state_dict().items():
            if x.is_floating_point():
                self._mean[name].lerp_(x, share.to(x.dtype))
            else:
                self._mean[name].copy_(x)  # a count

    def evaluated_encoder(self) -> nn.Module:
        """The encoder that a run is evaluated by; with ema in the recipe, a copy of it with the mean weights."""
        if not self._mean:
            return self.method.encoder
        encoder = copy.deepcopy(self.method.encoder)
        encoder.load_state_dict(self._mean)
        return encoder

    def _batches(self, epoch: int, step: int) -> Iterator[Tensor]:
        """The rows of this process in the batch of that step, and in all that follow."""
        for number in itertools.count(epoch):
            order = epoch_order(len(self.data), seed=self.seed, epoch=number)
            batches = torch.split(order, self.sizes[0])
            for turn in range(step if number == epoch else 0, self.steps):
                yield batches[turn][self._offsets[self.sizes[turn]].cpu()]

    def close(self) -> None:
        """Stop reading images ahead."""
        if self._feed is not None:
            self._feed.close()

    def batch(self, samples: Tensor, images: Tensor | None = None, phase: Hashable = None) -> Batch:
        """The images of these samples: themselves, or a shot of each view of these identities."""
        data, seed, epoch = self.data, self._seed, self._epoch
        if self.passes > 1:  # what is random is drawn anew in each
            epoch = epoch * self.passes + self._turn // self._steps_a_pass
        dtype, last = getattr(torch, self.precision), self.device.type == "cuda"
        if isinstance(data, PairSet):
            first, second = (side.take(samples) for side in (data.first, data.second))
            labels = samples if data.labels is None else data.labels[samples]
            sets = None if data.sets is None else data.sets[samples]
            return Batch(first, samples, labels, seed, epoch, dtype, last, second, sets, phase)
        if isinstance(data, MatchedSet):
            places, keys = draw_shots(data, samples, seed=seed, epoch=epoch)
            labels = samples
        else:
            places, keys, labels = samples, samples, data.labels[samples]
        if images is None and self._feed is not None:
            assert isinstance(data, ImageSet)
            images = data.read(places.cpu()).to(self.device)
        images = data.images[places] if images is None else images
        others = None if self._partners is None else data.images[self._partners[places]]
        return Batch(images, keys, labels, seed, epoch, dtype, last, phase=phase, others=others)

    def means(self) -> dict[str, float]:
        """Every term of the loss, the mean over the epoch so far. Waits for the device; an error if not finite."""
        seen = sum(self.sizes[: self.step_in_epoch])
        names = sorted(self._totals, key=lambda name: (name != "loss", name))  # a checkpoint has another order
        totals = [self._totals[name] for name in names]
        sums = self.processes.mean(torch.stack(totals)) if names else torch.zeros(0)
        for total, x in zip(totals, sums, strict=True):
            total.copy_(x)  # a checkpoint has one process's sums, and all will go on from them
        means = dict(zip(names, (sums / max(1, seen)).tolist(), strict=True))
        for name, value in means.items():
            if not math.isfinite(value):
                raise self._diverged(f"a finite {name}, got {value}")
        return means

    def check_weights(self) -> None:
        """An error if a weight is not finite: a loss is taken before its step, and says nothing of the last one's."""
        weights = {name: x for name, x in self.method.state_dict().items() if x.is_floating_point()}
        finite = torch.stack([x.isfinite().all() for x in weights.values()]).tolist() if weights else []
        for name, good in zip(weights, finite, strict=True):
            if not good:
                raise self._diverged(f"finite weights, got others in {name}")

    def _diverged(self, expected: str) -> TrainingError:
        return TrainingError(
            f"expected {expected} in epoch {self.epoch + 1}, by step {self.step_in_epoch} of {self.steps}; a lower lr "
            f"(now {self.recipe.optimizer['lr']:g}) or precision float32 may help, {see('how-to/errors#not-finite')}"
        )

    def tensors(self) -> dict[str, Tensor]:
        """All that a run has learnt and counted, by name; what ``restore`` takes."""
        found = {f"model.{name}": x for name, x in self.method.state_dict().items()}
        for i, state in enumerate(self.optimizer.state[p] for p in self._parameters):
            found |= {f"optimizer.{i}.{name}": x for name, x in state.items() if isinstance(x, Tensor)}
        found |= {f"kept.{name}": x for name, x in self.kept.items()}
        found |= {f"mean.encoder.{name}": x for name, x in self._mean.items()}
        return found | {f"total.{name}": x for name, x in self._totals.items()}

    def keep(self) -> None:
        """Copy the method's weights to ``kept``: the best so far. Checkpoints have them too."""
        self.kept = {name: x.detach().clone() for name, x in self.method.state_dict().items()}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Take over what ``tensors`` gave, in place: graphs and optimiser keep pointing at the same memory."""
        for name in tensors:
            if name.startswith("total."):
                self._totals.setdefault(name.removeprefix("total."), self._zero())
        if any(name.startswith("kept.") for name in tensors):
            self.keep()
        mine = self.tensors()
        for name in mine.keys() | tensors.keys():
            if name.startswith("total.") and name not in tensors:
                continue
            expected, got = (
                f"{x[name].dtype} of shape {tuple(x[name].shape)}" if name in x else "no such tensor"
                for x in (mine, tensors)
            )
            if expected != got:
                raise ValueError(
                    f"expected {expected} for {name}, got {got}; the checkpoint is of another run, or of another "
                    "precision"
                )
        for name in tensors:
            mine[name].copy_(tensors[name])

    def _zero(self) -> Tensor:
        return torch.zeros((), dtype=torch.float64, device=self.device)

    def _batch_sizes(self, data: TrainingSet) -> list[int]:
        """The sizes of an epoch's batches; an error if there is nothing to train on."""
        batch, drop_last, many = self.recipe.batch, self.recipe.drop_last, self.processes.size
        if batch % many:
            raise ValueError(
                f"expected a batch that {many} processes can share equally, got {batch}; "
                + see("how-to/many-gpus#equal-parts")
            )
        if isinstance(data, PairSet) and data.sets is not None:
            self._sets = WholeSets(data.sets, batch, drop_last=drop_last, processes=many)
            return self._sets.sizes
        sizes = batch_sizes(len(data), batch, drop_last=drop_last, processes=many)
        what = "pairs" if isinstance(data, PairSet) else "images"
        if self.recipe.epochs and len(data) < 2:
            raise ValueError(f"expected at least two {what} to train on, got {len(data)} in {data.name}; add others")
        if self.recipe.epochs and not sizes:
            raise ValueError(
                f"expected a batch of at most the {len(data)} {what} of {data.name}, got {batch} with drop_last; "
                + see("how-to/errors#last-batch")
            )
        return sizes

    def _prepare(self, capture: bool, compile: bool) -> None:
        """Let the optimiser make its state, compile, capture a step; undo what this did to weights and state.

        Only a step with a full batch: to choose kernels for another size takes seconds, and it may never come.
        """
        before = {name: x.clone() for name, x in self.method.state_dict().items()}
        for parameter in self._parameters:
            parameter.grad = torch.zeros_like(parameter)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if compile:
            self._compile()
        if capture:
            self._pool, self._stream = torch.cuda.graph_pool_handle(), self._stream or new_stream()
            for kind in self._first_kinds(max(self._offsets)):
                self._graphs[kind] = self._captured(*kind, DDP_WARM_UP if self.processes.joined else WARM_UP)
        for name, x in self.method.state_dict().items():
            x.copy_(before[name])
        for name, x in self._mean.items():
            x.copy_(before[f"encoder.{name}"])
        for parameter in self._parameters:
            for x in self.optimizer.state[parameter].values():
                if isinstance(x, Tensor):
                    x.zero_()  # SGD: a momentum of 0 is what its first step starts from

    def _compile(self) -> None:
        """Compile the encoder and take a step with each batch size. If that fails, warn and go on without."""
        undo, reason = compile_encoder(self.method.encoder), ""
        try:
            with within(self._stream) if self._stream is not None else nullcontext():
                for rows in sorted(self._offsets, reverse=True):
                    for kind in self._first_kinds(rows):
                        self.begin(0)
                        self._step(*kind)
        except Exception as error:  # whatever a compiler may raise; an error of the network itself comes again
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
        if self.processes.largest(bool(reason), self.device):
            undo()
            warnings.warn(
                f"the encoder could not be compiled ({reason or 'on another process'}); training goes on without, "
                + see("how-to/large-batches#compile"),
                RuntimeWarning,
                stacklevel=2,
            )

    def _first_kinds(self, rows: int) -> list[Kind]:
        """The first step with each size of the views."""
        total = self.recipe.epochs * self.steps
        starts = (0.0, *self.recipe.views.options.get("until", ()))
        return list(dict.fromkeys(self._kind(rows, math.ceil(start * total)) for start in starts))

    def _captured(self, rows: int, phase: Hashable, since: float, warm_up: int) -> Callable[[], None]:
        try:
            step = partial(self._step, rows, phase, since)
            return captured(step, self._pool, before=lambda: self.begin(0), warm_up=warm_up, stream=self._stream)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            if isinstance(error, torch.OutOfMemoryError):
                hint = f"a batch below {self.recipe.batch} or more --parts need less memory"
            else:  # a loss that waits for the device, such as dense eigenvalues of more rows than our kernel takes
                hint = "--no-capture takes steps one by one"
            raise TrainingError(
                f"a step could not be captured in a CUDA graph ({reason}); {hint}, {see('how-to/errors#capture')}"
            ) from error


def untrained(recipe: Recipe, data: TrainingSet, seed: int) -> Method:
    """The method before its first step, on the CPU; torch's own generators go on as if nothing had been drawn."""
    with _drawing, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return create(recipe, data)


def _check_share() -> None:
    share = os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100")
    if share != "100":
        warnings.warn(
            f"expected CUDA_MPS_ACTIVE_THREAD_PERCENTAGE to be unset, got {share}: with a part of a GPU the libraries' "
            f"matrix products were wrong for some batch sizes; unset it, {see('how-to/errors#mps')}",
            RuntimeWarning,
            stacklevel=3,
        )


def _moved(data: TrainingSet, device: torch.device) -> TrainingSet:
    if isinstance(data, PairSet):
        return data.to(device)
    if data.images.device == device:
        return data
    if isinstance(data, ImageSet) and data.pixels is not None:  # they wait in a file
        return replace(data, images=data.pixels.onto(device), labels=data.labels.to(device), pixels=None)
    names = ("images", "labels") if isinstance(data, ImageSet) else ("images", "shots_a", "shots_b")
    return replace(data, **{name: getattr(data, name).to(device) for name in names})
