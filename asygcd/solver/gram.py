"""The rows of a problem made ready for the threads: packed once, with a cache for each thread."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from asygcd.solver.cache import ALIGNED, HITS, MISSES, VALUES, Columns, link
from cacore.data.rows import Rows
from cacore.errors import InputError
from cacore.kernels import Kernel
from cacore.kernels.columns import WIDEST, Layout
from cacore.kernels.panels import Panels, nonzeros
from cacore.kernels.sums import room, width
from cacore.machine import memory

Index = NDArray[np.int64]

_FEW, _SHARE = 256, 2  # at most one row of a block in two is in the working set, where there are more than some


class Gram:
    """Kernel values of `X` with itself, for threads that each keep some columns of some rows.

    Parameters
    ----------
    X : ndarray or CSR, shape (n, d)
        Not changed.
    kernel : Kernel
    order, bounds : ndarray of int64, shape (n,), (T + 1,)
        The blocks; see :func:`asygcd.solver.blocks.blocks`.
    cache_bytes : int
        Of all threads' kept values; shared out evenly.
    dtype : dtype
        Of the kept values.
    by_rows : bool
        Whether each thread keeps the values of its own rows alone. Otherwise of all rows.

    Attributes
    ----------
    diagonal : ndarray of float64, shape (n,)
        In the order of the blocks, as everything here.
    largest : float
        A bound of all kernel values.
    whole : list of Columns
        Each thread's cache.
    near : list of Columns
        The same columns over the thread's working set; only with `by_rows`, and empty at first.

    Raises
    ------
    InputError
        A cache that does not hold two columns a thread; kernel values that overflow.

    Notes
    -----
    All nonzeros with their places, n d numbers of packed rows (without places for sparse rows of more than 4,096
    features, which are not packed), half as many again for the working sets, and the cache.
    """

    def __init__(
        self, X: Rows, kernel: Kernel, order: Index, bounds: Index, cache_bytes: int, dtype: Any, by_rows: bool
    ) -> None:  # fmt: skip
        if not kernel.compiled:
            raise InputError("Asy-GCD evaluates kernels in compiled code, and not a callable: use SMOSVC or CASVC")
        self._X, self._dtype, self.n, self._wide = X, np.dtype(dtype), len(order), _wide(X)
        self._layout = Layout.of(X, kernel, self._dtype)
        self._kernel = kernel.parameters(np.dtype(self._layout.dtype), self._layout.measure)
        self.largest = kernel.largest(X, self._dtype)
        self.diagonal = kernel.diagonal(X)[order]
        blocks = [order[lo:hi] for lo, hi in pairwise(bounds)]
        threads = len(blocks)
        largest = [min(len(rows), max(_FEW, len(rows) // _SHARE)) if by_rows else 0 for rows in blocks]
        lengths = [
            _padded(len(rows) if by_rows else self.n) + _padded(more)
            for rows, more in zip(blocks, largest, strict=True)
        ]
        each = cache_bytes // threads // self._dtype.itemsize
        if each < 2 * max(lengths):
            needed = 2 * threads * max(lengths) * self._dtype.itemsize
            raise InputError(
                f"a cache of {cache_bytes:,} bytes does not hold two columns of {self.n:,} kernel values for each of "
                f"{threads} threads: {needed:,} bytes would; raise it, or use fewer threads"
            )
        self._points = nonzeros(X, self._layout.dtype, self._layout.shift, order, self._layout.measure)
        self._starts = self._points.X.indptr.astype(np.int64)
        slots = [min(self.n, each // length) for length in lengths]
        self.near: list[Columns] = []
        if by_rows:
            self.whole = [
                self._columns(self._packed(rows), len(rows), s) for rows, s in zip(blocks, slots, strict=True)
            ]
            counts = np.split(np.diff(self._points.X.indptr), bounds[1:-1])
            self.near = [
                self._columns(self._room(lengths_of, most), most, s)
                for lengths_of, most, s in zip(counts, largest, slots, strict=True)
            ]
        else:
            packed = self._packed(order)
            self.whole = [self._columns(packed, self.n, s) for s in slots]

    def counts(self) -> tuple[Index, int]:
        """Hits and misses of each thread so far, shape (T, 2), and all kernel values that were computed."""
        values = sum(int(columns.counts[VALUES]) for columns in [*self.whole, *self.near])
        return np.array([columns.counts[[HITS, MISSES]] for columns in self.whole]), values

    def _packed(self, rows: Index) -> tuple[Any, ...]:
        """Panels and their squared norms, CSR values, columns and starts: one or the other."""
        layout, empty = self._layout, np.zeros(0, np.int32)
        if not self._wide:
            panels = Panels(self._X, layout.dtype, layout.shift, rows, layout.measure)
            return panels.data, panels.norms, np.zeros(0, layout.dtype), empty, np.zeros(1, np.int64)
        points = nonzeros(self._X, layout.dtype, layout.shift, rows)
        csr = points.X
        return self._no_panels(0), points.squares, csr.data, csr.indices, csr.indptr.astype(np.int64)

    def _room(self, nonzeros: Index, most: int) -> tuple[Any, ...]:
        """Room for so many rows of a block whose rows have these numbers of nonzeros."""
        dtype, largest = self._layout.dtype, int(np.sort(nonzeros)[-most:].sum())
        panels = self._no_panels(0 if self._wide else -(-most // width(dtype)))
        squares = np.zeros(most if self._wide else panels.shape[0] * panels.shape[2], dtype)
        return panels, squares, np.zeros(largest, dtype), np.zeros(largest, np.int32), np.zeros(most + 1, np.int64)

    def _no_panels(self, count: int) -> NDArray[Any]:
        return room((count, self._X.shape[1], width(self._layout.dtype)), self._layout.dtype)

    def _columns(self, packed: tuple[Any, ...], rows: int, slots: int) -> Columns:
        csr = self._points.X
        size = np.array([rows, _padded(rows)])
        links = np.empty((slots + 1, 2), np.int64)
        link(links)
        data, squares, *own = packed
        return Columns(
            csr.data, csr.indices, self._starts, self._points.squares, data, squares, own[0], own[1], own[2], size,
            self._kernel, np.empty(slots * _padded(rows), self._dtype), np.full(slots, -1), np.full(self.n, -1), links,
            np.zeros(3, np.int64),
        )  # fmt: skip


def _wide(X: Rows) -> bool:
    """Whether the rows are too wide to be packed."""
    return bool(sp.issparse(X) and X.shape[1] > WIDEST)


def _padded(count: int) -> int:
    return -(-count // ALIGNED) * ALIGNED


def least_cache(n: int, threads: int, dtype: Any) -> int:
    """Bytes in which two columns for each of the threads have room, whatever their blocks."""
    return 2 * threads * 2 * _padded(n) * int(np.dtype(dtype).itemsize)


def check_memory(X: Rows, threads: int, cache_bytes: int, limit: int) -> None:
    """Refuse, with figures, what cannot fit: packed rows, nonzeros, what the threads remember, and the cache.

    Raises
    ------
    MemoryLimitError
    """
    n, d = X.shape
    numbers = X.nnz if sp.issparse(X) else n * d
    packed = 12 * numbers + (0 if _wide(X) else 12 * n * d)
    cache = min(cache_bytes, 8 * 2 * n * n * threads)  # no more columns are kept than there are
    needed = packed + 40 * n * threads + cache
    memory.require(needed, limit, "the rows, packed, and the kernel cache", "use a smaller cache, or fewer rows")
