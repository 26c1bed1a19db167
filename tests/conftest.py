"""Shared by all tests: one thread, the same examples every time, and seeded embeddings."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import settings
from torch import Tensor

torch.set_num_threads(1)
settings.register_profile("setwise", derandomize=True, deadline=None)
settings.load_profile("setwise")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device, none here")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


@pytest.fixture
def views() -> Callable[..., tuple[Tensor, Tensor]]:
    """Two noisy views of the same random items, [N, E] float64, leaves that require a gradient."""

    def make(n: int = 6, e: int = 4, *, noise: float = 0.7, seed: int = 0, dtype: torch.dtype = torch.float64):
        generator = torch.Generator().manual_seed(seed)
        items = torch.randn(n, e, generator=generator, dtype=torch.float64)
        pair = [items + noise * torch.randn(n, e, generator=generator, dtype=torch.float64) for _ in "ab"]
        return tuple(z.to(dtype).requires_grad_() for z in pair)

    return make
