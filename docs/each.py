"""A page for each method and each set-level term: what it is, its options, its recipes, what the records say of it."""

from __future__ import annotations

import inspect
import re
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import setwise
import setwise.register as register
from setwise.paper.recipes import CELLS, recipe
from setwise.records.run import Run, files_below, read_runs
from setwise.records.statistics import PairedDifference, paired_difference
from setwise.registry import Entry, words
from setwise.report.any_runs import FIRST, Group, differing, field_in_words, usual_values
from setwise.report.tables import Cell, Table, said_once

DOCS = Path(__file__).parent
RUNS = DOCS.parent / "results" / "runs"
SECTION = r"^## {name} \{{#{name}\}}\n(.*?)(?=^## |\Z)"  # of methods.md
FEWEST = 3  # seeds that make a row
RECIPES = 4  # that a page names
WEIGHT = "objective.weight"  # of the pairwise loss: where a term joins, it may change too
WIDE = "---\nhide: [toc]\n---\n\n"  # its tables have the room of the contents
WHERE = "trained on, tested by"
DIGITS = "named rightly"  # a column of methods.md


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
    """A method: when to choose it, its section of methods.md, options, recipes, results."""
    entry, row = register.method[name], rows_of(name, "methods.md")
    text, measured = section_of(name)
    named = [f"`{cell}`" for cell in CELLS if recipe(cell).method.name == name]
    more = f" and {len(named) - RECIPES} more" if len(named) > RECIPES else ""
    choice = f"**Choose it** {row['choose it']}. It compares {row['what it compares']}." if row else ""
    with_copy = {name: row[name] for name in ("negatives", "a copy that moves slowly") if name in row}
    parts = [
        f"# {name}",
        f"*{entry.about}*",
        " ".join([choice, *(f"{words.capitalize()}: {value}." for words, value in with_copy.items())]).strip(),
        text,
        options_of(entry, "method"),
        f"## Recipes\n\n{', '.join(named[:RECIPES])}{more}; `setwise recipes` lists all." if named else "",
        "## Measured",
        measured,
        results_of(name) or ("" if measured else f"{digits_of(name)}\n\n{COMPARE.format(name=name)}"),
        "[All methods](../methods.md)\n",
    ]
    return "\n\n".join(filter(None, parts))


COMPARE = """No run of it is recorded in `results/` yet. Compare it on your own data, with some seeds:

```
setwise pretrain photos/ --method {name} --out runs/{name}
setwise pretrain photos/ --method contrastive --out runs/contrastive
setwise report runs --by method.name
```"""
TRY = """No run with it is recorded in `results/` yet, so whether it helps is not known. Try it on your own data:

```
setwise pretrain photos/ --out runs/plain
setwise pretrain photos/ --term {name}=1 --out runs/{name}
setwise report runs --by objective.terms.{name}.weight
```"""


def section_of(name: str) -> tuple[str, str]:
    """What methods.md says of a method, for its page, or the method's docstring; and where it was measured."""
    found = re.search(SECTION.format(name=name), (DOCS / "methods.md").read_text(), re.MULTILINE | re.DOTALL)
    if not found:
        return inspect.getdoc(register.method[name].make) or "", ""
    text = moved(found[1], "methods.md").strip()
    measured = "\n".join(re.findall(r"^Measured: .*$", text, re.MULTILINE))
    told = measured.removeprefix("Measured: ")
    return text.replace(measured, "").strip(), told[:1].upper() + told[1:]


def digits_of(name: str) -> str:
    """What methods.md has measured of it on digits, with one seed."""
    mine, untrained, usual = (rows_of(one, "methods.md").get(DIGITS) for one in (name, "random", "contrastive"))
    told = f"On digits {mine} were named rightly (untrained {untrained}, `contrastive` {usual}): "
    return f"{told}[one seed, which ranks nothing](../methods.md)." if mine else ""


def term_page(name: str) -> str:
    """A term: when to use it, its rows in the tables of terms.md, how to call it, differences in the records."""
    entry, row = register.term[name], rows_of(name, "terms.md")
    pairs = "It needs to know the pairs." if row["pairs"] == "yes" else "It needs no pairs, only sets."
    times = [f"{row[size]} for {size.replace('N = ', '')}" for size in row if size.startswith("N = ")]
    parts = [
        f"# {name}",
        f"*{entry.about}*",
        f"**Use it** {row['use it']}. What it pushes for: {row['pushes for']}. {pairs}",
        f"{row['formula']} &emsp; ([what the letters mean](../terms.md#what-they-push-for))",
        f"```\nsetwise pretrain --term {name}=1\n```",
        in_python(name),
        "Weights of terms are not alike: try 0.1, 1 and 10 [on validation data]"
        "(../how-to/choose-beta.md#on-data-of-your-own), and [tune the temperature first]"
        "(../how-to/choose-beta.md#temperature).",
        f"**Cost.** Time {row['time']}; memory beside the rows {row['memory beside the rows']}; numbers sent over "
        f"processes: {row['sent, whatever N is']}. Forward and backward take {', '.join(times)} items on one CPU "
        "thread. [How that was measured](../terms.md#what-they-cost).",
        options_of(entry, f"objective.terms.{name}"),
        "The [reference](../reference.md#losses) says what each does." if entry.options else "",
        "## Measured",
        differences_of(name) or TRY.format(name=name),
        f"More: {row['where']}." if "where" in row else "",
        "[All terms](../terms.md)\n",
    ]
    return "\n\n".join(filter(None, parts))


def in_python(name: str) -> str:
    """A term in a loop of one's own."""
    make = register.term[name].make
    place, call = (make.__module__, f"{make.__name__}()") if name != "gap" else ("sw", 'QARe(reference="truth")')
    public = hasattr(setwise, call.partition("(")[0])
    head = "" if public else f"from {place} import {make.__name__}\n\n"
    term = f"sw.{call}" if public else call
    return f"```python\n{head}loss = sw.SetContrastive(sw.InfoNCE(0.1), beta=1, regularizer={term})\n```"


def moved(text: str, page: str) -> str:
    """The text of a page of docs/, for a page one folder down."""
    return re.sub(r"\]\((?!\.\./|https?:)", "](../", text.replace("](#", f"](../{page}#"))


def rows_of(name: str, page: str) -> dict[str, str]:
    """What all tables of a page say of the term or method, by column."""
    found: dict[str, str] = {}
    columns: list[str] = []
    for line in moved((DOCS / page).read_text(), page).splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        columns = (columns or cells) if cells else []
        if cells and f"`{name}`" in cells[0]:
            found |= dict(zip(columns, cells, strict=True))
    return found


def options_of(entry: Entry[Any], place: str) -> str:
    """A table of its options, and how to give one; nothing without any."""
    options = {name.replace("_", "-"): option for name, option in entry.options.items()}
    if not options:
        return ""
    lines = [f"| `{name}` | {words(option.kind)} | {_value(option.default)} |" for name, option in options.items()]
    table = "\n".join(["| option | value | default |", "|---|---|---|", *lines])
    first, option = next(iter(options.items()))
    return f"## Options\n\nEach is given as the first: `--{place}.{first} {_value(option.default)}`.\n\n{table}"


def _value(default: object) -> str:
    return ",".join(map(str, default)) if isinstance(default, tuple) else str(default).lower()


@cache
def runs() -> list[Run]:
    """All recorded runs."""
    return read_runs(files_below(RUNS), Run, RUNS)[0]


def place(run: Run) -> tuple[str, str]:
    """What a run was and how it was tested; and its epochs."""
    fields = run.fields
    items = f", {fields['data.instances']:,} items" if fields.get("data.instances") else ""
    tested = ", validation images" if fields.get("data.validation") else ""
    weights = f", {fields['encoder.weights']} weights" if fields.get("encoder.weights") else ""
    loss = f", {fields['objective.loss']}" if fields.get("objective.loss") else ""
    measure = measure_of(run).replace("_", " ")
    where = f"{fields['data.source']}{items}: {fields['encoder.name']}{weights}{loss}, {measure}{tested}"
    return where, f"{fields['epochs']} epochs"


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
        places[place(one[0])[0]].append(one)
    rows: list[list[Cell]] = []
    for where, several in sorted(places.items()):
        paths = [path for path in differing([one[0] for one in several]) if path != "epochs"]
        groups = [Group(tuple(map(one[0].fields.get, paths)), tuple(one)) for one in several]
        usual = usual_values(groups, paths)
        for one in sorted(groups, key=lambda one: -one.runs[0].fields["epochs"]):
            changed = [(path, value) for path, value in zip(paths, one.values, strict=True) if value != usual[path]]
            what = ", ".join([place(one.runs[0])[1], *(field_in_words(*field) for field in changed)])
            rows.append([where, what, len(one.runs), one.mean(measure_of(one.runs[0]))])
    columns = [WHERE, "epochs, and what is not as usual", "n", "reached, %"]
    caption = "Mean ± standard deviation over n seeds, without set-level terms, on test images"
    return said_once(Table("", columns, rows, caption).markdown()) if rows else ""


def differences_of(name: str) -> str:
    """What runs with this term alone reached beyond those with none and otherwise the same recipe, seed by seed."""
    alike: dict[str, dict[str, dict[int, Run]]] = defaultdict(lambda: defaultdict(dict))
    for run in runs():
        terms = {path: value for path, value in run.fields.items() if path.startswith("objective.terms.")}
        rest = {path: value for path, value in run.fields.items() if path not in (*terms, WEIGHT, "about")}
        alike[repr(rest)][repr(terms)][run.seed] = run
    found: list[tuple[Any, list[Cell], PairedDifference]] = []
    for ways in alike.values():
        plain = ways.pop(repr({}), {})
        for some in ways.values():
            one = next(iter(some.values()))
            if [term.term.name for term in one.recipe.objective.terms] != [name]:
                continue
            measure = measure_of(one)
            values = [{seed: run.final[measure] for seed, run in way.items()} for way in (some, plain)]
            gain = paired_difference(*values)
            if gain is not None and gain.n >= FEWEST:
                where = ", ".join(place(one))
                order = (where, one.recipe.objective.terms[0].weight, term_of(one))
                found.append((order, [where, term_of(one), gain.n, gain], gain))
    if not found:
        return ""
    found.sort(key=lambda row: row[0])
    counts = Counter(gain.side for *_, gain in found)
    words = f"Of {len(found)} comparisons with the same recipe without it, it adds in {counts['above']}, takes in "
    words += f"{counts['below']} and is unclear in {counts['around']}: {CAREFUL}"
    columns = (WHERE, "weight, and options", "n", "it adds, points")
    caption = "What it adds, seed by seed, with 95 % intervals"
    return f"{words}\n\n{said_once(Table('', columns, [cells for _, cells, _ in found], caption).markdown())}"


CAREFUL = (
    "an interval of 95 % lies above zero, below it, or around it. One in twenty misses by chance, and rows are not "
    "independent. Rows on validation images chose weights; they are no proof."
)


def term_of(run: Run) -> str:
    """The weight of a run's only term, and the options that are not as usual."""
    term = run.recipe.objective.terms[0]
    usual = register.term[term.term.name].fill({})
    options = [f"{name} {value}" for name, value in term.term.options.items() if value != usual[name]]
    return ", ".join([f"{term.weight:g}", *options, *(["on features"] if term.on == "features" else [])])
