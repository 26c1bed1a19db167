"""Registries: each thing with a name is one entry, with its options and a line that describes it.

There is one registry for each kind of thing. Entries come from this package, from a user's file (``load_file``) and
from other packages' entry points (``load_entry_points``). Two forms of names have a meaning. "FAMILY/NAME" is the
member NAME of the entry "FAMILY/". "module:function" is a function to import, but only where a person wrote it
(``trust``): a recipe, a checkpoint or a record that names one imports nothing.

    encoders = Registry("encoder", given=("channels",))

    @encoders("conv4", about="Four small blocks, the paper's.")
    def conv4(channels: int, *, weights: Literal["released", "xavier"] = "released") -> nn.Module: ...

    encoders.make("conv4", {"weights": "xavier"}, channels=3)
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property, partial
from numbers import Real
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
MANY = 20  # names that a message still lists
GROUP = "setwise"  # of entry points: modules that register something when they are imported


@dataclass(frozen=True)
class Option:
    """A number or word that an entry can be given."""

    kind: Any  # its annotation
    default: Any  # inspect.Parameter.empty where it must be given


@dataclass(frozen=True)
class Entry(Generic[T]):
    """A registered thing: the function or class that makes it, and a line that describes it."""

    name: str
    about: str
    make: Callable[..., T]
    given: tuple[str, ...] = ()  # parameters that the library fills in; all others are options
    takes: tuple[str, ...] = ()  # optional parts of a recipe that it uses

    @cached_property
    def options(self) -> dict[str, Option]:
        """Its options by name, from the signature of ``make``."""
        make = self.make.func if isinstance(self.make, partial) else self.make  # of a member of a family
        hints = typing.get_type_hints(inspect.getattr_static(make, "__init__") if isinstance(make, type) else make)
        return {
            p.name: Option(
                hints.get(p.name, Any if p.default is None or p.default is p.empty else type(p.default)), p.default
            )
            for p in inspect.signature(self.make).parameters.values()
            if p.name not in self.given and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        }

    def fill(self, values: Mapping[str, object]) -> dict[str, Any]:
        """All options: ``values``, checked, and defaults for the others."""
        for name in values:
            if name not in self.options:
                raise ValueError(f"expected an option of {self.name!r}{known(name, self.options)}")
        filled = {
            name: convert(values[name], option.kind, name) if name in values else option.default
            for name, option in self.options.items()
        }
        missing = [name for name, value in filled.items() if value is inspect.Parameter.empty]
        if missing:
            raise ValueError(f"expected {', '.join(missing)} for {self.name!r}, got none")
        return filled


class Registry(Mapping[str, Entry[T]]):
    """All things of one kind, by name."""

    def __init__(self, kind: str, *, given: Sequence[str] = (), home: str = "") -> None:
        """``given``: parameters that the library fills in; ``home``: the module that registers our own entries."""
        self.kind, self.given, self.home = kind, tuple(given), home
        self._entries: dict[str, Entry[T]] = {}

    def _all(self) -> dict[str, Entry[T]]:
        if self.home:
            importlib.import_module(self.home)
            self.home = ""
        return self._entries

    def __call__(self, name: str, *, about: str, takes: Sequence[str] = ()) -> Callable[[F], F]:
        """A decorator that registers a function or class under ``name``.

        The same function may come again, as when a notebook's cell is run twice: it replaces the earlier one.
        """

        def add(make: F) -> F:
            ours = str(make.__module__).startswith(
                "setwise."
            )  # its module is part of the home, which is being imported
            before = (self._entries if ours else self._all()).get(name)
            if before is not None and not _same_origin(before.make, make):
                raise ValueError(f"expected a new name for the {self.kind}, got {name!r}, which is registered already")
            self._entries[name] = Entry(name, about, make, self.given, tuple(takes))
            return make

        return add

    def __getitem__(self, name: str) -> Entry[T]:
        """The entry of that name. An error about an unknown name suggests the nearest."""
        entries = self._all()
        if name in entries:
            return entries[name]
        if ":" in name:
            raise ValueError(
                f"expected the {self.kind} to be registered, got {name!r}, a function of your own; files import "
                f"nothing: name it on the command line or in Python too, as in --{self.kind} {name}"
            )
        family, slash, member = name.partition("/")
        if member and family + slash in entries:
            whole = entries[family + slash]
            return Entry(name, whole.about, partial(whole.make, member), self.given)
        raise ValueError(f"expected the {self.kind} to be registered{known(name, entries)}")

    def trust(self, name: str) -> None:
        """Import the function that "module:function" names, because a person wrote it. Other names do nothing."""
        if ":" in name and name not in self._entries:
            self._entries[name] = Entry(name, f"{name}, imported.", _imported(name, self.kind), self.given)

    def __contains__(self, name: object) -> bool:
        """Whether an entry has this very name."""
        return isinstance(name, str) and name in self._all()

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def make(self, name: str, options: Mapping[str, object] | None = None, **given: Any) -> T:
        """The thing ``name`` with these options."""
        entry = self[name]
        return entry.make(**given, **entry.fill(options or {}))


def _same_origin(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """Whether both are the same definition, or both come from a notebook or script, which may be run again."""
    if one.__module__ == other.__module__ == "__main__":
        return True
    names = [getattr(make, "__qualname__", "<locals>") for make in (one, other)]  # a function's own makes many
    return one.__module__ == other.__module__ and names[0] == names[1] and "<locals>" not in names[0]


def nearest(name: object, names: Iterable[str]) -> str:
    """The end of a message about an unknown name: one of ``names`` that begins so, or the nearest, if one is near."""
    names = list(names)
    begins = [one for one in names if len(str(name).strip("-")) > 1 and one.startswith(str(name))]
    near = begins or get_close_matches(str(name), names, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def known(name: object, names: Iterable[str]) -> str:
    """The end of a message about an unknown name: the names to choose from, if they are few, and the nearest."""
    names = list(names)
    choices = f", one of {', '.join(names) or 'none'}" if len(names) <= MANY else ""
    return f"{choices}, got {name!r}{nearest(name, names)}"


def _imported(name: str, kind: str) -> Callable[..., Any]:
    """The function that "module:function" names."""
    module, _, attribute = name.partition(":")
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"expected the {kind} as module:function that can be imported, got {name!r} ({error})"
        ) from error
    if not callable(function):
        raise ValueError(f"expected {name!r} to be a function that makes the {kind}, got {type(function).__name__}")
    return typing.cast(Callable[..., Any], function)


def load_file(path: Path) -> None:
    """Run a user's Python file, which registers things. Its errors are its own."""
    if not path.is_file():
        raise ValueError(f"expected a Python file that registers something, got {path}, which is not there")
    name = str(path.resolve())  # two files may have the same last part
    specification = importlib.util.spec_from_file_location(name, path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module  # where dataclasses look for it
    specification.loader.exec_module(module)


def load_entry_points() -> None:
    """Import what installed packages offer under the entry-point group "setwise"."""
    from importlib.metadata import entry_points  # takes as long as all else that `setwise --help` needs of ours

    for point in entry_points(group=GROUP):
        point.load()


def convert(value: object, kind: Any, name: str) -> Any:
    """``value``, from a file or a command line, as ``kind``, an annotation. An error says what was expected."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if origin is Literal:
        if value in inner:
            return value
        raise ValueError(f"expected {name}{known(value, map(str, inner))}")
    if origin in (typing.Union, types.UnionType):
        for one in sorted(inner, key=lambda kind: (kind is not type(None), kind is str)):  # None first, words last
            try:
                return convert(value, one, name)
            except ValueError:
                continue
    elif origin is tuple:
        between = "[,x]" if set(inner) == {int} else ","  # a size is often written as 128x64
        parts = re.split(between, value) if isinstance(value, str) else value
        if not isinstance(parts, (list, tuple)):
            raise ValueError(f"expected {name} to be a list, got {value!r}")
        kinds = inner[:1] * len(parts) if inner[1:] == (...,) else inner
        if len(kinds) != len(parts):
            raise ValueError(f"expected {name} to be {len(kinds)} values, got {value!r}")
        return tuple(convert(part, one, name) for part, one in zip(parts, kinds, strict=True))
    elif kind is bool and str(value).lower() in ("true", "false"):
        return str(value).lower() == "true"
    elif kind is type(None) and (value is None or str(value).lower() == "none"):
        return None
    elif kind in (int, float) and not isinstance(value, bool) and isinstance(value, (Real, str)):  # numpy's too
        with suppress(ValueError, OverflowError):
            number = kind(value)
            if isinstance(value, str) or number == value:
                return number
    elif kind in (str, Path) and isinstance(value, str):
        return kind(value)
    raise ValueError(f"expected {name} to be {words(kind)}, got {value!r}")


def words(kind: Any) -> str:
    """What an annotation allows, for people. Empty for kinds that nobody can type, such as tensors."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return "one of " + ", ".join(map(str, inner))
    if origin in (typing.Union, types.UnionType):
        return " or ".join(filter(None, map(words, inner)))
    if origin is tuple:
        return "values, with commas" if inner[1:] == (...,) else f"{len(inner)} values, with commas"
    plain = {bool: "true or false", int: "a whole number", float: "a number", str: "a word", type(None): "none"}
    return "a path" if kind is Path else plain.get(kind, "")
