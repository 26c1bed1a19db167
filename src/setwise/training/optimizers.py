"""Optimisers by name. Each takes groups of parameters and a learning rate, which a training step sets: a tensor."""

from __future__ import annotations

from inspect import unwrap
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

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

    ``clip``: ratio / lr instead, at most 1, as today's libraries train on small images: lr is then an upper bound.
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
        clip: bool = False,
    ) -> None:
        options = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust, "clip": clip}
        super().__init__(groups, options)

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
                    if group["clip"]:
                        ratio = (ratio / group["lr"]).clamp(max=1)
                    step = (step + decay * w) * torch.where((size > 0) & (slope > 0), ratio, 1.0)
                v = self.state[w].setdefault("momentum_buffer", torch.zeros_like(w))
                w.sub_(v.mul_(group["momentum"]).add_(step * group["lr"]))


@register.optimizer("muon", about="Orthogonal steps for matrices, and for filters if asked; AdamW's for the rest.")
class Muon(torch.optim.Optimizer):
    """torch's Muon (Jordan et al. 2024) for parameters of two dimensions, AdamW for all others, at one rate.

    With ``filters`` the weights of convolutions [O, I, H, W] count as matrices too, each filter a row. Muon's steps
    have the length of AdamW's (Liu et al. 2025). It takes them at rate 1, and the rest of the way back by ``lerp``:
    torch's own would read the rate, a tensor, from the device.
    """

    def __init__(
        self,
        groups: Groups,
        *,
        lr: Rate = 1e-3,
        momentum: float = 0.95,
        weight_decay: float = 0.05,
        filters: bool = False,
    ) -> None:
        if not hasattr(torch.optim, "Muon"):
            raise ValueError(f"expected torch 2.9 or later for muon, got {torch.__version__}; take --optimizer adamw")
        super().__init__(groups, {"lr": lr})
        most = 4 if filters else 2
        matrices, others = (
            [
                group | {"params": [w for w in group["params"] if (2 <= w.ndim <= most) == wanted]}
                for group in self.param_groups
            ]
            for wanted in (True, False)
        )
        self._weights = [group["params"] for group in matrices]
        for group in matrices:
            group["lr"] = 1.0
            group["params"] = [w if w.ndim == 2 else nn.Parameter(_rows(w)) for w in group["params"]]
        muon = torch.optim.Muon(matrices, momentum=momentum, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw")
        rest = torch.optim.AdamW(others, lr, weight_decay=weight_decay, fused=True, capturable=_on_gpu(lr))
        self._muon, self._rest = muon, rest
        muon.state = rest.state = self.state  # so that a checkpoint finds all of it
        for weights, group in zip(self._weights, muon.param_groups, strict=True):
            for w, matrix in zip(weights, group["params"], strict=True):
                self.state[w] = self.state[matrix]

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take a step, without waiting for the device."""
        self._rest.step()
        before = []
        for weights, group in zip(self._weights, self._muon.param_groups, strict=True):
            for w, matrix in zip(weights, group["params"], strict=True):
                if w is not matrix:
                    matrix.copy_(_rows(w))
                    matrix.grad = None if w.grad is None else _rows(w.grad)
            before.append([matrix.clone() for matrix in group["params"]])
        self._muon.step()  # type: ignore[no-untyped-call]
        for i, (group, here) in enumerate(zip(self.param_groups, self._muon.param_groups, strict=True)):
            rate = torch.as_tensor(group["lr"])
            for w, matrix, start in zip(self._weights[i], here["params"], before[i], strict=True):
                new = start.lerp(matrix, rate.to(w.device, w.dtype))
                w.copy_(new if w is matrix else new.view(w.shape[0], *w.shape[2:], w.shape[1]).movedim(-1, 1))


def _rows(w: Tensor) -> Tensor:
    """Filters [O, I, ...] as rows [O, ... I]: of channels-last weights the same memory."""
    return w.detach().movedim(1, -1).flatten(1)


def _on_gpu(rate: Rate) -> bool:
    return isinstance(rate, Tensor) and rate.is_cuda
