import gc
import weakref

import pytest
import torch

from setwise.training.capture import captured, no_collection


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
