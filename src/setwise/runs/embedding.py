"""Embed images by the encoder of a run, or by an exported one."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from setwise.checks import check_count
from setwise.data import ImageSet
from setwise.data.collection import collect, small_picture
from setwise.data.formats.decode import quiet_pillow, read_image
from setwise.evaluation.embedding import EmbeddingTable, ImageEncoder, broken_lines
from setwise.evaluation.embedding import embed as embed_images
from setwise.evaluation.export import CONFIG, load_config, load_encoder
from setwise.evaluation.neighbours import nearest
from setwise.recipe import Data
from setwise.report.neighbours_page import PICTURE, Nearest
from setwise.runs.pretraining import check_on_images, encoder_of
from setwise.terminal import visible
from setwise.training import checkpoint as checkpoints

KEPT = "embeddings"  # the folder in a run's folder


def image_encoder(path: Path) -> tuple[ImageEncoder, Data | None]:
    """The encoder of a run's folder, of a checkpoint, or of a folder that `setwise export` wrote.

    Beside it: the data that it was trained on, as the recipe says; an exported one does not know.
    """
    if (path / CONFIG).is_file():
        about = load_config(path)
        shape = (about["channels"], *about["size"])
        return ImageEncoder(load_encoder(path), shape, tuple(about["mean"]), tuple(about["std"])), None
    found = checkpoints.load(path)
    check_on_images(found, path)
    encoder, data = encoder_of(found, path).eval(), found.data
    return ImageEncoder(encoder, tuple(data["shape"]), tuple(data["mean"]), tuple(data["std"])), found.recipe.data


def embed(
    path: Path,
    source: str | os.PathLike[str] | ImageSet,
    *,
    device: torch.device,
    root: Path | None = None,
    skip_broken: bool = False,
    follow_links: bool = False,
    quiet: bool = False,
) -> EmbeddingTable:
    """Embeddings of all images of a folder or data set. They are kept below the run's folder, and used again."""
    encoder, data = image_encoder(path)
    options = data.options if data is not None and data.source == source else None
    images = collect(source, root, options=options, follow_links=follow_links)
    word = re.sub(r"[^A-Za-z0-9_-]+", "-", images.name)[:40]
    kept = home(path) / KEPT / f"{word}-{hashlib.sha256(os.fsencode(images.place)).hexdigest()[:8]}"
    table = embed_images(encoder, images, kept, device=device, skip_broken=skip_broken, quiet=quiet)
    if not quiet and images.strays:
        print(f"left out, images beside the folders of the classes: {images.strays:,}", file=sys.stderr)
    if not quiet and table.broken:
        print(f"left out, broken: {len(table.broken):,}\n{visible(broken_lines(table.broken))}", file=sys.stderr)
    return table


def home(path: Path) -> Path:
    """The folder of a run, whose checkpoint ``path`` may be."""
    return path if path.is_dir() else path.parent


def title_of(path: Path) -> str:
    """A run's name for people: the last two parts of its folder."""
    return "/".join(Path(os.path.abspath(home(path))).parts[-2:])


def neighbours(
    path: Path, table: EmbeddingTable, queries: Sequence[str], *, count: int, device: torch.device
) -> list[Nearest]:
    """The images of the table that are nearest to each query: a file, or an image of the table by its path.

    A query is not its own neighbour.
    """
    check_count(count, "count")
    if not queries:
        raise ValueError("expected at least one query, got none")
    encoder, _ = image_encoder(path)
    encoder.encoder.to(device)
    row_of = {name: row for row, name in enumerate(table.paths)}
    own_rows: list[int | None] = []
    pictures, embeddings = [], []
    for query in queries:
        if Path(query).exists():
            if encoder.shape[0] != 3:
                raise ValueError(f"expected a query among the images, such as {table.paths[0]!r}, got the file {query}")
            with quiet_pillow():
                pixels = read_image(Path(query), encoder.shape[1:], crop=True)
                pictures.append(small_picture(read_image(Path(query)), PICTURE))
            below = os.path.relpath(os.path.realpath(query), table.collection.place)
            own_rows.append(row_of.get(below) if table.collection.files else None)
            embeddings.append(encoder(torch.tensor(pixels).permute(2, 0, 1)[None], device))
        elif query in row_of:
            row = row_of[query]
            own_rows.append(row)
            pictures.append(table.collection.picture(int(table.rows[row]), PICTURE))
            embeddings.append(table.embeddings[row : row + 1])
        else:
            raise ValueError(
                f"expected a query that is an image file, or one of the images, such as {table.paths[0]!r}, "
                f"got {query!r}"
            )
    cosines, rows = (x.tolist() for x in nearest(torch.cat(embeddings), table.embeddings, k=count + 1))
    found = []
    for query, own, picture, near, cosine in zip(queries, own_rows, pictures, rows, cosines, strict=True):
        kept = [k for k, row in enumerate(near) if row != own][:count]
        found.append(Nearest(query, picture, tuple(near[k] for k in kept), tuple(cosine[k] for k in kept)))
    return found
