"""README and docs say what is so: the example runs, every symbol and test of the paper map exists."""

import ast
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAPER_MAP = (ROOT / "docs" / "paper-map.md").read_text()


def test_the_readme_example_runs(capsys):
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    exec(compile(example, "README.md", "exec"), {})
    assert float(capsys.readouterr().out) > 0.9


@pytest.mark.parametrize("symbol", sorted(set(re.findall(r"`(setwise\.[\w.]+)`", PAPER_MAP))))
def test_symbols_of_the_paper_map_exist(symbol):
    module, name = symbol.rsplit(".", 1)
    assert getattr(importlib.import_module(module), name).__doc__


@pytest.mark.parametrize("test", sorted(set(re.findall(r"`(tests/[\w./]+::\w+)`", PAPER_MAP))))
def test_tests_of_the_paper_map_exist(test):
    path, name = test.split("::")
    tree = ast.parse((ROOT / path).read_text())
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_equation_is_mapped():
    rows = [line.split("|")[1] for line in PAPER_MAP.splitlines() if line.startswith("|")]
    numbers = {int(n) for row in rows if "Eq." in row for n in re.findall(r"\d+", row.split("Eq.")[1])}
    assert numbers >= set(range(2, 18))


def test_the_map_of_rooms_names_real_files():
    rooms = (ROOT / "README.md").read_text().split("```")[5]
    for name in re.findall(r"^  (\w[\w.]*/?)", rooms, flags=re.MULTILINE):
        assert (ROOT / "src" / "setwise" / name).exists(), name
