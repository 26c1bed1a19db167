"""Downloads from a real server that breaks in the ways that servers break."""

import os

import pytest

from setwise.data import DataError
from setwise.data.fetching import download as module
from setwise.data.fetching.download import download

CONTENT = os.urandom(1_000_000)
LIMIT = 2_000_000


@pytest.fixture
def get(server, tmp_path):
    server.content = CONTENT

    def run(limit=LIMIT):
        download(server.url, tmp_path / "file", most_bytes=limit)
        return (tmp_path / "file").read_bytes()

    return run


def only_the_file(folder):
    return {p.name for p in folder.iterdir()} == {"file"}


def test_a_whole_download(get, server, tmp_path):
    assert get() == CONTENT
    assert server.seen == [(None, None)]
    assert only_the_file(tmp_path)


def test_a_broken_connection_is_resumed_where_it_broke(get, server, tmp_path):
    server.cuts = [300_000, 200_000, 1]
    assert get() == CONTENT
    assert server.seen == [
        (None, None),
        ("bytes=300000-", '"one"'),
        ("bytes=500000-", '"one"'),
        ("bytes=500001-", '"one"'),
    ]
    assert only_the_file(tmp_path)


def test_the_next_call_goes_on_where_the_last_gave_up(get, server, tmp_path):
    server.cuts = [400_000] + [0] * 4
    with pytest.raises(
        DataError, match=r"ended at 400,000 of 1,000,000 bytes; 400,000 bytes are kept: run the same again"
    ):
        get()
    assert len(server.seen) == 5
    assert not (tmp_path / "file").exists()
    assert get() == CONTENT
    assert server.seen[-1] == ("bytes=400000-", '"one"')


def test_a_server_that_ignores_ranges_is_read_from_the_start(get, server):
    server.cuts, server.ranges = [300_000], False
    assert get() == CONTENT
    assert len(server.seen) == 2


def test_a_file_that_changed_in_between_is_read_from_the_start(get, server):
    server.cuts = [300_000] + [0] * 4
    with pytest.raises(DataError):
        get()
    server.content, server.etag = CONTENT[::-1], '"two"'
    assert get() == CONTENT[::-1]


@pytest.mark.parametrize("etag", [None, 'W/"weak"'])
def test_without_a_strong_etag_the_range_is_asked_for_plainly(get, server, etag):
    server.cuts, server.etag = [300_000], etag
    assert get() == CONTENT
    assert server.seen[1] == ("bytes=300000-", None)


def test_a_server_that_sends_another_part(get, server):
    server.cuts, server.wrong_start = [300_000], True
    assert get() == CONTENT
    assert [asked for asked, _ in server.seen] == [None, "bytes=300000-", None]


def test_a_file_that_became_shorter_is_read_from_the_start(get, server):
    server.cuts, server.etag = [300_000] + [0] * 4, None
    with pytest.raises(DataError):
        get()
    server.content = CONTENT[:1000]
    assert get() == CONTENT[:1000]


def test_a_length_that_is_too_long_is_no_success(get, server, tmp_path):
    server.length = len(CONTENT) + 5
    with pytest.raises(DataError, match=r"expected to download http://127.0.0.1.*, got a .*(ended at|shorter)"):
        get()
    assert not (tmp_path / "file").exists()


def test_a_length_that_is_too_short_ends_there(get, server):
    # Nothing more can be known from the connection; the checksum refuses it (test_install).
    server.length = 5000
    assert get() == CONTENT[:5000]


@pytest.mark.parametrize("cut", [None, 300_000])
def test_chunked_transfers_have_no_length(get, server, cut):
    server.chunked, server.cuts = True, [cut] if cut else []
    assert get() == CONTENT


@pytest.mark.parametrize("status", [404, 403, 410])
def test_a_missing_file_is_said_at_once(get, server, status):
    server.status = [status] * 9
    with pytest.raises(DataError, match=f"expected a file at http.*, got HTTP {status}.*give another source"):
        get()
    assert len(server.seen) == 1


def test_a_busy_server_is_asked_again(get, server):
    server.status = [503, 500, 429]
    assert get() == CONTENT
    assert len(server.seen) == 4


def test_a_stalled_connection_does_not_hang(get, server, monkeypatch):
    monkeypatch.setattr(module, "TIMEOUT", 0.1)
    monkeypatch.setattr(module, "ATTEMPTS", 2)
    server.stall, server.cuts = True, [1000, 0, 0]
    with pytest.raises(DataError, match=r"TimeoutError after 1,000 bytes; 1,000 bytes are kept"):
        get()


def test_no_server(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "WAIT", 0.0)
    with pytest.raises(DataError, match="got URLError.*refused.* give its path as the source"):
        download("http://127.0.0.1:9/file", tmp_path / "file", most_bytes=10)


def test_more_than_the_data_set_can_have_is_refused(get, server, tmp_path):
    with pytest.raises(DataError, match="expected at most 1,000 bytes at .*, got 1,000,000; this is another file"):
        get(limit=1000)
    server.chunked = True
    with pytest.raises(DataError, match="expected at most 1,000 bytes at .*, got more"):
        get(limit=1000)
    assert not (tmp_path / "file").exists()


def test_notes_that_are_damaged_or_of_another_url_are_not_used(get, server, tmp_path):
    for notes in (b"", b"[1]", b"\xff", b'{"url": "http://other/", "validator": null, "total": 7}'):
        (tmp_path / "file.part").write_bytes(b"old bytes")
        (tmp_path / "file.part.json").write_bytes(notes)
        assert get() == CONTENT
        assert server.seen[-1] == (None, None)
