"""Pairs: two sides, texts as token ids, files that are not what they should be."""

import gzip
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import setwise as sw
from setwise.cli import main
from setwise.data import DataError, PairSet, Side
from setwise.data import texts as texts_module
from setwise.data.texts import LINE, Tokenizer

ENV = {"PYTHONPATH": str(Path(sw.__file__).parents[1])}


def crc32(data: bytes) -> int:
    """By its definition, bit by bit."""
    total = 0xFFFFFFFF
    for byte in data:
        total ^= byte
        for _ in range(8):
            total = total >> 1 ^ (0xEDB88320 if total & 1 else 0)
    return total ^ 0xFFFFFFFF


def test_ids_are_hashes_of_words_and_their_pieces():
    pieces = ["<a>", "<dög>", "<dö", "dög", "ög>", "<dög", "dög>", "<.>", "<42>", "<42", "42>"]
    tokenizer = Tokenizer(vocabulary=1000, ngrams=(3, 4))
    found = tokenizer.ids("A ＤÖG.\u00a042")  # wide letters are letters
    assert found.tolist() == [1 + crc32(piece.encode()) % 999 for piece in pieces]
    assert Tokenizer(vocabulary=1000, ngrams=(), length=2).ids("a b c").tolist() == [
        1 + crc32(piece.encode()) % 999 for piece in ("<a>", "<b>")
    ]


def test_ids_are_the_same_in_another_process():
    code = "from setwise.data.texts import Tokenizer; print(Tokenizer().ids('Zwei Hunde spielen.').tolist())"
    environment = os.environ | ENV | {"PYTHONHASHSEED": "7"}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == str(Tokenizer().ids("Zwei Hunde spielen.").tolist())


def test_a_file_of_pairs(tmp_path):
    path = tmp_path / "mine.tsv"
    path.write_bytes(b"\xef\xbb\xbftwo dogs\tzwei Hunde\r\n" + "a cat\teine Katze, müde\n".encode())
    found = sw.data.load_pairs(path, options={"ngrams": (3,), "length": 4, "vocabulary": 500})
    assert repr(found) == "PairSet('mine', split='train', first=ids 2x4, second=ids 2x4)"
    tokenizer = Tokenizer(500, (3,), 4)
    for side, texts in ((found.first, ("two dogs", "a cat")), (found.second, ("zwei Hunde", "eine Katze, müde"))):
        assert (side.kind, side.width) == ("ids", 500)
        for row, text in zip(side.values, texts, strict=True):
            assert row[row > 0].tolist() == tokenizer.ids(text).tolist()
    assert sw.data.load_pairs(path, options={"length": 4}).first.values.dtype == torch.int32
    assert len(sw.data.load_pairs(path)) == 2
    path.write_text("another\tline\n")
    assert len(sw.data.load_pairs(path)) == 1, "a file that has changed is read again"
    zipped = tmp_path / "mine.tsv.gz"
    zipped.write_bytes(gzip.compress(path.read_bytes()))
    assert torch.equal(sw.data.load_pairs(zipped).first.values, sw.data.load_pairs(path).first.values)


BROKEN = {
    "one column": (b"a\tb\nonly one\n", r"expected 2 columns with a tab .*mine.tsv, line 2, got 1: 'only one'"),
    "three columns": (b"a\tb\tc\n", "line 1, got 3: .*--data.sets"),
    "carriage returns alone": (b"a\tb\rc\td\r", "line 1, got 3: .* newline"),
    "an empty line": (b"a\tb\n\nc\td\n", "line 2, got an empty line"),
    "an empty text": (b"a\tb\na\t \n", "expected a text with at least one word or sign in .* line 2, got ' '"),
    "not utf-8": (b"a\tb\nc\t\xff\xfe\n", r"expected UTF-8 in .* line 2, got b'\\xff\\xfe"),
    "utf-16": ("a\tb\n".encode("utf-16"), "expected UTF-8 in .* line 1, .*save .* as UTF-8"),
    "utf-16 without its mark": ("a\tb\n".encode("utf-16-le"), "expected UTF-8 in .* line 1, got a zero byte"),
    "a zero byte": (b"a\tb\nc\td\0\n", "expected UTF-8 in .* line 2, got a zero byte"),
    "a long line": (b"a\tb\n" + b"x" * LINE + b"\ty\n", "expected at most 65,536 bytes in .* line 2"),
    "empty": (b"", "got an empty file"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_says_where(tmp_path, name):
    content, message = BROKEN[name]
    path = tmp_path / "mine.tsv"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        sw.data.load_pairs(path)


def test_a_broken_archive_and_too_many_lines(tmp_path, monkeypatch):
    path = tmp_path / "mine.tsv.gz"
    path.write_bytes(gzip.compress(b"a\tb\n" * 10_000)[:-20])
    with pytest.raises(DataError, match="expected a whole gzip file"):
        sw.data.load_pairs(path)
    path.write_bytes(gzip.compress(b"a\tb\n" * 10_000))
    monkeypatch.setattr(texts_module, "available_bytes", lambda: 4 * 2 * 4 * 256 * 100)
    with pytest.raises(DataError, match=r"expected at most 100 texts, .* line 101; .* --data.length"):
        sw.data.load_pairs(path)


@pytest.fixture
def multi30k(tmp_path):
    """Five sentences in three languages and three splits, some of the files as .gz."""
    place = tmp_path / "multi30k"
    place.mkdir()
    for split, count in (("train", 5), ("val", 3), ("test_2016_flickr", 2)):
        for language in ("en", "de", "fr"):
            text = "".join(f"{language} {split} {k}\n" for k in range(count))
            if language == "de":
                (place / f"{split}.de.gz").write_bytes(gzip.compress(text.encode()))
            else:
                (place / f"{split}.{language}").write_text(text)
    return tmp_path


def test_multi30k(multi30k, capsys):
    train = sw.data.load_pairs("multi30k", multi30k)
    assert (train.name, train.split, len(train)) == ("multi30k-en-de", "train", 5)
    row = train.second.values[2]
    assert row[row > 0].tolist() == Tokenizer().ids("de train 2").tolist()
    assert len(sw.data.load_pairs("multi30k", multi30k, split="test")) == 2
    val = sw.data.load_pairs("multi30k", multi30k, split="test", options={"test": "val", "second": "fr"})
    assert (val.name, val.split, len(val)) == ("multi30k-en-fr", "val", 3)
    assert len(sw.data.load_pairs(multi30k / "multi30k")) == 5, "by its path too"
    with pytest.raises(ValueError, match="expected two languages, got en twice"):
        sw.data.load_pairs("multi30k", multi30k, options={"second": "en"})
    (multi30k / "multi30k" / "val.fr").unlink()
    with pytest.raises(DataError, match=r"expected val.fr or val.fr.gz in .*, got neither"):
        sw.data.load_pairs("multi30k", multi30k, split="val", options={"second": "fr"})
    with pytest.raises(DataError, match="expected multi30k in"):
        sw.data.load_pairs("multi30k", multi30k / "elsewhere")
    main(["data", "check", "multi30k", "--root", str(multi30k)])
    assert "train: 5 pairs" in capsys.readouterr().out


def test_a_file_of_pairs_is_checked_from_the_command_line(tmp_path, capsys):
    path = tmp_path / "mine.tsv"
    path.write_text("a dog\tein Hund\na cat\teine Katze\n")
    main(["data", "check", str(path)])
    assert "2 pairs" in capsys.readouterr().out
    path.write_text("a dog\tein Hund\na cat\n")
    with pytest.raises(SystemExit, match="mine.tsv, line 2, got 1: 'a cat'"):
        main(["data", "check", str(path)])


def test_pairs_are_no_images_and_images_no_pairs(multi30k):
    with pytest.raises(ValueError, match="expected images, got PairSet.*load_pairs reads it"):
        sw.data.load("multi30k", multi30k)
    with pytest.raises(ValueError, match="expected pairs for --method pairs, got ImageSet"):
        sw.data.load_pairs("digits")


def test_sides_are_checked():
    ids, vectors = torch.tensor([[1, 4], [2, 0]], dtype=torch.int32), torch.randn(2, 3)
    images = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
    sides = Side(ids, 5), Side(vectors), Side(images)
    assert [side.kind for side in sides] == ["ids", "features", "images"]
    assert [side.shape for side in sides] == [[5], [3], [1, 8, 8]]
    one = PairSet("a", "train", *sides[:2]).select(torch.tensor([1]), split="test")
    assert (one.split, one.first.values.tolist(), one.second.values.tolist()) == (
        "test",
        [[2, 0]],
        [vectors[1].tolist()],
    )
    for values, vocabulary, message in (
        (ids, 4, "expected ids from 0 to 3, got 0 to 4"),
        (ids.long(), 5, "expected a side of pairs as ids int32"),
        (vectors.log(), 0, "expected finite features"),
    ):
        with pytest.raises(DataError, match=message):
            Side(values, vocabulary)
    with pytest.raises(DataError, match="expected as many rows on both sides.*got 2 and 1"):
        PairSet("a", "train", sides[0], Side(vectors[:1]))
    with pytest.raises(ValueError, match="expected vocabulary of at least 2, got 1"):
        Tokenizer(vocabulary=1)


@pytest.fixture
def photos(tmp_path):
    """Three photos of one colour each, of two sizes, and their captions."""
    folder = tmp_path / "photos"
    (folder / "deep").mkdir(parents=True)
    colours = {"red.png": (200, 0, 0), "deep/green.png": (0, 200, 0), "blue.png": (0, 0, 200)}
    for k, (name, colour) in enumerate(colours.items()):
        Image.new("RGB", (40 + k, 36), colour).save(folder / name)
    lines = [f"{name}\tall of it is {name[:-4]}\n" for name in colours]
    (folder / "captions.tsv").write_text("".join(lines))
    return folder


def test_images_and_their_captions(photos):
    found = sw.data.load_pairs(photos / "captions.tsv")
    assert repr(found) == "PairSet('photos', split='train', first=images 3x3x32x32, second=ids 3x34)"
    for image, colour in zip(found.first.values, ((200, 0, 0), (0, 200, 0), (0, 0, 200)), strict=True):
        assert image.flatten(1).unique(dim=1).flatten().tolist() == list(colour)
    row = found.second.values[1]
    assert row[row > 0].tolist() == Tokenizer().ids("all of it is deep/green").tolist()
    assert found.notes[0].startswith("32x32 pixels")
    small = sw.data.load_pairs(photos / "captions.tsv", options={"size": (8, 10), "vocabulary": 99})
    assert (small.first.shape, small.second.shape) == ([3, 8, 10], [99])


def test_several_captions_of_an_image(photos):
    assert sw.data.load_pairs(photos / "captions.tsv").labels is None, "plain pairs"
    with (photos / "captions.tsv").open("a") as file:
        file.write("deep/../red.png\tonce more\nblue.png\tthe sea\nred.png\tand again\n")
    found = sw.data.load_pairs(photos / "captions.tsv")
    assert repr(found) == "PairSet('photos', split='train', first=images 3x3x32x32, second=ids 6x34)", "stored once"
    assert (len(found), found.labels.tolist()) == (6, [0, 1, 2, 0, 2, 0])
    colours = torch.tensor([[200, 0, 0], [0, 200, 0], [0, 0, 200]])[[0, 1, 2, 0, 2, 0]]
    assert torch.equal(found.first.take(torch.arange(6))[:, :, 0, 0].long(), colours)
    row = found.second.values[4]
    assert row[row > 0].tolist() == Tokenizer().ids("the sea").tolist()
    some = found.select(torch.tensor([5, 4, 0]), split="test")
    assert (len(some.first.values), some.labels.tolist()) == (2, [0, 2, 0])
    assert torch.equal(some.first.take(torch.arange(3))[:, :, 0, 0].long(), colours[[5, 4, 0]])


def test_labels_and_rows_are_checked():
    side = Side(torch.randn(3, 2))
    for labels in (torch.zeros(2, dtype=torch.int64), torch.zeros(3), torch.zeros(3, 1, dtype=torch.int64)):
        with pytest.raises(DataError, match=r"expected labels int64 \(3,\), one for each pair, got"):
            PairSet("a", "train", side, side, labels=labels)
    for rows, message in (([0, 3], "expected rows from 0 to 2"), ([-1], "expected rows from 0"), ([0.0], "int64")):
        with pytest.raises(DataError, match=message):
            Side(side.values, rows=torch.tensor(rows))
    with pytest.raises(DataError, match="expected as many rows on both sides.*got 4 and 3"):
        PairSet("a", "train", Side(side.values, rows=torch.tensor([0, 1, 2, 2])), side)


def test_a_shuffled_side_keeps_its_sets():
    sets = torch.tensor([5, 2, 5, 5, 2, 9, 5, 2])
    values = torch.arange(8.0)[:, None]
    pairs = PairSet("a", "train", Side(values), Side(values[:4], rows=torch.arange(8) % 4), sets=sets)
    drawn = set()
    for seed in range(40):
        found = replace(pairs, second=Side(values)).shuffled(seed=seed)
        rows = found.second.values[:, 0].long()
        assert torch.equal(sets[rows], sets), "items stay in their set"
        assert sorted(rows.tolist()) == list(range(8))
        assert torch.equal(found.first.values, values)
        drawn.add(tuple(rows.tolist()))
        stored_once = pairs.shuffled(seed=seed).second.take(torch.arange(8))[:, 0].long()
        assert torch.equal(stored_once, rows % 4)
    assert len(drawn) > 20
    some = pairs.select(torch.tensor([7, 2]), split="test")
    assert some.sets.tolist() == [2, 5]
    with pytest.raises(DataError, match="expected labels or sets of pairs, got both"):
        replace(pairs, labels=sets)
    with pytest.raises(DataError, match=r"expected sets int64 \(8,\)"):
        replace(pairs, sets=sets[:3])
    with pytest.raises(ValueError, match="expected pairs with sets"):
        replace(pairs, sets=None).shuffled(seed=0)


def test_a_column_names_the_sets(tmp_path):
    path = tmp_path / "docs.tsv"
    path.write_text("english\tdocument\tgerman\ntwo dogs\tb\tzwei Hunde\na cat\ta\teine Katze\none\tb\teins\n")
    found = sw.data.load_pairs(path, options={"sets": "document"})
    assert found.sets.tolist() == [0, 1, 0]
    for side, texts in (
        (found.first, ("two dogs", "a cat", "one")),
        (found.second, ("zwei Hunde", "eine Katze", "eins")),
    ):
        for row, text in zip(side.values, texts, strict=True):
            assert row[row > 0].tolist() == Tokenizer().ids(text).tolist()
    for content, message in (
        (
            "a\tb\tc\nd\te\tf\n",
            r"expected the name 'document' of the column of sets in .*line 1, got \['a', 'b', 'c'\]",
        ),
        ("a\tb\tdocument\n", "expected a line for each pair below the header"),
        ("document\tb\tdocument\nd\te\td\n", "expected one column 'document' in .* line 1"),
        ("a\tb\tdocument\nd\te\tx\nf\tg\t \n", "expected the name of a set in .* line 3, got none"),
        ("a\tb\tdocument\nd\te\n", "expected 3 columns with a tab .* line 2, got 2"),
        ("a\tb\tdocument\nd\t \tf\n", "expected a text with at least one word or sign in .* line 2"),
        ("", "got an empty file"),
    ):
        path.write_text(content)
        with pytest.raises(DataError, match=message):
            sw.data.load_pairs(path, options={"sets": "document"})


def test_multi30k_in_groups(multi30k):
    train = sw.data.load_pairs("multi30k", multi30k, options={"group": 2})
    assert train.sets.tolist() == [0, 0, 1, 1, 2]
    assert sw.data.load_pairs("multi30k", multi30k).sets is None
    assert sw.data.load_pairs("multi30k", multi30k, split="test", options={"group": 2}).sets is None
    with pytest.raises(ValueError, match="expected group to be None or a positive integer, got -1"):
        sw.data.load_pairs("multi30k", multi30k, options={"group": -1})


def test_a_column_names_the_sets_of_images_and_captions(photos):
    path = photos / "captions.tsv"
    lines = ["b\tred.png\tit is red", "a\tdeep/green.png\ta wood", "b\tblue.png\tthe sea", "b\tred.png\tit is blood"]
    path.write_text("\n".join(["product\timage\tcaption", *lines]))
    found = sw.data.load_pairs(path, options={"sets": "product"})
    assert (found.sets.tolist(), found.labels) == ([0, 1, 0, 0], None)
    assert found.first.take(torch.arange(4))[:, :, 0, 0].argmax(1).tolist() == [0, 1, 2, 0]
    assert len(found.first.values) == 3, "stored once"
    row = found.second.values[2]
    assert row[row > 0].tolist() == Tokenizer().ids("the sea").tolist()
    for content, message in (
        ("red.png\tred\n", "expected 3 columns with a tab .* line 1, got 2"),
        ("image\tcaption\tset\nred.png\tred\t1\n", r"expected the name 'product' of the column of sets in .*line 1"),
        ("image\tcaption\tproduct\n", "expected a line for each pair below the header"),
        (
            "image\tcaption\tproduct\nred.png\tred\t1\n./red.png\tred\t2\n",
            "expected an image in one set, got 'red.png' in another one in .* line 3",
        ),
    ):
        path.write_text(content)
        with pytest.raises(DataError, match=message):
            sw.data.load_pairs(path, options={"sets": "product"})


@pytest.mark.parametrize("split", ["train", "test"])
def test_halves_of_images_are_pairs(split):
    whole = sw.data.load("digits", split=split)
    found = sw.data.load_pairs("halves", split=split, options={"group": 100})
    assert torch.equal(torch.cat([found.first.values, found.second.values], dim=3), whole.images)
    assert (found.name, found.split, found.first.mean, found.second.std) == (
        "digits-halves",
        split,
        whole.mean,
        whole.std,
    )
    assert sw.data.load_pairs("halves", split=split).sets is None
    if split == "test":
        assert found.sets is None
    else:
        assert found.sets.bincount().tolist() == [100] * 12 + [97]
        assert found.sets.tolist() == sorted(found.sets.tolist())


def test_halves_of_what_has_none(multi30k):
    for options, message in (
        ({"of": "multi30k"}, "expected the data set to halve to be one of .*digits.*, got 'multi30k'"),
        ({"of": "halves"}, "expected the data set to halve"),
        ({"group": -1}, "expected group to be None or a positive integer, got -1"),
    ):
        with pytest.raises(ValueError, match=message):
            sw.data.load_pairs("halves", multi30k, options=options)


def test_captions_that_are_not_right(photos):
    path = photos / "captions.tsv"
    (photos / "broken.png").write_bytes(b"no picture")
    for line, message in (
        ("no.png\tnot there", r"expected an image at .*no.png, as .* line 4 says, got no such file"),
        ("no.png\tnot there\nno.png\tagain\nnor.png\tthis", r"an image at .*no.png, .* line 4 .* 2 of 5 are missing"),
        ("../other.png\tout", "expected the path of an image below .* line 4, got '../other.png'"),
        ("/etc/other.png\tout", "expected the path of an image below .* line 4, got '/etc/other.png'"),
        ("broken.png\tbroken", r"expected whole images in .*, got 1 that cannot be read; .*\n  broken.png: "),
        ("red.png", "expected 2 columns"),
    ):
        text = path.read_text()
        path.write_text(f"{text}{line}\n")
        with pytest.raises(DataError, match=message):
            sw.data.load_pairs(path)
        path.write_text(text)
    (photos / "broken.png").unlink()
    with pytest.raises(ValueError, match=r"expected pairs for --method pairs, got ImageSet.* of a .tsv or .npy file"):
        sw.data.load_pairs(photos)


def test_two_files_of_features(tmp_path):
    numbers = np.random.default_rng(0).normal(size=(9000, 4))
    np.save(tmp_path / "a.npy", numbers)
    np.save(tmp_path / "b.npy", numbers[:, :2].astype(np.float16))
    found = sw.data.load_pairs(tmp_path / "a.npy", options={"second": "b.npy"})
    assert repr(found) == "PairSet('a', split='train', first=features 9000x4, second=features 9000x2)"
    assert torch.equal(found.first.values, torch.tensor(numbers, dtype=torch.float32))
    assert torch.equal(found.second.values, torch.from_numpy(numbers[:, :2].astype(np.float16).astype(np.float32)))


def test_two_files_of_features_are_checked_from_the_command_line(tmp_path, capsys):
    numbers = np.random.default_rng(0).standard_normal((7, 3)).astype(np.float32)
    np.save(tmp_path / "a.npy", numbers)
    np.save(tmp_path / "b.npy", numbers[:, :2])
    main(["data", "check", str(tmp_path / "a.npy"), "--second", "b.npy"])
    assert "train: 7 pairs" in capsys.readouterr().out
    np.save(tmp_path / "b.npy", numbers[:5])
    with pytest.raises(SystemExit, match=r"got 7 in a.npy and 5 in b.npy"):
        main(["data", "check", str(tmp_path / "a.npy"), "--second", "b.npy"])


def test_features_that_are_not_right(tmp_path, monkeypatch):
    good = np.zeros((6000, 2), dtype=np.float32)
    np.save(tmp_path / "a.npy", good)
    infinite = good.astype(np.float64)
    infinite[5000] = 1e300
    bad = {"objects": np.array([[object()]]), "flat": good[:, 0], "whole": good.astype(int), "infinite": infinite}
    for name, array in bad.items():
        np.save(tmp_path / f"{name}.npy", array)
    (tmp_path / "text.npy").write_text("no array")
    (tmp_path / "cut.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:999])
    np.save(tmp_path / "short.npy", good[:7])
    for second, message in (
        ("", "expected the name of a second .npy file beside a.npy, got ''; give --data.second"),
        ("../a.npy", "expected the name of a second .npy file beside a.npy"),
        ("none.npy", "got no such file"),
        ("text.npy", "expected a .npy file of numbers"),
        ("cut.npy", "expected a .npy file of numbers"),
        ("objects.npy", "expected a .npy file of numbers"),
        ("flat.npy", r"got float32 of shape \(6000,\)"),
        ("whole.npy", r"got int64 of shape \(6000, 2\)"),
        ("infinite.npy", "expected finite numbers that float32 can hold in .*, got others in row 5000"),
        ("short.npy", "expected as many rows in both files.* got 6,000 in a.npy and 7 in short.npy"),
    ):
        with pytest.raises(DataError, match=message):
            sw.data.load_pairs(tmp_path / "a.npy", options={"second": second})
    monkeypatch.setattr("setwise.data.formats.feature_pairs.available_bytes", lambda: 10_000)
    with pytest.raises(DataError, match="expected features that take at most 2,500 bytes"):
        sw.data.load_pairs(tmp_path / "a.npy", options={"second": "a.npy"})
