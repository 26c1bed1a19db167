"""Read CIFAR's python batches without running them.

A pickle is a program. ``pickle.Unpickler`` with a list of allowed names still runs it, calls what is allowed with any
arguments, and a six-byte file can make it allocate 64 GiB of memo. This is a reader for the few opcodes that the
official batches consist of: containers, strings, numbers, and one array. Nothing is ever called; the three names an
array needs are recognised, and the array is built here from its checked parts.
"""

from __future__ import annotations

import pickletools
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from setwise.data.errors import DataError

# What a pickled ndarray names; numpy 2 moved the first to numpy._core.
_RECONSTRUCT, _NDARRAY, _DTYPE = "reconstruct", "ndarray", "dtype"
NAMES = {
    "numpy.core.multiarray _reconstruct": _RECONSTRUCT,
    "numpy._core.multiarray _reconstruct": _RECONSTRUCT,
    "numpy ndarray": _NDARRAY,
    "numpy dtype": _DTYPE,
}
LARGEST = 512 * 2**20  # bytes; the largest, CIFAR-100's train, has 155 million
_VALUES = {
    *("BININT", "BININT1", "BININT2", "LONG1"),
    *("SHORT_BINSTRING", "BINSTRING", "BINUNICODE", "SHORT_BINUNICODE", "SHORT_BINBYTES", "BINBYTES"),
}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


@dataclass
class _Name:
    kind: str


@dataclass
class _Dtype:
    code: str


@dataclass
class _Array:
    values: npt.NDArray[np.uint8] | None = None


class _Mark:
    pass


class _Refused(Exception):
    """The program does something that no CIFAR batch does."""


def read_batch(path: Path) -> dict[str, Any]:
    """The dictionary in a CIFAR python batch: str keys; values are str, int, lists of those, or uint8 arrays."""
    if (size := path.stat().st_size) > LARGEST:
        raise DataError(f"expected {path} of at most {LARGEST:,} bytes, got {size:,}; this is no CIFAR batch")
    raw = path.read_bytes()
    try:
        found = _run(raw)
    except (_Refused, ValueError, IndexError, OverflowError, MemoryError, RecursionError, KeyError, TypeError) as error:
        raise DataError(
            f"expected {path} to be a python batch as CIFAR's makers wrote it, got {error}; "
            "it is damaged or not theirs: fetch it again"
        ) from error
    if not isinstance(found, dict):
        raise DataError(f"expected {path} to hold a dictionary, got {type(found).__name__}; fetch it again")
    return {_text(key): value.values if isinstance(value, _Array) else value for key, value in found.items()}


def _run(raw: bytes) -> Any:
    stack: list[Any] = []
    memo: dict[Any, Any] = {}

    def since_mark() -> list[Any]:
        for start in range(len(stack) - 1, -1, -1):
            if isinstance(stack[start], _Mark):
                items = stack[start + 1 :]
                del stack[start:]
                return items
        raise _Refused("a container without a beginning")

    for opcode, arg, position in pickletools.genops(raw):
        name = opcode.name
        if name in _VALUES:
            stack.append(arg)
        elif name in ("BINPUT", "LONG_BINPUT"):
            memo[arg] = stack[-1]
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[arg])
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name == "MARK":
            stack.append(_Mark())
        elif name == "EMPTY_LIST":
            stack.append([])
        elif name == "EMPTY_DICT":
            stack.append({})
        elif name == "TUPLE":
            stack.append(tuple(since_mark()))
        elif name in _TUPLES:
            size = _TUPLES[name]
            items = [stack.pop() for _ in range(size)][::-1]
            stack.append(tuple(items))
        elif name in ("APPEND", "APPENDS"):
            items = [stack.pop()] if name == "APPEND" else since_mark()
            _kind(stack[-1], list).extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = [stack.pop(), stack.pop()][::-1] if name == "SETITEM" else since_mark()
            _kind(stack[-1], dict).update(zip(map(_text, items[::2]), items[1::2], strict=True))
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            if name == "STACK_GLOBAL":
                attribute, module = stack.pop(), stack.pop()
                arg = f"{module} {attribute}"
            if arg not in NAMES:
                raise _Refused(f"the name {str(arg)[:80]!r} at byte {position}")
            stack.append(_Name(NAMES[arg]))
        elif name == "REDUCE":
            args, made = stack.pop(), _kind(stack.pop(), _Name)
            stack.append(_make(made.kind, args))
        elif name == "BUILD":
            state = stack.pop()
            _build(stack[-1], state)
        elif name == "STOP":
            if len(stack) != 1:
                raise _Refused(f"{len(stack)} objects")
            return stack[0]
        elif name not in ("PROTO", "FRAME"):
            raise _Refused(f"the instruction {name} at byte {position}")
    raise _Refused("no end")


def _make(kind: str, args: Any) -> _Array | _Dtype:
    if kind == _RECONSTRUCT and isinstance(args, tuple) and args[:1] == (_Name(_NDARRAY),):
        return _Array()
    if kind == _DTYPE and isinstance(args, tuple) and args and isinstance(args[0], str):
        return _Dtype(args[0])
    raise _Refused(f"a call of numpy's {kind} that makes no array")


def _build(target: Any, state: Any) -> None:
    """Fill an array from numpy's state: version, shape, dtype, whether in Fortran order, bytes."""
    if isinstance(target, _Dtype) and isinstance(state, tuple):
        return  # byte order and fields, of which one byte has none
    if not isinstance(target, _Array) or not isinstance(state, tuple) or len(state) != 5:
        raise _Refused("a state that is no array's")
    _, shape, dtype, fortran, data = state
    # Python 2 wrote the pixels as a string; its characters are the bytes.
    data = data.encode("latin-1") if isinstance(data, str) else _kind(data, bytes)
    if not isinstance(shape, tuple) or not all(type(n) is int and n >= 0 for n in shape):
        raise _Refused("an array without a shape")
    if _kind(dtype, _Dtype).code not in ("u1", "|u1", "uint8"):
        raise _Refused(f"an array of dtype {dtype.code!r}, not uint8")
    if prod(shape) != len(data):
        raise _Refused(f"an array of shape {shape} in {len(data)} bytes")
    target.values = np.frombuffer(data, np.uint8).reshape(shape, order="F" if fortran is True else "C")


def _text(key: Any) -> str:
    if isinstance(key, bytes):
        key = key.decode("latin-1")
    if not isinstance(key, str):
        raise _Refused(f"a key of type {type(key).__name__}")
    return key


def _kind(value: Any, expected: type) -> Any:
    if not isinstance(value, expected):
        raise _Refused(f"a {type(value).__name__.strip('_')} where a {expected.__name__.strip('_')} belongs")
    return value
