"""Many processes, one batch: torchrun starts them, torch.distributed and DDP do the work."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import Tensor, nn

from setwise.losses.parallel import Processes


def join(device: torch.device) -> tuple[Processes, torch.device]:
    """Join the processes that torchrun started, be it only one, and the device that this one is to use."""
    if "WORLD_SIZE" not in os.environ or "RANK" not in os.environ:
        return Processes(), device
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return Processes(), device


def leave() -> None:
    """Leave them, if there were any."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


class _SharedNorm(nn.modules.batchnorm._BatchNorm):
    """BatchNorm over the batch of all processes, where torch's SyncBatchNorm does not run: on a CPU, above all."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        self._check_input_dim(input)  # type: ignore[no-untyped-call]
        over = [0, *range(2, input.ndim)]
        shape = [1, -1, *[1] * (input.ndim - 2)]
        processes = Processes()
        count = input.numel() // input.shape[1] * processes.size  # equal parts
        x = input.to(torch.promote_types(input.dtype, torch.float32))
        mean = processes.gather(x.sum(over)[None]).sum(0) / count
        centred = x - mean.view(shape)
        variance = processes.gather(centred.square().sum(over)[None]).sum(0) / count
        if self.track_running_stats:
            self._track(mean.detach(), variance.detach() * count / (count - 1))
        y = centred * (variance + self.eps).rsqrt().view(shape)
        if self.weight is not None:
            y = y * self.weight.view(shape)
        if self.bias is not None:
            y = y + self.bias.view(shape)
        return y.to(input.dtype)

    def _track(self, mean: Tensor, variance: Tensor) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked += 1
        momentum = 1 / int(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, momentum)
        self.running_var.lerp_(variance, momentum)


def share_norms(model: nn.Module, device: torch.device) -> None:
    """Let every BatchNorm take its statistics over the batch of all processes, where it is in training.

    Only its class changes, to one that inherits from its own: all else stays, be it frozen, without weights or hooked.
    """
    plain = nn.modules.batchnorm._BatchNorm
    for norm in model.modules():
        if not isinstance(norm, plain) or isinstance(norm, (_SharedNorm, nn.SyncBatchNorm)):
            continue
        # torch's own fails in bfloat16 where no statistics are kept ("Expected counts to have type BFloat16", 2.11).
        shared = nn.SyncBatchNorm if device.type != "cpu" and norm.track_running_stats else _SharedNorm
        kind = type(norm)
        if kind.forward is not plain.forward:
            raise ValueError(
                f"expected every BatchNorm to compute what torch's does, got {kind.__name__} with a forward of its "
                "own, which has no form over many processes; put what it adds into a layer after nn.BatchNorm2d"
            )
        norm.__class__ = type(
            f"Shared{kind.__name__}", (shared, kind), {"process_group": None, "processes": Processes()}
        )
