"""Pages that are computed when the site is built: a picture by our own code, and numbers from the records."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is computed."""
    for path, content in (("pictures/alignment.svg", alignment_picture()), ("numbers.md", numbers_page())):
        files.append(File.generated(config, path, content=content))
    return files


def turned_sets() -> tuple[Any, Any]:
    """Nine points of a spiral, and the same turned by 60 degrees and slightly disturbed."""
    import torch

    generator = torch.Generator().manual_seed(3)
    place = torch.arange(9, dtype=torch.float64)
    radius, direction = 0.5 + 0.2 * place, 2.2 * place
    a = torch.stack([radius * direction.cos(), radius * direction.sin()], 1)
    angle = math.radians(60)
    turn = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]], dtype=torch.float64)
    return a, a @ turn.T + 0.03 * torch.randn(9, 2, generator=generator, dtype=torch.float64)


def alignment_picture() -> str:
    """The two sets, matched by pairs alone and with their structure."""
    from setwise.evaluation.matching import match, match_quadratic

    a, b = turned_sets()
    scale, width, height = 52.0, 340, 300
    found = {"pairs alone": match(a, b), "pairs and structure": match_quadratic(a, b, weight=64.0)}
    size = f'viewBox="0 0 {2 * width} {height}"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="sans-serif">']
    for panel, (title, one) in enumerate(found.items()):
        x0, y0 = panel * width + width / 2, height / 2 + 12

        def place(point: Any, x0: float = x0, y0: float = y0) -> tuple[float, float]:
            return x0 + scale * float(point[0]), y0 - scale * float(point[1])

        said = f"{title}: {round(one.accuracy * len(a))} of {len(a)} right"
        parts.append(f'<text x="{x0:g}" y="20" text-anchor="middle" font-size="15" fill="#777">{said}</text>')
        for i, j in enumerate(one.assignment.tolist()):
            (x1, y1), (x2, y2) = place(a[i]), place(b[j])
            look = 'stroke="#009e73"' if i == j else 'stroke="#d55e00" stroke-dasharray="5 4"'
            ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
            parts.append(f'<line {ends} stroke-width="1.6" {look}/>')
        for i in range(len(a)):
            (x1, y1), (x2, y2) = place(a[i]), place(b[i])
            parts.append(f'<circle cx="{x1:.1f}" cy="{y1:.1f}" r="5" fill="#0072b2"/>')
            parts.append(f'<rect x="{x2 - 4.5:.1f}" y="{y2 - 4.5:.1f}" width="9" height="9" fill="#cc79a7"/>')
    return "\n".join([*parts, "</svg>\n"])


def _read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return found


def _table(columns: list[str], rows: list[list[str]]) -> str:
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def numbers_page() -> str:
    """Tables from the records of ``results/``, which programs wrote."""
    step, concurrent, modern = (_read(f"bench-step{x}-h200")["encoders"] for x in ("", "-concurrent", "-resnet18"))

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
            for name, row in (step | modern).items()
        ],
    )
    rates = ", ".join(f"{n} at once {rate:.0f}" for n, rate in concurrent["conv4"]["runs_per_hour"].items())
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
    one, two = (_read(f"views-cpu-{n}")["kornia / setwise"]["least"] for n in (1, 2))
    mean = _read("quadratic")["mean"]
    return f"""# Numbers

Every number on this page is read from a record in `results/` when the site is built; `results/README.md` names the
command that wrote each.

## A training step (NVIDIA H200, bf16, two views, with QARe; torchvision with 16 workers)

{steps}
Conv-4 runs of 200 epochs an hour, side by side under MPS: {rates}.

## What QARe adds to a captured ResNet-32 step of plain torch (NVIDIA H200)

{added}
## Losses (CPU, one thread, forward and backward)

{losses}
## Views (CPU)

One view of 256 images of 32 × 32 is {two:.1f} times as fast as kornia's on two threads, {one:.1f} times on one.

## Quadratic assignment (QAPLIB, 28 instances, CPU)

Mean gap to the optimum {mean["gap"]:.3f} % in {mean["seconds"]:.1f} s; scipy's FAQ {mean["scipy_gap"]:.1f} %, with
random restarts in the same time {mean["scipy_restarts_gap"]:.2f} %.
"""
