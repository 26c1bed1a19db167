"""Kernels compiled at run time, where there is a CUDA device, and what to do where they cannot be had."""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import cache
from importlib import resources
from typing import Any, TypeVar

import torch
from torch import Tensor

from setwise.checks import see
from setwise.kernels.stored import stored

T = TypeVar("T")


def usable(x: Tensor) -> bool:
    """Whether a kernel of ours may work on ``x``: float32 on a CUDA device, and not while torch traces the code."""
    return x.is_cuda and x.dtype == torch.float32 and torch.version.hip is None and not torch.compiler.is_compiling()


@cache
def _driver() -> Any:
    library: Any = torch.cuda._utils
    return library._get_gpu_runtime_library()


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute."""

    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_int), ("rest", ctypes.c_char * 60))


class _Configuration(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        *((name, ctypes.c_uint) for name in ("gx", "gy", "gz", "bx", "by", "bz", "shared_bytes")),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("attribute_count", ctypes.c_uint),
    )


PROGRAMMATIC_STREAM_SERIALIZATION = 6  # CUlaunchAttributeID
INVALID_CONTEXT = 201  # CUresult


class Kernel:
    """A compiled kernel, launched on the current stream of its arguments' device.

    The launch is our own because torch's opens the driver's library anew each time: an eager QARe of five launches took
    2.2 ms with it and takes 1.7 ms without (H200, torch 2.11).
    """

    def __init__(self, compiled: Any, shared_bytes: int) -> None:
        self.compiled, self.shared_bytes = compiled, shared_bytes
        self.function, self.launch = compiled.func, _driver().cuLaunchKernelEx
        if shared_bytes:
            compiled.set_shared_memory_config(shared_bytes)
        self.context = ctypes.c_void_p()  # in which the kernel was loaded
        _driver().cuCtxGetCurrent(ctypes.byref(self.context))

    def __call__(
        self,
        *,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        args: Sequence[Any],
        early: bool = False,
    ) -> None:
        """Launch; tensors are passed as pointers, int as int, float as double.

        ``early``: before the kernel before it ends, for which it then waits by itself. That hides most of the
        microsecond or two that a launch takes: ResNet-32's step of 230 such launches takes 1.92 ms instead of 2.11 ms
        (H200, torch 2.11). What it needs of the kernels is at ``wait_for_kernel_before`` in conv_tiles.cu.
        """
        values: list[Any] = []
        device = None
        for argument in args:
            if isinstance(argument, Tensor):
                values.append(ctypes.c_void_p(argument.data_ptr()))
                device = argument.device
            elif isinstance(argument, int):
                if not -(2**31) <= argument < 2**31:
                    raise ValueError(f"expected a tensor of fewer than 2^31 items a kernel, got {argument}")
                values.append(ctypes.c_int(argument))
            else:
                values.append(ctypes.c_double(argument))
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        attribute = _Attribute(PROGRAMMATIC_STREAM_SERIALIZATION, 0, 1)
        with torch.cuda.device(device) if device != _current() else nullcontext():
            stream = torch.cuda.current_stream().cuda_stream
            how = _Configuration(*grid, *block, self.shared_bytes, stream, ctypes.pointer(attribute), int(early))
            status = self.launch(ctypes.byref(how), self.function, pointers, None)
            if status == INVALID_CONTEXT:  # nothing was launched from this thread yet: a new one, of autograd's
                _driver().cuCtxSetCurrent(self.context)
                status = self.launch(ctypes.byref(how), self.function, pointers, None)
        if status:
            raise RuntimeError(f"expected a kernel to be launched, got CUDA driver error {status}")


def _current() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


def source(files: str | Sequence[str], defines: Mapping[str, object]) -> str:
    """The text of ``files`` in this folder, with ``defines`` before it."""
    texts = [
        resources.files("setwise.kernels").joinpath(x).read_text()
        for x in ([files] if isinstance(files, str) else files)
    ]
    return "".join([*(f"#define {key} {value}\n" for key, value in defines.items()), *texts])


def compile_kernel(
    files: str | Sequence[str], name: str, defines: Mapping[str, object], shared_bytes: int = 0
) -> Kernel:
    """The kernel ``name`` of ``files`` in this folder, with ``defines`` before their text, for the current device."""
    text = source(files, defines)
    torch.cuda.synchronize()  # binds the device's context to this thread, where nothing has yet; loading needs one
    # Private in torch 2.11 and 2.13, and the only way to NVRTC without a build step; hence Any.
    tools: Any = torch.cuda._utils
    made_for = (torch.__version__, torch.version.cuda, *torch.cuda.get_device_capability())
    binary, inside = stored(repr((text, name, made_for)), lambda: tools._nvrtc_compile(text, name))
    return Kernel(tools._cuda_load_module(binary, [inside])[inside], shared_bytes)


def or_none(make: Callable[[], T], what: str, instead: str, device: torch.device) -> T | None:
    """What ``make`` compiles on ``device``; None where it cannot be had, with a warning (callers keep the answer)."""
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            f"expected {what} to have been used on {device} before the capture of a CUDA graph, "
            "since a kernel cannot be compiled within one; run one step outside of the capture first, "
            + see("how-to/errors#capture")
        )
    try:
        with torch.cuda.device(device):
            return make()
    except (
        AttributeError,
        ImportError,
        KeyError,
        OSError,
        RuntimeError,
        TypeError,
    ) as error:  # an older torch, no NVRTC or setuptools, an unknown device
        warnings.warn(
            f"{instead} takes the place of {what} on {device}, which did not compile: {error}",
            RuntimeWarning,
            stacklevel=4,
        )
        return None
