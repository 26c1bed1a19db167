"""Pages that are computed when the site is built: numbers from the records."""

from __future__ import annotations

import json
import os
import re
from html import escape, unescape
from pathlib import Path
from textwrap import shorten
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

from paragraphs import table_of_numbers
from setwise.report.tables import said_once

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
REPORT = "results/report.html"
WIDE = "---\nhide: [toc]\n---\n\n"  # for a page of tables, which then has the room of its contents
WIDE_PAGES = ("overview.md", "sets-measured.md")  # the same for pages that GitHub shows too, where it would be text
CARD = "card.png"  # 1200 x 630: what a message shows that links here


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is computed."""
    results, report = results_page(RESULTS)
    pages = {"benchmarks.md": benchmarks_page(), "results.md": results}
    for path, content in (pages | ({REPORT: report} if report else {})).items():
        files.append(File.generated(config, path, content=content))
    return files


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Take the site's address, which links to pictures need, from SITE_URL: it is where somebody puts the site."""
    config.site_url = os.environ.get("SITE_URL") or config.site_url
    return config


def on_page_context(context: Any, page: Page, **_: Any) -> Any:
    """Give wide pages the room of their contents."""
    if page.file.src_uri in WIDE_PAGES:
        page.meta["hide"] = ["toc"]
    return context


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Say in the head what a message that links to the page shows: title, first paragraph, picture."""
    return output.replace("</head>", f"{social_card(page, config.site_url or '')}</head>", 1)


def social_card(page: Page, site: str) -> str:
    """The tags of Open Graph and of Twitter. Without the site's address links are relative: few programs take them."""
    words = re.search(r"<p>(.*?)</p>", page.content or "", re.DOTALL)
    about = unescape(re.sub(r"<[^>]+>", "", words[1])) if words else "Set-level contrastive learning for PyTorch"
    picture = f"{site.rstrip('/')}/{CARD}" if site else get_relative_url(CARD, page.url)
    tags = {
        "og:type": "website",
        "og:title": "setwise" if page.is_homepage else f"{page.title} - setwise",
        "og:description": shorten(about, 200, placeholder=" …"),
        "og:image": picture,
        "og:image:width": "1200",
        "og:image:height": "630",
        "twitter:card": "summary_large_image",
    }
    if page.canonical_url and site:
        tags["og:url"] = page.canonical_url
    kind = {name: "name" if name.startswith("twitter") else "property" for name in tags}
    return "".join(f'<meta {kind[name]}="{name}" content="{escape(str(value))}">\n' for name, value in tags.items())


def results_page(results: Path) -> tuple[str, str | None]:
    """The tables of ``setwise report`` from the records below ``results``, and its whole page; None without records."""
    head = f"""{WIDE}# Results

Made from the records in `results/runs` when the site is built, by `setwise report`; [how to read it](how-to/report.md),
[how to make them](how-to/reproduce.md).

"""
    if not any((results / "runs").rglob("*.json")):
        return f"{head}**No runs yet.** `setwise reproduce table1` makes the first.\n", None
    from setwise.paper.report import read_page

    page, found, _ = read_page(results)
    tables = [said_once(table.brief().markdown()) for table in found]
    tables = [re.sub(r"^\*\*(.*)\*\*$", r"## \1", table, count=1, flags=re.MULTILINE) for table in tables]
    link = """[What the runs say](findings.md) begins with a picture and has the answers.
[The whole report](results/report.html), with learning curves and sources, is one page.

"""
    return head + link + "\n".join(tables), page.html()


def _read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return found


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
    return f"{head}{said_once(table_of_numbers(columns, lines, words=2))}\n" if lines else ""


def benchmarks_page() -> str:
    """Tables from the records of ``results/``, which programs wrote."""
    step, concurrent = (_read(f"bench-step{x}-h200") for x in ("", "-concurrent"))

    def ms(row: dict[str, Any], key: str, digits: int = 1) -> str:
        return "–" if row.get(key) is None else f"{row[key]:.{digits}f} ms"

    steps = table_of_numbers(
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
    added = table_of_numbers(
        ["N", "iteration", "QARe adds", "dense eigenvalues take"],
        [
            [str(row["n"]), ms(row, "plain_ms", 2), ms(row, "added_ms", 3), ms(row, "dense_term_ms")]
            for row in _read("bench-qare-h200")["rows"]
        ],
    )
    losses = table_of_numbers(
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
    return f"""{WIDE}# Benchmarks

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
