"""Rows held out of training: a share of them, or folds in turn; the same rows on any number of ranks.

:class:`Holdout` cuts a shuffled order of all rows, so that any division into parts holds out the same rows.
:func:`stratified` deals the rows of each class to folds in turn, in one process or over all ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.shuffle import Shuffle
from cacore.errors import InputError

FOLDS = 5  # default number of folds, as in scikit-learn's GridSearchCV


def held_out(m: int, share: float) -> int:
    """Number of rows of `m` to hold out: `share` of them, at least one, but leaving one to train on; 0 for no share."""
    return max(0, min(m - 1, max(1, round(share * m)))) if share else 0


@dataclass(frozen=True, eq=False)
class Holdout:
    """Rows held out by their place in a shuffled order of all rows: the first ones, or a run of places per fold.

    Attributes
    ----------
    place : ndarray of int64, shape (n_local,)
        Place of each of this rank's rows in the order, from 0.
    n : int
        Number of rows on all ranks.
    share : float
        Share of the rows to hold out, if there is one fold; see :func:`held_out`.
    folds : int
        Number of folds.
    """

    place: NDArray[np.int64]
    n: int
    share: float = 0.0
    folds: int = 1

    @classmethod
    def shuffled(cls, rows: int, seed: int, comm: Communicator, share: float = 0.0, folds: int = 1) -> Holdout:
        """Rows of this rank, `rows` of them, in an order that depends on the seed and on n only; collective."""
        first, n = comm.offset(rows)
        return cls(Shuffle(max(1, n), seed).position(np.arange(first, first + rows)), n, share, folds)

    def run(self, fold: int = 0) -> tuple[int, int]:
        """First and last (exclusive) place of the rows that a fold holds out."""
        if self.folds == 1:
            return 0, held_out(self.n, self.share)
        return -(-fold * self.n // self.folds), -(-(fold + 1) * self.n // self.folds)

    def held(self, fold: int = 0) -> NDArray[np.bool_]:
        """Mask of this rank's rows that a fold holds out."""
        first, last = self.run(fold)
        return np.asarray((first <= self.place) & (self.place < last))


def stratified(
    codes: NDArray[np.int64], folds: int, first: int = 0, k: int = 0, comm: Communicator | None = None
) -> NDArray[np.int64]:
    """Number of the fold that holds each row out: the rows of each class are dealt to the folds in turn.

    Parameters
    ----------
    codes : ndarray of int64, shape (m,)
        Class of each row.
    folds : int
    first : int
        Number of rows dealt before; dealing starts with fold `first` modulo `folds`.
    k : int
        Number of classes on all ranks; only for `comm`.
    comm : Communicator, optional
        If given, the rows of all its ranks are dealt, as if one process had them; collective, one Allgather of k
        counts.

    Returns
    -------
    ndarray of int64, shape (m,)
        Numbers from 0 to `folds` - 1. Fold sizes differ by at most one row, in total and per class, since dealing
        continues from one class to the next. A class with fewer rows than folds is missing in some folds.
    """
    number = first + np.arange(len(codes))  # of each row, in the order of the classes
    if comm is not None:
        counts = comm.allgather(np.bincount(codes, minlength=k).astype(np.int64)[None])
        here, total = counts[comm.rank], counts.sum(axis=0)
        smaller_classes = (np.cumsum(total) - total) - (np.cumsum(here) - here)  # rows on other ranks
        number += np.repeat(smaller_classes + counts[: comm.rank].sum(axis=0), here)
    fold = np.empty(len(codes), np.int64)
    fold[np.argsort(codes, kind="stable")] = number % folds
    return fold


def usable(cv: int | None, counts: NDArray[np.int64], classes: NDArray[np.generic]) -> int:
    """Number of folds: `cv` or, by default, :data:`FOLDS`, or fewer if a class has fewer rows.

    Parameters
    ----------
    cv : int or None
        The requested number.
    counts : ndarray of int64, shape (k,)
        Rows of each class on all ranks.
    classes : ndarray, shape (k,)
        Labels of the classes, for the message.

    Returns
    -------
    int
        Below 2 if `cv` is None and the data cannot be split.

    Raises
    ------
    InputError
        If `cv` is larger than the number of rows of a class.
    """
    rarest = int(np.argmin(counts))
    least = int(counts[rarest])
    if cv is None:
        return min(FOLDS, least)
    if cv > least:
        remedy = f"ask for {least} folds or fewer" if least > 1 else "leave out the class or the option"
        raise InputError(f"cv = {cv}: class {classes[rarest]} has {least} row{'s' * (least != 1)}; {remedy}")
    return cv
