"""This rank's rows of a data set, as they were read or handed in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.data.rows import Rows
from cacore.errors import InputError


@dataclass
class Dataset:
    """This rank's rows of one split.

    Attributes
    ----------
    X : ndarray or CSR, shape (m, d)
    y : ndarray, shape (m,), or None
        Targets, or labels of any type.
    n : int
        Rows on all ranks.
    where : str
        What messages call it.
    base : int or None
        Number of the first feature of LIBSVM rows.
    weights : ndarray of float64, shape (m,), or None
        Of the rows; one of weight 0 counts as absent.
    """

    X: Rows
    y: NDArray[Any] | None
    n: int = -1
    where: str = "X"
    base: int | None = None
    weights: NDArray[np.float64] | None = None

    def target(self) -> NDArray[Any]:
        """`y`, or an InputError that says it is missing."""
        if self.y is None:
            raise InputError(f"{self.where}: there is no target y in it")
        return self.y

    def row_weights(self) -> NDArray[np.float64]:
        """The weights; 1 for every row where there are none."""
        return np.ones(self.X.shape[0]) if self.weights is None else self.weights

    def give(self) -> Rows:
        """Hand over the rows: they are not here any longer, so that nobody holds them twice."""
        X = self.X
        self.X = X[:0].copy()
        return X
