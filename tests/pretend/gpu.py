"""A GPU that is not there: tensors that say they are on one, and compute on the CPU.

Code for a GPU then runs where there is none, its values are real, and what would end the capture of a CUDA graph
raises: reading a value, a result whose shape depends on values, a copy between host and device. What was captured can
be replayed: the same operations on the same memory, whatever Python would do by then. Kernels of ours are not run:
their arguments are compared with their text, and their results are zero; or plain code takes their place.

``load`` has to come before torch is imported: torch asks only once whether it was built for CUDA.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

HERE = Path(__file__).parent


def build(folder: Path) -> Path:
    """Compile what makes torch take CUDA for present; about two seconds."""
    spec = find_spec("torch")
    assert spec is not None
    assert spec.submodule_search_locations
    torch = Path(spec.submodule_search_locations[0])
    include = [f"-I{torch / 'include'}", f"-I{torch / 'include/torch/csrc/api/include'}"]
    libraries = [f"-L{torch / 'lib'}", f"-Wl,-rpath,{torch / 'lib'}", "-lc10", "-ltorch_cpu"]
    words = ["g++", "-O0", "-std=c++20", "-shared", "-fPIC", str(HERE / "guard.cpp"), *include, *libraries]
    subprocess.run([*words, "-o", str(folder / "guard.so")], check=True, capture_output=True)
    return folder / "guard.so"


def load(library: Path) -> None:
    """Before torch is imported."""
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


class Graph:
    """Operations on memory that stays where it is."""

    replays = True

    def __init__(self) -> None:
        self.operations: list[tuple[Any, Any, Any]] = []  # the operator, its arguments, what it gave
        self.before: dict[int, tuple[Any, Any]] = {}  # memory that was written to, and what it held

    def record(self, func: Any, inner: Any, out: Any) -> None:
        """One more; called when it has been done."""
        self.operations.append((func, inner, out))

    def keep(self, func: Any, inner: Any) -> None:
        """Before an operation that writes to its arguments: a capture computes nothing, so it will be undone."""
        import torch
        from torch.utils._pytree import tree_leaves

        # Its running statistics are written to, which its schema does not say.
        writes = func._schema.is_mutable or func is torch.ops.aten.native_batch_norm.default
        for x in tree_leaves(inner) if writes else ():
            if isinstance(x, torch.Tensor):
                memory = x.untyped_storage()
                self.before.setdefault(memory.data_ptr(), (memory, memory.clone()))

    def undo(self) -> None:
        """Everything as it was before the capture."""
        for memory, held in self.before.values():
            if memory.nbytes() == held.nbytes():  # else it was empty before
                memory.copy_(held)

    def replay(self) -> None:
        """Do all of it."""
        import torch
        from torch.utils._pytree import tree_leaves

        for func, (args, kwargs), out in self.operations if self.replays else ():
            again = func(*args, **kwargs)
            if not (func._schema.is_mutable or func.is_view):
                for x, y in zip(tree_leaves(out), tree_leaves(again), strict=True):
                    if isinstance(x, torch.Tensor) and x.shape == y.shape:  # else it was resized since
                        x.copy_(y)


class Stream:
    """One of many that are all the same."""

    cuda_stream = 0

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def wait_stream(self, other: Any) -> None: ...

    def synchronize(self) -> None:
        forbid("synchronize")


capturing: Graph | None = None


def forbid(what: str) -> None:
    """Raise where a graph is captured."""
    if capturing is not None:
        raise RuntimeError(f"operation not permitted when stream is capturing: {what}")


@contextmanager
def graph(made: Graph | None = None, **_: Any) -> Iterator[None]:
    """What is within is captured."""
    global capturing
    capturing = made or Graph()
    try:
        yield
    finally:
        capturing, made = None, capturing
        made.undo()


def install(*, plain: bool = False) -> Any:
    """Pretend from now on; what is returned is a mode to work within. ``plain``: plain torch instead of kernels."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
    from torch.utils._pytree import tree_flatten, tree_map_only

    aten = torch.ops.aten
    values = (aten._local_scalar_dense, aten.nonzero, aten.masked_select, aten.equal, aten.bincount, aten._unique2)
    waiting = {*values, aten.unique_dim, aten.unique_consecutive, aten.linalg_eigh, aten._linalg_eigh, aten._linalg_svd}
    wider = (aten.bmm.dtype, aten.mm.dtype)  # products of bf16 in float32

    def on_gpu(device: Any) -> bool:
        return device is not None and torch.device(device).type == "cuda"

    def dispatch(func: Any, args: Any, kwargs: Any) -> Any:
        tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
        mine = [isinstance(x, Pretend) for x in tensors]
        device, packet = kwargs.get("device"), func.overloadpacket
        there = any(mine) if device is None else on_gpu(device)
        copies = packet in (aten.copy_, aten._to_copy)
        if any(mine) or there:
            moved = copies and tensors and not (all(mine) and there)
            if moved and any(x.numel() for x in tensors):
                forbid(f"{func} between host and device")
            lists = packet in (aten.index, aten.index_put_, aten.index_put, aten._index_put_impl_)
            if packet in waiting or (lists and any(x.dtype in (torch.bool, torch.uint8) for x in tensors[1:])):
                forbid(f"{func} waits for values")
            if packet is aten.repeat_interleave and kwargs.get("output_size") is None:
                forbid(f"{func} waits for values")
            host = [x for x, one in zip(tensors, mine, strict=True) if not one and x.dim()]
            if any(mine) and host and not copies:
                if not lists:
                    raise RuntimeError(f"Expected all tensors to be on the same device: {func}")
                forbid(f"{func} with indices of the host")
        inner = tree_map_only(Pretend, lambda x: x.memory_, (args, kwargs))
        if packet in (aten._pin_memory, aten.is_pinned):
            return inner[0][0] if packet is aten._pin_memory else True
        inner[1].pop("pin_memory", None)
        if device is not None:
            inner[1]["device"] = torch.device("cpu")
        if func in wider:  # a CPU has no such operator
            *factors, dtype = inner[0]
            inner, func = ([x.to(dtype) for x in factors], {}), packet.default
        if capturing is not None and (there or any(mine)):
            capturing.keep(func, inner)
        out = func(*inner[0], **inner[1])
        if packet in (aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty):
            out.zero_()  # what a kernel would have filled is a valid index
        if capturing is not None and (there or any(mine)):
            capturing.record(func, inner, out)
        if not there:
            return out
        out = tree_map_only(torch.Tensor, Pretend, out)
        return return_and_correct_aliasing(func, args, kwargs, out) if any(mine) else out

    class Pretend(torch.Tensor):
        """A tensor of the CPU that says it is on a GPU."""

        memory_: torch.Tensor

        @staticmethod
        def __new__(cls, inner: torch.Tensor) -> Any:
            if isinstance(inner, Pretend):
                return inner
            made = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
                cls,
                inner.size(),
                strides=inner.stride(),
                storage_offset=inner.storage_offset(),
                dtype=inner.dtype,
                device="cuda:0",
            )
            made.memory_ = inner
            return made

        def record_stream(self, stream: Any) -> None: ...

        def tolist(self) -> Any:
            forbid("tolist")
            return self.memory_.tolist()

        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return dispatch(func, args, kwargs or {})

    class Mode(TorchDispatchMode):
        """Makes new tensors for the device that was asked for."""

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return dispatch(func, args, kwargs or {})

    gpu: Any = torch.cuda
    gpu._lazy_init = lambda: None
    torch.inference_mode = lambda mode=True: torch.no_grad() if mode else nullcontext()  # type: ignore[assignment,misc]
    torch._C._set_only_lift_cpu_tensors(True)  # new_tensor is a copy that the mode sees
    make_tensor = torch.tensor

    def tensor(data: Any, *, device: Any = None, **options: Any) -> Any:  # a copy, which the mode sees
        return make_tensor(data, **options).to(device)

    torch.tensor = tensor  # type: ignore[assignment]
    gpu.is_available = lambda: True
    gpu.current_device = lambda: 0
    gpu.get_device_capability = lambda *_: (9, 0)
    gpu.get_device_properties = lambda *_: SimpleNamespace(multi_processor_count=132, major=9, minor=0)
    gpu.get_rng_state = lambda *_: torch.zeros(16, dtype=torch.uint8)
    gpu.set_rng_state = lambda *_: None
    gpu.mem_get_info = lambda *_: (2**33, 2**33)
    gpu.synchronize = lambda *_: forbid("synchronize")
    gpu.is_current_stream_capturing = lambda: capturing is not None
    gpu.Stream, gpu.current_stream = Stream, Stream
    gpu.device = gpu.stream = lambda *_: nullcontext()
    gpu.graph_pool_handle, gpu.CUDAGraph, gpu.graph = object, Graph, graph
    torch.backends.cudnn.enabled = False  # its operators have no twin on the CPU
    torch.__future__.set_overwrite_module_params_on_conversion(True)

    import stand_ins

    from setwise.kernels import assign, conv_plan, eigh, local, rows, scale, views

    for module in (assign, conv_plan, eigh, local, rows, scale, views):
        module.compile_kernel = stand_ins.plain_kernel if plain else stand_ins.Kernel  # type: ignore[attr-defined]
    Graph.replays = plain  # of zeros nothing good would come
    if plain:
        views.views = stand_ins.plain_views
    return Mode()
