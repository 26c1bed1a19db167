"""All that ``import setwise as sw`` gives, imported at once; ``setwise`` itself does so when it is first asked for."""
# ruff: noqa: F401 - imported to be found here

import setwise.assignment as assignment
import setwise.data as data
import setwise.encoders as encoders
import setwise.views as views
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
