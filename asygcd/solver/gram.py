"""The rows of a problem, packed once for all threads, and a kernel cache per thread."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import DTypeLike, NDArray

from asygcd.solver.bundle import Bundle
from asygcd.solver.cache import HITS, MISSES, VALUES, ColumnCache, link
from asygcd.solver.columns import ALIGNED, CachedColumns, addresses
from cacore.data.rows import Rows, is_sparse, shifted
from cacore.errors import InputError
from cacore.kernels import Kernel
from cacore.kernels.columns import Layout
from cacore.kernels.panels import Panels, nonzeros
from cacore.kernels.precision import WIDEST, Accuracy
from cacore.kernels.sums import room, width
from cacore.kernels.wide import Features, Wide
from cacore.machine import memory

Index = NDArray[np.int64]

_FEW, _SHARE = 256, 2  # a working set holds at most 256 rows, or half of the block if that is more


class KernelCaches:
    """Kernel matrix of `X`, for threads that each cache some of its columns.

    Parameters
    ----------
    X : ndarray or CSR, shape (n, d)
        Not changed.
    kernel : Kernel
    order, bounds : ndarray of int64, shape (n,), (T + 1,)
        The blocks; see :func:`asygcd.solver.blocks.blocks`.
    cache_bytes : int
        Size of all caches together; each thread gets the same share.
    dtype : dtype
        Type of the cached values.
    by_rows : bool
        True if each thread caches columns over its own rows only, False if over all rows.
    accuracy : Accuracy, optional
        Of the kernel values; see :meth:`cacore.kernels.columns.Layout.of`.

    Attributes
    ----------
    dtype : dtype
        Type of the cached values.
    diagonal : ndarray of float64, shape (n,)
        Diagonal of K, in the order of the blocks, like all rows here.
    largest : float
        Upper bound of all |kernel values|.
    room : list of int
        Most rows of each thread's working set.
    whole : list of ColumnCache
        Each thread's cache.
    near : list of ColumnCache
        Each thread's cache of columns over its working set; only with `by_rows`, and empty at first.

    Raises
    ------
    InputError
        If the cache does not hold two columns per thread, or kernel values overflow.

    Notes
    -----
    Memory: all nonzeros with their indices; n d numbers for the packed rows, or what :class:`cacore.kernels.wide.Wide`
    needs for sparse rows of more than 4,096 features; half as many again for the working sets; and the cache.
    """

    def __init__(
        self, X: Rows, kernel: Kernel, order: Index, bounds: Index, cache_bytes: int, dtype: DTypeLike, by_rows: bool,
        accuracy: Accuracy | None = None,
    ) -> None:  # fmt: skip
        if not kernel.compiled:
            raise InputError("Asy-GCD cannot evaluate a callable kernel: use SMOSVC, or CASVC with the solver smo")
        if kernel.separable and is_sparse(X) and X.shape[1] > WIDEST:
            raise InputError(
                f"Asy-GCD: the {kernel.kind} kernel needs dense rows, too large with {X.shape[1]:,} features: use "
                f"SMOSVC, or at most {WIDEST:,} features"
            )
        self._X, self.dtype, self.n = X, np.dtype(dtype), len(order)
        self._layout = Layout.of(X, kernel, self.dtype, None, accuracy)
        if self._layout.features is not None:
            self._X = shifted(X, self._layout.shift)
        self._kernel = kernel.parameters(np.dtype(self._layout.dtype), self._layout.measure)
        self.largest = kernel.largest(X, self.dtype)
        self.diagonal = kernel.diagonal(X)[order]
        blocks = [order[lo:hi] for lo, hi in pairwise(bounds)]
        threads = len(blocks)
        self.room = [min(len(rows), max(_FEW, len(rows) // _SHARE)) if by_rows else 0 for rows in blocks]
        lengths = [
            _padded(len(rows) if by_rows else self.n) + _padded(more)
            for rows, more in zip(blocks, self.room, strict=True)
        ]
        each = cache_bytes // threads // self.dtype.itemsize
        if each < 2 * max(lengths):
            needed = 2 * threads * max(lengths) * self.dtype.itemsize
            raise InputError(
                f"a cache of {cache_bytes:,} bytes does not hold two columns of {self.n:,} kernel values for each of "
                f"{threads} threads: {needed:,} bytes would; raise it, or use fewer threads"
            )
        self._rows = self._arranged(order)
        slots = [min(self.n, each // length) for length in lengths]
        self.near: list[ColumnCache] = []
        if by_rows:
            self.whole = [
                self._columns(self._packed(rows), len(rows), s) for rows, s in zip(blocks, slots, strict=True)
            ]
            counts = np.split(np.diff(self._rows[2]), bounds[1:-1])
            self.near = [
                self._columns(self._room(lengths_of, most), most, s)
                for lengths_of, most, s in zip(counts, self.room, slots, strict=True)
            ]
        else:
            packed = self._packed(order)
            self.whole = [self._columns(packed, self.n, s) for s in slots]

    def counts(self) -> tuple[Index, int]:
        """Hits and misses of each thread so far, shape (T, 2), and the number of kernel values computed."""
        values = sum(int(columns.counts[VALUES]) for columns in [*self.whole, *self.near])
        return np.array([columns.counts[[HITS, MISSES]] for columns in self.whole]), values

    def _arranged(self, order: Index) -> tuple[NDArray[np.generic], ...]:
        """All rows in the form of the first five fields of :class:`CachedColumns`."""
        layout = self._layout
        if layout.features is None:
            points = nonzeros(self._X, layout.dtype, layout.shift, order, layout.measure)
            csr, none = points.X, np.zeros(0, np.int64)
            return csr.data, csr.indices, csr.indptr, points.squares, none
        rows = layout.rows(self._X, order)
        return rows.values, rows.features, rows.starts, rows.norms, rows.middles

    def _packed(self, rows: Index) -> tuple[NDArray[np.generic], ...]:
        """`rows` in panels and lists, without space for a working set."""
        layout, none = self._layout, self._empty(0, 0)
        if layout.features is None:
            panels = Panels(self._X, layout.dtype, layout.shift, rows, layout.measure)
            return panels.data, panels.norms, *none[2:]
        wide = Wide(self._X, layout.features, layout.dtype, rows, layout.measure)
        return wide.data, wide.norms, wide.values, wide.rows, wide.starts, *none[5:]

    def _room(self, nonzeros: Index, most: int) -> tuple[NDArray[np.generic], ...]:
        """Space for `most` rows of a block, given the number of nonzeros of each of its rows."""
        return self._empty(most, int(np.sort(nonzeros)[-most:].sum()))

    def _empty(self, rows: int, numbers: int) -> tuple[NDArray[np.generic], ...]:
        """Empty panels and lists, and space for a working set of `rows` rows, if wide, with `numbers` nonzeros."""
        features, real = self._layout.features, self._layout.dtype
        panels = -(-rows // width(real))
        packed, lists = (self._X.shape[1], 0) if features is None else (features.packed, features.listed + 1)
        listed, own = (numbers, rows) if lists else (0, 0)
        data = room((panels, packed, width(real)), real)
        return (
            data, np.zeros(panels * width(real), real), np.zeros(listed, real), np.zeros(listed, np.int32),
            np.zeros((1 if lists else 0, lists), np.int32), np.zeros(listed, real), np.zeros(listed, np.int32),
            np.zeros(own + 1, np.int64), np.zeros(own, np.int64),
        )  # fmt: skip

    def _columns(self, packed: tuple[NDArray[np.generic], ...], rows: int, slots: int) -> ColumnCache:
        size, reals = np.array([rows, _padded(rows)]), np.array(self._kernel[1:3], self._layout.dtype)
        calls = np.array([self._kernel[0], *self._kernel[3:], 0], np.int64)
        memory = np.empty(slots * _padded(rows), self.dtype)
        columns = Bundle(CachedColumns._make((*self._rows, *packed, size, calls, reals, memory)))
        links = np.empty((slots + 1, 2), np.int64)
        link(links)
        return ColumnCache(
            size, np.full(slots, -1), np.full(self.n, -1), links, np.zeros(3, np.int64), columns, *addresses(columns)
        )


def _padded(count: int) -> int:
    return -(-count // ALIGNED) * ALIGNED


def least_cache(n: int, threads: int, dtype: DTypeLike) -> int:
    """Bytes of cache that hold two columns per thread, for blocks of any size."""
    return 2 * threads * 2 * _padded(n) * int(np.dtype(dtype).itemsize)


def check_memory(X: Rows, threads: int, cache_bytes: int, limit: int) -> None:
    """Check that packed rows, nonzeros, the threads' state and the cache fit into `limit` bytes.

    Raises
    ------
    MemoryLimitError
        If they do not; the message has the figures.
    """
    n, d = X.shape
    if is_sparse(X):
        wide = d > WIDEST
        packed = (32 if wide else 12) * X.nnz + 12 * n * (Features.of(X).packed if wide else d)
    else:
        packed = 24 * n * d
    cache = min(cache_bytes, 8 * 2 * n * n * threads)  # a cache never holds more than all n columns
    needed = packed + 40 * n * threads + cache
    memory.require(needed, limit, "storing packed rows and the kernel cache", "use a smaller cache, or fewer rows")
