"""`setwise pretrain` and `setwise match`: commands whose options are the numbers of a recipe."""
# Heavy imports are inside, as in cli.py.

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import tyro

Root = Annotated[Path | None, tyro.conf.arg(help="folder of the data sets; $SETWISE_DATA or ~/.cache/setwise if none")]
Device = Annotated[str, tyro.conf.arg(help="cpu, cuda, ...; a GPU if there is one")]
RecipeName = Annotated[str, tyro.conf.arg(help="as `setwise recipes` lists them")]
DEFAULT_RECIPE = {"pretrain": "paper/digits-conv4-simclr-qare", "match": "paper/digits-matching-infonce-qare"}


def trainer(command: str, name: str) -> Callable[..., None]:
    """What `setwise pretrain` or `match` calls, with the numbers of the recipe ``name`` as its defaults."""
    from setwise.experiments.recipes import recipe as find
    from setwise.recipe import Recipe

    default = find(name)

    def train(
        fields: Any = default,
        *,
        recipe: RecipeName = name,
        seed: int = 1,
        out: Annotated[Path | None, tyro.conf.arg(help="the run's folder; runs/RECIPE/seed-N if none")] = None,
        root: Root = None,
        device: Device = "auto",
        resume: Annotated[bool, tyro.conf.arg(help="go on with the run in that folder, if there is one")] = False,
        checkpoint_seconds: Annotated[float, tyro.conf.arg(help="between checkpoints")] = 60.0,
        capture: Annotated[bool, tyro.conf.arg(help="steps as CUDA graphs, on a GPU")] = True,
        evaluate: Annotated[bool, tyro.conf.arg(help="at the end: linear probe and kNN, or the assignments")] = True,
        tensorboard: Annotated[bool, tyro.conf.arg(help="write TensorBoard's files too")] = False,
        quiet: Annotated[bool, tyro.conf.arg(help="no progress")] = False,
    ) -> None:
        from setwise.data.catalogue import CATALOGUE
        from setwise.experiments import runs
        from setwise.experiments.reproduce import run_of
        from setwise.training.loop import How
        from setwise.training.processes import join, leave

        if (fields.method == "matching") != (command == "match"):
            raise ValueError(
                f"expected a recipe for `setwise {command}`, got method {fields.method!r}, which is for "
                f"`setwise {'pretrain' if command == 'match' else 'match'}`"
            )
        folder = out or Path("runs") / recipe / f"seed-{seed}"
        name = recipe if fields == default else f"{recipe} (changed)"
        if fields.data not in CATALOGUE and Path(fields.data).is_dir():  # it is to be found from other folders too
            fields = replace(fields, data=os.path.abspath(fields.data))
        processes, where = join(runs.choose_device(device))
        try:
            record = run_of(fields)(
                fields,
                folder,
                name=name,
                seed=seed,
                how=How(where, resume, processes, capture, checkpoint_seconds, tensorboard, quiet),
                root=root,
                evaluate=evaluate,
            )
        finally:
            leave()
        if processes.first:
            say_final(record["final"])
            page = ", index.html" if (folder / "index.html").exists() else ""
            print(f"written to {folder}: record.json, metrics.csv, metrics.jsonl, checkpoint.safetensors{page}")

    # Set here, since names in annotations are looked up in the module, which has not imported it.
    train.__annotations__["fields"] = Annotated[Recipe, tyro.conf.arg(name="")]
    what = {"pretrain": "Train an encoder by a recipe, probe the frozen encoder, write the run's record."}
    what["match"] = "Learn to match two views of the same identities; match the test split; write record and page."
    train.__doc__ = (
        f"{what[command]}\n\nEvery number of the recipe is an option; its default is what the recipe says. Many "
        f"processes: torchrun --nproc-per-node 8 -m setwise.cli {command} ..."
    )
    return train


def say_final(final: dict[str, Any]) -> None:
    """Print a run's accuracies."""
    for name, value in final.items():
        if name.endswith("accuracy"):
            print(f"{name.replace('_', ' ')}: {100 * value:.2f} %")
