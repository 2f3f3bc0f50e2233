"""This rank's rows: those of a data set, as they were read or handed in, and training rows with their columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.data.rows import Rows, concatenate
from cacore.data.stored import some
from cacore.errors import InputError


@dataclass
class Dataset:
    """This rank's rows of one split.

    Attributes
    ----------
    X : ndarray or CSR, shape (m, d)
        Or rows in a file, see :mod:`cacore.data.stored`.
    y : ndarray, shape (m,) or (m, t), or None
        Targets, or labels of any type, one a row.
    n : int
        Rows on all ranks.
    where : str
        What messages call it.
    base : int or None
        Number of the first feature of LIBSVM rows.
    weights : ndarray of float64, shape (m,), or None
        Of the rows; one of weight 0 counts as absent.
    overlap : ndarray of bool, shape (m,), or None
        Of test rows: which of them are training rows too, if that was looked for.
    features : int or None
        Of LIBSVM rows: how many the file itself has; the others in `X` are taken as 0.
    """

    X: Rows
    y: NDArray[Any] | None
    n: int = -1
    where: str = "X"
    base: int | None = None
    weights: NDArray[np.float64] | None = None
    overlap: NDArray[np.bool_] | None = None
    features: int | None = None

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


@dataclass
class Samples:
    """Rows with named columns.

    Attributes
    ----------
    X : ndarray or CSR, shape (m, d)
        Or rows in a file.
    columns : dict of str to ndarray, shape (m,) or (m, k)
        What each row carries: its target or the code of its class, its weight or bound of alpha, its global number,
        its place in the shuffled order, its coefficients.
    """

    X: Rows
    columns: dict[str, NDArray[Any]] = field(default_factory=dict)

    def __len__(self) -> int:
        return int(self.X.shape[0])

    def __getitem__(self, column: str) -> NDArray[Any]:
        return self.columns[column]

    def row_weights(self) -> NDArray[np.float64]:
        """The column "weight"; 1 for every row where there is none."""
        return self["weight"] if "weight" in self.columns else np.ones(len(self))

    def take(self, rows: NDArray[Any] | slice) -> Samples:
        """Some of the rows."""
        return Samples(self.X[rows], {name: values[rows] for name, values in self.columns.items()})

    def some(self, rows: NDArray[Any] | slice) -> Samples:
        """As :meth:`take`; rows in a file stay there."""
        return Samples(some(self.X, rows), {name: values[rows] for name, values in self.columns.items()})

    def give(self) -> Samples:
        """Hand the rows over: they are not here any longer, so that nobody holds them twice."""
        given = Samples(self.X, self.columns)
        self.X, self.columns = self.X[:0].copy(), {}
        return given

    @classmethod
    def stacked(cls, blocks: Sequence[Samples]) -> Samples:
        """Blocks of rows that carry the same, one after the other."""
        columns = {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0].columns}
        return cls(concatenate([block.X for block in blocks]), columns)
