"""How many Python functions one loss goes through: a bound a little above what there are, so that hops show."""

import sys
from pathlib import Path

import pytest
import torch

import setwise as sw

HOME = str(Path(sw.__file__).parent)


@pytest.mark.parametrize(("items", "most", "ours"), [(128, 122, 42), (32, 101, 36)])
def test_frames_of_one_forward(items, most, ours):
    loss = sw.SetContrastive(sw.InfoNCE(0.5), beta=0.5)
    z_a, z_b = torch.randn(2, items, 64, generator=torch.Generator().manual_seed(0))
    z_a.requires_grad_()
    loss(z_a, z_b)  # imports what it needs
    files = []

    def watch(frame, event, argument):
        if event == "call":
            files.append(frame.f_code.co_filename)

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        loss(z_a, z_b)
    finally:
        sys.setprofile(before)
    assert len(files) <= most
    assert sum(file.startswith(HOME) for file in files) <= ours
