"""Estimates of the processor seconds of a call in LIBSVM and here, from which the drop-in decides.

They depend on rows, classes, features, the kernel and C alone, so that a program that is run again gets the same
numbers. Of 60 problems on one core (normal numbers in clusters, 2 to 26 classes of 50 to 400 rows, 4 to 64 features, C
of 1 and 32), LIBSVM's estimate is .3 to 4 times its seconds where these are 10 ms or more. None that is taken over is
slower here.
"""

from __future__ import annotations

from cacore.data.rows import Rows, is_sparse
from cakernels.dropin.calls import Cost
from cakernels.dropin.libsvm_problem import CLASSES, LibsvmModel, LibsvmProblem

_VALUE, _TERM = 1e-8, 3.5e-10  # LIBSVM's seconds per kernel value, and per feature or nonzero of it
_SHARES = {"SVC": 0.2, "SVR": 2.0}  # support vectors per row, with C = 1; of the others it is nu
_STEP = 1e-9  # LIBSVM's seconds per row and pair of rows optimised
_CALL, _PAIR = 2e-3, 1.5e-4  # our seconds per call and per pair of classes
_FASTER = 0.25  # our share of LIBSVM's seconds that depend on the rows
_PREDICTING, _PREDICTED = 6e-4, 0.3  # our seconds per call that predicts, and our share of LIBSVM's others
_LEAST_GIVEN = 4000  # rows of a precomputed kernel, which LIBSVM only reads, from which pairs are faster here


def of_training(problem: LibsvmProblem) -> Cost:
    """Cost of training: kernel values of support vectors with all rows of each pair of classes, and pairs of rows."""
    n, k = int(problem.X.shape[0]), max(2, len(problem.class_weight)) if problem.classifies else 2
    pairs, m = k * (k - 1) // 2, 2 * n / k
    C, share = max(1.0, problem.C), _SHARES.get(CLASSES[problem.svm_type], problem.nu)
    # More C makes fewer support vectors, and more steps.
    steps = m * min(C, 1e3) ** 0.5
    value = _STEP if problem.kernel == "precomputed" else _VALUE + _TERM * _nonzeros(problem.X)
    theirs = pairs * (share * m * m * value + _STEP * steps * m)
    ours = _CALL + pairs * _PAIR + _FASTER * theirs
    if problem.kernel == "precomputed" and n < _LEAST_GIVEN:
        ours = max(ours, theirs)
    return Cost(theirs, ours)


def of_prediction(machine: LibsvmModel, X: Rows) -> Cost:
    """Cost of predictions: kernel values of all rows with all support vectors."""
    if machine.kernel == "precomputed":
        return Cost(0.0, 0.0)
    theirs = float(X.shape[0]) * machine.vectors.shape[0] * (_VALUE + _TERM * _nonzeros(machine.vectors))
    return Cost(theirs, _PREDICTING + _PREDICTED * theirs)


def _nonzeros(X: Rows) -> float:
    """Mean number of stored numbers of a row."""
    return float(X.nnz / max(1, X.shape[0]) if is_sparse(X) else X.shape[1])
