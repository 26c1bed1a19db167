"""Entropic losses of batches whose scores are too many to store: InfoNCE and NT-Xent, with labels or without.

Each score is computed twice, forward and backward, in tiles on the chip. Forward leaves one log-sum-exp a row. Backward
leaves the weights of one tile at a time, in half precision, which matrix products take to the gradients. (To keep the
gradients' sums on the chip too would take longer: those of 64 rows of 512 numbers fill half the registers of an H200's
processor, and each score would have to be computed a third time.)

Over many processes the stored rows go round a ring: each process has its own rows and one block of the others' at a
time, and while it works on a block the next is on its way. Sums that belong to a block travel behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import softplus

from setwise.checks import one_derivative
from setwise.kernels import scores as kernels
from setwise.kernels.scores import NOWHERE, Labels, Products, Stored
from setwise.losses.options import Temperature
from setwise.losses.parallel import Processes
from setwise.similarity import autocast_off, normalize

TALL, WIDE = 4096, 8192  # a tile of weights: 64 MiB in half precision
Sums = Sequence[Tensor]  # log-sum-exps and truths of rows, and of columns


@dataclass(frozen=True)
class Problem:
    """Which scores of rows x and columns y count, and what is asked for.

    ``same``: both are one set. ``itself``: row i is column i, which it may not choose. The partner of row i is column
    (i + shift) % n, which is left out of the log-sum-exps; where there are labels, every column with the row's label.
    """

    products: Products = "float32"
    same: bool = False
    itself: bool = False
    shift: int = 0
    columns: bool = False  # log-sum-exps of columns too
    processes: Processes | None = None

    @property
    def options(self) -> tuple[Products, bool, bool, int, bool]:
        """All but the processes."""
        return self.products, self.same, self.itself, self.shift, self.columns

    def place(self, start: int, n: int, column: int, owner: int, labelled: bool) -> kernels.Place:
        """Where a tile lies that begins at row ``start`` and at ``column`` of the block of process ``owner``."""
        here = owner == (0 if self.processes is None else self.processes.rank)
        partner = -column if here and not labelled else NOWHERE
        return start, n, self.shift, partner, -column if here and self.itself else NOWHERE


class _Ring:
    """The blocks of all processes, the own one first; the next is on its way while one is used."""

    def __init__(self, processes: Processes | None, block: list[Tensor]) -> None:
        self.processes, self.block = processes, block
        self.size = 1 if processes is None else processes.size

    def __iter__(self) -> Iterator[tuple[int, list[Tensor]]]:
        rank = 0 if self.processes is None else self.processes.rank
        for hop in range(self.size):
            last = hop + 1 == self.size
            coming, works = ([], []) if last else self.exchange(self.block)
            yield (rank - hop) % self.size, self.block
            for work in works:
                work.wait()
            self.block = coming

    def exchange(self, tensors: list[Tensor]) -> tuple[list[Tensor], list[dist.Work]]:
        """Begin to send to the next process and to receive from the one before."""
        assert self.processes is not None
        group, rank = self.processes.group, self.processes.rank
        after, before = ((rank + step) % self.size for step in (1, -1))
        if group is not None:
            after, before = dist.get_global_rank(group, after), dist.get_global_rank(group, before)
        coming = [torch.empty_like(x) for x in tensors]
        operations = [dist.P2POp(dist.isend, x, after, group) for x in tensors if x.numel()]
        operations += [dist.P2POp(dist.irecv, x, before, group) for x in coming if x.numel()]
        return coming, dist.batch_isend_irecv(operations)


class _Homeward:
    """Sums that belong to the blocks of a ring: every process adds its part, and after the last hop they are home."""

    def __init__(self, ring: _Ring, merge: Callable[[list[Tensor], list[Tensor]], list[Tensor]]) -> None:
        self.ring, self.merge = ring, merge
        self.sums: list[Tensor] = []
        self.works: list[dist.Work] = []

    def add(self, parts: list[Tensor]) -> None:
        """Add what this process has for the block that it holds, and send it on."""
        before = self.home()
        self.sums = self.merge(before, parts) if before else parts
        if self.ring.size > 1:
            self.sent = self.sums  # until it has arrived
            self.sums, self.works = self.ring.exchange(self.sums)

    def home(self) -> list[Tensor]:
        """What came from the process before; at the end, the sums of the own block."""
        for work in self.works:
            work.wait()
        self.works = []
        return self.sums


def _merged(first: list[Tensor], second: list[Tensor]) -> list[Tensor]:
    """Log-sum-exps and truths of the same rows over two blocks."""
    return [torch.logaddexp(first[0], second[0]), first[1] + second[1]]


def _added(first: list[Tensor], second: list[Tensor]) -> list[Tensor]:
    return [first[0].add_(second[0])]


def _strips(count: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


def _part(rows: Stored, place: slice) -> Stored:
    return Stored(rows.values[place], rows.lengths[:, place])


def _sums(z_x: Tensor, z_y: Tensor, scale: Tensor, labels: Labels, problem: Problem) -> tuple[Sums, Stored, Tensor]:
    """What ``kernels.sums`` gives, over all blocks; the stored rows of y, and the lengths of x.

    Without labels, the truths are the scores of the partners.
    """
    n, y = len(z_x), kernels.store(z_y, problem.products)
    rows: list[list[Tensor]] = []
    lengths: list[Tensor] = []
    ring = _Ring(problem.processes, [y.values] + ([] if labels is None else [labels[1]]))
    behind = _Homeward(ring, _merged)
    for owner, (values, *others) in ring:
        columns: list[Tensor] = []
        for number, strip in enumerate(_strips(n, TALL)):
            x = _part(y, strip) if problem.same else kernels.store(z_x[strip], problem.products)
            log, truth, *of_columns = kernels.sums(
                x,
                Stored(values, y.lengths),
                scale,
                place=problem.place(strip.start, n, 0, owner, labels is not None),
                labels=None if labels is None else (labels[0][strip], others[0]),
                columns=problem.columns,
            )
            if number < len(rows):
                rows[number] = _merged(rows[number], [log, truth])
            else:
                rows.append([log, truth])
                lengths.append(x.lengths)
            columns = _merged(columns, of_columns) if columns else of_columns
        if problem.columns:
            behind.add(columns)
    logs, truths = (_joined(parts) for parts in zip(*rows, strict=True))
    x_lengths = y.lengths if problem.same else _joined(lengths, 1)
    if labels is None:
        truths = kernels.dots(z_x, z_y, x_lengths, y.lengths, scale, problem.shift)
    column_logs, column_truths = behind.home() or [logs.new_empty(0)] * 2
    return (logs, truths, column_logs, column_truths), y, x_lengths


def _joined(parts: Sequence[Tensor], dim: int = 0) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat([*parts], dim)


def _most(grads: Sums, problem: Problem) -> Tensor:
    """The largest weight of all processes."""
    most = kernels.largest(*grads[:3])
    if problem.processes is not None and problem.processes.size > 1:
        dist.all_reduce(most, dist.ReduceOp.MAX, group=problem.processes.group)
    return most


def _gradients(
    z_x: Tensor,
    z_y: Tensor,
    scale: Tensor,
    labels: Labels,
    y: Stored,
    x_lengths: Tensor,
    logs: Sums,
    grads: Sums,
    problem: Problem,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Gradients in x, and in y unless it is x; <unit row, gradient in it> of x [n]."""
    (n, width), m = z_x.shape, len(z_y)
    most, of_rows = _most(grads, problem), (logs[0], grads[0], grads[1])
    travelling = [y.values] + ([] if labels is None else [labels[1]])
    if problem.same:
        travelling += of_rows
    elif problem.columns:
        travelling += logs[2], grads[2], grads[3]
    ring = _Ring(problem.processes, travelling)
    behind = _Homeward(ring, _added)
    total_x = torch.empty(n, width, dtype=logs[0].dtype, device=z_x.device)
    for hop, (owner, (values, *others)) in enumerate(ring):
        column_labels = None if labels is None else others.pop(0)
        total_y = total_x.new_empty(0 if problem.same else m, width)
        for strip in _strips(n, TALL):
            x = _part(y, strip) if problem.same else kernels.store(z_x[strip], problem.products)
            for tile in _strips(m, WIDE):
                weights = kernels.weights(
                    x,
                    Stored(values[tile], y.lengths),
                    scale,
                    place=problem.place(strip.start, n, tile.start, owner, labels is not None),
                    labels=None if labels is None or column_labels is None else (labels[0][strip], column_labels[tile]),
                    of_rows=tuple(v[strip] for v in of_rows),
                    of_columns=tuple(v[tile] for v in others) or None,
                    most=most,
                )
                kernels.add_product(total_x[strip], weights, values[tile], fresh=not hop and not tile.start)
                if not problem.same:
                    transposed = [part.mT for part in weights]
                    kernels.add_product(total_y[tile], transposed, x.values, fresh=not strip.start)
                    del transposed
                del weights  # before the next tile is made
        if not problem.same:
            behind.add([total_y])
    pulls = grads[1] if labels is None else grads[1][:0]
    back = pulls.roll(-problem.shift) if problem.shift else pulls
    ends = scale, most, y.span, problem.shift
    if problem.same:
        along = kernels.finish(total_x, z_x, y.lengths, z_y, y.lengths, pulls + back, *ends)
        return total_x.to(z_x.dtype), None, along
    (total_y,) = behind.home()
    along = kernels.finish(total_x, z_x, x_lengths, z_y, y.lengths, pulls, *ends)
    kernels.finish(total_y, z_y, y.lengths, z_x, x_lengths, back, *ends)
    return total_x.to(z_x.dtype), total_y.to(z_y.dtype), along


@torch.library.custom_op("setwise::log_sums", mutates_args=())
def _traced_sums(
    z_x: Tensor,
    z_y: Tensor,
    scale: Tensor,
    labels_x: Tensor | None,
    labels_y: Tensor | None,
    products: str,
    same: bool,
    itself: bool,
    shift: int,
    columns: bool,
) -> list[Tensor]:
    """``_sums`` as one operator, which torch.compile does not look into."""
    labels = None if labels_x is None or labels_y is None else (labels_x, labels_y)
    sums, y, x_lengths = _sums(z_x, z_y, scale, labels, Problem(products, same, itself, shift, columns))  # type: ignore[arg-type]
    return [*(x.clone() if not x.numel() else x for x in sums), *y, x_lengths.clone()]


@_traced_sums.register_fake
def _(
    z_x: Tensor,
    z_y: Tensor,
    scale: Tensor,
    labels_x: Tensor | None,
    labels_y: Tensor | None,
    products: Products,
    same: bool,
    itself: bool,
    shift: int,
    columns: bool,
) -> list[Tensor]:
    n, m, width = len(z_x), len(z_y), z_x.shape[1]
    dtype, parts, depth = kernels.layout(width, products) if z_x.is_cuda else (scale.dtype, 1, width)
    column_count = m if columns else 0
    lengths = [n, n, column_count, 0 if labels_x is None else column_count]
    stored = [z_x.new_empty((m, parts, depth), dtype=dtype), *(scale.new_empty(2, count, 1) for count in (m, n))]
    return [*map(scale.new_empty, lengths), *stored]


@torch.library.custom_op("setwise::log_sums_backward", mutates_args=())
def _traced_gradients(
    saved: list[Tensor],
    labels_x: Tensor | None,
    labels_y: Tensor | None,
    grads: list[Tensor],
    products: str,
    same: bool,
    itself: bool,
    shift: int,
    columns: bool,
) -> list[Tensor]:
    """``_gradients`` as one operator."""
    labels = None if labels_x is None or labels_y is None else (labels_x, labels_y)
    z_x, z_y, scale, values, lengths, x_lengths, *sums = saved
    problem = Problem(products, same, itself, shift, columns)  # type: ignore[arg-type]
    x, y, along = _gradients(z_x, z_y, scale, labels, Stored(values, lengths), x_lengths, sums, grads, problem)
    return [x, x.new_empty(0) if y is None else y, along]


@_traced_gradients.register_fake
def _(
    saved: list[Tensor],
    labels_x: Tensor | None,
    labels_y: Tensor | None,
    grads: list[Tensor],
    products: str,
    same: bool,
    itself: bool,
    shift: int,
    columns: bool,
) -> list[Tensor]:
    z_x, z_y, scale = saved[:3]
    return [torch.empty_like(z_x), z_x.new_empty(0) if same else torch.empty_like(z_y), scale.new_empty(len(z_x))]


class _LogSums(torch.autograd.Function):
    """Log-sum-exps and truths of rows and columns, with their gradients in x, y (None: x again) and the scale."""

    @staticmethod
    def forward(
        ctx: Any, z_x: Tensor, z_y: Tensor | None, scale: Tensor, labels: Labels, problem: Problem
    ) -> tuple[Tensor, ...]:
        z_x = z_x.contiguous()
        z_y = z_x if z_y is None else z_y.contiguous()
        if torch.compiler.is_compiling():
            made = _traced_sums(z_x, z_y, scale, *(labels or (None, None)), *problem.options)
            sums, stored = made[:4], made[4:]
        else:
            sums, y, x_lengths = _sums(z_x, z_y, scale, labels, problem)
            stored = [*y, x_lengths]
        ctx.problem, ctx.labels = problem, labels
        ctx.save_for_backward(z_x, z_y, scale, *stored, *sums)
        return tuple(sums)

    @staticmethod
    @one_derivative
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        z_x, z_y, scale, values, lengths, x_lengths, *sums = ctx.saved_tensors
        given, problem = [g.contiguous() for g in grads], ctx.problem
        y: Tensor | None
        if torch.compiler.is_compiling():
            saved = [z_x, z_y, scale, values, lengths, x_lengths, *sums]
            x, y, along = _traced_gradients(saved, *(ctx.labels or (None, None)), given, *problem.options)
            y = None if problem.same else y
        else:
            stored = Stored(values, lengths)
            x, y, along = _gradients(z_x, z_y, scale, ctx.labels, stored, x_lengths, sums, given, problem)
        # Of one set, each pair is counted from both sides.
        of_scale = along.sum() / (scale * (2 if problem.same else 1)) if ctx.needs_input_grad[2] else None
        return x, y, of_scale, None, None


log_sums: Callable[..., tuple[Tensor, ...]] = _LogSums.apply


def cross_losses(
    z_a: Tensor,
    z_b: Tensor,
    shared: Tensor | None,
    own: Tensor | None,
    symmetric: bool,
    temperature: Temperature,
    products: Products,
    processes: Processes | None,
    labels: Tensor | None,
) -> Tensor:
    """``structured.cross_losses`` under cosine: of this process's rows [N], or [2N] in both directions."""
    if symmetric and shared is not None:  # the columns have other candidates than the rows
        options = (shared, own, False, temperature, products, processes, labels)
        return torch.cat([cross_losses(z_a, z_b, *options), cross_losses(z_b, z_a, *options)])
    problem = Problem(products, columns=symmetric, processes=processes)
    others = z_b if shared is None else torch.cat([z_b, shared.to(z_b.dtype)])
    scale = _scale(z_a, temperature)
    given = None if labels is None else (labels, _labels_of(labels, len(others)))
    logs, truths, column_logs, column_truths = log_sums(z_a, others, scale, given, problem)
    sides = [(z_a, logs, truths)]
    if symmetric:
        sides.append((z_b, column_logs, truths if labels is None else column_truths))
    counts = None if labels is None else _partners(labels, processes)
    return _joined([_losses(z, log, truth, own, scale, counts) for z, log, truth in sides])


def all_losses(
    z_a: Tensor,
    z_b: Tensor,
    shared: Tensor | None,
    own: Tensor | None,
    temperature: Temperature,
    products: Products,
    processes: Processes | None,
    labels: Tensor | None,
) -> Tensor:
    """``structured.all_losses`` under cosine: of this process's 2N views."""
    views, scale = torch.cat([z_a, z_b]), _scale(z_a, temperature)
    problem = Problem(products, shared is None, True, len(z_a), False, processes)
    others = None if shared is None else torch.cat([views, shared.to(views.dtype)])
    given = counts = None
    if labels is not None:
        both = torch.cat([labels, labels])
        given = both, _labels_of(both, len(views if others is None else others))
        counts = _partners(both, processes) - 1
    logs, truths, *_ = log_sums(views, others, scale, given, problem)
    # Both views of an item have its negatives.
    return _losses(views, logs, truths, None if own is None else torch.cat([own, own]), scale, counts)


def _scale(z: Tensor, temperature: Temperature) -> Tensor:
    """1 / temperature as a tensor [] on the device, in the precision of the scores."""
    wide = torch.float64 if z.dtype == torch.float64 else torch.float32
    if isinstance(temperature, Tensor):
        return 1 / temperature.to(wide)
    return torch.full((), 1 / temperature, dtype=wide, device=z.device)


def _labels_of(labels: Tensor, columns: int) -> Tensor:
    """Labels of all columns; extra negatives have the smallest number there is, which no row should have."""
    nobody = torch.iinfo(torch.int64).min
    return labels if columns == len(labels) else torch.cat([labels, labels.new_full((columns - len(labels),), nobody)])


def _partners(labels: Tensor, processes: Processes | None) -> Tensor:
    """How many rows of all processes have the label of each [n]."""
    every = (labels if processes is None else processes.gather(labels)).sort().values
    return torch.searchsorted(every, labels, right=True) - torch.searchsorted(every, labels)


def _losses(
    z: Tensor, logs: Tensor, truths: Tensor, own: Tensor | None, scale: Tensor, counts: Tensor | None
) -> Tensor:
    """Losses from log-sum-exps and truths; without labels the log-sum-exps leave the partner out."""
    if own is not None:
        with autocast_off(z):
            more = (normalize(own) @ normalize(z)[:, :, None]).squeeze(2) * scale  # [n, K]
        logs = torch.logaddexp(logs, more.logsumexp(1))
    return softplus(logs - truths) if counts is None else logs - truths / counts
