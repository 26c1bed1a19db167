"""Two sets of the same items: what pairs alone get wrong, and what the structure within each set repairs."""

import torch

import setwise as sw
from setwise.evaluation import match_quadratic

generator = torch.Generator().manual_seed(0)
items = torch.nn.functional.normalize(torch.randn(120, 16, generator=generator))
turn = torch.linalg.matrix_exp(0.2 * (skew := torch.randn(16, 16, generator=generator)) - 0.2 * skew.T)
other = items @ turn + 0.05 * torch.randn(120, 16, generator=generator)  # one view is turned, and a little noisy

found = sw.match(items, other)
print(f"pairs alone: {found.accuracy:.1%} right, rank-1 {found.rank[1]:.1%}, mAP {found.mean_average_precision:.3f}")
print(f"greedy instead of optimal: {found.greedy_accuracy:.1%} right, cost {found.greedy_gap:+.1%}")
for weight in (4.0, 16.0, 64.0):
    repaired = match_quadratic(items, other, weight=weight)
    print(f"pairs and structure, weight {weight:g}: {repaired.accuracy:.1%} right")
qare, gap = sw.QARe(similarity="euclidean"), sw.QARe(similarity="euclidean", reference="truth")
print(f"QARe {qare(items, other).item():.3f}, alignment gap {gap(items, other).item():.4f}")
