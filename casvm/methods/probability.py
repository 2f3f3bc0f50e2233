"""Decisions on left-out rows, from which probabilities are calibrated: by training again, or inside a part.

:func:`fit_apart` is for a model of all rows, which is trained again without each of some folds. The folds divide the
rows of all ranks, in the same way on any number of ranks. Only as many folds are left out as the two parameters of a
sigmoid need (:func:`cacore.probability.left_out.folds_to_leave_out`).

:func:`left_out` is for the model of a part. Its folds lie inside the part, so nothing is sent. A small problem keeps
its kernel values in memory for all of its folds; with several classes, only the rows of its kernel matrix that the
folds need. A large problem is solved again for each fold, by the part's own solver.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.dataset import Dataset, Samples
from cacore.data.holdout import FOLDS, stratified
from cacore.data.labels import all_classes
from cacore.data.rows import in_memory, nbytes
from cacore.limits import Limits
from cacore.machine import memory, threads
from cacore.probability.calibrator import Calibrator
from cacore.probability.left_out import LeftOutDecisions, folds_to_leave_out, pairs_of
from cacore.svm.dual import Dual
from cacore.svm.options import DEFAULT
from casvm.model.svm_model import SVMModel
from casvm.options import SVMMethod, SVMOptions
from casvm.search.cross_validation import PAIRS, along, points_of
from casvm.solver.class_pairs import ClassRows, solve_classes
from casvm.solver.kernel_rows import padded
from casvm.solver.smo import PartTraining, fit_part
from casvm.solver.units import Origin
from casvm.svm_fit import SVMFit

Trainer = Callable[[SVMMethod, Dataset, SVMOptions, Communicator], SVMFit[SVMModel]]


def fit_apart(
    fit: Trainer, method: SVMMethod, train: Dataset, options: SVMOptions, comm: Communicator
) -> SVMFit[SVMModel]:
    """Train, then calibrate by training again without each of some folds; collective.

    Arguments and result are those of the trainer.

    Raises
    ------
    InputError
        On all ranks: errors of the trainer, or insufficient memory for a second copy of a rank's rows.

    Notes
    -----
    One to five further trainings on four fifths of the rows, to a tolerance of 0.01, and predictions for the other
    rows. These are sent as usual; in addition, each step of Newton's method sends an Allreduce of 6 numbers per pair of
    classes.
    """
    X, y, weights = train.X, train.target(), train.row_weights()
    with comm.agreed():
        remedy = "use more ranks, or leave --probability out"
        memory.require(2 * nbytes(X), options.memory_limit, "storing a rank's rows and a copy of them", remedy)
    fitted = fit(method, train, replace(options, probability=None), comm)
    model = fitted.model
    k, there = len(model.classes), np.flatnonzero(weights > 0)
    codes = np.searchsorted(model.classes, y[there]).astype(np.int64)
    counts = comm.allreduce(np.bincount(codes, minlength=k).astype(np.int64))
    fold = np.full(len(y), -1)
    fold[there] = stratified(codes, FOLDS, k=k, comm=comm)
    decisions = []
    inner = replace(
        options, probability=None, tol=max(LOOSE, float(options.tol)), memory_limit=options.memory_limit - nbytes(X)
    )
    if model.kernel is not None and model.kernel.has("gamma"):
        inner = replace(inner, gamma=model.kernel.gamma)
    for f in range(folds_to_leave_out(counts)):
        held = fold == f
        classes = all_classes(y[~held & (weights > 0)], comm)
        if len(classes) < 2 or not comm.offset(int(held.sum()))[1]:
            continue
        mine = Dataset(X[~held], y[~held], weights=None if train.weights is None else weights[~held])
        again = None if options.checkpoint is None else options.checkpoint.within(f"without-fold-{f}")
        fold_model = fit(method, mine, replace(inner, checkpoint=again), comm).model
        D = np.full((int(held.sum()), k * (k - 1) // 2), np.nan)
        D[:, pairs_of(np.searchsorted(model.classes, classes), k)] = fold_model.pair_decisions(X[held], comm)
        decisions.append(LeftOutDecisions.of_pairs(D, np.searchsorted(model.classes, y[held]), k))
    model.calibrator = Calibrator.fit(
        str(options.probability), LeftOutDecisions.stacked(decisions), k * (k - 1) // 2, comm
    )
    return fitted


LOOSE = 1e-2  # tolerance that suffices here: decisions are accurate to this share of the margin
MOST = 3000  # rows of a problem whose kernel matrix is kept for all folds: 36 MiB in single precision, near the cores


def keeps(training: PartTraining, rows: int, side_by_side: int) -> bool:
    """True if problems of `rows` rows are small, and `side_by_side` of their kernel matrices fit in the cache."""
    compiled = training.kernel is not None and training.solver == DEFAULT
    return compiled and rows <= MOST and side_by_side * 2 * 8 * rows * padded(rows) <= training.cache_bytes


def left_out(
    rows: Samples, k: int, folds: int, training: PartTraining, bounds: NDArray[np.float64] | None = None
) -> LeftOutDecisions:
    """Decisions of all pairs of a part's classes on left-out rows.

    Parameters
    ----------
    rows : Samples
        Rows of a part, with the columns "code" of the class and "C", the bound of alpha; rows of bound 0 are ignored.
    k : int
        Number of classes in all parts.
    folds : int
        Number of folds, among five, that are left out in turn.
    training : PartTraining
    bounds : ndarray, shape (k (k - 1) / 2,), optional
        Factor of the bounds in each pair.

    Returns
    -------
    LeftOutDecisions
        Pairs are numbered among those of all k classes.

    Notes
    -----
    Each pair is trained `folds` times on four fifths of its rows. With more than two classes, a row of K is computed
    once for all folds of its pair, see :class:`casvm.solver.class_pairs.ClassRows`. Two classes of m rows, at most
    3,000, take m^2 kernel values, in double precision at worst.
    """
    limits = Limits(max(LOOSE, training.limits.tol), training.limits.max_iter, training.limits.max_time)
    training = replace(training, limits=limits, watch=None)
    codes, C = rows["code"], rows["C"]
    fold = stratified(codes, FOLDS)
    scale = np.ones(k * (k - 1) // 2) if bounds is None else bounds
    present = C > 0
    classes_present = set(np.unique(codes[present]).tolist())
    tasks = [(pair, i, j) for pair, (i, j) in enumerate(combinations(range(k), 2)) if {i, j} <= classes_present]

    together = len(tasks) >= 2 * threads.current()
    side_by_side = threads.current() if together else 1
    numbers = sorted(classes_present)
    members = [np.flatnonzero(present & (codes == code)) for code in numbers]
    shared = None
    if len(tasks) > 1 and training.solver == DEFAULT:
        largest = float(C.max() * scale.max())
        X = Origin.of(in_memory(rows.X), training.kernel, largest, limits.tol).X
        shared = ClassRows.of(X, members, training.kernel, largest, limits, training.cache_bytes, side_by_side)

    def of_pair(pair: int, i: int, j: int) -> LeftOutDecisions:
        at, second = numbers.index(i), numbers.index(j)
        chosen = np.concatenate([members[at], members[second]])
        first, bound, own_fold = codes[chosen] == i, scale[pair] * C[chosen], fold[chosen]
        y, D = np.where(first, 1.0, -1.0), np.full(len(chosen), np.nan)
        keeps_matrix = shared is None and keeps(training, len(chosen), side_by_side)
        matrix = _of_pair(rows, chosen, training, float(bound.max())) if keeps_matrix else None
        with shared.pair(at, second) if shared is not None else nullcontext() as K:
            for f in range(folds):
                held = own_fold == f
                if not held.any() or not first[~held].any() or first[~held].all():
                    continue  # without these rows there would be one class
                fold_bound = np.where(held, 0.0, bound)
                if K is not None:
                    D[held] = solve_classes(K, Dual.classification(y, fold_bound), limits).decision[held]
                elif matrix is not None:
                    max_pairs = PAIRS * len(first) if limits.max_iter < 0 else limits.max_iter
                    solutions = along(matrix, y, fold_bound, (1.0,), limits.tol, max_pairs)
                    D[held] = solutions.decision[0, held]
                else:
                    mine = chosen[~held]
                    part, _ = fit_part(rows.X[mine], np.where(first, 0, 1)[~held], bound[~held], mine, training)
                    D[held] = part.pairs(rows.X[chosen[held]], training.kernel)[:, 0]
        there = ~np.isnan(D)
        return LeftOutDecisions(D[there], first[there], np.full(int(there.sum()), pair))

    with threads.in_order(of_pair, tasks, parallel=together) as decisions:
        return LeftOutDecisions.stacked(list(decisions))


def _of_pair(rows: Samples, chosen: NDArray[np.int64], training: PartTraining, C: float) -> NDArray[np.floating]:
    """Kernel matrix of a pair's rows, computed for this pair alone."""
    kernel, m = training.kernel, len(chosen)
    assert kernel is not None
    points = points_of(rows.X[chosen], [kernel], C, training.limits.tol)
    K = np.zeros((m, padded(m)), points.X.dtype)
    values = K[:, :m]
    kernel.compare_all(points, values)
    kernel.values_from(values, points, values)
    return K
