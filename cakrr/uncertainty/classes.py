"""Calibrated probabilities of a classifier, from its training rows, each left out of its part's model.

Least squares need no folds: the model without row i predicts it as y - alpha_i / (G^-1)_ii, where G is the part's
matrix (:mod:`cakrr.solver.variance`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.probability.calibrator import Calibrator
from cacore.probability.left_out import LeftOutDecisions
from cakrr.uncertainty.deviation import joined, left_out, left_out_parts

if TYPE_CHECKING:
    from cakrr.model import KRRModel


def calibrator(model: KRRModel, form: str, comm: Communicator, limit: int) -> Calibrator:
    """Sigmoids, or curves, of the values that a classifier's rows have when they are left out; collective.

    Parameters
    ----------
    model : KRRModel
        A classifier in which one part answers for a row, or the exact one.
    form : {"sigmoid", "isotonic"}
    comm : Communicator
    limit : int
        Bytes that this rank may use.

    Raises
    ------
    InputError
        On all ranks: a matrix that does not fit, or has no factor.

    Notes
    -----
    2/3 m^3 flops per part of m rows, m^2 of memory, and what :class:`cacore.probability.calibrator.Calibrator` sends.
    """
    assert model.classes is not None
    k = len(model.classes)
    errors, y = _judged(model, comm, limit)
    codes, values = (y > 0).astype(np.int64) if k == 2 else y.argmax(axis=1), y - errors
    # For two classes a value above 0 is the second.
    none = np.zeros_like(codes)
    found = LeftOutDecisions(-values, codes == 0, none) if k == 2 else LeftOutDecisions.of_classes(values, codes, k)
    return Calibrator.fit(form, found, 1 if k == 2 else k, comm)


def _judged(model: KRRModel, comm: Communicator, limit: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Errors of this rank's rows, each left out of its part or of the exact model, and their targets; collective."""
    rows = left_out_parts(model, left_out(model, comm, limit), comm)
    with comm.agreed():
        parts = [one for _, one in rows]
        targets = [one.learned + one.coarse for one in parts]
    return joined(model, (one.errors for one in parts)), joined(model, targets) + model.offset
