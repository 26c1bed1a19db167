"""Command line: arguments in, calls out."""
# Heavy imports are inside the commands: `setwise --help` should not wait for torch.

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable
from copy import deepcopy
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import tyro
from tyro.extras import SubcommandApp

from setwise.cli.training import ABOUT, Device, Root, completed, say_final, train
from setwise.terminal import visible
from setwise.version import __version__

T = TypeVar("T")
LISTS = ("--seeds", "--only")
START = (
    "Set-level contrastive learning.\n\n"
    "A first walk:\n"
    "  setwise demo                                     see it at work, in a minute\n"
    "  setwise pretrain --epochs 20 --out runs/first    train on the embedded digits, in seconds\n"
    "  setwise probe runs/first                         evaluate that run again\n"
    "  setwise export runs/first                        its encoder, for others\n"
    "  setwise recipes                                  what there is to choose from\n"
    "  setwise recipes NAME > mine.toml                 a recipe as a file: change it, then\n"
    "  setwise pretrain --recipe mine.toml              train by it\n"
    "  setwise help                                     pages on how to do things, and on errors\n"
    "  setwise --version                                which one this is\n\n"
    "A run's folder has its record, its metrics and its checkpoint; a run that was stopped goes on with --resume."
)
app, bench, data = SubcommandApp(), SubcommandApp(), SubcommandApp()
Name = Annotated[str, tyro.conf.Positional, tyro.conf.arg(help="as `setwise data list` shows it")]
Run = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(help="a run's folder, or its checkpoint")]


@app.command
def demo(
    out: Annotated[Path, tyro.conf.arg(help="folder for the page and the runs")] = Path("out/demo"),
    seed: int = 1,
) -> None:
    """The library at work on the embedded digits: learn without labels, match halves, leave a page to look at."""
    from setwise.demo import run

    _told(lambda: run(out=out, seed=seed))


@bench.command(name="qare")
def bench_qare(
    sizes: Annotated[tuple[int, ...], tyro.conf.arg(help="batch sizes N")] = (128, 256, 512, 1024, 2048, 4096),
    device: Device = "auto",
    encoder: Annotated[
        Literal["auto", "resnet32", "none"], tyro.conf.arg(help="below the head; none on a CPU, resnet32 on a GPU")
    ] = "auto",
    out: Annotated[Path, tyro.conf.arg(help="folder for the JSON file and the plot")] = Path("out"),
    seconds: Annotated[float, tyro.conf.arg(help="time to spend on each measurement")] = 2.0,
) -> None:
    """What QARe adds to a training iteration in time and memory, against the paper's dense way."""
    from setwise.bench.qare import run
    from setwise.runs import choose_device

    where = _told(lambda: choose_device(device))
    if encoder == "auto":
        encoder = "resnet32" if where.type == "cuda" else "none"
    _told(lambda: run(sizes=sizes, device=where, encoder=encoder, out=out, seconds=seconds))


@bench.command(name="step")
def bench_step(
    encoders: tuple[Literal["conv4", "resnet32", "resnet18", "matching"], ...] = ("conv4", "resnet32"),
    device: Device = "auto",
    out: Annotated[Path, tyro.conf.arg(help="folder for the JSON file")] = Path("out"),
    seconds: Annotated[float, tyro.conf.arg(help="time to spend on each measurement")] = 3.0,
    workers: Annotated[int, tyro.conf.arg(help="of the DataLoader that is compared with")] = 2,
    concurrent: Annotated[tuple[int, ...], tyro.conf.arg(help="also measure this many runs at once")] = (),
    compare: Annotated[bool, tyro.conf.arg(help="with plain torch and torchvision's transforms")] = True,
    methods: Annotated[bool, tyro.conf.arg(help="also an epoch of the paper's other methods")] = False,
) -> None:
    """What a training step costs, beside a plain torch + torchvision loop, in one run."""
    from setwise.bench.step import run
    from setwise.runs import choose_device

    _told(
        lambda: run(
            which=encoders,
            device=choose_device(device),
            out=out,
            seconds=seconds,
            workers=workers,
            concurrent=concurrent,
            compare=compare,
            methods=methods,
        )
    )


@data.command(name="list")
def data_list(root: Root = None) -> None:
    """Which data sets there are, and which of them are here."""
    from setwise.data.manage import show_list

    _told(lambda: show_list(root))


@data.command(name="fetch")
def data_fetch(
    name: Name,
    source: Annotated[str | None, tyro.conf.arg(help="URL, archive or folder; the makers' URL if none")] = None,
    root: Root = None,
    md5: Annotated[str | None, tyro.conf.arg(help="of an archive that you made yourself")] = None,
    force: Annotated[bool, tyro.conf.arg(help="replace what is installed")] = False,
) -> None:
    """Download, verify and install a data set."""
    from setwise.data.manage import fetch_and_tell

    _told(lambda: fetch_and_tell(name, root, source, md5=md5, force=force))


@data.command(name="check")
def data_check(name: Name, root: Root = None) -> None:
    """Compare an installed data set with its checksums, count and measure it; exit status 1 if something is wrong."""
    from setwise.data.manage import check_and_tell

    if not _told(lambda: check_and_tell(name, root)):
        sys.exit(1)


@data.command(name="preview")
def data_preview(
    name: Name,
    root: Root = None,
    views: Annotated[str, tyro.conf.arg(help="preset; `setwise recipes` lists them")] = "self-supervised",
    images: Annotated[int, tyro.conf.arg(help="how many images, drawn at random")] = 8,
    columns: Annotated[int, tyro.conf.arg(help="views of each")] = 8,
    seed: int = 0,
    out: Annotated[Path, tyro.conf.arg(help="the PNG file to write")] = Path("out/preview.png"),
) -> None:
    """Draw a contact sheet: images of a data set beside views of them."""
    from setwise.views.preview import write_preview

    print(_told(lambda: write_preview(name, root, views, images=images, columns=columns, seed=seed, out=out)))


@app.command(name="recipes")
def list_recipes(
    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(help="print this one as a file, or find its name")] = "",
    use: Annotated[tuple[Path, ...], tyro.conf.arg(help="Python files that register more")] = (),
) -> None:
    """Print a recipe as a TOML file to be changed, or say which there are and what one is made of."""
    from setwise.cli.recipes import show

    _told(lambda: show(name, use))


for _command in ABOUT:  # main() takes these itself: their options are those of a recipe
    app.command(name=_command, help=ABOUT[_command])(lambda: None)


@app.command(name="reproduce")
def reproduce_table(
    tables: Annotated[
        tuple[
            Literal[
                "table1", "table2", "table3", "fig-beta", "fig-time", "ablation", "confirm", "accuracy-gap", "shortfall"
            ],
            ...,
        ],
        tyro.conf.Positional,
        tyro.conf.arg(help="what of the paper; shortfall is the old name of accuracy-gap"),
    ],
    data: Annotated[str, tyro.conf.arg(help="cifar10, cifar100, tiny-imagenet, cuhk03 or digits")] = "cifar10",
    seeds: tuple[int, ...] = (1, 2, 3),
    only: Annotated[tuple[str, ...], tyro.conf.arg(help="runs with one of these in their name")] = (),
    instances: Annotated[int | None, tyro.conf.arg(help="of matching: another number of halves")] = None,
    results: Annotated[Path, tyro.conf.arg(help="folder of records; none is made twice")] = Path("results"),
    scratch: Annotated[Path, tyro.conf.arg(help="folder of the runs' checkpoints")] = Path("runs/reproduce"),
    root: Root = None,
    device: Device = "auto",
    at_once: Annotated[int, tyro.conf.arg(help="runs side by side")] = 1,
    forget: Annotated[bool, tyro.conf.arg(help="remove a run's checkpoint once its record is there")] = False,
    dry_run: Annotated[bool, tyro.conf.arg(help="list the runs, run nothing")] = False,
) -> None:
    """Make the runs of tables of the paper: those whose records are missing, several at once; safe to interrupt."""
    from setwise.paper.jobs import expand
    from setwise.paper.reproduce import listing, reproduce
    from setwise.runs import choose_device

    if not tables:
        sys.exit("setwise: expected what to reproduce, got nothing; `setwise reproduce table1`")
    if "fig-time" in tables:
        _fig_time(results, scratch, device, dry_run)
    runs = [table for table in tables if table != "fig-time"]
    if not runs:
        return
    jobs = _told(lambda: expand(runs, data=data, seeds=seeds, only=only, instances=instances, results=results))
    if dry_run:
        return print("\n".join(_told(lambda: listing(jobs, results))))
    make = partial(reproduce, jobs, results=results, scratch=scratch, root=root, at_once=at_once, forget=forget)
    left = _told(lambda: make(device=choose_device(device)))
    print(f"{len(jobs) - left} of {len(jobs)} records in {results}")
    if left:
        sys.exit(1)


def _fig_time(results: Path, scratch: Path, device: str, dry_run: bool) -> None:
    """Figure 3 is no run but a measurement, whose record is named after the machine."""
    from setwise.paper.figures import time_record
    from setwise.runs import choose_device
    from setwise.training.checkpoint import write_text

    path = time_record(results, _told(lambda: choose_device(device)))
    if dry_run or path.exists():
        there = f"0 of 1 measurements to make, {path} is there"
        return print(there if path.exists() else f"{path}\n1 of 1 measurements to make")
    folder = scratch / "fig-time"
    bench_qare(device=device, out=folder)
    write_text(path, (folder / "bench-qare.json").read_text())
    print(f"1 of 1 records in {results}")


@app.command(name="report")
def write_report(
    runs: Annotated[
        tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(help="folders of runs; the paper's tables if none")
    ] = (),
    where: Annotated[tuple[str, ...], tyro.conf.arg(help="only runs with FIELD=VALUE in their recipe")] = (),
    by: Annotated[tuple[str, ...], tyro.conf.arg(help="fields to group by; those that differ if none")] = (),
    results: Annotated[Path, tyro.conf.arg(help="folder of `setwise reproduce`'s records")] = Path("results"),
    out: Annotated[Path, tyro.conf.arg(help="folder for index.html, tables as .md and .csv")] = Path("out/report"),
    use: Annotated[tuple[Path, ...], tyro.conf.arg(help="Python files that register tables of your own")] = (),
) -> None:
    """A page and its tables: of any runs, grouped by what differs, or of the paper's, with its numbers and claims."""
    import setwise.register as register
    from setwise.paper.report import report
    from setwise.report.any_runs import report_runs

    def make() -> list[Path]:
        for path in use:
            register.load_file(path)
        if not runs and (where or by):
            raise ValueError("expected folders of runs for --where and --by, got none; `setwise report runs/ --by lr`")
        return report_runs(runs, out, where=where, by=by) if runs else report(results, out)

    files = _told(make)
    print(f"{files[0]}, and {len(files) - 1} files of tables beside it")


@app.command
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

    say_final(
        _told(
            lambda: runs.probe(
                checkpoint,
                device=runs.choose_device(device),
                data=data,
                root=root,
                fine_tune=fine_tune,
                fine_tune_epochs=fine_tune_epochs,
            )
        )
    )


@app.command(name="export")
def export_encoder(
    checkpoint: Run,
    out: Annotated[
        Path | None, tyro.conf.arg(help="folder for weights, config and encoder.onnx; RUN/encoder if none")
    ] = None,
    onnx: Annotated[bool, tyro.conf.arg(help="write ONNX too")] = True,
) -> None:
    """Write a trained encoder for others: safetensors with its config, and ONNX, checked against torch."""
    import setwise.runs as runs

    folder = out or (checkpoint if checkpoint.is_dir() else checkpoint.parent) / "encoder"
    for path in _told(lambda: runs.export(checkpoint, folder, onnx=onnx)).values():
        print(path)


@app.command(name="help")
def show_page(
    topic: Annotated[str, tyro.conf.Positional, tyro.conf.arg(help="a page or a section; all are listed if none")] = "",
) -> None:
    """Read a how-to page, or the section that an error cites."""
    from rich.console import Console
    from rich.markdown import Markdown

    from setwise.pages import text_of, topics

    if topic:
        return _told(lambda: Console().print(Markdown(text_of(topic))))
    for name, title in topics().items():
        print(f"{name:40} {title}")


@app.command(name="completion")
def print_completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], tyro.conf.Positional, tyro.conf.arg(help="yours")],
) -> None:
    """Print what lets a shell complete commands and options; bash: `source <(setwise completion bash)`."""
    whole = deepcopy(app)
    for command in ABOUT:
        whole.command(name=command)(completed(command))
    whole.cli(prog="setwise", args=["--tyro-print-completion", shell])


app.command(data, name="data", help="See, fetch, check and preview data sets.")
app.command(bench, name="bench", help="Measure what things cost.")


def _told(call: Callable[[], T]) -> T:
    """What ``call`` returns; an error about the input is one line for a person, not a traceback."""
    try:
        return call()
    except BrokenPipeError:
        raise
    except OSError as error:  # the system's own words say what came only
        words = f"expected to use {error.filename}, got: {error.strerror}; give another place" if error.filename else ""
        if error.errno == errno.ENOSPC:
            words = "expected space to write, got a full disk; free some, and the same command goes on or begins again"
        sys.exit(visible(f"setwise: {words or error}"))
    except (ValueError, ImportError) as error:
        sys.exit(visible(f"setwise: {error}"))
    except RuntimeError as error:
        from setwise.checks import see
        from setwise.training.errors import Interrupted, TrainingError, out_of_memory

        if out_of_memory(error):
            words = f"out of memory ({str(error).splitlines()[0]})"
            sys.exit(f"setwise: {words}; a smaller batch or network needs less, {see('how-to/errors#space')}")
        if not isinstance(error, TrainingError):
            raise
        print(visible(f"setwise: {error}"), file=sys.stderr)
        sys.exit(128 + error.signal if isinstance(error, Interrupted) else 1)  # as shells count signals


def main(args: list[str] | None = None) -> None:
    """Entry point of ``setwise``."""
    args = sys.argv[1:] if args is None else args
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without a letter gets "?", not a traceback
    try:
        if args == ["--version"]:
            return print(f"setwise {__version__}")
        _check_command(args)
        if args and args[0] in ABOUT:
            _told(lambda: train(args[0], args[1:]))
        else:
            app.cli(prog="setwise", description=START, args=_spread(args))
    except KeyboardInterrupt:
        print("setwise: stopped; the same command, with --resume where it has one, goes on", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        pass
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError as error:  # `setwise ... | head`: nobody reads the rest, nor what is flushed at exit
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
                if not isinstance(error, BrokenPipeError):
                    sys.exit(f"setwise: expected to write to {stream.name}, got: {error.strerror}")


def _check_command(args: list[str]) -> None:
    """End with the nearest command where one does not exist."""
    group, before = app, "setwise"
    for word in args:
        known = group._subcommands
        if word.startswith("-"):
            return
        if word not in known:
            near = get_close_matches(word, known, n=1)
            hint = f"; did you mean `{before} {near[0]}`?" if near else f"; `{before} --help` says what each does"
            sys.exit(f"setwise: expected one of {', '.join(known)} after `{before}`, got {word!r}{hint}")
        target = known[word].target
        if not isinstance(target, SubcommandApp):
            return
        group, before = target, f"{before} {word}"


def _spread(args: list[str]) -> list[str]:
    """``--seeds 1,2,3`` as ``--seeds 1 2 3``, and likewise ``--only``."""
    spread, option = [], ""
    for word in args:
        option = word if word.startswith("--") else option
        spread += word.split(",") if option in LISTS else [word]
    return spread
