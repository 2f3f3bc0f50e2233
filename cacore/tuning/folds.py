"""Folds of cross-validation as one number per row: the fold that holds the row out."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cacore.errors import InputError

FOLDS = 5  # default number of folds


def stratified(codes: NDArray[np.int64], folds: int, first: int = 0) -> NDArray[np.int64]:
    """Number of the fold that holds each row out: the rows of each class are dealt to the folds in turn.

    Parameters
    ----------
    codes : ndarray of int64, shape (m,)
        Class of each row.
    folds : int
    first : int
        Number of rows dealt before; dealing starts with fold `first` modulo `folds`.

    Returns
    -------
    ndarray of int64, shape (m,)
        Numbers from 0 to `folds` - 1. Fold sizes differ by at most one row, in total and per class, since dealing
        continues from one class to the next. A class with fewer rows than folds is missing in some folds.
    """
    fold = np.empty(len(codes), np.int64)
    fold[np.argsort(codes, kind="stable")] = (first + np.arange(len(codes))) % folds
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
