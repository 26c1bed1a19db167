"""Registries: whatever has a name is one entry, with its options and a line that says what it is.

One registry for each kind of thing. Entries come from this package, from a user's file (``load_file``) and from other
packages' entry points (``load_entry_points``). Names are never taken apart, but for two forms that any registry knows:
"FAMILY/NAME" is the member NAME of an entry that is named "FAMILY/", and "module:function" a function to import. The
latter only where a person wrote it (``trust``): a recipe, a checkpoint or a record that names one imports nothing.

    encoders = Registry("encoder", given=("channels",))

    @encoders("conv4", about="Four small blocks, the paper's.")
    def conv4(channels: int, *, weights: Literal["released", "xavier"] = "released") -> nn.Module: ...

    encoders.make("conv4", {"weights": "xavier"}, channels=3)
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
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

    name: str
    kind: Any  # its annotation
    default: Any  # inspect.Parameter.empty where it must be given

    @property
    def needed(self) -> bool:
        """Whether it has no default."""
        return self.default is inspect.Parameter.empty

    def convert(self, value: object) -> Any:
        """``value``, text perhaps, as this option's kind; an error names the option."""
        return convert(value, self.kind, self.name)


@dataclass(frozen=True)
class Entry(Generic[T]):
    """A registered thing: what makes it, and what is said of it."""

    name: str
    about: str
    make: Callable[..., T]
    given: tuple[str, ...] = ()  # parameters that the library fills in; all others are options
    takes: tuple[str, ...] = ()  # parts of a recipe that it uses and others of its kind need not

    @cached_property
    def options(self) -> dict[str, Option]:
        """Its options by name, from the signature of what makes it."""
        make = self.make.func if isinstance(self.make, partial) else self.make
        hints = typing.get_type_hints(inspect.getattr_static(make, "__init__") if isinstance(make, type) else make)
        return {
            p.name: Option(p.name, hints.get(p.name, _like(p.default)), p.default)
            for p in inspect.signature(self.make).parameters.values()
            if p.name not in self.given and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        }

    def fill(self, values: Mapping[str, object]) -> dict[str, Any]:
        """All options: ``values`` checked, defaults for the others."""
        for name in values:
            if name not in self.options:
                raise ValueError(f"expected an option of {self.name!r}{known(name, self.options)}")
        missing = [option.name for option in self.options.values() if option.needed and option.name not in values]
        if missing:
            raise ValueError(f"expected {', '.join(missing)} for {self.name!r}, got none")
        return {
            name: option.convert(values[name]) if name in values else option.default
            for name, option in self.options.items()
        }


class Registry(Mapping[str, Entry[T]]):
    """All things of one kind, by name."""

    def __init__(self, kind: str, *, given: Sequence[str] = (), home: str = "") -> None:
        """``given``: parameters that the library fills in; ``home``: the module of its own entries."""
        self.kind, self.given, self.home = kind, tuple(given), home
        self._entries: dict[str, Entry[T]] = {}

    def _all(self) -> dict[str, Entry[T]]:
        if self.home:
            importlib.import_module(self.home)
            self.home = ""
        return self._entries

    def __call__(self, name: str, *, about: str, takes: Sequence[str] = ()) -> Callable[[F], F]:
        """A decorator that registers what it decorates under ``name``."""
        if name in self._entries:
            raise ValueError(f"expected a new name for the {self.kind}, got {name!r}, which is registered already")

        def add(make: F) -> F:
            self._entries[name] = Entry(name, about, make, self.given, tuple(takes))
            return make

        return add

    def __getitem__(self, name: str) -> Entry[T]:
        """The entry of that name; an unknown one is answered with the nearest."""
        entries = self._all()
        if name in entries:
            return entries[name]
        if ":" in name:
            raise ValueError(
                f"expected the {self.kind} to be registered, got {name!r}, a function of your own, from a file; files "
                f"import nothing: name it on the command line or in Python too, as in --{self.kind} {name}"
            )
        family, slash, member = name.partition("/")
        if slash and member and family + slash in entries:
            whole = entries[family + slash]
            return Entry(name, whole.about, _bound(whole.make, member), self.given)
        raise ValueError(f"expected the {self.kind} to be registered{known(name, entries)}")

    def trust(self, name: str) -> None:
        """Import what "module:function" names, because a person asked for it; other names are left as they are."""
        if ":" in name and name not in self._entries:
            self._entries[name] = Entry(name, f"{name}, imported.", _imported(name, self.kind), self.given)

    def __contains__(self, name: object) -> bool:
        """Whether it is registered under this very name."""
        return isinstance(name, str) and name in self._all()

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def make(self, name: str, options: Mapping[str, object] | None = None, **given: Any) -> T:
        """The thing ``name`` with these options."""
        entry = self[name]
        return entry.make(**given, **entry.fill(options or {}))


def known(name: object, names: Mapping[str, object]) -> str:
    """The end of a message about an unknown name: what came, the nearest, and all that there are."""
    near = get_close_matches(str(name), names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    choices = f", one of {', '.join(names) or 'none'}" if len(names) <= MANY else ""
    return f"{choices}, got {name!r}{hint}"


def _like(default: object) -> Any:
    """The kind of a parameter that has no annotation."""
    return Any if default is inspect.Parameter.empty or default is None else type(default)


def _bound(make: Callable[..., T], member: str) -> Callable[..., T]:
    """``make`` with its first parameter filled in, and a signature without it."""
    signature = inspect.signature(make)
    first, *others = signature.parameters.values()

    def bound(**options: Any) -> T:
        return make(member, **options)

    bound.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
    hints = typing.get_type_hints(make)
    bound.__annotations__ = {name: kind for name, kind in hints.items() if name != first.name}
    return bound


def _imported(name: str, kind: str) -> Callable[..., Any]:
    """What "module:function" names."""
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"expected the {kind} as module:function that can be imported, got {name!r} ({error})"
        ) from error
    if not callable(found):
        raise ValueError(f"expected {name!r} to be a function that makes the {kind}, got {type(found).__name__}")
    return typing.cast(Callable[..., Any], found)


def load_file(path: Path) -> None:
    """Run a user's Python file, which registers things; its errors are its own."""
    if not path.is_file():
        raise ValueError(f"expected a Python file that registers something, got {path}, which is not there")
    specification = importlib.util.spec_from_file_location(f"setwise_use_{path.stem}", path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module  # where dataclasses look for it
    specification.loader.exec_module(module)


def load_entry_points() -> None:
    """Import what installed packages offer under the entry-point group "setwise"."""
    from importlib.metadata import entry_points  # takes as long as all else that `setwise --help` needs of ours

    for point in entry_points(group=GROUP):
        point.load()


def convert(value: object, kind: Any, name: str) -> Any:
    """``value``, from a file or a command line, as ``kind``, an annotation; an error says what was expected."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if origin is Literal:
        if value in inner:
            return value
        raise ValueError(f"expected {name}{known(value, dict.fromkeys(map(str, inner)))}")
    if origin in (typing.Union, types.UnionType):
        return _first_of(value, inner, name)
    if origin is tuple:
        parts = value.split(",") if isinstance(value, str) else value
        if not isinstance(parts, (list, tuple)):
            raise ValueError(f"expected {name} to be a list, got {value!r}")
        kinds = inner[:1] * len(parts) if inner[1:] == (...,) else inner
        if len(kinds) != len(parts):
            raise ValueError(f"expected {name} to be {len(kinds)} values, got {value!r}")
        return tuple(convert(part, one, name) for part, one in zip(parts, kinds, strict=True))
    if kind is bool and str(value).lower() in ("true", "false"):
        return str(value).lower() == "true"
    if kind is type(None) and (value is None or str(value).lower() == "none"):
        return None
    if kind in (int, float) and not isinstance(value, bool) and isinstance(value, (Real, str)):  # numpy's too
        try:
            found = kind(value)
        except (ValueError, OverflowError):
            found = None
        if found is not None and (isinstance(value, str) or found == value):
            return found
    if kind is str and isinstance(value, str):
        return value
    raise ValueError(f"expected {name} to be {words(kind)}, got {value!r}")


def _first_of(value: object, kinds: Sequence[Any], name: str) -> Any:
    """``value`` as the first of ``kinds`` that takes it, None before words."""
    for kind in sorted(kinds, key=lambda kind: (kind is not type(None), kind is str)):
        try:
            return convert(value, kind, name)
        except ValueError:
            continue
    raise ValueError(f"expected {name} to be {' or '.join(filter(None, map(words, kinds)))}, got {value!r}")


def words(kind: Any) -> str:
    """What an annotation allows, for people; nothing where it is not for them."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return "one of " + ", ".join(map(str, inner))
    if origin in (typing.Union, types.UnionType):
        return " or ".join(filter(None, map(words, inner)))
    if origin is tuple:
        return "values, with commas" if inner[1:] == (...,) else f"{len(inner)} values, with commas"
    plain = {bool: "true or false", int: "a whole number", float: "a number", str: "a word", type(None): "none"}
    return plain.get(kind, "")
