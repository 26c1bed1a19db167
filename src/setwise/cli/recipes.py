"""`setwise recipes`."""

from typing import Annotated

import tyro

from setwise.cli.options import Use

NAMES = """Recipes by name. `setwise recipes NAME` prints one as a file, `setwise pretrain --recipe NAME` trains by it.

  paper/DATA-ENCODER-METHOD       as the paper's text says
  released/DATA-ENCODER-METHOD    as its released code computes
      DATA      {data}
      ENCODER   {encoders}
      METHOD    simclr, simclr-qare, sparseclr, sparseclr-qare,
                supervised, random, rotation, deepcluster, deepinfomax
  modern/cifar10-resnet18-simclr  as today's libraries train; also -qare, -gap
  modern/DATA-resnet18-METHOD     methods with a loss of their own, as solo-learn or their authors train them
      DATA      cifar10, cifar100
      METHOD    {own_loss}
  paper/DATA-matching-LOSS        instance matching; also -qare (setwise/...-gap and -control are ours)
      DATA      {matching_data}
      LOSS      {matching_losses}
  pairs/multi30k-bag-infonce      two encoders: sentences and their translations; your own texts begin with it
      also -sets, which knows sets of 32 that belong together and no pairs
      also feature-pairs-mlp-infonce, captions-resnet18-infonce, for your own files
  pairs/cifar10-halves-conv4-infonce, digits-halves-resnet8-infonce
      left and right halves of images; also -sets
  speedrun/cifar10                the speed record's, for `setwise speedrun`; speedrun/digits-resnet8 to try it on a CPU

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


def recipes(
    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(help="print this one as a file, or find its name")] = "",
    use: Use = (),
) -> None:
    """Print a recipe as a TOML file to edit, or list the recipes and the parts that one is made of."""
    import setwise.paper.recipes as paper
    import setwise.register as register
    from setwise.recipe import to_toml

    register.load_entry_points()
    for path in use:
        register.load_file(path)
    matches = [one for one in paper.CELLS if name.lower() in one]
    if name in paper.CELLS or (name and not matches):
        return print(to_toml(paper.recipe(name).tree()), end="")  # an unknown name raises, with the nearest
    if name:
        return print("\n".join(f"{one:44} {paper.recipe(one).about}" for one in matches))
    lists = {
        "data": paper.DATA,
        "encoders": paper.ENCODERS,
        "own_loss": tuple(paper.OWN_LOSS),
        "matching_data": paper.MATCHING_DATA,
        "matching_losses": paper.MATCHING_LOSSES,
    }
    print(NAMES.format(**{key: ", ".join(names) for key, names in lists.items()}))
    for kind, option in KINDS.items():
        if entries := list(getattr(register, kind).values()):
            print(option, *(f"  {entry.name:24} {entry.about}" for entry in entries), "", sep="\n")
