import gc
import os
import time
import weakref
from contextlib import nullcontext

import pytest
import torch

from setwise.training import capture
from setwise.training.capture import captured, no_collection, waken


class Node:
    """Something that only the collector frees, if it refers to itself."""

    def __init__(self):
        self.me = self


@pytest.mark.parametrize("enabled", [True, False])
def test_nothing_is_collected_within_and_all_before(enabled):
    was = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        before = weakref.ref(Node())
        with no_collection():
            assert before() is None
            assert not gc.isenabled()
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if was else gc.disable)()


@pytest.mark.gpu
def test_a_graph_that_dies_during_a_capture_does_not_end_it():
    x = torch.zeros(8, device="cuda")
    node, threshold = Node(), gc.get_threshold()
    node.replay = captured(lambda: x.add_(1))
    node.replay()

    def run():
        if torch.cuda.is_current_stream_capturing():
            nonlocal node
            node = None
            [Node() for _ in range(50)]  # the collector would run many times
        x.add_(1)

    gc.set_threshold(1, 1, 1)
    try:
        captured(run)()
    finally:
        gc.set_threshold(*threshold)
    assert x[0] == 3 + 1 + 3 + 1


def test_a_cpu_has_nothing_to_load():
    assert waken(torch.device("cpu")) is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a system that forks")
def test_a_fork_waits_until_libraries_are_loaded(monkeypatch):
    done = []
    monkeypatch.setattr(capture, "_use_libraries", lambda device: (time.sleep(0.2), done.append(device)))
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
    monkeypatch.setattr(capture, "suppress", lambda error: nullcontext())
    monkeypatch.setattr("threading.excepthook", errors.append)
    torch.cuda.manual_seed(0)
    state = torch.cuda.get_rng_state()
    thread = waken(torch.device("cuda"))
    thread.join()
    assert not errors
    assert torch.equal(torch.cuda.get_rng_state(), state)
