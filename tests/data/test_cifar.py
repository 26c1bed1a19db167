"""CIFAR in both layouts, against the arrays that were written; damaged files are named."""

import hashlib
import os
import pickle
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import setwise as sw
from setwise.data import DataError
from setwise.data.formats import cifar, pickles
from setwise.data.formats.pickles import read_batch


@pytest.mark.parametrize("layout", ["binary", "python"])
@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_both_layouts_give_what_was_written(small_cifar, tmp_path, name, layout):
    made = small_cifar(name)
    folder = made.write(tmp_path / name, layout)  # found below root/NAME, below root, and by its path
    for split in ("train", "test"):
        for place in ((name, tmp_path), (name, tmp_path / name), (folder,), (str(tmp_path / name),)):
            found = sw.data.load(*place, split=split)
            assert (found.name, found.split) == (name, split)
            assert np.array_equal(found.images.numpy().reshape(-1, 3072), made.images[split])
            assert found.images.shape[1:] == (3, 32, 32)
            assert found.labels.tolist() == made.labels[split].tolist()
    assert len(found.classes) == len(set(found.classes)) == int(name.removeprefix("cifar"))
    assert found.mean[0] in (0.491, 0.507)


def test_what_the_makers_published():
    for spec in (cifar.CIFAR10, cifar.CIFAR100):
        assert [len(spec.files[split]) * spec.records[split] for split in cifar.SPLITS] == [50_000, 10_000]
        assert all(len(spec.digests[name]) == 32 for split in cifar.SPLITS for name in spec.files[split])
        assert list(spec.classes) == sorted(spec.classes)
    assert (cifar.CLASSES_10[3], cifar.CLASSES_100[99]) == ("cat", "worm")


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


# --- the reader of pickles -----------------------------------------------------------------------------------------


def md5(raw):
    return hashlib.md5(raw).hexdigest()


def test_the_reader_agrees_with_pickle_on_honest_files(tmp_path, make):
    pixels = np.random.default_rng(0).integers(0, 256, (7, 40), dtype=np.uint8)
    batch = {"batch_label": "one", "labels": [1, 300, 70000, -5], "data": pixels, "filenames": ["a" * 300, "b"]}
    path = tmp_path / "batch"
    for value in (pixels, np.asfortranarray(pixels)):
        raw = make.python2_pickle(batch | {"data": value})
        path.write_bytes(raw)
        found = read_batch(path, md5(raw))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # newer numpy does not like the old form of a dtype
            truth = pickle.loads(raw, encoding="bytes")
        assert np.array_equal(found[b"data"], pixels)
        assert np.array_equal(found.pop(b"data"), truth.pop(b"data"))
        assert found == truth


class Bad:
    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call[0], self.call[1:]


@pytest.mark.parametrize("protocol", range(6))
def test_nothing_is_ever_called(tmp_path, protocol):
    harm, path = tmp_path / "harm", tmp_path / "batch"
    for bad in (Bad(os.system, f"touch {harm}"), Bad(eval, f"open({str(harm)!r}, 'w')"), Bad(Path.touch, harm)):
        raw = pickle.dumps({"labels": [1], "data": bad}, protocol=protocol)
        path.write_bytes(raw)
        with pytest.raises(DataError, match="batch as CIFAR's makers published it"):
            read_batch(path, "0" * 32)
        with pytest.raises(DataError, match="expected only the names of an array"):  # even with their MD5
            read_batch(path, md5(raw))
        assert not harm.exists()
    pickle.loads(raw)
    assert harm.exists(), "the file was harmful to those who load it"


@pytest.mark.parametrize("fetched", [False, True])
def test_a_python_batch_that_is_not_the_makers_is_not_parsed(small_cifar, tmp_path, monkeypatch, fetched):
    path = small_cifar().write(tmp_path / "made", "python") / "test_batch"
    raw = bytearray(path.read_bytes())
    raw[-20] ^= 1
    path.write_bytes(raw)
    monkeypatch.setattr(pickles, "_Reader", None)  # parsing would be another error
    monkeypatch.setitem(cifar.SPECS["cifar10"].files, "train", ())
    call = partial(sw.data.fetch, "cifar10", tmp_path / "root") if fetched else partial(sw.data.load, split="test")
    with pytest.raises(DataError, match="test_batch as CIFAR's makers published it.*your-data#cifar"):
        call(tmp_path / "made")


def test_batches_that_are_too_large_and_arrays_of_other_types_are_refused(tmp_path, make):
    raw = make.python2_pickle({"data": np.zeros((2, 8), np.uint8)}).replace(b"u1", b"O8")
    (tmp_path / "batch").write_bytes(raw)
    with (tmp_path / "large").open("wb") as file:
        file.truncate(2**40)  # takes no space
    with pytest.raises(DataError, match="large of at most 160,000,000 bytes"):
        read_batch(tmp_path / "large", "")
    with pytest.raises(DataError, match="expected arrays of uint8 in a CIFAR batch, got the dtype b'O8'"):
        read_batch(tmp_path / "batch", md5(raw))
