"""Broken and hostile files in folders of one's own: all of them named at once, or left out."""

import os
import subprocess
import sys

import pytest
from PIL import Image

import setwise as sw
from setwise.cli import main
from setwise.data import DataError
from setwise.data.formats.listing import one_line
from setwise.terminal import visible

BROKEN = {"a/cut.jpg", "a/empty.gif", "b/text.png", "b/\x1b[31m\n.webp"}


@pytest.fixture
def photos(tmp_path):
    """Six whole images of two classes, and four broken ones."""
    place = tmp_path / "photos"
    for name in ("a", "b"):
        (place / name).mkdir(parents=True)
        for k in range(3):
            Image.effect_noise((40 + k, 40), 50).save(place / name / f"{k}.png")
    whole = tmp_path / "whole.jpg"
    Image.effect_noise((64, 64), 50).save(whole)
    (place / "a" / "cut.jpg").write_bytes(whole.read_bytes()[:1000])
    (place / "a" / "empty.gif").touch()
    (place / "b" / "text.png").write_text("no image")
    (place / "b" / "\x1b[31m\n.webp").write_bytes(b"RIFF\0\0\0\0WEBP")
    return place


def test_all_broken_files_are_listed_at_once(photos):
    with pytest.raises(DataError, match="got 4 that cannot be read") as caught:
        sw.data.load(photos)
    lines = str(caught.value).splitlines()[1:]
    assert {line.strip().split(": ")[0].replace("\\n", "\n") for line in lines} == BROKEN
    assert all(line.strip().split(": ", 1)[1] for line in lines)
    assert str(photos) not in "".join(lines)


def test_broken_files_can_be_left_out(photos, tmp_path, capsys):
    found = sw.data.load(photos, options={"skip_broken": True})
    assert found.paths == tuple(f"{name}/{k}.png" for name in "ab" for k in range(3))
    assert found.labels.tolist() == [0, 0, 0, 1, 1, 1]
    run = ["pretrain", str(photos), "--skip-broken", "--epochs", "1", "--batch", "4", "--no-evaluate"]
    main([*run, "--device", "cpu", "--out", str(tmp_path / "run")])
    shown = capsys.readouterr().out
    assert "a/cut.jpg: " in shown
    assert "\x1b" not in shown
    run = sw.load_run(tmp_path / "run")
    assert run.recipe.data.options["skip_broken"] is True
    assert run.record["data"]["train"] == 6


def test_nothing_whole_is_refused_even_then(photos):
    for path in photos.glob("*/?.png"):
        path.write_bytes(b"")
    with pytest.raises(DataError, match="got 10 that cannot be read; none is left"):
        sw.data.load(photos, options={"skip_broken": True})


def test_links_and_pipes(photos, tmp_path):
    for path in map(photos.joinpath, BROKEN):
        path.unlink()
    outside = tmp_path / "outside"
    (outside / "deep").mkdir(parents=True)
    Image.new("RGB", (9, 9)).save(outside / "secret.png")
    (photos / "a" / "out.png").symlink_to(outside / "secret.png")
    (photos / "a" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    (photos / "a" / "in.png").symlink_to("0.png")  # stays inside: read
    (photos / "c").symlink_to(outside)
    (photos / "b" / "up").symlink_to(photos)
    os.mkfifo(photos / "b" / "pipe.png")
    with pytest.raises(DataError, match="got 5 that cannot be read") as caught:
        sw.data.load(photos)
    for name in ("a/out.png", "a/gone.png", "b/pipe.png", "b/up", "c"):
        assert f"  {name}: " in str(caught.value)
    found = sw.data.load(photos, options={"skip_broken": True})
    assert len(found) == 7
    assert "a/in.png" in found.paths
    followed = sw.data.load(photos, options={"skip_broken": True, "follow_links": True})
    assert set(followed.paths) - set(found.paths) == {"a/out.png", "c/secret.png"}  # and no endless way up


def test_a_survey_says_it_beforehand(photos, capsys):
    (photos / "b" / "copy.png").write_bytes((photos / "a" / "0.png").read_bytes())
    Image.new("RGB", (50, 60)).save(photos / "b" / "wrong.png", "BMP")
    (photos / "notes.txt").write_text("")
    found = sw.data.survey(photos)
    assert {path for path, _ in found.broken} == BROKEN
    assert found.formats == {"PNG": 7, "BMP": 1}
    assert found.sizes == {(40, 40): 3, (40, 41): 2, (40, 42): 2, (60, 50): 1}
    assert found.duplicates == [["a/0.png", "b/copy.png"]]
    assert found.splits["train"].classes == ("a", "b")
    assert found.size == sw.data.load(photos, options={"skip_broken": True}).images.shape[2:] == (32, 32)
    with pytest.raises(SystemExit) as ended:
        main(["data", "check", str(photos)])
    assert ended.value.code == 1
    shown = capsys.readouterr().out
    assert all(f"broken: {visible(one_line(name))}: " in shown for name in BROKEN)
    assert "\x1b" not in shown
    for name in BROKEN:
        (photos / name).unlink()
    main(["data", "check", str(photos)])  # ends well
    assert "1 .txt" in capsys.readouterr().out


def test_memory_stays_within_its_limit(tmp_path):
    """A small file of 64 million pixels takes no more than they do, once."""
    pytest.importorskip("resource")
    Image.new("1", (8000, 8000)).save(tmp_path / "large.png")
    Image.new("RGB", (64, 64)).save(tmp_path / "small.png")
    code = f"""
import resource, setwise as sw
sw.data.load("digits")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert sw.data.load({str(tmp_path)!r}).images.shape == (2, 3, 64, 64)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 5 * 64 + 32  # Pillow keeps four bytes a pixel beside the one of black and white
