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


def run(folder, *words):
    if torch.cuda.is_available():
        pytest.skip("a real GPU is here")
    if shutil.which("g++") is None:
        pytest.skip("needs g++, to make torch take CUDA for present")
    ended = subprocess.run(
        [sys.executable, str(STEPS), str(folder), *words],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return run(tmp_path_factory.mktemp("pretend"))


def test_steps_of_every_method_loss_term_and_optimizer_can_be_captured(found):
    assert {name: why for name, why in found["cases"].items() if why} == {}
    assert len(found["cases"]) > 50


def test_what_waits_for_the_device_is_refused(found):
    assert {name for name, why in found["mistakes"].items() if "capturing" not in why} == set()


def test_the_kernels_of_a_step_were_asked(found):
    expected = {"assign_sets", "convolve", "eigh", "row_losses", "scale_sets", "set_losses", "unit_rows", "views"}
    assert expected <= set(found["kernels"])


def test_replayed_steps_are_those_of_a_cpu(tmp_path):
    """Python runs once, at the capture. A number that it should have changed since then would still be the old one."""
    found = run(tmp_path, "compare")
    assert len(found) > 50
    # A GPU's learning rates are float32, and Muon multiplies in bfloat16.
    limits = {"optimizer muon": 1e-2}
    assert {name: far for name, far in found.items() if isinstance(far, str) or far > limits.get(name, 1e-4)} == {}
