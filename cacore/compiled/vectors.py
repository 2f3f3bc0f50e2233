"""Vector loops that the compiler does not make by itself: passes over the rows of a dual, and sums over features.

Plain loops took three to five times as long. The loops here are built as LLVM vector code, which LLVM fits to the
machine's vector length. Their callers:

* SMO (:mod:`casvm.solver.active_set`): :func:`update` and :func:`partner`. Each row's permitted moves are flags of type
  uint8: RISE, FALL, both or 0. If the dual has an epsilon, v is that of rising rows; a row at the kink, marked AT_KINK,
  falls with a v that is larger by `width`. Without an epsilon `width` is None, and its code is not generated.
* SMO with near rows only (:mod:`casvm.solver.near_smo`): :func:`extremes`, :func:`advance` and :func:`largest_gain`.
* Asy-GCD (:mod:`asygcd.solver.greedy`): :func:`violator` and :func:`step_to_violator`.
* Panels of rows (:mod:`cacore.kernels.sums`): :data:`products` and the other sums over the features.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.core.types.containers import Tuple, UniTuple
from numba.extending import intrinsic

from cacore.compiled.compiler import check_compiler

if TYPE_CHECKING:
    from numba.core.base import BaseContext
    from numba.core.types import Array, Float, Type
    from numba.core.typing.context import Context
    from numba.core.typing.templates import Signature

Build: TypeAlias = "Callable[[BaseContext, ir.IRBuilder, Signature, Sequence[ir.Value]], ir.Value]"
Intrinsic: TypeAlias = "tuple[Signature, Build]"  # result of a function under numba's `intrinsic`
Term: TypeAlias = "Callable[[ir.IRBuilder, ir.Value, ir.Value, ir.Value], ir.Value]"

# Elements per iteration of a pass: 4 vectors of doubles, which hide the latency of their compare and select. SMO pads
# its rows to a multiple (`padded` in casvm/solver/pair.py); the rows of a panel are one (`width` in kernels/sums.py).
STEP = 32
# Bytes of one feature in a panel: 8 vectors, one accumulator each, which hide the latency of multiply-and-add (4
# cycles, 2 per cycle). cacore/kernels/near.py::STRETCH is a multiple of a panel's rows in either precision.
PANEL_BYTES = 512
RISE, FALL = np.uint8(1), np.uint8(2)  # permitted moves of a row
AT_KINK = np.uint8(4)

check_compiler()  # estimators load this module before any other that is compiled

_VECTOR = 64  # bytes
_VECTORS = PANEL_BYTES // _VECTOR  # accumulators
_FUSED = ("contract",)
_DOUBLE, _SINGLE = ir.DoubleType(), ir.FloatType()
_I8, _I32, _I64 = (ir.IntType(bits) for bits in (8, 32, 64))


class _Loop:
    """Builder of a loop over arrays, STEP elements per iteration, that carries values between iterations.

    It is made inside the `build` function of a numba intrinsic. Arrays are contiguous, of float32 or float64 (flags:
    uint8). The number of elements is positive and a multiple of STEP. :attr:`k` is the index of an iteration's first
    element.

    Parameters
    ----------
    context, builder, signature, args
        The arguments of numba's `build` function. The first array's precision is that of the loop.

    Attributes
    ----------
    real : LLVM type
    lanes : int
        Elements per vector.
    chains : int
        Independent vectors per iteration, which hide latency; the argument `chain` of the methods selects one.
    place : LLVM type
        Integer type for element indices, as long as `real`, so that indices fill a vector as well.
    """

    def __init__(
        self, context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: Sequence[ir.Value]
    ) -> None:
        self.context, self.b, self.kinds, self.args, self.result = (
            context, builder, signature.args, args, signature.return_type
        )  # fmt: skip
        self.real = _SINGLE if self.kinds[0].dtype == types.float32 else _DOUBLE
        self.lanes = _VECTOR // _bytes(self.real)
        self.chains, self.place = STEP // self.lanes, ir.IntType(8 * _bytes(self.real))

    def constant(self, kind: ir.Type, value: float) -> ir.Constant:
        """A vector of copies of a constant."""
        return ir.Constant(ir.VectorType(kind, self.lanes), [value] * self.lanes)

    def pointer(self, k: int) -> ir.Value:
        """Pointer to the first element of array argument `k`."""
        return self.context.make_array(self.kinds[k])(self.context, self.b, self.args[k]).data

    def splat(self, scalar: ir.Value) -> ir.Value:
        """A vector of copies of a scalar."""
        vector = ir.VectorType(scalar.type, self.lanes)
        single = self.b.insert_element(ir.Constant(vector, ir.Undefined), scalar, ir.Constant(_I32, 0))
        return self.b.shuffle_vector(single, ir.Constant(vector, ir.Undefined), self.constant(_I32, 0))

    def _at(self, pointer: ir.Value, chain: int, vector: ir.Type) -> ir.Value:
        place = self.b.gep(pointer, [self.b.add(self.k, ir.Constant(_I64, chain * self.lanes))])
        return self.b.bitcast(place, vector.as_pointer())

    def load(self, pointer: ir.Value, chain: int) -> ir.Value:
        """Load a vector of this iteration's elements."""
        real = pointer.type.pointee
        return self.b.load(self._at(pointer, chain, ir.VectorType(real, self.lanes)), align=_bytes(real))

    def store(self, values: ir.Value, pointer: ir.Value, chain: int) -> None:
        """Write a vector to this iteration's elements."""
        self.b.store(values, self._at(pointer, chain, values.type), align=_bytes(pointer.type.pointee))

    def cast(self, values: ir.Value, real: ir.Type) -> ir.Value:
        """Convert a vector to the precision `real`."""
        kind = ir.VectorType(real, self.lanes)
        if values.type == kind:
            return values
        return self.b.fpext(values, kind) if real == _DOUBLE else self.b.fptrunc(values, kind)

    def may(self, pointer: ir.Value, chain: int, flag: np.uint8) -> ir.Value:
        """Mask of this iteration's elements whose entry in an array of flags has `flag` set."""
        both = self.b.and_(self.load(pointer, chain), self.constant(_I8, int(flag)))
        return self.b.icmp_unsigned("!=", both, self.constant(_I8, 0))

    def larger(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """Elementwise maximum."""
        return self.b.select(self.b.fcmp_ordered(">", a, b), a, b)

    def smaller(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """Elementwise minimum."""
        return self.b.select(self.b.fcmp_ordered("<", a, b), a, b)

    def run(
        self, size: ir.Value, starts: list[ir.Value], turn: Callable[[list[ir.Value]], list[ir.Value]]
    ) -> list[ir.Value]:
        """Build the loop over `size` elements and return the carried values after it.

        The carried values begin as `starts`; ``turn(values)`` builds an iteration and returns the next values.
        """
        b = self.b
        before, loop, done = b.block, b.append_basic_block("turn"), b.append_basic_block("done")
        b.branch(loop)
        b.position_at_end(loop)
        self.k = b.phi(_I64)
        carried = [b.phi(start.type) for start in starts]
        after = turn(carried)
        following = b.add(self.k, ir.Constant(_I64, STEP))
        for phi, start, value in zip(
            [self.k, *carried], [ir.Constant(_I64, 0), *starts], [following, *after], strict=True
        ):
            phi.add_incoming(start, before)
            phi.add_incoming(value, loop)
        b.cbranch(b.icmp_signed("<", following, size), loop, done)
        b.position_at_end(done)
        return after

    def best(self, x: ir.Value, maximum: ir.Value, where: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Elementwise maximum of `x` and `maximum`, and the :attr:`k` of the iteration that the larger one is from."""
        better = self.b.fcmp_ordered(">", x, maximum)
        here = self.k if self.place == _I64 else self.b.trunc(self.k, self.place)
        return self.b.select(better, x, maximum), self.b.select(better, self.splat(here), where)

    def across(self, vectors: list[ir.Value], combine: Callable[[ir.Value, ir.Value], ir.Value]) -> ir.Value:
        """Reduce all lanes of these vectors to one number by `combine`."""
        while len(vectors) > 1:
            vectors = [*vectors[2:], combine(vectors[0], vectors[1])]
        (x,), half = vectors, self.lanes // 2
        while half:
            turned = ir.Constant(ir.VectorType(_I32, self.lanes), [(k + half) % self.lanes for k in range(self.lanes)])
            x, half = combine(x, self.b.shuffle_vector(x, ir.Constant(x.type, ir.Undefined), turned)), half // 2
        return self.b.extract_element(x, ir.Constant(_I32, 0))

    def winner(self, maxima: list[ir.Value], where: list[ir.Value]) -> tuple[ir.Value, ir.Value]:
        """Index (int64) and value of the largest element, the first among equals.

        `maxima` and `where` hold the results of :meth:`best`, one per chain.
        """
        largest = self.across(maxima, self.larger)
        all_largest, nowhere = self.splat(largest), self.constant(self.place, 2**31 - 1)
        places = []
        for chain, (x, turn) in enumerate(zip(maxima, where, strict=True)):
            offsets = ir.Constant(turn.type, [chain * self.lanes + lane for lane in range(self.lanes)])
            places.append(self.b.select(self.b.fcmp_ordered("==", x, all_largest), self.b.add(turn, offsets), nowhere))
        place = self.across(places, lambda a, b: self.b.select(self.b.icmp_signed("<", a, b), a, b))
        return (place if self.place == _I64 else self.b.sext(place, _I64)), largest

    def ends(self, largest: list[ir.Value], smallest: list[ir.Value]) -> ir.Value:
        """The largest and the smallest number of these vectors, as a tuple."""
        return self.tuple(self.across(largest, self.larger), self.across(smallest, self.smaller))

    def kink(self, flags: ir.Value, k: int) -> Callable[[ir.Value, int], ir.Value]:
        """A function of a vector of v and its chain that adds the width, argument `k`, for rows at the kink."""
        if self.kinds[k] == types.none:
            return lambda x, chain: x
        width = self.splat(self.args[k])
        return lambda x, chain: self.b.select(self.may(flags, chain, AT_KINK), self.b.fadd(x, width), x)

    def tuple(self, *values: ir.Value) -> ir.Value:
        """The result of the loop, of several numbers."""
        return self.context.make_tuple(self.b, self.result, values)


def _bytes(real: ir.Type) -> int:
    return {_DOUBLE: 8, _I64: 8, _I8: 1}.get(real, 4)


# -- SMO: pairs of all rows ---------------------------------------------------------------------


@intrinsic
def update(
    typingctx: Context, v: Array[Type], may: Type, first: Type, second: Type, step: Type, width: Type, size: Type
) -> Intrinsic:  # fmt: skip
    """``v -= step * (first - second)``; the row that rises with the largest v, that v, and the smallest that falls.

    Parameters
    ----------
    v : float32 or float64, shape (size,)
        Updated.
    may : uint8, shape (size,)
    first, second : float32 or float64, shape (size,)
        The rows of K of the last pair.
    step : of the type of `v`
    width : of the type of `v`, or None
    size : int64
        Above 0, a multiple of STEP.

    Returns
    -------
    row : int64
        The first of equals; 0 where no row may rise.
    top, bottom : of the type of `v`
        Infinite where no row may rise, or fall.
    """

    def build(context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: Sequence[ir.Value]) -> ir.Value:
        loop = _Loop(context, builder, signature, args)
        values, flags, a, b = (loop.pointer(k) for k in range(4))
        by, kink, real = loop.splat(args[4]), loop.kink(flags, 5), loop.real
        lowest, highest = loop.constant(real, -np.inf), loop.constant(real, np.inf)

        def turn(carried: list[ir.Value]) -> list[ir.Value]:
            after = []
            for chain in range(loop.chains):
                largest, at, smallest = carried[3 * chain : 3 * chain + 3]
                difference = builder.fsub(loop.cast(loop.load(a, chain), real), loop.cast(loop.load(b, chain), real))
                moved = builder.fmul(by, difference, flags=_FUSED)
                x = builder.fsub(loop.load(values, chain), moved, flags=_FUSED)
                loop.store(x, values, chain)
                up = builder.select(loop.may(flags, chain, RISE), x, lowest)
                down = builder.select(loop.may(flags, chain, FALL), kink(x, chain), highest)
                after += [*loop.best(up, largest, at), loop.smaller(down, smallest)]
            return after

        results = loop.run(args[6], [lowest, loop.constant(loop.place, 0), highest] * loop.chains, turn)
        return loop.tuple(*loop.winner(results[::3], results[1::3]), loop.across(results[2::3], loop.smaller))

    real = v.dtype
    result = Tuple([types.int64, real, real])
    return result(v, may, first, second, real, _optional(width, real), types.int64), build


@intrinsic
def partner(
    typingctx: Context, v: Array[Type], may: Type, row: Array[Type], diagonal: Type, k_ii: Type, top: Type,
    width: Type, least: Type, size: Type,
) -> Intrinsic:  # fmt: skip
    """The row j that may fall with the largest gain (top - v_j)^2 / (K_ii + K_jj - 2 K_ij), the first of equals.

    Parameters
    ----------
    v : float32 or float64, shape (size,)
    may : uint8, shape (size,)
    row, diagonal : float32 or float64, shape (size,)
        K_ij and K_jj; in their type gains are compared.
    k_ii : of their type
        K_ii.
    top : of the type of `v`
        v_i.
    width : of the type of `v`, or None
    least : of their type
        Least curvature.
    size : int64
        Above 0, a multiple of STEP.
    """

    def build(context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: Sequence[ir.Value]) -> ir.Value:
        loop = _Loop(context, builder, signature, args)
        values, flags, k_row, k_jj = (loop.pointer(k) for k in range(4))
        real = k_row.type.pointee
        k_ii_, top_, least_ = loop.splat(args[4]), loop.splat(args[5]), loop.splat(args[7])
        kink = loop.kink(flags, 6)
        zero, two, none = (loop.constant(real, x) for x in (0.0, 2.0, -1.0))

        def turn(carried: list[ir.Value]) -> list[ir.Value]:
            after: list[ir.Value] = []
            for chain in range(loop.chains):
                best_gain, at = carried[2 * chain : 2 * chain + 2]
                difference = loop.cast(builder.fsub(top_, kink(loop.load(values, chain), chain)), real)
                difference = loop.larger(difference, zero)
                twice = builder.fmul(two, loop.load(k_row, chain), flags=_FUSED)
                curvature = builder.fsub(builder.fadd(k_ii_, loop.load(k_jj, chain)), twice, flags=_FUSED)
                gain = builder.fdiv(builder.fmul(difference, difference), loop.larger(curvature, least_))
                gain = builder.select(loop.may(flags, chain, FALL), gain, none)
                after += loop.best(gain, best_gain, at)
            return after

        results = loop.run(args[8], [none, loop.constant(loop.place, 0)] * loop.chains, turn)
        return loop.winner(results[::2], results[1::2])[0]

    real, wide = row.dtype, v.dtype
    return types.int64(v, may, row, diagonal, real, wide, _optional(width, wide), real, types.int64), build


def _optional(width: Type, real: Type) -> Type:
    return width if width == types.none else real


# -- SMO: pairs of near rows --------------------------------------------------------------------


@intrinsic
def extremes(typingctx: Context, a: Type, b: Type, size: Type) -> Intrinsic:
    """The largest number of `a` and the smallest of `b`, of float64, shape (size,); `size` is a multiple of STEP."""

    def build(context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: Sequence[ir.Value]) -> ir.Value:
        loop = _Loop(context, builder, signature, args)
        first, second = loop.pointer(0), loop.pointer(1)

        def turn(carried: list[ir.Value]) -> list[ir.Value]:
            after = []
            for chain in range(loop.chains):
                largest, smallest = carried[2 * chain : 2 * chain + 2]
                after += [
                    loop.larger(loop.load(first, chain), largest),
                    loop.smaller(loop.load(second, chain), smallest),
                ]
            return after

        results = loop.run(
            args[2], [loop.constant(_DOUBLE, -np.inf), loop.constant(_DOUBLE, np.inf)] * loop.chains, turn
        )
        return loop.ends(results[::2], results[1::2])

    return UniTuple(types.float64, 2)(a, b, types.int64), build


@intrinsic
def advance(
    typingctx: Context, v: Type, first: Type, second: Type, step: Type, up: Type, down: Type, size: Type
) -> Intrinsic:  # fmt: skip
    """``v -= step * (first - second)``; the largest v that rises and the smallest that falls.

    Parameters
    ----------
    v : float64, shape (size,)
        Updated.
    first, second : float32 or float64, shape (size,), or None
        Values of two rows of K; with one, only that row is subtracted, and with none v stays.
    step : float64
    up, down : float64, shape (size,)
        Numbers added to the v of rows that rise, and of rows that fall.
    size : int64
        Above 0, a multiple of STEP.
    """

    def build(context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: Sequence[ir.Value]) -> ir.Value:
        loop = _Loop(context, builder, signature, args)
        values, rise, fall = (loop.pointer(k) for k in (0, 4, 5))
        rows, by = [loop.pointer(k) for k in (1, 2) if signature.args[k] != types.none], loop.splat(args[3])

        def turn(carried: list[ir.Value]) -> list[ir.Value]:
            after = []
            for chain in range(loop.chains):
                largest, smallest = carried[2 * chain : 2 * chain + 2]
                x = loop.load(values, chain)
                if rows:
                    wide = [loop.cast(loop.load(row, chain), _DOUBLE) for row in rows]
                    difference = wide[0] if len(wide) == 1 else builder.fsub(wide[0], wide[1])
                    x = builder.fsub(x, builder.fmul(by, difference, flags=_FUSED), flags=_FUSED)
                    loop.store(x, values, chain)
                after += [
                    loop.larger(builder.fadd(x, loop.load(rise, chain)), largest),
                    loop.smaller(builder.fadd(x, loop.load(fall, chain)), smallest),
                ]
            return after

        results = loop.run(
            args[6], [loop.constant(_DOUBLE, -np.inf), loop.constant(_DOUBLE, np.inf)] * loop.chains, turn
        )
        return loop.ends(results[::2], results[1::2])

    return UniTuple(types.float64, 2)(v, first, second, types.float64, up, down, types.int64), build


@intrinsic
def largest_gain(
    typingctx: Context, v: Type, down: Type, row: Array[Type], top: Type, diagonals: Type, least: Type, size: Type
) -> Intrinsic:  # fmt: skip
    """The largest (top - v_j)^2 / (K_ii + K_jj - 2 K_ij) of the rows j of a block that fall with a v below `top`.

    Parameters
    ----------
    v, down : float64, shape (size,)
    row : float32 or float64, shape (size,)
        K_ij; gains are compared in its type.
    top : float64
    diagonals, least : of the type of `row`
        K_ii + K_jj; the least curvature.
    size : int64
        Above 0, a multiple of STEP.
    """

    def build(context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: Sequence[ir.Value]) -> ir.Value:
        loop = _Loop(context, builder, signature, args)
        values, fall, k_row = (loop.pointer(k) for k in range(3))
        real = k_row.type.pointee
        top_, diagonals_, least_ = (loop.splat(args[k]) for k in (3, 4, 5))
        zero, two = loop.constant(real, 0.0), loop.constant(real, 2.0)

        def turn(carried: list[ir.Value]) -> list[ir.Value]:
            after = []
            for chain in range(loop.chains):
                falling = builder.fadd(loop.load(values, chain), loop.load(fall, chain))
                difference = loop.larger(loop.cast(builder.fsub(top_, falling), real), zero)
                twice = builder.fmul(two, loop.load(k_row, chain), flags=_FUSED)
                curvature = loop.larger(builder.fsub(diagonals_, twice, flags=_FUSED), least_)
                gain = builder.fdiv(builder.fmul(difference, difference), curvature)
                after.append(loop.larger(gain, carried[chain]))
            return after

        return loop.across(loop.run(args[6], [zero] * loop.chains, turn), loop.larger)

    real = row.dtype
    return real(v, down, row, types.float64, real, real, types.int64), build


# -- Asy-GCD ------------------------------------------------------------------------------------


def _violator(moves: bool) -> Build:
    """Return the code generator of a pass over beta, r, low, high (and column, step if `moves`), and size."""

    def build(context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: Sequence[ir.Value]) -> ir.Value:
        loop = _Loop(context, builder, signature, args)
        variables, gradient, lowest, highest = (loop.pointer(k) for k in range(4))
        column, by = (loop.pointer(4), loop.splat(args[5])) if moves else (None, None)

        def turn(carried: list[ir.Value]) -> list[ir.Value]:
            after: list[ir.Value] = []
            for chain in range(loop.chains):
                g = loop.load(gradient, chain)
                if moves:
                    change = builder.fmul(by, loop.cast(loop.load(column, chain), _DOUBLE), flags=_FUSED)
                    g = builder.fadd(g, change, flags=_FUSED)
                    loop.store(g, gradient, chain)
                b = loop.load(variables, chain)
                x = loop.larger(builder.fsub(b, g), loop.load(lowest, chain))
                x = loop.smaller(x, loop.load(highest, chain))
                violated = loop.larger(builder.fsub(b, x), builder.fsub(x, b))
                after += loop.best(violated, *carried[2 * chain : 2 * chain + 2])
            return after

        results = loop.run(args[-1], [loop.constant(_DOUBLE, -1.0), loop.constant(loop.place, 0)] * loop.chains, turn)
        return loop.tuple(*loop.winner(results[::2], results[1::2]))

    return build


ROW_AND_VIOLATION = Tuple([types.int64, types.float64])


@intrinsic
def violator(typingctx: Context, beta: Type, r: Type, low: Type, high: Type, size: Type) -> Intrinsic:
    """Find the first row with the largest |projected gradient|, and that value; `size` is a multiple of STEP."""
    return ROW_AND_VIOLATION(beta, r, low, high, types.int64), _violator(False)


@intrinsic
def step_to_violator(
    typingctx: Context, beta: Type, r: Type, low: Type, high: Type, column: Type, step: Type, size: Type
) -> Intrinsic:
    """Execute ``r += step * column``, and then search as :func:`violator` does."""
    return ROW_AND_VIOLATION(beta, r, low, high, column, types.float64, types.int64), _violator(True)


# -- sums over the features of one row and a panel of others ------------------------------------


def _size(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """|x|, by clearing the sign bit."""
    bits = ir.IntType(64 if x.type.element == _DOUBLE else 32)
    vector = ir.VectorType(bits, x.type.count)
    mask = ir.Constant(vector, [(1 << (bits.width - 1)) - 1] * x.type.count)
    return b.bitcast(b.and_(b.bitcast(x, vector), mask), x.type)


def _product(b: ir.IRBuilder, total: ir.Value, value: ir.Value, x: ir.Value) -> ir.Value:
    return b.fadd(total, b.fmul(value, x, flags=_FUSED), flags=_FUSED)


def _difference(b: ir.IRBuilder, total: ir.Value, value: ir.Value, x: ir.Value) -> ir.Value:
    return b.fadd(total, _size(b, b.fsub(x, value)))


def _half_square(b: ir.IRBuilder, total: ir.Value, value: ir.Value, x: ir.Value) -> ir.Value:
    gap = b.fsub(x, value)
    half = ir.Constant(gap.type, [-0.5] * gap.type.count)
    return _product(b, total, b.fmul(gap, half), gap)


def _excess(b: ir.IRBuilder, total: ir.Value, value: ir.Value, x: ir.Value) -> ir.Value:
    return b.fadd(total, b.fsub(_size(b, b.fsub(x, value)), _size(b, x)))


def _common(b: ir.IRBuilder, total: ir.Value, value: ir.Value, x: ir.Value) -> ir.Value:
    return b.fadd(total, b.fsub(_size(b, b.fsub(x, value)), b.fadd(_size(b, x), _size(b, value))))


def _sums(term: Term) -> Callable[..., None]:
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
            totals = [builder.phi(vector) for _ in range(_VECTORS)]
            value = builder.insert_element(nothing, builder.load(builder.gep(v, [q])), ir.Constant(i32, 0))
            value = builder.shuffle_vector(value, nothing, ir.Constant(ir.VectorType(i32, lanes), [0] * lanes))
            row = builder.mul(builder.sext(builder.load(builder.gep(c, [q])), i64), ir.Constant(i64, lanes * _VECTORS))
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
            results = [builder.phi(vector) for _ in range(_VECTORS)]
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


products, differences, excesses, half_squares = (_sums(term) for term in (_product, _difference, _excess, _half_square))
common = _sums(_common)  # the sum of |x_k - z_k| - |x_k| - |z_k|: |x-z|_1 - |x|_1 - |z|_1
