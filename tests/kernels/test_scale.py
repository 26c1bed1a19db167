"""Soft assignments inside many sets; the text of their kernel also on a CPU."""

from __future__ import annotations

import ctypes
import math
import runpy
from pathlib import Path

import pytest
import torch

from setwise.assignment.scaling import LAST, PASSES, scaled_assignments
from setwise.kernels.assign import TYPES
from setwise.kernels.nvrtc import source
from setwise.kernels.scale import FILES, THREADS, shares_inside_sets

gpu = pytest.mark.gpu  # tests/conftest.py skips it where there is none
by_duality = runpy.run_path(str(Path(__file__).parents[1] / "losses" / "test_soft_sets.py"))["by_duality"]
SINGLE, DOUBLE = torch.float32, torch.float64
FEW = 128  # threads, with which a CPU is faster

RUN = """
extern "C" void run(int order, int rows, int columns, int passes, int falling, double alone, const SCORE* scores,
                    const long long* ids_a, const long long* ids_b, const SCORE* heats, SCORE* raised, int* members,
                    SCORE* of_a, SCORE* of_b) {
    turn_order = order;
    launch(scale_sets, rows, THREADS, scores, ids_a, ids_b, heats, raised, members, of_a, of_b, rows, columns, passes,
           falling, alone);
}
"""
SHARED = "#undef __shared__\n#define __shared__ static\n"  # one for all threads of a block


@pytest.fixture(scope="module")
def on_cpu(for_cpu):
    """The kernel's own text, by the type of the scores and the threads of a block."""
    made = [(SINGLE, FEW), (DOUBLE, FEW), (SINGLE, THREADS)]
    return {
        (dtype, threads): for_cpu(SHARED + source(FILES, {"SCORE": TYPES[dtype], "THREADS": threads}) + RUN)
        for dtype, threads in made
    }


def solve(on_cpu, scores, ids_a, ids_b, first, wanted, alone=None, passes=PASSES, last=LAST, order=1, threads=FEW):
    """As ``shares_inside_sets``."""
    n, m = scores.shape
    beyond = torch.full((2, 99), 7.0, dtype=scores.dtype)
    found = [torch.cat([scores.new_zeros(n * m), edge]) for edge in beyond]
    heats, raised = torch.tensor([first, wanted], dtype=scores.dtype), scores.new_full((n + m,), math.nan)
    members = torch.full((n + m,), 12345, dtype=torch.int32)
    tensors = [x.contiguous() for x in (scores, ids_a, ids_b, heats, raised, members)] + found
    level = ctypes.c_double(-math.inf if alone is None else alone)
    on_cpu[scores.dtype, threads].run(
        order, n, m, passes, passes - last, level, *(ctypes.c_void_p(x.data_ptr()) for x in tensors)
    )
    order_a, order_b = (ids.argsort(stable=True) for ids in (ids_a, ids_b))
    assert torch.equal(members[:n].long(), order_a), "sets share memory"
    served = torch.isin(ids_b[order_b], ids_a)
    assert torch.equal(members[n:][served].long(), order_b[served])
    for x, edge in zip(found, beyond, strict=True):
        assert torch.equal(x[n * m :], edge), "it wrote beyond the shares"
    return found[0][: n * m].view(n, m), found[1][: n * m].view(m, n)


def plain(scores, ids_a, ids_b, first, wanted, alone=None):
    """Set by set, by the code whose place the kernel takes."""
    of_a, of_b = scores.new_zeros(scores.shape), scores.new_zeros(scores.shape[::-1])
    for one in {*ids_a.tolist()} & {*ids_b.tolist()}:
        i, j = ((ids == one).nonzero()[:, 0] for ids in (ids_a, ids_b))
        spare = (len(i) > len(j), len(j) > len(i)) if alone is None else (False, False)
        spare = [torch.full((len(x),), yes) for x, yes in zip((i, j), spare, strict=True)]
        here = scaled_assignments(scores[i[:, None], j], first, wanted, *spare, alone)
        of_a[i[:, None], j], of_b[j[:, None], i] = here
    return of_a, of_b


SIZES = {  # rows on either side of each pair of sets
    "one": [(1, 1)],
    "two": [(2, 2)],
    "32": [(32, 32)],
    "33": [(33, 33)],
    "100": [(100, 100)],
    "300": [(300, 300)],
    "wide and high": [(1, 40), (40, 1), (20, 33), (33, 20)],
    "one side alone": [(3, 0), (5, 5), (0, 4), (2, 3)],
    "nothing in common": [(3, 0), (0, 4)],
    "all kinds": [(1, 1), (2, 2), (32, 32), (33, 20), (4, 50), (0, 7), (9, 0), (31, 31)],
}


def problem(name, dtype=SINGLE, size=1.0):
    """Scores up to ``size`` and ids in any order, of which some are negative and none follow each other."""
    generator = torch.Generator().manual_seed(len(name))
    sides = [
        torch.tensor([7 * one - 11 for one, pair in enumerate(SIZES[name]) for _ in range(pair[x])]) for x in (0, 1)
    ]
    ids = [side[torch.randperm(len(side), generator=generator)] for side in sides]
    a, b = (torch.randn(len(side), 16, generator=generator, dtype=DOUBLE) for side in ids)
    centres = torch.randn(400, 16, generator=generator, dtype=DOUBLE)
    a, b = (torch.nn.functional.normalize(x + centres[: len(x)]) for x in (a, b))
    return (size * a @ b.T).to(dtype), *ids


def outside(ids_a, ids_b):
    return ids_a[:, None] != ids_b


def close(found, expected, tolerance):
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance, check_dtype=False, equal_nan=True)


CASES = [(name, softness) for name in SIZES for softness in (1.0, 0.1, 0.01) if name != "300" or softness == 0.1]


@pytest.mark.parametrize("alone", [None, 0.15])
@pytest.mark.parametrize(("name", "softness"), CASES)
def test_the_text_of_the_kernel_is_the_plain_code(on_cpu, name, softness, alone):
    scores, *ids = problem(name, DOUBLE)
    found = solve(on_cpu, scores, *ids, 0.1, 0.1 * softness, alone)
    close(found, plain(scores, *ids, 0.1, 0.1 * softness, alone), 1e-11)
    for x, apart in zip(found, (outside(*ids), outside(*ids).mT), strict=True):
        assert not x[apart].any()


@pytest.mark.parametrize("alone", [None, 1.5])
@pytest.mark.parametrize("name", ["33", "100", "wide and high", "all kinds"])
def test_float32_is_exact_where_scores_are_large_and_t_is_small(on_cpu, name, alone):
    scores, *ids = problem(name, size=10.0)
    given = (*ids, 0.1, 0.001, alone)
    found, exact = solve(on_cpu, scores, *given), plain(scores.double(), *given)
    close(found, exact, 3e-4)  # of plain torch in float32 up to 7e-4
    if alone is None:
        for x, own, other in zip(found, ids, reversed(ids), strict=True):
            n, m = ((own[:, None] == side).sum(1) for side in (own, other))
            assert ((x.sum(1) - 1)[(n <= m) & (m > 0)].abs() < 1e-5).all()
            assert (x.sum(1) <= 1 + 1e-5).all()


@pytest.mark.parametrize("alone", [None, -0.1, 0.2])
@pytest.mark.parametrize("name", ["two", "33", "wide and high", "one side alone"])
def test_after_many_passes_shares_are_the_dual_of_scipy(on_cpu, name, alone):
    scores, ids_a, ids_b = problem(name, DOUBLE)
    found = solve(on_cpu, scores, ids_a, ids_b, 0.5, 0.3, alone, passes=100, last=90)
    expected = torch.zeros_like(scores)
    for one in {*ids_a.tolist()} & {*ids_b.tolist()}:
        i, j = ((ids == one).nonzero()[:, 0] for ids in (ids_a, ids_b))
        expected[i[:, None], j] = torch.from_numpy(by_duality(scores[i[:, None], j].numpy(), 0.3, alone))
    close(found, (expected, expected.mT), 1e-7)  # scipy's own error


@pytest.mark.parametrize("threads", [FEW, THREADS])
@pytest.mark.parametrize("alone", [None, 0.15])
def test_threads_wait_for_what_they_read(on_cpu, alone, threads):
    given = (*problem("all kinds"), 0.1, 0.01, alone)
    first = solve(on_cpu, *given)  # each row's sums are of one warp, however many there are
    for order in (0, 2, 57):  # backwards, and all over the block
        for ours, theirs in zip(solve(on_cpu, *given, order=order, threads=threads), first, strict=True):
            assert torch.equal(ours, theirs)


def test_no_number_stays_in_its_set_and_ends(on_cpu):
    scores, *ids = problem("all kinds")
    good = solve(on_cpu, scores, *ids, 0.1, 0.01)
    bad = scores.clone()
    row = int((ids[0] == 2 * 7 - 11).nonzero()[3, 0])  # of the set of 32
    bad[row] = math.nan  # other sets do not read theirs
    same = (ids[0] == ids[0][row])[:, None] & (ids[1] == ids[0][row])
    for x, y, here in zip(solve(on_cpu, bad, *ids, 0.1, 0.01), good, (same, same.mT), strict=True):
        assert x[here].isnan().all()
        assert torch.equal(x[~here], y[~here])
    for value, t in ((math.nan, 0.01), (math.inf, 0.01), (1.0, math.nan), (1.0, 0.0)):
        found = solve(on_cpu, torch.full_like(scores, value), *ids, 0.1, t)
        for x, apart in zip(found, (outside(*ids), outside(*ids).mT), strict=True):
            assert x[~apart].isnan().all()
            assert not x[apart].any()


@pytest.mark.parametrize("alone", [None, 0.15])
def test_forbidden_pairs(on_cpu, alone):
    scores, *ids = problem("33", DOUBLE)
    scores[torch.rand(33, 33, generator=torch.Generator().manual_seed(3)) < 0.3] = -math.inf
    scores[5] = -math.inf  # its only partner is none
    given = (scores, *ids, 0.1, 0.05, alone)
    found = solve(on_cpu, *given)
    close(found, plain(*given), 1e-11)
    assert not found[0][5].any()


def test_without_a_gpu_there_is_no_kernel():
    ids = torch.zeros(2).long()
    assert shares_inside_sets(torch.zeros(2, 2), ids, ids, 0.1, 0.1, None, PASSES, LAST) is None


@gpu
@pytest.mark.parametrize("alone", [None, 0.15])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("name", "softness"), CASES)
def test_a_gpu_gives_the_plain_shares(name, softness, dtype, alone):
    scores, *ids = problem(name, dtype)
    on_gpu = (x.cuda() for x in (scores, *ids))
    found = shares_inside_sets(*on_gpu, 0.1, torch.tensor(0.1 * softness).cuda(), alone, PASSES, LAST)
    expected = plain(scores.double(), *ids, 0.1, float(torch.tensor(0.1 * softness)), alone)
    close([x.cpu() for x in found], expected, 1e-9 if dtype == DOUBLE else 1e-4)


@gpu
def test_a_graph_reads_what_is_there_at_its_replay():
    scores, *ids = (x.cuda() for x in problem("all kinds"))
    first, wanted = torch.tensor(0.1).cuda(), torch.tensor(0.1).cuda()
    given = (scores, *ids, first, wanted, None, PASSES, LAST)
    shares_inside_sets(*given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = shares_inside_sets(*given)
    scores.copy_(scores.flip(0))
    ids[0].copy_(ids[0].flip(0))
    first.fill_(0.2)
    wanted.fill_(0.01)
    for _ in range(2):
        graph.replay()
        expected = plain(scores.cpu().double(), *(x.cpu() for x in ids), 0.2, 0.01)
        close([x.cpu() for x in found], expected, 1e-4)
