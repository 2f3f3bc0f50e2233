"""The noise of a model's rows, estimated from left-out rows: factors of the deviations in adaptive intervals.

A row that is left out of its part has an error and a deviation in closed form, for which no part is asked again, and
the regression of :mod:`cakrr.solver.noise` over all of them needs one Allreduce of a few thousand numbers. Its factors
make intervals narrow where there is little noise. They need not be right: rows that were set aside say how many
deviations, times these factors, an interval takes, and are held as often whatever the factors are.
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
    """The factors, and those that the other rows give each row, from all rows, each left out; a collective call.

    A row is left out of its own part, or of the exact model. Only the first division counts, for others have
    the same rows. A row's prediction is that of its part without it, and so is its deviation, to which a coarse
    model's variance is not added.

    Notes
    -----
    m^2 d flops per part of m rows, and what :func:`cakrr.solver.noise.fit` costs.
    """
    first = len(model.sizes) // model.divisions
    some = [
        NoiseRows(one.X, one.learned - one.errors + one.coarse, one.errors, one.deviations)
        for part, one in left_out_parts(model, left_out, comm)
        if part < first
    ]
    curves = comm.all(not any(is_sparse(one.X) for one in some)) and model.n_features <= MOST
    return fit(some, model.n_features if curves else 0, model.target_shape, comm)
