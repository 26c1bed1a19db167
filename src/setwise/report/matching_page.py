"""The page of a matching run: which pairs went well and which did not, and the similarities before and after."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from setwise.data import MatchedSet
from setwise.evaluation.matching import match
from setwise.report.page import Page
from setwise.similarity import pairwise

PAIRS = 8  # shown of each kind
HEIGHT, MATRIX_SIDE = 96, 300  # pixels of an image and of a matrix, about
LINE, GAP = 2, 14  # pixels within a group and between groups
SHOWN = 60  # identities of the similarity matrices


def write_page(
    folder: Path,
    record: dict[str, Any],
    data: MatchedSet,
    before: tuple[Tensor, Tensor],
    after: tuple[Tensor, Tensor],
) -> Path:
    """Write ``index.html`` into the run's folder, from embeddings before and after training; its path."""
    final = record["final"]
    page = Page(
        f"{record['name']}, seed {record['seed']}",
        lead=f"{final['test_accuracy']:.1%} of {len(data)} test identities matched by the optimal assignment, "
        f"{final['quadratic_test_accuracy']:.1%} by the quadratic one.",
    )
    rows = [(name.replace("_", " "), value) for name, value in final.items()]
    page.table(("measure", "value"), rows, caption="What was measured, with the weights of the chosen epoch")
    epochs = record["epochs"]
    page.curves(
        "Matching accuracy of the validation split",
        {"val": _points(epochs, "val_accuracy")},
        x="epoch",
        y="accuracy",
        note="The epoch with the highest one is chosen.",
    )
    names = [name for name in ("loss", "pairwise", "regularizer") if name in epochs]
    page.curves("Loss", {name: _points(epochs, name) for name in names}, x="epoch", y="loss")
    z_a, z_b = after
    found = match(z_a, z_b)
    own = pairwise(z_a, z_b, similarity="euclidean")
    true = own.diagonal()
    wrong = (found.assignment != torch.arange(len(data))).nonzero().flatten()
    worst = wrong[true[wrong].argsort(descending=True)][:PAIRS]
    right = (found.assignment == torch.arange(len(data))).nonzero().flatten()
    best = right[true[right].argsort()][:PAIRS]
    if len(worst):
        page.picture(
            _png(_grid([data.first_a[worst], data.first_b[found.assignment[worst]], data.first_b[worst]])),
            alt="rows of three: view A, the partner it was given, its true partner",
            caption="The worst: view A, the wrong partner it was given, and its true partner.",
        )
    if len(best):
        page.picture(
            _png(_grid([data.first_a[best], data.first_b[best]])),
            alt="pairs of view A and view B that were matched best",
            caption="The best: the closest of the pairs that were matched.",
        )
    for title, embeddings in (("before training", before), ("after training", after)):
        a, b = (z[:SHOWN] for z in embeddings)
        page.picture(
            distances_picture((a, b), (a, a), (b, b)),
            alt=f"distances between A and B, within A, within B, {title}",
            caption=f"Distances {title} (dark is close): between A and B, within A, within B; "
            f"the first {len(a)} identities. Equal structures are what set-level terms ask for.",
        )
    path = folder / "index.html"
    page.write(path)
    return path


def _points(epochs: dict[str, list[float]], name: str) -> list[tuple[float, float]]:
    return list(zip(epochs.get("epoch", ()), epochs.get(name, ()), strict=True))


def _grid(rows: list[Tensor]) -> Tensor:
    """Groups of images, one of each of ``rows`` [n, C, H, W], all side by side: uint8 [3, H', W']."""
    scale = max(1, HEIGHT // rows[0].shape[2])
    groups = []
    for group in zip(*(_enlarged(x.cpu().expand(-1, 3, -1, -1), scale) for x in rows), strict=True):
        close = torch.cat([pad(x, (0, LINE), value=255) for x in group], 2)
        groups.append(pad(close, (0, GAP), value=255))
    return torch.cat(groups, 2)


def distances_picture(*sets: tuple[Tensor, Tensor]) -> bytes:
    """The distances between the rows of each two sets as grey matrices on one scale, side by side: a PNG file."""
    matrices = [pairwise(*pair, similarity="euclidean") for pair in sets]
    top = max(float(m.max()) for m in matrices) or 1.0
    pictures = [(m / top * 255).clamp(0, 255).to(torch.uint8)[None].expand(3, -1, -1) for m in matrices]
    scale = max(1, MATRIX_SIDE // max(len(m) for m in matrices))
    return _png(torch.cat([pad(_enlarged(x, scale), (0, GAP), value=255) for x in pictures], 2))


def _enlarged(image: Tensor, scale: int) -> Tensor:
    return image.repeat_interleave(scale, -2).repeat_interleave(scale, -1)


def _png(image: Tensor) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(image.permute(1, 2, 0).contiguous().numpy()).save(file, "PNG")
    return file.getvalue()
