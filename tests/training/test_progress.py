"""What a run shows of its progress, on a terminal and without one."""

import io
import re
import sys
from types import SimpleNamespace

import pytest

from setwise.training import progress
from setwise.training.progress import LINE_SECONDS, Reporter


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test moves."""
    it = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(progress.time, "monotonic", lambda: it.now)
    return it


def lines(capsys):
    return capsys.readouterr().err.splitlines()


def test_without_a_terminal_a_line_from_time_to_time(clock, capsys):
    with Reporter("SimCLR", epochs=10, images=500) as reporter:
        reporter.update(2.0, {"loss": 5.0})  # a resumed run: what was done before is not its speed
        clock.now += LINE_SECONDS - 0.1
        reporter.update(3.0, {"loss": 4.5})
        assert lines(capsys) == ["SimCLR: about 69 seconds to train (51 images/s)"]  # 7 epochs of 9.9 s
        clock.now += 0.1
        reporter.update(4.5, {"loss": 4.0, "pairwise": 3.0})
        assert lines(capsys) == ["SimCLR: epoch 5/10  loss 4.0000  pairwise 3.0000  125 images/s  22 s left"]
        clock.now += LINE_SECONDS - 0.1
        reporter.update(6.0, {"loss": 4.0})
        assert lines(capsys) == []
        reporter.update(10.0, {"loss": 1.0}, force=True)
        (last,) = lines(capsys)
        assert re.fullmatch(r"SimCLR: epoch 10/10  loss 1.0000  \d+ images/s", last)
    with Reporter("SimCLR", epochs=1, images=500) as reporter:
        reporter.update(1.0, {"loss": 4.0}, force=True)
    assert lines(capsys) == ["SimCLR: epoch 1/1  loss 4.0000"], "a run of one step"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.2, "1 second"),
        (89, "89 seconds"),
        (91, "2 minutes"),
        (5300, "88 minutes"),
        (5400, "2 hours"),
        (1e7, "2,778 hours"),
    ],
)
def test_a_duration_in_words(seconds, words):
    assert progress.duration(seconds) == f"about {words}"


@pytest.mark.parametrize("terminal", [False, True])
def test_a_quiet_one_says_nothing(clock, capsys, monkeypatch, terminal):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    with Reporter("SimCLR", epochs=2, images=500, quiet=True) as reporter:
        for done in (1.0, 2.0):
            clock.now += 2 * LINE_SECONDS
            reporter.update(done, {"loss": 4.0}, force=True)
    assert lines(capsys) == []


def test_a_reader_who_has_gone_does_not_end_a_run(clock, monkeypatch):
    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(sys, "stderr", Closed())
    with Reporter("SimCLR", epochs=2, images=500) as reporter:
        reporter.update(2.0, {"loss": 4.0}, force=True)


@pytest.mark.parametrize("columns", [40, 80, 160])
def test_on_a_terminal_a_bar_that_stays_whole_where_text_is_cut(clock, monkeypatch, columns):
    screen = io.StringIO()
    screen.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    with Reporter("paper/digits-conv4-simclr-qare (changed) seed 1", epochs=4, images=500) as reporter:
        assert reporter._bar.live.is_started
        for done in (0.5, 1.0, 3.0):
            clock.now += 5
            reporter.update(done, {"loss": 4.0, "pairwise": 3.0, "regularizer": 1.0})
    assert not reporter._bar.live.is_started, "what is printed later must not be drawn over"
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.getvalue())
    last = shown.replace("\r", "\n").rstrip().splitlines()[-1]
    assert re.match(r"━+.*75% [-\d:]{7} epoch", last)
    assert len(last) <= columns
    assert shown.count("about 30 seconds to train (50 images/s)") == 1  # half an epoch in 5 s, 3 to go
    if columns == 160:
        assert "epoch 4/4  loss 4.0000  pairwise 3.0000  regularizer 1.0000  125 images/s  paper" in shown
