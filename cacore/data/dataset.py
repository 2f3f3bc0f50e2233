"""Data sets: this rank's rows with their targets, weights and names of columns.

A `Dataset` is what was read or passed in;
`Samples` are training rows with named columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.encoding import UNNAMED, Columns
from cacore.data.resolution import ColumnLabels, far_number
from cacore.data.rows import AnyRows, concatenate, is_sparse, take_rows
from cacore.data.stored import is_stored
from cacore.errors import InputError

Keys: TypeAlias = NDArray[np.int64] | NDArray[np.str_]


@dataclass
class Dataset:
    """This rank's rows of one split.

    Attributes
    ----------
    X : ndarray, CSR or StoredRows, shape (m, d)
        Rows in memory or in a file (:mod:`cacore.data.stored`).
    y : ndarray, shape (m,) or (m, t), or None
        Targets, or one label of any type per row.
    n : int
        Number of rows on all ranks.
    where : str
        Name of the data in messages.
    base : int or None
        For LIBSVM rows, number of the first feature (0 or 1).
    weights : ndarray of float64, shape (m,), or None
        Row weights; a row of weight 0 is ignored.
    overlap : ndarray of bool, shape (m,), or None
        For test rows, mask of those that are also training rows, if this was checked.
    features : int or None
        For LIBSVM rows, number of features in the file itself; the remaining features of `X` are 0.
    columns : Columns
        Names of the features and the target, as far as they are known.
    chosen : dict
        For tables, name or number of the target `column` that was chosen because the user did not name one, and what
        is known of its values; empty otherwise.
    notes : list of str
        What the user should know of these rows, for the report.
    keys : dict of str to ndarray of int64 or text, shape (n,)
        On rank 0, the column that is kept beside the predictions of all ranks' rows, if there is one, by its name.

    Examples
    --------
    >>> import numpy as np
    >>> from cacore.io import Dataset
    >>> rows = Dataset(np.eye(3), np.array([1.0, 2.0, 3.0]), weights=np.array([1.0, 1.0, 0.0]))
    >>> rows.weighted().target().tolist()  # a row of weight 0 is ignored
    [1.0, 2.0]
    """

    X: AnyRows
    y: NDArray[Any] | None
    n: int = -1
    where: str = "X"
    base: int | None = None
    weights: NDArray[np.float64] | None = None
    overlap: NDArray[np.bool_] | None = None
    features: int | None = None
    columns: Columns = UNNAMED
    chosen: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    keys: dict[str, Keys] = field(default_factory=dict)

    def target(self) -> NDArray[Any]:
        """`y`, or an InputError if there is none."""
        if self.y is None:
            raise InputError(f"{self.where}: there is no target y in it")
        return self.y

    def row_weights(self) -> NDArray[np.float64]:
        """The row weights; 1 for every row by default."""
        return np.ones(self.X.shape[0]) if self.weights is None else self.weights

    def weighted(self) -> Dataset:
        """The rows with a positive weight: these rows themselves if they have no weights."""
        if self.weights is None:
            return self
        weighted = self.weights > 0
        return replace(self, X=self.X[weighted], y=self.target()[weighted], weights=self.weights[weighted])

    def far_numbers(self, comm: Communicator) -> list[str]:
        """Notes on far numbers of dense features in memory, and of targets that are numbers; collective."""
        lines: list[str] = []
        if not (is_sparse(self.X) or is_stored(self.X)):
            lines += far_number(self.X, ColumnLabels(self.where, self.columns.features), comm)
        if self.y is not None and self.y.dtype.kind == "f":
            targets = self.y.reshape(len(self.y), -1)
            lines += far_number(targets, ColumnLabels(self.where, self.columns.target, "target"), comm)
        return lines

    def give(self) -> AnyRows:
        """Return the rows and drop them here, so that they are not kept in memory twice."""
        X = self.X
        self.X = X[:0].copy()
        return X


@dataclass
class Samples:
    """Rows with named columns.

    Attributes
    ----------
    X : ndarray, CSR or StoredRows, shape (m, d)
    columns : dict of str to ndarray, shape (m,) or (m, k)
        Values that move with each row: its target or class code, weight or bound of alpha, global number, position in
        the shuffled order, coefficients.
    """

    X: AnyRows
    columns: dict[str, NDArray[Any]] = field(default_factory=dict)

    def __len__(self) -> int:
        return int(self.X.shape[0])

    def __getitem__(self, column: str) -> NDArray[Any]:
        return self.columns[column]

    def row_weights(self) -> NDArray[np.float64]:
        """The column "weight"; 1 for every row by default."""
        return self["weight"] if "weight" in self.columns else np.ones(len(self))

    def take(self, rows: NDArray[Any] | slice) -> Samples:
        """The given rows, in memory."""
        return Samples(self.X[rows], {name: values[rows] for name, values in self.columns.items()})

    def subset(self, rows: NDArray[Any] | slice) -> Samples:
        """The given rows; rows in a file stay there."""
        return Samples(take_rows(self.X, rows), {name: values[rows] for name, values in self.columns.items()})

    def give(self) -> Samples:
        """Return the rows and drop them here, so that they are not kept in memory twice."""
        released = Samples(self.X, self.columns)
        self.X, self.columns = self.X[:0].copy(), {}
        return released

    @classmethod
    def stacked(cls, blocks: Sequence[Samples]) -> Samples:
        """Concatenation of blocks of rows that have the same columns."""
        columns = {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0].columns}
        return cls(concatenate([block.X for block in blocks]), columns)
