"""The page of `setwise neighbours`: each query beside the images that are nearest to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from setwise.evaluation.embedding import EmbeddingTable
from setwise.report.map_page import encoded
from setwise.report.page import Page, Picture
from setwise.terminal import visible

PICTURE = 160  # pixels of a picture


@dataclass(frozen=True)
class Nearest:
    """The nearest images of a query: their rows in the table and their cosines, nearest first."""

    query: str
    picture: npt.NDArray[np.uint8]  # [h, w, 3]
    rows: tuple[int, ...]
    cosines: tuple[float, ...]


def write_neighbours(path: Path, table: EmbeddingTable, found: Sequence[Nearest], *, encoder: str) -> None:
    """Write the page."""
    page = Page(
        f"Nearest images in {table.collection.name}",
        lead=f"{len(table):,} images, compared with {len(found):,} {'query' if len(found) == 1 else 'queries'} by the "
        f"encoder of {encoder}. The number is the cosine of the two embeddings: 1 is the same direction.",
    )
    for one in found:
        page.heading(_line(one.query))
        pictures = [Picture(encoded(one.picture), _line(one.query), "query")]
        for row, cosine in zip(one.rows, one.cosines, strict=True):
            label = f" {table.labels[row]}" if table.labels else ""
            image = encoded(table.collection.picture(int(table.rows[row]), PICTURE))
            pictures.append(Picture(image, _line(table.paths[row]), f"{cosine:.3f}{label}"))
        page.gallery(pictures, mark_first=True)
    page.write(path)


def _line(name: str) -> str:
    return visible(name).replace("\n", "\\n")
