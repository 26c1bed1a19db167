"""What is minimised, as a value: a pairwise loss with its numbers, and any number of weighted set-level terms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor, nn

import setwise.register as register
from setwise.losses import controls, gram, modules  # noqa: F401 - they register themselves
from setwise.losses.combined import Function, SetContrastive, WeightedTerms
from setwise.registry import Registry, convert

On = Literal["embeddings", "features"]
BUILT_IN = "built-in"


@register.loss(BUILT_IN, about="The method's own, of byol and others that have one. Terms stand beside it.")
def built_in(z_a: Tensor, z_b: Tensor) -> Tensor:
    """Stands in a recipe for what its method computes itself; it is never called."""
    raise ValueError(
        "expected a loss of two views, got 'built-in', which only a method computes; take another, such as 'info-nce'"
    )


@dataclass(frozen=True)
class Choice:
    """A registered thing by its name, with all of its options."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, option: str) -> Any:
        """The value of an option."""
        return self.options[option]

    @classmethod
    def read(cls, registry: Registry[Any], values: object, key: str = "name") -> Choice:
        """From a name, or from a table with the name under ``key`` and options beside it; defaults are filled in."""
        table = _table(registry, values, key)
        options = {name: value for name, value in table.items() if name != key}
        return cls(table[key], registry[table[key]].fill(options))

    def tree(self, key: str = "name") -> dict[str, Any]:
        """The table that ``read`` takes."""
        return {key: self.name, **{name: list(x) if isinstance(x, tuple) else x for name, x in self.options.items()}}


@dataclass(frozen=True)
class Term:
    """A set-level term and its weight; ``on``: what it sees, the head's embeddings or the encoder's features."""

    term: Choice
    weight: float = 1.0
    on: On = "embeddings"

    @classmethod
    def read(cls, values: object) -> Term:
        """From a name, or from a table: "term", its options, "weight" and "on"."""
        values = _table(register.term, values, "term")
        own = {name: values[name] for name in ("weight", "on") if name in values}
        rest = {name: value for name, value in values.items() if name not in own}
        weight = convert(own.get("weight", 1.0), float, "weight")
        return cls(Choice.read(register.term, rest, "term"), weight, convert(own.get("on", "embeddings"), On, "on"))

    def tree(self) -> dict[str, Any]:
        """The table that ``read`` takes."""
        return self.term.tree("term") | {"weight": self.weight, "on": self.on}


@dataclass(frozen=True)
class Objective:
    """weight · pairwise loss + Σ weight · term."""

    loss: Choice
    weight: float = 1.0
    terms: tuple[Term, ...] = ()

    def __post_init__(self) -> None:
        """Raise on a term that comes twice: paths of a recipe, and weights, go by its name."""
        names = [one.term.name for one in self.terms]
        if len({*names}) < len(names):
            raise ValueError(f"expected every set-level term once, got {', '.join(names)}; leave one of them out")

    @classmethod
    def read(cls, values: object) -> Objective:
        """From the loss's name, or from a table: "loss", its options, "weight" and "terms"."""
        values = _table(register.loss, values, "loss")
        own = {name: values[name] for name in ("weight", "terms") if name in values}
        rest = {name: value for name, value in values.items() if name not in own}
        weight, terms = convert(own.get("weight", 1.0), float, "weight"), own.get("terms", ())
        if not isinstance(terms, (list, tuple)):
            raise ValueError(f"expected terms to be a list of set-level terms, got {terms!r}")
        return cls(Choice.read(register.loss, rest, "loss"), weight, tuple(map(Term.read, terms)))

    def tree(self) -> dict[str, Any]:
        """The table that ``read`` takes."""
        return self.loss.tree("loss") | {"weight": self.weight, "terms": [term.tree() for term in self.terms]}


def _table(registry: Registry[Any], values: object, key: str) -> Mapping[str, Any]:
    """``values`` as a table: a name alone is one with nothing beside it."""
    table = {key: values} if isinstance(values, str) else values
    if not isinstance(table, Mapping) or not isinstance(table.get(key), str):
        raise ValueError(f"expected the {registry.kind} by its name, or a table with {key!r}, got {values!r}")
    return table


def build(objective: Objective) -> nn.Module:
    """The objective as a module: the loss itself where nothing is weighed, a ``SetContrastive`` elsewhere."""
    pairwise = register.called(register.loss[objective.loss.name], objective.loss.options)
    if not objective.terms and objective.weight == 1:
        return pairwise if isinstance(pairwise, nn.Module) else Function(pairwise)
    terms = [register.called(register.term[one.term.name], one.term.options) for one in objective.terms]
    on = {one.on for one in objective.terms} or {"embeddings"}
    if len(on) > 1:
        raise ValueError("expected all terms on the embeddings or all on the features, got both; leave some out")
    weight, term = (objective.terms[0].weight, terms[0]) if len(terms) == 1 else (1.0, None)
    if term is None:
        named = zip(objective.terms, terms, strict=True)
        term = WeightedTerms({one.term.name: (one.weight, made) for one, made in named})
    return SetContrastive(pairwise, weight, term, alpha=objective.weight, on=on.pop())
