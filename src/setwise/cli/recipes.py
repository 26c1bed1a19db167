"""`setwise recipes`."""

from typing import Annotated

import tyro

from setwise.cli.options import Use

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
    elif matches := [one for one in paper.CELLS if name.lower() in one]:
        print("\n".join(f"{one:44} {paper.recipe(one).about}" for one in matches))
    elif near := nearest(name, KINDS):
        raise ValueError(f"expected a kind of part or the name of a recipe, got {name!r}{near}")
    else:
        paper.recipe(name)  # raises, with the nearest names
