"""The same losses over many processes: the loss of the whole batch, wherever its parts are.

With R processes holding N items each, a loss over ``Processes`` is that of the R·N items together, the same number on
every process. The embeddings are gathered for InfoNCE, NT-Xent and SparseCLR (each process scores its own rows only);
QARe under cosine with the eigenvalue bound needs one sum of 2 (E+1)² numbers over processes, whatever N is. So do most
set-level terms, VICReg and Barlow Twins, see ``setwise.losses.gram``.

Gradients. ``DistributedDataParallel`` *averages* parameter gradients over processes, but the gradient of the global
loss is their *sum*: Σ_r (∂z_r/∂θ)ᵀ ∂L/∂z_r. So with ``gradient="average"`` (the default, for DDP and anything that
averages) the gradient each process gets for its own embeddings is R · ∂L/∂z_r, and the average over processes is that
of one process with the whole batch; no factor is left to the user. ``gradient="sum"`` gives ∂L/∂z_r itself, for loops
that add gradients up.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from setwise.checks import check_loss, check_option, one_derivative, see


class _Gather(torch.autograd.Function):
    """Rows of all processes in the order of their ranks; backward, the sum of all processes' gradients of each row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ctx.group, ctx.rows = group, len(x)
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, x.contiguous(), group=group)
        return torch.cat(parts)

    @staticmethod
    @one_derivative
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        grad = grad.clone()
        dist.all_reduce(grad, group=ctx.group)
        start = dist.get_rank(ctx.group) * ctx.rows
        return grad[start : start + ctx.rows], None


class _Total(torch.autograd.Function):
    """Sum over processes. All of them compute the same with it, so its gradients need no message."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ctx.processes = dist.get_world_size(group)
        total = x.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    @one_derivative
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.processes * grad, None


@dataclass(frozen=True)
class Processes:
    """The processes that share a batch, an equal part each: those of ``group``, or of all that torch.distributed knows.

    Where torch.distributed is not initialised there is one, and every exchange gives back what it was given.
    ``gradient``: how gradients are combined after the loss, see the module's text. All processes must make each call.
    """

    group: dist.ProcessGroup | None = None
    gradient: Literal["average", "sum"] = "average"
    rank: int = field(init=False, default=0)
    size: int = field(init=False, default=1)

    def __post_init__(self) -> None:
        check_option(self.gradient, ("average", "sum"), "gradient")
        if self.joined:
            object.__setattr__(self, "rank", dist.get_rank(self.group))
            object.__setattr__(self, "size", dist.get_world_size(self.group))

    def __reduce__(self) -> tuple[object, ...]:
        """A file may be read by a process of another rank."""
        return Processes, (self.group, self.gradient)

    def __deepcopy__(self, memo: dict[int, Any]) -> Processes:
        """Itself: it never changes, and a group of processes cannot be copied."""
        return self

    @property
    def joined(self) -> bool:
        """Whether there is a process group, be it of one."""
        return dist.is_available() and dist.is_initialized()

    @property
    def capturable(self) -> bool:
        """Whether a CUDA graph can hold the messages."""
        return not self.joined or dist.get_backend(self.group) == "nccl"

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes files and messages."""
        return self.rank == 0

    def check_equal_parts(self, z: Tensor) -> None:
        """Raise unless every process holds as many rows; on the CPU only, since it waits for all processes."""
        if self.size == 1 or z.device.type != "cpu" or torch.compiler.is_compiling():
            return
        counts = self.gather(torch.tensor([len(z)])).tolist()
        if len(set(counts)) > 1:
            raise ValueError(
                f"expected as many rows on every process, got {counts}; drop the last partial batch or pad it, "
                + see("how-to/many-gpus#equal-parts")
            )

    def gather(self, x: Tensor) -> Tensor:
        """[R·N, ...] from every process's [N, ...], differentiable."""
        if self.size == 1:
            return x
        gathered: Tensor = _Gather.apply(x, self.group)  # type: ignore[no-untyped-call]
        return gathered

    def total(self, x: Tensor) -> Tensor:
        """Sum over processes, differentiable; all must compute the same with it, so that gradients need no message."""
        if self.size == 1:
            return x
        total: Tensor = _Total.apply(x, self.group)  # type: ignore[no-untyped-call]
        return total

    def mean(self, x: Tensor) -> Tensor:
        """Mean over processes, differentiable: each gets the mean of all their gradients.

        So a temperature has its whole gradient, though DDP does not look after it: it is no parameter of the model.
        """
        return x if self.size == 1 else self.gather(x[None]).mean(0)

    def largest(self, number: int, device: torch.device) -> int:
        """The largest of every process's number."""
        return number if self.size == 1 else int(self.gather(torch.tensor([number], device=device)).max())

    def finish(self, loss: Tensor) -> Tensor:
        """The loss with its gradient in the chosen convention."""
        if self.gradient == "average" or self.size == 1:
            return loss
        return loss / self.size + loss.detach() * (1 - 1 / self.size)


Loss = TypeVar("Loss", bound=Callable[..., Tensor])


def distributed(
    loss: Loss, *, group: dist.ProcessGroup | None = None, gradient: Literal["average", "sum"] = "average"
) -> Loss:
    """A copy of ``loss`` that is over the batches of all processes in ``group`` together.

    Use it where each process has a part of the batch. ``loss``: InfoNCE, NTXent, SparseCLR, VICReg, BarlowTwins, QARe,
    another set-level term of ours, or a SetContrastive of them; the copy shares their parameters. See the module's text
    for ``gradient``. In one process the result is ``loss`` itself, of any kind, so one script runs both ways. Where
    torchrun started many processes, call ``torch.distributed.init_process_group`` first.

    Examples:
        >>> sw.distributed(sw.InfoNCE(temperature=0.5))(torch.eye(4), torch.eye(4))  # torchrun starts many processes
        tensor(0.3408)
    """
    check_loss(loss, "loss")
    peers = Processes(group, gradient)
    if peers.size == 1:
        initialised = dist.is_available() and dist.is_initialized()
        if not initialised and int(os.environ.get("WORLD_SIZE") or 1) > 1:
            raise ValueError(
                "expected torch.distributed to be initialised before a loss over processes is made; "
                "call torch.distributed.init_process_group first (torchrun sets what it needs), "
                + see("how-to/many-gpus#own-loop")
            )
        return loss
    shared = [*loss.parameters(), *loss.buffers()] if isinstance(loss, nn.Module) else []
    loss = copy.deepcopy(loss, {id(x): x for x in shared})
    for part in _parts(loss):
        options = getattr(part, "_options", {})
        if "peers" not in options:
            name = type(part).__name__ if isinstance(part, nn.Module) else getattr(part, "__name__", repr(part))
            raise ValueError(
                f"expected InfoNCE, NTXent, SparseCLR, VICReg, BarlowTwins, a set-level term of setwise's or a "
                f"SetContrastive of them, got {name}, "
                "which has no form over many processes; gather the embeddings and call it on all of them, "
                + see("how-to/many-gpus#own-loop")
            )
        options["peers"] = peers
    return loss


def _parts(loss: object) -> list[object]:
    """The losses that ``loss`` is made of, or itself; functions too, which are no children of a module."""
    if not isinstance(loss, nn.Module) or "peers" in getattr(loss, "_options", {}):
        return [loss]
    functions = [vars(loss)[name] for name in ("pairwise", "regularizer", "function") if callable(vars(loss).get(name))]
    return [part for inner in (*loss.children(), *functions) for part in _parts(inner)] or [loss]
