"""CUHK-03 from a .mat of the official form and from a folder of pictures."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

import setwise as sw
from setwise.cli import main
from setwise.data import DataError
from setwise.data.formats import cuhk03


def picture(rng):
    return rng.integers(0, 256, (rng.integers(20, 60), rng.integers(10, 30), 3), dtype=np.uint8)


@pytest.fixture
def people():
    """Five camera pairs of 5, 4, 3, 2, 0 identities; some shots, some views and a whole identity are missing."""

    def make(seed):
        rng = np.random.default_rng(seed)
        pairs = [[[picture(rng) for _ in range(10)] for _ in range(n)] for n in (5, 4, 3, 2, 0)]
        pairs[0][1][0] = None  # the first shot of view A
        pairs[0][2][7:] = [None] * 3  # view B has two shots
        pairs[1][0][:5] = [None] * 5  # no view A
        pairs[1][3][5:] = [None] * 5  # no view B
        pairs[2][2] = [None] * 10
        return pairs

    return make


def resized(image, size=(128, 64)):
    made = Image.fromarray(image).resize(size[::-1], Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(made)).permute(2, 0, 1)


def truth(pairs):
    """Identity -> the images of its two views, for those that have both."""
    out = {}
    for p, identities in enumerate(pairs):
        for i, shots in enumerate(identities):
            views = [[x for x in shots[:5] if x is not None], [x for x in shots[5:] if x is not None]]
            if all(views):
                out[f"{p + 1}_{i + 1:04d}"] = views
    return out


def assert_equal(found, expected, size=(128, 64)):
    for k, name in enumerate(found.identities):
        for shots, view in zip((found.shots_a[k], found.shots_b[k]), expected[name], strict=True):
            rows = shots[shots >= 0]
            assert shots.tolist()[len(rows) :] == [-1] * (len(shots) - len(rows)), "padding comes last"
            assert len(rows) == len(view)
            for row, image in zip(rows, view, strict=True):
                assert torch.equal(found.images[row], resized(image, size))


def test_both_kinds_of_boxes_of_the_official_file(people, write_mat, tmp_path, monkeypatch):
    boxes = {"labeled": people(0), "detected": people(1)}
    write_mat(tmp_path / "cuhk-03.mat", boxes)
    for kind, pairs in boxes.items():
        expected = truth(pairs)
        found = sw.data.load_matched("cuhk03", tmp_path, split="all", boxes=kind)
        assert set(found.identities) == set(expected)
        assert len(found) == 11  # 14, less one without A, one without B, one without anything
        assert found.shots_a.shape == found.shots_b.shape == (11, 5)
        assert_equal(found, expected)
        assert len(found.images) == sum(len(view) for views in expected.values() for view in views)
        assert torch.equal(found.first_a[1], resized(pairs[0][1][1]))  # its first shot is missing
    assert len(list(tmp_path.glob(".decoded/*/images.npy"))) == 2
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "run", None)  # they are kept: decoding would fail
        assert torch.equal(sw.data.load_matched("cuhk03", tmp_path, split="all", boxes=kind).images, found.images)
    write_mat(tmp_path / "cuhk-03.mat", {"labeled": people(3)})
    assert_equal(sw.data.load_matched("cuhk03", tmp_path, split="all"), truth(people(3)))


def test_the_split_is_by_identity(people, write_mat, tmp_path):
    pairs = people(0)
    mat = tmp_path / "some.mat"
    write_mat(mat, {"labeled": pairs})
    parts = {split: sw.data.load_matched(mat, tmp_path, split=split, seed=4) for split in ("train", "val", "test")}
    assert [len(part) for part in parts.values()] == [8, 2, 1]  # round(7.7), round(1.65), the rest
    assert sorted(name for part in parts.values() for name in part.identities) == sorted(truth(pairs))
    for split, part in parts.items():
        assert_equal(part, truth(pairs))
        labelled = sw.data.load(mat, tmp_path, split=split, seed=4)
        assert labelled.classes == part.identities
        assert torch.equal(labelled.images, part.images)
        for k in range(len(part)):
            shots = torch.cat([part.shots_a[k], part.shots_b[k]])
            assert sorted(shots[shots >= 0].tolist()) == (labelled.labels == k).nonzero().flatten().tolist()
    assert sw.data.load_matched(mat, tmp_path, seed=5).identities != parts["train"].identities


def test_a_folder_of_pictures(people, tmp_path):
    pairs, folder = people(2), tmp_path / "pictures"
    folder.mkdir()
    for p, identities in enumerate(pairs):
        for i, shots in enumerate(identities):
            for s, image in enumerate(shots):
                if image is not None:
                    Image.fromarray(image).save(folder / f"{p + 1}_{i + 1:04d}_{s:02d}.png")
    (folder / "README.txt").write_text("")
    (folder / "._1_0001_00.png").write_bytes(b"what macOS leaves beside a picture")
    found = sw.data.load_matched(folder, tmp_path / "root", split="all", size=(32, 16))
    assert set(found.identities) == set(truth(pairs))
    assert_equal(found, truth(pairs), size=(32, 16))
    Image.fromarray(pairs[0][0][0]).save(folder / "1_0001_00.jpg")
    with pytest.raises(DataError, match="expected one picture a shot in .*, got some twice"):
        sw.data.load_matched(folder, tmp_path / "root", split="all")


def test_pictures_numbered_otherwise_are_refused(tmp_path):
    # As torchreid extracts them: PAIR_IDENTITY_VIEW_SHOT from 1. Read as shots, 01 to 05 would be of two cameras.
    for name in ("1_001_1_01", "1_001_1_05", "1_001_2_06", "1_001_2_10"):
        Image.new("RGB", (4, 8)).save(tmp_path / f"{name}.png")
    with pytest.raises(DataError, match=r"with shots 00 to 09 in .*, got 1_001_2_10.png; rename all of them so that"):
        sw.data.load_matched(tmp_path, tmp_path / "root", split="all")


def test_check_tells_how_many_identities_there_are(people, write_mat, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("SETWISE_DATA", str(tmp_path / "default"))
    root = tmp_path / "root"
    root.mkdir()
    (root / ".decoded").write_text("a root that cannot be written")
    write_mat(root / "cuhk-03.mat", {"labeled": people(0)})
    main(["data", "check", "cuhk03", "--root", str(root)])
    out = capsys.readouterr().out
    # 14, less one without a picture; two have one camera only.
    assert "13 identities, 2 of them left out because only one camera saw them; the real set has 1,467\n" in out
    assert "8 classes" in out
    (kept,) = (tmp_path / "default" / ".decoded").glob("*/images.npy")
    assert kept.parent.name.startswith("cuhk03-labeled-128x64-")


def small():
    return [[[np.full((4, 3, 3), p, np.uint8)] * 10] for p in range(5)]


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        ({"detected": small()}, "expected a variable 'labeled', got .*detected"),
        ({"labeled": small()[:4]}, "expected 5 camera pairs in 'labeled', got 4"),
        ({"labeled": [[[None] * 10]] * 5}, "got empty cells only"),
        ({"labeled": [*small()[:4], [[np.zeros((4, 3, 4), np.uint8)] * 10]]}, "identity 1 in camera pair 5 .* uint8"),
        ({"labeled": [*small()[:4], [[np.zeros((4, 3, 3), np.float64)] * 10]]}, "uint8 of shape .* got float64"),
        ({"labeled": [*small()[:4], [[np.zeros((5000, 3, 3), np.uint8)] * 10]]}, "uint8 of shape"),
        ({"labeled": [[[*shots[0][:5], *[None] * 5]] for shots in small()]}, "seen by both cameras, got none among 5"),
    ],
)  # fmt: skip
def test_files_of_another_form(write_mat, tmp_path, sets, said):
    write_mat(tmp_path / "cuhk-03.mat", sets)
    with pytest.raises(DataError, match=said):
        sw.data.load_matched("cuhk03", tmp_path)


def test_references_may_not_leave_the_file(write_mat, tmp_path):
    import h5py

    mat, secret = tmp_path / "cuhk-03.mat", tmp_path / "secret"
    secret.write_bytes(b"s" * 36)
    write_mat(mat, {"labeled": small()})
    with h5py.File(mat, "r+") as file:
        out = file.create_dataset("out", (3, 3, 4), np.uint8, external=[(str(secret), 0, 36)])
        pair = file[file["labeled"][0, 0]]
        cell = pair[()]
        cell[0, 0] = out.ref
        pair[...] = cell
    with pytest.raises(DataError, match="image 1 of identity 1 .* got a pointer to another"):
        sw.data.load_matched(mat, tmp_path)
    with h5py.File(tmp_path / "b.mat", "w") as file:
        file["labeled"] = h5py.ExternalLink(str(mat), "labeled")
    with pytest.raises(DataError, match="expected a variable 'labeled'"):
        sw.data.load_matched(tmp_path / "b.mat", tmp_path)


def test_a_crash_or_a_hang_of_the_library_is_an_error_here(write_mat, tmp_path, monkeypatch):
    mat = tmp_path / "cuhk-03.mat"
    write_mat(mat, {"labeled": small()})
    script = tmp_path / "script.py"
    monkeypatch.setattr(cuhk03.cuhk03_mat, "__file__", str(script))
    script.write_text("import os\nos.kill(os.getpid(), 11)")
    with pytest.raises(DataError, match=r"cuhk-03.mat .*the HDF5 library ended with status -11; copy or download"):
        sw.data.load_matched(mat, tmp_path)
    monkeypatch.setattr(cuhk03, "CONVERSION_LIMIT", 0.3)
    script.write_text("import time\ntime.sleep(60)")
    with pytest.raises(DataError, match=r"no end after 0.3 s"):
        sw.data.load_matched(mat, tmp_path)
    assert not list(tmp_path.glob(".decoded/*/*"))


def test_the_converter_imports_nothing_of_the_package():
    code = "import runpy, sys; runpy.run_path(sys.argv[1]); assert not {'torch', 'setwise'} & {*sys.modules}"
    subprocess.run([sys.executable, "-P", "-c", code, cuhk03.cuhk03_mat.__file__], check=True)


def test_options_and_missing_packages(write_mat, tmp_path, monkeypatch):
    write_mat(tmp_path / "cuhk-03.mat", {"labeled": small()})
    with pytest.raises(ValueError, match="expected boxes, one of labeled, detected, got 'drawn'"):
        sw.data.load_matched("cuhk03", tmp_path, boxes="drawn")
    with monkeypatch.context() as patch:
        patch.setattr(cuhk03, "find_spec", lambda name: None)
        with pytest.raises(ModuleNotFoundError, match=r"pip install h5py"):
            sw.data.load_matched("cuhk03", tmp_path)
    with pytest.raises(ValueError, match="expected instances=None for cuhk03"):
        sw.data.load_matched("cuhk03", tmp_path, instances=5)
