"""The notebooks of examples/ as pages: their cells run when the site is built, and the page has what they show."""

from __future__ import annotations

import ast
import io
import json
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

NOTEBOOKS = Path(__file__).parent.parent / "examples" / "notebooks"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each notebook, and the notebook beside it."""
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=page(path)))
        files.append(File.generated(config, f"notebooks/{path.name}", content=path.read_text()))
    return files


def page(path: Path) -> str:
    """The notebook in Markdown, with what its cells print and show."""
    title, *rest = cells(path)
    link = f"[This notebook]({path.name}) is `examples/notebooks/{path.name}` of the repository."
    parts = [title[1], link]
    with TemporaryDirectory() as folder, chdir(folder):
        known: dict[str, Any] = {"__name__": "__main__"}
        for kind, source in rest:
            parts.append(f"```python\n{source}\n```\n\n{output(source, known)}" if kind == "code" else source)
    return "\n\n".join(parts) + "\n"


def cells(path: Path) -> list[tuple[str, str]]:
    """The kind and the source of each cell."""
    return [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(path.read_text())["cells"]]


def output(source: str, known: dict[str, Any]) -> str:
    """Run a cell; what it prints, and the value of its last line, as a notebook shows them."""
    tree, printed, value = ast.parse(source), io.StringIO(), None
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    with redirect_stdout(printed), redirect_stderr(io.StringIO()):
        exec(compile(tree, "cell", "exec"), known)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), known)
    if hasattr(value, "_repr_html_"):
        return f"<div>{value._repr_html_()}</div>"
    words = printed.getvalue() + ("" if value is None else repr(value))
    return f"```text\n{words.rstrip()}\n```" if words else ""
