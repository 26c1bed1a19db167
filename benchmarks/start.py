"""How long `setwise pretrain FOLDER` takes to its first step: at first, and when the images are decoded already.

    python benchmarks/start.py FOLDER [--make 100000] [--again 3] [--drop] [--device cuda] [--searched 3] [--out FILE]

Each start is a new process, which ends after its first step. The first one decodes all images, the others find them
decoded. ``--make`` fills FOLDER with JPEGs of 64 pixels before, by all cores. ``--drop`` empties the system's cache of
files before the first start, which needs root. Modules stay compiled from one start to the next, as Python keeps them,
also where the environment forbids it: to compile torch's takes more than two seconds.

The times are seconds since the process was started: "torch" and "setwise" are imported, the "device" is ready, the
files are "listed" and decoded, the images are "read" (for a GPU: those to test on), the "network" and the images are on
the device, the step is "prepared" (on a GPU: captured), the first "step" is done. On a GPU most of "prepared" is
cuDNN's search for the fastest algorithms. It makes all ready that may serve a convolution, then times some:
``--searched`` says how many (torch's own number is 10), or, by 0, that it makes and takes its first guess alone.
"step_ms" are the milliseconds of each of the next 50 steps there.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

STEPS = 50
STARTED, SEARCHED = "SETWISE_STARTED", "SETWISE_SEARCHED"  # variables of a start
SIDE, CLASSES = 64, 10  # of images that are made


def write(folder: Path, number: int) -> None:
    """One JPEG: smooth noise with some grain, drawn by its number, which compresses like a small photo."""
    import numpy as np  # not above: a start imports it when setwise does
    from PIL import Image

    rng = np.random.default_rng(number)
    smooth = Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    grain = rng.normal(0, 8, (SIDE, SIDE, 3))
    pixels = (np.asarray(smooth) + grain).clip(0, 255).astype(np.uint8)
    Image.fromarray(pixels).save(folder / f"class-{number % CLASSES}" / f"{number:07}.jpg", quality=85)


def make(folder: Path, count: int) -> None:
    """Write ``count`` images, in folders of classes, by all cores."""
    for number in range(CLASSES):
        (folder / f"class-{number}").mkdir(parents=True, exist_ok=True)
    with get_context("spawn").Pool() as pool:
        for _ in pool.imap_unordered(partial(write, folder), range(count), chunksize=500):
            pass


def start(options: list[str]) -> None:
    """`setwise pretrain` with these options; prints the times, and ends the process after the first step."""
    started, times = float(os.environ[STARTED]), {}

    def note(name: str) -> None:
        times.setdefault(name, round(time.time() - started, 2))

    def noted(owner: Any, name: str, before: str = "", after: str = "") -> None:
        function: Callable[..., Any] = getattr(owner, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if before:
                note(before)
            result = function(*args, **kwargs)
            if after:
                note(after)
            return result

        setattr(owner, name, wrapped)

    class Imports:
        """Is asked for each module: the first one of ours after torch tells when torch was imported."""

        def find_spec(self, name: str, *_: object) -> None:
            if name.startswith("setwise.") and "torch" in sys.modules:
                note("torch")

    from setwise.cli import main

    sys.meta_path.insert(0, Imports())  # type: ignore[arg-type]
    freeze = gc.freeze

    def imported() -> None:
        freeze()
        note("setwise")
        watch(note, noted, times)

    gc.freeze = imported  # which the command calls when it has imported all
    sys.argv = ["setwise", "pretrain", *options]
    main()


def watch(note: Callable[[str], None], noted: Callable[..., None], times: dict[str, float]) -> None:
    """Note the times of what follows the imports; after the first step, print them all and end the process."""
    import torch

    import setwise.runs as runs
    import setwise.runs.pretraining as pretraining
    from setwise.training.engine import Engine

    searched = os.environ[SEARCHED]
    if searched:
        torch.backends.cudnn.benchmark_limit = int(searched)
    noted(runs, "choose_device", after="device")
    noted(pretraining, "load", after="listed")
    noted(Engine, "__init__", before="read")
    noted(Engine, "_prepare", before="network", after="prepared")
    take, prepare = Engine.step, Engine._prepare

    def prepare_without_search(engine: Engine, *options: Any) -> None:
        torch.backends.cudnn.benchmark = False  # which the engine has switched on
        prepare(engine, *options)

    if searched == "0":
        Engine._prepare = prepare_without_search  # type: ignore[method-assign]

    def last_step(engine: Engine) -> None:
        take(engine)
        engine.means()  # waits for the device
        note("step")
        if engine.device.type == "cuda" and engine.steps > STEPS + 1:  # without the last one, which is smaller
            began = time.time()
            for _ in range(STEPS):
                take(engine)
            engine.means()
            times["step_ms"] = round(1000 * (time.time() - began) / STEPS, 2)
        print(json.dumps(times), flush=True)
        os._exit(0)

    Engine.step = last_step  # type: ignore[method-assign]


def timed(options: list[str], searched: int | None) -> dict[str, float]:
    """The times of one start."""
    environment = os.environ | {STARTED: str(time.time()), SEARCHED: "" if searched is None else str(searched)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, __file__, "--start", *options]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """The first start and the others, one after the other."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--make", type=int, default=0, metavar="COUNT", help="images to make in the folder first")
    parser.add_argument("--again", type=int, default=3, help="starts after the first one")
    parser.add_argument("--drop", action="store_true", help="empty the system's file cache first")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--searched", type=int, help="algorithms that cuDNN may time for a convolution")
    parser.add_argument("--root", type=Path, help="where decoded images are kept, so that another call finds them")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    import torch

    if args.device == "cuda" and not torch.cuda.is_available():  # at once, not after a hundred thousand images
        parser.error("expected a CUDA device for --device cuda, got none")
    if args.make:
        make(args.folder, args.make)
    if args.drop:
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("3")
    starts = []
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(1 + args.again):
            options = [str(args.folder), "--device", args.device, "--root", str(args.root or Path(scratch, "root"))]
            starts.append(timed([*options, "--out", f"{scratch}/run-{number}"], args.searched))
            print("first" if number == 0 else "again", starts[-1], flush=True)
    if args.out is not None:
        from setwise.runs import choose_device
        from setwise.training.environment import environment

        about: dict[str, Any] = {"what": "start", **environment(choose_device(args.device))}
        about |= {"files": sum(len(names) for _, _, names in os.walk(args.folder)), "searched": args.searched}
        args.out.write_text(json.dumps(about | {"first": starts[0], "again": starts[1:]}, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--start"]:
        start(sys.argv[2:])
    else:
        main()
