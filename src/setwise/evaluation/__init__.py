"""Measure frozen features by a linear probe, nearest neighbours and matching; export the encoder to files."""

from setwise.evaluation.alignment import Alignment, align
from setwise.evaluation.export import load_encoder
from setwise.evaluation.features import extract, frozen
from setwise.evaluation.knn import knn_accuracy
from setwise.evaluation.matching import Matching, match, match_quadratic
from setwise.evaluation.probe import ProbeResult, linear_probe
from setwise.evaluation.ranks import Ranks, match_ranks

__all__ = [
    "Alignment",
    "Matching",
    "ProbeResult",
    "Ranks",
    "align",
    "extract",
    "frozen",
    "knn_accuracy",
    "linear_probe",
    "load_encoder",
    "match",
    "match_quadratic",
    "match_ranks",
]
