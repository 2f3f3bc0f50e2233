"""Heteroscedastic noise: factors for a model's standard deviations, from one curve per column.

A part's standard deviation assumes constant noise. Held-out rows show how the noise varies. With z their errors over
their standard deviations, fit the regression

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
from cacore.machine import threads

Vector = NDArray[np.float64]

MOST = 128  # features that have curves of their own
WIDTH = 7  # numbers per column: middle, 1 / spread, slope of the line, three bends, offset that makes the mean 0
_BENDS = (-0.6744897501960817, 0.0, 0.6744897501960817)  # quartiles of a normal distribution
_ENDS = 3.0  # spreads from the middle beyond which a curve is constant
_SOFTER, _LARGE = 0.3, 0.9  # c, and the share of the errors that are below q
_ROUNDS = 2
_COUNTS = 1.4  # times that a degree of freedom counts
_RIDGES = 10.0 ** np.arange(-4.0, 2.1, 0.5)
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
        for j, (log, own, spread) in enumerate(zip(*map(_by_target, (out, mean, deviations)), strict=True)):
            table = tables[..., j]
            for rows, B in _bent(X, own, spread, table):
                log[rows] = B @ _slopes(table) - table[:, 6].sum()
        return np.exp(out)


def fit(
    some: Sequence[NoiseRows], features: int, targets: tuple[int, ...], comm: Communicator
) -> tuple[Noise, list[Vector]]:
    """Fit the curves to the rows of all ranks; collective.

    Parameters
    ----------
    some : sequence of NoiseRows
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
    tables, own = np.zeros((features + 2, WIDTH, count)), [np.ones((len(one.mean), count)) for one in some]
    for j in range(count):
        columns = [(one.X, *(_by_target(values)[j] for values in (one.mean, one.deviations))) for one in some]
        z = [np.abs(_by_target(one.errors)[j]) / _above(_by_target(one.deviations)[j]) for one in some]
        tables[..., j], factors = _fit(columns, z, features + 2, comm)
        for values, factor in zip(own, factors, strict=True):
            values[:, j] = factor
    shape = tables.shape if targets else tables.shape[:2]
    return Noise(tables.reshape(shape)), [one.reshape(len(one), *targets) for one in own]


def _fit(
    columns: list[tuple[Rows, Vector, Vector]], z: list[Vector], f: int, comm: Communicator
) -> tuple[Vector, list[Vector]]:
    """Curves of one target, shape (f, 7), and for each block of rows the leave-one-out factors."""
    table, logs = np.zeros((f, WIDTH)), [np.zeros(len(one)) for one in z]
    n = comm.offset(sum(map(len, z)))[1]
    table[:, :2] = _places(columns, f, n, comm)
    for _ in range(_ROUNDS):
        (large,) = order_statistics(np.concatenate([np.zeros(0), *z]), [math.ceil(_LARGE * n)], comm)
        if not 0 < large < np.inf:  # a constant target has no noise
            break
        y = [np.log(one + _SOFTER * large) for one in z]
        found = _regressed(columns, y, table, n, comm)
        if found is None:
            break
        slopes, middle, inverse = found
        table[:, 2:6] += slopes.reshape(4, f).T
        table[:, 6] += (slopes * middle[:-1]).reshape(4, f).sum(axis=0)
        for one, target, errors, log in zip(columns, y, z, logs, strict=True):
            for rows, B in _bent(*one, table):
                B -= middle[:-1]
                fitted, own = B @ slopes, target[rows] - middle[-1]
                # h is the row's leverage: its leave-one-out error is 1 / (1 - h) times its residual.
                h = (1.0 + np.einsum("ij,ij->i", B @ inverse, B)) / n
                log[rows] += own - (own - fitted) / np.maximum(1.0 - h, 1e-3)
                errors[rows] *= np.exp(-fitted)
    return table, [np.exp(one) for one in logs]


def _regressed(
    columns: list[tuple[Rows, Vector, Vector]], y: list[Vector], table: Vector, n: int, comm: Communicator
) -> tuple[Vector, Vector, Vector] | None:
    """Slopes, means of the basis and of y, and the inverse ridge matrix; None if the mean of y fits as well."""
    f = len(table)
    sums = np.zeros((4 * f + 2, 4 * f + 2))
    for one, target in zip(columns, y, strict=True):
        for rows, B in _bent(*one, table):
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
    for one in _RIDGES.tolist():
        shrunk = right / (values + one)
        left = square - 2.0 * shrunk @ right + shrunk @ (values * shrunk)
        free = n - 1.0 - _COUNTS * float((values / (values + one)).sum())
        if free > 0 and left * (n / free) ** 2 < best:
            best, ridge = left * (n / free) ** 2, one
    return ridge


def _places(columns: list[tuple[Rows, Vector, Vector]], f: int, n: int, comm: Communicator) -> Vector:
    """Mean and 1 / standard deviation of each column, shape (f, 2); the latter is 0 for a constant column."""
    sums = np.zeros((2, f))
    for one in columns:
        for _, V in _columns(*one, f):
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


def _slopes(table: Vector) -> Vector:
    """Coefficients of the columns that :func:`_bent` yields, shape (4 f,)."""
    return table[:, 2:6].T.ravel()


def _by_target(values: Vector) -> Vector:
    """View of `values` with one line per target, shape (max(1, t), n)."""
    return values.reshape(len(values), math.prod(values.shape[1:])).T


def _above(deviations: Vector) -> Vector:
    return np.maximum(deviations, np.finfo(np.float64).tiny)
