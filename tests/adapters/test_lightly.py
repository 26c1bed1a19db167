"""lightly: the same numbers as its NT-Xent, QARe beside it, and one loss over two real processes (gloo)."""

import copy
import os

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.functional import cross_entropy

import setwise as sw
from setwise.adapters.lightly import Criterion, NTXentLoss

TOTAL = 6


def plain_nt_xent(a, b, temperature):
    """NT-Xent as lightly documents it: cross-entropy among the 2N - 1 others."""
    z = torch.cat([a, b])
    z = z / z.norm(dim=1, keepdim=True)
    scores = (z @ z.T / temperature).fill_diagonal_(-torch.inf)
    return cross_entropy(scores, torch.arange(len(z)).roll(len(a)))


@pytest.mark.parametrize("temperature", [0.1, 0.5])
def test_nt_xent(views, temperature):
    a, b = views()
    torch.testing.assert_close(NTXentLoss(temperature)(a, b), plain_nt_xent(a, b, temperature))
    torch.testing.assert_close(NTXentLoss(temperature)(out1=b, out0=a), NTXentLoss(temperature)(a, b))


@pytest.mark.parametrize("temperature", [0.1, 0.5])
def test_against_lightly(package, views, temperature):
    a, b = views()
    theirs = package("lightly.loss").NTXentLoss
    losses = [loss(temperature, 0, False)(a, b) for loss in (NTXentLoss, theirs)]
    torch.testing.assert_close(*losses)
    torch.testing.assert_close(*(torch.autograd.grad(loss, (a, b)) for loss in losses))
    assert NTXentLoss().loss.options["temperature"] == theirs().temperature
    assert NTXentLoss().gather_distributed == theirs().gather_distributed


def test_any_loss_and_one_process(views):
    a, b = views()
    for gather in (False, True):  # with no other process there is nothing to gather, as in lightly
        torch.testing.assert_close(Criterion(sw.TripletMargin(), gather)(a, b), sw.TripletMargin()(a, b))
    assert "gather_distributed=True" in repr(NTXentLoss(gather_distributed=True))


def test_bad_input():
    for size in (4096, (4096, 128)):
        with pytest.raises(ValueError, match="expected memory_bank_size=0, got .*4096.*extra negatives"):
            NTXentLoss(0.5, size)
    NTXentLoss(0.5, (0, 128))
    with pytest.raises(ValueError, match=r"expected loss to be a loss, got the class NTXent; NTXent\(\) is one"):
        Criterion(sw.NTXent)
    with pytest.raises(ValueError, match="expected temperature to be a finite number above 0, got 0"):
        NTXentLoss(0)
    with pytest.raises(ValueError, match="expected beta to be a finite number of at least 0, got -1"):
        NTXentLoss(beta=-1)


def whole_batch():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, TOTAL, 4, generator=generator, dtype=torch.float64)


def worker(rank, folder):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    criteria = {gather: NTXentLoss(0.5, 0, gather, beta=0.5) for gather in (True, False)}  # before there are processes
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    results = {}
    for gather, criterion in criteria.items():
        a, b = (z.chunk(2)[rank].clone().requires_grad_() for z in whole_batch())
        for _ in "twice":  # switched once
            loss = criterion(a, b)
        results[gather] = (loss.detach(), *torch.autograd.grad(loss, (a, b)))
        copy.deepcopy(criterion)
    torch.save(results, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def test_two_processes_are_one_batch(tmp_path):
    mp.spawn(worker, args=(str(tmp_path),), nprocs=2)
    a, b = (z.requires_grad_() for z in whole_batch().unbind())
    expected = plain_nt_xent(a, b, 0.5) + 0.5 * sw.functional.qare(a, b)
    grads = torch.autograd.grad(expected, (a, b))
    for rank in range(2):
        results = torch.load(tmp_path / f"{rank}.pt")
        value, *got = results[True]
        torch.testing.assert_close(value, expected.detach())
        for mine, whole in zip(got, grads, strict=True):
            torch.testing.assert_close(mine, 2 * whole.chunk(2)[rank])  # DDP divides by the number of processes
        own_a, own_b = (z.chunk(2)[rank] for z in whole_batch())
        torch.testing.assert_close(
            results[False][0], plain_nt_xent(own_a, own_b, 0.5) + 0.5 * sw.functional.qare(own_a, own_b)
        )
