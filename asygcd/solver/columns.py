"""Kernel columns: everything that depends on the precision of kernel values, and on how rows are stored.

These functions are compiled apart from Asy-GCD's loop and called by address (:mod:`asygcd.solver.bundle`), so that the
loop is compiled once for all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numba
import numpy as np
from numba.core import types
from numba.core.types.containers import Tuple
from numpy.typing import NDArray

from asygcd.solver import greedy
from asygcd.solver.bundle import Bundle, BundleType, address, caller
from cacore.kernels import wide_passes
from cacore.kernels.panels import accumulate, add_rows, panel_norms

if TYPE_CHECKING:
    from numba.core.types import Type

    from cacore.arrays import Doubles, Integers, Ints, Longs, Reals
    from cacore.kernels.evaluate import Parameters

ALIGNED = 16  # numbers; the kept columns begin at multiples of it

_INDEX, _REAL = types.int64[::1], types.float64[::1]
# Types of arguments; the first stands for a bundle of `CachedColumns`.
_FILL = types.int64, _INDEX, _INDEX
_ADD = types.int64, _INDEX, _REAL, _REAL
_ADVANCE = types.int64, types.int64, types.float64, _REAL, _REAL, _REAL, _REAL
_PACK = types.int64, types.int64, _INDEX

# Calls by address: of the function, of a bundle of `CachedColumns`, and the other arguments of the functions below.
fill, add, pack = (caller(types.none, *kinds) for kinds in (_FILL, _ADD, _PACK))
advance = caller(greedy.FOUND, *_ADVANCE)
_accumulate = caller(types.none)


class CachedColumns(NamedTuple):
    """All rows, a thread's rows, and kept columns of K over the latter.

    Attributes
    ----------
    values, columns, starts, squares, middles : ndarray
        All n rows as CSR, with their squared norms. For wide rows they are arranged as
        :class:`cacore.kernels.wide.Arranged`; otherwise `middles` is empty.
    data, data_squares : ndarray
        This thread's rows in panels (:mod:`cacore.kernels.panels`); for wide rows, their packed features.
    list_values, list_rows, list_starts : ndarray
        For wide rows, their listed features (:class:`cacore.kernels.wide.Wide`); otherwise empty.
    own_values, own_columns, own_starts, own_middles : ndarray
        For wide rows, space for those of a working set, as CSR; otherwise empty.
    size : ndarray of int64, shape (2,)
        Number of the thread's rows, and the distance of consecutive kept columns in `memory`.
    calls : ndarray of int64, shape (4,)
        Address of the kernel function, degree, and measure; with `reals`, see :func:`cacore.kernels.evaluate.finish`.
        Then, unless rows are wide, the address of :func:`cacore.kernels.panels.accumulate`.
    reals : ndarray, shape (2,)
        The kernel's gamma and coef0.
    memory : ndarray
        The kept columns of K, one after the other; see :func:`store`.
    """

    values: NDArray[np.floating]
    columns: NDArray[np.int32]
    starts: NDArray[np.signedinteger]
    squares: NDArray[np.floating]
    middles: NDArray[np.int64]
    data: NDArray[np.floating]
    data_squares: NDArray[np.floating]
    list_values: NDArray[np.floating]
    list_rows: NDArray[np.int32]
    list_starts: NDArray[np.signedinteger]
    own_values: NDArray[np.floating]
    own_columns: NDArray[np.int32]
    own_starts: NDArray[np.signedinteger]
    own_middles: NDArray[np.int64]
    size: NDArray[np.int64]
    calls: NDArray[np.int64]
    reals: NDArray[np.floating]
    memory: NDArray[np.floating]


def addresses(columns: Bundle) -> tuple[int, int, int, int]:
    """Addresses of the functions to fill, add, advance and pack, for this bundle of :class:`CachedColumns`."""
    wide, own = len(columns.fields.list_starts) > 0, columns.kind
    if not wide:
        columns.fields.calls[3] = address(accumulate, types.none, _accumulated(own))
    return (
        address(_fill_wide if wide else _fill_panels, types.none, (own, *_FILL[1:])),
        address(_add, types.none, (own, *_ADD[1:])),
        address(_advance, greedy.FOUND, (own, *_ADVANCE[1:])),
        address(_pack_wide if wide else _pack_panels, types.none, (own, *_PACK[1:])),
    )


def _accumulated(own: BundleType) -> tuple[Type, ...]:
    """Types of the arguments of :func:`cacore.kernels.panels.accumulate`: predictions need the same."""
    of: dict[str, Any] = own.fields
    size = types.int64
    real = of["reals"].dtype
    rows = (of[name] for name in ("data", "data_squares", "values", "columns", "starts", "squares"))
    kernel, store = Tuple([size, real, real, size, size]), types.Array(of["memory"].dtype, 2, "C")
    return *rows, kernel, size, size, _REAL, _REAL, store, _INDEX


@numba.njit(cache=True, nogil=True)
def store(own: CachedColumns) -> Reals:  # pragma: no cover - compiled
    """The kept columns, shape (>= slots, >= rows)."""
    stride = own.size[1]
    slots = own.memory.size // stride
    return own.memory[: slots * stride].reshape(slots, stride)


@numba.njit(cache=True, nogil=True)
def _gathered(own: CachedColumns, rows: Longs) -> tuple[Reals, Ints, Integers, Reals]:  # pragma: no cover - compiled
    """Values, columns, starts and squared norms of these rows, as CSR."""
    starts = np.zeros(rows.size + 1, own.starts.dtype)  # as for predictions, which share the compiled code
    for k in range(rows.size):
        starts[k + 1] = starts[k] + own.starts[rows[k] + 1] - own.starts[rows[k]]
    values, columns = np.empty(starts[-1], own.values.dtype), np.empty(starts[-1], np.int32)
    squares = np.empty(rows.size, own.values.dtype)
    for k in range(rows.size):
        at, first = starts[k], own.starts[rows[k]]
        for q in range(first, own.starts[rows[k] + 1]):
            values[at], columns[at] = own.values[q], own.columns[q]
            at += 1
        squares[k] = own.squares[rows[k]]
    return values, columns, starts, squares


@numba.njit(cache=True, nogil=True)
def _kernel(own: CachedColumns) -> Parameters:  # pragma: no cover - compiled
    """The kernel's parameters as :func:`cacore.kernels.evaluate.finish` takes them."""
    return own.calls[0], own.reals[0], own.reals[1], own.calls[1], own.calls[2]


@numba.njit(cache=True, nogil=True)
def _fill_panels(own: CachedColumns, rows: Longs, places: Longs) -> None:  # pragma: no cover - compiled
    """Compute the kernel values of `rows` with the thread's rows, into the slots `places`."""
    values, columns, starts, squares = _gathered(own, rows)
    none = np.empty(0)
    _accumulate(
        own.calls[3], own.data, own.data_squares, values, columns, starts, squares, _kernel(own), 0, own.size[0], none,
        none, store(own), places,
    )  # fmt: skip


@numba.njit(cache=True, nogil=True)
def _fill_wide(own: CachedColumns, rows: Longs, places: Longs) -> None:  # pragma: no cover - compiled
    """:func:`_fill_panels` for wide rows."""
    values, columns, starts, squares = _gathered(own, rows)
    none, middles = np.empty(0), np.empty(rows.size, np.int64)
    for k in range(rows.size):
        middles[k] = starts[k] + own.middles[rows[k]] - own.starts[rows[k]]
    sides = (
        own.data, own.data_squares, own.list_values, own.list_rows, own.list_starts, values, columns, starts, middles,
        squares,
    )  # fmt: skip
    wide_passes.accumulate(sides, _kernel(own), np.int64(0), own.size[0], none, none, store(own), places)


@numba.njit(cache=True, nogil=True)
def _add(own: CachedColumns, slots: Longs, steps: Doubles, r: Doubles) -> None:  # pragma: no cover - compiled
    """Add the columns in these slots, times `steps`, to `r`, shape (<= rows,)."""
    add_rows(store(own), slots, steps, r, np.int64(0), r.size)


@numba.njit(cache=True, nogil=True)
def _advance(
    own: CachedColumns, slot: int, change: float, beta: Doubles, r: Doubles, low: Doubles, high: Doubles
) -> tuple[int, float]:  # pragma: no cover - compiled
    """Apply :func:`asygcd.solver.greedy.advance` to the column in this slot."""
    at = slot * own.size[1]
    return greedy.advance(beta, r, low, high, own.memory[at : at + beta.size], change)


@numba.njit(cache=True, nogil=True)
def _empty_panels(own: CachedColumns, rows: int) -> tuple[Reals, Reals]:  # pragma: no cover - compiled
    """The first panels and squared norms of the thread's rows, zeroed, for `rows` rows."""
    panels = -(-rows // own.data.shape[2])
    data, squares = own.data[:panels], own.data_squares[: panels * own.data.shape[2]]
    for p in range(panels):
        for c in range(data.shape[1]):
            for k in range(data.shape[2]):
                data[p, c, k] = 0
    for k in range(squares.size):
        squares[k] = 0
    own.size[0], own.size[1] = rows, -(-rows // ALIGNED) * ALIGNED
    return data, squares


@numba.njit(cache=True, nogil=True)
def _pack_panels(own: CachedColumns, first: int, rows: Longs) -> None:  # pragma: no cover - compiled
    """Pack the rows at `first` + `rows`, which become the thread's own; kept columns lose their meaning."""
    data, squares = _empty_panels(own, rows.size)
    W = data.shape[2]
    for k in range(rows.size):
        row = first + rows[k]
        for q in range(own.starts[row], own.starts[row + 1]):
            data[k // W, own.columns[q], k % W] += own.values[q]
    panel_norms(data, own.calls[2], squares)


@numba.njit(cache=True, nogil=True)
def _pack_wide(own: CachedColumns, first: int, rows: Longs) -> None:  # pragma: no cover - compiled
    """:func:`_pack_panels` for wide rows."""
    data, squares = _empty_panels(own, rows.size)
    starts, middles, at = own.own_starts[: rows.size + 1], own.own_middles[: rows.size], 0
    for k in range(rows.size):
        row = first + rows[k]
        starts[k], middles[k], squares[k] = at, at + own.middles[row] - own.starts[row], own.squares[row]
        for q in range(own.starts[row], own.starts[row + 1]):
            own.own_values[at], own.own_columns[at] = own.values[q], own.columns[q]
            at += 1
    starts[rows.size] = at
    own.list_starts[:] = 0
    wide_passes.pack(own.own_values, own.own_columns, starts, middles, data)
    wide_passes.enlist(
        own.own_values, own.own_columns, starts, middles, data.shape[1], np.int64(0), own.list_starts[0],
        own.list_values, own.list_rows,
    )  # fmt: skip
