"""The ridge model of one part, and the arrays of a model file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.rows import AnyRows, Rows, dense, nbytes
from cacore.data.stored import in_memory
from cacore.explain.expansion import Expansion
from cacore.io.layout import Array, Layout
from cacore.kernels import Kernel
from cacore.near.expansion import Piece, expansion
from cacore.near.visits import near_ranks, visit_near
from cacore.probability.calibrator import CALIBRATOR
from partition.model import SHARED, visit

_JOINED = 1 << 28  # bytes of pieces that are joined for predictions


@dataclass
class PartModel:
    """The model of one part: its rows and their coefficients.

    Attributes
    ----------
    X : ndarray or CSR, shape (m, d)
        Training rows; may be stored in a file and read when used.
    alpha : ndarray, shape (m,) or (m, t)
    weight : ndarray, shape (m,), or None
        Sample weights, if any.
    factor : ndarray, shape (m (m + 1) / 2,), or None
        Cholesky factor of the part's matrix, if stored.
    unit : ndarray, shape (1,) or (t,), or None
        Unit of the predictive variances, stored with the factor: see :mod:`cakrr.solver.variance`.
    errors : ndarray, shape (e,) or (e, t), or None
        Calibration errors |y - f(x)|, ascending: of those rows set aside for intervals that are nearest to the part's
        centre.
    left_out : ndarray, shape (m,) or (m, t), or None
        Leave-one-out errors y - f(x) of the part's rows, for jackknife+ intervals.
    """

    X: AnyRows
    alpha: NDArray[np.floating]
    weight: NDArray[np.float64] | None = None
    factor: NDArray[np.float64] | None = None
    unit: NDArray[np.float64] | None = None
    errors: NDArray[np.float64] | None = None
    left_out: NDArray[np.float64] | None = None

    def expansion(self, kernel: Kernel) -> Expansion:
        """The part's function, with one output per target."""
        weights = np.asarray(self.alpha, np.float64).reshape(len(self.alpha), -1)
        return Expansion(self.X, weights, np.zeros(weights.shape[1]), kernel)

    def predict(self, X: Rows, kernel: Kernel, all_pairs: bool = False) -> NDArray[np.floating]:
        """Predictions ``K(X, rows) alpha`` (eq. 3.7) in the precision of alpha.

        2 len(X) m (d + t) flops, in blocks; less where the kernel ends, unless `all_pairs` count: see
        :func:`cacore.near.expansion.expansion`.
        """
        return expansion(kernel, [self.piece], X.astype(self.alpha.dtype, copy=False), all_pairs)

    @property
    def piece(self) -> Piece:
        """The rows, in memory and in the precision of alpha, and alpha."""
        return in_memory(self.X).astype(self.alpha.dtype, copy=False), self.alpha


def joined(
    parts: Sequence[PartModel], kernel: Kernel, shape: tuple[int, ...], all_pairs: bool = False
) -> Callable[[Rows], NDArray[np.float64]]:
    """The function of rows X that sums up the predictions of parts of one model, (len(X), *shape).

    Pieces are joined, up to `_JOINED` bytes, so that a kernel that ends needs no distant pairs of all of them, unless
    `all_pairs` count.
    """
    ends = np.cumsum([nbytes(part.X) for part in parts]) // _JOINED

    def predict(X: Rows) -> NDArray[np.float64]:
        total = np.zeros((X.shape[0], *shape))
        for _, some in groupby(range(len(parts)), lambda number: int(ends[number])):
            pieces = [parts[number].piece for number in some]
            total += expansion(kernel, pieces, X.astype(pieces[0][1].dtype, copy=False), all_pairs)
        return total

    return predict


def summed(
    parts: Sequence[PartModel], kernel: Kernel, Z: AnyRows, comm: Communicator, shape: tuple[int, ...],
    all_pairs: bool = False,
) -> NDArray[np.float64]:  # fmt: skip
    """Sum of all ranks' parts of one model for this rank's rows, shape (n_local, *shape); collective.

    Where the kernel ends, rows visit only the ranks that have rows near them, if that saves much and not `all_pairs`
    count. A model trained with ``near`` has neighbouring rows on one rank.
    """
    answer = joined(parts, kernel, shape, all_pairs)
    near = None if all_pairs else near_ranks(kernel, [part.piece for part in parts], Z, comm)
    return visit(Z, answer, comm, shape) if near is None else visit_near(dense(Z), near, answer, comm, shape)


# Arrays of a model file, and of each part: parts of m rows, a coarse model with M centres.
ARRAYS: Layout = {
    **SHARED,
    "sigmas": Array("float64", ("P",), "sigma of each part, if parts chose their own", optional=True),
    "lams": Array("float64", ("P",), "lambda of each part, if parts chose their own", optional=True),
    "coarse_centers": Array("float64", ("M", "d"), "centres of the coarse model", csr=True, optional=True),
    "coarse_beta": Array("float64", ("M",), "coefficients of the coarse centres", optional=True, many="t"),
    "coarse_factor": Array(
        "float64", ("M (M + 1) / 2",), "triangle of the least squares on these centres, by columns", optional=True
    ),
    "coarse_unit": Array("float64", ("u",), "unit of the variances that it gives", optional=True),
    "error_ranks": Array("int64", ("q",), "ranks of the errors stored for intervals, among n", optional=True),
    "errors": Array("float64", ("q",), "absolute errors of these ranks", optional=True, many="t"),
    "scaled_errors": Array("float64", ("q",), "same, over the scales of adaptive intervals", optional=True, many="t"),
    "noise": Array("float64", ("f", "7"), "curves that describe how the noise varies", optional=True, many="t"),
    **CALIBRATOR,
}
PART: Layout = {
    "X": Array("real", ("m", "d"), "the part's training rows, standardised", csr=True),
    "alpha": Array("real", ("m",), "coefficients of these rows", many="t"),
    "weight": Array("float64", ("m",), "sample weights of these rows", optional=True),
    "factor": Array("float64", ("m (m + 1) / 2",), "Cholesky factor of the part's matrix, row by row", optional=True),
    "unit": Array("float64", ("u",), "unit of the part's predictive variances", optional=True),
    "errors": Array("float64", ("e",), "calibration errors near its centre, ascending", optional=True, many="t"),
    "left_out": Array("float64", ("m",), "leave-one-out errors of these rows", optional=True, many="t"),
}
