"""What stands for our kernels on the GPU of gpu.py: a look at their arguments, or plain code that does their work."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import gpu

launched: set[str] = set()


def arguments(text: str, name: str) -> list[str]:
    """The kinds of a kernel's parameters: "pointer", "int" or "double"."""
    found = re.search(rf"\b{name}\s*\(([^)]*)\)\s*{{", re.sub(r"//[^\n]*", "", text))
    assert found, f"no kernel {name}"
    kinds = []
    for one in found[1].split(","):
        kinds.append("pointer" if "*" in one else "double" if "double" in one.split() else "int")
    return kinds


class Kernel:
    """A kernel that is only asked whether its arguments fit."""

    def __init__(self, files: str | Sequence[str], name: str, defines: Mapping[str, object], shared: int = 0) -> None:
        from setwise.kernels.nvrtc import source

        self.name, self.kinds = name, arguments(source(files, defines), name)

    def __call__(self, *, grid: Any, block: Any, args: Sequence[Any], early: bool = False) -> None:
        import torch

        kinds = ["pointer" if isinstance(x, torch.Tensor) else "int" if isinstance(x, int) else "double" for x in args]
        assert kinds == self.kinds, f"{self.name} takes {self.kinds}, got {kinds}"
        tensors = [x for x in args if isinstance(x, torch.Tensor)]
        for x in tensors:
            assert x.is_cuda, f"{self.name} got a tensor of the host"
            if x.dtype == torch.int64:
                x.memory_.clamp_(min=0)  # an index that the kernel finds is -1 before
        assert all(n > 0 for n in (*grid, *block)), f"{self.name}: {grid} blocks of {block}"
        launched.add(self.name)


class Work:
    """What a kernel does, done by other code: an operator that writes to its arguments."""

    _schema, is_view = SimpleNamespace(is_mutable=True), False

    def __init__(self, work: Callable[..., object]) -> None:
        self.work = work

    def __call__(self, *args: Any) -> None:
        inner = [getattr(x, "memory_", x) for x in args]
        if gpu.capturing is not None:
            gpu.capturing.keep(self, inner)
            gpu.capturing.record(self, (inner, {}), None)
        self.work(*inner)


def eigh(a: Any, values: Any, vectors: Any) -> None:
    """Of eigh.cu."""
    import torch

    found = torch.linalg.eigh(a)
    values.copy_(found.eigenvalues)
    vectors.copy_(found.eigenvectors.mT)


def assign_sets(scores: Any, ids_a: Any, ids_b: Any, *rest: Any) -> None:
    """Of assign.cu."""
    from scipy.optimize import linear_sum_assignment

    *_, to_b, to_a, _n, _m = rest
    for one in ids_a.unique().tolist():
        rows, columns = ((ids == one).nonzero()[:, 0] for ids in (ids_a, ids_b))
        i, j = linear_sum_assignment(scores[rows][:, columns].double().numpy(), maximize=True)
        to_b[rows[i]], to_a[columns[j]] = columns[j], rows[i]


def scale_sets(scores: Any, ids_a: Any, ids_b: Any, heats: Any, *rest: Any) -> None:
    """Of scale.cu."""
    import torch

    from setwise.assignment import scaling
    from setwise.losses.shares import _spare

    *_, of_a, of_b, _n, _m, passes, falling, alone = rest
    assert (passes, falling) == (scaling.PASSES, scaling.PASSES - scaling.LAST)
    allowed = ids_a[:, None] == ids_b
    spare, level = (_spare(allowed), None) if alone == -torch.inf else ((None, None), alone)
    found = scaling.scaled_assignments(scores.masked_fill(~allowed, -torch.inf), *heats, *spare, level)
    for out, shares in zip((of_a, of_b), found, strict=True):
        out.copy_(shares)


PLAIN: dict[str, Callable[..., object]] = {"eigh": eigh, "assign_sets": assign_sets, "scale_sets": scale_sets}


def plain_kernel(
    files: str | Sequence[str], name: str, defines: Mapping[str, object], shared: int = 0
) -> Callable[..., None]:
    """Kernels that plain code of ours stands for; others have plain torch in their place."""
    if name not in PLAIN:
        raise RuntimeError("none here")
    work = Work(PLAIN[name])
    return lambda *, args, **_: work(*args)


def plain_views(
    ranges: Any, finish: Any, images: Any, samples: Any, seed: Any, epoch: Any, first: int, count: int
) -> Any:
    """Of views.cu: the plain path, on the CPU."""
    from setwise.kernels.views import _empty
    from setwise.views import draw, render

    def work(images: Any, samples: Any, seed: Any, epoch: Any, out: Any) -> None:
        size = tuple(images.shape[2:])
        for view in range(count):
            parameters = draw.draw(ranges, samples, seed, epoch, first + view, size)
            out[view] = render.apply(images, parameters, finish)

    out, _ = _empty(finish, count, images)
    Work(work)(images, samples, seed, epoch, out)
    return out
