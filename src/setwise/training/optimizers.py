"""Optimisers by name. Each takes groups of parameters and a learning rate, which a training step sets: a tensor."""

from __future__ import annotations

from inspect import unwrap
from typing import Any, TypeVar

import torch
from torch import Tensor

import setwise.register as register

Groups = list[dict[str, Any]]
Rate = float | Tensor
T = TypeVar("T", bound=torch.optim.Optimizer)


def _light(kind: type[T]) -> type[T]:
    """``kind`` without torch's compiler. torch imports it, for a second or two, to keep it away from these methods."""
    plain = {name: unwrap(getattr(kind, name)) for name in ("add_param_group", "zero_grad", "step")}
    return type(kind.__name__, (kind,), plain | {"step": torch.no_grad()(plain["step"])})


Adam, AdamW, SGD = _light(torch.optim.Adam), _light(torch.optim.AdamW), _light(torch.optim.SGD)


@register.optimizer("adam", about="Adam, as the paper trains.")
def adam(groups: Groups, *, lr: Rate = 1e-3, weight_decay: float = 0.0) -> torch.optim.Optimizer:
    """Adam; weight decay is added to the gradient."""
    return Adam(groups, lr, weight_decay=weight_decay, fused=True, capturable=_on_gpu(lr))


@register.optimizer("adamw", about="Adam with decoupled weight decay: for transformers.")
def adamw(groups: Groups, *, lr: Rate = 1e-3, weight_decay: float = 0.05) -> torch.optim.Optimizer:
    """AdamW."""
    return AdamW(groups, lr, weight_decay=weight_decay, fused=True, capturable=_on_gpu(lr))


@register.optimizer("sgd", about="Stochastic gradient descent with momentum: for residual networks.")
def sgd(groups: Groups, *, lr: Rate = 0.1, momentum: float = 0.9, weight_decay: float = 0.0) -> torch.optim.Optimizer:
    """SGD."""
    return SGD(groups, lr, momentum, weight_decay=weight_decay, fused=True)


@register.optimizer("lars", about="SGD whose step follows each layer's weights in length: for large batches.")
class LARS(torch.optim.Optimizer):
    """Layer-wise adaptive rates (You, Gitman and Ginsburg 2017).

        v = momentum · v + lr · ratio · (g + weight_decay · w),  w = w - v
        ratio = trust · |w| / (|g| + weight_decay · |w|)

    Biases and the weights of norms, which have one dimension, take plain steps: ratio 1, no weight decay.
    """

    def __init__(
        self,
        groups: Groups,
        *,
        lr: Rate = 0.3,
        momentum: float = 0.9,
        weight_decay: float = 1e-6,
        trust: float = 1e-3,
    ) -> None:
        super().__init__(groups, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take a step, without waiting for the device."""
        for group in self.param_groups:
            for w in group["params"]:
                if w.grad is None:
                    continue
                step = w.grad
                if w.ndim > 1:
                    decay, size, slope = group["weight_decay"], w.norm(), w.grad.norm()
                    ratio = group["trust"] * size / (slope + decay * size)
                    step = (step + decay * w) * torch.where((size > 0) & (slope > 0), ratio, 1.0)
                v = self.state[w].setdefault("momentum_buffer", torch.zeros_like(w))
                w.sub_(v.mul_(group["momentum"]).add_(step * group["lr"]))


@register.optimizer("muon", about="Orthogonal steps for matrices, AdamW's for the rest: for transformers.")
class Muon(torch.optim.Optimizer):
    """torch's Muon (Jordan et al. 2024) for parameters of two dimensions, AdamW for all others, at one rate.

    Muon's steps have the length of AdamW's (Liu et al. 2025). It takes them at rate 1, and the rest of the way back by
    ``lerp``: torch's own would read the rate, a tensor, from the device.
    """

    def __init__(self, groups: Groups, *, lr: Rate = 1e-3, momentum: float = 0.95, weight_decay: float = 0.05) -> None:
        if not hasattr(torch.optim, "Muon"):
            raise ValueError(f"expected torch 2.9 or later for muon, got {torch.__version__}; take --optimizer adamw")
        super().__init__(groups, {"lr": lr})
        matrices, others = ([_part(group, two) for group in self.param_groups] for two in (True, False))
        for group in matrices:
            group["lr"] = 1.0
        muon = torch.optim.Muon(matrices, momentum=momentum, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw")
        rest = torch.optim.AdamW(others, lr, weight_decay=weight_decay, fused=True, capturable=_on_gpu(lr))
        self._muon, self._rest = muon, rest
        muon.state = rest.state = self.state  # so that a checkpoint finds all of it

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take a step, without waiting for the device."""
        self._rest.step()
        before = [[w.clone() for w in group["params"]] for group in self._muon.param_groups]
        self._muon.step()  # type: ignore[no-untyped-call]
        for group, here, old in zip(self.param_groups, self._muon.param_groups, before, strict=True):
            for w, start in zip(here["params"], old, strict=True):
                w.copy_(start.lerp(w, torch.as_tensor(group["lr"], device=w.device).to(w.dtype)))


def _part(group: dict[str, Any], matrices: bool) -> dict[str, Any]:
    return group | {"params": [w for w in group["params"] if (w.ndim == 2) == matrices]}


def _on_gpu(rate: Rate) -> bool:
    return isinstance(rate, Tensor) and rate.is_cuda
