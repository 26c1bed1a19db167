"""`setwise speedrun`."""

from pathlib import Path
from typing import Annotated, Any

import tyro

from setwise.cli.options import Device, Root, Use, add_term


def speedrun(
    recipe: Annotated[
        str, tyro.conf.arg(help="a name that `setwise recipes` knows, or a TOML file")
    ] = "speedrun/cifar10",
    change: Annotated[
        tuple[str, ...], tyro.conf.arg(help="FIELD=VALUE of the recipe, as epochs=100 views.grey=0.2")
    ] = (),
    term: Annotated[tuple[str, ...], tyro.conf.arg(help="set-level terms instead of the recipe's, as qare=0.5")] = (),
    seeds: Annotated[tuple[int, ...], tyro.conf.arg(help="1 if none, for --test 1 to 10")] = (),
    validation: Annotated[bool, tyro.conf.arg(help="on held-out training images: for choosing; the default")] = False,
    test: Annotated[bool, tyro.conf.arg(help="on the test images: the final look, once")] = False,
    target: Annotated[float, tyro.conf.arg(help="share of right answers of 10 neighbours to reach")] = 0.9,
    compile: Annotated[bool, tyro.conf.arg(help="the encoder, by torch.compile")] = False,
    name: Annotated[str, tyro.conf.arg(help="what the entry is called; the recipe's name if none")] = "",
    out: Annotated[Path, tyro.conf.arg(help="folder of the runs, with their checkpoints")] = Path("runs"),
    results: Annotated[
        Path | None, tyro.conf.arg(help="folder for the records alone, with the recipe and the files of --use")
    ] = None,
    root: Root = None,
    device: Device = "auto",
    use: Use = (),
) -> None:
    """Train under a clock and count ten neighbours: the open race to 90 % on CIFAR-10 without labels."""
    import setwise.register as register
    from setwise.front import compose
    from setwise.runs import choose_device, timed_runs

    if validation and test:
        raise ValueError("expected --validation or --test, got both; choose on --validation, test once")
    for file in use:
        register.load_file(file)
    changes: dict[str, object] = {}
    for words in change:
        field, equals, value = words.partition("=")
        if not equals:
            raise ValueError(f"expected --change FIELD=VALUE, got {words!r}; epochs=100 is one")
        changes[field] = value
    terms: dict[str, Any] = {}
    for words in term:
        add_term(terms, words)
    plan = compose(recipe, changes, terms if term else None)
    timed_runs(
        plan.recipe,
        name=name or plan.name,
        title=name or plan.title,
        seeds=seeds or (tuple(range(1, 11)) if test else (1,)),
        test=test,
        target=target,
        compile=compile,
        out=out,
        results=results,
        root=root,
        device=choose_device(device),
        files=use,
    )
