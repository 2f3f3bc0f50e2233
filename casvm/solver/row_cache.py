"""Rows of the kernel matrix in memory, the least recently used replaced first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numba
import numpy as np
from numpy.typing import NDArray

from cacore.machine.threads import blocks, for_blocks
from casvm.solver.pair import Index, padded

if TYPE_CHECKING:
    from cacore.arrays import Longs, Reals

LINES = 64  # rows copied per task
_DOUBT = 20  # calls that a fetched row survives without being read


@dataclass(frozen=True)
class RowTable:
    """Rows of K in memory.

    Attributes
    ----------
    K : ndarray, shape (slots, >= active columns), C-contiguous
    where : ndarray of int64
        The row of `K` that holds each active row's kernel values, or -1.
    used : ndarray of int64, shape (slots,)
        Time at which each slot was last read; readers set it to `now`.
    now : int
    """

    K: NDArray[np.floating]
    where: Index
    used: Index
    now: int


class RowCache:
    """Slots of one row each in one array; the least recently used row is replaced first."""

    def __init__(self, memory: NDArray[np.floating], columns: int, n: int) -> None:
        self._memory, self.slot, self._now = memory, np.full(n, -1), 0
        self._row, self._used = np.full(0, -1), np.zeros(0, np.int64)
        self._shape(columns)

    def _shape(self, columns: int) -> None:
        stride = padded(columns)
        slots = min(len(self.slot), self._memory.size // max(1, stride))
        self.values = self._memory[: slots * stride].reshape(slots, stride)
        more = slots - len(self._row)
        self._row = np.append(self._row, np.full(more, -1))
        self._used = np.append(self._used, np.zeros(more, np.int64))

    def table(self, active: Index) -> RowTable:
        """See :class:`RowTable`."""
        return RowTable(self.values, self.slot[active], self._used, self._now)

    def places(self, rows: Index, keep: NDArray[np.bool_]) -> tuple[Index, NDArray[np.bool_]]:
        """A slot for each row to `keep`, or -1 if none is left, and a mask of the rows already cached."""
        self._now += 1
        slots = self.slot[rows]
        known = slots >= 0
        self._used[slots[known]] = self._now
        wanted = np.flatnonzero(~known & keep)
        if wanted.size:
            oldest = np.arange(len(self._used))
            if len(wanted) < len(oldest):
                # Ties go to the lower slot, whatever the partition does with them.
                age = self._used * len(oldest) + oldest
                oldest = np.argpartition(age, len(wanted))[: len(wanted)]
            oldest = np.sort(oldest[self._used[oldest] < self._now])
            slots[wanted[: len(oldest)]] = oldest
            gone = self._row[oldest]
            self.slot[gone[gone >= 0]] = -1
            taken = rows[wanted[: len(oldest)]]
            self._row[oldest], self.slot[taken], self._used[oldest] = taken, oldest, self._now
        return slots, known

    def doubt(self, slots: Index) -> None:
        """Mark these rows as not read yet: until they are read, they are among the first to be replaced."""
        self._used[slots[slots >= 0]] = self._now - _DOUBT

    def drop(self, rows: Index) -> None:
        """Discard these rows if they are kept."""
        slots = self.slot[rows]
        slots = slots[slots >= 0]
        self._row[slots], self._used[slots], self.slot[rows] = -1, 0, -1

    @property
    def count(self) -> int:
        """Number of rows kept."""
        return int(np.count_nonzero(self._row >= 0))

    @property
    def end(self) -> int:
        """End of the memory in use, in numbers from its beginning."""
        return (int(np.flatnonzero(self._row >= 0).max(initial=-1)) + 1) * self.values.shape[1]

    def copy(self, whole: RowCache, columns: Index, wanted: Index) -> None:
        """Copy the wanted rows of `whole` over these columns into this empty cache."""
        slots = np.sort(whole.slot[wanted])
        slots = slots[slots >= 0][: len(self._row)]
        places = np.arange(len(slots))
        self._row[places] = whole._row[slots]
        self._used[places] = whole._used[slots]
        self.slot[self._row[places]] = places
        self._now = whole._now
        whole.read(slots, columns, self.values, places)

    def read(self, slots: Index, columns: Index, out: NDArray[np.floating], into: Index) -> None:
        """``out[into, :k] = values[slots][:, columns]``, of k columns."""
        for_blocks(
            lambda lo, hi: _copy(self.values, slots[lo:hi], columns, out, into[lo:hi]), blocks(len(slots), LINES)
        )

    def restrict(self, kept: Index) -> None:
        """Cut every row to the columns `kept` and compact the rows, which makes room for more."""
        last = int(np.flatnonzero(self._row >= 0).max(initial=-1)) + 1
        old, new, done = self.values.shape[1], padded(len(kept)), 0
        while done < last:
            # Rows whose new places lie before all their old ones can move side by side.
            until = min(last, max(done + 1, done * old // max(1, new)))
            tasks = [(done + a, done + b) for a, b in blocks(until - done, LINES)]
            for_blocks(lambda lo, hi: _cut(self._memory, lo, hi, old, new, kept), tasks)
            done = until
        self._shape(len(kept))


@numba.njit(cache=True, nogil=True)
def _cut(memory: Reals, lo: int, hi: int, old: int, new: int, kept: Longs) -> None:  # pragma: no cover - compiled
    """Copy the columns `kept` of rows `lo` to `hi` to their new places in the same memory, followed by zeros.

    Row r begins at r * old and moves to r * new, where it overlaps no row yet to be moved.
    """
    for row in range(lo, hi):
        for k in range(kept.size):
            memory[row * new + k] = memory[row * old + kept[k]]
        for k in range(kept.size, new):
            memory[row * new + k] = 0


@numba.njit(cache=True, nogil=True)
def _copy(values: Reals, slots: Longs, columns: Longs, out: Reals, into: Longs) -> None:  # pragma: no cover - compiled
    """Copy some columns of some rows: ``out[into, :k] = values[slots][:, columns]``, for k columns."""
    for i in range(slots.size):
        row, line = values[slots[i]], out[into[i]]
        for k in range(columns.size):
            line[k] = row[columns[k]]
