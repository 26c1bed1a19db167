"""Downloads from a real server that breaks in the ways that servers break."""

import os

import pytest

from setwise.data import DataError
from setwise.data.fetching import download as module
from setwise.data.fetching.download import download

CONTENT = os.urandom(1_000_000)


@pytest.fixture
def get(server, tmp_path):
    server.content = CONTENT

    def run(limit=2_000_000, **behaviour):
        vars(server).update(behaviour)
        download(server.url, tmp_path / "file", most_bytes=limit)
        assert {path.name for path in tmp_path.iterdir()} == {"file"}, "nothing else is left"
        return (tmp_path / "file").read_bytes()

    return run


@pytest.mark.parametrize(
    ("behaviour", "ranges"),
    [
        ({}, [None]),
        ({"cuts": [300_000, 200_000, 1]}, [None, 300_000, 500_000, 500_001]),
        ({"cuts": [300_000], "ranges": False}, [None, 300_000]),  # it sends the whole again
        ({"cuts": [300_000], "wrong_start": True}, [None, 300_000, None]),
        ({"cuts": [300_000], "etag": None}, [None, 300_000]),
        ({"cuts": [300_000], "etag": 'W/"weak"'}, [None, 300_000]),
        ({"chunked": True}, [None]),  # without a length
        ({"chunked": True, "cuts": [300_000]}, [None, 300_000]),
        ({"status": [503, 500, 429]}, [None] * 4),  # busy
    ],
)
def test_the_file_comes_whole(get, server, behaviour, ranges):
    assert get(**behaviour) == CONTENT
    tag = behaviour.get("etag", '"one"') if "weak" not in str(behaviour) else None  # a weak one says nothing of bytes
    assert server.seen == [(start and f"bytes={start}-", start and tag) for start in ranges]


@pytest.mark.parametrize(
    ("first", "then", "content"),
    [
        ({}, {}, CONTENT),
        ({}, {"content": CONTENT[::-1], "etag": '"two"'}, CONTENT[::-1]),  # another file
        ({"etag": None}, {"content": CONTENT[:1000]}, CONTENT[:1000]),  # a shorter one
    ],
)
def test_the_next_call_goes_on_where_the_last_gave_up(get, server, tmp_path, first, then, content):
    with pytest.raises(DataError, match=r"ended at 400,000 of 1,000,000 bytes; 400,000 bytes are kept"):
        get(cuts=[400_000] + [0] * 4, **first)
    assert len(server.seen) == 5
    assert not (tmp_path / "file").exists()
    assert get(**then) == content
    assert server.seen[5][0] == "bytes=400000-"


def test_a_length_that_is_not_the_truth(get, tmp_path):
    with pytest.raises(DataError, match=r"expected to download http://127.0.0.1.*, got a .*(ended at|shorter)"):
        get(length=len(CONTENT) + 5)
    assert not (tmp_path / "file").exists()
    # Nothing more can be known from the connection; the checksum refuses it (test_install).
    assert get(length=5000) == CONTENT[:5000]


@pytest.mark.parametrize("status", [404, 403, 410])
def test_a_missing_file_is_said_at_once(get, server, status):
    with pytest.raises(DataError, match=f"expected a file at http.*, got HTTP {status}"):
        get(status=[status] * 9)
    assert len(server.seen) == 1


def test_a_connection_that_stalls_or_is_refused_does_not_hang(get, monkeypatch, tmp_path):
    monkeypatch.setattr(module, "TIMEOUT", 0.1)
    monkeypatch.setattr(module, "ATTEMPTS", 2)
    with pytest.raises(DataError, match=r"TimeoutError after 1,000 bytes; 1,000 bytes are kept"):
        get(stall=True, cuts=[1000, 0, 0])
    with pytest.raises(DataError, match="got URLError.*refused"):
        download("http://127.0.0.1:9/file", tmp_path / "file", most_bytes=10)


@pytest.mark.parametrize(("chunked", "got"), [(False, "1,000,000"), (True, "more")])
def test_more_than_the_data_set_can_have_is_refused(get, tmp_path, chunked, got):
    with pytest.raises(DataError, match=f"expected at most 1,000 bytes at .*, got {got}"):
        get(limit=1000, chunked=chunked)
    assert not (tmp_path / "file").exists()


@pytest.mark.parametrize("notes", [b"", b"[1]", b"\xff", b'{"url": "http://other/", "validator": null, "total": 7}'])
def test_notes_that_are_damaged_or_of_another_url_are_not_used(get, server, tmp_path, notes):
    (tmp_path / "file.part").write_bytes(b"old bytes")
    (tmp_path / "file.part.json").write_bytes(notes)
    assert get() == CONTENT
    assert server.seen == [(None, None)]
