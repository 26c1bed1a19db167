"""Assignments inside many sets; the text of their kernel also on a CPU."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment

from setwise.kernels.assign import FILES, THREADS, TYPES, best_inside
from setwise.kernels.nvrtc import source

gpu = pytest.mark.gpu  # tests/conftest.py skips it where there is none

RUN = """
extern "C" void run(int order, int rows, int columns, const SCORE* scores, const long long* ids_a,
                    const long long* ids_b, double* prices, double* shortest, int* members, int* before, int* partner,
                    int* scanned, long long* to_b, long long* to_a) {
    turn_order = order;
    launch(assign_sets, rows, THREADS, scores, ids_a, ids_b, prices, shortest, members, before, partner, scanned, to_b,
           to_a, rows, columns);
}
"""
SHARED = "#undef __shared__\n#define __shared__ static\n"  # one for all threads of a block


@pytest.fixture(scope="module")
def on_cpu(for_cpu):
    """The kernel's own text, by the type of the scores."""
    text = {dtype: SHARED + source(FILES, {"SCORE": kind, "THREADS": THREADS}) + RUN for dtype, kind in TYPES.items()}
    return {dtype: for_cpu(one) for dtype, one in text.items()}


def solve(on_cpu, scores: torch.Tensor, ids_a: torch.Tensor, ids_b: torch.Tensor, order: int = 1):
    n, m = scores.shape
    given = [scores.contiguous(), ids_a.contiguous(), ids_b.contiguous()]
    scratch = [torch.full((n + m,), np.nan, dtype=torch.float64) for _ in range(2)]
    scratch += [torch.full((n + m,), 12345, dtype=torch.int32) for _ in range(4)]
    found = [torch.full((size,), -1) for size in (n, m)]
    tensors = [ctypes.c_void_p(x.data_ptr()) for x in (*given, *scratch, *found)]
    on_cpu[scores.dtype].run(order, n, m, *tensors)
    return found


def check(scores, ids_a, ids_b, to_b, to_a) -> None:
    """Every pair is inside its sets, the smaller side is matched whole, and the sum is scipy's."""
    for one in ids_a.unique().tolist():
        i, j = (ids_a == one).nonzero()[:, 0], (ids_b == one).nonzero()[:, 0]
        matched = i[to_b[i] >= 0]
        assert len(matched) == min(len(i), len(j))
        assert set(to_b[matched].tolist()) <= set(j.tolist())
        assert torch.equal(to_a[to_b[matched]], matched)
        if len(matched):
            part = scores[i][:, j].double().numpy()
            best = part[linear_sum_assignment(part, maximize=True)].sum()
            assert scores[matched, to_b[matched]].double().sum().item() == pytest.approx(best, rel=1e-12, abs=1e-12)
    assert (to_a >= 0).sum() == (to_b >= 0).sum()


def problems():
    """Scores and sets of every awkward kind, by name."""
    generator = torch.Generator().manual_seed(0)

    def ids(n, sets):
        return torch.randint(sets, (n,), generator=generator)

    noise = torch.randn(300, 280, generator=generator)
    trained = 3 * torch.eye(300)[:, :280] + 0.5 * noise
    return {
        "one set": (noise[:40, :40], torch.zeros(40).long(), torch.zeros(40).long()),
        "one wide set": (noise[:17, :150], torch.zeros(17).long(), torch.zeros(150).long()),
        "one high set": (noise[:150, :17], torch.zeros(150).long(), torch.zeros(17).long()),
        "one of one": (noise[:1, :1], torch.zeros(1).long(), torch.zeros(1).long()),
        "many sets": (noise, ids(300, 20) * 7 - 3, ids(280, 22) * 7 - 3),
        "many sets, trained": (trained, torch.arange(300) // 32, torch.arange(280) // 32),
        "sets of one": (noise[:50, :50], torch.arange(50), torch.arange(50).flip(0)),
        "no set in common": (noise[:9, :9], torch.zeros(9).long(), torch.ones(9).long()),
        "two large sets": (noise[:270, :270], torch.arange(270) % 2, torch.arange(270) % 2),
        "ties": (noise[:60, :60].clamp(0.5, 1.0), torch.arange(60) // 30, torch.arange(60) // 30),
        "all equal": (torch.zeros(40, 35), torch.zeros(40).long(), torch.zeros(35).long()),
        "whole numbers": ((4 * noise[:64, :64]).round(), torch.arange(64) // 32, torch.arange(64) // 32),
        "far apart": (noise[:33, :33] * 10.0 ** torch.arange(-16, 17), *(torch.zeros(33).long() for _ in "ab")),
    }


@pytest.mark.parametrize("name", problems())
@pytest.mark.parametrize("dtype", TYPES)
def test_the_text_of_the_kernel_finds_scipys_optimum(on_cpu, name, dtype):
    scores, ids_a, ids_b = problems()[name]
    scores = scores.to(dtype)
    check(scores, ids_a, ids_b, *solve(on_cpu, scores, ids_a, ids_b))


@pytest.mark.parametrize("name", ["many sets", "two large sets", "ties"])
def test_threads_wait_for_what_they_read(on_cpu, name):
    scores, ids_a, ids_b = problems()[name]
    first = solve(on_cpu, scores, ids_a, ids_b)
    for order in (0, 2, 57):  # backwards, and all over the block
        again = solve(on_cpu, scores, ids_a, ids_b, order)
        assert torch.equal(first[0], again[0])
        assert torch.equal(first[1], again[1])


@pytest.mark.parametrize("value", [np.nan, -np.inf, np.inf])
def test_scores_that_are_not_finite_end_with_some_assignment(on_cpu, value):
    scores = problems()["one set"][0].clone()
    scores[3], scores[:, 5], scores[7, 7] = value, value, -value
    for bad in (scores, torch.full_like(scores, value)):
        to_b, to_a = solve(on_cpu, bad, torch.zeros(40).long(), torch.zeros(40).long())
        assert sorted(to_b.tolist()) == list(range(40))
        assert torch.equal(to_a[to_b], torch.arange(40))


def test_without_a_gpu_there_is_no_kernel():
    assert best_inside(torch.zeros(2, 2), torch.zeros(2).long(), torch.zeros(2).long()) is None


@gpu
@pytest.mark.parametrize("name", problems())
@pytest.mark.parametrize("dtype", TYPES)
def test_a_gpu_finds_scipys_optimum(name, dtype):
    scores, ids_a, ids_b = problems()[name]
    scores = scores.to(dtype)
    found = best_inside(scores.cuda(), ids_a.cuda(), ids_b.cuda())
    check(scores, ids_a, ids_b, *(x.cpu() for x in found))


@gpu
def test_a_graph_solves_what_comes_next():
    scores, ids_a, ids_b = (x.cuda() for x in problems()["many sets"])
    best_inside(scores, ids_a, ids_b)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = best_inside(scores, ids_a, ids_b)
    scores.copy_(torch.randn(scores.shape, generator=torch.Generator().manual_seed(9)))
    ids_a.copy_(ids_a.flip(0))
    graph.replay()
    check(scores.cpu(), ids_a.cpu(), ids_b.cpu(), *(x.cpu() for x in found))
