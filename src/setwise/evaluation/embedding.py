"""Embeddings of all images of a place: computed batch by batch, kept in a folder, resumed where they were stopped.

The folder holds three files that only grow, so memory stays flat and a killed process loses one batch at most:

embeddings.f32   float32 [N, F], a row for each image; rows of broken images are zero
thumbnails.bin   small pictures, one JPEG or PNG sheet for each batch
log.jsonl        what was embedded by what; then a line for each batch, written when its rows are on the disk
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from setwise.data import DataError, ImageSet
from setwise.data.collection import BATCH, Broken, Collection, as_rgb
from setwise.data.formats.decode import height_and_width
from setwise.data.formats.folder import LISTED
from setwise.data.formats.listing import one_line
from setwise.data.progress import progress_bar
from setwise.evaluation.features import extract, frozen
from setwise.locks import LockTaken, locked
from setwise.training.checkpoint import replacing

FORMAT = "setwise embeddings 1"
ROWS, SHEETS, LOG = "embeddings.f32", "thumbnails.bin", "log.jsonl"
SIDE, COLUMNS = 96, 16  # of thumbnails: their longer side in pixels; how many stand in a row of a sheet
LOSSLESS = 16  # sides up to this many pixels are kept as PNG: JPEG's blocks would blur them
WRITTEN = 8192  # rows of a file that are written at a time
FILES = (".parquet", ".npy", ".safetensors")


@dataclass(frozen=True)
class ImageEncoder:
    """A trained encoder, and which images it takes: their shape (C, H, W), and what normalises them."""

    encoder: nn.Module
    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @cached_property
    def fingerprint(self) -> str:
        """Tells it from every other encoder."""
        from safetensors.torch import save

        weights = {name: x.contiguous() for name, x in self.encoder.state_dict().items()}
        kind = f"{type(self.encoder).__qualname__} {self.shape} {self.mean} {self.std}"
        return hashlib.sha256(save(weights) + kind.encode()).hexdigest()

    def __call__(self, images: Tensor, device: torch.device) -> Tensor:
        """Features [N, F] of uint8 images [N, C, H, W], float32 on the CPU."""
        labels = torch.full((len(images),), -1, device="cpu")
        data = ImageSet("images", "all", images, labels, (), self.mean, self.std)
        double = next(self.encoder.parameters()).dtype == torch.float64
        precision = "float64" if double else "float32"
        return extract(self.encoder, data, device=device, precision=precision, batch=BATCH).cpu()


@dataclass(frozen=True, eq=False, repr=False)
class EmbeddingTable:
    """Embeddings of images with their ``paths`` and ``labels``; broken images are left out and listed in ``broken``.

    The rows stay in their file, and the system reads those that are used.
    """

    collection: Collection
    rows: npt.NDArray[np.int64]  # of the collection, those that are not broken
    broken: tuple[tuple[str, str], ...]  # path, reason
    _values: npt.NDArray[np.float32]  # [N, F], of all rows
    thumbnail_shape: tuple[int, int]  # height and width
    _sheets: tuple[tuple[int, int], ...]  # where the thumbnails of each batch lie: first byte, length
    _folder: Path

    def __len__(self) -> int:
        """Number of images."""
        return len(self.rows)

    def __repr__(self) -> str:
        """The sizes."""
        return f"EmbeddingTable({self.collection.name!r}, {len(self)} images, {self._values.shape[1]} features)"

    @cached_property
    def paths(self) -> tuple[str, ...]:
        """Of the images, below their folder; those of a data set are split/number."""
        return tuple(self.collection.paths[row] for row in self.rows)

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes; empty without classes."""
        return tuple(self.collection.labels[row] for row in self.rows) if self.collection.labels else ()

    @property
    def embeddings(self) -> Tensor:
        """Float32 [N, F]. Writing to them does not change the file."""
        whole = len(self.rows) == len(self._values)
        return torch.from_numpy(self._values if whole else self._values[self.rows])

    def thumbnails(self) -> Iterator[npt.NDArray[np.uint8]]:
        """A small picture of each image, uint8 [h, w, 3], as the encoder saw it."""
        from PIL import Image

        (height, width), whole = self.thumbnail_shape, set(self.rows.tolist())
        with open(self._folder / SHEETS, "rb") as file:
            for k, (start, length) in enumerate(self._sheets):
                file.seek(start)
                with Image.open(io.BytesIO(file.read(length)), formats=("PNG", "JPEG")) as sheet:
                    if sheet.width != COLUMNS * cell_of(width) or sheet.height > BATCH * cell_of(height):
                        raise ValueError(f"expected thumbnails that setwise wrote in {self._folder}, got others")
                    pixels = np.asarray(sheet.convert("RGB"))
                for n, row in enumerate(range(k * BATCH, min((k + 1) * BATCH, len(self.collection)))):
                    if row in whole:
                        y, x = n // COLUMNS * cell_of(height), n % COLUMNS * cell_of(width)
                        yield pixels[y : y + height, x : x + width]

    @property
    def thumbnail_bytes(self) -> int:
        """Of all thumbnails, as they are kept."""
        return sum(length for _, length in self._sheets)

    def write(self, path: str | os.PathLike[str]) -> list[Path]:
        """Write path, label where there are classes, and embedding to a .parquet file; gives the files.

        A .npy or .safetensors file has the embeddings alone; a .csv beside it has path and label, in the same order.
        """
        path = check_out(path)
        table = [*(("path", "label") if self.labels else ("path",))]
        features = self._values.shape[1]
        with ExitStack() as files:
            if path.suffix == ".parquet":
                self._write_parquet(files.enter_context(replacing(path)))
                return [path]
            beside = path.with_suffix(".csv")
            names = files.enter_context(replacing(beside))
            with names.open("w", newline="", encoding="utf-8", errors="surrogateescape") as text:
                lines = csv.writer(text)
                lines.writerow(table)
                lines.writerows(zip(self.paths, self.labels, strict=True) if self.labels else zip(self.paths))
            with files.enter_context(replacing(path)).open("wb") as out:
                if path.suffix == ".npy":
                    about = {"descr": "<f4", "fortran_order": False, "shape": (len(self), features)}
                    np.lib.format.write_array_header_1_0(out, about)
                else:  # by hand: the library wants all rows in memory
                    ends = [0, 4 * len(self) * features]
                    kind = {"dtype": "F32", "shape": [len(self), features], "data_offsets": ends}
                    header = json.dumps({"embeddings": kind}).encode()
                    header += b" " * (-len(header) % 8)
                    out.write(len(header).to_bytes(8, "little") + header)
                for values, _ in self._parts():
                    out.write(np.ascontiguousarray(values, "<f4").data)
        return [path, beside]

    def _parts(self) -> Iterator[tuple[npt.NDArray[np.float32], slice]]:
        for start in range(0, len(self), WRITTEN):
            yield self._values[self.rows[start : start + WRITTEN]], slice(start, start + WRITTEN)

    def _write_parquet(self, path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        features = self._values.shape[1]
        texts = {"path": self.paths} | ({"label": self.labels} if self.labels else {})
        kinds = [(name, pa.string()) for name in texts]
        schema = pa.schema([*kinds, ("embedding", pa.list_(pa.float32(), features))])
        with pq.ParquetWriter(path, schema) as writer:
            for values, part in self._parts():
                columns = [
                    pa.array(
                        [text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace") for text in x]
                    )
                    for x in (column[part] for column in texts.values())
                ]
                rows = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), features)
                writer.write_table(pa.table([*columns, rows], schema=schema))


def check_out(path: str | os.PathLike[str]) -> Path:
    """The path, if a table can be written there; asked before anything is computed."""
    path = Path(path)
    if path.suffix not in FILES:
        raise ValueError(f"expected a file that ends in {', '.join(FILES)}, got {path}")
    if path.suffix == ".parquet":
        try:
            import pyarrow  # noqa: F401
        except ImportError as error:
            raise ModuleNotFoundError(
                f"expected pyarrow to write {path}, got {error}; pip install pyarrow, or give a .npy file, which needs "
                "nothing more"
            ) from error
    return path


def embed(
    encoder: ImageEncoder,
    images: Collection,
    folder: Path,
    *,
    device: torch.device,
    skip_broken: bool = False,
    quiet: bool = False,
) -> EmbeddingTable:
    """Embed all images, or those that are missing in ``folder``, where the embeddings are kept.

    What was embedded by another encoder, or of files that have changed since, is computed again. Broken files are an
    error that lists them all, at the end; with ``skip_broken`` they are left out, and nothing is computed twice.
    """
    if images.channels != encoder.shape[0]:
        trained = encoder.shape[0]
        raise ValueError(
            f"expected images of {trained} channel{'s' * (trained > 1)}, as the encoder was trained on, "
            f"got {images.channels} ({images.name}); give such images"
        )
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with locked(folder / ".lock", option="a copy of the run's folder"):
            table = _Store(folder, encoder, images, device, quiet=quiet).complete()
    except LockTaken as error:
        raise ValueError(f"expected {folder} for this command alone, but {error}; wait for it") from error
    if table.broken and not (skip_broken and len(table)):
        advice = "replace them, or leave them out by --skip-broken" if len(table) else "none is left"
        raise DataError(
            f"expected whole images in {images.name}, got {len(table.broken):,} that cannot be read; {advice}:\n"
            + broken_lines(table.broken)
        )
    return table


def broken_lines(broken: Sequence[tuple[str, str]]) -> str:
    """A line for each broken file, for people."""
    lines = [f"  {one_line(path)}: {why}" for path, why in broken[:LISTED]]
    more = [f"  and {len(broken) - LISTED:,} more; `setwise data check` lists all"] if len(broken) > LISTED else []
    return "\n".join(lines + more)


class _Store:
    """The three files of a folder, which is locked."""

    def __init__(
        self, folder: Path, encoder: ImageEncoder, images: Collection, device: torch.device, *, quiet: bool
    ) -> None:
        self.folder, self.encoder, self.images, self.device, self.quiet = folder, encoder, images, device, quiet
        height, width = encoder.shape[1:] if images.files else images.sets[0].images.shape[2:]
        self.size = height_and_width((int(height), int(width)))
        self.header: dict[str, Any] = {
            "format": FORMAT,
            "encoder": encoder.fingerprint,
            "images": images.fingerprint,
            "count": len(images),
            "size": list(self.size),
            "device": device.type,
        }
        self.lines = self._read()

    def _read(self) -> list[dict[str, Any]]:
        """The lines of the batches that are done; none if they are of something else. Half a line does not count."""
        try:
            text = (self.folder / LOG).read_text(encoding="utf-8")
            header, *lines = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
            lengths = [(self.folder / name).stat().st_size for name in (ROWS, SHEETS)]
        except (OSError, ValueError, RecursionError):
            return []
        try:
            known = {name: header[name] for name in self.header}
            if len(lines) == len(range(0, len(self.images), BATCH)):
                known["device"] = self.header["device"]  # a whole one will do, wherever it was computed
            if known == self.header:
                self._check(lines, lengths)
                return lines
        except (KeyError, TypeError, ValueError):  # damaged
            return []
        if not self.quiet:
            changes = {"encoder": "another encoder", "images": "images were changed", "device": "another device"}
            why = next((words for name, words in changes.items() if known[name] != self.header[name]), "another size")
            print(f"{why} since the last time: all of {self.images.name} are embedded again", file=sys.stderr)
        return []

    def _check(self, lines: list[dict[str, Any]], lengths: list[int]) -> None:
        """Raise unless these are lines that ``complete`` writes, and the files are as long as they say."""
        starts = range(0, len(self.images), BATCH)
        if len(lines) > len(starts):
            raise ValueError
        for line, start in zip(lines, starts, strict=False):
            rows = min(BATCH, len(self.images) - start)
            whole = all(type(line[name]) is int for name in ("rows", "features", "sheet"))
            ok = whole and line["rows"] == rows and line["features"] == lines[0]["features"] > 0 and line["sheet"] > 0
            if not ok or not all(start <= row < start + rows and isinstance(why, str) for row, why in line["broken"]):
                raise ValueError
        needed = sum(4 * line["rows"] * line["features"] for line in lines), sum(line["sheet"] for line in lines)
        if any(length < need for length, need in zip(lengths, needed, strict=True)):
            raise ValueError

    def complete(self) -> EmbeddingTable:
        """Embed what is missing."""
        done = sum(line["rows"] for line in self.lines)
        if done < len(self.images):
            self._append(done)
        features = next((line["features"] for line in self.lines if line["features"]), 0)
        broken: list[Broken] = [tuple((row, why) for row, why in line["broken"]) for line in self.lines]
        bad = {row: why for one in broken for row, why in one}
        ends = np.cumsum([0, *(line["sheet"] for line in self.lines)]).tolist()
        named = ((self.images.paths[row], why) for row, why in bad.items())
        shape = len(self.images), features
        return EmbeddingTable(
            collection=self.images,
            rows=np.setdiff1d(np.arange(len(self.images)), list(bad)).astype(np.int64),
            broken=tuple(sorted([*self.images.unusable, *named])),
            _values=np.memmap(self.folder / ROWS, np.dtype("<f4"), "c", shape=shape),
            thumbnail_shape=_thumbnail_size(*self.size),
            _sheets=tuple((start, line["sheet"]) for start, line in zip(ends[:-1], self.lines, strict=True)),
            _folder=self.folder,
        )

    def _append(self, done: int) -> None:
        began, many = time.perf_counter(), len(self.images) - done
        if done and not self.quiet:
            print(f"{done:,} of {len(self.images):,} images are embedded already", file=sys.stderr)
        whole = [json.dumps(line) + "\n" for line in (self.header, *self.lines)]
        with replacing(self.folder / LOG) as temporary:
            temporary.write_text("".join(whole), encoding="utf-8")
        if not self.lines:  # new files: a table that somebody still reads keeps the old ones
            for name in (ROWS, SHEETS):
                (self.folder / name).unlink(missing_ok=True)
        with ExitStack() as stack:
            rows, sheets = (stack.enter_context(open(self.folder / name, "ab")) for name in (ROWS, SHEETS))
            log = stack.enter_context(open(self.folder / LOG, "a", encoding="utf-8"))
            rows.truncate(sum(4 * line["rows"] * line["features"] for line in self.lines))
            sheets.truncate(sum(line["sheet"] for line in self.lines))
            bar = stack.enter_context(progress_bar(shown=not self.quiet))
            task = bar.add_task("embedding images", total=len(self.images), completed=done)
            encoder = self.encoder.encoder.to(self.device)
            stack.enter_context(frozen(encoder))
            for images, broken in self.images.batches(done, self.size):
                values = self._values(images, [row % BATCH for row, _ in broken])
                sheet = _sheet(images)
                for file, data in ((rows, values.astype("<f4").tobytes()), (sheets, sheet)):
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                line = {"rows": len(images), "features": values.shape[1], "sheet": len(sheet), "broken": broken}
                log.write(json.dumps(line) + "\n")
                log.flush()
                self.lines.append(line)
                bar.advance(task, len(images))
        spent = time.perf_counter() - began
        if not self.quiet:
            print(f"{many:,} images embedded in {spent:.1f} s, {many / spent:,.0f} images/s", file=sys.stderr)

    def _values(self, images: Tensor, broken: list[int]) -> npt.NDArray[np.float32]:
        """Features of a batch; zeros for broken images, which the encoder does not see."""
        whole = torch.ones(len(images), dtype=torch.bool, device="cpu")
        whole[broken] = False
        features = self.encoder(images[whole] if whole.any() else images[:1], self.device)
        out = torch.zeros(len(images), features.shape[1])
        if whole.any():
            out[whole] = features
        if not out.isfinite().all():
            raise ValueError("expected finite embeddings, got NaN or infinite ones; has training diverged?")
        return out.numpy()


def _thumbnail_size(height: int, width: int) -> tuple[int, int]:
    """The size of a thumbnail."""
    scale = min(1.0, SIDE / max(height, width))
    return max(1, round(height * scale)), max(1, round(width * scale))


def cell_of(side: int) -> int:
    """Pixels from one thumbnail to the next: whole blocks of JPEG, which then mix no two of them."""
    return side if side <= LOSSLESS else -(-side // 16) * 16


def _sheet(images: Tensor) -> bytes:
    """Thumbnails of a batch of images [n, C, H, W], ``COLUMNS`` in a row, as one picture."""
    size = _thumbnail_size(*images.shape[2:])
    if size != images.shape[2:]:
        images = interpolate(images.float(), size, mode="bilinear", antialias=True).round().clamp(0, 255).byte()
    return sheet_of(as_rgb(images).permute(0, 2, 3, 1).numpy(), columns=COLUMNS, quality=85)


def sheet_of(pictures: npt.NDArray[np.uint8], *, columns: int, quality: int) -> bytes:
    """Pictures [n, h, w, 3] in rows of ``columns``, each in a cell of ``cell_of``: PNG if they are tiny, else JPEG."""
    from PIL import Image

    count, height, width, _ = pictures.shape
    down, right = cell_of(height), cell_of(width)
    padding = ((0, -count % columns), (0, down - height), (0, right - width), (0, 0))
    cells = np.pad(pictures, padding[:1] + ((0, 0),) * 3) if padding[0][1] else pictures
    cells = np.pad(cells, ((0, 0), *padding[1:]), mode="edge")
    sheet = cells.reshape(-1, columns, down, right, 3).swapaxes(1, 2).reshape(-1, columns * right, 3)
    file = io.BytesIO()
    if max(height, width) <= LOSSLESS:
        Image.fromarray(sheet).save(file, "PNG")
    else:
        Image.fromarray(sheet).save(file, "JPEG", quality=quality)
    return file.getvalue()
