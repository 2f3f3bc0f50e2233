"""Exact order statistics of numbers distributed over ranks, without gathering them."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cacore.comm import Communicator

_SIGN = np.uint64(1) << np.uint64(63)
_DIGITS = np.arange(256, dtype=np.uint64)


def order_statistics(values: NDArray[np.float64], ranks: ArrayLike, comm: Communicator) -> NDArray[np.float64]:
    """The requested order statistics (1 = smallest) of all ranks' numbers; a collective call.

    Parameters
    ----------
    values : ndarray of float64, shape (n_local,)
        This rank's numbers, without NaN.
    ranks : array-like of int, shape (k,)
        Numbers of the order statistics, from 1 to the number of all values; any order, the same on all ranks.
    comm : Communicator

    Returns
    -------
    ndarray of float64, shape (k,)
        Bit for bit the result of sorting all values; -0.0 counts as 0.0.

    Notes
    -----
    A radix selection on keys that sort like the numbers. Each of 8 rounds fixes one byte, by one Allreduce of 256
    counts for each distinct prefix, of which there are at most k. O(n_local log n_local) for sorting.
    """
    keys = np.sort(_ordered(values))
    remaining = np.asarray(ranks, np.int64) - 1  # number of smaller values with the same prefix
    prefix = np.zeros(remaining.shape, np.uint64)
    for shift in np.arange(56, -8, -8).astype(np.uint64):
        open_, at = np.unique(prefix, return_inverse=True)
        first = np.searchsorted(keys, open_[:, None] | (_DIGITS << shift))
        last = np.searchsorted(keys, open_ | (_DIGITS[-1] << shift) | ((np.uint64(1) << shift) - np.uint64(1)), "right")
        counts = np.diff(np.concatenate([first, last[:, None]], axis=1)).astype(np.int64)
        before = np.cumsum(comm.allreduce(counts), axis=1)[at]
        digit = np.count_nonzero(before <= remaining[:, None], axis=1)
        remaining = remaining - np.where(digit > 0, before[np.arange(len(digit)), digit - 1], 0)
        prefix |= digit.astype(np.uint64) << shift
    return _numbers(prefix)


def smallest(values: NDArray[np.float64], count: int, comm: Communicator) -> NDArray[np.bool_]:
    """Mask of this rank's numbers that are among the `count` smallest of all ranks'; a collective call.

    Parameters
    ----------
    values : ndarray of float64, shape (n_local,)
        This rank's numbers, without NaN.
    count : int
        At most the number of all ranks' values, the same on all ranks. Ties are resolved in the order of ranks.
    comm : Communicator

    Returns
    -------
    ndarray of bool, shape (n_local,)

    Notes
    -----
    The cost of :func:`order_statistics`, one Allreduce of one number, and two Allgathers of one number.
    """
    if not count:
        return np.zeros(len(values), np.bool_)
    limit = order_statistics(values, [count], comm)[0]
    among: NDArray[np.bool_] = np.less(values, limit)
    equal = np.flatnonzero(values == limit)
    missing = count - int(comm.allreduce(np.array([np.count_nonzero(among)]))[0])
    first, _ = comm.offset(len(equal))
    among[equal[: max(0, missing - first)]] = True
    return among


def _ordered(values: NDArray[np.float64]) -> NDArray[np.uint64]:
    """Integers that sort like these numbers: their bits, all flipped if negative, otherwise only the sign flipped."""
    bits = np.ascontiguousarray(values + 0.0, np.float64).view(np.uint64)
    return np.where(bits & _SIGN, ~bits, bits | _SIGN)


def _numbers(keys: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Inverse of :func:`_ordered`."""
    return np.where(keys & _SIGN, keys ^ _SIGN, ~keys).view(np.float64)
