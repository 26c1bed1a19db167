"""Tabu walks of very many permutations at once, in torch on the device of the problem; on a GPU a step is one graph.

The search is that of ``heuristics.tabu``, with the same moves. A GPU takes hundreds of walks in the time of a few, so
there are more of them and fewer steps. Budgets are counts here too. All random numbers are drawn on the CPU, and the
device is waited for once a generation, never within a walk.
"""

from __future__ import annotations

import gc

import numpy as np
import torch
from torch import Tensor

from setwise.assignment.heuristics import ROUND_STEPS, Floats, Ints, bend, generations, scale

WALKS = 512  # at 160 steps a row they find hidden trees of N = 40, where the CPU's budget ends 24 to 140 % above
ENTRIES = 4_000_000  # walks x N^2 at most (but eight walks at least): the tables then stay in a large GPU's cache
STEPS = 160  # steps a row ...
WORK = 6e10  # ... but walks x steps x N^2 at most, 15,000 steps from N = 94 on
WARM_UP = 3  # steps before one is captured: libraries choose their kernels and allocate what they keep


def tabu_walks(a: Floats, b: Floats, linear: Floats, rng: np.random.Generator, device: torch.device) -> Ints:
    """Best permutation of a memetic search whose walks are made on ``device``."""
    n = len(a)
    count = max(8, min(WALKS, ENTRIES // n**2))
    steps = min(STEPS * n, int(WORK / (count * n**2)))
    walks = _Walks(a, b, linear, count, device)
    return generations(a, b, linear, rng, count, steps, lambda p, steps: walks.run(p, steps, rng))


class _Walks:
    """R tabu walks side by side; what ``_Swaps`` and ``_walk`` of ``heuristics`` are in numpy, with their letters.

    All tensors are made once and changed in place, so that a captured step goes on where the last one ended.
    """

    def __init__(self, a: Floats, b: Floats, linear: Floats, count: int, device: torch.device) -> None:
        n = len(a)

        def moved(x: Floats) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(x)).to(device)

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64, device=device)

        self.device, self.penalty = device, 4 * scale(a, b, linear)  # more than any swap changes
        self.a, self.b, self.bend_a, self.bend_b = map(moved, (a, b, bend(a), bend(b)))
        self.linear = moved(linear.T) if linear.any() else None
        symmetric = np.array_equal(a, a.T) and np.array_equal(b, b.T)
        self.k = 1 if symmetric else 2
        self.a_rows = moved(a[:, None] if symmetric else np.stack((a, a.T), 1))  # [N, K, N]
        self.a_flat = self.a_rows.permute(1, 2, 0).reshape(-1, n)  # [K N, N]
        self.b_rows = moved(np.stack((2 * b, bend(b)) if symmetric else (b, b.T, bend(b)), 1))  # [N, K + 1, N]
        self.delta, self.until, self.cost = zeros(count, n, n), zeros(count, n, n), zeros(count, n, n)
        self.value, self.best_value, self.now = zeros(count), zeros(count), zeros(1)
        self.p = torch.zeros(count, n, dtype=torch.long, device=device)
        self.best, self.turn = torch.zeros_like(self.p), torch.zeros(1, dtype=torch.long, device=device)
        self.free_again = zeros(ROUND_STEPS * n, 2, count)  # [steps, 2, R]: when a step's two pairs are allowed again
        self.thin = zeros(count, 3 * (self.k + 3), n)  # x, y, x again: delta changes by x^T y + y^T x
        self.thin[:, [self.k + 2, -1]] = 1
        self.signs, self.rows = torch.tensor([1.0, -1.0], device=device).double(), torch.arange(n, device=device)
        self.graph: torch.cuda.CUDAGraph | None = None

    def run(self, p: Ints, steps: int, rng: np.random.Generator) -> tuple[Ints, Floats]:
        """Best permutation of each walk from ``p`` [R, N], and its value."""
        n = p.shape[1]
        tenure = rng.integers(int(0.9 * n), int(1.1 * n) + 2, size=(steps, 2, len(p)))
        free_again = torch.from_numpy((np.arange(steps)[:, None, None] + tenure) * self.penalty)
        start = torch.from_numpy(p)
        if self.device.type == "cuda" and self.graph is None:
            self._capture(start.to(self.device))
        self._start(start.to(self.device))
        self.free_again[:steps] = free_again.to(self.device)
        for _ in range(steps):
            if self.graph is None:
                self._step()
            else:
                self.graph.replay()
        return self.best.cpu().numpy().copy(), self.best_value.cpu().numpy().copy()

    def _capture(self, p: Tensor) -> None:
        """Make one step a CUDA graph: its forty small operations take longer to launch than to run."""
        with torch.cuda.device(self.device):
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self._start(p)
                for _ in range(WARM_UP):
                    self._step()
            torch.cuda.current_stream().wait_stream(stream)
            graph, collects = torch.cuda.CUDAGraph(), gc.isenabled()
            gc.disable()  # a dead graph that Python's collector finds during a capture ends that one
            try:
                with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                    self._step()
            finally:
                if collects:
                    gc.enable()
            self.graph = graph

    def _start(self, p: Tensor) -> None:
        """Go to the permutations ``p`` [R, N], with nothing forbidden."""
        b_p = self.b[p[:, :, None], p[:, None, :]]
        linear = self.a.new_zeros(b_p.shape) if self.linear is None else self.linear[p].mT  # [R, N, N]
        self.value.copy_((self.a * b_p).sum((1, 2)) + linear.diagonal(dim1=1, dim2=2).sum(1))
        t = self.a.mT @ b_p + self.a @ b_p.mT + linear
        t -= t.diagonal(dim1=1, dim2=2)[:, :, None].clone()
        self.delta.copy_(self.bend_a * self.bend_b[p[:, :, None], p[:, None, :]] + t + t.mT)
        self.delta.diagonal(dim1=1, dim2=2).fill_(torch.inf)
        self.p.copy_(p)
        self.best.copy_(p)
        self.best_value.copy_(self.value)
        self.until.zero_()
        self.turn.zero_()
        self.now.fill_(0.5 * self.penalty)

    def _step(self) -> None:
        """The best swap of each walk that is allowed, or leads to a new best; then what every other would change."""
        walks, n = self.p.shape
        delta = self.delta.view(walks, -1)
        torch.sub(self.until, self.now, out=self.cost)
        torch.maximum(self.cost, self.delta, out=self.cost)
        both = torch.stack((delta.argmin(1), self.cost.view(walks, -1).argmin(1)), 1)  # the lowest; of those allowed
        changes = delta.gather(1, both)
        new_best = changes[:, 0] < self.best_value - self.value
        chosen, change = (torch.where(new_best, x[:, 0], x[:, 1])[:, None] for x in (both, changes))
        pair = torch.cat((chosen // n, chosen % n), 1)  # [R, 2]: the rows u and v that change columns
        self._forbid(pair)
        self._move(pair)
        self.value += change[:, 0]
        better = self.value < self.best_value
        self.best.copy_(torch.where(better[:, None], self.p, self.best))
        torch.minimum(self.value, self.best_value, out=self.best_value)
        self.turn += 1
        self.now += self.penalty

    def _forbid(self, pair: Tensor) -> None:
        """Rows u and v may not take their columns back for a while; what is forbidden moves with the columns."""
        walks, n = self.p.shape
        places = pair[:, :, None].expand(walks, 2, n)
        rows = self.until.gather(1, places)
        rows.scatter_(2, pair[:, :, None], self.free_again[self.turn][0].mT[:, :, None])
        self.until.scatter_(1, places, rows.flip(1))

    def _move(self, pair: Tensor) -> None:
        """Swap the columns of two rows in each walk, and bring ``delta`` up to date in O(N^2)."""
        k = self.k
        x, y, again = self.thin.chunk(3, 1)
        columns = self.p.gather(1, pair)
        units, slopes = x[:, k : k + 2], x[:, :k]
        torch.mul(self.rows == pair[:, :, None], self.signs[:, None], out=units)
        d = units.sum(1)
        of_rows = self.a_rows[pair]  # [R, 2, K, N]
        torch.sub(of_rows[:, 0], of_rows[:, 1], out=slopes)
        again.copy_(x)
        of_columns = self.b_rows[columns]  # [R, 2, K + 1, N]
        places = self.p[:, None].expand(-1, k + 1, -1)
        differences = (of_columns[:, 1] - of_columns[:, 0]).gather(2, places)
        bent = self.bend_b[columns[:, 0], columns[:, 1]][:, None] * d
        rho = differences[:, :k] + (bent if k == 1 else bent / 2)[:, None]
        y[:, :k] = rho
        h = rho.reshape(len(rho), -1) @ self.a_flat
        if self.linear is not None:
            of_linear = self.linear[columns]
            h += of_linear[:, 1] - of_linear[:, 0]
        bends = differences[:, k] - bent
        y[:, k : k + 2] = self.bend_a[pair] * bends[:, None] + h[:, None]
        y[:, k + 2] = -(slopes * rho).sum(1) - d * h
        width = k + 3
        self.delta.baddbmm_(self.thin[:, : 2 * width].mT, self.thin[:, width:])
        self.p.scatter_(1, pair, columns.flip(1))
