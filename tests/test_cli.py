"""The command line, as a person would call it."""

import subprocess
import sys

import pytest

from setwise import demo
from setwise.cli import main


def test_demo_trains_and_draws(tmp_path, capsys):
    found = demo.run(out=tmp_path / "demo.png", steps=120)
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert found["untrained"] < 0.1
    assert found["InfoNCE"] > 0.2
    assert found["one-to-one entropic"] > 0.2
    assert "InfoNCE" in capsys.readouterr().out


def test_help_lists_the_commands(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--help"])
    assert stopped.value.code == 0
    assert "demo" in capsys.readouterr().out


def test_an_unknown_command_fails_clearly():
    run = subprocess.run([sys.executable, "-m", "setwise.cli", "dmo"], capture_output=True, text=True)
    assert run.returncode != 0
    assert "demo" in run.stdout + run.stderr
