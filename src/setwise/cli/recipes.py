"""`setwise recipes`."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import prod
from typing import TYPE_CHECKING, Annotated

import tyro

from setwise.cli.options import Use

if TYPE_CHECKING:
    from setwise.paper.recipes import Cell

FAMILIES = """\
Recipes have names. `setwise recipes NAME` prints one as a file, `setwise pretrain --recipe NAME` trains by it.

  paper/DATA-ENCODER-METHOD      the paper's experiments, as its text says
  released/DATA-ENCODER-METHOD   the same, as its released code computes
  modern/DATA-resnet18-METHOD    as today's libraries and the methods' authors train on CIFAR
  paper/DATA-matching-LOSS       instance matching, for `setwise match`; setwise/... has terms of ours
  pairs/DATA-ENCODER-infonce     two encoders: texts, captions, features, halves of images
  speedrun/DATA                  the speed record's, for `setwise speedrun`

`setwise recipes cifar10-conv4` lists the names with these letters, and what each stands for.

A recipe is made of parts, and each is an option. `setwise recipes encoders` describes all encoders, and so on:
"""
# What a person asks for, the registry that has it, and the option that takes its names.
KINDS = {
    "methods": ("method", "--method"),
    "losses": ("loss", "--objective.loss"),
    "terms": ("term", "--term NAME=WEIGHT"),
    "encoders": ("encoder", "--encoder"),
    "views": ("views", "--views"),
    "optimizers": ("optimizer", "--optimizer"),
    "schedules": ("schedule", "--schedule"),
    "data": ("data", "--data"),
    "loggers": ("logger", "--logger"),
}
EXAMPLES = 4  # of a kind's names, on the first screen
MOST, FEW = 24, 4  # recipes that are listed one by one, alone and among others
PARTS = ("DATA", "ENCODER", "METHOD")  # of a recipe's name


def recipes(
    name: Annotated[
        str,
        tyro.conf.Positional,
        tyro.conf.arg(
            help=f"a recipe to print, letters of its name to find it by, or a kind of part: {', '.join(KINDS)}"
        ),
    ] = "",
    use: Use = (),
) -> None:
    """Print a recipe as a TOML file to edit, or show what there is to choose from."""
    import setwise.paper.recipes as paper
    import setwise.register as register
    from setwise.recipe import to_toml
    from setwise.registry import nearest

    register.load_entry_points()
    for path in use:
        register.load_file(path)
    if not name:
        print(FAMILIES)
        for kind, (registry, option) in KINDS.items():
            names = list(getattr(register, registry))
            examples = ", ".join(names[:EXAMPLES]) + (", ..." if len(names) > EXAMPLES else "")
            print(f"  {kind:10} {len(names):3}  {option:19} {examples}")
    elif name in KINDS:
        registry, option = KINDS[name]
        print(option)
        for entry in getattr(register, registry).values():
            print(f"  {entry.name:24} {entry.about}")
    elif name in paper.CELLS:
        print(to_toml(paper.recipe(name).tree()), end="")
    elif matches := [cell for one, cell in paper.CELLS.items() if name.lower() in one]:
        print("\n".join(_lines(matches) if len(matches) <= MOST else _families(matches)))
    elif near := nearest(name, KINDS):
        raise ValueError(f"expected a kind of part or the name of a recipe, got {name!r}{near}")
    else:
        paper.recipe(name)  # raises, with the nearest names


def _lines(cells: Sequence["Cell"]) -> Iterator[str]:
    """What each recipe stands for."""
    for cell in cells:
        yield f"{cell.name:44} {cell.recipe().about}"


def _families(cells: Sequence["Cell"]) -> Iterator[str]:
    """How the names of many recipes are put together."""
    example = f"`setwise recipes {cells[0].form}/{'-'.join(cells[0].parts[:2])}`"
    yield f"{len(cells)} recipes. More letters of a name find fewer, each with what it stands for: {example}"
    families = defaultdict(list)
    for cell in cells:
        families[cell.form, cell.kind].append(cell)
    for (form, _), members in families.items():
        parts = [[*dict.fromkeys(part)] for part in zip(*(cell.parts for cell in members), strict=True)]
        yield ""
        if len(members) <= FEW or len(members) != prod(map(len, parts)):  # not every part goes with every other
            yield from _lines(members)
            continue
        words = [part[0] if len(part) == 1 else word for word, part in zip(PARTS, parts, strict=True)]
        yield f"{form}/{'-'.join(words)}: {len(members)} recipes"
        yield from (f"  {word:8} {', '.join(part)}" for word, part in zip(PARTS, parts, strict=True) if len(part) > 1)
