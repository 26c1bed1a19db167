"""The command line, as a person would call it."""

import errno
import gc
import os
import re
import shlex
import subprocess
import sys
from dataclasses import fields, replace
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from PIL import Image

import setwise.front as front
import setwise.register as register
from setwise import demo
from setwise.cli import main
from setwise.cli.pretrain import Options, parse
from setwise.cli.recipes import KINDS
from setwise.paper.recipes import CELLS, recipe
from setwise.recipe import flat

QARE = "released/digits-conv4-simclr-qare"


def test_demo_learns_and_leaves_a_page(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("setwise.evaluation.layout.FITTED", 200)
    out = tmp_path / "demo"
    found = demo.run(out=out, seeds=1, epochs=3, steps=40)
    probe = {name: runs[0]["final"]["probe_accuracy"] for name, runs in found.encoders.items()}
    assert probe["untrained"] < 0.5
    assert min(probe["SimCLR"], probe["SimCLR + QARe"]) > 0.6
    assert found.matching["untrained"] < 0.05
    assert found.matching["InfoNCE"] > 0.1
    assert found.matching["one-to-one entropic"] > 0.15
    printed, page = capsys.readouterr().out, (out / "index.html").read_text()
    for text in (printed, page):
        assert text.count(f"{100 * found.matching['InfoNCE']:.1f}") >= 2  # in the table of losses and in the grid
        assert f"{100 * probe['SimCLR + QARe']:.1f}" in text
    assert "data:image/png;base64," in page
    assert 'href="map.html"' in page
    assert "Map of digits" in (out / "map.html").read_text()
    terms = found.encoders["SimCLR + QARe"][0]["epochs"]
    assert f"3,{terms['pairwise'][2]:.5g}" in page
    assert f"3,{terms['regularizer'][2]:.5g}" in page

    # A second one takes away the runs of the first and nothing else.
    mine = out / "runs" / "simclr" / "seed-1" / "notes.txt"
    mine.write_text("keep me")
    demo.run(out=out, seed=2, seeds=1, epochs=1, steps=1)
    page = (out / "index.html").read_text()
    assert "runs/simclr/seed-2" in page
    assert [path.name for path in mine.parent.iterdir()] == ["notes.txt"]
    assert not (out / "runs" / "random" / "seed-1").exists()
    assert (out / "runs" / "simclr" / "seed-2" / "record.json").exists()


@pytest.mark.parametrize("name", ["index.html", "runs"])
def test_demo_keeps_off_what_it_did_not_write(tmp_path, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(SystemExit, match=f"expected a new folder.* {name} .*--out"):
        main(["demo", "--out", str(tmp_path)])
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    ("typed", "meant"), [("pretrian", "setwise pretrain"), ("data fecth", "setwise data fetch"), ("foo", "--help")]
)
def test_an_unknown_command_is_answered_with_the_nearest(typed, meant):
    with pytest.raises(SystemExit, match=meant):
        main(typed.split())


def test_version(capsys):
    main(["--version"])
    assert capsys.readouterr().out.split() == ["setwise", version("setwise")]


COMPLETE = """
source "$1"; shift
for typed; do
  COMP_WORDS=($typed); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMPREPLY=()
  _tyro_setwise
  echo "${COMPREPLY[@]}"
done
"""


def test_shells_complete(tmp_path, capsys):
    for shell, start in (("bash", "_tyro_setwise"), ("zsh", "#compdef setwise"), ("fish", "complete --no-files")):
        with pytest.raises(SystemExit) as stopped:
            main(["completion", shell])
        assert not stopped.value.code
        script = capsys.readouterr().out
        assert start in script
        (tmp_path / shell).write_text(script)
    offered = {
        "setwise pre": "pretrain",
        "setwise data fe": "fetch",
        "setwise reproduce table1 --dr": "--dry-run",
        "setwise pretrain --objective.temp": "--objective.temperature",
        "setwise pretrain --ter": "--term",
        "setwise pretrain --lr": "--lr",
        "setwise pretrain --logger tens": "tensorboard",
        "setwise pretrain --encoder resnet3": "resnet32 resnet34",
        f"setwise pretrain --recipe {QARE.removesuffix('-qare')}": f"{QARE.removesuffix('-qare')} {QARE}",
        "setwise match --recipe paper/digits-conv4": "",
        "setwise recipes enc": "encoders",
    }
    command = ["bash", "--norc", "-c", COMPLETE, "bash", str(tmp_path / "bash"), *offered]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert [" ".join(sorted(line.split())) for line in run.stdout.splitlines()] == list(offered.values())


def help_of(command, capsys):
    try:
        main([*command, "--help"])
    except SystemExit as stopped:
        assert not stopped.code  # noqa: PT017
    return capsys.readouterr().out


def test_the_help_of_every_command_says_what_it_does(capsys):
    commands = re.findall(r"• (\w+)", help_of([], capsys))
    assert {"demo", "data", "pretrain", "probe", "match", "reproduce", "bench", "report", "export"} <= set(commands)
    for command in commands:
        usage, what = help_of([command], capsys).split("\n\n")[:2]
        assert f"setwise {command}" in usage
        assert re.match(r"[A-Z].{20,}", what), command


@pytest.mark.parametrize(
    ("command", "takes"), [("map", "RUN IMAGES"), ("probe", "RUN"), ("data preview", "IMAGES"), ("data check", "DATA")]
)
def test_usage_says_what_a_command_takes_and_not_its_type(command, takes, capsys):
    usage = help_of(command.split(), capsys).partition("\n\n")[0]
    assert re.fullmatch(rf"usage: setwise {command} \[-h\] .*\b{takes}\b.*", usage)


def test_the_help_of_a_recipe_has_a_line_for_every_field(capsys):
    found = recipe(QARE)
    lines = help_of(["pretrain", "--recipe", QARE, "--epochs", "7"], capsys).splitlines()
    shown = {line.split()[0]: line for line in lines if line.startswith("  --")}
    for path in flat(found.tree()):
        option = "--data" if path == "data.source" else f"--{path.replace('_', '-')}"
        assert path == "about" or option.removesuffix(".name").removesuffix(".preset") in shown, path
    assert shown["--objective.temperature"].split()[1] == "0.5"
    assert shown["--epochs"].split()[1] == "7"
    assert "dense, lowrank" in shown["--objective.terms.qare.spectrum"]
    for name, entries in (
        ("--encoder", register.encoder),
        ("--objective.loss", register.loss),
        ("--logger", register.logger),
        ("--logger.OPTION", register.logger["wandb"].options),
    ):
        assert all(entry in shown[name] for entry in entries)
    for one in fields(Options):
        assert {f"--{one.name.replace('_', '-')}", f"--no-{one.name}"} & set(shown)
    assert all(len(line.split()) > 2 for line in shown.values())


@pytest.mark.parametrize("collecting", [True, False])
def test_help_leaves_the_collector_as_it_was(collecting, monkeypatch):
    switched = []
    monkeypatch.setattr(gc, "isenabled", lambda: collecting)
    monkeypatch.setattr(gc, "disable", lambda: switched.append(False))
    monkeypatch.setattr(gc, "enable", lambda: switched.append(True))
    monkeypatch.setattr(gc, "freeze", lambda: None)  # or all objects of the tests would stay
    main(["pretrain", "--help"])
    assert switched[0] is False
    assert switched[1:] == [True] * collecting


def test_a_command_line_is_sorted():
    line = parse(
        shlex.split("photos --seed 3 --lr=0.5 --no-evaluate --use a.py b.py --resume --term gap=10 --use c.py --root r")
    )
    use = (Path("a.py"), Path("b.py"), Path("c.py"))
    assert line.options == {"seed": 3, "evaluate": False, "use": use, "resume": True, "root": Path("r")}
    assert line.changes == {"data.source": "photos", "lr": "0.5"}
    assert line.terms == {"gap": "10"}
    line = parse(shlex.split("--drop-last --no-center --shift -1 --term gap --term none --term qare --resume=false"))
    assert line.changes == {"drop_last": "true", "center": "false", "shift": "-1"}
    assert line.terms == {"qare": None}
    assert line.options == {"resume": False}
    line = parse(shlex.split("--logger csv wandb --logger.project mine --logger.mode=online --logger tensorboard"))
    wandb = {"name": "wandb", "project": "mine", "mode": "online"}
    assert line.loggers == [{"name": "csv"}, wandb, {"name": "tensorboard"}]


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("--seed x", "expected --seed to be a whole number, got 'x'"),
        ("--seed", "expected a value after --seed, got none"),
        ("--seedd 3", "did you mean '--seed'"),
        ("--logge csv", "did you mean '--logger'"),
        ("--val 5", "did you mean '--validation'"),  # and not --small, which is nearer by its letters
        ("--chekpoint-seconds 3", "did you mean '--checkpoint-seconds'"),
        ("--temprature 1", "got '--temprature'; did you mean '--temperature'"),
        ("--zzzzz 1", "--help"),
        ("--epochs", "expected epochs to be a whole number"),
        ("--term", "expected a value after --term"),
        ("--term qaer=1", "did you mean 'qare'"),
        ("--term qare=x", "expected weight to be a number, got 'x'"),
        ("--term qare=1 --term qare=2", "qare twice"),
        ("--logger.project mine", "expected --logger NAME before --logger.project"),
        ("--logger", "expected a value after --logger"),
        ("--beta 1", "expected --term qare=WEIGHT, got --beta"),
        ("-x", "got '-x' too"),
        ("one two", "one source of data, got 'two' too"),
        ("--recipe paper/digits", "did you mean paper/digits-"),
        ("--recipe nothing.toml", "nothing.toml"),
        ("--use nothing.py", "expected a Python file"),
        ("--method matching", "which is for `setwise match`"),
        ("--encoder no_such_module:net", "can be imported"),
    ],
)
def test_a_bad_option_is_one_line(typed, message):
    with pytest.raises(SystemExit) as stopped:
        main(["pretrain", *typed.split()])
    assert re.fullmatch(f"setwise: .*{re.escape(message)}.*", stopped.value.code)


@pytest.mark.parametrize(("typed", "ends"), [("--batch 0", "at least 1, got 0"), ("--lr 1e40", "3.4e+38 at most")])
def test_a_number_out_of_range_is_told_what_concerns_it(typed, ends):
    with pytest.raises(SystemExit) as stopped:
        main(["pretrain", *typed.split()])
    assert stopped.value.code.endswith(ends)


def test_a_link_to_itself_is_one_line(tmp_path):
    (tmp_path / "loop.tsv").symlink_to(tmp_path / "loop.tsv")
    with pytest.raises(SystemExit) as stopped:
        main(["pretrain", str(tmp_path / "loop.tsv"), "--out", str(tmp_path / "run")])
    assert re.fullmatch("setwise: expected .*loop.tsv.*", stopped.value.code)


class Stop(BaseException):
    """The run would begin now."""


@pytest.fixture
def plan_of(monkeypatch):
    """What a command would run, and its options."""
    calls = []

    def pretrain(*, recipe, **options):
        calls.append((recipe, options))
        raise Stop

    monkeypatch.setattr(front, "pretrain", pretrain)

    def plan_of(*words):
        with pytest.raises(Stop):
            main(["pretrain", *words])
        return calls.pop()

    return plan_of


def test_a_recipe_is_printed_edited_and_given_back(tmp_path, capsys, plan_of):
    main(["recipes", "paper/digits-conv4-simclr-qare"])
    text = capsys.readouterr().out
    mine = tmp_path / "mine.toml"
    mine.write_text(text.replace("temperature = 0.05", "temperature = 0.1"))
    loggers = ("--logger", "csv", "wandb", "--logger.project", "x")
    plan, options = plan_of("--recipe", str(mine), "--lr", "0.5", "--seed", "3", *loggers)
    named = recipe("paper/digits-conv4-simclr-qare")
    assert plan.recipe == named.changed({"objective.temperature": 0.1, "optimizer.lr": 0.5})
    assert (plan.title, plan.name) == (f"{mine} (changed)", str(mine).removesuffix(".toml"))
    assert (options["seed"], options["loggers"]) == (3, ["csv", {"name": "wandb", "project": "x"}])
    mine.write_text("temperature = ")
    with pytest.raises(SystemExit, match="expected a recipe in TOML"):
        main(["pretrain", "--recipe", str(mine)])


def test_terms_replace_the_recipes_and_keep_their_options(plan_of):
    words = (["--term", "qare=0.25"], ["--term", "gap=10", "--term", "frobenius"], ["--term", "none"])
    weighed, others, none = (plan_of("--recipe", QARE, *one)[0].recipe.objective.terms for one in words)
    assert [weighed[0]] == [replace(recipe(QARE).objective.terms[0], weight=0.25)]
    assert [(one.term.name, one.weight) for one in others] == [("gap", 10.0), ("frobenius", 1.0)]
    assert none == ()


@pytest.mark.usefixtures("registries")
def test_a_file_of_ones_own_adds_a_term(tmp_path, plan_of, capsys):
    (tmp_path / "ideas.py").write_text(
        "import setwise as sw\n"
        "@sw.register.term('tight', about='Items are near.')\n"
        "def tight(z_a, z_b, *, power: float = 2.0): return (z_a - z_b).abs().pow(power).mean()\n"
    )
    plan, _ = plan_of("--use", str(tmp_path / "ideas.py"), "--term", "tight=2", "--power", "3")
    assert plan.recipe.objective.terms[0].term["power"] == 3.0
    main(["recipes", "terms", "--use", str(tmp_path / "ideas.py")])
    assert "tight" in capsys.readouterr().out


def test_recipes_say_what_there_is_to_choose_from(capsys):
    main(["recipes"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 25
    assert all(len(line) <= 120 for line in lines)
    assert all(any(f"{cell.form}/" in line for line in lines) for cell in CELLS.values())
    for kind, (registry, option) in KINDS.items():
        entries = getattr(register, registry).values()
        assert any(line.split()[:3] == [kind, str(len(entries)), option.split()[0]] for line in lines)
        main(["recipes", kind])
        listed = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
        assert listed[1:] == [[entry.name, entry.about] for entry in entries]
    main(["recipes", "DIGITS-conv4-simclr"])
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert "paper/digits-conv4-simclr-qare" in names
    assert all("digits-conv4-simclr" in name for name in names)
    for letters in ("paper", "digits", "cifar10", "e"):  # too many to list: how their names are put together
        main(["recipes", letters])
        names = []
        for line in capsys.readouterr().out.splitlines()[2:]:
            if found := re.match(r"(\S+): \d+ recipes", line):
                names.append(found[1])
            elif line.startswith("  "):
                word, *values = line.replace(",", "").split()
                names = [name.replace(word, x) for name in names for x in (values if word in name else [""])]
            elif line:
                names.append(line.split()[0])
        assert sorted(names) == sorted(name for name in CELLS if letters in name)
    with pytest.raises(SystemExit, match="got 'nothing'"):
        main(["recipes", "nothing"])
    with pytest.raises(SystemExit, match="got 'encoder'.*'encoders'"):
        main(["recipes", "encoder"])


def test_output_that_nobody_reads_is_no_error(tmp_path):
    # Nobody reads the output of a run any more: it goes on.
    for words in (["recipes"], ["match", "--epochs", "2", "--out", str(tmp_path)]):
        command = [sys.executable, "-m", "setwise.cli", *words]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            process.stdout.close()
            assert "Error" not in process.stderr.read()
        assert process.returncode == 0
    assert (tmp_path / "record.json").exists()


@pytest.mark.parametrize(("words", "out"), [(["recipes"], "/dev/full"), (["recipes", "zz\u00e9"], os.devnull)])
def test_a_full_disk_or_a_terminal_without_a_letter_gets_a_line_and_no_traceback(words, out):
    if not os.path.exists(out):
        pytest.skip("no device that is always full here")
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "setwise", *words]
    with open(out, "w") as out:
        run = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, env=environment)
    assert run.returncode == 1
    assert re.fullmatch("setwise: expected .*\n", run.stderr)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "setwise: expected space to write, got a full disk"),
        (KeyboardInterrupt(), "setwise: stopped"),
        (ModuleNotFoundError("expected onnx, got none"), "setwise: expected onnx, got none"),
        (IsADirectoryError(21, "Is a directory", "o"), "setwise: expected to use o, got: Is a directory"),
        (FileNotFoundError("expected a folder x, got none"), "setwise: expected a folder x, got none"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried"), "setwise: out of memory"),
        (RuntimeError("a bug"), None),
    ],
)
def test_what_goes_wrong_is_a_line_and_a_mistake_of_ours_a_traceback(error, message, monkeypatch, capsys):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("setwise.runs.export", fail)
    with pytest.raises(SystemExit if message else RuntimeError) as stopped:
        main(["export", "nowhere"])
    if message is None:
        return
    words = capsys.readouterr().err if stopped.value.code == 130 else stopped.value.code
    assert words.startswith(message)


def test_data_preview_draws_images_beside_their_views(tmp_path, capsys):
    out = tmp_path / "sheet.png"
    main(["data", "preview", "digits", "--images", "3", "--columns", "2", "--out", str(out)])
    assert str(out) in capsys.readouterr().out
    with Image.open(out) as sheet:
        assert min(sheet.size) > 3 * 96
        assert len(sheet.getcolors(2**24)) > 10
    with pytest.raises(SystemExit, match="expected .*cifar10.*fetch"):
        main(["data", "preview", "cifar10", "--root", str(tmp_path)])


@pytest.mark.parametrize("seeds", ["1,2", "1 2", "1..2", "1..1,2"])
def test_lists_with_commas_or_without(tmp_path, capsys, seeds):
    words = ["reproduce", "table3", "--dry-run", "--results", str(tmp_path / "a,b"), "--seeds", *seeds.split()]
    main([*words, "--only", "released/cifar10-conv4-simclr/,paper/cifar10-conv4-simclr/"])
    assert capsys.readouterr().out.count("a,b/runs/") == 4
    with pytest.raises(SystemExit, match="expected what to reproduce"):
        main(["reproduce"])


def test_records_that_are_missing_in_the_end_are_the_exit_status(tmp_path, capsys, monkeypatch):
    words = ["reproduce", "table3", "--seeds", "1", "--only", "conv4-simclr/", "--results", str(tmp_path)]
    monkeypatch.setattr("setwise.paper.reproduce.reproduce", lambda jobs, **how: 0)
    main([*words, "--device", "cpu"])
    assert capsys.readouterr().out == f"2 of 2 records in {tmp_path}\n"
    monkeypatch.setattr("setwise.paper.reproduce.reproduce", lambda jobs, **how: 1)
    with pytest.raises(SystemExit, match="^1$"):
        main([*words, "--device", "cpu"])
    assert capsys.readouterr().out == f"1 of 2 records in {tmp_path}\n"
