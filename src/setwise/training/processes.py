"""Many processes, one batch: torchrun starts them, torch.distributed and DDP do the work."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


@dataclass(frozen=True)
class Processes:
    """Who this process is among those that train together."""

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the one that writes and talks."""
        return self.rank == 0

    def largest(self, word: int, device: torch.device) -> int:
        """The largest of everybody's words; all must ask."""
        if self.size == 1:
            return word
        words = torch.tensor(word, device=device)
        dist.all_reduce(words, op=dist.ReduceOp.MAX)
        return int(words.item())

    def mean(self, x: Tensor) -> Tensor:
        """The mean of ``x`` over the processes; all must ask."""
        if self.size > 1:
            x = x / self.size
            dist.all_reduce(x)
        return x


def join(device: torch.device) -> tuple[Processes, torch.device]:
    """Join the processes that torchrun started, if it did, and the device that this one is to use."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return Processes(), device
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return Processes(dist.get_rank(), dist.get_world_size()), device


def leave() -> None:
    """Leave them, if there were any."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


class _Sum(torch.autograd.Function):
    """Sum over the processes; backward, the sum of what all of them ask of it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return _Sum.forward(ctx, grad)


class _SharedNorm(nn.modules.batchnorm._BatchNorm):
    """BatchNorm over the batch of all processes, on a CPU, where torch's SyncBatchNorm does not run."""

    def _check_input_dim(self, input: Tensor) -> None:
        if input.ndim < 2:
            raise ValueError(f"expected at least 2 dimensions, got {input.ndim}")

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        self._check_input_dim(input)
        over = [0, *range(2, input.ndim)]
        shape = [1, -1, *[1] * (input.ndim - 2)]
        count = input.numel() // input.shape[1] * dist.get_world_size()  # equal parts
        x = input.to(torch.promote_types(input.dtype, self.weight.dtype))  # sums of bf16 in float32
        mean: Tensor = _Sum.apply(x.sum(over)) / count  # type: ignore[no-untyped-call]
        centred = x - mean.view(shape)
        variance: Tensor = _Sum.apply(centred.square().sum(over)) / count  # type: ignore[no-untyped-call]
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        assert self.momentum is not None
        with torch.no_grad():
            self.num_batches_tracked += 1
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(variance * count / (count - 1), self.momentum)
        scaled = centred * (variance + self.eps).rsqrt().view(shape)
        return (scaled * self.weight.view(shape) + self.bias.view(shape)).to(input.dtype)


def share_norms(model: nn.Module, device: torch.device) -> nn.Module:
    """Let every BatchNorm take its statistics over the batch of all processes; the state_dict stays the same."""
    if device.type != "cpu":
        converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
        return converted
    for name, child in model.named_children():
        if isinstance(child, nn.modules.batchnorm._BatchNorm):
            shared = _SharedNorm(child.num_features, child.eps, child.momentum)
            shared.load_state_dict(child.state_dict())
            setattr(model, name, shared.to(child.weight.dtype))
        else:
            share_norms(child, device)
    return model
