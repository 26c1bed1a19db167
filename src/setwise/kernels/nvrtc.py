"""Compile kernels at run time and launch them; plain torch takes over where that fails."""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import cache
from importlib import resources
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from setwise.checks import see
from setwise.kernels.stored import stored

T = TypeVar("T")
# An older torch, no NVRTC or setuptools, an unknown device.
FAILURES = (AttributeError, ImportError, KeyError, OSError, RuntimeError, TypeError)


def usable(x: Tensor, *dtypes: torch.dtype) -> bool:
    """Whether a kernel may work on ``x``: a non-empty CUDA tensor of one of ``dtypes``, and torch does not trace."""
    here = x.is_cuda and x.numel() > 0 and (not dtypes or x.dtype in dtypes)
    return here and torch.version.hip is None and not torch.compiler.is_compiling()


def has_bf16(x: Tensor) -> bool:
    """Whether the GPU of ``x`` multiplies bf16 on tensor cores."""
    return torch.cuda.get_device_capability(x.device) >= (8, 0)


def unchanged(kind: type[nn.Module], module: nn.Module) -> bool:
    """Whether ``module`` is exactly of this class and nobody hooked into it: then a kernel may take its place."""
    names = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return type(module) is kind and not any(getattr(module, name) for name in names)


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
    """A compiled kernel. It runs on the current stream of its arguments' device.

    We launch it ourselves because torch opens the driver's library anew for each launch: an eager QARe of five
    launches took 2.2 ms with torch's launch and takes 1.7 ms with ours (H200, torch 2.11).
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
        """Launch. Tensors become pointers, int stays int, float becomes double.

        ``early`` starts it before the previous kernel ends; the kernel then waits by itself, as
        ``wait_for_kernel_before`` in conv_tiles.cu says. This hides most of a launch's one or two microseconds:
        ResNet-32's step of 230 launches takes 1.92 ms instead of 2.11 ms (H200, torch 2.11).
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
            configuration = _Configuration(
                *grid, *block, self.shared_bytes, stream, ctypes.pointer(attribute), int(early)
            )
            status = self.launch(ctypes.byref(configuration), self.function, pointers, None)
            if status == INVALID_CONTEXT:  # the first launch of a new thread, such as autograd's
                _driver().cuCtxSetCurrent(self.context)
                status = self.launch(ctypes.byref(configuration), self.function, pointers, None)
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
    torch.cuda.synchronize()  # binds the device's context to this thread, which loading needs
    # Private in torch 2.11 and 2.13, and the only way to NVRTC without a build step; hence Any.
    tools: Any = torch.cuda._utils
    made_for = (torch.__version__, torch.version.cuda, *torch.cuda.get_device_capability())
    binary, inside = stored(repr((text, name, made_for)), lambda: tools._nvrtc_compile(text, name))
    return Kernel(tools._cuda_load_module(binary, [inside])[inside], shared_bytes)


def compiled_or_none(compile_it: Callable[[], T], what: str, instead: str, device: torch.device) -> T | None:
    """What ``compile_it`` returns on ``device``, or None and a warning where that fails; callers cache the answer."""
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            f"expected {what} to have been used on {device} before the capture of a CUDA graph, "
            "since a kernel cannot be compiled within one; run one step outside of the capture first, "
            + see("how-to/errors#capture")
        )
    try:
        with torch.cuda.device(device):
            return compile_it()
    except FAILURES as error:
        warnings.warn(
            f"{instead} takes the place of {what} on {device}, which did not compile: {error}",
            RuntimeWarning,
            stacklevel=4,
        )
        return None
