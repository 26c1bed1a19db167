"""Philox4x32-10, a random generator without state: every word is a function of a counter and a key.

Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. kernels/views.cu has the same.
"""

from __future__ import annotations

import torch
from torch import Tensor

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)  # what the key grows by in every round
MASK = 0xFFFFFFFF


def philox(counter: Tensor, key: Tensor) -> Tensor:
    """Four random words for every counter.

    ``counter`` [4, ...] and ``key`` [2] hold words of 32 bits as int64 in [0, 2^32); so does the result [4, ...].
    """
    # Words 0 and 2 are multiplied, 1 and 3 are added; each pair is one tensor, which halves the number of operations.
    even, odd = counter[0::2], counter[1::2]
    pair = [2] + [1] * (counter.ndim - 1)
    multipliers, weyl = (torch.tensor(words, device=counter.device).view(pair) for words in (MULTIPLIERS, WEYL))
    key = key.view(pair)
    for _ in range(ROUNDS):
        # The product of two words may pass 2^63; int64 wraps around, and the bits of both halves are still right.
        product = (even * multipliers).flip(0)
        even = (product >> 32).bitwise_and_(MASK).bitwise_xor_(odd).bitwise_xor_(key)
        odd = product.bitwise_and_(MASK)
        key = (key + weyl).bitwise_and_(MASK)
    return torch.stack([even, odd], 1).flatten(0, 1)
