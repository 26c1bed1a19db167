"""A GPU's libraries are loaded beside other work, and a fork waits for them."""

import os
import time
from contextlib import nullcontext

import pytest
import torch

from setwise.training import libraries
from setwise.training.libraries import waken


def test_a_cpu_has_nothing_to_load():
    assert waken(torch.device("cpu")) is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a system that forks")
def test_a_fork_waits_until_libraries_are_loaded(monkeypatch):
    done = []
    monkeypatch.setattr(libraries, "_use", lambda device: (time.sleep(0.2), done.append(device)))
    waken(torch.device("cuda", 3))
    assert not done
    child = os.fork()
    if not child:
        os._exit(len(done))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    assert done == [torch.device("cuda", 3)]


@pytest.mark.gpu
def test_libraries_are_loaded_beside_other_work(monkeypatch):
    errors = []
    monkeypatch.setattr(libraries, "suppress", lambda error: nullcontext())
    monkeypatch.setattr("threading.excepthook", errors.append)
    torch.cuda.manual_seed(0)
    state = torch.cuda.get_rng_state()
    thread = waken(torch.device("cuda"))
    thread.join()
    assert not errors
    assert torch.equal(torch.cuda.get_rng_state(), state)
