"""Train on a few digits; be killed by SIGKILL at random moments and go on. Run by test_resume.py on its own.

Children are forked from a parent that has imported torch and done nothing with it, so that a start takes no seconds.
"""

import os
import random
import shutil
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

from setwise.data import load
from setwise.data.pixels import StoredPixels
from setwise.losses.presets import objective_of
from setwise.recipe import Recipe
from setwise.training.loop import RunOptions, train

KILLS = 10


def child(folder: Path, method: str) -> None:
    torch.set_num_threads(1)
    recipe = Recipe.read({"method": method, "epochs": 6, "batch": 30, "optimizer": {"name": "adam", "lr": 3e-3}})
    if method == "contrastive":
        recipe = replace(recipe, objective=objective_of("released/simclr-qare", 0.5))
    whole = load("digits")
    data = replace(whole, images=whole.images[:200], labels=whole.labels[:200])
    if method == "contrastive" and folder.name == "killed":  # its images stay in a file, and the weights are the same
        file = folder.with_name("images")
        if not file.exists():
            data.images.numpy().tofile(file)
        data = replace(data, images=data.images.to("meta"), pixels=StoredPixels(file, data.images.shape))
    train(
        recipe,
        data,
        folder,
        seed=3,
        how=RunOptions(torch.device("cpu"), resume=True, checkpoint_seconds=0.0, quiet=True),
    )


def start(folder: Path, method: str) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            child(folder, method)
            os._exit(0)
        except BaseException as error:
            print(error, file=sys.stderr, flush=True)
            os._exit(1)
    return pid


def main() -> None:
    folder, method = Path(sys.argv[1]), sys.argv[2]
    began = time.monotonic()
    pid = start(folder / "whole", method)
    assert os.waitpid(pid, 0)[1] == 0
    length = time.monotonic() - began
    generator = random.Random(method)
    killed = 0
    while killed < KILLS:
        pid = start(folder / "killed", method)
        time.sleep(generator.uniform(0.02, length / 4))
        os.kill(pid, signal.SIGKILL)
        if os.WIFSIGNALED(os.waitpid(pid, 0)[1]):
            killed += 1
            continue
        # It ended first: the machine was slower when the length was measured. All of it again, with shorter lives.
        shutil.rmtree(folder / "killed")
        killed, length = 0, length / 2
        if length / 4 < 0.02:
            raise SystemExit("too fast to be killed")
    assert os.waitpid(start(folder / "killed", method), 0)[1] == 0
    print(killed)


if __name__ == "__main__":
    main()
