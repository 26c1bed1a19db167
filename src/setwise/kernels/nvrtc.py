"""Kernels compiled at run time, where there is a CUDA device, and what to do where they cannot be had."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from importlib import resources
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


def usable(x: Tensor) -> bool:
    """Whether a kernel of ours may work on ``x``: float32 on a CUDA device, and not while torch traces the code."""
    return x.is_cuda and x.dtype == torch.float32 and torch.version.hip is None and not torch.compiler.is_compiling()


def compile_kernel(file: str, name: str, defines: Mapping[str, object], shared_bytes: int = 0) -> Any:
    """The kernel ``name`` of ``file`` in this folder, with ``defines`` put before its text, for the current device."""
    text = "".join(f"#define {key} {value}\n" for key, value in defines.items())
    text += resources.files("setwise.kernels").joinpath(file).read_text()
    # Private in torch 2.11 and 2.13, and the only way to NVRTC without a build step; hence Any.
    compiler: Any = torch.cuda._compile_kernel
    kernel = compiler(text, name)
    if shared_bytes:
        kernel.set_shared_memory_config(shared_bytes)
    return kernel


def or_none(make: Callable[[], T], what: str, instead: str, device: torch.device) -> T | None:
    """What ``make`` compiles on ``device``; None where it cannot be had, with a warning (callers keep the answer)."""
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            f"expected {what} to have been used on {device} before the capture of a CUDA graph, "
            "since a kernel cannot be compiled within one; run one step outside of the capture first"
        )
    try:
        with torch.cuda.device(device):
            return make()
    except (AttributeError, OSError, RuntimeError) as error:  # an older torch, no NVRTC, an unknown device
        warnings.warn(
            f"{instead} takes the place of {what} on {device}, which did not compile: {error}",
            RuntimeWarning,
            stacklevel=4,
        )
        return None
