"""Rows prepared for kernel values: with their squared norms, and shifted towards the origin."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cacore.data.rows import Rows, dense, is_sparse, shifted
from cacore.data.sparse import CSR


class Points:
    """Rows prepared for kernel values: shifted, with their squared norms.

    Parameters
    ----------
    X : ndarray or CSR, shape (m, d), float32 or float64
        Not changed. With a shift, the rows are copied; CSR rows stay CSR if few features are shifted.
    shift : ndarray of shape (d,) or None
        Vector subtracted from the rows in double precision; only for kernels of a distance, and the same on both sides.
        |x|^2 + |z|^2 - 2 x.z loses all digits for rows that are close to each other and far from the origin; a shift
        moves the origin.
    gaps : bool
        True if squared distances are sums of squared differences, since inner products are not accurate enough
        (:func:`cacore.kernels.precision.rounding`). The rows are then dense.

    Attributes
    ----------
    X : ndarray or CSR
        The shifted rows.
    squares : ndarray, shape (m,)
        Squared norms, in the dtype of `X`; 0 with `gaps`, whose sums take the place of inner products.
    """

    def __init__(self, X: Rows, shift: NDArray[np.floating] | None = None, gaps: bool = False) -> None:
        dtype = X.dtype
        if shift is not None:
            X = shifted(X, shift).astype(dtype, copy=False)
        if gaps:
            X = dense(X)
        self.X, self.shift, self.gaps = X, shift, gaps
        if gaps:
            self.squares = np.zeros(X.shape[0], dtype)
        elif is_sparse(X):
            self.squares = np.asarray(X.multiply(X).sum(axis=1), X.dtype).ravel()
        else:
            self.squares = np.einsum("ij,ij->i", X, X)

    def __len__(self) -> int:
        return int(self.X.shape[0])

    def __getitem__(self, rows: slice | NDArray[np.integer] | NDArray[np.bool_]) -> Points:
        part = object.__new__(Points)
        part.X, part.squares, part.shift, part.gaps = self.X[rows], self.squares[rows], self.shift, self.gaps
        return part


class Nonzeros(Points):
    """Points whose rows are CSR, see :func:`cacore.kernels.panels.nonzeros`."""

    X: CSR
