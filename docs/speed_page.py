"""The page of the speed record: its records, the methods beside them, and what was tried."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from paragraphs import table_of_numbers
from setwise.recipe import flat
from setwise.records.run import Run, files_below, read_runs
from setwise.records.statistics import mean_std
from setwise.report.speedrun import MARKS, SEEDS, Entry, entries, speedrun_chart, speedrun_tables
from setwise.report.tables import shown

RESULTS = Path(__file__).parent.parent / "results"
TRIES = {  # folders of results/speedrun/tried
    "neighbours": "Small parts, and later the nearest other image",
    "parts": "Small parts of an image as they are",
    "prototype": "The same by a prototype, whose file lies beside the records",
    "crops": "Enlarged crops, ResNet-18",
}
PATH = {  # below it: how the recipe came about
    "crops/t02-lr04-40/validation": "two enlarged crops, ResNet-18, SGD",
    "prototype/e03-xent8": "eight small parts, the network `quick`, SGD",
    "prototype/d01-x-9pf": "the same, longer",
    "prototype/d03-x-muon": "with Muon",
    "prototype/h01-m-9pf": "the same, longer",
    "prototype/i01-m-18pf": "and longer",
    "parts/m01-4x512": "four parts of twice as many images, which takes less time",
    "parts/m02-near": "and the nearest other image as a positive",
    "neighbours/n02-h2048-110": "the same, longer, with the method `neighbours`",
    "neighbours/n05-max-70": "with the largest value of each map as a feature",
}
RECORD = "small-parts"  # the fastest record, below results/speedrun
METHODS = "methods"  # below results/speedrun: a folder for each data set, in it one for each method
COMPARED = {  # by that name: its title, and what solo-learn has on CIFAR-10 and CIFAR-100 by a probe trained beside it
    "simclr": ("SimCLR", 90.74, 65.78),
    "byol": ("BYOL", 92.58, 70.46),
    "barlow-twins": ("Barlow Twins", 92.10, 70.90),
    "vicreg": ("VICReg", 92.07, 68.54),
    "many-patches": ("many patches, 30 epochs", None, None),
    RECORD: ("the record's recipe", None, None),
}
SOLO = "https://github.com/vturrisi/solo-learn#results"
DATA = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put what the records say where the page asks for it."""
    made = {
        "<!-- the speed records -->": lambda: speed_records(RESULTS / "speedrun"),
        "<!-- the speed methods -->": lambda: speed_methods(RESULTS / "speedrun"),
        "<!-- the speed tries -->": lambda: speed_tries(RESULTS / "speedrun"),
        "<!-- the speed path -->": lambda: speed_path(RESULTS / "speedrun" / "tried"),
        "<!-- the speed steps -->": speed_steps,
    }
    for mark, make in made.items():
        markdown = markdown.replace(mark, make()) if mark in markdown else markdown
    return markdown


SPEED_LOOK = """<style>
.md-typeset .chart { display: block; width: 100%; max-width: 26rem; margin: 1rem 0; text-align: left }
.md-typeset .chart figcaption { max-width: none; margin: 0; font-style: normal; text-align: left }
.chart svg { width: 100%; height: auto }
.chart text { font-size: 12px; fill: currentColor }
.chart .grid { stroke: currentColor; opacity: .15; fill: none }
.chart .soft { display: none }
.chart .legend { list-style: none; margin: .5rem 0; padding: 0; font-size: .8em }
.chart .legend li { margin: 0 }
.chart .legend svg { width: 30px; height: 10px; margin-right: .4rem }
.chart .line { fill: none; stroke-width: 2 }
"""


def speed_records(folder: Path) -> str:
    """The picture of accuracy against minutes, the table of our records below ``folder``, and the public marks."""
    tested = [run for run in _runs_below(folder) if run.record.get("speedrun", {}).get("images") == "test"]
    records = [run for run in tested if METHODS not in Path(run.path).parts]
    compared = [run for run in tested if run not in records and run.record.get("data", {}).get("name") == "cifar10"]
    tables = [one.markdown() for one in speedrun_tables(records)]
    ours = (
        "\n".join(tables)
        if tables
        else "**No record of ours yet.** The first runs on the test images will stand here: [make one](#run-it).\n"
    )
    colours = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#888888", "#b8a800")
    look = "".join(
        f".chart path.c{i} {{ stroke: {colour} }} .chart circle.c{i} {{ fill: {colour} }}\n"
        for i, colour in enumerate(colours)
    )
    marks = table_of_numbers(
        ["public mark", "accuracy", "neighbours", "minutes", "PFLOP", "GPU"],
        [
            [
                f"[{mark.name}]({mark.source})",
                f"{mark.accuracy:.1f} %",
                str(mark.neighbours),
                f"{mark.minutes:.0f}",
                "–" if mark.pflop is None else f"{mark.pflop:.0f}",
                mark.gpu,
            ]
            for mark in MARKS
        ],
    )
    return f"{speed_answer(records)}{SPEED_LOOK}{look}</style>\n{speedrun_chart(records + compared)}\n\n{ours}\n{marks}"


def _runs_below(folder: Path) -> list[Any]:
    return read_runs((path for path in files_below(folder) if path.suffix == ".json"), Run, folder)[0]


def speed_methods(folder: Path) -> str:
    """The table of methods for each data set, beside what solo-learn has; those without runs are named."""
    return "\n".join(_methods_on(data, folder) for data in DATA)


def _methods_on(data: str, folder: Path) -> str:
    rows, missing = [], []
    for name, (title, *marks) in COMPARED.items():
        made = (name, data) == (RECORD, "cifar10")
        places = [folder / name] if made else sorted((folder / METHODS / data).glob(f"{name}*"))
        found = [entry for place in places for entry in entries(_runs_below(place)) if entry.images == "test"]
        mark = marks[list(DATA).index(data)]
        rows += [_method_row(title, entry, mark) for entry in sorted(found, key=_terms)]
        missing += [] if found else [title]
    columns = ["", "n", "linear probe", "10 neighbours", "minutes", "PFLOP", f"[solo-learn]({SOLO})"]
    lacks = f"\nNot run yet: {', '.join(missing)}.\n" if missing else ""
    return f"**{DATA[data]}**\n\n" + (table_of_numbers(columns, rows) if rows else "") + lacks


def _terms(entry: Entry) -> str:
    terms = entry.runs[0].record["recipe"]["objective"].get("terms", [])
    return ", ".join(f"{one['weight']:g} · `{one['term']}`" for one in terms)


def _method_row(title: str, entry: Entry, mark: float | None) -> list[str]:
    name = f"{title}, + {_terms(entry)}" if _terms(entry) else title
    probe = mean_std([run.final["probe_accuracy"] for run in entry.runs])
    pflop = entry.mean(lambda part: part["pflop"]).mean
    numbers = [shown(probe), shown(entry.accuracy), f"{entry.minutes.mean:.1f}", f"{pflop:.3g}"]
    return [name, str(len(entry.runs)), *numbers, "–" if mark is None else f"{mark:.2f}"]


def speed_tries(folder: Path) -> str:
    """The runs on validation images below ``folder``, a table for each of its parts that has some."""
    tables = [_tries(title, folder / "tried" / place) for place, title in TRIES.items()]
    return "\n".join(filter(None, tables)) or "None yet.\n"


def speed_path(folder: Path) -> str:
    """How the recipe came about: some of the runs that were tried."""
    rows = []
    for place, words in PATH.items():
        (entry,) = entries(_runs_below(folder / place))
        pflop = entry.mean(lambda part: part["pflop"]).mean
        rows.append([words, str(len(entry.runs)), f"{pflop:.3g}", f"{entry.accuracy.mean:.1f}"])
    return table_of_numbers(["", "n", "PFLOP", "10 neighbours, %"], rows)


def speed_answer(tested: list[Any]) -> str:
    """The fastest record beside the public mark, in two sentences; nothing without a whole record."""
    whole = [entry for entry in entries(tested) if len(entry.runs) >= SEEDS]
    if not whole:
        return ""
    best, mark = whole[0], MARKS[0]
    seconds = 60 * best.minutes.mean
    pflop = best.mean(lambda part: part["pflop"]).mean
    slowest = max(run.record["speedrun"]["clock"]["seconds"] for run in best.runs)
    lowest = min(100 * run.record["speedrun"]["knn10"] for run in best.runs)
    assert mark.pflop is not None
    gpu = best.gpu.replace("NVIDIA ", "")
    return (
        f"**{best.accuracy.mean:.2f} % after {seconds:.0f} seconds** of one {gpu}, the mean "
        f"of {len(best.runs)} seeds, each at {lowest:.2f} % or above; the slowest, whose kernels were still to be "
        f"compiled, took {slowest:.0f} seconds. It takes {pflop:.1f} PFLOP. The public mark is "
        f"{mark.accuracy:.1f} % after {mark.minutes:.0f} minutes of an {mark.gpu}: {mark.pflop:.0f} PFLOP, "
        f"{mark.pflop / pflop:.1f} times as many.\n\n"
    )


def _tries(title: str, folder: Path) -> str:
    """What each recipe changes of the one that is most like all; "" without runs. Epochs follow from the PFLOP."""
    tried = [entry for entry in entries(_runs_below(folder)) if entry.images == "validation"]
    if not tried:
        return ""
    trees = [flat(entry.runs[0].record["recipe"]) for entry in tried]  # some name what only a file beside them knows
    base = min(trees, key=lambda tree: sum(len(_changed(tree, x) | _changed(x, tree)) for x in trees))
    rows = []
    for entry, tree in zip(tried, trees, strict=True):
        changed = [f"`{name}={value}`" for name, value in _changed(base, tree).items()]
        numbers = [f"{entry.mean(lambda part: part['pflop']).mean:.3g}", f"{entry.accuracy.mean:.2f}"]
        rows.append([" ".join(changed) or "this recipe", *numbers])
    names = ("encoder.name", "batch", "optimizer.name", "optimizer.lr", "objective.loss", "objective.temperature")
    rows.sort(key=lambda row: -float(row[-1]))
    has = ", ".join(f"`{name}={base[name]}`" for name in names)
    return f"**{title}**: {has}, and in each run\n\n" + table_of_numbers(
        ["what is different", "PFLOP", "10 neighbours, %"], rows
    )


def _changed(base: dict[str, Any], tree: dict[str, Any]) -> dict[str, Any]:
    """The values of ``tree`` that differ from those of ``base``; of parts with another name, options that both have."""
    found = {}
    for name, value in tree.items():
        known = name in base or name.endswith(".name") or (name.startswith("objective.terms.") and "weight" in name)
        if known and value != base.get(name) and name not in ("about", "epochs", "schedule.warmup"):
            found[name] = value
    return found


def speed_steps() -> str:
    """What the ways to take a ResNet-18 step cost."""
    found: dict[str, Any] = json.loads((RESULTS / "bench-resnet18-h200.json").read_text())
    rows = [
        [way["name"], f"{way['ms']:.2f}", f"{1e3 * way['ms'] / way['batch']:.1f}", f"{way['tflop_per_second']:.0f}"]
        for way in found["ways"]
        if "ms" in way
    ]
    ways = (
        table_of_numbers(["way", "ms", "µs an image", "TFLOP/s"], rows)
        + f"\n{found['visits'][-1]['hardware']['name']}.\n"
    )
    return ways + speed_kernels(RESULTS / "bench-launches-h200.json")


def speed_kernels(file: Path) -> str:
    """What a step is made of, for each recipe that the record has; nothing without one."""
    steps = json.loads(file.read_text())["steps"] if file.exists() else {}
    parts = []
    for name, step in steps.items():
        rows = [[kind, f"{one['ms']:.2f}", f"{one['launches']:.0f}"] for kind, one in step["kinds"].items()]
        small = step["small"]
        parts.append(
            f"\nA step of `{name}`{', compiled' * step['compile']}, takes {step['ms']:.2f} ms:\n\n"
            + table_of_numbers(["kernels", "ms", "launches"], rows)
            + f"\n{small['launches']:.0f} launches take less than 6 µs each, {small['ms']:.1f} ms together.\n"
        )
    return "".join(parts)
