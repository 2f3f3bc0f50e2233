"""Predictive variance of a part's model, and heteroscedastic noise factors.

The variance is that of a Gaussian process, scaled by the leave-one-out errors.

With G = K + lambda m I and k = K(rows, x), a new target at x has the variance s^2 (k(x, x) + lambda m - k^T G^-1 k):
the variance of the function and of the noise (Rasmussen and Williams, 2006, eqs. 2.26 and 2.9). Ridge regression does
not determine s^2. The leave-one-out error of row i is alpha_i / (G^-1)_ii, with variance s^2 / (G^-1)_ii (their
eqs. 5.12). s^2 is therefore the mean of alpha_i^2 / (G^-1)_ii: the errors over their standard deviations then have a
mean square of 1.

A part's standard deviation assumes constant noise; noise factors correct it, from one curve per column. Held-out rows
show how the noise varies. With z their errors over their standard deviations, fit the regression

    log(|z| + c q) = b + sum_j g_j(v_j) + residual

on the columns v of a row: its features, its prediction, and the logarithm of its standard deviation. Each g_j is a
piecewise linear curve with three knots, so all of them together are a small ridge regression (an additive model;
Hastie and Tibshirani, 1990). The factor of a row is exp(sum_j g_j(v_j)), with a mean logarithm of 0 over the training
rows. The logarithm keeps the largest errors from dominating the fit. q is the 90 % quantile of |z|, and c q keeps
errors that are small by chance from dominating instead. Since c q also flattens the curves, they are fitted a second
time, to the errors over the factors, and added.

Generalised cross-validation (Golub, Heath and Wahba, 1979) chooses the ridge, or no curves at all. A degree of freedom
counts 1.4 times, which prevents curves that fit mere noise (Kim and Gu, 2004).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.rows import AnyRows, Rows, dense
from cacore.data.selection import order_statistics
from cacore.io.model_file import require
from cacore.kernels import Kernel, Points
from cacore.linalg import lapack
from cacore.machine import threads
from cakrr.solver.local import PartSystem, Workspace

_BLOCK_BYTES = 64 << 20  # of kernel values per block


@dataclass(eq=False)
class Variance:
    """Predictive variance of a part's model, and the factor that it is computed from.

    Attributes
    ----------
    points : Points
        The part's rows in double precision, prepared for the kernel.
    kernel : Kernel
    noise : float
        lambda m.
    L : ndarray of float64, shape (m, m)
        Cholesky factor of K + lambda m I, in the lower triangle; the entries above the diagonal are undefined.
    unit : float or ndarray, shape (t,)
        s^2 of each target.
    """

    points: Points
    kernel: Kernel
    noise: float
    L: NDArray[np.floating]
    unit: float | NDArray[np.float64]

    def __call__(self, X: AnyRows) -> NDArray[np.float64]:
        """Variances of new targets at the rows of `X`, shape (n, d); the result has shape (n,) or (n, t).

        n m^2 flops in triangular solves on all threads, n kernel rows in blocks of 64 MiB; in double precision.
        """
        open_ = np.empty(X.shape[0])
        for rows, block, B in self._compared(X):
            lapack.solve_lower(self.L, B)
            open_[rows] = self.kernel.diagonal(block) - np.einsum("ij,ij->i", B, B)
        variance: NDArray[np.float64] = np.multiply.outer(np.maximum(open_, 0.0) + self.noise, self.unit)
        return variance

    def weights(self, X: AnyRows) -> Iterator[tuple[slice, NDArray[np.float64]]]:
        """Weights of the part's targets in the predictions at the rows of `X`: G^-1 K(rows, x).

        Yields a slice of rows and their weights, shape (rows, m), which the next block overwrites. 2 n m^2 flops in
        triangular solves on all threads, and n kernel rows.
        """
        for rows, _, B in self._compared(X):
            lapack.cholesky_solve(self.L, B)
            yield rows, B

    def _compared(self, X: AnyRows) -> Iterator[tuple[slice, Rows, NDArray[np.float64]]]:
        """Yield a slice of rows, these rows, and their kernel values with the part's rows, in blocks of 64 MiB."""
        n, m = X.shape[0], len(self.L)
        step = int(np.clip(_BLOCK_BYTES // (8 * m), 64, 4096))
        buffer = np.empty((min(step, n), m))
        for lo, hi in threads.blocks(n, step):
            block, B = X[lo:hi].astype(np.float64), buffer[: hi - lo]
            self.kernel.fill(self.kernel.points(block, like=self.points), self.points, B)
            yield slice(lo, hi), block, B

    def packed(self) -> NDArray[np.float64]:
        """The factor row by row, shape (m (m + 1) / 2,), as a file holds it."""
        return np.concatenate([row[: i + 1] for i, row in enumerate(self.L)])


@dataclass
class LeftOutRows:
    """Leave-one-out errors of a part's rows, and their standard deviations, shape (m,) or (m, t)."""

    errors: NDArray[np.float64]
    deviations: NDArray[np.float64]


def factored(
    rows: Rows, alpha: NDArray[np.floating], kernel: Kernel, lam: float, weights: NDArray[np.float64] | None = None
) -> tuple[Variance, LeftOutRows] | None:
    """Variance of a model with these coefficients, and its leave-one-out errors; None if there is no factor.

    Parameters
    ----------
    rows : ndarray or CSR, shape (m, d)
    alpha : ndarray, shape (m,) or (m, t)
    kernel : Kernel
    lam : float
    weights : ndarray, shape (m,), optional
        Sample weights: the noise of row i is then lambda m mean(w) / w_i, and that of a new row lambda m.

    Notes
    -----
    2/3 m^3 + m^2 d flops; 8 m^2 bytes, which the result keeps.
    """
    m = len(alpha)
    system = PartSystem(rows.astype(np.float64), Workspace(m, np.float64), kernel, weights)
    if not system.factor(kernel, lam):
        return None
    inverse = lapack.diagonal_of_inverse(system.K)
    if alpha.ndim > 1:
        inverse = inverse[:, None]
    alpha = alpha.astype(np.float64)
    unit: NDArray[np.float64] = np.mean(np.square(alpha) / inverse, axis=0)
    variance = Variance(system.points, kernel, lam * m, system.K, unit if alpha.ndim > 1 else float(unit))
    return variance, LeftOutRows(alpha / inverse, np.sqrt(unit / inverse))


def unpacked(
    rows: Rows, kernel: Kernel, lam: float, factor: NDArray[np.float64], unit: NDArray[np.float64], many: bool
) -> Variance:
    """Rebuild a variance from the array of :meth:`Variance.packed`; `many` is True for targets of shape (m, t)."""
    m = rows.shape[0]
    L, at = np.empty((m, m)), 0
    for i in range(m):
        L[i, : i + 1] = factor[at : at + i + 1]
        at += i + 1
    points = kernel.points(rows.astype(np.float64))
    return Variance(points, kernel, lam * m, L, unit if many else float(unit[0]))


Vector = NDArray[np.float64]

MOST = 128  # features that have curves of their own
WIDTH = 7  # numbers per column: middle, 1 / spread, slope of the line, three bends, offset that makes the mean 0
_BENDS = (-0.6744897501960817, 0.0, 0.6744897501960817)  # quartiles of a normal distribution
_ENDS = 3.0  # spreads from the middle beyond which a curve is constant
_SOFTER, _LARGE = 0.3, 0.9  # c, and the share of the errors that are below q
_ROUNDS = 2  # fits: the first one is flattened by c q
_COUNTS = 1.4  # times that a degree of freedom counts
_RIDGES = 10.0 ** np.arange(-4.0, 2.1, 0.5)  # to choose from, in units of the columns' variance
_BLOCK = 4096  # rows at a time


@dataclass(frozen=True, eq=False)
class NoiseRows:
    """Held-out rows with their predictions, errors and standard deviations.

    Attributes
    ----------
    X : ndarray or CSR, shape (m, d)
    mean : ndarray, shape (m,) or (m, t)
        Predictions, without the model's offset.
    errors, deviations : ndarray of the same shape
    """

    X: AnyRows
    mean: Vector
    errors: Vector
    deviations: Vector


@dataclass(frozen=True, eq=False)
class Noise:
    """Curves that multiply the standard deviations of rows.

    Attributes
    ----------
    table : ndarray, shape (f, 7) or (f, 7, t)
        Curve of each column, for each target. The columns are all features or none, then the prediction, then the
        logarithm of its standard deviation.
    """

    table: Vector

    def check(self, d: int) -> None:
        """Raise an InputError if the table does not fit rows of d features."""
        require(len(self.table) in (2, d + 2), f"curves of {len(self.table)} columns, of rows of {d} features")

    def __call__(self, X: AnyRows, mean: Vector, deviations: Vector) -> Vector:
        """Factors of the standard deviations, in their shape; 16 flops per row and column.

        Parameters
        ----------
        X : ndarray or CSR, shape (n, d)
            Standardised.
        mean : ndarray, shape (n,) or (n, t)
            Predictions, without the model's offset.
        deviations : ndarray of the same shape
        """
        out, tables = np.empty(mean.shape), self.table.reshape(*self.table.shape[:2], -1)
        for j, (log, mean_of_target, spread) in enumerate(zip(*map(_by_target, (out, mean, deviations)), strict=True)):
            table = tables[..., j]
            for rows, B in _bent(X, mean_of_target, spread, table):
                log[rows] = B @ table[:, 2:6].T.ravel() - table[:, 6].sum()
        return np.exp(out)


def fit(
    blocks: Sequence[NoiseRows], features: int, targets: tuple[int, ...], comm: Communicator
) -> tuple[Noise, list[Vector]]:
    """Fit the curves to the rows of all ranks; collective.

    Parameters
    ----------
    blocks : sequence of NoiseRows
        Blocks of this rank's rows.
    features : int
        Number of features with curves: all of them, or 0.
    targets : tuple of int
        Shape of a row's prediction.
    comm : Communicator

    Returns
    -------
    noise : Noise
    left_out : list of ndarray
        For each block, the factors of its rows by curves that are fitted without the row itself.

    Notes
    -----
    With f columns, twice for each target: 4 (4 f)^2 flops per row and about 10 (4 f)^3 on every rank; one Allreduce of
    (4 f + 2)^2 numbers, and 8 of 256 counts for q. No row is sent.
    """
    count = int(np.prod(targets))
    tables = np.zeros((features + 2, WIDTH, count))
    factors_of_rows = [np.ones((len(rows.mean), count)) for rows in blocks]
    for j in range(count):
        columns = [(rows.X, *(_by_target(values)[j] for values in (rows.mean, rows.deviations))) for rows in blocks]
        z = [np.abs(_by_target(rows.errors)[j]) / _above(_by_target(rows.deviations)[j]) for rows in blocks]
        tables[..., j], factors = _fit(columns, z, features + 2, comm)
        for values, factor in zip(factors_of_rows, factors, strict=True):
            values[:, j] = factor
    shape = tables.shape if targets else tables.shape[:2]
    return Noise(tables.reshape(shape)), [rows.reshape(len(rows), *targets) for rows in factors_of_rows]


def _fit(
    columns: list[tuple[Rows, Vector, Vector]], z: list[Vector], f: int, comm: Communicator
) -> tuple[Vector, list[Vector]]:
    """Curves of one target, shape (f, 7), and for each block of rows the leave-one-out factors."""
    table, logs = np.zeros((f, WIDTH)), [np.zeros(len(errors)) for errors in z]
    n = comm.offset(sum(map(len, z)))[1]
    table[:, :2] = _places(columns, f, n, comm)
    for _ in range(_ROUNDS):
        (large,) = order_statistics(np.concatenate([np.zeros(0), *z]), [math.ceil(_LARGE * n)], comm)
        if not 0 < large < np.inf:  # a constant target has no noise
            break
        y = [np.log(errors + _SOFTER * large) for errors in z]
        fit_result = _regressed(columns, y, table, n, comm)
        if fit_result is None:
            break
        slopes, middle, inverse = fit_result
        table[:, 2:6] += slopes.reshape(4, f).T
        table[:, 6] += (slopes * middle[:-1]).reshape(4, f).sum(axis=0)
        for block, target, errors, log in zip(columns, y, z, logs, strict=True):
            for rows, B in _bent(*block, table):
                B -= middle[:-1]
                fitted, target_gap = B @ slopes, target[rows] - middle[-1]
                # h is the row's leverage: its leave-one-out error is 1 / (1 - h) times its residual.
                h = (1.0 + np.einsum("ij,ij->i", B @ inverse, B)) / n
                log[rows] += target_gap - (target_gap - fitted) / np.maximum(1.0 - h, 1e-3)
                errors[rows] *= np.exp(-fitted)
    return table, [np.exp(log) for log in logs]


def _regressed(
    columns: list[tuple[Rows, Vector, Vector]], y: list[Vector], table: Vector, n: int, comm: Communicator
) -> tuple[Vector, Vector, Vector] | None:
    """Slopes, means of the basis and of y, and the inverse ridge matrix; None if the mean of y fits as well."""
    f = len(table)
    sums = np.zeros((4 * f + 2, 4 * f + 2))
    for block, target in zip(columns, y, strict=True):
        for rows, B in _bent(*block, table):
            A = np.column_stack([B, target[rows], np.ones(len(B))])
            sums += A.T @ A
    sums = comm.allreduce(sums) / n
    middle = sums[-1, :-1]
    moments = sums[:-1, :-1] - np.outer(middle, middle)
    values, V = np.linalg.eigh(moments[:-1, :-1])
    values = np.maximum(values, 0.0)
    ridge = _ridge(values, V.T @ moments[-1, :-1], moments[-1, -1], n)
    if ridge is None:
        return None
    inverse = (V / (values + ridge)) @ V.T
    return inverse @ moments[-1, :-1], middle, inverse


def _ridge(values: Vector, right: Vector, square: float, n: int) -> float | None:
    """The ridge with the least generalised cross-validation error; None if the mean alone has a lower error.

    `values` are the matrix's eigenvalues, `right` the right side in its eigenvectors, `square` the targets' variance.
    """
    best, ridge = square * (n / max(1, n - 1)) ** 2, None
    for candidate in _RIDGES.tolist():
        shrunk = right / (values + candidate)
        residual = square - 2.0 * shrunk @ right + shrunk @ (values * shrunk)
        free = n - 1.0 - _COUNTS * float((values / (values + candidate)).sum())
        if free > 0 and residual * (n / free) ** 2 < best:
            best, ridge = residual * (n / free) ** 2, candidate
    return ridge


def _places(columns: list[tuple[Rows, Vector, Vector]], f: int, n: int, comm: Communicator) -> Vector:
    """Mean and 1 / standard deviation of each column, shape (f, 2); the latter is 0 for a constant column."""
    sums = np.zeros((2, f))
    for block in columns:
        for _, V in _columns(*block, f):
            sums += V.sum(axis=0), np.square(V).sum(axis=0)
    middle, square = comm.allreduce(sums) / n
    spread = np.sqrt(np.maximum(square - middle**2, 0.0))
    varies = spread > 1e-6 * np.abs(middle)
    return np.stack([middle, np.where(varies, 1.0 / np.where(varies, spread, 1.0), 0.0)], axis=1)


def _columns(X: AnyRows, mean: Vector, deviations: Vector, f: int) -> Iterator[tuple[slice, Vector]]:
    """Yield a slice of rows and their f columns: features if used, prediction, logarithm of the deviation."""
    for lo, hi in threads.blocks(len(mean), _BLOCK):
        V = np.empty((hi - lo, f))
        if f > 2:
            V[:, :-2] = dense(X[lo:hi])
        V[:, -2], V[:, -1] = mean[lo:hi], np.log(_above(deviations[lo:hi]))
        yield slice(lo, hi), V


def _bent(X: AnyRows, mean: Vector, deviations: Vector, table: Vector) -> Iterator[tuple[slice, Vector]]:
    """Yield a slice of rows and the basis of the curves, shape (rows, 4 f): all columns' lines, then knot by knot."""
    for rows, V in _columns(X, mean, deviations, len(table)):
        U = np.clip((V - table[:, 0]) * table[:, 1], -_ENDS, _ENDS)
        yield rows, np.concatenate([U, *(np.abs(U - bend) for bend in _BENDS)], axis=1)


def _by_target(values: Vector) -> Vector:
    """View of `values` with one line per target, shape (max(1, t), n)."""
    return values.reshape(len(values), math.prod(values.shape[1:])).T


def _above(deviations: Vector) -> Vector:
    return np.maximum(deviations, np.finfo(np.float64).tiny)
