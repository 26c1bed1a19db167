"""The notebooks run from top to bottom, check themselves, and lie in git without outputs."""

import importlib.util
import json
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module")
def pages():
    specification = importlib.util.spec_from_file_location("notebooks", ROOT / "docs" / "notebooks.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_each_kind_has_one_and_the_site_lists_it():
    assert [path.stem for path in NOTEBOOKS] == ["matching", "own_images", "own_loop", "text_pairs"]
    nav = (ROOT / "mkdocs.yml").read_text()
    assert all(f"notebooks/{path.stem}.md" in nav for path in NOTEBOOKS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_short_and_lies_in_git_without_outputs(path):
    notebook = json.loads(path.read_text())
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    cells = notebook["cells"]
    assert 10 <= len(cells) <= 15
    assert len({cell["id"] for cell in cells}) == len(cells)
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert any("assert " in "".join(cell["source"]) for cell in code), "it checks what it says"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, pages, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    start = time.process_time()
    page = pages.page(path)
    assert time.process_time() - start < 20
    assert page.startswith("# ")
    assert page.count("```python") == sum(kind == "code" for kind, _ in pages.cells(path))


def test_a_cell_shows_what_it_prints_and_its_last_value(pages):
    known = {}
    assert pages.output("x = 2", known) == ""
    assert pages.output("print('a')\nx + 1", known) == "```text\na\n3\n```"
    html = "class Html(str):\n    def _repr_html_(self):\n        return str(self)\n\n\nHtml('<b>x</b>')"
    assert pages.output(html, known) == "<div><b>x</b></div>"
    with pytest.raises(AssertionError):
        pages.output("assert x == 3", known)
