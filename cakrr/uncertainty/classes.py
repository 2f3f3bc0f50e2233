"""Calibrated probabilities of a classifier, from leave-one-out predictions for its training rows.

Least squares needs no folds: the model without row i predicts y_i - alpha_i / (G^-1)_ii, where G is the part's matrix
(:mod:`cakrr.solver.variance`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.probability.calibrator import Calibrator
from cakrr.uncertainty.deviation import joined, left_out, left_out_parts

if TYPE_CHECKING:
    from cakrr.model import KRRModel


def calibrator(model: KRRModel, form: str, comm: Communicator, limit: int) -> Calibrator:
    """Fit sigmoids or isotonic curves to a classifier's leave-one-out outputs; collective.

    Parameters
    ----------
    model : KRRModel
        A classifier in which a single part predicts each row, or the exact one.
    form : {"sigmoid", "isotonic"}
    comm : Communicator
    limit : int
        Memory limit of this rank, in bytes.

    Raises
    ------
    InputError
        On all ranks: a matrix does not fit, or has no Cholesky factor.

    Notes
    -----
    2/3 m^3 flops and memory for m^2 numbers per part of m rows; sends what
    :class:`cacore.probability.calibrator.Calibrator` does.
    """
    assert model.classes is not None
    two = len(model.classes) == 2
    errors, y = _judged(model, comm, limit)
    codes, values = (y > 0).astype(np.int64) if two else y.argmax(axis=1), y - errors
    return Calibrator.of_outputs(form, values[:, None] if two else values, codes, comm)


def _judged(model: KRRModel, comm: Communicator, limit: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Leave-one-out errors of this rank's rows, and their targets; collective."""
    rows = left_out_parts(model, left_out(model, comm, limit), comm)
    with comm.agreed():
        parts = [one for _, one in rows]
        targets = [one.learned + one.coarse for one in parts]
    return joined(model, (one.errors for one in parts)), joined(model, targets) + model.offset
