"""Embeddings of whole folders: the encoder's own values, kept, resumed to the bit, written to files."""

import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import setwise as sw
from setwise.cli import main
from setwise.data import DataError
from setwise.data import collection as collections
from setwise.data.collection import collect
from setwise.evaluation.embedding import EmbeddingTable, ImageEncoder, embed

CPU = torch.device("cpu")
HOSTILE = "<script>alert(1)</script>\"'&\x1b[31m\n.png".replace("/", "∕")


def photos(folder: Path, count: int, *, classes=("a", "b"), seed=0) -> Path:
    generator = np.random.default_rng(seed)
    for k in range(count):
        place = folder / classes[k % len(classes)]
        place.mkdir(parents=True, exist_ok=True)
        height, width = generator.integers(20, 60, 2)
        pixels = generator.integers(0, 256, (3, 3, 3)).astype(np.uint8)
        Image.fromarray(pixels).resize((int(width), int(height)), Image.Resampling.BICUBIC).save(place / f"{k:04d}.png")
    return folder


@pytest.fixture
def encoder():
    torch.manual_seed(0)
    network = sw.encoders.create("conv4", channels=3).eval()
    return ImageEncoder(network, (3, 16, 16), (0.4, 0.5, 0.6), (0.2, 0.25, 0.3))


def by_hand(encoder, files):
    """Pillow's crops, normalised as the formula says, one by one."""
    from PIL import ImageOps

    rows = []
    for file in files:
        with Image.open(file) as image:
            pixels = np.asarray(ImageOps.fit(image.convert("RGB"), (16, 16), Image.Resampling.BILINEAR))
        x = (
            torch.tensor(pixels).permute(2, 0, 1)[None] / 255 - torch.tensor(encoder.mean).view(3, 1, 1)
        ) / torch.tensor(encoder.std).view(3, 1, 1)
        with torch.no_grad():
            rows.append(encoder.encoder(x)[0])
    return torch.stack(rows)


@pytest.fixture
def small_batches(monkeypatch):
    """Batches of 8 images in place of 128."""
    import setwise.evaluation.embedding as module

    monkeypatch.setattr(collections, "BATCH", 8)
    monkeypatch.setattr("setwise.data.workers.CHUNK", 4)
    monkeypatch.setattr(module, "BATCH", 8)


@pytest.mark.usefixtures("small_batches")
def test_every_image_has_its_row_path_and_class(encoder, tmp_path):
    folder = photos(tmp_path / "photos", 20)
    table = embed(encoder, collect(folder), tmp_path / "kept", device=CPU, quiet=True)
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.png"))
    assert list(table.paths) == names
    assert list(table.labels) == [name[0] for name in names]
    torch.testing.assert_close(
        table.embeddings, by_hand(encoder, [folder / name for name in names]), rtol=1e-4, atol=1e-5
    )
    small = list(table.thumbnails())
    assert len(small) == 20
    for pixels, name in zip(small, names, strict=True):
        with Image.open(folder / name) as image:
            own = np.asarray(image.convert("RGB")).reshape(-1, 3).mean(0)
        assert np.abs(pixels.reshape(-1, 3).mean(0) - own).max() < 30, "a thumbnail of another image"


@pytest.mark.usefixtures("small_batches")
def test_all_splits_of_a_folder_are_embedded(encoder, tmp_path):
    for split, count in (("train", 6), ("test", 4), ("val", 2)):
        photos(tmp_path / "photos" / split, count, seed=count)
    table = embed(encoder, collect(tmp_path / "photos"), tmp_path / "kept", device=CPU, quiet=True)
    assert sorted(table.paths) == sorted(
        path.relative_to(tmp_path / "photos").as_posix() for path in (tmp_path / "photos").rglob("*.png")
    )
    assert {name.split("/")[1] for name in table.paths} == {"a", "b"} == set(table.labels)


@pytest.mark.usefixtures("small_batches")
def test_what_was_stopped_goes_on_and_is_the_same_to_the_bit(encoder, tmp_path, monkeypatch):
    folder = photos(tmp_path / "photos", 30)
    whole = embed(encoder, collect(folder), tmp_path / "whole", device=CPU, quiet=True).embeddings.clone()
    seen = []
    compute = ImageEncoder.__call__

    def counted(self, images, device):
        if len(seen) == 2:
            raise KeyboardInterrupt
        seen.append(len(images))
        return compute(self, images, device)

    monkeypatch.setattr(ImageEncoder, "__call__", counted)
    with pytest.raises(KeyboardInterrupt):
        embed(encoder, collect(folder), tmp_path / "kept", device=CPU, quiet=True)
    with (tmp_path / "kept" / "embeddings.f32").open("ab") as file:
        file.write(b"half a row")  # and half a line, as a killed process may leave
    with (tmp_path / "kept" / "log.jsonl").open("a") as file:
        file.write('{"rows": 8, "fea')
    seen.clear()
    monkeypatch.setattr(ImageEncoder, "__call__", lambda *given: seen.append(len(given[1])) or compute(*given))
    table = embed(encoder, collect(folder), tmp_path / "kept", device=CPU, quiet=True)
    assert seen == [8, 6], "two of the four batches were done"
    assert torch.equal(table.embeddings, whole)
    seen.clear()
    assert torch.equal(embed(encoder, collect(folder), tmp_path / "kept", device=CPU, quiet=True).embeddings, whole)
    assert not seen


@pytest.mark.usefixtures("small_batches")
def test_changed_files_and_another_encoder_are_noticed(encoder, tmp_path, capsys):
    folder, kept = photos(tmp_path / "photos", 10), tmp_path / "kept"
    first = embed(encoder, collect(folder), kept, device=CPU).embeddings  # its old file lives as long as it
    capsys.readouterr()
    photos(folder, 1, seed=5)  # replaces one file
    changed = embed(encoder, collect(folder), kept, device=CPU).embeddings.clone()
    assert "images were changed" in capsys.readouterr().err
    assert [not torch.equal(a, b) for a, b in zip(first, changed, strict=True)] == [True] + [False] * 9
    photos(folder, 11)  # one more, and the first one as it was
    assert len(embed(encoder, collect(folder), kept, device=CPU)) == 11
    assert "images were changed" in capsys.readouterr().err
    torch.manual_seed(1)
    other = ImageEncoder(sw.encoders.create("conv4", channels=3).eval(), encoder.shape, encoder.mean, encoder.std)
    again = embed(other, collect(folder), kept, device=CPU).embeddings
    assert "another encoder" in capsys.readouterr().err
    assert not torch.equal(again[1:10], changed[1:10])


@pytest.mark.parametrize("damage", ["log", "rows", "nonsense"])
@pytest.mark.usefixtures("small_batches")
def test_damaged_files_are_made_again(encoder, tmp_path, damage):
    folder, kept = photos(tmp_path / "photos", 10), tmp_path / "kept"
    first = embed(encoder, collect(folder), kept, device=CPU, quiet=True).embeddings.clone()
    if damage == "rows":
        os.truncate(kept / "embeddings.f32", 12)
    else:
        lines = (kept / "log.jsonl").read_text().splitlines(keepends=True)
        wrong = ["[]\n", "17\n"] if damage == "log" else [lines[0], lines[1].replace('"rows": 8', '"rows": "8"')]
        (kept / "log.jsonl").write_text("".join(wrong))
    assert torch.equal(embed(encoder, collect(folder), kept, device=CPU, quiet=True).embeddings, first)


@pytest.mark.usefixtures("small_batches")
def test_broken_files_are_listed_and_left_out(encoder, tmp_path, monkeypatch):
    folder = photos(tmp_path / "photos", 10)
    (folder / "a" / "0000.png").write_bytes(b"no image")
    (folder / "b" / "0009.png").write_bytes((folder / "b" / "0001.png").read_bytes()[:60])
    with pytest.raises(DataError, match=r"(?s)got 2 that.*--skip-broken.*a/0000.png: .*b/0009.png: "):
        embed(encoder, collect(folder), tmp_path / "kept", device=CPU, quiet=True)
    with monkeypatch.context() as patch:
        patch.setattr(ImageEncoder, "__call__", None)  # nothing is computed twice
        table = embed(encoder, collect(folder), tmp_path / "kept", device=CPU, skip_broken=True, quiet=True)
    assert [path for path, _ in table.broken] == ["a/0000.png", "b/0009.png"]
    assert len(table) == len(table.paths) == len(table.labels) == len(list(table.thumbnails())) == 8
    torch.testing.assert_close(
        table.embeddings, by_hand(encoder, [folder / name for name in table.paths]), rtol=1e-4, atol=1e-5
    )
    for one in (folder / name for name in table.paths):
        one.write_bytes(b"")
    with pytest.raises(DataError, match="none is left"):
        embed(encoder, collect(folder), tmp_path / "kept", device=CPU, skip_broken=True, quiet=True)


def read(path: Path) -> tuple[list[dict], np.ndarray]:
    """Rows and embeddings of a written table, by other programs."""
    if path.suffix == ".parquet":
        import pyarrow.parquet as parquet

        table = parquet.read_table(path)
        return table.drop(["embedding"]).to_pylist(), np.array(table["embedding"].to_pylist(), np.float32)
    if path.suffix == ".npy":
        values = np.load(path)
    else:
        from safetensors.numpy import load_file

        values = load_file(path)["embeddings"]
    with path.with_suffix(".csv").open(newline="") as file:
        return list(csv.DictReader(file)), values


@pytest.mark.parametrize("ending", ["parquet", "npy", "safetensors"])
@pytest.mark.parametrize("classes", [("a", "b"), ("x",)], ids=["classes", "none"])
def test_tables_come_back_from_their_files(encoder, tmp_path, ending, classes, package, monkeypatch):
    import setwise.evaluation.embedding as module

    if ending == "parquet":
        package("pyarrow")
    monkeypatch.setattr(module, "WRITTEN", 4)
    folder = photos(tmp_path / "photos", 10, classes=classes)
    (folder / classes[0] / HOSTILE).write_bytes((folder / classes[0] / "0000.png").read_bytes())
    (folder / classes[0] / "0002.png").write_bytes(b"no image")
    table = embed(encoder, collect(folder), tmp_path / "kept", device=CPU, skip_broken=True, quiet=True)
    files = table.write(tmp_path / f"x.{ending}")
    assert all(path.is_file() for path in files)
    rows, values = read(tmp_path / f"x.{ending}")
    assert [row["path"] for row in rows] == list(table.paths)
    assert f"{classes[0]}/{HOSTILE}" in table.paths
    assert [row.get("label") for row in rows] == (list(table.labels) or [None] * 10)
    assert np.array_equal(values, table.embeddings.numpy())


def test_unknown_endings_and_missing_packages_are_told(tmp_path, monkeypatch):
    from setwise.evaluation.embedding import check_out

    with pytest.raises(ValueError, match=r"expected a file that ends in .parquet, .npy"):
        check_out(tmp_path / "x.xlsx")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install pyarrow, or give a .npy"):
        check_out(tmp_path / "x.parquet")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run on the digits, and one on photos."""
    base = tmp_path_factory.mktemp("runs")
    changes = {"epochs": 1, "batch": 32, "probe.epochs": 1}
    sw.pretrain("digits", changes=changes, out=base / "digits", evaluate=False)
    photos(base / "photos", 64)
    sw.pretrain(base / "photos", changes=changes | {"size": 16}, out=base / "run", evaluate=False)
    return base


def test_a_run_embeds_folders_names_and_sets(runs):
    run = sw.load_run(runs / "run")
    table = run.embed(runs / "photos")
    assert isinstance(table, EmbeddingTable)
    images = sw.data.load(runs / "photos", size=16)
    assert table.paths == images.paths
    assert torch.equal(run.embed(images.images), table.embeddings)
    assert torch.equal(run.embed(images).embeddings, table.embeddings)
    digits = sw.load_run(runs / "digits").embed("digits")
    assert len(digits) == 1797
    assert digits.paths[1297] == "test/0"
    test = sw.data.load("digits", split="test")
    assert digits.labels[1297:] == tuple(test.classes[k] for k in test.labels)
    expected = sw.load_run(runs / "digits").embed(test.images)
    torch.testing.assert_close(digits.embeddings[1297:], expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match=r"expected images of 1 channel, .* got 3"):
        sw.load_run(runs / "digits").embed(runs / "photos")


def test_the_command_writes_the_table_also_for_an_exported_encoder(runs, tmp_path, capsys):
    main(["embed", str(runs / "run"), str(runs / "photos"), "--out", str(tmp_path / "x.npy")])
    assert capsys.readouterr().out.split() == [str(tmp_path / "x.npy"), str(tmp_path / "x.csv")]
    main(["export", str(runs / "run"), "--out", str(tmp_path / "encoder"), "--no-onnx"])
    main(["embed", str(tmp_path / "encoder"), str(runs / "photos"), "--out", str(tmp_path / "y.npy")])
    assert np.array_equal(np.load(tmp_path / "x.npy"), np.load(tmp_path / "y.npy"))


def test_a_killed_command_goes_on_with_the_same_result(runs, tmp_path):
    """kill -9 in the middle; then the same command computes the rest only."""
    folder = tmp_path / "photos"
    photos(folder, 300)
    command = [sys.executable, "-m", "setwise", "embed", str(runs / "run"), str(folder), "--out"]
    kept = runs / "run" / "embeddings"
    before = set(kept.iterdir()) if kept.exists() else set()
    killed = subprocess.Popen([*command, str(tmp_path / "x.npy")], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and killed.poll() is None:
        logs = [path / "log.jsonl" for path in (set(kept.iterdir()) if kept.exists() else set()) - before]
        if logs and logs[0].exists() and logs[0].read_text().count("\n") > 1:
            killed.send_signal(signal.SIGKILL)
        time.sleep(0.002)
    killed.wait()
    again = subprocess.run([*command, str(tmp_path / "x.npy")], capture_output=True, text=True, check=True)
    assert killed.returncode == -signal.SIGKILL
    assert "embedded already" in again.stderr or "embedded in" not in again.stderr, "it began again"
    undisturbed = sw.load_run(runs / "run").embed(sw.data.load(folder, size=16))
    assert np.array_equal(np.load(tmp_path / "x.npy"), undisturbed.embeddings.numpy())
