"""Pages that are computed when the site is built: a picture by our own code, and numbers from the records."""

from __future__ import annotations

import json
import math
import re
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
TURNS = range(0, 181, 10)  # degrees
FIRST_TURN = 60
STRUCTURE = 128.0  # weight of the structure within each set, against the pairs
FISH_X = (-2.2, -2.2, -1.3, -0.3, -0.3, 0.8, 0.8, 1.5, 2.1)
FISH_Y = (0.9, -0.9, 0.0, 0.9, -0.9, 1.0, -0.7, 0.3, -0.1)
OUTLINE = ((0, 1), (0, 2), (1, 2), (2, 3), (2, 4), (3, 5), (4, 6), (5, 7), (6, 8), (7, 8))
WIDTH, HEIGHT, SCALE = 320, 280, 52.0
REPORT = "results/report.html"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is computed."""
    results, report = results_page(RESULTS)
    pages = {"benchmarks.md": benchmarks_page(), "results.md": results}
    for path, content in (pages | ({REPORT: report} if report else {})).items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put pictures where a page asks for them."""
    pictures = {
        "<!-- the picture of the two sets -->": alignment_picture,
        "<!-- the speed records -->": lambda: speed_records(RESULTS / "speedrun"),
    }
    for mark, picture in pictures.items():
        if mark in markdown:
            markdown = markdown.replace(mark, picture())
    return markdown


def turned_sets(degrees: float = FIRST_TURN) -> tuple[Any, Any]:
    """Nine points of a fish, and the same turned and slightly disturbed."""
    import torch

    generator = torch.Generator().manual_seed(3)
    a = torch.tensor([FISH_X, FISH_Y], dtype=torch.float64).T
    angle = math.radians(degrees)
    turn = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]], dtype=torch.float64)
    return a, a @ turn.T + 0.05 * torch.randn(len(a), 2, generator=generator, dtype=torch.float64)


def by_structure(a: Any, b: Any) -> Any:
    """The best assignment by pairs and structure, max tr(S Yᵀ) + weight/N · tr(S_A Y S_Bᵀ Yᵀ); exact for so few."""
    import setwise as sw
    from setwise.similarity import scores

    s, s_a, s_b = (scores(x, y, similarity="euclidean") for x, y in ((a, b), (a, a), (b, b)))
    return sw.assignment.solve_quadratic(STRUCTURE / len(a) * s_a, s_b, s, maximize=True)


@cache
def alignments(degrees: float) -> dict[str, Any]:
    """Both sets in pixels, whom each item is matched to by pairs and with the structure, and what the losses say."""
    import setwise as sw

    a, b = turned_sets(degrees)
    pixels = [
        [[round(WIDTH / 2 + SCALE * x, 1), round(HEIGHT / 2 - SCALE * y, 1)] for x, y in z.tolist()] for z in (a, b)
    ]
    pairs = sw.AssignmentLoss(mining="one-to-one")(a, b)
    gap = sw.QARe(similarity="euclidean", reference="truth")(a, b)
    return {
        "a": pixels[0],
        "b": pixels[1],
        "linear": sw.match(a, b).assignment.tolist(),
        "quadratic": by_structure(a, b).permutation.tolist(),
        "pairwise": f"{pairs.item():.3f}",
        "gap": f"{abs(gap.item()):.3f}",
    }


def _line(look: str, start: tuple[float, float], end: tuple[float, float]) -> str:
    return f'<line class="{look}" x1="{start[0]}" y1="{start[1]}" x2="{end[0]}" y2="{end[1]}"/>'


def _panel(name: str, title: str) -> str:
    """One drawing: circles joined to the squares they are matched to, solid where that is right."""
    found = alignments(FIRST_TURN)
    partner, marks = found[name], []
    lines = [_line("outline", found[one][i], found[one][j]) for one in "ab" for i, j in OUTLINE]
    for i, (x, y) in enumerate(found["a"]):
        lines.append(_line("right" if partner[i] == i else "wrong", (x, y), found["b"][partner[i]]))
        marks.append(f'<circle cx="{x}" cy="{y}" r="5"/>')
    for x, y in found["b"]:
        marks.append(f'<rect x="{x - 4.5:.1f}" y="{y - 4.5:.1f}" width="9" height="9"/>')
    right = sum(i == j for i, j in enumerate(partner))
    return (
        f'<figure><svg id="sets-{name}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">'
        f"{''.join(lines)}{''.join(marks)}</svg>"
        f'<figcaption>{title}: <b id="sets-{name}-right">{right}</b> of {len(partner)} right</figcaption></figure>'
    )


LOOK = f"""<style>
.sets {{ display: flex; flex-wrap: wrap; justify-content: center; gap: 0 1rem }}
.sets figure {{ flex: 1 1 260px; max-width: {WIDTH + 60}px; margin: 0 }}
.sets svg {{ width: 100%; height: auto; display: block }}
.sets line {{ stroke-width: 1.8 }}
.sets .outline {{ stroke: currentColor; opacity: .22; stroke-width: 1 }}
.sets .right {{ stroke: #009e73 }}
.sets .wrong {{ stroke: #d55e00; stroke-dasharray: 5 4 }}
.sets circle {{ fill: #0072b2 }}
.sets rect {{ fill: #cc79a7 }}
.sets-turn {{ text-align: center; margin: .6rem 0 }}
.sets-turn input {{ width: min(24rem, 100%); display: block; margin: .3rem auto; accent-color: #0072b2 }}
</style>"""
MOVE = """<script>
(function () {
  const { all, outline } = JSON.parse(document.getElementById("sets-data").textContent);
  const input = document.getElementById("sets-turn");
  const put = (id, text) => { document.getElementById(id).textContent = text; };
  input.addEventListener("input", () => {
    const now = all[input.value];
    put("sets-degrees", input.value); put("sets-pairwise", now.pairwise); put("sets-gap", now.gap);
    for (const name of ["linear", "quadratic"]) {
      const svg = document.getElementById("sets-" + name), partner = now[name];
      const join = (line, [x1, y1], [x2, y2]) =>
        Object.entries({ x1, y1, x2, y2 }).forEach(([key, value]) => line.setAttribute(key, value));
      svg.querySelectorAll(".outline").forEach((line, i) => {
        const set = i < outline.length ? now.a : now.b, [from, to] = outline[i % outline.length];
        join(line, set[from], set[to]);
      });
      svg.querySelectorAll(".right, .wrong").forEach((line, i) => {
        line.setAttribute("class", partner[i] === i ? "right" : "wrong");
        join(line, now.a[i], now.b[partner[i]]);
      });
      svg.querySelectorAll("rect").forEach((rect, i) => {
        rect.setAttribute("x", now.b[i][0] - 4.5); rect.setAttribute("y", now.b[i][1] - 4.5);
      });
      put("sets-" + name + "-right", partner.filter((j, i) => i === j).length);
    }
  });
})();
</script>"""


def alignment_picture() -> str:
    """The two sets, matched by pairs alone and with their structure, and a slider that turns the second."""
    found, data = alignments(FIRST_TURN), {"outline": OUTLINE, "all": {turn: alignments(turn) for turn in TURNS}}
    return "\n".join(
        [
            LOOK,
            f'<div class="sets">{_panel("linear", "pairs alone")}{_panel("quadratic", "pairs and structure")}</div>',
            '<div class="sets-turn"><label>The second set is turned by <b id="sets-degrees">'
            f"{FIRST_TURN}</b> degrees"
            f'<input id="sets-turn" type="range" min="{TURNS[0]}" max="{TURNS[-1]}" step="{TURNS.step}" '
            f'value="{FIRST_TURN}"></label>pairwise loss (Eq. 3) <b id="sets-pairwise">{found["pairwise"]}</b>, '
            f'alignment gap of the sets <b id="sets-gap">{found["gap"]}</b></div>',
            f'<script type="application/json" id="sets-data">{json.dumps(data)}</script>',
            MOVE,
            "",
        ]
    )


def results_page(results: Path) -> tuple[str, str | None]:
    """The tables of ``setwise report`` from the records below ``results``, and its whole page; None without records."""
    head = """# Results

Made from the records in `results/runs` when the site is built, by `setwise report`; [how to read it](how-to/report.md),
[how to make them](how-to/reproduce.md).

"""
    if not any((results / "runs").rglob("*.json")):
        return f"{head}**No runs yet.** `setwise reproduce table1` makes the first.\n", None
    from setwise.paper.report import report

    with TemporaryDirectory() as folder:
        page, *files = report(results, Path(folder))
        tables = [path.read_text() for path in files if path.suffix == ".md"]
        tables = [re.sub(r"^\*\*(.*)\*\*$", r"## \1", table, count=1, flags=re.MULTILINE) for table in tables]
        whole = page.read_text()
    link = "[The whole report](results/report.html), with its answer, learning curves and sources, is one page.\n\n"
    return head + link + "\n".join(tables), whole


SPEED_LOOK = """<style>
.md-typeset .chart { display: block; width: 100%; max-width: 36rem; margin: 1rem 0; text-align: left }
.chart svg { width: 100%; height: auto }
.chart text { font-size: 10px; fill: currentColor }
.chart .grid { stroke: currentColor; opacity: .15; fill: none }
.chart .soft { display: none }
.chart .legend { list-style: none; margin: .5rem 0; padding: 0; font-size: .8em }
.chart .legend li { margin: 0 }
.chart .legend svg { width: 30px; height: 10px; margin-right: .4rem }
.chart .line { fill: none; stroke-width: 2 }
"""


def speed_records(folder: Path) -> str:
    """The picture of accuracy against minutes, the table of our records below ``folder``, and the public marks."""
    from setwise.records.run import Run, files_below, read_runs
    from setwise.report.speedrun import MARKS, speedrun_chart, speedrun_tables

    runs, _ = read_runs((path for path in files_below(folder) if path.suffix == ".json"), Run, folder)
    tested = [run for run in runs if run.record.get("speedrun", {}).get("images") == "test"]
    tables = [table.markdown() for table in speedrun_tables(tested)]
    ours = (
        "\n".join(tables)
        if tables
        else "**No record of ours yet.** The first runs on the test images will stand here.\n"
    )
    colours = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#888888", "#b8a800")
    look = "".join(
        f".chart path.c{i} {{ stroke: {colour} }} .chart circle.c{i} {{ fill: {colour} }}\n"
        for i, colour in enumerate(colours)
    )
    marks = _table(
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
    return f"{SPEED_LOOK}{look}</style>\n{speedrun_chart(tested)}\n\n{ours}\n{marks}"


def _read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return found


def _table(columns: list[str], rows: list[list[str]]) -> str:
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def large_steps(results: Path) -> str:
    """A table of the steps of large networks that records have, with its heading; nothing without any."""
    lines = []
    for path in sorted(results.glob("bench-step*.json")):
        record = json.loads(path.read_text())
        for large in record.get("large", {}).values():
            for way, row in large["ways"].items():
                share = f"{100 * row['share_of_peak']:.0f} %" if "share_of_peak" in row else "–"
                memory = f"{row['peak_bytes'] / 2**30:.0f} GiB" if "peak_bytes" in row else "–"
                name = f"{large['encoder']}, {record['hardware']['name']}"
                lines.append([name, way, f"{row['ms']:.1f} ms", f"{row['images_per_second']:,.0f}", share, memory])
    columns = ["encoder", "way", "step", "images/s", "of the bf16 peak", "memory"]
    head = "## SimCLR with large networks (224 pixels, 256 images, two views)\n\n"
    return f"{head}{_table(columns, lines)}\n" if lines else ""


def benchmarks_page() -> str:
    """Tables from the records of ``results/``, which programs wrote."""
    step, concurrent = (_read(f"bench-step{x}-h200") for x in ("", "-concurrent"))

    def ms(row: dict[str, Any], key: str, digits: int = 1) -> str:
        return "–" if row.get(key) is None else f"{row[key]:.{digits}f} ms"

    steps = _table(
        ["encoder", "batch", "setwise", "without QARe", "not captured", "torch + torchvision", "an epoch of 50,000"],
        [
            [
                name,
                str(row["batch"]),
                *(ms(row, key, 3) for key in ("setwise_ms", "without_qare_ms")),
                *(ms(row, key) for key in ("not_captured_ms", "torchvision_ms")),
                f"{row['epoch_seconds']:.2f} s",
            ]
            for name, row in step["encoders"].items()
        ],
    )
    processes, streams = (
        ", ".join(f"{n} at once {rate:.0f}" for n, rate in concurrent["encoders"]["conv4"][key].items())
        for key in ("runs_per_hour", "runs_per_hour_on_streams")
    )
    added = _table(
        ["N", "iteration", "QARe adds", "dense eigenvalues take"],
        [
            [str(row["n"]), ms(row, "plain_ms", 2), ms(row, "added_ms", 3), ms(row, "dense_term_ms")]
            for row in _read("bench-qare-h200")["rows"]
        ],
    )
    losses = _table(
        ["N", "NT-Xent in plain torch", "setwise", "setwise in blocks"],
        [
            [str(row["n"]), *(f"{1e3 * row[key]:.1f} ms" for key in ("plain", "ours", "blocks"))]
            for row in _read("losses")["times_s"]
        ],
    )
    cpu, memory = _read("bench-qare-cpu")["terms"], _read("losses")["memory_gib"]
    one, two = (_read(f"views-cpu-{n}")["kornia / setwise"]["least"] for n in (1, 2))
    qaplib = _read("quadratic")
    mean = qaplib["mean"]
    return f"""# Benchmarks

Every number on this page is read from a record in `results/` when the site is built; `results/README.md` names the
command that wrote each.

## A training step (NVIDIA H200, bf16, two views, with QARe; torchvision with {step["workers"]} workers)

{steps}
Conv-4 runs of 200 epochs an hour, side by side: processes under MPS, as `setwise reproduce --at-once` starts them,
{processes}; CUDA streams of one process {streams}.

{large_steps(RESULTS)}## What QARe adds to a captured ResNet-32 step of plain torch (NVIDIA H200)

{added}
Euclidean distances have full rank. With `spectrum="topk", k=8` the term of {cpu["n"]:,} items takes
{cpu["ms"]["euclidean_top8"]:.0f} ms instead of {cpu["ms"]["euclidean_dense"]:,.0f} (CPU, one thread), and is
{100 * cpu["euclidean_top8_relative_error"]:.1f} % off; exact cosine takes {cpu["ms"]["lowrank"]:.1f} ms.

## Losses (CPU, one thread, forward and backward)

{losses}
At N = {memory["n"]:,} blocks of {memory["block_size"]} rows take {memory["blocks"]:.2f} GiB, the whole matrix
{memory["dense"]:.1f} GiB.

## Views (CPU)

One view of 256 images of 32 × 32 is {two:.1f} times as fast as kornia's on two threads, {one:.1f} times on one.

## Quadratic assignment (QAPLIB, {len(qaplib["instances"])} instances, CPU)

Mean gap to the optimum over {qaplib["seeds"]} seeds {mean["gap"]:.3f} % in {mean["seconds"]:.1f} s
(at most {qaplib["most_seconds"]:.1f} s), {100 * mean["optimal"]:.0f} % of the runs optimal; scipy's FAQ
{mean["scipy_gap"]:.1f} %, with random restarts in the same time {mean["scipy_restarts_gap"]:.2f} %. Other
problems are harder: with sparse random flows over random distances some runs end several per cent above the best known.
"""
