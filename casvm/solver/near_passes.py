"""The passes over one block of rows of a sparse SMO iteration, as vector instructions.

A pass takes a block, a multiple of STEP rows, and returns its extremes. The permitted moves of rows are numbers added
to their v: 0, the width of the kink, or an infinity if a row may not rise, or fall.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.core.types.containers import UniTuple
from numba.extending import intrinsic

from cacore.kernels.simd import DOUBLE, Intrinsic, Loop

if TYPE_CHECKING:
    from numba.core.base import BaseContext
    from numba.core.types import Array, Type
    from numba.core.typing.context import Context
    from numba.core.typing.templates import Signature

_FUSED = ("contract",)


class _Block(Loop):
    """A loop over the rows of a block."""

    def pair(self, largest: list[ir.Value], smallest: list[ir.Value], result: Type) -> ir.Value:
        """The largest and the smallest number of these vectors, as a tuple."""
        ends = self.across(largest, self.larger), self.across(smallest, self.smaller)
        return self.context.make_tuple(self.b, result, ends)


@intrinsic
def extremes(typingctx: Context, a: Type, b: Type, size: Type) -> Intrinsic:
    """The largest number of `a` and the smallest of `b`, of float64, shape (size,); `size` is a multiple of STEP."""

    def build(context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: Sequence[ir.Value]) -> ir.Value:
        loop = _Block(context, builder, signature, args)
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

        results = loop.run(args[2], [loop.constant(DOUBLE, -np.inf), loop.constant(DOUBLE, np.inf)] * loop.chains, turn)
        return loop.pair(results[::2], results[1::2], signature.return_type)

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
        loop = _Block(context, builder, signature, args)
        values, rise, fall = (loop.pointer(k) for k in (0, 4, 5))
        rows, by = [loop.pointer(k) for k in (1, 2) if signature.args[k] != types.none], loop.splat(args[3])

        def turn(carried: list[ir.Value]) -> list[ir.Value]:
            after = []
            for chain in range(loop.chains):
                largest, smallest = carried[2 * chain : 2 * chain + 2]
                x = loop.load(values, chain)
                if rows:
                    wide = [loop.cast(loop.load(row, chain), DOUBLE) for row in rows]
                    difference = wide[0] if len(wide) == 1 else builder.fsub(wide[0], wide[1])
                    x = builder.fsub(x, builder.fmul(by, difference, flags=_FUSED), flags=_FUSED)
                    loop.store(x, values, chain)
                after += [
                    loop.larger(builder.fadd(x, loop.load(rise, chain)), largest),
                    loop.smaller(builder.fadd(x, loop.load(fall, chain)), smallest),
                ]
            return after

        results = loop.run(args[6], [loop.constant(DOUBLE, -np.inf), loop.constant(DOUBLE, np.inf)] * loop.chains, turn)
        return loop.pair(results[::2], results[1::2], signature.return_type)

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
        loop = _Block(context, builder, signature, args)
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
