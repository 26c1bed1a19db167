"""`setwise probe`."""

from typing import Annotated

import tyro

from setwise.cli.options import Device, Root, Run
from setwise.cli.pretrain import print_accuracies


def probe(
    checkpoint: Run,
    data: Annotated[str | None, tyro.conf.arg(help="other data than the run's, or where those are now")] = None,
    root: Root = None,
    device: Device = "auto",
    fine_tune: Annotated[bool, tyro.conf.arg(help="also train the whole network on the labels")] = False,
    fine_tune_epochs: Annotated[int, tyro.conf.arg(help="how long")] = 30,
) -> None:
    """Linear probe and kNN of a trained encoder, frozen; accuracies of the last epoch, not the best."""
    import setwise.runs as runs

    final = runs.probe(
        checkpoint,
        device=runs.choose_device(device),
        data=data,
        root=root,
        fine_tune=fine_tune,
        fine_tune_epochs=fine_tune_epochs,
    )
    print_accuracies(final)
