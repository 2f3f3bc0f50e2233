"""Rows distributed over ranks, prepared for kernel values in single and in double precision."""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike, NDArray

from cacore.comm import Communicator
from cacore.data.rows import Rows, is_sparse, largest_size, largest_usable, shifted
from cacore.errors import InputError
from cacore.kernels import Kernel, Points
from cacore.kernels.precision import Extent, rounding

# Error of a kernel value in single precision above which products with it gain nothing, and below which a factor is
# good enough whatever the ridge. Standardised rows are below; kernels of |x-z| err by more only for nearly equal rows.
COARSE, ORDINARY = 3e-2, 1e-4
FINE = 1e-8  # lambda, relative to the kernel values, below which a low-rank factor is in double precision


class SpreadRows:
    """The n rows of a system, each on the rank that read it; the construction is collective.

    Parameters
    ----------
    X : ndarray or CSR, shape (n_local, d)
        This rank's rows; not changed.
    number : ndarray of int64, shape (n_local,)
        Places of these rows among the n rows, independent of the number of ranks.
    like : Kernel
        The kernel, with any width.
    comm : Communicator
    weights : ndarray, shape (n_local,), optional
        Positive sample weights w.
    mean : float, optional
        Their mean, by default that of these rows.

    Attributes
    ----------
    counts : ndarray of int64, shape (R,)
        Number of rows on each rank.
    scale : ndarray, shape (n_local,), or None
        sqrt(w / mean(w)). With S = diag(scale), the system of S K S has the ridge lambda n for every row.
    single : bool
        True if kernel values may be in single precision: the kernel is compiled, and single precision holds the rows.

    Notes
    -----
    One Allgather of one number; one Allreduce of d + 1 numbers for the common shift, if distances are computed from
    inner products; one of 2 for the weights.
    """

    def __init__(
        self, X: Rows, number: NDArray[np.int64], like: Kernel, comm: Communicator,
        weights: NDArray[np.float64] | None = None, mean: float | None = None,
    ) -> None:  # fmt: skip
        self.X, self.number, self.comm, self.like = X, number, comm, like
        self.counts = comm.allgather(np.array([X.shape[0]], np.int64), np.ones(comm.size, np.int64))
        self.n = int(self.counts.sum())
        self.shift: NDArray[np.float64] | None = None
        if like.shifts:
            total = X.astype(np.float64).sum(axis=0) if is_sparse(X) else X.sum(axis=0, dtype=np.float64)
            middle = comm.allreduce(np.ravel(np.asarray(total))) / max(1, self.n)
            self.shift = self._stored(middle) if is_sparse(X) else middle
        self.scale: NDArray[np.float64] | None = None
        if weights is not None:
            mean = comm.allreduce(np.array([weights.sum()]))[0] / self.n if mean is None else mean
            self.scale = np.sqrt(weights / mean)
        self.single = like.compiled and comm.all(largest_size(X) <= largest_usable(np.float32))
        self._points: dict[str, Points] = {}
        self._extent: Extent | None = None

    def _stored(self, middle: NDArray[np.float64]) -> NDArray[np.float64] | None:
        """The shift of CSR rows: their mean in the features that all rows store; None if there are none. Collective.

        Other features stay sparse.
        """
        assert is_sparse(self.X)
        full = np.bincount(self.X.indices, minlength=len(middle)) == self.X.shape[0]
        with self.comm.uncounted():
            every = self.comm.allreduce(full.astype(np.int64), "min") > 0
        return np.where(every, middle, 0.0) if every.any() else None

    def rounding(self, kernel: Kernel) -> float:
        """Bound on the error of a kernel value in single precision over all pairs of rows; collective."""
        if self._extent is None:
            own = Extent.of(self.X, self.shift)
            with self.comm.uncounted():
                self._extent = own.over_ranks(self.comm.allreduce(own.norms, "max"))
        return rounding(kernel, self._extent, np.float32, kernel.measure(is_sparse(self.X)))

    def holds_single(self, kernel: Kernel) -> bool:
        """True if single precision holds the values of this kernel; collective."""
        if not (self.single and kernel.fits(np.float32)):
            return False
        good = not kernel.of_distance or self.rounding(kernel) <= COARSE
        if not kernel.of_distance:
            try:
                kernel.largest(self.X, np.float32)
            except InputError:
                good = False
        return self.comm.all(good)

    def factor_dtype(self, kernel: Kernel, mu: float) -> np.dtype[np.floating]:
        """Type of a low-rank factor for the ridge `mu`: single precision if its rounding error is small beside `mu`.

        The errors of n^2 kernel values, each below a bound, have a spectral norm of about sqrt(n) times the bound.
        Collective.
        """
        enough_digits = mu >= FINE * self.n * float(self.diagonal(kernel).max(initial=0.0))
        if kernel.of_distance and kernel.compiled:
            error, ordinary = self.rounding(kernel), COARSE if kernel.declared.of_length else ORDINARY
            enough_digits &= error <= ordinary or error * np.sqrt(self.n) <= mu
        single = self.holds_single(kernel) and self.comm.all(enough_digits)
        return np.dtype(np.float32 if single else np.float64)

    def points(self, dtype: DTypeLike) -> Points:
        """This rank's rows in this precision."""
        name = np.dtype(dtype).name
        if name not in self._points:
            self._points[name] = self.ready(self.X, dtype)
        return self._points[name]

    def ready(self, X: Rows, dtype: DTypeLike) -> Points:
        """Prepare any rows in this precision, with the shift of this system's rows."""
        X = shifted(X.astype(np.float64, copy=False), self.shift)  # so that only the difference is rounded
        return Points(X.astype(dtype, copy=False))

    def diagonal(self, kernel: Kernel) -> NDArray[np.float64]:
        """Diagonal of S K S, shape (n_local,)."""
        values = kernel.diagonal(self.X)
        return values if self.scale is None else values * self.scale**2

    def scaled(self, V: NDArray[np.float64]) -> NDArray[np.float64]:
        """Columns of `V`, shape (t, n_local), times S."""
        return V if self.scale is None else V * self.scale
