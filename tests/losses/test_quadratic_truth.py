"""Sets whose truth counts structure: the partners against enumeration, the loss against that of pairs."""

from itertools import permutations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import setwise as sw
from setwise.losses.sets import partners_inside


def centred(s: Tensor) -> Tensor:
    """Between different items, about their mean."""
    n = len(s)
    rest = [s[i, j].item() for i in range(n) for j in range(n) if i != j]
    return (s - sum(rest) / len(rest)) * (1 - torch.eye(n))


@pytest.mark.parametrize(("n", "m"), [(4, 4), (3, 5), (5, 3)])
def test_quadratic_partners_by_enumeration(n, m):
    """The solver is a heuristic: never worse than the linear optimum, and mostly the best of all ways."""
    generator, best_found, better_than_linear = torch.Generator().manual_seed(n), [], 0
    ids = torch.zeros(n, dtype=torch.int64), torch.zeros(m, dtype=torch.int64)
    for structure in (0.0, 2.0, 4.0, 8.0) * 3:
        z_a, z_b = (torch.randn(size, 4, generator=generator, dtype=torch.float64) for size in (n, m))
        to_b, to_a = partners_inside(z_a, z_b, sw.Sets(*ids, "quadratic", structure=structure), "cosine")
        s, s_a, s_b = (
            F.cosine_similarity(x[:, None], y[None], dim=-1) for x, y in ((z_a, z_b), (z_a, z_a), (z_b, z_b))
        )
        s_a, s_b = centred(s_a), centred(s_b)

        def value(way, s=s, s_a=s_a, s_b=s_b, structure=structure):
            both = sum(s_a[x, u] * s_b[y, v] for x, y in way for u, v in way)
            return float(sum(s[pair] for pair in way) + structure / min(n, m) * both)

        ways = [[*zip(range(n), x, strict=False)] for x in permutations(range(m), n)]
        if n > m:
            ways = [[*zip(x, range(m), strict=True)] for x in permutations(range(n), m)]
        rows = (to_b >= 0).nonzero()[:, 0]
        assert torch.equal(to_a[to_b[rows]], rows)
        assert len(rows) == min(n, m)
        linear = value(max(ways, key=lambda way, s=s: float(sum(s[pair] for pair in way))))
        found, best = value([(int(i), int(to_b[i])) for i in rows]), max(map(value, ways))
        assert linear - 1e-9 <= found <= best + 1e-9
        best_found.append(found > best - 1e-9)
        better_than_linear += found > linear + 1e-9
    assert sum(best_found) >= 8
    assert better_than_linear >= 3
    assert all(best_found[::4])  # without structure


def test_a_price_drops_quadratic_pairs_below_it():
    generator = torch.Generator().manual_seed(0)
    z_a, z_b = (torch.randn(6, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    ids = torch.arange(6) // 3
    every, _ = partners_inside(z_a, z_b, sw.Sets(ids, ids, "quadratic", -2.0), "cosine")
    some, back = partners_inside(z_a, z_b, sw.Sets(ids, ids, "quadratic", -0.2), "cosine")
    scores = F.cosine_similarity(z_a[:, None], z_b[None], dim=-1)
    rows = (some >= 0).nonzero()[:, 0]
    assert (every == -1).all()
    assert 0 < len(rows) < 6
    assert (scores[rows, some[rows]] > 0.2).all()
    assert torch.equal(back[some[rows]], rows)


def test_a_quadratic_truth_is_the_paired_loss_of_its_partners():
    line = torch.tensor([[0.0], [1.0], [3.0], [7.0]], dtype=torch.float64)
    z_a, z_b = line.clone().requires_grad_(), (7 - line).requires_grad_()  # mirrored: structure alone knows the pairs
    ids = torch.zeros(4, dtype=torch.int64)
    for loss in (sw.InfoNCE(similarity="euclidean"), sw.AssignmentLoss(mining="one-to-one")):
        value = loss(z_a, z_b, sets=sw.Sets(ids, ids, "quadratic", structure=16.0))
        torch.testing.assert_close(value, loss(z_a, z_b))
        assert loss(z_a, z_b, sets=sw.Sets(ids, ids, "one-to-one")) < value - 0.5
