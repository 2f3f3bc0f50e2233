"""Columns that single precision does not resolve: values far from 0 with a small deviation, such as Unix times.

Rounding to single precision before the mean is subtracted leaves few digits of such a column, or none, and no later
step can restore them. So rows are checked before they are rounded, and such a column is refused.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from cacore.comm import Communicator
from cacore.data.rows import AnyRows, check_alike, in_blocks, is_sparse
from cacore.errors import InputError

STEPS = 100  # deviation of a column, in spacings between float32 numbers, below which rounding affects the predictions
_CONSTANT = 1e-11  # relative deviation up to which a column is one number, and its rounding


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
            square = np.square(X - mean).sum(axis=0)
            n, shift = self._n + len(X), mean - self._mean
            self._square += square + np.square(shift) * (self._n * len(X) / n)
            self._mean += shift * (len(X) / n)
        self._n = n

    def check(self, dtype: DTypeLike, comm: Communicator, where: str = "", names: tuple[str, ...] = ()) -> None:
        """Refuse a column that `dtype` does not resolve; two Allreduces of about d numbers, which are not counted.

        Parameters
        ----------
        dtype : dtype
            The type that the rows get.
        comm : Communicator
        where : str
            The file that the rows come from.
        names : tuple of str
            Names of the columns, if they have some.

        Raises
        ------
        InputError
            On all ranks.
        """
        if np.dtype(dtype) != np.float32:
            return
        with comm.uncounted(), np.errstate(over="ignore", invalid="ignore"):
            total = comm.allreduce(np.append(self._mean * self._n, self._n))
            mean = total[:-1] / max(1.0, total[-1])
            square = comm.allreduce(self._square + self._n * np.square(self._mean - mean))
            deviation = np.sqrt(square / max(1.0, total[-1]))
        with comm.uncounted(), comm.agreed():
            check_steps(mean, deviation, dtype, where, names)


def check_resolved(
    X: AnyRows, dtype: DTypeLike, comm: Communicator, where: str = "", names: tuple[str, ...] = ()
) -> None:
    """Refuse dense training rows, used in this dtype, with a column that it does not resolve; collective, one pass.

    Arguments are otherwise those of :meth:`Moments.check`.
    """
    if np.dtype(dtype) == np.float32 and not is_sparse(X):
        moments = Moments(X.shape[1])
        for block in in_blocks(X):
            moments.add(np.asarray(block, np.float64))
        moments.check(dtype, comm, where, names)


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
    if not is_sparse(rows):
        check_resolved(np.asarray(X), rows.dtype, comm, names=names)


def check_steps(
    mean: NDArray[np.float64], deviation: NDArray[np.float64], dtype: DTypeLike, where: str = "",
    names: tuple[str, ...] = (),
) -> None:  # fmt: skip
    """Raise an InputError for the first column of this mean and deviation that `dtype` does not resolve."""
    if np.dtype(dtype) != np.float32:
        return
    with np.errstate(over="ignore", invalid="ignore"):
        steps = np.spacing(np.abs(mean).astype(np.float32)).astype(np.float64)
        bad = np.flatnonzero((deviation < STEPS * steps) & (deviation > _CONSTANT * np.abs(mean)))
    if bad.size:
        j = int(bad[0])
        name = f" ({names[j]})" if j < len(names) else ""
        raise InputError(
            f"{f'{where}: ' if where else ''}feature {j}{name}: its mean is {mean[j]:.6g} and its standard deviation "
            f"{deviation[j]:.3g}, but numbers of type float32 are {steps[j]:.3g} apart there: use float64 "
            f"{'(--dtype float64)' if where else '(X and dtype)'}, or subtract the mean from this feature first"
        )
