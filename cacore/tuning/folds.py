"""Folds as numbers of rows: every row is left out of one of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.errors import InputError

FOLDS = 5  # where several settings are compared and nothing else is said


def stratified(codes: NDArray[np.int64], folds: int, first: int = 0) -> NDArray[np.int64]:
    """The fold that each row is left out of: each class is dealt in the order of the rows.

    Parameters
    ----------
    codes : ndarray of int64, shape (m,)
        Class of each row.
    folds : int
    first : int
        Rows that were dealt before: the first fold is this, modulo `folds`.

    Returns
    -------
    ndarray of int64, shape (m,)
        From 0 to `folds` - 1. Folds differ by one row at most, and by one row of each class at most: a class is dealt
        on from where the one before it ended. One of fewer rows than folds is missing in some of them.
    """
    fold = np.empty(len(codes), np.int64)
    fold[np.argsort(codes, kind="stable")] = (first + np.arange(len(codes))) % folds
    return fold


def usable(cv: int | None, counts: NDArray[np.int64], classes: NDArray[Any]) -> int:
    """How many folds there are: what was asked for, or :data:`FOLDS`, or fewer where a class has fewer rows.

    Parameters
    ----------
    cv : int or None
        What was asked for.
    counts : ndarray of int64, shape (k,)
        Rows of each class, of all ranks.
    classes : ndarray, shape (k,)
        Their labels, for the message.

    Returns
    -------
    int
        Below 2 if `cv` is None and the data cannot be cut in two.

    Raises
    ------
    InputError
        More folds than a class has rows were asked for.
    """
    rarest = int(np.argmin(counts))
    least = int(counts[rarest])
    if cv is None:
        return min(FOLDS, least)
    if cv > least:
        remedy = f"ask for {least} folds or fewer" if least > 1 else "leave out the class or the option"
        raise InputError(f"cv = {cv}: class {classes[rarest]} has {least} row{'s' * (least != 1)}; {remedy}")
    return cv
