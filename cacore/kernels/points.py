"""Rows prepared for kernel values: with their squared norms, and shifted towards the origin."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cacore.data.rows import Rows, dense, is_sparse
from cacore.data.sparse import CSR


class Points:
    """Rows prepared for kernel values: shifted, with their squared norms.

    Parameters
    ----------
    X : ndarray or CSR, shape (m, d), float32 or float64
        Not changed. With a shift, the rows are copied and become dense.
    shift : ndarray of shape (d,) or None
        Vector subtracted from the rows; only for kernels of a distance, and the same on both sides.
        |x|^2 + |z|^2 - 2 x.z loses all digits for rows that are close to each other and far from the origin; a shift
        moves the origin.

    Attributes
    ----------
    X : ndarray or CSR
        The shifted rows.
    squares : ndarray, shape (m,)
        Squared norms, in the dtype of `X`.
    """

    def __init__(self, X: Rows, shift: NDArray[np.floating] | None = None) -> None:
        if shift is not None:
            X = dense(X) - shift.astype(X.dtype)
        self.X, self.shift = X, shift
        if is_sparse(X):
            self.squares = np.asarray(X.multiply(X).sum(axis=1), X.dtype).ravel()
        else:
            self.squares = np.einsum("ij,ij->i", X, X)

    def __len__(self) -> int:
        return int(self.X.shape[0])

    def __getitem__(self, rows: slice | NDArray[np.integer] | NDArray[np.bool_]) -> Points:
        part = object.__new__(Points)
        part.X, part.squares, part.shift = self.X[rows], self.squares[rows], self.shift
        return part


class Nonzeros(Points):
    """Points whose rows are CSR, see :func:`cacore.kernels.panels.nonzeros`."""

    X: CSR
