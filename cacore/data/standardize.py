"""Transformation of rows before kernels are evaluated: levels, mean and scale, normal scores, a learned metric.

Levels: a column of 0 and 1 for each value of a feature that takes few whole numbers. Such numbers are often codes of
categories, whose differences mean nothing. With a column per value, any two different values are about equally far
apart, as they are for the splits of a decision tree.

Normal scores: each value of a feature is replaced by the normal quantile of its rank (van der Waerden, 1952). A heavy
tail stretches the distances so much that all other rows look alike to a kernel. Normal scores depend only on the order
of a feature's values, like the splits of a decision tree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.encoding import FIRST_LEVEL, LEVEL
from cacore.data.resolution import check_steps
from cacore.data.rows import AnyRows, Rows, dense, is_sparse, power_of_two
from cacore.data.shuffle import Shuffle
from cacore.data.stored import empty_like
from cacore.errors import InputError
from cacore.machine.threads import blocks, rows_in

FEWEST, MOST = 3, 20  # numbers of levels; one column tells two values apart as well as two do
_EXACT = 2.0**24  # whole numbers up to this one are exact in single precision
_GLANCE = 1_000  # rows that show most features to have more values


@dataclass(frozen=True, eq=False)
class Levels:
    """Columns made from the features: one for each level of some features, and the other features as they are.

    Attributes
    ----------
    feature : ndarray of int64, shape (d',)
        Feature of each column, ascending. A feature has one column, or one per level.
    value : ndarray of float64, shape (d',)
        Level of the column's feature at which the column is 1, while it is 0 elsewhere; 0 for a feature as it is.
    """

    feature: NDArray[np.int64]
    value: NDArray[np.float64]

    @property
    def n_features(self) -> int:
        """Number of features, d."""
        return int(self.feature[-1]) + 1

    @property
    def indicates(self) -> NDArray[np.bool_]:
        """Mask of the columns that stand for a level, shape (d',)."""
        return np.bincount(self.feature)[self.feature] > 1

    def apply(self, X: NDArray[np.floating]) -> NDArray[np.floating]:
        """The columns, shape (n, d'), for rows of shape (n, d), in their dtype; a value without a column gives 0."""
        out = np.take(X, self.feature, axis=1)
        for column in np.flatnonzero(self.indicates):
            out[:, column] = X[:, self.feature[column]] == self.value[column]
        return out

    def summed(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Numbers for the columns, shape (d',), added up for each feature, shape (d,)."""
        return np.asarray(np.bincount(self.feature, values))

    def check(self) -> None:
        """Raise an InputError if the arrays of a model file are not valid."""
        steps = np.diff(self.feature, prepend=0)
        if self.feature[:1].any() or not np.isin(steps, (0, 1)).all():
            raise InputError("level_features: not the features in their order")


def levels_of(X: NDArray[np.floating], comm: Communicator) -> Levels | None:
    """The levels of the features with 3 to 20 different whole numbers; None if there are none. Collective.

    Parameters
    ----------
    X : ndarray, shape (n_local, d)
        This rank's rows; finite.
    comm : Communicator

    Notes
    -----
    One Allgather of 20 d numbers per rank. n d log(n) comparisons for features of few whole numbers.
    """
    local = np.full((X.shape[1], MOST), np.inf)  # too many values are -inf, missing ones inf
    for j in range(X.shape[1]):
        values = np.unique(X[:_GLANCE, j])
        if len(values) <= MOST:
            values = np.unique(X[:, j])
        whole = len(values) <= MOST and bool((values == np.rint(values)).all() and (np.abs(values) <= _EXACT).all())
        local[j, : len(values) if whole else MOST] = values if whole else -np.inf
    all_values = comm.allgather(local[None])
    features, columns = [], []
    for j in range(X.shape[1]):
        values = np.unique(all_values[:, j])
        values = values[values < np.inf]
        few = FEWEST <= len(values) <= MOST and np.isfinite(values).all()
        columns.append(values if few else np.zeros(1))
        features.append(np.full(len(columns[-1]), j))
    levels = Levels(np.concatenate(features).astype(np.int64), np.concatenate(columns))
    return levels if len(levels.feature) > X.shape[1] else None


SCORES = np.linspace(-3.9, 3.9, 1001)
SAMPLE = 10_000  # rows of all ranks from which the quantiles are estimated


def quantiles_of(X: NDArray[np.floating], seed: int, comm: Communicator) -> NDArray[np.float64]:
    """Value of each feature at each of `SCORES`, estimated from a sample of all ranks' rows; collective.

    Parameters
    ----------
    X : ndarray, shape (n_local, d)
        This rank's rows; finite.
    seed : int
        Seed of the sample, which does not depend on the distribution of the rows over ranks.
    comm : Communicator

    Returns
    -------
    ndarray, shape (len(SCORES), d)
        Ascending along the first axis.

    Notes
    -----
    One Allgather of at most `SAMPLE` rows, which every rank sorts.
    """
    from scipy.special import ndtr  # not loaded by commands without normal scores

    first, n = comm.offset(len(X))
    chosen = Shuffle(n, seed).position(np.arange(first, first + len(X))) < SAMPLE
    sample = comm.allgather(X[chosen].astype(np.float64, copy=False))
    return np.asarray(np.quantile(sample, ndtr(SCORES), axis=0, method="hazen"))


def normal_scores(X: NDArray[np.floating], quantiles: NDArray[np.float64]) -> NDArray[np.floating]:
    """Normal scores of rows, shape (n, d), in the dtype of `X`.

    Scores are interpolated linearly between the quantiles and constant beyond them. If several quantiles share a value,
    because it is frequent, its score is that of the middle of their probabilities. A constant feature gets 0.

    Notes
    -----
    n d log(len(SCORES)) comparisons; memory for one more array of the size of `X`.
    """
    out = np.empty_like(X)
    for j, curve in enumerate(curves(quantiles)):
        out[:, j] = np.interp(X[:, j], *curve)
    return out


def curves(quantiles: NDArray[np.float64]) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Points of the piecewise linear curve of each feature: distinct quantiles, ascending, and their normal scores."""
    from scipy.special import ndtr, ndtri

    probabilities = ndtr(SCORES)
    for column in quantiles.T:
        values, first, count = np.unique(column, return_index=True, return_counts=True)
        yield values, ndtri((probabilities[first] + probabilities[first + count - 1]) / 2.0)


Root = NDArray[np.float64]  # of a metric: (d, d) symmetric, or (d,)


@overload
def mapped(X: Rows, root: Root | None) -> Rows: ...


@overload
def mapped(X: AnyRows, root: Root | None) -> AnyRows: ...


def mapped(X: AnyRows, root: Root | None) -> AnyRows:
    """Rows times the root, in the dtype of `X`; dense if the root is a full matrix. Without a root, `X` itself."""
    if root is None:
        return X
    if root.ndim == 1:
        return X.multiply(root).tocsr().astype(X.dtype, copy=False) if is_sparse(X) else X * root.astype(X.dtype)
    out, R = np.empty(X.shape, X.dtype), root.astype(X.dtype)
    for lo, hi in blocks(X.shape[0], 4096):
        out[lo:hi] = X[lo:hi] @ R
    return out


_BLOCK_BYTES = 16 << 20  # rows in double precision at a time: little memory beside rows in single precision
_LEVELS = ("level_features", "level_values")


@dataclass(frozen=True)
class Standardizer:
    """``(x - mean) / scale``, column by column; then, optionally, normal scores and the map of a learned metric.

    Before that, some features may be replaced by columns for their levels; d is then the number of columns after it.

    Attributes
    ----------
    mean, scale : ndarray of float64, shape (d,)
        The scale of a constant column is 1. For CSR rows the mean is 0, since a shift would make them dense.
    quantiles : ndarray of float64, shape (1001, d), or None
        Quantiles of the scaled features, for their normal scores; see :mod:`cacore.data.standardize`.
    root : ndarray of float64, shape (d, d) or (d,), or None
        Root of the metric, see :mod:`cacore.data.metric`. A full root makes CSR rows dense.
    levels : Levels or None
        Columns that replace the features first; dense rows only.
    """

    mean: NDArray[np.float64]
    scale: NDArray[np.float64]
    quantiles: NDArray[np.float64] | None = None
    root: Root | None = None
    levels: Levels | None = None

    @classmethod
    def stored(cls, shared: dict[str, Any]) -> Standardizer | None:
        """The standardiser of a model file, or None if the file has none."""
        if "mean" not in shared:
            if unused := {"scale", "quantiles", "metric_weights", "metric_root", *_LEVELS} & set(shared):
                raise InputError(f"{min(unused)} without mean")
            return None
        if {"metric_weights", "metric_root"} <= set(shared):
            raise InputError("metric_weights beside metric_root: a model has one metric")
        root = shared.get("metric_root", shared.get("metric_weights"))
        if len(there := set(_LEVELS) & set(shared)) == 1:
            raise InputError(f"{there.pop()} alone: levels have features and values")
        levels = Levels(*(shared[name] for name in _LEVELS)) if there else None
        return cls(shared["mean"], shared["scale"], shared.get("quantiles"), root, levels)

    @property
    def arrays(self) -> dict[str, Rows]:
        """The arrays for a model file; :data:`cacore.io.model_file.STANDARDIZER` describes them."""
        metric = {} if self.root is None else {f"metric_{'weights' if self.root.ndim == 1 else 'root'}": self.root}
        scores = {} if self.quantiles is None else {"quantiles": self.quantiles}
        levels = (
            {} if self.levels is None else dict(zip(_LEVELS, (self.levels.feature, self.levels.value), strict=True))
        )
        return {"mean": self.mean, "scale": self.scale, **levels, **scores, **metric}

    @property
    def n_features(self) -> int:
        """Number of features of the rows that are transformed."""
        return len(self.mean) if self.levels is None else self.levels.n_features

    def by_feature(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Numbers for the columns, shape (d,), added up for each feature."""
        return values if self.levels is None else self.levels.summed(values)

    def of_columns(self, values: NDArray[Any]) -> NDArray[Any]:
        """Values of the features, repeated for the columns of each, shape (d,)."""
        return values if self.levels is None else values[self.levels.feature]

    @property
    def narrow(self) -> bool:
        """True if mean and scale fit in single precision."""
        mean, scale = self.mean, self.scale
        return bool((np.abs(mean) < 1e30).all() and ((scale > 1e-30) & (scale < 1e30)).all())

    def check(self) -> None:
        """Raise an InputError if the arrays of a model file are not valid."""
        if not (self.scale > 0).all():
            raise InputError("scale: not all above 0")
        if self.quantiles is not None and (np.diff(self.quantiles, axis=0) < 0).any():
            raise InputError("quantiles: not ascending")
        if self.levels is not None:
            self.levels.check()

    @staticmethod
    def with_root(standardizer: Standardizer | None, root: Root | None) -> Standardizer | None:
        """The standardiser, or the identity if it is None, followed by the map of this metric."""
        if root is None:
            return standardizer
        d = len(root)
        return replace(standardizer or Standardizer(np.zeros(d), np.ones(d)), root=root)

    @classmethod
    @np.errstate(over="ignore", invalid="ignore")
    def fit(
        cls, X: AnyRows, comm: Communicator, weights: NDArray[Any] | None = None, kinds: str = ""
    ) -> Standardizer:  # fmt: skip
        """Mean and scale of all ranks' rows; two Allreduces of about d numbers, and one of a number for weights.

        The second pass squares differences from the mean, so columns far from 0 lose no digits. `kinds` are those of
        :class:`cacore.data.encoding.Columns`, to give the indicators of one category a common scale.

        Raises
        ------
        InputError
            On all ranks, if the variance of a column overflows or underflows double precision, or if single precision
            does not resolve a column.
        """
        w = np.ones(X.shape[0]) if weights is None else relative(weights, comm)
        d = X.shape[1]
        total = comm.allreduce(np.append(_weighted(X, w), w.sum()))
        mean = total[:d] / total[d]
        level = np.abs(mean)
        if is_sparse(X):
            rows = np.repeat(w, np.diff(X.indptr))
            gap = X.data - mean[X.indices]
            sums = [np.bincount(X.indices, v, d) for v in (rows, rows * gap, rows * gap * gap)]
            # On a rank without rows, bincount returns integers, which must not enter the sum of floats.
            packed = np.concatenate(sums).astype(np.float64)
            stored, residual, square = np.split(comm.allreduce(packed), 3)
            zeros = total[d] - stored
            residual, square = (residual - zeros * mean) / total[d], (square + zeros * mean**2) / total[d]
            mean = np.zeros(d)
        else:
            square, residual = np.zeros(d), np.zeros(d)
            for lo, hi in _blocks(X):
                gap = X[lo:hi] - mean
                residual += w[lo:hi] @ gap  # rounding error of the mean
                np.multiply(gap, gap, out=gap)
                square += w[lo:hi] @ gap
                del gap  # before the next rows are read
            square, residual = np.split(comm.allreduce(np.concatenate([square, residual])) / total[d], 2)
        vanished = (square < 1e-290) & (level < 1e-140) & ((level > 0) | (residual != 0))
        bad = np.flatnonzero(vanished | ~(square < np.inf))
        if bad.size:
            size = "small" if vanished[bad[0]] else "large"
            raise InputError(f"feature {bad[0]}: its numbers are too {size} to have a variance; scale the feature")
        scale = np.sqrt(np.maximum(0.0, square - residual**2))
        if not is_sparse(X):
            with comm.uncounted(), comm.agreed():
                check_steps(mean, scale, X.dtype)
        # The deviation of a constant column is only rounding.
        constant = scale <= 10 * np.finfo(X.dtype).eps * level
        scale[constant] = 1.0
        return cls(mean, scale if not kinds else _of_categories(scale, constant, kinds))

    @classmethod
    def with_levels(
        cls, X: NDArray[np.floating], comm: Communicator, weights: NDArray[Any] | None = None
    ) -> Standardizer:
        """The same, with a column for each level of the features that have few; see :mod:`cacore.data.standardize`.

        Columns of one feature share a scale, at which their variances add up to 1, as that of a feature is. It sends
        what :meth:`fit` sends, the levels, and an Allreduce of a number per column.
        """
        plain = cls.fit(X, comm, weights)
        w = np.ones(len(X)) if weights is None else relative(weights, comm)
        levels = levels_of(X if weights is None else X[w > 0], comm)
        if levels is None:
            return plain
        columns = np.flatnonzero(levels.indicates)
        sums = [w @ (X[:, levels.feature[column]] == levels.value[column]) for column in columns]
        total = comm.allreduce(np.array([w.sum(), *sums]))
        mean, scale = plain.mean[levels.feature], plain.scale[levels.feature]
        mean[columns] = total[1:] / total[0]
        variance = np.bincount(levels.feature[columns], mean[columns] * (1.0 - mean[columns]))
        scale[columns] = np.sqrt(variance[levels.feature[columns]])
        return cls(mean, scale, levels=levels)

    @overload
    def apply(self, X: Rows, in_place: bool = False) -> Rows: ...

    @overload
    def apply(self, X: AnyRows, in_place: bool = False) -> AnyRows: ...

    def apply(self, X: AnyRows, in_place: bool = False) -> AnyRows:
        """Transformed rows, in the dtype of `X`; `in_place` allows overwriting `X`."""
        if self.levels is not None:
            X, in_place = self.levels.apply(dense(X)), True
        X = self._scaled(X, in_place)
        if self.quantiles is not None:
            X = normal_scores(dense(X), self.quantiles)
        return mapped(X, self.root)

    def _scaled(self, X: AnyRows, in_place: bool) -> AnyRows:
        if is_sparse(X) and not self.mean.any():
            with np.errstate(over="ignore"):
                return X.multiply(1.0 / self.scale).tocsr().astype(X.dtype, copy=False)
        if is_sparse(X):
            X, in_place = X.toarray(), True  # the model was trained on dense rows: the shift makes these dense, too
        out = X if in_place else empty_like(X)
        mean, scale = self.mean, self.scale
        if self.narrow:
            mean, scale = mean.astype(X.dtype), scale.astype(X.dtype)
        with np.errstate(over="ignore"):
            for lo, hi in _blocks(X):
                part = X[lo:hi] - mean
                part /= scale
                out[lo:hi] = part
                del part  # before the next rows are read
        return out


def _of_categories(scale: NDArray[np.float64], constant: NDArray[np.bool_], kinds: str) -> NDArray[np.float64]:
    """Scales at which the variances of a category's indicators add up to 1, as that of a feature is.

    With a scale of its own, an indicator that is 1 in a row of 200 puts this row 14 deviations from the others, and a
    category of 30 levels counts as 30 features. Neither is better for all tables. Ridge regression in parts, kernel
    "auto", 6,000 rows, rmse with own and shared scales: diamonds 696, 1,007; ames 2.42e4, 2.70e4; flights 11.7, 10.7;
    loans .371, .271; rodents 11.6, 10.9.
    """
    letters = np.array(list(kinds))
    category = np.cumsum(letters != LEVEL)  # such a column belongs to the one before it
    shared = np.sqrt(np.bincount(category, np.where(constant, 0.0, scale**2)))[category]
    indicates = ((letters == LEVEL) | (letters == FIRST_LEVEL)) & (shared > 0.0)
    return np.where(indicates, shared, scale)


def relative(weights: NDArray[Any], comm: Communicator) -> NDArray[np.float64]:
    """Row weights in a unit in which the largest of all ranks is near 1; one Allreduce of a number.

    Means do not depend on the unit, but products of tiny or huge weights with the numbers would vanish or overflow.
    """
    weights = np.asarray(weights, np.float64)
    return weights / power_of_two(float(comm.allreduce(weights.max(initial=0.0, keepdims=True), "max")[0]))


def _blocks(X: AnyRows) -> list[tuple[int, int]]:
    """Ranges of rows that take at most :data:`_BLOCK_BYTES` in double precision."""
    return blocks(X.shape[0], min(4096, rows_in(_BLOCK_BYTES, X.shape[1])))


def _weighted(X: AnyRows, w: NDArray[np.float64]) -> NDArray[np.float64]:
    if is_sparse(X):
        return np.asarray(w @ X, np.float64).ravel()
    total = np.zeros(X.shape[1])
    for lo, hi in _blocks(X):
        total += w[lo:hi] @ X[lo:hi].astype(np.float64, copy=False)
    return total
