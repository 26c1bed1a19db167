"""The combinatorial core: linear and quadratic assignment, smoothed maxima over assignments, spectral bounds."""

from setwise.assignment.linear import matching_accuracy, solve_linear
from setwise.assignment.quadratic import QuadraticSolution, quadratic_objective, solve_quadratic
from setwise.assignment.rows import Maximum, row_maximum, sparsemax
from setwise.assignment.smoothing import assignment_maximum
from setwise.assignment.spectrum import spectral_bounds

__all__ = [
    "Maximum",
    "QuadraticSolution",
    "assignment_maximum",
    "matching_accuracy",
    "quadratic_objective",
    "row_maximum",
    "solve_linear",
    "solve_quadratic",
    "sparsemax",
    "spectral_bounds",
]
