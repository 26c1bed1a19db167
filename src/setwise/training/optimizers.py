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


class _Own(torch.optim.Optimizer):
    """What our own are made of: as light."""

    add_param_group = unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = unwrap(torch.optim.Optimizer.zero_grad)


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
class LARS(_Own):
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
class Muon(_Own):
    """Muon (Jordan et al. 2024) for parameters of two dimensions, AdamW for all others, at one rate.

        v = v + (1 - momentum) · (g - v),  u = g + momentum · (v - g)
        w = w - lr · (weight_decay · w + 0.2 · √(larger side) · orthogonal(u))

    With ``filters`` the weights of convolutions [O, I, H, W] count as matrices too, each filter a row. A step has the
    length of AdamW's (Liu et al. 2025). torch's own would read the rate, a tensor, from the device, and multiplies in
    bfloat16 on a CPU too, where one test run of ours ended in oneDNN's code for it.
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
        super().__init__(groups, {"lr": lr, "weight_decay": weight_decay})
        self._momentum, most = momentum, 4 if filters else 2
        self._matrices = [[w for w in group["params"] if 2 <= w.ndim <= most] for group in self.param_groups]
        others = [
            group | {"params": [w for w in group["params"] if not 2 <= w.ndim <= most]} for group in self.param_groups
        ]
        self._rest = AdamW(others, lr, weight_decay=weight_decay, fused=True, capturable=_on_gpu(lr))
        self._rest.state = self.state  # so that a checkpoint finds all of it

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take a step, without waiting for the device."""
        self._rest.step()
        for group, matrices in zip(self.param_groups, self._matrices, strict=True):
            for w in matrices:
                if w.grad is None:
                    continue
                g = _rows(w.grad)
                if "momentum_buffer" not in self.state[w]:
                    self.state[w]["momentum_buffer"] = torch.zeros_like(g)
                v = self.state[w]["momentum_buffer"].lerp_(g, 1 - self._momentum)
                u = orthogonal(g.lerp(v, self._momentum)).to(w.dtype).mul_(0.2 * max(g.shape) ** 0.5)
                step = u if w.ndim == 2 else u.view(w.shape[0], *w.shape[2:], w.shape[1]).movedim(-1, 1)
                w.sub_(step.add(w, alpha=group["weight_decay"]) * group["lr"])


QUINTIC = (3.4445, -4.7750, 2.0315)  # Jordan's: singular values come near to 1 in few steps, and stay near it


def orthogonal(matrix: Tensor, *, steps: int = 5) -> Tensor:
    """Nearly U Vᵀ of a matrix U S Vᵀ: singular values between about 0.7 and 1.2, by Newton and Schulz.

    X = X / |X|,  then  X = a X + (b XXᵀ + c (XXᵀ)²) X  in each step
    """
    a, b, c = QUINTIC
    x = _working(matrix)
    high = x.shape[0] > x.shape[1]
    x = x.mT if high else x
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if high else x


def _working(matrix: Tensor) -> Tensor:
    """It in the precision in which it is multiplied."""
    return matrix.bfloat16() if matrix.is_cuda else matrix


def _rows(w: Tensor) -> Tensor:
    """Filters [O, I, ...] as rows [O, ... I]: of channels-last weights the same memory."""
    return w.detach().movedim(1, -1).flatten(1)


def _on_gpu(rate: Rate) -> bool:
    return isinstance(rate, Tensor) and rate.is_cuda
