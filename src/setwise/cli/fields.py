"""A line on every field of a recipe, for help and completion."""

from __future__ import annotations

import typing
from dataclasses import dataclass
from typing import Any, Literal

import setwise.register as register
from setwise.losses.objective import Objective, Term
from setwise.recipe import CHOSEN, Data, Evaluation, Head, Probe, Recipe, flat, source_entry
from setwise.registry import Registry, words

PLAIN = {  # fields that every recipe has
    "about": "a line for people",
    "epochs": "how often every image is seen",
    "batch": "images in a step",
    "parts": "in which a batch goes through the network, for less memory; BatchNorm sees one at a time",
    "drop_last": "leave out the last, partial batch of an epoch",
    "ema": "above 0: evaluate a moving mean of the encoder's weights, of which a step keeps this share",
    "precision": "of the network; auto is bfloat16 on a GPU",
    "data.source": "a name of `setwise data list`, or a folder",
    "data.validation": "test on so many training images, kept apart, not on the test split",
    "data.instances": "for matching: how many images are halved; else: train on so many, of pairs the first",
    "data.split_seed": "which images are kept apart",
    "data.imbalance": "long tails: the first class has so many times the training images of the last",
    "data.wrong_partners": "share of the images whose second view shows another image",
    "data.size": "of the images: one number, or HEIGHTxWIDTH; none: from the files",
    "data.largest": "of the images: no side longer than this where no size is given",
    "data.skip_broken": "leave out files that cannot be read",
    "data.follow_links": "read what links out of the folder lead to",
    "data.vocabulary": "of texts: how many numbers words and their pieces are hashed to",
    "data.ngrams": "of texts: lengths of the pieces of words, with commas",
    "data.first": "of multi30k: the first side's language",
    "data.second": "of multi30k: the second side's language; of .npy files: the second one, beside the first",
    "data.test": "of multi30k: the split to test on; val is for choosing between recipes",
    "data.sets": "of your own pairs: the column that names the set of each line; training knows the sets alone",
    "data.group": "of multi30k and halves: training knows sets of so many pairs alone",
    "data.of": "of halves: the data set whose images are halved",
    "data.length": "of texts: the most numbers that one keeps",
    "head.hidden": "width of the head's hidden layer",
    "head.out": "dimensions that the losses see",
    "views.blur": "probability: of all views, or of each in turn, the last for all further ones, as 1,0.1",
    "views.sigma": "of the blur, from and to, in pixels",
    "views.solarize": "probability, as for the blur; inverts what is lighter than half",
    "evaluation.patches": "above 0: evaluate the mean of so many small crops of each image",
    "evaluation.probe.epochs": "of the linear probe",
    "evaluation.probe.batch": "of the linear probe",
    "evaluation.probe.lr": "of the linear probe",
    "evaluation.compressed": "kNN of features in 8 bits, in 1 bit, and cut short, too",
}


@dataclass(frozen=True)
class Field:
    """One field of a recipe, as an option of the command line."""

    option: str  # "--objective.temperature"
    value: Any
    about: str
    choices: tuple[str, ...] = ()
    flag: bool = False  # true or false


def describe(recipe: Recipe) -> list[Field]:
    """Every field of the recipe: those of no table first, as in its file."""
    kinds, values = _kinds(recipe), flat(recipe.tree())
    return [_field(path, values[path], kinds[path]) for path in sorted(values, key=lambda path: "." in path)]


def _field(path: str, value: Any, kind: Any) -> Field:
    option = "--data" if path == "data.source" else f"--{path.replace('_', '-')}"
    if isinstance(kind, Registry):
        names = ", ".join(f"{name}..." if name.endswith("/") else name for name in kind)
        about = f"{PLAIN[path]}: {names}" if path in PLAIN else names
        short = option.removesuffix(".name").removesuffix(".preset")
        return Field(short, value, about, tuple(name for name in kind if not name.endswith("/")))
    choices = typing.get_args(kind) if typing.get_origin(kind) is Literal else ()
    says = [PLAIN.get(path, ""), words(kind) if choices or path not in PLAIN else ""]
    return Field(option, value, ": ".join(filter(None, says)), choices, kind is bool)


def _kinds(recipe: Recipe) -> dict[str, Any]:
    """The annotation of each field by its path; a registry for a name that is chosen from one."""
    kinds: dict[str, Any] = typing.get_type_hints(Recipe)
    for before, table in (("data", Data), ("head", Head), ("evaluation", Evaluation), ("evaluation.probe", Probe)):
        kinds |= {f"{before}.{name}": kind for name, kind in typing.get_type_hints(table).items()}
    chosen: list[tuple[str, Registry[Any], str, str]] = [
        (part, registry, key, choice.name)
        for part, (registry, key) in CHOSEN.items()
        if (choice := getattr(recipe, part)) is not None
    ]
    chosen.append(("data", register.data, "source", source_entry(recipe.data.source).name))
    if recipe.objective is not None:
        kinds["objective.weight"] = typing.get_type_hints(Objective)["weight"]
        chosen.append(("objective", register.loss, "loss", recipe.objective.loss.name))
        for term in recipe.objective.terms:
            before = f"objective.terms.{term.term.name}"
            chosen.append((before, register.term, "term", term.term.name))
            kinds |= {f"{before}.{name}": typing.get_type_hints(Term)[name] for name in ("weight", "on")}
    for before, registry, key, name in chosen:
        kinds[f"{before}.{key}"] = registry
        kinds |= {f"{before}.{option}": one.kind for option, one in registry[name].options.items()}
    return kinds
