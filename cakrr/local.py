"""The local solver: kernel ridge regression on the rows of one part, in one matrix."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore import lapack, threads
from cacore.kernels import Kernel, Points

SMALL = 32 << 20


class Workspace(threading.local):
    """The one m x m matrix of a rank, used for every part and every grid point in turn.

    Small matrices are factored one a thread, which is faster than one by all threads (1.5 times at
    m = 1,152 on 2 cores); then each thread has a matrix of its own.

    Parameters
    ----------
    rows : int
        Rows of the largest part.
    dtype : dtype

    Attributes
    ----------
    one_a_thread : bool
        Whether the matrices of all threads together stay under 32 MiB.
    """

    def __init__(self, rows: int, dtype: Any) -> None:
        self.rows, self.dtype = rows, np.dtype(dtype)
        self.one_a_thread = threads.current() * rows * rows * self.dtype.itemsize <= SMALL
        self._buffer = np.empty(0, dtype)

    def matrix(self, m: int) -> NDArray[Any]:
        """An m x m matrix in this thread's memory; its contents are what the last user left."""
        if not self._buffer.size:
            self._buffer = np.empty(self.rows * self.rows, self.dtype)
        return self._buffer[: m * m].reshape(m, m)


def solve(
    points: Points,
    y: NDArray[Any],
    kernel: Kernel,
    lams: tuple[float, ...],
    workspace: Workspace,
    weights: NDArray[Any] | None = None,
) -> tuple[NDArray[Any], list[bool]]:
    """Solve ``(K + lambda m I) alpha = y`` (eq. 3.6) for every lambda.

    Parameters
    ----------
    points : Points
        The m rows of the part, from ``kernel.points``.
    y : ndarray, shape (m,)
        Centred targets.
    kernel : Kernel
    lams : tuple of float
    workspace : Workspace
        Of at least m rows, in the dtype of the points.
    weights : ndarray, shape (m,), optional
        Positive sample weights w: the matrix is then K + lambda sum(w) diag(1/w).

    Returns
    -------
    alphas : ndarray, shape (len(lams), m), in the dtype of the points
        Not a number where K + lambda m I is not positive definite to the rounding.
    solved : list of bool

    Notes
    -----
    m^2 d + m^3/3 flops a lambda; the kernel is formed anew each time, which costs an eighth to a
    quarter of the factorisation and no second matrix. No memory but the workspace.
    """
    m = len(points)
    dtype = points.X.dtype
    w = np.ones(m) if weights is None else np.asarray(weights, np.float64)
    ridge = w.sum() / w
    alphas = np.full((len(lams), m), np.nan, dtype)
    solved = []
    for alpha, lam in zip(alphas, lams, strict=True):
        K = workspace.matrix(m)
        kernel.gram(points, K)
        K.reshape(-1)[:: m + 1] += (lam * ridge).astype(dtype)
        solved.append(lapack.cholesky(K) == 0)
        if solved[-1]:
            alpha[:] = y
            lapack.cholesky_solve(K, alpha[None, :])
            solved[-1] = bool(np.isfinite(alpha).all())
    return alphas, solved
