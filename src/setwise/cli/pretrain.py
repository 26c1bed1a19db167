"""`setwise pretrain` and `setwise match`: a recipe, by name or from a file, with any of its fields changed."""

from __future__ import annotations

import gc
import os
import typing
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from setwise.cli.options import Device, Root, Use, add_term
from setwise.registry import convert, nearest
from setwise.walking import ahead

if TYPE_CHECKING:
    from setwise.recipe import Recipe

DEFAULT_RECIPE = {"pretrain": "paper/digits-conv4-simclr-qare", "match": "paper/digits-matching-infonce-qare"}
ABOUT = {
    "pretrain": "Train an encoder by a recipe, probe the frozen encoder, write the run's record.",
    "match": "Learn to match two views of the same identities; match the test split; write record and page.",
}
RETRIEVAL = (
    "  so many of {count:,} held-out images find their own second view by the features; chance is 1 in {count:,}"
)
RENAMED = {  # options of version 0.1
    "beta": "--term qare=WEIGHT",
    "initial": "--encoder.weights",
    "embedding": "--head.out",
    "tensorboard": "--logger tensorboard",
    **{f"probe_{name}": f"--probe.{name}" for name in ("epochs", "batch", "lr")},
}


@dataclass(frozen=True)
class Options:
    """Options of the run itself. All others are fields of the recipe."""

    recipe: Annotated[
        str, tyro.conf.arg(help="a name that `setwise recipes` knows, or a TOML file; if none, your own images decide")
    ] = ""
    seed: Annotated[int, tyro.conf.arg(help="of initial weights, order and views")] = 1
    use: Use = ()
    out: Annotated[
        Path | None, tyro.conf.arg(help="the run's folder; runs/RECIPE/seed-N or runs/FOLDER/seed-N if none")
    ] = None
    root: Root = None
    device: Device = "auto"
    resume: Annotated[bool, tyro.conf.arg(help="go on with the run in that folder, if there is one")] = False
    checkpoint_seconds: Annotated[float, tyro.conf.arg(help="between checkpoints")] = 60.0
    capture: Annotated[bool, tyro.conf.arg(help="steps as CUDA graphs, on a GPU")] = True
    compile: Annotated[bool, tyro.conf.arg(help="the encoder, by torch.compile: for timm's and torchvision's")] = False
    pixels: Annotated[
        Literal["auto", "resident", "mapped", "files"],
        tyro.conf.arg(
            help="of a folder: in memory, in a file of decoded images, or decoded when needed; by size if auto"
        ),
    ] = "auto"
    evaluate: Annotated[bool, tyro.conf.arg(help="linear probe and kNN, or the assignments, at the end")] = True
    quiet: Annotated[bool, tyro.conf.arg(help="no progress")] = False


KINDS = typing.get_type_hints(Options)


@dataclass
class CommandLine:
    """The words of a command, sorted."""

    options: dict[str, Any] = field(default_factory=dict)  # fields of Options
    changes: dict[str, Any] = field(default_factory=dict)  # fields of the recipe, by their paths
    terms: dict[str, Any] | None = None  # weights of the set-level terms, instead of the recipe's
    loggers: list[dict[str, Any]] = field(default_factory=list)  # "name" and options of each
    help: bool = False


def parse(args: Sequence[str]) -> CommandLine:
    """Sort ``photos/ --seed 3 --objective.temperature 0.2 --term gap=10 --logger wandb --logger.project mine``."""
    line, left = CommandLine(), list(args)
    while left:
        word = left.pop(0)
        if word in ("-h", "--help"):
            line.help = True
        elif word.startswith("--"):
            name, equals, value = word.removeprefix("--").partition("=")
            name = name.replace("-", "_")
            several = name in ("use", "logger")
            values = [value] if equals else []
            while left and not left[0].startswith("--") and not equals and KINDS.get(name) is not bool:
                values.append(left.pop(0))
                if not several:
                    break
            _add(line, name, values)
        elif word.startswith("-") or "data.source" in line.changes:
            raise ValueError(f"expected options --NAME VALUE and one source of data, got {word!r} too")
        else:
            line.changes["data.source"] = word
    return line


def _add(line: CommandLine, name: str, values: list[str]) -> None:
    """Put an option and the words that follow it where they belong."""
    typed, off = spelled(name), name.removeprefix("no_") if name.startswith("no_") else ""
    if name in RENAMED:
        raise ValueError(f"expected {RENAMED[name]}, got {typed}, its name in version 0.1")
    if not values and (name in ("term", "logger") or name.startswith("logger.") or KINDS.get(name, bool) is not bool):
        raise ValueError(f"expected a value after {typed}, got none")
    if name == "term":
        line.terms = line.terms or {}
        add_term(line.terms, values[0])
    elif name == "logger":
        line.loggers += [{"name": value} for value in values]
    elif name.startswith("logger."):
        if not line.loggers:
            raise ValueError(f"expected --logger NAME before {typed}, one of its options, got none")
        line.loggers[-1][name.removeprefix("logger.")] = values[0]
    elif KINDS.get(name) is bool:
        line.options[name] = convert(values[0] if values else "true", bool, typed)
    elif KINDS.get(off) is bool:
        line.options[off] = False
    elif name == "use":
        line.options[name] = (*line.options.get(name, ()), *map(Path, values))
    elif name in KINDS:
        line.options[name] = convert(values[0], KINDS[name], typed)
    else:  # without a value: true, or, after "no", false
        line.changes[off if off and not values else name] = values[0] if values else "false" if off else "true"


def spelled(name: str) -> str:
    """The option for a field: "--checkpoint-seconds" for "checkpoint_seconds"."""
    return f"--{name.replace('_', '-')}"


def train(command: str, args: Sequence[str]) -> None:
    """Run `setwise pretrain` or `setwise match`."""
    line = parse(args)
    with ahead("" if line.help else str(line.changes.get("data.source", ""))):
        _train(command, line)


def _train(command: str, line: CommandLine) -> None:
    options = asdict(Options(**line.options))
    collecting = gc.isenabled()
    gc.disable()  # or the collector walks through all of torch again and again: while it is imported,
    try:
        import setwise.register as register
        from setwise.evaluation.retrieval import MOST
        from setwise.front import compose, pretrain
        from setwise.recipe import UnknownField
    finally:
        gc.freeze()  # and afterwards
        if collecting:
            gc.enable()
    for file in options.pop("use"):
        register.load_file(file)
    try:
        recipe = options.pop("recipe") or (DEFAULT_RECIPE[command] if command == "match" else None)
        plan = compose(recipe, line.changes, line.terms)
    except UnknownField as error:
        names = map(spelled, [*error.paths, *KINDS, "term", "logger"])
        typed = spelled(error.path)
        hint = nearest(typed, names) or f"; `setwise {command} --help` lists them"
        raise ValueError(f"expected an option or a field of the recipe, got {typed!r}{hint}") from None
    if line.help:
        return print_help(command, plan.recipe)
    if plan.recipe.matched != (command == "match"):
        other = "pretrain" if command == "match" else "match"
        raise ValueError(
            f"expected a recipe for `setwise {command}`, got method {plan.recipe.method.name!r}, which is for "
            f"`setwise {other}`"
        )
    loggers = [one["name"] if len(one) == 1 else one for one in line.loggers]
    run = pretrain(recipe=plan, loggers=loggers, **options)
    if int(os.environ.get("RANK", "0")) == 0:  # of the processes that torchrun started
        print_accuracies(run.record["final"])
        if "view_retrieval_accuracy" in run.record["final"]:
            print(RETRIEVAL.format(count=min(MOST, run.record["data"]["test"])))
        page = ", index.html" if (run.folder / "index.html").exists() else ""
        print(f"written to {run.folder}: record.json, metrics.csv, metrics.jsonl, checkpoint.safetensors{page}")


def print_help(command: str, recipe: Recipe) -> None:
    """A line for every option of the run, and for every field of the recipe with its value and what it may be."""
    import setwise.register as register
    from setwise.cli.fields import describe

    print(f"usage: setwise {command} [DATA] [--recipe NAME] [--FIELD VALUE ...] [--term NAME=WEIGHT ...]\n")
    print(f"{ABOUT[command]}\n\nThe run:")
    hints = typing.get_type_hints(Options, include_extras=True)
    for one in fields(Options):
        about, value = hints[one.name].__metadata__[0].help, one.default
        if value is True:
            _print_line(spelled(f"no_{one.name}"), "", f"leave out: {about}")
        else:
            shown = DEFAULT_RECIPE[command] if one.name == "recipe" else "" if value is False else value
            _print_line(spelled(one.name), shown, about)
    loggers = register.logger
    _print_line("--logger", "none", f"NAME ..., beside csv and jsonl: {', '.join(loggers)}")
    own = [f"{name}: {', '.join(one.options)}" for name, one in loggers.items() if one.options]
    _print_line("--logger.OPTION", "none", f"VALUE, of the logger before it; {'; '.join(own)}")
    print(f"\nThe recipe, {recipe.about or 'yours'}. Of a name the last part will do, --lr for --optimizer.lr:")
    _print_line("--term", "", "NAME=WEIGHT: the set-level terms instead of these, once for each, or none")
    for line in describe(recipe)[1:]:
        _print_line(line.option, line.value, line.about)
    print("\n`setwise recipes encoders` says what each encoder is, and so for the other kinds of names.")
    print(f"Many processes: torchrun --nproc-per-node 8 -m setwise.cli {command} ...")


def _print_line(option: str, value: object, about: str) -> None:
    value = ",".join(map(str, value)) if isinstance(value, (list, tuple)) and value else value
    shown = "none" if value is None or value == () else str(value)
    print(f"  {f'{option} {shown}':50} {about}".rstrip())


def print_accuracies(final: Mapping[str, Any]) -> None:
    """Print a run's accuracies."""
    for name, value in final.items():
        if name.endswith("accuracy") or name.startswith("recall"):
            print(f"{name.replace('_', ' ')}: {100 * value:.2f} %")
