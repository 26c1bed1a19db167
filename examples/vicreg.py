"""VICReg (Bardes, Ponce and LeCun 2022): its terms beside any loss, or beside its own.

    setwise pretrain --use examples/vicreg.py --term my-variance=25 --term my-covariance=1
    setwise pretrain --use examples/vicreg.py --objective.loss invariance --objective.weight 25 \
        --term my-variance=25 --term my-covariance=1

It shows set-level terms and a pairwise loss of your own: functions of two views' embeddings [N, E],
in double precision, which a GPU's mixed precision leaves alone. The package has these terms too,
"variance" and "covariance", and the loss "vicreg"; they also work over many processes.
"""

import torch
from torch import Tensor

import setwise as sw


@sw.register.loss("invariance", about="Mean squared difference of the two views: VICReg's pairwise part.")
def invariance(z_a: Tensor, z_b: Tensor) -> Tensor:
    """Mean over all items and dimensions."""
    return (z_a.double() - z_b.double()).square().mean()


@sw.register.term("my-variance", about="Keep the standard deviation of every dimension above a target: VICReg's.")
def variance(z_a: Tensor, z_b: Tensor, *, target: float = 1.0, epsilon: float = 1e-4) -> Tensor:
    """Mean shortfall of the standard deviations, both views' together."""
    spread = torch.stack([(z.double().var(0) + epsilon).sqrt() for z in (z_a, z_b)])
    return (target - spread).relu().mean()


@sw.register.term("my-covariance", about="Keep the dimensions from telling the same: VICReg's.")
def covariance(z_a: Tensor, z_b: Tensor) -> Tensor:
    """Squared covariances of different dimensions, summed over both views, divided by the number of dimensions."""
    both = torch.stack([z.double().T.cov() for z in (z_a, z_b)])  # [2, E, E]
    return (both.square().sum() - both.diagonal(dim1=1, dim2=2).square().sum()) / both.shape[1]
