"""`setwise pretrain` and `setwise match`: a recipe, by name or from a file, with any of its fields changed."""
# Heavy imports are inside, as in __init__.py.

from __future__ import annotations

import os
import typing
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from setwise.registry import convert

if TYPE_CHECKING:
    from setwise.recipe import Recipe

Root = Annotated[Path | None, tyro.conf.arg(help="folder of the data sets; $SETWISE_DATA or ~/.cache/setwise if none")]
Device = Annotated[str, tyro.conf.arg(help="cpu, cuda, ...; a GPU if there is one")]
DEFAULT_RECIPE = {"pretrain": "paper/digits-conv4-simclr-qare", "match": "paper/digits-matching-infonce-qare"}
ABOUT = {
    "pretrain": "Train an encoder by a recipe, probe the frozen encoder, write the run's record.",
    "match": "Learn to match two views of the same identities; match the test split; write record and page.",
}


RENAMED = {  # options of version 0.1
    "beta": "--term qare=WEIGHT",
    "initial": "--encoder.weights",
    "embedding": "--head.out",
    "tensorboard": "--logger tensorboard",
    **{f"probe_{name}": f"--probe.{name}" for name in ("epochs", "batch", "lr")},
}


@dataclass(frozen=True)
class RunArguments:
    """How a run is carried out, which decides nothing of what it is but the seed."""

    recipe: Annotated[str, tyro.conf.arg(help="a name that `setwise recipes` knows, or a TOML file")] = ""
    seed: Annotated[int, tyro.conf.arg(help="of initial weights, order and views")] = 1
    use: Annotated[tuple[Path, ...], tyro.conf.arg(help="Python files that register more methods, terms, ...")] = ()
    out: Annotated[Path | None, tyro.conf.arg(help="the run's folder; runs/RECIPE/seed-N if none")] = None
    root: Root = None
    device: Device = "auto"
    resume: Annotated[bool, tyro.conf.arg(help="go on with the run in that folder, if there is one")] = False
    checkpoint_seconds: Annotated[float, tyro.conf.arg(help="between checkpoints")] = 60.0
    capture: Annotated[bool, tyro.conf.arg(help="steps as CUDA graphs, on a GPU")] = True
    evaluate: Annotated[bool, tyro.conf.arg(help="linear probe and kNN, or the assignments, at the end")] = True
    logger: Annotated[tuple[str, ...], tyro.conf.arg(help="beside csv and jsonl: tensorboard, wandb, mlflow, ...")] = ()
    quiet: Annotated[bool, tyro.conf.arg(help="no progress")] = False


@dataclass
class Words:
    """A command line, divided into how a run is carried out, and changes of its recipe."""

    run: dict[str, Any] = field(default_factory=dict)  # fields of RunArguments
    changes: dict[str, Any] = field(default_factory=dict)  # of the recipe, by their paths
    terms: list[dict[str, Any]] | None = None  # instead of the recipe's
    help: bool = False


def divide(args: Sequence[str]) -> Words:
    """``--seed 3 --objective.temperature 0.2 --term gap=10 photos/`` in its parts."""
    kinds = typing.get_type_hints(RunArguments)
    found, left = Words(), list(args)
    while left:
        word = left.pop(0)
        if word in ("-h", "--help"):
            found.help = True
            continue
        if not word.startswith("--"):
            if word.startswith("-") or "data.source" in found.changes:
                raise ValueError(f"expected options --NAME VALUE and one source of data, got {word!r} too")
            found.changes["data.source"] = word
            continue
        name, equals, value = word.removeprefix("--").partition("=")
        name = name.replace("-", "_")
        off = name.removeprefix("no_") if name.startswith("no_") else ""
        values = [value] if equals else []
        while left and not left[0].startswith("--") and not equals and len(values) < _most(kinds.get(name)):
            values.append(left.pop(0))
        if name in RENAMED:
            raise ValueError(f"expected {RENAMED[name]}, got {word}, its name in version 0.1")
        if name == "term":
            found.terms = (found.terms or []) + _terms(values)
        elif name in kinds:
            found.run[name] = _own(name, kinds[name], values, found.run.get(name, ()))
        elif kinds.get(off) is bool:
            found.run[off] = False
        else:  # without a value: true, or, after "no", false
            found.changes[off if off and not values else name] = values[0] if values else "false" if off else "true"
    return found


def _most(kind: Any) -> float:
    """How many words may follow an option."""
    return 0 if kind is bool else float("inf") if typing.get_origin(kind) is tuple else 1


def _own(name: str, kind: Any, values: list[str], before: tuple[Any, ...]) -> Any:
    """The value of a field of RunArguments."""
    if kind is bool:
        return convert(values[0] if values else "true", bool, f"--{name}")
    if not values:
        raise ValueError(f"expected a value after --{name.replace('_', '-')}, got none")
    made = [Path(x) for x in values] if "Path" in str(kind) else values
    if typing.get_origin(kind) is tuple:
        return (*before, *made)
    return made[0] if "Path" in str(kind) else convert(made[0], kind, f"--{name.replace('_', '-')}")


def _terms(values: list[str]) -> list[dict[str, Any]]:
    """``qare=0.5`` as a table; ``none`` is no term."""
    if not values:
        raise ValueError("expected --term NAME=WEIGHT, or --term none, got no name")
    name, equals, weight = values[0].partition("=")
    return [] if name == "none" else [{"term": name, **({"weight": weight} if equals else {})}]


def train(command: str, args: list[str]) -> None:
    """What `setwise pretrain` or `setwise match` does."""
    words = divide(args)
    given = RunArguments(**words.run)
    import setwise.register as register
    from setwise.front import read_recipe
    from setwise.recipe import trust

    register.load_entry_points()
    for file in given.use:
        register.load_file(file)
    trust(words.changes | {"terms": words.terms or ()})  # a person wrote it
    name = given.recipe or DEFAULT_RECIPE[command]
    known = read_recipe(name)
    if words.terms is not None:
        words.changes["terms"] = [_options_of(known, term["term"]) | term for term in words.terms]
    recipe = known.changed(words.changes)
    if words.help:
        return print_help(command, recipe)
    if recipe.matched != (command == "match"):
        raise ValueError(
            f"expected a recipe for `setwise {command}`, got method {recipe.method.name!r}, which is for "
            f"`setwise {'pretrain' if command == 'match' else 'match'}`"
        )
    _run(recipe, name if recipe == known else f"{name} (changed)", name.removesuffix(".toml"), given)


def _options_of(recipe: Recipe, term: str) -> dict[str, Any]:
    """The recipe's own options of that term: ``--term qare=1`` changes the weight alone."""
    terms = recipe.objective.terms if recipe.objective is not None else ()
    return next((one.tree() for one in terms if one.term.name == term), {})


def _run(recipe: Recipe, name: str, place: str, given: RunArguments) -> None:
    import setwise.register as register
    import setwise.runs as runs
    from setwise.runs import run_of
    from setwise.training.loop import How
    from setwise.training.processes import join, leave

    folder = given.out or Path("runs") / place / f"seed-{given.seed}"
    source = recipe.data.source
    if source not in register.data and Path(source).is_dir():  # it is to be found from other folders too
        recipe = recipe.changed({"data.source": os.path.abspath(source)})
    processes, where = join(runs.choose_device(given.device))
    try:
        record = run_of(recipe)(
            recipe,
            folder,
            name=name,
            seed=given.seed,
            how=How(
                where,
                given.resume,
                processes,
                given.capture,
                given.checkpoint_seconds,
                given.logger,
                given.quiet,
            ),
            root=given.root,
            evaluate=given.evaluate,
        )
    finally:
        leave()
    if processes.first:
        say_final(record["final"])
        page = ", index.html" if (folder / "index.html").exists() else ""
        print(f"written to {folder}: record.json, metrics.csv, metrics.jsonl, checkpoint.safetensors{page}")


def print_help(command: str, recipe: Recipe) -> None:
    """Options of the run, and every field of the recipe with its value and what it may be; a line each."""
    from setwise.cli.recipes import described

    hints = typing.get_type_hints(RunArguments, include_extras=True)
    print(f"usage: setwise {command} [DATA] [--recipe NAME] [--FIELD VALUE ...] [--term NAME=WEIGHT ...]\n")
    print(f"{ABOUT[command]}\n\nThe run:")
    for one in fields(RunArguments):
        on, about = one.default is True, hints[one.name].__metadata__[0].help
        value = (
            DEFAULT_RECIPE[command] if one.name == "recipe" else "" if isinstance(one.default, bool) else one.default
        )
        _line(f"--{'no-' * on}{one.name.replace('_', '-')}", value, f"leave out: {about}" if on else about)
    print(f"\nThe recipe, {recipe.about or 'yours'}. Of a name the last part will do, --lr for --optimizer.lr:")
    _line("--term", "", "NAME=WEIGHT: the set-level terms instead of these, once for each, or none")
    for line in described(recipe)[1:]:
        _line(line.option, line.value, line.about)
    print("\n`setwise recipes` says what each name stands for.")
    print(f"Many processes: torchrun --nproc-per-node 8 -m setwise.cli {command} ...")


def _line(option: str, value: object, about: str) -> None:
    shown = "none" if value is None or value == () else ",".join(map(str, value)) if type(value) is list else str(value)
    print(f"  {f'{option} {shown}':50} {about}".rstrip())


def completed(command: str) -> type:
    """Every option of the command as a field, for a shell's completion."""
    from setwise.cli.recipes import described
    from setwise.paper.recipes import CELLS, recipe

    names = [name for name, cell in CELLS.items() if (cell.kind == "matching") == (command == "match")]
    hints = typing.get_type_hints(RunArguments, include_extras=True)
    columns: list[tuple[str, Any, Any]] = [("recipe", Literal[(*names,)], field(default=names[0]))]
    columns += [(one.name, hints[one.name], field(default=one.default)) for one in fields(RunArguments)[1:]]
    columns.append(("term", str, field(default="")))
    options = {one.option: one for one in described(recipe(DEFAULT_RECIPE[command]))}
    deepest = sorted(options, key=lambda option: -option.count("."))
    ends = {f"--{option.rpartition('.')[2]}": options[option] for option in deepest if "." in option}
    for i, (option, one) in enumerate((ends | options).items()):
        kind: Any = bool if one.flag else Literal[one.choices] if one.choices else str
        name = tyro.conf.arg(name=option.removeprefix("--"), help=one.about)
        default = False if one.flag else one.choices[0] if one.choices else ""
        columns.append((f"field{i}", Annotated[kind, name], field(default=default)))
    made: type = make_dataclass("Options", columns, frozen=True)
    return made


def say_final(final: dict[str, Any]) -> None:
    """Print a run's accuracies."""
    for name, value in final.items():
        if name.endswith("accuracy"):
            print(f"{name.replace('_', ' ')}: {100 * value:.2f} %")
