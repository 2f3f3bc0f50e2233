"""Rows set aside before training, by which intervals are calibrated."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.dataset import Dataset
from cacore.data.shuffle import Shuffle
from cacore.errors import InputError


def set_aside(train: Dataset, share: float, seed: int, comm: Communicator) -> tuple[Dataset, Dataset]:
    """Split off a random share of all ranks' rows, the same on any number of ranks: (training, aside). Collective."""
    with comm.agreed():
        train.target()
    chosen, left, count = rows_aside(train.X.shape[0], share, seed, comm)
    parted = [_some(train, ~chosen, left), _some(train, chosen, count)]
    train.give()
    return parted[0], parted[1]


def rows_aside(rows: int, share: float, seed: int, comm: Communicator) -> tuple[NDArray[np.bool_], int, int]:
    """A random share of all ranks' rows, the same on any number of ranks; collective.

    Returns
    -------
    chosen : ndarray of bool, shape (rows,)
        Mask of this rank's rows that are set aside.
    left, aside : int
        Number of rows of each kind on all ranks.

    Raises
    ------
    InputError
        On all ranks: no row would be set aside, or none left to train on.
    """
    first, n = comm.offset(rows)
    count = round(share * n)
    with comm.agreed():
        if not 0 < count < n:
            raise InputError(f"calibrate = {share:g}: this share of {n:,} rows is {count:,}; both sides need rows")
    chosen = Shuffle(n, seed).position(np.arange(first, first + rows)) < count
    return np.asarray(chosen), n - count, count


def _some(rows: Dataset, which: NDArray[np.bool_], n: int) -> Dataset:
    weights = None if rows.weights is None else rows.weights[which]
    return replace(rows, X=rows.X[which], y=rows.target()[which], weights=weights, n=n)
