"""Training of one model: one problem per class against the rest, or per pair of classes."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from asygcd.asygcd_model import AsyGCDModel
from asygcd.options import AsyGCDFit, AsyGCDOptions
from asygcd.solver.asygcd import AsyGCD, AsyGCDProgress, AsyGCDSolution
from asygcd.solver.kernel_columns import check_memory
from cacore.comm import Communicator
from cacore.data.dataset import Dataset
from cacore.data.holdout import FOLDS, stratified
from cacore.data.labels import all_classes, class_factors, require_classes
from cacore.data.resolution import check_resolved
from cacore.data.rows import Rows, check_squares, in_memory
from cacore.data.standardize import Standardizer
from cacore.kernels import Kernel
from cacore.kernels.precision import Accuracy
from cacore.learn.method import Method
from cacore.machine import threads
from cacore.probability.calibrator import Calibrator
from cacore.probability.left_out import LeftOutDecisions, folds_to_leave_out
from cacore.svm.problem import numeric_gamma, precision

Vector = NDArray[np.float64]

_LOOSE = 1e-2  # tolerance of the models that only make decisions for held-out rows


def described(progress: AsyGCDProgress) -> str:
    """One line about the progress of a problem."""
    return f"{progress.iterations:,} updates, violation {progress.gap:.3g}, dual objective {-progress.objective:.8g}"


def fit(
    method: Method, train: Dataset, options: AsyGCDOptions, comm: Communicator, test: Dataset | None = None
) -> AsyGCDFit:
    """Train an SVM without a bias.

    Arguments and result are those of :meth:`cacore.learn.method.Method.__call__`.

    Raises
    ------
    InputError
        If options contradict each other, there is only one class, or memory does not suffice.

    Notes
    -----
    Problems are solved one after the other, each on all threads: k problems of all rows with "ovr", which share one
    kernel cache, or k (k - 1) / 2 problems of two classes' rows with "ovo". See
    :meth:`asygcd.solver.asygcd.AsyGCD.solve`. Probabilities cost one to five more trainings, each on four fifths of the
    rows and to a tolerance of 0.01.
    """
    y, weights = train.target(), train.row_weights()
    present = np.flatnonzero(weights > 0)
    classes = all_classes(y[present], comm)
    require_classes(classes)
    rows = in_memory(train.X) if len(present) == len(weights) else train.X[present]
    X: Rows = rows
    standardizer = None
    if options.standardize:
        standardizer = Standardizer.fit(rows, comm, weights[present])
        X = standardizer.apply(rows)
    else:
        check_resolved(rows, rows.dtype, comm)
    check_squares(X, comm)
    codes = np.searchsorted(classes, y[present]).astype(np.int64)
    factors = class_factors(options.class_weight, codes, weights[present], len(classes), comm)
    kernel = options.kernel_with(numeric_gamma(X, options.gamma, comm, options.kernel)).suited(X.shape[1])
    count = options.threads or threads.available()
    options = replace(options, threads=count)
    check_memory(X, count, options.cache_bytes, options.memory_limit)
    C = options.C * factors[codes] * weights[present]
    start = None if options.start is None else options.start[present]
    coef, solutions, sizes = _solved(X, codes, C, len(classes), kernel, options, start, comm)
    model = _model(classes, kernel, options, X, coef, present)
    if options.probability is not None:
        model.calibrator = _calibrated(X, codes, C, model, options, comm)
    model = replace(model, standardizer=standardizer, dtype=str(train.X.dtype))
    return AsyGCDFit(model, solutions, sizes, factors)


def _model(
    classes: NDArray[np.generic], kernel: Kernel, options: AsyGCDOptions, X: Rows, coef: Vector, rows: NDArray[np.int64]
) -> AsyGCDModel:
    """The model with these coefficients; `X` are standardised rows, `rows` their indices in the training set."""
    support = np.flatnonzero(coef.any(axis=1))
    return AsyGCDModel(
        classes, options.multi_class, kernel, float(options.C), X[support], rows[support], coef[support], None,
        str(X.dtype),
    )  # fmt: skip


def _calibrated(
    X: Rows, codes: NDArray[np.int64], C: Vector, model: AsyGCDModel, options: AsyGCDOptions, comm: Communicator
) -> Calibrator:  # fmt: skip
    """Fit the calibrator to decisions for held-out rows: each fold is left out of one training."""
    k, decisions = len(model.classes), []
    fold = stratified(codes, FOLDS, k=k, comm=comm)
    loose = replace(options, tol=max(_LOOSE, float(options.tol)))
    for f in range(folds_to_leave_out(np.bincount(codes, minlength=k))):
        held = fold == f
        mine = np.flatnonzero(~held)
        if not held.any() or len(np.unique(codes[mine])) < k:
            continue
        coef, _, _ = _solved(X[mine], codes[mine], C[mine], k, model.kernel, loose, None, comm)
        fold_model = _model(model.classes, model.kernel, options, X[mine], coef, mine)
        D = fold_model.sided(fold_model.decisions(X[held]))
        of = LeftOutDecisions.of_classes if model.against_the_rest else LeftOutDecisions.of_pairs
        decisions.append(of(D, codes[held], k))
    assert options.probability is not None
    return Calibrator.fit(options.probability, LeftOutDecisions.stacked(decisions), model.coef.shape[1], comm)


def _solved(
    X: Rows, codes: NDArray[np.int64], C: Vector, k: int, kernel: Kernel, options: AsyGCDOptions, start: Vector | None,
    comm: Communicator,
) -> tuple[Vector, list[AsyGCDSolution], NDArray[np.int64]]:  # fmt: skip
    """Solve the problems of a model of k classes.

    Returns the coefficients, shape (n, m), the solutions, and the sizes of the blocks of the last problem.
    """
    if k > 2 and options.multi_class == "ovo":
        problems = [(np.flatnonzero((codes == i) | (codes == j)), i) for i, j in combinations(range(k), 2)]
    else:
        everything = np.arange(len(codes))
        problems = [(everything, positive) for positive in (range(k) if k > 2 else [1])]
    coef, solutions, solver = np.zeros((len(codes), len(problems))), [], None
    for column, (rows, positive) in enumerate(problems):
        whole = len(rows) == len(codes)
        if solver is None or not whole:
            X_problem, bounds = X if whole else X[rows], C[rows]
            bound = float(bounds.max())
            dtype = precision(X_problem.shape, kernel.largest(X_problem, np.float64), bound, options.tol)
            with comm.phase("partition"):
                solver = AsyGCD(
                    X_problem, kernel, options.threads or 1, options.cache_bytes, dtype, options.update, options.seed,
                    accuracy=Accuracy.of_solution(bound, options.tol),
                )  # fmt: skip
        y = np.where(codes[rows] == positive, 1.0, -1.0)
        begin = None if start is None else y * start[rows, column]
        with comm.phase("train"):
            solutions.append(solver.solve(y, bounds, options.limits, begin, options.watch))
        coef[rows, column] = y * solutions[-1].alpha
    assert solver is not None
    return coef, solutions, solver.sizes
