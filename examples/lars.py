"""LARS (You, Gitman and Ginsburg 2017), as if the library did not have it: a step for every layer's own length.

    setwise pretrain --use examples/lars.py --optimizer my-lars --lr 4.8 --schedule cosine --batch 1024

It shows an optimiser of your own. The learning rate is a tensor that each step reads: on a GPU the step is one captured
graph, in which nothing may wait for a number.
"""

from typing import Any

import torch
from torch import Tensor

import setwise as sw


@sw.register.optimizer("my-lars", about="SGD whose step follows each layer's weights in length.")
class LARS(torch.optim.Optimizer):
    """v = momentum · v + lr · ratio · (g + decay · w), w = w - v, with ratio = trust · |w| / (|g| + decay · |w|)."""

    def __init__(
        self, groups: list[dict[str, Any]], *, lr: float | Tensor = 0.3, momentum: float = 0.9,
        weight_decay: float = 1e-6, trust: float = 1e-3,
    ) -> None:  # fmt: skip
        super().__init__(groups, {"lr": lr, "momentum": momentum, "decay": weight_decay, "trust": trust})

    @torch.no_grad()
    def step(self) -> None:
        """Take a step; biases and norms, of one dimension, are neither scaled nor decayed."""
        for group in self.param_groups:
            for w in group["params"]:
                g = w.grad
                if w.ndim > 1:
                    ratio = group["trust"] * w.norm() / (g.norm() + group["decay"] * w.norm())
                    g = (g + group["decay"] * w) * torch.where(w.norm() * g.norm() > 0, ratio, 1.0)
                v = self.state[w].setdefault("momentum", torch.zeros_like(w))
                w.sub_(v.mul_(group["momentum"]).add_(g * group["lr"]))
