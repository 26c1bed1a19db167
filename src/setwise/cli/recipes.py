"""`setwise recipes`: what there is to choose from, a recipe as a file, and a line on each of its fields."""

from __future__ import annotations

import typing
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import setwise.register as register
from setwise.losses.objective import Objective, Term
from setwise.paper.recipes import CELLS, DATA, ENCODERS, MATCHING_DATA, MATCHING_LOSSES, recipe
from setwise.recipe import CHOSEN, Data, Evaluation, Head, Probe, Recipe, flat, to_toml
from setwise.registry import Registry, words

NAMES = f"""Recipes by name. `setwise recipes NAME` prints one as a file, `setwise pretrain --recipe NAME` trains by it.

  paper/DATA-ENCODER-METHOD       as the paper's text says
  released/DATA-ENCODER-METHOD    as its released code computes
      DATA      {", ".join(DATA)}
      ENCODER   {", ".join(ENCODERS)}
      METHOD    simclr, simclr-qare, sparseclr, sparseclr-qare,
                supervised, random, rotation, deepcluster, deepinfomax
  modern/cifar10-resnet18-simclr  as today's libraries train; also -qare, -gap
  paper/DATA-matching-LOSS        instance matching; also -qare (setwise/...-gap and -control are ours)
      DATA      {", ".join(MATCHING_DATA)}
      LOSS      {", ".join(MATCHING_LOSSES)}

What a recipe is made of. Each of these is an option of `setwise pretrain`, as in --encoder resnet18 --term gap=10.
"""
KINDS = {
    "method": "--method",
    "loss": "--objective.loss",
    "term": "--term NAME=WEIGHT",
    "encoder": "--encoder",
    "views": "--views",
    "optimizer": "--optimizer",
    "schedule": "--schedule",
    "data": "--data",
    "logger": "--logger",
}
PLAIN = {  # fields that every recipe has
    "about": "a line for people",
    "epochs": "how often every image is seen",
    "batch": "images in a step",
    "drop_last": "leave out the last, partial batch of an epoch",
    "precision": "of the network; auto is bfloat16 on a GPU",
    "data.source": "a name of `setwise data list`, or a folder",
    "data.validation": "test on so many training images, kept apart, not on the test split",
    "data.instances": "for matching: how many images are halved",
    "data.split_seed": "which images are kept apart",
    "head.hidden": "width of the head's hidden layer",
    "head.out": "dimensions that the losses see",
    "evaluation.probe.epochs": "of the linear probe",
    "evaluation.probe.batch": "of the linear probe",
    "evaluation.probe.lr": "of the linear probe",
}


@dataclass(frozen=True)
class Field:
    """One field of a recipe, as an option of the command line."""

    option: str  # "--objective.temperature"
    value: Any
    about: str
    choices: tuple[str, ...] = ()
    flag: bool = False  # true or false


def show(name: str, use: Sequence[Path] = ()) -> None:
    """Print one recipe, those whose names contain ``name``, or all that there is to choose from."""
    register.load_entry_points()
    for path in use:
        register.load_file(path)
    if name in CELLS:
        return print(to_toml(recipe(name).tree()), end="")
    if name:
        near = [one for one in CELLS if name.lower() in one]
        if not near:
            recipe(name)  # says what is nearest
        return print("\n".join(f"{one:44} {recipe(one).about}" for one in near))
    print(NAMES)
    for kind, option in KINDS.items():
        if entries := list(getattr(register, kind).values()):
            print(option, *(f"  {entry.name:24} {entry.about}" for entry in entries), "", sep="\n")


def described(found: Recipe) -> list[Field]:
    """A line on every field of the recipe, those of no table first, as in its file."""
    kinds, values = _kinds(found), flat(found.tree())
    return [_field(path, values[path], kinds[path]) for path in sorted(values, key=lambda path: "." in path)]


def _field(path: str, value: Any, kind: Any) -> Field:
    option = "--data" if path == "data.source" else f"--{path.replace('_', '-')}"
    if isinstance(kind, Registry):
        names = tuple(f"{name}..." if name.endswith("/") else name for name in kind)
        short = option.removesuffix(".name").removesuffix(".preset")
        says = [PLAIN.get(path, ""), ", ".join(names)]
        return Field(
            short, value, ": ".join(filter(None, says)), tuple(name for name in kind if not name.endswith("/"))
        )
    choices = typing.get_args(kind) if typing.get_origin(kind) is Literal else ()
    says = [PLAIN.get(path, ""), words(kind) if choices or path not in PLAIN else ""]
    return Field(option, value, ": ".join(filter(None, says)), choices, kind is bool)


def _kinds(found: Recipe) -> dict[str, Any]:
    """The annotation of each field by its path; a registry where a name is chosen."""
    kinds: dict[str, Any] = typing.get_type_hints(Recipe)
    for before, table in (("data", Data), ("head", Head), ("evaluation", Evaluation), ("evaluation.probe", Probe)):
        kinds |= {f"{before}.{name}": kind for name, kind in typing.get_type_hints(table).items()}
    chosen: list[tuple[str, Registry[Any], str, str]] = [
        (part, registry, key, getattr(found, part).name) for part, (registry, key) in CHOSEN.items()
    ]
    if found.data.source in register.data:
        chosen.append(("data", register.data, "source", found.data.source))
    if found.objective is not None:
        kinds["objective.weight"] = typing.get_type_hints(Objective)["weight"]
        chosen.append(("objective", register.loss, "loss", found.objective.loss.name))
        for term in found.objective.terms:
            before = f"objective.terms.{term.term.name}"
            chosen.append((before, register.term, "term", term.term.name))
            kinds |= {f"{before}.{name}": typing.get_type_hints(Term)[name] for name in ("weight", "on")}
    for before, registry, key, name in chosen:
        kinds[f"{before}.{key}"] = registry
        kinds |= {f"{before}.{one.name}": one.kind for one in registry[name].options.values()}
    return kinds
