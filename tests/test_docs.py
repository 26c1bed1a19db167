"""README and docs say what is so: the example runs, every symbol and test of the paper map exists."""

import ast
import importlib.util
import json
import re
from pathlib import Path

import pytest

from setwise.evaluation.matching import match, match_quadratic
from setwise.experiments.recipes import RECIPES
from setwise.losses.presets import PRESETS

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


def hooks():
    specification = importlib.util.spec_from_file_location("hooks", ROOT / "docs" / "hooks.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_the_picture_shows_what_the_page_says():
    a, b = hooks().turned_sets()
    assert match(a, b).accuracy < 0.5
    assert match_quadratic(a, b, weight=64.0).accuracy == 1.0
    picture = hooks().alignment_picture()
    assert picture.count("<circle") == picture.count("<rect") == 18
    assert picture.count("stroke-dasharray") == 9 - round(9 * match(a, b).accuracy)


def test_the_numbers_page_is_made_of_the_records():
    page = hooks().numbers_page()
    step = json.loads((ROOT / "results" / "bench-step-h200.json").read_text())["encoders"]
    for row in step.values():
        assert f"{row['setwise_ms']:.3f} ms" in page


def test_how_to_pages_name_real_recipes_and_commands():
    for path in (ROOT / "docs").rglob("*.md"):
        for name in re.findall(r"\b((?:paper|released|modern|setwise)/[a-z0-9]+-[a-z0-9-]+)\b", path.read_text()):
            assert name in RECIPES or name in PRESETS, (path.name, name)
