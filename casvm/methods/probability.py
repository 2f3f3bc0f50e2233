"""Probabilities for a model of all rows, calibrated by training again without each of some folds.

The folds divide the rows of all ranks, in the same way on any number of ranks. Only as many folds are left out as the
two parameters of a sigmoid need (:func:`cacore.probability.left_out.folds_to_leave_out`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from cacore.comm import Communicator
from cacore.data.dataset import Dataset
from cacore.data.labels import all_classes
from cacore.data.rows import nbytes
from cacore.machine import memory
from cacore.probability.calibrator import Calibrator
from cacore.probability.left_out import LeftOutDecisions, folds_to_leave_out, global_folds, pairs_of
from casvm.fit import SVMFit
from casvm.methods.left_out import LOOSE
from casvm.model.model import SVMModel
from casvm.options import SVMMethod, SVMOptions

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
    fold[there] = global_folds(codes, k, comm)
    found = []
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
        other = fit(method, mine, replace(inner, checkpoint=again), comm).model
        D = np.full((int(held.sum()), k * (k - 1) // 2), np.nan)
        D[:, pairs_of(np.searchsorted(model.classes, classes), k)] = other.pair_decisions(X[held], comm)
        found.append(LeftOutDecisions.of_pairs(D, np.searchsorted(model.classes, y[held]), k))
    model.calibrator = Calibrator.fit(str(options.probability), LeftOutDecisions.stacked(found), k * (k - 1) // 2, comm)
    return fitted
