"""Sums over the features of one row and a panel of others, in vector registers: of products or of differences.

A kernel that is a product over the features multiplies a panel by its factors, feature by feature, instead.

A panel holds `width` rows, feature by feature, so that each number of a row meets a whole vector of numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from numpy.typing import DTypeLike, NDArray

from cacore.kernels.evaluate import DIFFERENCES, NONZEROS, PANEL_BYTES, PRODUCTS, WHOLE, finish, multiplied
from cacore.kernels.simd import Intrinsic, prefetch_to_write
from cacore.machine.threads import blocks

if TYPE_CHECKING:
    from numba.core.base import BaseContext
    from numba.core.types import Array, Float, Type
    from numba.core.typing.context import Context
    from numba.core.typing.templates import Signature

    from cacore.arrays import Doubles, Ints, Longs, Reals
    from cacore.kernels.evaluate import Parameters

VECTORS = PANEL_BYTES // 64  # accumulators of 64 bytes: enough to hide the latency of multiply-and-add
GROUP = 8  # panels of a tile at most
CACHE_BYTES = 1 << 19  # size of a tile's panels, which every row reads
_LINE = 64
_TASK = 1 << 18  # numbers packed per task (about 1 ms); smaller tasks cost several times more than they save


def width(dtype: DTypeLike) -> int:
    """Rows per panel."""
    return PANEL_BYTES // int(np.dtype(dtype).itemsize)


def room(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[np.floating]:
    """An array of zeros for panels, aligned so that each vector lies in one cache line.

    Measured (Intel, AVX-512): sums took 1.5 times as long if each vector lay in two cache lines.
    """
    count = math.prod(shape)
    values = np.zeros(count + _LINE // np.dtype(dtype).itemsize, dtype)
    first = -values.ctypes.data % _LINE // values.itemsize
    return values[first : first + count].reshape(shape)


def portions(panels: int, each: int) -> list[tuple[int, int]]:
    """Ranges of panels, of `each` numbers per panel, to be packed by one task each."""
    return blocks(panels, max(4, _TASK // max(1, each)))


def _size(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """|x|, by clearing the sign bit."""
    bits = ir.IntType(64 if x.type.element == ir.DoubleType() else 32)
    vector = ir.VectorType(bits, x.type.count)
    mask = ir.Constant(vector, [(1 << (bits.width - 1)) - 1] * x.type.count)
    return b.bitcast(b.and_(b.bitcast(x, vector), mask), x.type)


def _product(b: ir.IRBuilder, total: ir.Value, value: ir.Value, x: ir.Value) -> ir.Value:
    fused = ("contract",)
    return b.fadd(total, b.fmul(value, x, flags=fused), flags=fused)


def _difference(b: ir.IRBuilder, total: ir.Value, value: ir.Value, x: ir.Value) -> ir.Value:
    return b.fadd(total, _size(b, b.fsub(x, value)))


def _half_square(b: ir.IRBuilder, total: ir.Value, value: ir.Value, x: ir.Value) -> ir.Value:
    gap = b.fsub(x, value)
    half = ir.Constant(gap.type, [-0.5] * gap.type.count)
    return _product(b, total, b.fmul(gap, half), gap)


def _excess(b: ir.IRBuilder, total: ir.Value, value: ir.Value, x: ir.Value) -> ir.Value:
    return b.fadd(total, b.fsub(_size(b, b.fsub(x, value)), _size(b, x)))


def _sums(term: Callable[[ir.IRBuilder, ir.Value, ir.Value, ir.Value], ir.Value]) -> Callable[..., None]:
    """Intrinsic: ``out[to : to + width]`` = sum over first <= q < last of `term` of values[q] and panel[columns[q]].

    The panel begins at index `at` of `data`. Both arrays are passed whole, because slicing in numba updates a reference
    count that all threads share; this took a third of the time for rows of few nonzeros.
    """

    @intrinsic
    def sums(
        typingctx: Context, values: Array[Float], columns: Type, first: Type, last: Type, data: Type, at: Type,
        out: Type, to: Type,
    ) -> Intrinsic:  # fmt: skip
        def build(
            context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: Sequence[ir.Value]
        ) -> ir.Value:
            kinds, real = signature.args, context.get_value_type(signature.args[0].dtype)
            align = values.dtype.bitwidth // 8
            lanes = 64 // align
            vector, i32, i64 = ir.VectorType(real, lanes), ir.IntType(32), ir.IntType(64)
            v, c, p, o = (context.make_array(kinds[k])(context, builder, args[k]).data for k in (0, 1, 4, 6))
            p, o = builder.gep(p, [args[5]]), builder.gep(o, [args[7]])
            zero, nothing = ir.Constant(vector, [0.0] * lanes), ir.Constant(vector, ir.Undefined)
            before = builder.block
            loop, done = builder.append_basic_block("nonzero"), builder.append_basic_block("done")
            builder.cbranch(builder.icmp_signed("<", args[2], args[3]), loop, done)

            builder.position_at_end(loop)
            q = builder.phi(i64)
            totals = [builder.phi(vector) for _ in range(VECTORS)]
            value = builder.insert_element(nothing, builder.load(builder.gep(v, [q])), ir.Constant(i32, 0))
            value = builder.shuffle_vector(value, nothing, ir.Constant(ir.VectorType(i32, lanes), [0] * lanes))
            row = builder.mul(builder.sext(builder.load(builder.gep(c, [q])), i64), ir.Constant(i64, lanes * VECTORS))
            added = []
            for k, total in enumerate(totals):
                at = builder.gep(p, [builder.add(row, ir.Constant(i64, k * lanes))])
                x = builder.load(builder.bitcast(at, vector.as_pointer()), align=align)
                added.append(term(builder, total, value, x))
            after = builder.add(q, ir.Constant(i64, 1))
            starts = ((q, args[2], after), *((s, zero, a) for s, a in zip(totals, added, strict=True)))
            for phi, start, following in starts:
                phi.add_incoming(start, before)
                phi.add_incoming(following, loop)
            builder.cbranch(builder.icmp_signed("<", after, args[3]), loop, done)

            builder.position_at_end(done)
            results = [builder.phi(vector) for _ in range(VECTORS)]
            for result, following in zip(results, added, strict=True):
                result.add_incoming(zero, before)
                result.add_incoming(following, loop)
            for k, result in enumerate(results):
                at = builder.gep(o, [ir.Constant(i64, k * lanes)])
                builder.store(result, builder.bitcast(at, vector.as_pointer()), align=align)
            return context.get_dummy_value()

        i64 = types.int64
        return types.void(values, columns, i64, i64, data, i64, out, i64), build

    return sums


def _common(b: ir.IRBuilder, total: ir.Value, value: ir.Value, x: ir.Value) -> ir.Value:
    return b.fadd(total, b.fsub(_size(b, b.fsub(x, value)), b.fadd(_size(b, x), _size(b, value))))


products, _differences, _excesses, _half_squares = (
    _sums(term) for term in (_product, _difference, _excess, _half_square)
)
common = _sums(_common)  # the sum of |x_k - z_k| - |x_k| - |z_k|: |x-z|_1 - |x|_1 - |z|_1


@numba.njit(inline="always")
def meet(
    values: Reals, columns: Ints, first: int, last: int, panel: Reals, out: Reals, kernel: Parameters
) -> None:  # pragma: no cover - compiled
    """Sums, or products, over the features of one row x and each row z of a panel, written to `out`.

    Parameters
    ----------
    values, columns : arrays of float32 or float64 and of int32, shape (nnz,)
        CSR values and features; x is entries `first` to `last`.
    first, last : int
    panel : array of that type, shape (d, width)
    out : array of that type, shape (width,)
    kernel : tuple
        From :meth:`cacore.kernels.Kernel.parameters` for that type. Its measure is PRODUCTS: sum of x_k z_k over the
        nonzeros of x. WHOLE: sum of |x_k - z_k| over all features. NONZEROS: sum of |x_k - z_k| - |z_k| over the
        nonzeros of x, which is |x-z|_1 - |z|_1. FACTORS: product of the kernel's factors over all features.
        DIFFERENCES: sum of -(x_k - z_k)^2 / 2 over all features, which is x.z of rows whose norms are taken as 0.
    """
    meet_at(values, columns, first, last, panel, 0, out, 0, kernel)


@numba.njit(inline="always")
def meet_at(
    values: Reals, columns: Ints, first: int, last: int, data: Reals, at: int, out: Reals, to: int, kernel: Parameters
) -> None:  # pragma: no cover - compiled
    """:func:`meet` with the panel that begins at index `at` of `data`, writing to `out` from index `to` on.

    `data` and `out` are contiguous, of any shape.
    """
    function, gamma, coef0, degree, measure = kernel
    if measure == PRODUCTS:
        products(values, columns, first, last, data, at, out, to)
    elif measure == WHOLE:
        _differences(values, columns, first, last, data, at, out, to)
    elif measure == DIFFERENCES:
        _half_squares(values, columns, first, last, data, at, out, to)
    elif measure == NONZEROS:
        _excesses(values, columns, first, last, data, at, out, to)
    else:
        multiplied(function, gamma, coef0, degree, values, columns, first, last, data, at, out, to)


@numba.njit(cache=True, nogil=True)
def pack(X: Reals, data: Reals) -> None:  # pragma: no cover - compiled
    """Copy dense rows, shape (n, d), to panels, shape (ceil(n / width), d, width), of the same type."""
    W = data.shape[2]
    for p in range(data.shape[0]):
        panel = data[p]
        for k in range(min(W, X.shape[0] - p * W)):
            for c in range(X.shape[1]):
                panel[c, k] = X[p * W + k, c]


def taken(
    count: int, hi: int, dtype: DTypeLike, coefficients: NDArray[np.float64] | None, total: NDArray[np.float64] | None,
    store: NDArray[np.floating] | None, places: NDArray[np.int64] | None,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.floating], NDArray[np.int64]]:  # fmt: skip
    """Checked output arrays for the kernel values of `count` rows with columns up to `hi`; None becomes empty arrays.

    See :meth:`cacore.kernels.panels.Panels.add` for the arguments. Compiled code does not check bounds, hence the
    asserts here.
    """
    if coefficients is None or total is None:
        coefficients, total = np.empty(0), np.empty(0)
    if store is None:
        store, places = np.empty((0, 0), dtype), np.empty(0, np.int64)
    elif places is None:
        places = np.arange(count)
    assert places is not None
    assert not total.size or (total.size >= hi and len(coefficients) == count)
    assert not places.size or (store.shape[1] >= hi and len(store) > places.max() and len(places) == count)
    return coefficients, total, store, places


@numba.njit(inline="always")
def hand_over(
    tile: Reals, count: int, first: int, lo: int, hi: int, a: Reals, b: Reals, kernel: Parameters,
    coefficients: Doubles, total: Doubles, store: Reals, places: Longs,
) -> None:  # fmt: skip  # pragma: no cover - compiled
    """Turn a tile of sums into kernel values, and store them, add them up, or both.

    The tile belongs to `count` rows from `first` on and the columns lo to hi.

    Parameters
    ----------
    tile : array of float32 or float64, shape (>= count, >= hi - lo)
        Inner products or distances; overwritten by kernel values.
    count, first, lo, hi : int
    a, b : arrays of that type, shape (> first + count,) and (>= hi,)
        Norms of the rows and of the columns.
    kernel : tuple
        Parameters for :func:`cacore.kernels.evaluate.finish`.
    coefficients, total, store, places
        See :func:`cacore.kernels.panels.accumulate`. Values are rounded to the type of `store` before they are added.
    """
    rounded, norms, size = store.dtype.type, b[lo:hi], hi - lo
    for r in range(count):
        if places.size and r + 1 < count and places[first + r + 1] >= 0:
            # Without a prefetch, writes to uncached memory stall: a third of the time for short rows.
            begin = places[first + r + 1] * store.shape[1] + lo
            for k in range(begin, begin + size, _LINE // store.itemsize):
                prefetch_to_write(store, k)
        line = tile[r, :size]
        finish(line, a[first + r], norms, kernel)
        if places.size and places[first + r] >= 0:
            row = store[places[first + r], lo:hi]
            for k in range(size):
                row[k] = line[k]
    if total.size:
        _add_up(tile, count, coefficients, first, total[lo:hi], rounded)


@numba.njit(inline="always")
def _add_up(
    tile: Reals, count: int, coefficients: Doubles, first: int, total: Doubles, rounded: type[np.floating]
) -> None:  # pragma: no cover - compiled
    """Add `count` rows of a tile, times coefficients from `first` on, to `total`: four rows per pass, in order."""
    r = 0
    while r + 4 <= count:
        at = first + r
        p, q, s, t = coefficients[at], coefficients[at + 1], coefficients[at + 2], coefficients[at + 3]
        w, x, y, z = tile[r], tile[r + 1], tile[r + 2], tile[r + 3]
        for k in range(total.size):
            partial = total[k] + p * np.float64(rounded(w[k]))
            partial += q * np.float64(rounded(x[k]))
            partial += s * np.float64(rounded(y[k]))
            total[k] = partial + t * np.float64(rounded(z[k]))
        r += 4
    while r < count:
        p, w = coefficients[first + r], tile[r]
        for k in range(total.size):
            total[k] += p * np.float64(rounded(w[k]))
        r += 1
