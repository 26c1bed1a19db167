"""Input checks shared by every public entry point: expected, got, what to do.

Shapes, dtypes and options are always checked. Values are checked on the CPU only: on an accelerator such a check
would wait for the device, and no graph could capture it.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import wraps
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
LARGEST = torch.finfo(torch.float32).max


def see(page: str) -> str:
    """The end of a message: the page that explains it, as in ``see("how-to/choose-beta")`` or ``see("...#anchor")``."""
    return f"see `setwise help {page.removeprefix('how-to/')}`"


def check_option(value: object, allowed: Sequence[str], name: str) -> None:
    """Raise unless ``value`` is one of the ``allowed`` words."""
    if value in allowed:
        return
    near = get_close_matches(str(value), allowed, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"expected {name} to be one of {', '.join(map(repr, allowed))}, got {value!r}{hint}")


def is_number(value: object) -> bool:
    """Whether ``value`` is a finite number that float32 can hold, Python's or numpy's. A bool is not."""
    numbers = (int, float, np.integer, np.floating)
    return isinstance(value, numbers) and not isinstance(value, bool) and -LARGEST <= plain(value) <= LARGEST


def plain(value: Any) -> Any:
    """``value``, as a Python int or float where it is numpy's: for files and for ``repr``."""
    return int(value) if isinstance(value, np.integer) else float(value) if isinstance(value, np.floating) else value


def check_number(value: float, name: str, *, above: float | None = None, least: float | None = None) -> None:
    """Raise unless ``value`` is a number that float32 can hold, greater than ``above`` and not less than ``least``."""
    check_not_tensor(value, name)
    limit = f" above {above:g}" if above is not None else f" of at least {least:g}" if least is not None else ""
    if not is_number(value) or (above is not None and value <= above) or (least is not None and value < least):
        large = isinstance(value, (int, float)) and LARGEST < abs(value) < math.inf
        most = f"; float32 holds {LARGEST:.2g} at most" if large else ""
        raise ValueError(f"expected {name} to be a finite number{limit}, got {value!r}{most}")


def check_not_tensor(value: object, name: str) -> None:
    """Raise if ``value``, an option, is a tensor."""
    if isinstance(value, Tensor):
        raise ValueError(
            f"expected {name} to be a Python number, got a {type(value).__name__}; .item() makes one, which is not "
            "learned: of a loss's options only temperature can be"
        )


def check_count(value: int | None, name: str) -> None:
    """Raise unless ``value`` is None or a positive integer."""
    if value is not None and (not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < 1):
        raise ValueError(f"expected {name} to be None or a positive integer, got {value!r}")


def check_floating(x: Tensor, name: str, *, forbidden: float = math.nan) -> None:
    """Raise unless ``x`` is a floating-point tensor, float16 to float64, finite if it is on the CPU.

    ``forbidden`` is an infinity that ``x`` may hold: the mark of a forbidden pair. The default, NaN, allows none.
    """
    if not isinstance(x, Tensor):
        raise ValueError(f"expected {name} to be a torch.Tensor, got {type(x).__name__}; torch.as_tensor makes one")
    if not x.is_floating_point():
        raise ValueError(f"expected {name} of a floating-point dtype, got {x.dtype}; convert it with .float()")
    if x.dtype not in DTYPES:
        raise ValueError(f"expected {name} of float16, bfloat16, float32 or float64, got {x.dtype}; use .float()")
    if torch.compiler.is_compiling():
        return
    if x.is_meta or isinstance(x, FakeTensor):
        raise ValueError(
            f"expected {name} with values, got a {'meta' if x.is_meta else 'fake'} tensor, which has a shape alone; "
            "make it on a device, or trace the loss by torch.export"
        )
    if x.device.type != "cpu" or x.numel() == 0:
        return
    # The sum is NaN or infinite if any entry is; a third of the time of the largest, which isfinite().all() takes 9 of.
    if not math.isfinite(x.detach().sum().item()) and (bad := int((~(x.isfinite() | (x == forbidden))).sum())):
        marks = "" if math.isnan(forbidden) else f" or {forbidden} (a forbidden pair)"
        raise ValueError(
            f"expected {name} to be finite{marks}, got {bad} NaN or infinite of {x.numel()} values; "
            f"look for a diverged step, an overflow or a division by zero before it, {see('how-to/errors#not-finite')}"
        )


def check_overflow(x: Tensor, what: str) -> Tensor:
    """``x``, computed from finite numbers; raise where it is on the CPU and not finite."""
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return x
    if not math.isfinite(x.detach().sum().item()) and not x.isfinite().all():
        instead = "" if x.dtype == torch.float64 else ", or use float64"
        raise ValueError(
            f"expected {what} that {x.dtype} can hold, got an overflow; scale or normalise the embeddings{instead}, "
            + see("how-to/errors#not-finite")
        )
    return x


def check_loss(loss: object, name: str) -> None:
    """Raise unless ``loss`` can be called as a loss can."""
    if isinstance(loss, type):
        raise ValueError(f"expected {name} to be a loss, got the class {loss.__name__}; {loss.__name__}() is one")
    if not callable(loss):
        raise ValueError(f"expected {name} to be a loss(z_a, z_b), got {loss!r}; setwise.InfoNCE() is one")


def imported(module: str, packages: str, seen: str) -> Any:
    """Import ``module`` of another package; an error names the ``packages`` to install and ends with ``seen``."""
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except (ImportError, RuntimeError) as error:  # the latter: a torchvision built for another torch
        missing = isinstance(error, ModuleNotFoundError) and error.name == package
        got = "none here" if missing else f"one that does not import ({error})"
        raise ModuleNotFoundError(
            f"expected the package {package}, got {got}; pip install {packages}, {seen}", name=package
        ) from error


def check_matrix(x: Tensor, name: str, *, forbidden: float = math.nan) -> None:
    """Raise unless ``x`` is a floating-point matrix or batch of matrices [..., N, M], not empty."""
    check_floating(x, name, forbidden=forbidden)
    if x.ndim < 2:
        raise ValueError(f"expected {name} of shape (..., N, M), got {tuple(x.shape)}")
    if x.numel() == 0:
        raise ValueError(f"expected {name} with at least one row and one column, got shape {tuple(x.shape)}")


def check_square(x: Tensor, name: str) -> None:
    """Raise unless ``x`` is a square matrix or a batch of them [..., N, N]."""
    check_matrix(x, name)
    if x.shape[-1] != x.shape[-2]:
        raise ValueError(f"expected {name} to be square, of shape (..., N, N), got {tuple(x.shape)}")


def check_symmetric(x: Tensor, name: str) -> None:
    """Raise unless ``x`` is square and, where it is on the CPU, symmetric to rounding."""
    check_square(x, name)
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return
    gap = (x - x.mT).abs().amax()
    # Products such as Z Z^T come out symmetric only to rounding; allow a few units of it.
    if gap > 64 * torch.finfo(x.dtype).eps * x.abs().amax():
        raise ValueError(
            f"expected {name} to be symmetric, got entries that differ from their mirror image "
            f"by up to {gap.item():.3g}; pass ({name} + {name}.mT) / 2 if that is what you mean"
        )


def check_like(x: Tensor, name: str, other: Tensor, other_name: str) -> None:
    """Raise unless ``x`` has the shape, dtype and device of ``other``."""
    if x.shape != other.shape:
        raise ValueError(
            f"expected {name} of shape {tuple(other.shape)} like {other_name}, got {tuple(x.shape)}; "
            f"row i of both must be the same item, {see('how-to/add-qare#rows')}"
        )
    check_same_kind(x, name, other, other_name)


def check_same_kind(x: Tensor, name: str, other: Tensor, other_name: str) -> None:
    """Raise unless ``x`` has the dtype and device of ``other``."""
    if x.dtype != other.dtype:
        raise ValueError(
            f"expected {name} of dtype {other.dtype} like {other_name}, got {x.dtype}; "
            f"convert one: {name}.to({other_name}.dtype)"
        )
    if x.device != other.device:
        raise ValueError(f"expected {name} on device {other.device} like {other_name}, got {x.device}")


def check_embeddings(z_a: Tensor, z_b: Tensor, extra: Tensor | None = None, *, in_sets: bool = False) -> None:
    """Raise unless ``z_a``, ``z_b`` are [N, E] alike, N, E >= 1, and ``extra`` is [M, E] or [N, K, E] of their kind.

    ``in_sets``: only the sets of rows are known, and ``z_b`` may have another number of them.
    """
    sets = [(z_a, "z_a", 1), (z_b, "z_b", 1)]
    if extra is not None:
        sets.append((extra, "extra_negatives", 0))
    for z, name, least in sets:
        if isinstance(z, Tensor) and z.ndim == 1 and not z.is_floating_point():
            raise ValueError(
                f"expected {name} of shape (N, E), one row an item, got {z.dtype} of shape {tuple(z.shape)}, labels "
                "perhaps; losses take two views, and labels by name: loss(z_a, z_b, labels=labels); "
                "setwise.adapters.metric_learning.SetLoss takes one batch and its labels, "
                + see("how-to/other-libraries")
            )
        check_floating(z, name)
        if z is extra and z.ndim == 3:
            continue
        if z.ndim != 2:
            raise ValueError(
                f"expected {name} of shape (N, E), one row an item, got {tuple(z.shape)}; {see('how-to/add-qare#rows')}"
            )
        if z.shape[0] < least or z.shape[1] == 0:
            raise ValueError(f"expected {name} with at least one row and one column, got shape {tuple(z.shape)}")
    if in_sets and z_b.shape[1] == z_a.shape[1]:
        check_same_kind(z_b, "z_b", z_a, "z_a")
    elif z_b.shape != z_a.shape or z_b.dtype != z_a.dtype or z_b.device != z_a.device:
        check_like(z_b, "z_b", z_a, "z_a")
    if extra is not None:
        check_same_kind(extra, "extra_negatives", z_a, "z_a")
        if extra.ndim == 3 and (len(extra), extra.shape[2]) != z_a.shape:
            raise ValueError(
                f"expected extra_negatives of shape ({z_a.shape[0]}, K, {z_a.shape[1]}), K of each row of z_a, "
                f"got {tuple(extra.shape)}"
            )
        if extra.ndim == 2 and extra.shape[1] != z_a.shape[1]:
            raise ValueError(
                f"expected extra_negatives of shape (M, {z_a.shape[1]}) like z_a, got {tuple(extra.shape)}"
            )


def check_labels(labels: Tensor, z: Tensor) -> None:
    """Raise unless ``labels`` are whole numbers [N], one for each row of ``z`` [N, E]."""
    if not isinstance(labels, Tensor):
        raise ValueError(
            f"expected labels to be a torch.Tensor, got {type(labels).__name__}; torch.as_tensor makes one"
        )
    if labels.dtype != torch.int64:
        raise ValueError(f"expected labels of dtype torch.int64, got {labels.dtype}; number the classes, .long()")
    if labels.shape != z.shape[:1]:
        raise ValueError(
            f"expected labels of shape ({len(z)},), one for each row of z_a, got {tuple(labels.shape)}; both views of "
            "an item share its label"
        )
    if labels.device != z.device:
        raise ValueError(f"expected labels on device {z.device} like z_a, got {labels.device}; labels.to(z_a.device)")


def one_derivative(backward: Callable[..., Any]) -> Callable[..., Any]:
    """A ``backward`` of torch's Function that has no derivative itself; taking one raises an error.

    torch's ``once_differentiable`` raises only where the incoming gradient has a derivative. That of a loss is a
    constant 1: a penalty on gradients would silently have no effect. ``torch.autograd.grad`` and ``hessian`` ask for
    the leaves alone and would find no path to them, and ``jvp`` would give 0.
    """

    @wraps(backward)
    def wrapped(ctx: Any, *grads: Any) -> Any:
        with torch.no_grad():
            gradients = backward(ctx, *grads)
        if not torch.is_grad_enabled():
            return gradients
        outputs = gradients if isinstance(gradients, tuple) else (gradients,)
        tensors = [x.detach().requires_grad_() for x in outputs if isinstance(x, Tensor)]
        tensors += _leaves(ctx) + [x for x in grads if isinstance(x, Tensor) and x.requires_grad]
        made: Any = torch._C._functions.DelayedError(SECOND, len(tensors))(*tensors)
        left = list(made) if isinstance(made, (tuple, list)) else [made]
        outputs = tuple(left.pop(0) if isinstance(x, Tensor) else x for x in outputs)
        return outputs if isinstance(gradients, tuple) else outputs[0]

    return wrapped


def _leaves(node: Any) -> list[Tensor]:
    """The tensors that gradients arrive at from ``node`` on."""
    leaves, seen, left = [], set(), [node]
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        left += [after for after, _ in node.next_functions]
        if hasattr(node, "variable"):
            leaves.append(node.variable)
    return leaves


SECOND = (
    b"expected one derivative at most, got a derivative of a gradient, which setwise's losses do not have; "
    b"leave create_graph out, or write this loss in plain torch"
)
