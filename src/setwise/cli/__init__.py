"""Command line: arguments in, calls out; one file per command.

A command imports what it needs when it is called: `setwise --help` does not wait for torch.
"""

import errno
import io
import os
import sys
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

from tyro.extras import SubcommandApp

from setwise.cli import (
    bench,
    completion,
    data,
    demo,
    embed,
    export,
    help,
    neighbours,
    probe,
    recipes,
    report,
    reproduce,
    speedrun,
)
from setwise.cli.map import map_images
from setwise.cli.pretrain import ABOUT, train
from setwise.terminal import visible
from setwise.version import __version__

START = (
    "Set-level contrastive learning.\n\n"
    "A first walk:\n"
    "  setwise demo                                     see it at work, in a minute\n"
    "  setwise pretrain --epochs 20 --out runs/first    train on the embedded digits, in seconds\n"
    "  setwise probe runs/first                         evaluate that run again\n"
    "  setwise map runs/first digits                    its images on a map, as a page\n"
    "  setwise export runs/first                        its encoder, for others\n"
    "  setwise recipes                                  what there is to choose from\n"
    "  setwise recipes NAME > mine.toml                 a recipe as a file: change it, then\n"
    "  setwise pretrain --recipe mine.toml              train by it\n"
    "  setwise help                                     pages on how to do things, and on errors\n"
    "  setwise --version                                which one this is\n\n"
    "A run's folder has its record, its metrics and its checkpoint; a run that was stopped goes on with --resume."
)
Command = Callable[..., Any]
GROUPS = {"data": "See, fetch, check, clean and preview data sets.", "bench": "Measure what things cost."}
COMMANDS: dict[str, Command | dict[str, Command]] = {
    "demo": demo.demo,
    "recipes": recipes.recipes,
    "pretrain": train,
    "match": train,
    "reproduce": reproduce.reproduce,
    "report": report.report,
    "speedrun": speedrun.speedrun,
    "probe": probe.probe,
    "embed": embed.embed,
    "neighbours": neighbours.neighbours,
    "map": map_images,
    "export": export.export,
    "help": help.help,
    "completion": completion.completion,
    "data": {
        "list": data.show_list,
        "fetch": data.fetch,
        "check": data.check,
        "clean": data.clean,
        "preview": data.preview,
    },
    "bench": {"qare": bench.qare, "step": bench.step},
}
LOOP = "Symlink loop"  # what Path.resolve says before Python 3.13, and no OSError
LISTS = ("--seeds", "--only")  # options that take values with commas too, and 1..10


def main(args: list[str] | None = None) -> None:
    """Entry point of ``setwise``."""
    # Large pages for torch's large tensors, which it allocates anew in each step. On Linux a CPU then trains Conv-4 at
    # 224 pixels with 44 images/s instead of 24 (one core): the system spent the rest on handing out small pages.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without a letter gets "?", not a traceback
    try:
        args = sys.argv[1:] if args is None else args
        if args and args[0] in ABOUT:  # their options depend on the recipe
            train(args[0], args[1:])
        elif args == ["--version"]:
            print(f"setwise {__version__}")
        else:
            _check_command(args)
            words, option = [], ""
            for word in args:
                option = word if word.startswith("--") else option
                words += [part for one in word.split(",") for part in _range(one)] if option in LISTS else [word]
            app_of(COMMANDS).cli(prog="setwise", description=START, args=words)
    except BrokenPipeError:
        pass
    except (KeyboardInterrupt, OSError, ValueError, ImportError, RuntimeError) as error:
        _end(error)
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError as error:  # `setwise ... | head`: nobody reads the rest, nor what is flushed at exit
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
                if not isinstance(error, BrokenPipeError):
                    sys.exit(f"setwise: expected to write to {stream.name}, got: {error.strerror}")


def _range(word: str) -> list[str]:
    """The whole numbers that "1..10" stands for; any other word itself."""
    first, dots, last = word.partition("..")
    if not (dots and first.isdecimal() and last.isdecimal()):
        return [word]
    return [str(number) for number in range(int(first), int(last) + 1)]


def app_of(commands: Mapping[str, Command | Mapping[str, Command]]) -> SubcommandApp:
    """The commands as tyro wants them."""
    app = SubcommandApp()
    for name, command in commands.items():
        if isinstance(command, Mapping):
            app.command(app_of(command), name=name, help=GROUPS.get(name))
        else:
            app.command(name=name, help=ABOUT.get(name))((lambda: None) if command is train else command)
    return app


def _check_command(args: list[str]) -> None:
    """Raise with the nearest command where one does not exist."""
    known: Command | Mapping[str, Command | dict[str, Command]] = COMMANDS
    before = "setwise"
    for word in args:
        if word.startswith("-") or not isinstance(known, Mapping):
            return
        if word not in known:
            near = get_close_matches(word, known, n=1)
            hint = f"; did you mean `{before} {near[0]}`?" if near else f"; `{before} --help` says what each does"
            raise ValueError(f"expected one of {', '.join(known)} after `{before}`, got {word!r}{hint}")
        known, before = known[word], f"{before} {word}"


def _end(error: BaseException) -> None:
    """Exit with one line for a person, not a traceback; what is a mistake of ours is raised again."""
    if isinstance(error, KeyboardInterrupt):
        print("setwise: stopped; the same command, with --resume where it has one, goes on", file=sys.stderr)
        sys.exit(130)
    if isinstance(error, OSError):  # the system's own words say only what it got
        message = str(error)
        if error.errno == errno.ENOSPC:
            message = "expected space to write, got a full disk; free some, and the same command goes on or starts over"
        elif error.filename:
            message = f"expected to use {error.filename}, got: {error.strerror}; give another place"
        sys.exit(visible(f"setwise: {message}"))
    if isinstance(error, (ValueError, ImportError)):
        sys.exit(visible(f"setwise: {error}"))
    if isinstance(error, RuntimeError) and str(error).startswith(LOOP):
        sys.exit(visible(f"setwise: expected a file or folder, got: {error}; give another place"))
    from setwise.checks import see
    from setwise.training.errors import Interrupted, TrainingError, out_of_memory

    if isinstance(error, RuntimeError) and out_of_memory(error):
        message = f"out of memory ({str(error).splitlines()[0]})"
        sys.exit(f"setwise: {message}; a smaller batch or network needs less, {see('how-to/errors#space')}")
    if not isinstance(error, TrainingError):
        raise error
    print(visible(f"setwise: {error}"), file=sys.stderr)
    sys.exit(128 + error.signal if isinstance(error, Interrupted) else 1)  # as shells count signals
