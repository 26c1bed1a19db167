"""The examples run, and say something that is so."""

import re
import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def said(name: str, capsys: pytest.CaptureFixture[str]) -> str:
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return capsys.readouterr().out


def test_own_loop_learns(capsys):
    out = said("own_loop.py", capsys)
    losses = [float(x) for x in re.findall(r"loss (\d+\.\d+)", out)]
    assert len(losses) == 8
    assert losses[-1] < losses[0]
    assert float(re.findall(r"recognise (\d+\.\d+)%", out)[0]) > 80


def test_structure_repairs_what_pairs_get_wrong(capsys):
    out = said("matching_sets.py", capsys)
    right = [float(x) for x in re.findall(r"(\d+\.\d+)% right", out)]
    assert right[0] < 70  # pairs alone
    assert max(right[2:]) > 95


def test_halves_of_digits_find_each_other(capsys):
    out = said("digit_halves.py", capsys)
    matched = [float(x) for x in re.findall(r"(\d+\.\d+)% of \d+ halves matched", out)]
    chance = float(re.findall(r"Chance is (\d+\.\d+)%", out)[0])
    assert len(matched) == 3
    assert min(matched) > 8 * chance
