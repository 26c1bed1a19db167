"""CIFAR in both layouts, against the arrays that were written; damaged files are named."""

import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import setwise as sw
from setwise.data import cifar
from setwise.data.errors import DataError
from setwise.data.pickles import read_batch


@pytest.mark.parametrize("layout", ["binary", "python"])
@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_both_layouts_give_what_was_written(small_cifar, tmp_path, name, layout):
    made = small_cifar(name)
    folder = made.write(tmp_path, layout)
    for split in ("train", "test"):
        for found in (sw.data.load(name, tmp_path, split=split), sw.data.load(folder, split=split)):
            assert (found.name, found.split) == (name, split)
            assert np.array_equal(found.images.numpy().reshape(-1, 3072), made.images[split])
            assert found.images.shape[1:] == (3, 32, 32)
            assert found.labels.tolist() == made.labels[split].tolist()
    assert len(found.classes) == len(set(found.classes)) == int(name.removeprefix("cifar"))
    assert found.mean[0] in (0.491, 0.507)


def test_names_of_classes():
    assert cifar.CLASSES_10[3] == "cat"
    assert list(cifar.CLASSES_100) == sorted(cifar.CLASSES_100)
    assert cifar.CLASSES_100[0] == "apple"
    assert cifar.CLASSES_100[99] == "worm"


def test_the_makers_numbers_of_images():
    for spec in (cifar.CIFAR10, cifar.CIFAR100):
        assert [len(spec.files[split]) * spec.records[split] for split in cifar.SPLITS] == [50_000, 10_000]


def test_the_set_is_found_in_a_folder_of_its_name(small_cifar, tmp_path):
    small_cifar().write(tmp_path / "cifar10", "python")
    assert len(sw.data.load("cifar10", tmp_path)) == 60
    assert len(sw.data.load("cifar10", tmp_path / "cifar10")) == 60
    assert len(sw.data.load(str(tmp_path / "cifar10"))) == 60


def test_the_default_root_is_the_environments(small_cifar, tmp_path, monkeypatch):
    small_cifar().write(tmp_path, "binary")
    monkeypatch.setenv("SETWISE_DATA", str(tmp_path))
    assert len(sw.data.load("cifar10")) == 60
    monkeypatch.setenv("SETWISE_DATA", str(tmp_path / "elsewhere"))
    with pytest.raises(DataError, match=r"elsewhere/cifar10, got none; run `setwise data fetch cifar10`, or say where"):
        sw.data.load("cifar10")
    root = tmp_path / "my data"
    run = f"run `setwise data fetch cifar10 --root '{root}'`"
    with pytest.raises(DataError, match=rf"{run}, or say where it is, by --root \(root= in Python\) or by its path"):
        sw.data.load("cifar10", root)
    assert sw.data.check("cifar10", root).problems == [f"expected cifar10 in {root}, got none; {run}"]


def test_damaged_binary_files_are_named(small_cifar, tmp_path):
    folder = small_cifar().write(tmp_path, "binary")
    path = folder / "data_batch_3.bin"
    whole = path.read_bytes()
    path.write_bytes(whole[:-3073])  # at the end of a record: only the count tells
    with pytest.raises(DataError, match=r"data_batch_3.bin of 36,876 bytes.*got 33,803; it is damaged: fetch it again"):
        sw.data.load("cifar10", tmp_path)
    path.write_bytes(b"\x0a" + whole[1:])
    with pytest.raises(DataError, match="expected labels below 10 in .*data_batch_3.bin"):
        sw.data.load("cifar10", tmp_path)
    path.unlink()
    with pytest.raises(DataError, match="data_batch_3.bin, got no such file"):
        sw.data.load("cifar10", tmp_path)
    assert len(sw.data.load("cifar10", tmp_path, split="test")) == 12


def test_damaged_python_files_are_named(small_cifar, tmp_path, make):
    made = small_cifar()
    path = made.write(tmp_path, "python") / "test_batch"
    whole = path.read_bytes()
    for cut in (0, 1, 50, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(DataError, match="test_batch.*fetch it again"):
            sw.data.load("cifar10", tmp_path, split="test")
    good = {"labels": made.labels["test"].tolist(), "data": made.images["test"]}
    for change, said in (
        ({"labels": good["labels"][:-1]}, "expected 12 integer 'labels'"),
        ({"labels": [300, *good["labels"][1:]]}, "expected 12 integer 'labels'"),
        ({"labels": ["3", *good["labels"][1:]]}, "expected 12 integer 'labels'"),
        ({"labels": [10, *good["labels"][1:]]}, "expected labels below 10"),
        ({"data": good["data"][:-1]}, r"expected 'data' of shape \(12, 3072\) in .*, got \(11, 3072\)"),
        ({"data": "none"}, r"expected 'data' of shape \(12, 3072\) in .*, got str"),
    ):
        path.write_bytes(make.python2_pickle(good | change))
        with pytest.raises(DataError, match=said):
            sw.data.load("cifar10", tmp_path, split="test")
    path.write_bytes(make.python2_pickle(good))
    assert torch.equal(sw.data.load("cifar10", tmp_path, split="test").labels, torch.tensor(good["labels"]))
    path.unlink()
    with pytest.raises(DataError, match="test_batch, got no such file; it is damaged: fetch it again"):
        sw.data.load("cifar10", tmp_path, split="test")


# --- the reader of pickles -----------------------------------------------------------------------------------------


def test_the_reader_agrees_with_pickle_on_honest_files(tmp_path, make):
    pixels = np.random.default_rng(0).integers(0, 256, (7, 40), dtype=np.uint8)
    batch = {"batch_label": "one", "labels": [1, 300, 70000, -5], "data": pixels, "filenames": ["a" * 300, "b"]}
    path = tmp_path / "batch"
    for value in (pixels, np.asfortranarray(pixels)):
        path.write_bytes(make.python2_pickle(batch | {"data": value}))
        found = read_batch(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # newer numpy does not like the old form of a dtype
            truth = pickle.loads(path.read_bytes(), encoding="latin1")
        assert np.array_equal(found.pop("data"), truth.pop("data"))
        assert found == truth
        assert np.array_equal(read_batch(path)["data"], pixels)


@pytest.mark.parametrize("protocol", [3, 4])
def test_todays_pickles_of_the_same_dictionary_are_read(tmp_path, protocol):
    pixels = np.arange(24, dtype=np.uint8).reshape(4, 6)
    (tmp_path / "batch").write_bytes(pickle.dumps({b"data": pixels, b"labels": [1, 2]}, protocol=protocol))
    found = read_batch(tmp_path / "batch")
    assert np.array_equal(found["data"], pixels)
    assert found["labels"] == [1, 2]


class Bad:
    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call[0], self.call[1:]


@pytest.mark.parametrize("protocol", range(6))
def test_nothing_is_ever_called(tmp_path, protocol):
    import os

    harm = tmp_path / "harm"
    for bad in (Bad(os.system, f"touch {harm}"), Bad(eval, f"open({str(harm)!r}, 'w')"), Bad(Path.touch, harm)):
        path = tmp_path / "batch"
        path.write_bytes(pickle.dumps({"labels": [1], "data": bad}, protocol=protocol))
        with pytest.raises(
            DataError, match="batch to be a python batch as CIFAR's makers wrote it, got the (name|instr)"
        ):
            read_batch(path)
        assert not harm.exists()
    pickle.loads(path.read_bytes())
    assert harm.exists(), "the file was harmful to those who load it"


def test_a_file_that_is_too_large_is_not_read(tmp_path, monkeypatch):
    with (tmp_path / "batch").open("wb") as file:
        file.truncate(2**40)  # takes no space
    with pytest.raises(DataError, match="this is no CIFAR batch"):
        read_batch(tmp_path / "batch")


RECONSTRUCT = b"cnumpy.core.multiarray\n_reconstruct\n"


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (b"\x80\x02cnumpy\nload\n.", "the name 'numpy load'"),
        (b"\x80\x02cnumpy.core.multiarray\nfromfile\n.", "the name"),
        (b"\x80\x02" + RECONSTRUCT + b"cnumpy\ndtype\nK\x00\x85U\x01b\x87R.", "a call of numpy's reconstruct"),
        (b"\x80\x02cnumpy\nndarray\n(tR.", "a call of numpy's ndarray"),
        (b"\x80\x02}U\x01aK\x01sK\x02.", "2 objects|StackUnderflow|not empty"),
        (b"\x80\x02]r\xff\xff\xff\xff.", "to hold a dictionary, got list"),  # 64 GiB of memo in pickle.Unpickler
        (b"\x80\x02K\x01K\x02s.", "a int where a dict belongs|got"),
        (b"\x80\x02]K\x01K\x02s.", "a list where a dict belongs"),
        (b"\x80\x02}K\x01K\x02s.", "a key of type int"),
        (b"\x80\x02u.", "a container without a beginning"),
        (b"\x80\x02h\x05.", "got 5"),
        (b"\x80\x02T\xff\xff\xff\x7fabc.", "got"),
        (b"\x80\x02" + RECONSTRUCT + b"cnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01J\xff\xff\xff\x7f\x85"
         b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R\x89U\x01xtb.", r"an array of shape \(2147483647,\) in 1 bytes"),
        (b"\x80\x02" + RECONSTRUCT + b"cnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01K\x01\x85"
         b"cnumpy\ndtype\nU\x02O8K\x00K\x01\x87R\x89U\x08xxxxxxxxtb.", "an array of dtype 'O8', not uint8"),
    ],
)  # fmt: skip
def test_programs_that_no_batch_contains(tmp_path, program, said):
    (tmp_path / "batch").write_bytes(program)
    with pytest.raises(DataError, match=said):
        read_batch(tmp_path / "batch")
