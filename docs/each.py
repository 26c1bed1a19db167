"""A page for each method and each set-level term: what it is, its options, its recipes, what the records say of it."""

from __future__ import annotations

import inspect
import re
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import setwise.register as register
from setwise.paper.recipes import CELLS, recipe
from setwise.records.run import Run, files_below, read_runs
from setwise.records.statistics import paired_difference
from setwise.registry import Entry, words
from setwise.report.any_runs import FIRST, Group, differing
from setwise.report.tables import Cell, Table

DOCS = Path(__file__).parent
RUNS = DOCS.parent / "results" / "runs"
SECTION = r"^## {name} \{{#{name}\}}\n(.*?)(?=^## |\Z)"  # of methods.md
FEWEST = 3  # seeds that make a row
RECIPES = 4  # that a page names
WEIGHT = "objective.weight"  # of the pairwise loss: where a term joins, it may change too
WIDE = "---\nhide: [toc]\n---\n\n"  # its tables have the room of the contents
COLUMNS = ("data", "encoder", "loss", "epochs")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    pages = {f"methods/{name}.md": method_page(name) for name in register.method}
    pages |= {f"terms/{name}.md": term_page(name) for name in register.term}
    for path, content in pages.items():
        files.append(File.generated(config, path, content=f"{WIDE}{content}"))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Lead from the two tables to the pages, and leave out of methods.md what these say."""
    if page.file.src_uri == "methods.md":
        for name in register.method:
            if f"(#{name})" in markdown:
                markdown = re.sub(SECTION.format(name=name), "", markdown, flags=re.MULTILINE | re.DOTALL)
                markdown = markdown.replace(f"(#{name})", f"(methods/{name}.md)")
            else:
                markdown = markdown.replace(f"`{name}`", f"[`{name}`](methods/{name}.md)", 1)
    elif page.file.src_uri == "terms.md":
        for name in register.term:
            markdown = markdown.replace(f"| `{name}` |", f"| [`{name}`](terms/{name}.md) |", 1)
    return markdown


def method_page(name: str) -> str:
    """A method: its section of methods.md, or its docstring where there is none; options, recipes, results."""
    entry = register.method[name]
    section = re.search(SECTION.format(name=name), (DOCS / "methods.md").read_text(), re.MULTILINE | re.DOTALL)
    text = moved(section[1], "methods.md") if section else inspect.getdoc(entry.make) or ""
    named = [f"`{cell}`" for cell in CELLS if recipe(cell).method.name == name]
    more = f" and {len(named) - RECIPES} more" if len(named) > RECIPES else ""
    parts = [
        f"# {name}",
        f"*{entry.about}*",
        text.strip(),
        options_of(entry, "method"),
        f"## Recipes\n\n{', '.join(named[:RECIPES])}{more}; `setwise recipes` lists all." if named else "",
        f"## Measured\n\n{results_of(name)}",
        "[All methods](../methods.md)\n",
    ]
    return "\n\n".join(filter(None, parts))


def term_page(name: str) -> str:
    """A term: its rows in the tables of terms.md, its options, differences in the records."""
    entry, row = register.term[name], rows_of(name)
    pairs = "It needs to know the pairs." if row["pairs"] == "yes" else "It needs no pairs, only sets."
    parts = [
        f"# {name}",
        f"*{entry.about}*",
        row["formula"],
        f"It pushes for {row['pushes for']}. {pairs} Use it {row['use it']}. [What the letters mean](../terms.md).",
        f"```\nsetwise pretrain --term {name}=0.5\n```",
        f"Time {row['time']}, memory {row['memory beside the rows']} beside the rows; over processes each sends "
        f"{row['sent, whatever N is']}. [What that means](../terms.md#what-they-cost).",
        options_of(entry, f"objective.terms.{name}"),
        "The [reference](../reference.md#losses) says what each does." if entry.options else "",
        f"## Measured\n\n{differences_of(name)}",
        f"More: {row['where']}." if "where" in row else "",
        "[All terms](../terms.md)\n",
    ]
    return "\n\n".join(filter(None, parts))


def moved(text: str, page: str) -> str:
    """The text of a page of docs/, for a page one folder down."""
    return re.sub(r"\]\((?!\.\./|https?:)", "](../", text.replace("](#", f"](../{page}#"))


def rows_of(name: str) -> dict[str, str]:
    """What all tables of terms.md say of the term, by column."""
    found: dict[str, str] = {}
    columns: list[str] = []
    for line in moved((DOCS / "terms.md").read_text(), "terms.md").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        columns = (columns or cells) if cells else []
        if cells and f"`{name}`" in cells[0]:
            found |= dict(zip(columns, cells, strict=True))
    return found


def options_of(entry: Entry[Any], place: str) -> str:
    """A table of its options; nothing without any."""
    lines = [
        f"| `--{place}.{name.replace('_', '-')}` | {words(option.kind)} | {_value(option.default)} |"
        for name, option in entry.options.items()
    ]
    table = "\n".join(["| option | value | default |", "|---|---|---|", *lines])
    return f"## Options\n\n{table}" if lines else ""


def _value(default: object) -> str:
    return ",".join(map(str, default)) if isinstance(default, tuple) else str(default).lower()


@cache
def runs() -> list[Run]:
    """All recorded runs."""
    return read_runs(files_below(RUNS), Run, RUNS)[0]


def place(run: Run) -> list[Cell]:
    """What a run was, for ``COLUMNS``."""
    fields = run.fields
    items = f", {fields['data.instances']:,} items" if fields.get("data.instances") else ""
    tested = ", validation" if fields.get("data.validation") else ""
    weights = f", {fields['encoder.weights']} weights" if fields.get("encoder.weights") else ""
    data, encoder = f"{fields['data.source']}{items}{tested}", f"{fields['encoder.name']}{weights}"
    return [data, encoder, fields.get("objective.loss"), fields["epochs"]]


def measure_of(run: Run) -> str:
    """The final number that answers."""
    return next(name for name in (*FIRST, *run.final) if name in run.final)


def results_of(name: str) -> str:
    """What tested runs of a method without set-level terms reached, those of one recipe together."""
    alike: dict[str, list[Run]] = defaultdict(list)
    for run in runs():
        fields = run.fields
        plain = not any(path.startswith("objective.terms.") for path in fields)
        if fields["method.name"] == name and plain and not fields["data.validation"]:
            alike[repr(fields)].append(run)
    places: dict[str, list[list[Run]]] = defaultdict(list)
    for one in alike.values():
        places[str(place(one[0]))].append(one)
    rows: list[list[Cell]] = []
    for _, several in sorted(places.items()):
        paths = differing([one[0] for one in several])
        for one in several:
            measure = measure_of(one[0])
            also = "".join(f", {path.split('.')[-1]} {one[0].fields.get(path)}" for path in paths)
            found = Group((), tuple(one)).mean(measure)
            *others, epochs = place(one[0])
            rows.append([*others, f"{epochs}{also}", len(one), measure.replace("_", " "), found])
    columns = [*COLUMNS[:3], "epochs, and what else differs", "n", "measure", "reached, %"]
    caption = "Mean ± standard deviation over n seeds, without set-level terms, on test images"
    return Table("", columns, rows, caption).markdown() if rows else "No run is recorded."


def differences_of(name: str) -> str:
    """What runs with this term alone reached beyond those with none and otherwise the same recipe, seed by seed."""
    alike: dict[str, dict[str, dict[int, Run]]] = defaultdict(lambda: defaultdict(dict))
    for run in runs():
        terms = {path: value for path, value in run.fields.items() if path.startswith("objective.terms.")}
        rest = {path: value for path, value in run.fields.items() if path not in (*terms, WEIGHT, "about")}
        alike[repr(rest)][repr(terms)][run.seed] = run
    rows = []
    for ways in alike.values():
        plain = ways.pop(repr({}), {})
        for some in ways.values():
            one = next(iter(some.values()))
            if [term.term.name for term in one.recipe.objective.terms] != [name]:
                continue
            measure = measure_of(one)
            values = [{seed: run.final[measure] for seed, run in way.items()} for way in (some, plain)]
            found = paired_difference(*values)
            if found is not None and found.n >= FEWEST:
                rows.append([*place(one), term_of(one), found.n, measure.replace("_", " "), found])
    columns = [*COLUMNS, "weight", "n", "measure", "the term adds"]
    caption = "What it adds to the same recipe without it, in points: paired by seed, with 95 % intervals"
    return Table("", columns, sorted(rows, key=str), caption).markdown() if rows else "No run is recorded."


def term_of(run: Run) -> str:
    """The weight of a run's only term, and the options that are not as usual."""
    term = run.recipe.objective.terms[0]
    usual = register.term[term.term.name].fill({})
    options = [f"{name} {value}" for name, value in term.term.options.items() if value != usual[name]]
    return ", ".join([f"{term.weight:g}", *options, *(["on features"] if term.on == "features" else [])])
