"""`setwise completion`."""

import typing
from dataclasses import field, fields, make_dataclass
from typing import Annotated, Any, Literal

import tyro

from setwise.cli.pretrain import ABOUT, DEFAULT_RECIPE, Options
from setwise.cli.recipes import KINDS, recipes


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], tyro.conf.Positional, tyro.conf.arg(help="yours")],
) -> None:
    """Print a script that lets a shell complete commands and options; bash: `source <(setwise completion bash)`."""
    from setwise.cli import COMMANDS, app_of

    commands = COMMANDS | {command: _all_options(command) for command in ABOUT}
    commands["recipes"] = dict.fromkeys(KINDS, recipes)  # tyro completes commands, not what follows one
    app_of(commands).cli(prog="setwise", args=["--tyro-print-completion", shell])


def _all_options(command: str) -> type:
    """A dataclass with every option of the command as a field."""
    import setwise.register as register
    from setwise.cli.fields import describe
    from setwise.paper.recipes import CELLS, recipe

    names = [name for name, cell in CELLS.items() if (cell.kind == "matching") == (command == "match")]
    hints = typing.get_type_hints(Options, include_extras=True)
    columns: list[tuple[str, Any, Any]] = [("recipe", _brief(Literal[(*names,)]), field(default=names[0]))]
    columns += [(one.name, hints[one.name], field(default=one.default)) for one in fields(Options)[1:]]
    loggers: Any = Literal[(*register.logger,)]
    columns.append(("logger", _brief(tuple[loggers, ...]), field(default=())))
    columns.append(("term", _brief(str, "a set-level term and its weight"), field(default="")))
    options = {one.option: one for one in describe(recipe(DEFAULT_RECIPE[command]))}
    deepest = sorted(options, key=lambda option: -option.count("."))
    ends = {f"--{option.rpartition('.')[2]}": options[option] for option in deepest if "." in option}
    for i, (option, one) in enumerate((ends | options).items()):
        kind: Any = bool if one.flag else Literal[one.choices] if one.choices else str
        default = False if one.flag else one.choices[0] if one.choices else ""
        about = "" if one.choices else one.about
        columns.append((f"field{i}", _brief(kind, about, name=option.removeprefix("--")), field(default=default)))
    made: type = make_dataclass("AllOptions", columns, frozen=True)
    made.__doc__ = ABOUT[command]
    return made


def _brief(kind: Any, about: str = "", *, name: str | None = None) -> Any:
    """An option without its default and a list of its choices: the shell offers these, and a script has them once."""
    metavar = "VALUE" if about else ""
    return Annotated[kind, tyro.conf.arg(name=name, help=about, metavar=metavar, help_behavior_hint="")]
