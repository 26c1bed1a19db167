"""All names of ``import setwise as sw``, imported together when the first one is used.

``x as x`` tells a type checker that the name is public here.
"""
# ruff: noqa: F401 - imported to be public here

import setwise.assignment as assignment
import setwise.data as data
import setwise.encoders as encoders
import setwise.register as register
import setwise.views as views
from setwise.assignment import matching_accuracy as matching_accuracy
from setwise.evaluation.alignment import Alignment as Alignment
from setwise.evaluation.alignment import align as align
from setwise.evaluation.matching import Matching as Matching
from setwise.evaluation.matching import match as match
from setwise.losses import functional as functional
from setwise.losses.combined import SetContrastive as SetContrastive
from setwise.losses.gram import BarlowTwins as BarlowTwins
from setwise.losses.gram import VICReg as VICReg
from setwise.losses.modules import AssignmentLoss as AssignmentLoss
from setwise.losses.modules import InfoNCE as InfoNCE
from setwise.losses.modules import NTLogistic as NTLogistic
from setwise.losses.modules import NTXent as NTXent
from setwise.losses.modules import QARe as QARe
from setwise.losses.modules import SparseCLR as SparseCLR
from setwise.losses.modules import TripletMargin as TripletMargin
from setwise.losses.options import Sets as Sets
from setwise.losses.parallel import Processes as Processes
from setwise.losses.parallel import distributed as distributed
from setwise.losses.presets import PRESETS as PRESETS
from setwise.losses.presets import presets as presets
from setwise.methods.method import Batch as Batch
from setwise.methods.method import Method as Method
from setwise.methods.method import Parts as Parts
