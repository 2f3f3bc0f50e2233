"""The one container of a rank's training rows: the rows, and what each of them carries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.data.rows import Rows, concatenate


@dataclass
class Samples:
    """Rows with named columns.

    Attributes
    ----------
    X : ndarray or CSR, shape (m, d)
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

    def take(self, rows: NDArray[Any] | slice) -> Samples:
        """Some of the rows."""
        return Samples(self.X[rows], {name: values[rows] for name, values in self.columns.items()})

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
