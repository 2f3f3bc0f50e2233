"""Order statistics of numbers that lie on many ranks, exact, without gathering them."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cacore.comm import Communicator

_SIGN = np.uint64(1) << np.uint64(63)
_DIGITS = np.arange(256, dtype=np.uint64)


def order_statistics(values: NDArray[np.float64], ranks: ArrayLike, comm: Communicator) -> NDArray[np.float64]:
    """The smallest, second smallest, ... of all ranks' numbers, whichever are asked for; a collective call.

    Parameters
    ----------
    values : ndarray of float64, shape (n_local,)
        This rank's; not a number is none.
    ranks : array-like of int, shape (k,)
        From 1 to the number of all ranks' values, in any order, the same on all ranks.
    comm : Communicator

    Returns
    -------
    ndarray of float64, shape (k,)
        To the bit what sorting all the values would give; -0.0 counts as 0.0.

    Notes
    -----
    A radix selection on the bits of the numbers, in the order of the numbers: in each of 8 rounds one byte, by one
    Allreduce of 256 counts for each beginning that is still open, of which there are k at most. O(n_local log n_local).
    """
    keys = np.sort(_ordered(values))
    left = np.asarray(ranks, np.int64) - 1  # values that come before, among those with the same beginning
    found = np.zeros(left.shape, np.uint64)
    for shift in np.arange(56, -8, -8).astype(np.uint64):
        open_, at = np.unique(found, return_inverse=True)
        first = np.searchsorted(keys, open_[:, None] | (_DIGITS << shift))
        last = np.searchsorted(keys, open_ | (_DIGITS[-1] << shift) | ((np.uint64(1) << shift) - np.uint64(1)), "right")
        counts = np.diff(np.concatenate([first, last[:, None]], axis=1)).astype(np.int64)
        before = np.cumsum(comm.allreduce(counts), axis=1)[at]
        digit = np.count_nonzero(before <= left[:, None], axis=1)
        left = left - np.where(digit > 0, before[np.arange(len(digit)), digit - 1], 0)
        found |= digit.astype(np.uint64) << shift
    return _numbers(found)


def smallest(values: NDArray[np.float64], count: int, comm: Communicator) -> NDArray[np.bool_]:
    """Which of this rank's numbers are among the `count` smallest of all ranks'; a collective call.

    Parameters
    ----------
    values : ndarray of float64, shape (n_local,)
        Not a number is none.
    count : int
        At most as many as all ranks have, the same on all. Of equal numbers the first count, in the order of ranks.
    comm : Communicator

    Returns
    -------
    ndarray of bool, shape (n_local,)

    Notes
    -----
    What :func:`order_statistics` costs, an Allreduce of a number and two Allgathers of one.
    """
    if not count:
        return np.zeros(len(values), np.bool_)
    limit = order_statistics(values, [count], comm)[0]
    among: NDArray[np.bool_] = np.less(values, limit)
    equal = np.flatnonzero(values == limit)
    left = count - int(comm.allreduce(np.array([np.count_nonzero(among)]))[0])
    first, _ = comm.offset(len(equal))
    among[equal[: max(0, left - first)]] = True
    return among


def _ordered(values: NDArray[np.float64]) -> NDArray[np.uint64]:
    """Whole numbers in the order of these numbers: the bits, all flipped below 0, and the sign alone from 0 on."""
    bits = np.ascontiguousarray(values + 0.0, np.float64).view(np.uint64)
    return np.where(bits & _SIGN, ~bits, bits | _SIGN)


def _numbers(keys: NDArray[np.uint64]) -> NDArray[np.float64]:
    """What :func:`_ordered` was given."""
    return np.where(keys & _SIGN, keys ^ _SIGN, ~keys).view(np.float64)
