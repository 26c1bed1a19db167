"""Walks through folders of images: what a process finds ahead is what this process would find."""

import os
import sys
from contextlib import contextmanager

import pytest

from setwise import walking
from setwise.cli import main, pretrain
from setwise.walking import ahead, walk

NAMES = [
    "a/1.jpg",
    "a/deep/2.PNG",
    "a-b/3.gif",
    "b.jpg",
    "\udcff/4.jpg",
    "ü/5.webp",
    "a/notes.txt",
    "README",
    ".h/6.jpg",
]


@pytest.fixture
def photos(tmp_path):
    top = tmp_path / "photos"
    for k, name in enumerate(NAMES):
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * k)
        os.utime(path, ns=(0, 10**18 + k))
    (tmp_path / "out.jpg").write_bytes(b"")
    for link, target in (("in.jpg", "a/1.jpg"), ("out.jpg", "../out.jpg"), ("no.jpg", "nowhere"), ("up", ".")):
        (top / link).symlink_to(target)
    (tmp_path / "photos-2").mkdir()  # begins like the folder, and is another
    (tmp_path / "photos-2" / "7.jpg").write_bytes(b"")
    (top / "other.jpg").symlink_to("../photos-2/7.jpg")
    return top


def below(top, paths):
    return [os.path.relpath(path, top) for path in paths]


def test_a_walk_by_hand(photos):
    found = walk(photos, photos)
    expected = ["a/1.jpg", "a/deep/2.PNG", "a-b/3.gif", "b.jpg", "in.jpg", "ü/5.webp", "\udcff/4.jpg"]
    assert below(photos, found.paths) == expected
    assert below(photos, found.places) == ["a", "a/deep", "a-b", ".", ".", "ü", "\udcff"]
    places = [NAMES.index("a/1.jpg" if name == "in.jpg" else name) for name in expected]
    assert found.stats == [(k, 10**18 + k) for k in places]
    assert found.others == {".txt": 1, "(no ending)": 1}
    why = dict(
        zip(below(photos, [path for path, _ in found.unusable]), (why for _, why in found.unusable), strict=True)
    )
    assert sorted(why) == ["no.jpg", "other.jpg", "out.jpg", "up"]
    assert "out of the folder" in why["other.jpg"]
    followed = walk(photos, photos, follow_links=True)
    assert set(below(photos, followed.paths)) == {*expected, "other.jpg", "out.jpg"}
    assert "that it lies in" in dict(followed.unusable)[str(photos / "up")]


@pytest.mark.parametrize("splits", [False, True])
def test_what_a_process_finds_ahead_is_the_same_and_is_taken_once(photos, splits):
    places = [photos]
    if splits:
        (photos / "train").mkdir()
        places = [(photos / name).rename(photos / "train" / name) for name in ("a", "ü")]
    expected = [walk(place, photos) for place in places]
    assert all(one.paths for one in expected)
    with ahead(str(photos)):
        (process, _), *_ = walking._begun.values()
        assert process.wait() == 0
        first = expected[0].paths[0]
        os.unlink(first)  # which the process has seen
        assert [walk(place, photos) for place in places] == expected
        assert first not in walk(places[0], photos).paths
    with ahead(str(photos)):
        pass
    os.unlink(expected[-1].paths[-1])
    assert expected[-1].paths[-1] not in walk(places[-1], photos).paths  # nothing is left of a walk that nobody took


def test_links_are_followed_only_where_they_are_to_be(photos):
    expected = walk(photos, photos, follow_links=True)
    with ahead(str(photos)):
        assert walk(photos, photos, follow_links=True) == expected


@pytest.mark.parametrize("program", ["nothing-of-that-name", "false"])
def test_without_the_process_the_walk_is_taken_here(photos, program, monkeypatch):
    expected = walk(photos, photos)
    monkeypatch.setattr(sys, "executable", program)
    with ahead(str(photos)):
        assert walk(photos, photos) == expected


def test_the_command_walks_ahead(photos, monkeypatch, tmp_path):
    begun = []

    @contextmanager
    def noted(folder):
        begun.append(folder)
        yield

    monkeypatch.setattr(pretrain, "ahead", noted)
    with pytest.raises(SystemExit):
        main(["pretrain", str(photos), "--out", str(tmp_path / "run"), "--root", str(tmp_path)])  # no images
    assert begun == [str(photos)]


def test_without_a_folder_nothing_is_walked_through(photos, monkeypatch):
    monkeypatch.chdir(photos)
    for name in ("", "digits", "b.jpg"):
        with ahead(name):
            assert not walking._begun
    with ahead("a"):
        assert list(walking._begun) == [str(photos / "a")]
