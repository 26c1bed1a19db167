"""Our losses where lightly's stand: ``criterion(out0, out1)`` with lightly's argument names. lightly is not needed.

Every setwise loss already is such a criterion; what lightly's have beside is ``gather_distributed``:

    criterion = lightly.loss.NTXentLoss(temperature=0.5, gather_distributed=True)
    criterion = setwise.adapters.lightly.NTXentLoss(temperature=0.5, gather_distributed=True)              # the same
    criterion = setwise.adapters.lightly.NTXentLoss(temperature=0.5, gather_distributed=True, beta=0.5)    # and QARe
    criterion = setwise.adapters.lightly.Criterion(setwise.SparseCLR(), gather_distributed=True)           # any other
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch.distributed as dist
from torch import Tensor, nn

from setwise.checks import check_loss, check_number
from setwise.losses.combined import SetContrastive
from setwise.losses.modules import NTXent
from setwise.losses.parallel import Processes, distributed


class Criterion(nn.Module):
    """Any ``loss(z_a, z_b)``; with ``gather_distributed`` it is over the batch of all processes.

    As in lightly, it may be made before torch.distributed is initialised: the first call with more than one process
    switches to ``setwise.distributed``. Every process then has the loss of the whole batch; lightly gives each process
    the loss of its own rows, of which ours is the mean. After DDP's averaging the gradients are the same.
    """

    def __init__(self, loss: Callable[..., Tensor], gather_distributed: bool = False) -> None:
        super().__init__()
        check_loss(loss, "loss")
        if gather_distributed and not dist.is_available():
            raise ValueError("expected a torch with torch.distributed for gather_distributed=True, got one without")
        self.loss, self.gather_distributed = loss, gather_distributed
        self._gathers = False

    def forward(self, out0: Tensor, out1: Tensor) -> Tensor:
        """The loss of two views [N, E] of the same items, unnormalised."""
        if self.gather_distributed and not self._gathers and Processes().size > 1:
            self.loss, self._gathers = distributed(self.loss), True
        return self.loss(out0, out1)

    def extra_repr(self) -> str:
        """Whether it gathers."""
        return f"gather_distributed={self.gather_distributed}"


class NTXentLoss(Criterion):
    """lightly's ``NTXentLoss``, and with ``beta`` the set-level term beside it: NT-Xent + beta · QARe.

    Without lightly's memory bank: QARe compares two sets of the same items, and a bank has no second view of its own.
    """

    def __init__(
        self,
        temperature: float | Tensor = 0.5,
        memory_bank_size: int | Sequence[int] = 0,
        gather_distributed: bool = False,
        *,
        beta: float = 0.0,
    ) -> None:
        size = memory_bank_size if isinstance(memory_bank_size, int) else memory_bank_size[0]
        if size:
            raise ValueError(
                f"expected memory_bank_size=0, got {memory_bank_size!r}; for a bank add setwise.QARe()(out0, out1) to "
                "lightly's own loss, or give its contents to setwise.NTXent as extra negatives"
            )
        check_number(beta, "beta", least=0)
        pairwise = NTXent(temperature=temperature)
        super().__init__(SetContrastive(pairwise, beta) if beta else pairwise, gather_distributed)
