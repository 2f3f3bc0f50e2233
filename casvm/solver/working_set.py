"""Working sets of Dis-SMO."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from casvm.solver.pair import Index, Vector


@dataclass
class WorkingSet:
    """A working set, the same on all ranks, ordered by row number."""

    numbers: Index
    v: Vector
    beta: Vector
    lower: Vector
    upper: Vector

    @classmethod
    def empty(cls) -> WorkingSet:
        """A working set without rows."""
        none = np.zeros(0)
        return cls(np.zeros(0, np.int64), none, none, none, none)

    def kept(self, most: int) -> WorkingSet:
        """At most `most` of the rows, free ones first, chosen by number and so anywhere in space."""
        free = (self.lower < self.beta) & (self.beta < self.upper)
        return self.taken(np.lexsort((self.numbers, ~free))[:most])

    def with_rows(self, proposed: NDArray[np.float64]) -> WorkingSet:
        """Add proposed rows: v, beta, the nonzero bound or both bounds, and their numbers."""
        v, beta, *bounds, number = proposed.T
        lower, upper = bounds if len(bounds) == 2 else (np.minimum(bounds[0], 0.0), np.maximum(bounds[0], 0.0))
        columns = (number.astype(np.int64), v, beta, lower, upper)
        together = [np.concatenate(pair) for pair in zip(vars(self).values(), columns, strict=True)]
        return WorkingSet(*together).taken(np.argsort(together[0]))

    def taken(self, places: NDArray[np.intp]) -> WorkingSet:
        """The rows at these places, in their order."""
        return WorkingSet(*(values[places] for values in vars(self).values()))


def staying(before: Index, numbers: Index) -> tuple[Index, Index]:
    """Rows of a working set that were in the one before.

    Parameters
    ----------
    before, numbers : ndarray of int64
        Rows of both working sets; `numbers` ascending.

    Returns
    -------
    order : ndarray of int64, shape (len(numbers),)
        Places in `numbers`: of rows that stay, as `before` has them, then of the others.
    stay : ndarray of int64
        Places in `before` of the rows that stay, ascending.
    """
    at = np.searchsorted(numbers, before)
    stay = np.flatnonzero(np.append(numbers, -1)[at] == before)
    others = np.ones(len(numbers), np.bool_)
    others[at[stay]] = False
    return np.concatenate([at[stay], np.flatnonzero(others)]), stay
