"""Steps for a GPU where there is none: what would end a capture, a tensor on the wrong device, a kernel's arguments."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

STEPS = Path(__file__).parents[1] / "pretend" / "steps.py"


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    if torch.cuda.is_available():
        pytest.skip("a real GPU is here")
    if shutil.which("g++") is None:
        pytest.skip("needs g++, to make torch take CUDA for present")
    run = subprocess.run(
        [sys.executable, str(STEPS), str(tmp_path_factory.mktemp("pretend"))],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads(run.stdout.splitlines()[-1])


def test_steps_of_every_method_loss_term_and_optimizer_can_be_captured(found):
    assert {name: why for name, why in found["cases"].items() if why} == {}
    assert len(found["cases"]) > 50


def test_what_waits_for_the_device_is_refused(found):
    assert {name for name, why in found["mistakes"].items() if "capturing" not in why} == set()


def test_the_kernels_of_a_step_were_asked(found):
    expected = {"assign_sets", "convolve", "eigh", "row_losses", "set_losses", "unit_rows", "views"}
    assert expected <= set(found["kernels"])
