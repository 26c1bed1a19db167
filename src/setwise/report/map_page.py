"""The map of a folder's images: places, clusters, near-duplicates and outliers on one page that needs no network."""

from __future__ import annotations

import base64
import io
import json
import time
from collections import Counter
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from setwise.evaluation.embedding import EmbeddingTable, cell_of, sheet_of
from setwise.evaluation.layout import clusters, layout, reduced
from setwise.evaluation.neighbours import Neighbourhood, neighbourhood
from setwise.report.map_view import HTML, SCRIPT, STYLE
from setwise.report.page import Page, Picture
from setwise.terminal import visible

Method = Literal["tsne", "umap"]
MOST = 100_000  # images of a map; of more a sample is shown
BUDGET = 16 * 2**20  # bytes of all thumbnails, before base64 adds a third
SIDES = (96, 64, 48, 32)  # pixels of a thumbnail: the largest that fits the budget
PER_SHEET, COLUMNS = 256, 16
SQUARES = 20  # by as many, into which the map is cut: their images share sheets of thumbnails
NEIGHBOURS, SHOWN_NEIGHBOURS = 10, 6  # that tell an outlier; that the page shows of an image
PICTURE = 128  # pixels of a picture in a list
TINY = 32  # up to here pictures are kept as PNG and drawn with hard edges
TYPICAL, GROUPS, IN_GROUP, OUTLIERS = 9, 24, 9, 27  # pictures or groups that the lists show


def write_map(
    path: Path,
    table: EmbeddingTable,
    *,
    encoder: str,
    number: int | None = None,
    method: Method = "tsne",
    threshold: float = 0.99,
    device: torch.device | str = "cpu",
) -> dict[str, float]:
    """Write the page; gives the seconds of its parts.

    ``encoder`` says whose embeddings these are. ``number`` of clusters: chosen if None. Images whose cosine is at least
    ``threshold`` count as near-duplicates.
    """
    seconds, began = {}, time.perf_counter()

    def lap(name: str) -> None:
        nonlocal began
        seconds[name], began = time.perf_counter() - began, time.perf_counter()

    rows = np.arange(len(table))
    if len(rows) > MOST:
        rows = np.sort(np.random.default_rng(0).permutation(len(rows))[:MOST])
    embeddings = table.embeddings if len(rows) == len(table) else table.embeddings[torch.from_numpy(rows)]
    near = neighbourhood(embeddings.to(device), k=NEIGHBOURS, threshold=threshold)
    lap("neighbours")
    points = reduced(embeddings.numpy())
    places, how_placed = layout(points, method=method)
    lap("places")
    found, how_found = clusters(points, count=number)
    lap("clusters")
    sheets, slots, cell = _sheets(table, rows, places)
    lap("thumbnails")

    images = "image" if len(rows) == 1 else "images"
    page = Page(
        f"Map of {table.collection.name}",
        lead=f"{len(rows):,} {images}. Those that the encoder of {encoder} finds alike stand together.",
    )
    if len(rows) < len(table):
        page.text(f"The map shows {len(rows):,} images, drawn at random from {len(table):,}.")
    labels = [table.labels[row] for row in rows] if table.labels else []
    groupings = _groupings(labels, found)
    paths = [visible(table.paths[row]).replace("\n", "\\n") for row in rows]
    page.add(_map(paths, places, groupings, near, sheets, slots, cell), style=STYLE, script=SCRIPT)
    with_picture = int((slots >= 0).sum())
    if with_picture < len(rows):
        page.text(
            f"{with_picture:,} of the images, drawn at random, have a small picture: all would make the page too large."
        )

    def picture(row: int, about: str = "") -> Picture:
        return Picture(encoded(table.collection.picture(int(table.rows[rows[row]]), PICTURE)), paths[row], about, row)

    page.heading("Clusters")
    page.text(f"{how_found} Each row shows images near the middle of a cluster. A click shows one on the map.")
    by = groupings[-1]
    for k in range(len(by.names)):
        inside = np.flatnonzero(found == k)
        middle = points[inside].mean(0)
        typical = inside[np.argsort(((points[inside] - middle) ** 2).sum(1), kind="stable")[:TYPICAL]]
        page.gallery([picture(row) for row in typical], caption=f"{by.names[k]}: {len(inside):,} images{by.notes[k]}")
    page.heading("Near-duplicates")
    _put_duplicates(page, near, threshold, picture)
    page.heading("Outliers")
    page.text(
        f"The images that are farthest from their {near.index.shape[1]} nearest others, by the mean of 1 - cosine."
    )
    order = near.distance.argsort(descending=True, stable=True)[:OUTLIERS].tolist() if len(rows) > 1 else []
    page.gallery([picture(row, f"{float(near.distance[row]):.3f}") for row in order])
    lap("pictures")
    page.details(
        "How it was made",
        "\n".join(
            [
                how_placed,
                "A map is a hint: images that stand together are alike, but how far apart others stand means little.",
                how_found,
                f"Cosines of all {len(rows) * (len(rows) - 1) // 2:,} pairs were compared, in float32.",
                ", ".join(f"{name} {value:.1f} s" for name, value in seconds.items()),
            ]
        ),
    )
    page.write(path)
    lap("writing")
    return seconds


def encoded(pixels: npt.NDArray[np.uint8]) -> bytes:
    """A picture [h, w, 3] as a file: PNG if it is tiny, else JPEG."""
    from PIL import Image

    file = io.BytesIO()
    if max(pixels.shape[:2]) <= TINY:
        Image.fromarray(pixels).save(file, "PNG")
    else:
        Image.fromarray(pixels).save(file, "JPEG", quality=82)
    return file.getvalue()


def _put_duplicates(page: Page, near: Neighbourhood, threshold: float, picture: Any) -> None:
    groups = near.groups()
    if not groups:
        page.text(f"No two images have a cosine of {threshold:g} or more.")
        return
    kept = "" if near.count == len(near.pairs) else f" The nearest {len(near.pairs):,} of them count here."
    page.text(
        f"{near.count:,} pairs of images have a cosine of {threshold:g} or more.{kept} They make {len(groups):,} "
        "groups. The numbers are cosines with the first image of the group; the nearest come first."
    )
    for group in groups[:GROUPS]:
        some = list(group.items())[:IN_GROUP]
        shown = f", {IN_GROUP} of them shown" if len(group) > IN_GROUP else ""
        pictures = [picture(row, f"{cosine:.4f}" if k else "") for k, (row, cosine) in enumerate(some)]
        page.gallery(pictures, caption=f"{len(group):,} images{shown}", beside=True)
    if len(groups) > GROUPS:
        page.text(f"{len(groups) - GROUPS:,} more groups are not shown.")


class _Grouping(NamedTuple):
    """A way to colour the map."""

    title: str
    names: list[str]
    notes: list[str]  # behind the names
    of: list[int]  # the group of each image


def _groupings(labels: Sequence[str], found: npt.NDArray[np.int64]) -> list[_Grouping]:
    """By class, where there are classes, and by cluster."""
    numbers = range(int(found.max()) + 1)
    notes = []
    for k in numbers:
        inside = Counter(labels[row] for row in np.flatnonzero(found == k).tolist()) if labels else Counter[str]()
        notes += [
            f", {100 * many / inside.total():.0f}\u00a0% of class {name}" for name, many in inside.most_common(1)
        ] or [""]
    result = [_Grouping("cluster", [f"Cluster {k + 1}" for k in numbers], notes, found.tolist())]
    if labels:
        classes = sorted(set(labels))
        place = {name: k for k, name in enumerate(classes)}
        result.insert(0, _Grouping("class", classes, [""] * len(classes), [place[label] for label in labels]))
    return result


def _sheets(
    table: EmbeddingTable, rows: npt.NDArray[np.int64], places: npt.NDArray[np.float32]
) -> tuple[list[bytes], npt.NDArray[np.int32], tuple[int, int]]:
    """Sheets of thumbnails within the budget, the place of each image in them or -1, and a thumbnail's (h, w).

    If not all fit, some are drawn at random. Images that stand together on the map share a sheet: a browser then
    decodes few of them.
    """
    from PIL import Image

    height, width = table.thumbnail_shape
    full = max(height, width)
    for side in (side for side in SIDES if side <= full or side == SIDES[-1]):
        side = min(side, full)
        # The bytes of a JPEG shrink more slowly than its area.
        each = table.thumbnail_bytes / max(1, len(table.collection)) * (side / full) ** 1.5
        if each * len(rows) <= BUDGET:
            break
    count = min(len(rows), int(BUDGET / each))
    cell = max(1, round(height * side / full)), max(1, round(width * side / full))
    drawn = np.random.default_rng(0).permutation(len(rows))[:count]
    number = np.full(len(table), -1, np.int64)
    number[rows[drawn]] = np.arange(count)
    pictures = np.zeros((count, *cell, 3), np.uint8)
    for n, pixels in zip(number, table.thumbnails(), strict=True):
        if n >= 0:
            pictures[n] = np.asarray(Image.fromarray(pixels).resize(cell[::-1], Image.Resampling.BOX))
    low, high = places.min(0), places.max(0)
    squares = ((places - low) / np.maximum(high - low, 1e-9) * SQUARES).astype(np.int64)
    while True:
        order = np.lexsort(squares[drawn[:count]].T)
        parts = (order[start : start + PER_SHEET] for start in range(0, count, PER_SHEET))
        sheets = [sheet_of(pictures[part], columns=COLUMNS, quality=72) for part in parts]
        total = sum(map(len, sheets))
        if total <= BUDGET:
            break
        count = int(count * 0.95 * BUDGET / total)
    slots = np.full(len(rows), -1, np.int32)
    slots[drawn[:count][order]] = np.arange(count, dtype=np.int32)
    return sheets, slots, cell


def _map(
    paths: list[str],
    places: npt.NDArray[np.float32],
    groupings: list[_Grouping],
    near: Neighbourhood,
    sheets: list[bytes],
    slots: npt.NDArray[np.int32],
    cell: tuple[int, int],
) -> str:
    """The HTML of the map, and its data as JSON that no parser takes for HTML."""
    low = places.min(0)
    unit = (places - low) / max(float((places.max(0) - low).max()), 1e-9)
    unit += (1 - unit.max(0)) / 2  # in the middle of the square
    cosine = ((near.cosine[:, :SHOWN_NEIGHBOURS].numpy() + 1) / 2 * 65535).round()
    kind = "png" if sheets[:1] and sheets[0].startswith(b"\x89PNG") else "jpeg"
    data = {
        "x": _base64(unit[:, 0] * 65535, "<u2"),
        "y": _base64(65535 - unit[:, 1] * 65535, "<u2"),
        "paths": paths,
        "groups": [{"names": one.names, "notes": one.notes, "of": _base64(one.of, "<u2")} for one in groupings],
        "near": _base64(near.index[:, :SHOWN_NEIGHBOURS].numpy(), "<u4"),
        "cosine": _base64(np.clip(cosine, 0, 65535), "<u2"),
        "slots": _base64(slots, "<i4"),
        "cell": cell[::-1],
        "pitch": [cell_of(side) for side in cell[::-1]],
        "columns": COLUMNS,
        "per": PER_SHEET,
        "sheets": [f"data:image/{kind};base64,{base64.b64encode(sheet).decode()}" for sheet in sheets],
    }
    text = json.dumps(data).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    choices = "".join(
        f'<label><input type="radio" name="by" value="{k}"{" checked" * (k == 0)}> {escape(one.title)}</label>'
        for k, one in enumerate(groupings)
    )
    choice = f"<fieldset><legend>Colour by</legend>{choices}</fieldset>" if len(groupings) > 1 else ""
    return HTML.format(count=f"{len(paths):,}", choice=choice, data=text)


def _base64(values: Any, kind: str) -> str:
    return base64.b64encode(np.asarray(values).astype(kind).tobytes()).decode()
