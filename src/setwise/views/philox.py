"""Philox4x32-10, a random generator without state: every word is a function of a counter and a key.

Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. kernels/views.cu has the same.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)  # what the key grows by in every round
MASK = 0xFFFFFFFF


@cache
def _constants(device: torch.device) -> Tensor:
    """Both rows of constants, made once: a copy to a GPU waits, and cannot be captured in a graph."""
    return torch.tensor([MULTIPLIERS, WEYL], device=device)


def philox(counter: Tensor, key: Tensor) -> Tensor:
    """Four random words for every counter.

    ``counter`` [4, ...] and ``key`` [2] hold words of 32 bits as int64 in [0, 2^32); so does the result [4, ...].
    """
    # Words 0 and 2 are multiplied, 1 and 3 are added; each pair is one tensor, which halves the number of operations.
    pair = [2] + [1] * (counter.ndim - 1)
    multipliers, weyl = _constants(counter.device)
    keys = torch.arange(ROUNDS, device=counter.device)[:, None] * weyl + key
    multipliers, even, odd = multipliers.view(pair), counter[0::2], counter[1::2]
    for round_key in keys.view(ROUNDS, *pair).unbind():
        # The product of two words may pass 2^63; int64 wraps around, and the bits of both halves are still right.
        # Its low half is the next odd word, as soon as what is above 32 bits is masked.
        product = (even * multipliers).flip(0)
        even = (product >> 32).bitwise_xor_(odd).bitwise_xor_(round_key).bitwise_and_(MASK)
        odd = product
    return torch.stack([even, odd.bitwise_and_(MASK)], 1).flatten(0, 1)


def words_of(samples: Tensor, seed: Tensor, epoch: Tensor, last: int | Tensor) -> Tensor:
    """Four words [4, ...] for every sample: the key is the seed, the counter is (sample's two words, epoch, ``last``).

    ``samples`` int64 [B], ``seed`` and ``epoch`` [] int64, of which the epoch counts modulo 2^32; ``last`` below 2^32
    broadcasts against the samples: [B], or [K, 1] for [4, K, B].
    """
    last = samples.new_full((), last) if isinstance(last, int) else last
    parts = (samples & MASK, (samples >> 32) & MASK, epoch & MASK, last)
    counter = torch.broadcast_tensors(*parts)  # type: ignore[no-untyped-call]
    return philox(torch.stack(counter), torch.stack([seed & MASK, (seed >> 32) & MASK]))
