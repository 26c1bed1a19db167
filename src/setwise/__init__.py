"""setwise: contrastive losses as assignment problems, and the set-level regulariser QARe, for PyTorch.

>>> import setwise as sw
>>> loss = sw.SetContrastive(sw.InfoNCE(temperature=0.05), beta=0.5)    # loss(z_a, z_b) -> scalar
"""

from setwise import assignment, data, encoders, views
from setwise.assignment import matching_accuracy
from setwise.losses import functional
from setwise.losses.modules import (
    AssignmentLoss,
    InfoNCE,
    NTLogistic,
    NTXent,
    QARe,
    SetContrastive,
    SparseCLR,
    TripletMargin,
)
from setwise.losses.parallel import distributed
from setwise.losses.presets import PRESETS, presets

__version__ = "0.1.0"

__all__ = [
    "PRESETS",
    "AssignmentLoss",
    "InfoNCE",
    "NTLogistic",
    "NTXent",
    "QARe",
    "SetContrastive",
    "SparseCLR",
    "TripletMargin",
    "assignment",
    "data",
    "distributed",
    "encoders",
    "functional",
    "matching_accuracy",
    "presets",
    "views",
]
