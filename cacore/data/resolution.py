"""Numbers that lose their digits: columns far from 0 with a small deviation, and columns with a far outlier.

Rounding to single precision before the mean is subtracted leaves few digits of a column such as Unix times, or none,
and no later step can restore them. So rows are checked before they are rounded, and such a column is refused. Whole
numbers above 2^53, such as nanoseconds since 1970, are rounded to double precision, and are checked likewise. A number
far from all others of its column may be a fill value or an error of unit, and is noted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from cacore.comm import Communicator
from cacore.data.rows import CSR, AnyRows, check_alike, in_blocks, is_sparse
from cacore.errors import InputError

Mask: TypeAlias = NDArray[np.bool_]
STEPS = 100  # deviation of a column, in spacings between float32 numbers, below which rounding affects the predictions
_CONSTANT = 1e-11  # relative deviation up to which a column is one number, and its rounding


@dataclass(frozen=True)
class ColumnLabels:
    """Names of columns in messages.

    Attributes
    ----------
    where : str
        The file that the rows come from.
    names : tuple of str
        Names of the columns, if they have some.
    kind : str
        Noun for a column: "feature" or "target".
    numbers : ndarray of int, shape (d,), or None
        Numbers of the columns, in messages and among `names`; None for 0 to d - 1.
    """

    where: str = ""
    names: tuple[str, ...] = ()
    kind: str = "feature"
    numbers: NDArray[np.integer[Any]] | None = None

    def label(self, j: int) -> str:
        """Column `j` with its file, number and name."""
        number = j if self.numbers is None else int(self.numbers[j])
        name = f" ({self.names[number]})" if number < len(self.names) else ""
        return f"{self.where}: {self.kind} {number}{name}" if self.where else f"{self.kind} {number}{name}"


UNLABELLED = ColumnLabels()


class Moments:
    """Number of rows, mean and squared deviation of each of d columns, added block by block in double precision.

    Parameters
    ----------
    d : int
    """

    def __init__(self, d: int) -> None:
        self._n, self._mean, self._square = 0, np.zeros(d), np.zeros(d)

    def add(self, X: NDArray[Any]) -> None:
        """Add dense rows; 3 d flops each."""
        if not len(X):
            return
        with np.errstate(over="ignore", invalid="ignore"):  # a later check refuses such numbers
            mean = X.mean(axis=0, dtype=np.float64)
            self._merge(len(X), mean, np.square(X - mean).sum(axis=0))

    def add_columns(self, X: CSR, columns: NDArray[np.integer[Any]]) -> None:
        """Add d ascending `columns` of CSR rows, whose other entries are zeros; O(nnz log d) operations."""
        if not X.shape[0]:
            return
        place = np.searchsorted(columns, X.indices)
        here = columns[np.minimum(place, len(columns) - 1)] == X.indices
        values, place = X.data[here].astype(np.float64), place[here]
        middle = np.zeros(len(columns))
        middle[place] = values  # any value of the column: the digits of the sums are those of the differences
        n, d = X.shape[0], len(columns)
        zeros = n - np.bincount(place, minlength=d)
        with np.errstate(over="ignore", invalid="ignore"):
            apart = values - middle[place]
            shift = (np.bincount(place, apart, d) - zeros * middle) / n
            square = np.bincount(place, np.square(apart - shift[place]), d) + zeros * np.square(middle + shift)
            self._merge(n, middle + shift, np.asarray(square, np.float64))

    def _merge(self, count: int, mean: NDArray[np.float64], square: NDArray[np.float64]) -> None:
        """Add rows of this mean and squared deviation."""
        n, shift = self._n + count, mean - self._mean
        self._square += square + np.square(shift) * (self._n * count / n)
        self._mean += shift * (count / n)
        self._n = n

    def check(
        self, dtype: DTypeLike, comm: Communicator, labels: ColumnLabels = UNLABELLED, rounded: Mask | None = None,
        width: float = np.inf,
    ) -> None:  # fmt: skip
        """Refuse a column that `dtype` does not resolve; two Allreduces of about d numbers, which are not counted.

        Parameters
        ----------
        dtype : dtype
            The type that the rows get.
        comm : Communicator
        labels : ColumnLabels
        rounded : ndarray of bool, shape (d,), or None
            Columns of this rank with whole numbers that were rounded to double precision; on all ranks, or on none.
        width : float
            Width of the kernel, which must be resolved like the standard deviation.

        Raises
        ------
        InputError
            On all ranks.
        """
        rounded = _on_any(rounded, comm)
        if np.dtype(dtype) != np.float32 and rounded is None:
            return
        with comm.uncounted(), np.errstate(over="ignore", invalid="ignore"):
            total = comm.allreduce(np.append(self._mean * self._n, self._n))
            mean = total[:-1] / max(1.0, total[-1])
            square = comm.allreduce(self._square + self._n * np.square(self._mean - mean))
            deviation = np.sqrt(square / max(1.0, total[-1]))
        with comm.uncounted(), comm.agreed():
            check_steps(mean, deviation, dtype, labels, rounded, width)


def check_resolved(
    X: AnyRows, dtype: DTypeLike, comm: Communicator, labels: ColumnLabels = UNLABELLED, rounded: Mask | None = None,
    width: float = np.inf,
) -> None:  # fmt: skip
    """Refuse training rows, used in this dtype, with a column that it does not resolve; collective, one pass.

    Of CSR rows the entries that are stored are checked, and whole numbers that were rounded. Arguments are otherwise
    those of :meth:`Moments.check`.
    """
    rounded = _on_any(rounded, comm)
    if is_sparse(X):
        if np.dtype(dtype) == np.float32:
            _check_stored(X, comm, labels, width)
        if rounded is not None:
            columns = np.flatnonzero(rounded)
            moments = Moments(len(columns))
            moments.add_columns(X, columns)
            moments.check(np.float64, comm, replace(labels, numbers=columns), rounded[columns])
        return
    if np.dtype(dtype) == np.float32 or rounded is not None:
        moments = Moments(X.shape[1])
        for block in in_blocks(X):
            moments.add(np.asarray(block, np.float64))
        moments.check(dtype, comm, labels, rounded, width)


def _check_stored(X: CSR, comm: Communicator, labels: ColumnLabels, width: float) -> None:
    """Refuse a column whose stored entries single precision does not resolve; Allreduces of 2 d and d numbers."""
    stored = slice(X.indptr[0], X.indptr[-1])
    columns, values, d = X.indices[stored], X.data[stored].astype(np.float64), X.shape[1]
    with comm.uncounted(), np.errstate(over="ignore", invalid="ignore"):
        sums = comm.allreduce(np.stack([np.bincount(columns, minlength=d), np.bincount(columns, values, d)]))
        count = np.maximum(1.0, sums[0])
        mean = sums[1] / count
        deviation = np.sqrt(comm.allreduce(np.bincount(columns, np.square(values - mean[columns]), d)) / count)
    with comm.uncounted(), comm.agreed():
        check_steps(mean, deviation, np.float32, labels, width=width)


def _on_any(rounded: Mask | None, comm: Communicator) -> Mask | None:
    """Columns marked on any rank; None if there are none. Collective, unless `rounded` is None."""
    if rounded is None or comm.all(not rounded.any()):
        return None
    with comm.uncounted():
        return comm.allreduce(rounded.astype(np.int8), "max").astype(np.bool_)


def rounded_columns(values: NDArray[Any] | CSR) -> Mask:
    """Mask of the columns, or of the one column, with whole numbers that double precision rounds."""
    if is_sparse(values):
        marked = np.zeros(values.shape[1], np.bool_)
        entries = np.asarray(values.data)
        if entries.dtype.kind in "iu" and entries.dtype.itemsize == 8:
            with np.errstate(invalid="ignore"):
                marked[values.indices[entries.astype(np.float64).astype(entries.dtype) != entries]] = True
        return marked
    columns = values if values.ndim > 1 else values[:, None]
    none = np.zeros(columns.shape[1], np.bool_)
    if values.dtype.kind not in "iu" or values.dtype.itemsize < 8 or not len(values):
        return none
    large = (columns.max(axis=0) > 2**53) | (columns.min(axis=0) < -(2**53))
    for j in np.flatnonzero(large):
        with np.errstate(invalid="ignore"):
            none[j] = (columns[:, j].astype(np.float64).astype(values.dtype) != columns[:, j]).any()
    return none


def check_whole_numbers(values: NDArray[Any], where: str) -> None:
    """Refuse a column of whole numbers, as integers or as Python's, that differ by less than double precision tells."""
    if values.dtype.kind == "O":
        if not all(isinstance(value, Integral) for value in values.tolist()):
            return
    elif values.dtype.kind not in "iu" or values.dtype.itemsize < 8:
        return
    if not len(values):
        return
    low, high = int(values.min()), int(values.max())
    if max(-low, high) <= 2**53 or low == high:
        return
    exact = values.astype(object) if high - low >= 2**63 else values
    deviation = float((exact - exact.dtype.type(low) if exact is values else exact - low).astype(np.float64).std())
    step = float(np.spacing(float(max(-low, high))))
    if deviation < STEPS * step:
        raise InputError(f"{where}: {_too_close(float(low), deviation, step)}")


def _too_close(mean: float, deviation: float, step: float) -> str:
    """Message about whole numbers that double precision rounds, with the remedy."""
    return (
        f"its whole numbers near {mean:.6g} have a standard deviation of {deviation:.3g}, but numbers of type float64 "
        f"are {step:.3g} apart there: subtract the least from all of them first"
    )


def check_given(X: object, rows: AnyRows, comm: Communicator, names: tuple[str, ...] = ()) -> None:
    """Refuse rows that single precision does not resolve, before their rounding is forgotten; collective.

    Parameters
    ----------
    X : array-like, shape (n_local, d)
        The rows as the caller gave them.
    rows : ndarray or CSR, shape (n_local, d)
        The same, in the precision in which they are used.
    comm : Communicator
    names : tuple of str
        Names of the columns, if they have some.
    """
    with comm.uncounted():
        check_alike(rows, comm)
    original: AnyRows = X.tocsr() if hasattr(X, "tocsr") else rows if is_sparse(rows) else np.asarray(X)
    check_resolved(original, rows.dtype, comm, ColumnLabels(names=names))


def check_steps(
    mean: NDArray[np.float64], deviation: NDArray[np.float64], dtype: DTypeLike, labels: ColumnLabels = UNLABELLED,
    rounded: Mask | None = None, width: float | NDArray[np.float64] = np.inf,
) -> None:  # fmt: skip
    """Raise an InputError for the first column of this mean and deviation that `dtype` does not resolve.

    `width` is that of the kernel in each column: values that differ by less than it must be told apart, too. One row
    far from the others makes a deviation large that says nothing about them.
    """
    if rounded is not None:
        steps = np.spacing(np.abs(mean))
        if (bad := np.flatnonzero((deviation < STEPS * steps) & rounded)).size:
            j = int(bad[0])
            what = _too_close(float(mean[j]), float(deviation[j]), float(steps[j]))
            raise InputError(f"{labels.label(j)}: {what}")
    if np.dtype(dtype) != np.float32:
        return
    with np.errstate(over="ignore", invalid="ignore"):
        steps = np.spacing(np.abs(mean).astype(np.float32)).astype(np.float64)
        least = np.minimum(deviation, width)
        bad = np.flatnonzero((least < STEPS * steps) & (deviation > _CONSTANT * np.abs(mean)))
    if bad.size:
        j = int(bad[0])
        size = "its standard deviation" if least[j] == deviation[j] else "the width of the kernel"
        raise InputError(
            f"{labels.label(j)}: its mean is {mean[j]:.6g} and {size} "
            f"{least[j]:.3g}, but numbers of type float32 are {steps[j]:.3g} apart there: use float64 "
            f"{'(--dtype float64)' if labels.where else '(X and dtype)'}, or subtract the mean from this feature first"
        )


FAR = 1e6  # deviations of the other numbers
_SAMPLE, _NUMBERS = 1000, 1_000_000  # most rows, and most numbers of them, from which the deviations come
_USUAL = 0.9  # share of the rows of which the deviation is taken, so that the far ones do not count


def far_number(X: NDArray[np.floating], labels: ColumnLabels, comm: Communicator) -> list[str]:
    """A note on the column with the farthest number, if it is far; collective, one pass, not counted.

    The deviation is the range of nine tenths of a sample about its median, as a normal distribution has it.
    """
    rows, d = X.shape
    max_rows = max(1, min(_SAMPLE, _NUMBERS // d) // comm.size)
    with comm.uncounted(), np.errstate(over="ignore", invalid="ignore"):
        sample = comm.allgather(np.ascontiguousarray(X[:: max(1, -(-rows // max_rows))], np.float64))
        if len(sample) < 10:
            return []
        middle = np.median(sample, axis=0)
        scale = np.quantile(np.abs(sample - middle), _USUAL, axis=0) / 1.645
        far, place = np.zeros(d), np.zeros(d)
        for block in in_blocks(X):
            for ends in (block.max(axis=0), block.min(axis=0)):
                further = np.abs(ends - middle) > np.abs(far)
                far[further], place[further] = (ends - middle)[further], ends[further]
        all_ends = comm.allgather(np.column_stack([far, place])[None])
    best = all_ends[np.abs(all_ends[:, :, 0]).argmax(axis=0), np.arange(d)]
    ratio = np.divide(np.abs(best[:, 0]), scale, out=np.zeros(d), where=scale > 0)
    j = int(ratio.argmax())
    if ratio[j] <= FAR:
        return []
    return [
        f"{labels.label(j)} has the number {best[j, 1]:.6g}, {ratio[j]:.2g} deviations of the others from their "
        "median: does it mark a gap?"
    ]
