"""What a run tells while it goes on, on a terminal and without one, and the files that it leaves."""

import csv
import io
import json
import re
import sys
from types import SimpleNamespace

import pytest

from setwise.training import progress
from setwise.training.checkpoint import replacing
from setwise.training.progress import LINE_SECONDS, Metrics, Reporter


@pytest.fixture
def clock(monkeypatch):
    """A clock that goes on when it is told to."""
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
        assert lines(capsys) == []
        clock.now += 0.1
        reporter.update(4.5, {"loss": 4.0, "pairwise": 3.0})
        assert lines(capsys) == ["SimCLR: epoch 5/10  loss 4.0000  pairwise 3.0000  125 images/s  22 s left"]
        clock.now += LINE_SECONDS - 0.1
        reporter.update(6.0, {"loss": 4.0})
        assert lines(capsys) == []
        reporter.update(10.0, {"loss": 1.0}, force=True)
        (last,) = lines(capsys)
        assert last.startswith("SimCLR: epoch 10/10  loss 1.0000  ")
        assert last.endswith("  0 s left")


def test_a_run_of_one_step_says_how_it_ended(clock, capsys):
    with Reporter("SimCLR", epochs=1, images=500) as reporter:
        reporter.update(1.0, {"loss": 4.0}, force=True)
    assert lines(capsys) == ["SimCLR: epoch 1/1  loss 4.0000"]


def test_a_quiet_one_says_nothing(clock, capsys, monkeypatch):
    for terminal in (False, True):
        monkeypatch.setattr(sys.stderr, "isatty", lambda terminal=terminal: terminal)
        with Reporter("SimCLR", epochs=2, images=500, quiet=True) as reporter:
            for done in (1.0, 2.0):
                clock.now += 2 * LINE_SECONDS
                reporter.update(done, {"loss": 4.0}, force=True)
        assert lines(capsys) == []


def test_that_nobody_reads_along_any_more_does_not_end_a_run(clock, monkeypatch):
    class Closed(io.StringIO):
        def write(self, words):
            raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(sys, "stderr", Closed())
    with Reporter("SimCLR", epochs=2, images=500) as reporter:
        reporter.update(2.0, {"loss": 4.0}, force=True)


@pytest.mark.parametrize("columns", [40, 80, 160])
def test_a_narrow_terminal_cuts_words_not_the_bar(clock, monkeypatch, columns):
    screen = io.StringIO()
    screen.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    with Reporter("paper/digits-conv4-simclr-qare (changed) seed 1", epochs=4, images=500) as reporter:
        for done in (0.5, 1.0, 3.0):
            clock.now += 5
            reporter.update(done, {"loss": 4.0, "pairwise": 3.0, "regularizer": 1.0})
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.getvalue())
    last = shown.replace("\r", "\n").rstrip().splitlines()[-1]
    assert re.match(r"━+.*75% \d:\d\d:\d\d epoch", last)
    assert len(last) <= columns


def test_on_a_terminal_a_bar(clock, monkeypatch):
    screen = io.StringIO()
    screen.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    with Reporter("SimCLR", epochs=4, images=500) as reporter:
        assert reporter._bar.live.is_started
        for done in (0.5, 3.0):
            clock.now += 5
            reporter.update(done, {"loss": 4.0})
    assert not reporter._bar.live.is_started, "what is printed later must not be drawn over"
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.getvalue())
    assert "SimCLR" in shown
    assert "75%" in shown
    assert "epoch 4/4  loss 4.0000  250 images/s" in shown


def rows_of(folder):
    with (folder / "metrics.csv").open() as file:
        table = list(csv.DictReader(file))
    return table, [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_every_epoch_is_in_both_files_and_what_comes_again_is_there_once(tmp_path):
    history = [{"epoch": i, "loss": 1.0 / i, "structure": {"rows": [1]}} for i in (1, 2, 3)]
    with Metrics(tmp_path, []) as metrics:
        for row in history:
            metrics.add(row)
    for _ in range(2):
        table, found = rows_of(tmp_path)
        assert found == history == metrics.history
        assert [(row["epoch"], float(row["loss"])) for row in table] == [(str(r["epoch"]), r["loss"]) for r in history]
        assert list(table[0]) == ["epoch", "loss"], "what is no number has no place in a table"
        with Metrics(tmp_path, history[:2]) as metrics:  # killed after its second epoch's checkpoint
            assert len(rows_of(tmp_path)[1]) == len(rows_of(tmp_path)[0]) == 2
            metrics.add(history[2])
    with Metrics(tmp_path, history, write=False) as metrics:
        metrics.add({"epoch": 4, "loss": 0.1})
    assert len(metrics.history) == 4
    assert rows_of(tmp_path)[1] == history, "of many processes one writes"


def test_what_a_killed_process_left_of_the_files_goes(tmp_path):
    for name in ("metrics.csv", "metrics.jsonl"):
        with replacing(tmp_path / name) as temporary:
            pass
        temporary.write_text("half of it")
    other = tmp_path / ".metrics"
    other.touch()
    with Metrics(tmp_path, []):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == [".metrics", "metrics.csv", "metrics.jsonl"]


def test_columns_stay_what_they_are(tmp_path):
    rows = [{"epoch": 1, "loss": 2.0, "accuracy": 0.5}, {"epoch": 2, "accuracy": 0.6, "loss": 1.0}, {"epoch": 3}]
    for known in (0, 2):  # as they come, and of a run that is resumed
        with Metrics(tmp_path, rows[:known]) as metrics:
            for row in rows[known:]:
                metrics.add(row)
        assert (tmp_path / "metrics.csv").read_text() == "epoch,loss,accuracy\n1,2.0,0.5\n2,1.0,0.6\n3,,\n"
