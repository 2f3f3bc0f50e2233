"""The two passes over the rows of an SMO iteration, as vector instructions.

A pass takes STEP elements per turn. Each row's permitted moves are flags of type uint8: RISE, FALL, both or 0. If the
dual has an epsilon, v is that of rising rows; a row at the kink, marked AT_KINK, falls with a v that is larger by
`width`. Without an epsilon `width` is None, and its code is not generated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.core.types.containers import Tuple
from numba.extending import intrinsic

from cacore.kernels.simd import DOUBLE, SINGLE, Intrinsic, Loop

if TYPE_CHECKING:
    from numba.core.base import BaseContext
    from numba.core.types import Array, Type
    from numba.core.typing.context import Context
    from numba.core.typing.templates import Signature

RISE, FALL = np.uint8(1), np.uint8(2)  # permitted moves of a row
AT_KINK = np.uint8(4)

_FUSED = ("contract",)


class _Pass(Loop):
    """A loop over rows that may be at the kink, in the precision of v, the first argument."""

    def __init__(
        self, context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: Sequence[ir.Value]
    ) -> None:
        single = signature.args[0].dtype == types.float32
        super().__init__(context, builder, signature, args, SINGLE if single else DOUBLE)

    def kink(self, flags: ir.Value, k: int) -> Callable[[ir.Value, int], ir.Value]:
        """A function of a vector of v and its chain that adds the width, argument `k`, for rows at the kink."""
        if self.kinds[k] == types.none:
            return lambda x, chain: x
        width = self.splat(self.args[k])
        return lambda x, chain: self.b.select(self.may(flags, chain, AT_KINK), self.b.fadd(x, width), x)


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
        loop = _Pass(context, builder, signature, args)
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
        found = *loop.winner(results[::3], results[1::3]), loop.across(results[2::3], loop.smaller)
        return context.make_tuple(builder, signature.return_type, found)

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
        loop = _Pass(context, builder, signature, args)
        values, flags, k_row, k_jj = (loop.pointer(k) for k in range(4))
        real = k_row.type.pointee
        k_ii_, top_, least_ = loop.splat(args[4]), loop.splat(args[5]), loop.splat(args[7])
        kink = loop.kink(flags, 6)
        zero, two, none = (loop.constant(real, x) for x in (0.0, 2.0, -1.0))

        def turn(carried: list[ir.Value]) -> list[ir.Value]:
            after: list[ir.Value] = []
            for chain in range(loop.chains):
                most_, at = carried[2 * chain : 2 * chain + 2]
                difference = loop.cast(builder.fsub(top_, kink(loop.load(values, chain), chain)), real)
                difference = loop.larger(difference, zero)
                twice = builder.fmul(two, loop.load(k_row, chain), flags=_FUSED)
                curvature = builder.fsub(builder.fadd(k_ii_, loop.load(k_jj, chain)), twice, flags=_FUSED)
                gain = builder.fdiv(builder.fmul(difference, difference), loop.larger(curvature, least_))
                gain = builder.select(loop.may(flags, chain, FALL), gain, none)
                after += loop.best(gain, most_, at)
            return after

        results = loop.run(args[8], [none, loop.constant(loop.place, 0)] * loop.chains, turn)
        return loop.winner(results[::2], results[1::2])[0]

    real, wide = row.dtype, v.dtype
    return types.int64(v, may, row, diagonal, real, wide, _optional(width, wide), real, types.int64), build


def _optional(width: Type, real: Type) -> Type:
    return width if width == types.none else real
