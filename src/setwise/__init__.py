"""setwise: contrastive losses as assignment problems, and the set-level regulariser QARe, for PyTorch.

>>> import setwise as sw
>>> loss = sw.SetContrastive(sw.InfoNCE(temperature=0.05), beta=0.5)    # loss(z_a, z_b) -> scalar
"""

from setwise import assignment, data, encoders, views
from setwise.assignment import matching_accuracy
from setwise.evaluation.matching import Matching, match
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
from setwise.version import __version__

__all__ = [
    "PRESETS",
    "AssignmentLoss",
    "InfoNCE",
    "Matching",
    "NTLogistic",
    "NTXent",
    "QARe",
    "SetContrastive",
    "SparseCLR",
    "TripletMargin",
    "__version__",
    "assignment",
    "data",
    "distributed",
    "encoders",
    "functional",
    "match",
    "matching_accuracy",
    "presets",
    "views",
]
