"""Folders that were made to do harm: every file is refused or skipped with its reason, within the stated memory."""

import json
import os
import struct
import subprocess
import sys
import time
import zlib
from contextlib import contextmanager
from itertools import pairwise

import pytest
from PIL import Image

import setwise as sw
from setwise.data import workers

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="measures processes as Unix does")
MB = 2**20
BYTES_A_PIXEL = 13  # Pillow has four for RGB, four for RGBA, four for what lies behind it, and one for its mask
HUGE = 4200  # pixels a side; such images take turns
WORKER_MB = 64  # beside the pixels

# Read by processes whose memory is limited, and so is that of the processes they start; all peaks count.
READ = """
import json, os, resource, sys
from pathlib import Path
import setwise as sw
from setwise.data import survey, workers
folder, root, most = sys.argv[1:]
sw.data.load("digits")
workers.processors = lambda *_, **__: 3

def read(where):
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    idle = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    resource.setrlimit(resource.RLIMIT_AS, (used + int(most), used + int(most)))
    if where == "check":
        count, broken = -1, [path for path, _ in survey(folder).broken]
    else:
        found = sw.data.load(folder, root, size=32, pixels=where, options={"skip_broken": True})
        count = len(found.read(slice(None)))
        broken = [line.rpartition(": ")[0].strip() for line in found.notes[-1].split("\\n")[1:]]
    peaks = [resource.getrusage(who).ru_maxrss - idle for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return where, [count, broken, *(peak // 1024 for peak in peaks)]

for where in ("mapped", "resident", "files", "check"):
    if os.fork() == 0:
        print(json.dumps(read(where)), flush=True)
        os._exit(0)
    assert os.wait()[1] == 0
"""


def png(width, height, lines=None):
    """Blank, RGBA, with so many pixels, in a few kilobytes."""

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    packer, line = zlib.compressobj(9), bytes(1 + 4 * width)
    data = b"".join(packer.compress(line) for _ in range(lines or height)) + packer.flush()
    head = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def lying_jpeg(path, width, height):
    Image.new("RGB", (8, 8)).save(path)
    raw = bytearray(path.read_bytes())
    at = raw.index(b"\xff\xc0")
    raw[at + 5 : at + 9] = struct.pack(">HH", height, width)
    path.write_bytes(raw)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """Twenty good images, three that take much memory, and what must not be read."""
    place = tmp_path_factory.mktemp("hostile") / "photos"
    place.mkdir()
    for k in range(20):
        Image.effect_noise((64, 64), 50).save(place / f"good-{k:02}.png")
    for k in range(3):
        (place / f"huge-{k}.png").write_bytes(png(HUGE, HUGE))
    (place / "bomb.png").write_bytes(png(20_000, 20_000, lines=100))
    lying_jpeg(place / "lie.jpg", 65_500, 1_300)
    with (place / "long.jpg").open("wb") as file:
        file.truncate(10 * 10**9)  # takes no room
    os.mkfifo(place / "pipe.jpg")
    (place / "out.jpg").symlink_to("/etc/passwd")
    (place / "loop").symlink_to(place)
    (place / "zero.jpg").symlink_to("/dev/zero")
    (place / "\x1b[2J\nname.jpg").write_text("")
    return place


REFUSED = {"bomb.png", "lie.jpg", "long.jpg", "pipe.jpg", "out.jpg", "loop", "zero.jpg", "\x1b[2J\nname.jpg"}


@pytest.fixture(scope="module")
def read(hostile, tmp_path_factory):
    """What became of the folder, by where its pixels were to live."""
    root = tmp_path_factory.mktemp("kept")
    command = [sys.executable, "-c", READ, str(hostile), str(root), str(600 * MB)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    return dict(map(json.loads, run.stdout.splitlines()))


@pytest.mark.parametrize("where", ["mapped", "resident", "files", "check"])
def test_a_hostile_folder_within_the_stated_memory(read, where):
    count, broken, here, workers = read[where]
    assert count == (-1 if where == "check" else 23)
    assert {name.replace("\\n", "\n").partition(": ")[0] for name in broken} == REFUSED
    assert workers < BYTES_A_PIXEL * HUGE * HUGE // MB + WORKER_MB
    if where != "files":  # there this process decodes
        assert here < WORKER_MB


def test_large_images_take_turns(hostile, tmp_path, monkeypatch):
    turn, log = workers.Place.turn, tmp_path / "log"

    @contextmanager
    def noted(self):
        with turn(self):
            began = time.monotonic()
            yield
            with log.open("a") as file:
                file.write(f"{began} {time.monotonic()}\n")

    monkeypatch.setattr(workers.Place, "turn", noted)
    monkeypatch.setattr(workers, "processors", lambda *_, **__: 3)
    monkeypatch.setattr(workers, "CHUNK", 1)
    sw.data.load(hostile, tmp_path, size=32, pixels="mapped", options={"skip_broken": True})
    spans = sorted(tuple(map(float, line.split())) for line in log.read_text().splitlines())
    assert len(spans) == 3
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
