"""The system of all rows in block-cyclic layout over all ranks, for factorisation (section 3.3, Fig. 3.3)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.rows import AnyRows, Rows, exchange_rows
from cacore.kernels import Kernel
from cacore.linalg.scalapack import BlockCyclic, layout
from cakrr.solver import refine
from cakrr.solver.local import credible, longest


class BlockCyclicSystem:
    """K + lambda n I of n rows, distributed over all ranks, for any sigma and lambda.

    Parameters
    ----------
    X : ndarray or CSR, shape (n_local, d)
        This rank's rows.
    number : ndarray of int64, shape (n_local,)
        Places of these rows among the n rows of the system.
    weights : ndarray, shape (n,)
        Weights w of all rows, in the order of the system: the diagonal gets lambda sum(w)/w.
    like : Kernel
        The kernel, of any width.
    comm : Communicator
    """

    def __init__(
        self, X: Rows, number: NDArray[np.int64], weights: NDArray[np.float64], like: Kernel, comm: Communicator
    ) -> None:
        self.comm, self.n = comm, len(weights)
        self.ridge = weights.sum() / weights
        self.matrix = BlockCyclic(self.n, comm, X.dtype)
        rows, columns = self.matrix.rows, self.matrix.columns
        self.received, places = _panels(X, number, self.n, comm)
        order = np.argsort(places)
        self._rows, self._columns = (order[np.searchsorted(places[order], wanted)] for wanted in (rows, columns))
        points = like.points(self.received)
        self.left, self.right = points[self._columns], points[self._rows]
        _, self._i, self._j = np.intersect1d(rows, columns, assume_unique=True, return_indices=True)

    def factor(self, kernel: Kernel, lam: float) -> bool:
        """Form K + lambda n I and factor it; return True if it is positive definite."""
        local = self.matrix.local
        for columns, rows in self.matrix.column_blocks():
            kernel.fill(self.left[columns], self.right[rows], local[columns, rows])
        diagonal = self.matrix.rows[self._i]
        alone = kernel.diagonal(self.received[self._rows[self._i]])
        local[self._j, self._i] = (alone + lam * self.ridge[diagonal]).astype(local.dtype)
        return self.matrix.cholesky() == 0

    def solve(self, kernel: Kernel, lam: float, y: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
        """Alpha of all n rows, in the shape of `y`, on all ranks, and the relative residual if it was refined."""
        if self.matrix.dtype == np.float64:
            if not self.factor(kernel, lam):
                return np.full_like(y, np.nan), np.inf
            alpha = self.matrix.solve(y)
            return alpha, 0.0 if np.isfinite(alpha).all() and self._is_credible(kernel, lam, alpha, y) else np.inf
        return refine.solve(
            lambda wider: self.factor(kernel, wider),
            self.matrix.solve,
            self._product(kernel, lam),
            lam,
            y,
            self._agreed,
        )

    def _is_credible(self, kernel: Kernel, lam: float, alpha: NDArray[np.float64], y: NDArray[np.float64]) -> bool:
        """True if the equations of the longest rows are solved; each rank sends a few numbers to all."""
        with self.comm.uncounted():
            mine = longest(self.right.squares)
            rows, squares = self.comm.allgather(self.matrix.rows[mine]), self.comm.allgather(self.right.squares[mine])
            rows, once = np.unique(rows, return_index=True)
            some = rows[longest(squares[once])]
            _, at, mine = np.intersect1d(some, self.matrix.rows, assume_unique=True, return_indices=True)
            left = np.zeros((len(some), *y.shape[1:]))
            left[at] = kernel.apply(self.right[mine], self.left, alpha[self.matrix.columns])
            left = self.comm.allreduce(left)
        left += lam * _columns(self.ridge[some], y) * alpha[some] - y[some]
        with np.errstate(over="ignore"):
            return credible(left, np.square(y).max(axis=0))

    def _agreed(self, residual: NDArray[np.float64]) -> NDArray[np.float64]:
        """Rank 0's residual, so that all ranks take the same number of steps."""
        return self.comm.bcast(np.atleast_1d(residual)).reshape(residual.shape)

    def _product(self, kernel: Kernel, lam: float) -> refine.Operator:
        """Multiplication by K + lambda n I in double precision: each rank's blocks, and one Allreduce of n numbers."""
        points = kernel.points(self.received.astype(np.float64))
        left, right = points[self._rows], points[self._columns]

        def product(v: NDArray[np.float64]) -> NDArray[np.float64]:
            out = np.zeros_like(v)
            out[self.matrix.rows] = kernel.apply(left, right, v[self.matrix.columns])
            return np.asarray(self.comm.allreduce(out) + lam * _columns(self.ridge, v) * v)

        return product


def _columns(ridge: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Reshape one number per row for multiplication with `y`, shape (n,) or (n, t)."""
    return ridge if y.ndim == 1 else ridge[:, None]


def _panels(X: Rows, number: NDArray[np.int64], n: int, comm: Communicator) -> tuple[Rows, NDArray[np.int64]]:
    """Rows that this rank's blocks need, each once, and their places among the n rows; collective."""
    sends, counts = [], np.zeros(comm.size, np.int64)
    for rank, (rows, columns) in enumerate(layout(n, comm.size)):
        wanted = np.zeros(n, np.bool_)
        wanted[rows] = wanted[columns] = True
        rows_of_rank = np.flatnonzero(wanted[number])
        sends.append(rows_of_rank)
        counts[rank] = len(rows_of_rank)
    send = np.concatenate(sends)
    return exchange_rows(X[send], counts, comm), comm.alltoall(number[send], counts)[0]


def matrix_bytes(n: int, X: AnyRows, row_bytes: float, comm: Communicator) -> int:
    """Bytes of this rank's share of the n x n matrix, and of the rows it is computed from, `row_bytes` each."""
    rows, columns = layout(n, comm.size)[comm.rank]
    # Rows as read, sent and received, and two panels of them, in double precision if solutions are refined.
    copies = 2 if X.dtype == np.float64 else 5
    held = int(row_bytes * (2 * X.shape[0] + copies * (len(rows) + len(columns))))
    return len(rows) * len(columns) * int(X.dtype.itemsize) + held
