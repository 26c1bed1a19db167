"""The command line, as a person would call it."""

import json
import subprocess
import sys

import pytest
from PIL import Image

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


def test_bench_qare_measures_and_draws(tmp_path):
    main(["bench", "qare", "--device", "cpu", "--sizes", "16", "96", "--seconds", "0.05", "--out", str(tmp_path)])
    record = json.loads((tmp_path / "bench-qare.json").read_text())
    assert [row["n"] for row in record["rows"]] == [16, 96]
    assert all(row["plain_ms"] > 0 and row["dense_term_ms"] > 0 for row in record["rows"])
    assert record["terms"]["ms"]["dense"] > 20 * record["terms"]["ms"]["lowrank"]
    assert record["terms"]["euclidean_top8_relative_error"] < 0.05
    assert (tmp_path / "bench-qare.png").read_bytes().startswith(b"\x89PNG")


def test_data_preview_draws_images_beside_their_views(tmp_path, capsys):
    out = tmp_path / "sheet.png"
    main(["data", "preview", "digits", "--images", "3", "--columns", "2", "--out", str(out)])
    assert str(out) in capsys.readouterr().out
    with Image.open(out) as sheet:
        assert sheet.height > 3 * 96
        assert sheet.width > 3 * 96
        assert len(sheet.getcolors(2**24)) > 10
    with pytest.raises(SystemExit, match="expected .*cifar10.*fetch"):
        main(["data", "preview", "cifar10", "--root", str(tmp_path)])
