"""The ridge model of one part, and the arrays of a model's file."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cacore.data.rows import Rows
from cacore.data.stored import in_memory
from cacore.io.layout import Array, Layout
from cacore.kernels import Kernel
from cacore.probability.calibrator import CALIBRATOR
from partition.model import SHARED


@dataclass
class PartModel:
    """The model of one part: its rows and their coefficients.

    Attributes
    ----------
    X : ndarray or CSR, shape (m, d)
        Or rows in a file, which are read when they are used.
    alpha : ndarray, shape (m,) or (m, t)
    weight : ndarray, shape (m,), or None
        Sample weights, if there were any.
    factor : ndarray, shape (m (m + 1) / 2,), or None
        Factor of the part's matrix, if it is kept.
    unit : ndarray, shape (1,) or (t,), or None
        Unit of its variances, kept beside the factor: see :mod:`cakrr.solver.variance`.
    errors : ndarray, shape (e,) or (e, t), or None
        |y - f(x)|, ascending, of the rows set aside for intervals that are nearest to the part's centre.
    left_out : ndarray, shape (m,) or (m, t), or None
        y - f(x) of the part's rows, each left out of it, for jackknife+ intervals.
    """

    X: Rows
    alpha: NDArray[np.floating]
    weight: NDArray[np.float64] | None = None
    factor: NDArray[np.float64] | None = None
    unit: NDArray[np.float64] | None = None
    errors: NDArray[np.float64] | None = None
    left_out: NDArray[np.float64] | None = None

    def predict(self, X: Rows, kernel: Kernel) -> NDArray[np.floating]:
        """``K(X, rows) alpha`` (eq. 3.7) of alpha of shape (m,) or (m, t): 2 len(X) m (d + t) flops in blocks.

        In the precision of alpha.
        """
        rows = kernel.points(in_memory(self.X).astype(self.alpha.dtype, copy=False))
        return kernel.apply(kernel.points(X.astype(self.alpha.dtype, copy=False), like=rows), rows, self.alpha)


# Arrays of a model's file, and of each part: parts of m rows, a coarse model of M centres.
ARRAYS: Layout = {
    **SHARED,
    "sigmas": Array("float64", ("P",), "of parts that chose their own", optional=True),
    "lams": Array("float64", ("P",), "likewise, lambda", optional=True),
    "coarse_centers": Array("float64", ("M", "d"), "of a coarse model of all rows", csr=True, optional=True),
    "coarse_beta": Array("float64", ("M",), "coefficients of the coarse centres", optional=True, many="t"),
    "error_ranks": Array("int64", ("q",), "which of the errors of n rows, ascending, intervals keep", optional=True),
    "errors": Array("float64", ("q",), "these errors, absolute", optional=True, many="t"),
    "scaled_errors": Array("float64", ("q",), "likewise, over what adaptive intervals scale", optional=True, many="t"),
    "noise": Array("float64", ("f", "7"), "curves of how the noise varies with the rows", optional=True, many="t"),
    **CALIBRATOR,
}
PART: Layout = {
    "X": Array("real", ("m", "d"), "the part's training rows, standardised", csr=True),
    "alpha": Array("real", ("m",), "their coefficients", many="t"),
    "weight": Array("float64", ("m",), "their sample weights", optional=True),
    "factor": Array("float64", ("m (m + 1) / 2",), "Cholesky factor of the part's matrix, row by row", optional=True),
    "unit": Array("float64", ("u",), "by which its predictive variances are multiplied", optional=True),
    "errors": Array("float64", ("e",), "of rows near it that intervals came from, ascending", optional=True, many="t"),
    "left_out": Array("float64", ("m",), "errors of its rows, each left out of it", optional=True, many="t"),
}
