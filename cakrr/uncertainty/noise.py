"""Noise factors of the standard deviations in adaptive intervals, estimated from leave-one-out errors.

Leave-one-out errors and their standard deviations have closed forms. The regression of :mod:`cakrr.solver.noise` over
all of them needs one Allreduce of a few thousand numbers. Its factors make intervals narrow where there is little
noise. The factors need not be correct: intervals are calibrated on rows set aside, and keep their coverage with any
factors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.rows import is_sparse
from cakrr.solver.noise import MOST, Noise, NoiseRows, fit
from cakrr.solver.variance import LeftOutRows
from cakrr.uncertainty.deviation import left_out_parts

if TYPE_CHECKING:
    from cakrr.model import KRRModel

Found = tuple[Noise, list[NDArray[np.float64]]]


def of_rows_left_out(model: KRRModel, left_out: Mapping[int, LeftOutRows], comm: Communicator) -> Found:
    """Fit the noise factors to the leave-one-out errors of all rows; a collective call.

    Returns the curves, and for each row the factor by curves fitted without this row. Each row is left out of its own
    part, or of the exact model. Only the first division is used, since further divisions have the same rows. Standard
    deviations do not include the variance of a coarse model.

    Notes
    -----
    m^2 d flops per part of m rows, and the cost of :func:`cakrr.solver.noise.fit`.
    """
    first = len(model.sizes) // model.divisions
    some = [
        NoiseRows(one.X, one.learned - one.errors + one.coarse, one.errors, one.deviations)
        for part, one in left_out_parts(model, left_out, comm)
        if part < first
    ]
    curves = comm.all(not any(is_sparse(one.X) for one in some)) and model.n_columns <= MOST
    return fit(some, model.n_columns if curves else 0, model.target_shape, comm)
