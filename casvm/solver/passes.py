"""The two passes over the gradient of an SMO iteration, as vector instructions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.core import types
from numba.extending import intrinsic

from cacore.kernels.simd import CHAINS, DOUBLE, I64, Loop, constant

RISE, FALL = np.uint8(1), np.uint8(2)  # what a row may do

_FUSED = ("contract",)


@intrinsic
def update(
    typingctx: Any, v: Any, may: Any, first: Any, second: Any, step: Any, size: Any, most: Any, where: Any, least: Any
) -> Any:
    """``v -= step * (first - second)``, and lane by lane the largest v that may rise and the smallest that may fall.

    `size`, above 0, is a multiple of STEP. Of each of the STEP lanes, `most` takes the largest v of a row
    that may rise, `where` the turn's first element, and `least` the smallest v of one that may fall.
    """

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        loop = Loop(context, builder, signature, args)
        values, flags, a, b = (loop.pointer(k) for k in range(4))
        by = loop.splat(args[4])

        def turn(carried: list[Any]) -> list[Any]:
            after = []
            for chain in range(CHAINS):
                largest, at, smallest = carried[3 * chain : 3 * chain + 3]
                difference = builder.fsub(loop.double(loop.load(a, chain)), loop.double(loop.load(b, chain)))
                moved = builder.fmul(by, difference, flags=_FUSED)
                x = builder.fsub(loop.load(values, chain), moved, flags=_FUSED)
                loop.store(x, values, chain)
                up = builder.select(loop.may(flags, chain, RISE), x, constant(DOUBLE, -np.inf))
                down = builder.select(loop.may(flags, chain, FALL), x, constant(DOUBLE, np.inf))
                after += [
                    *loop.best(up, largest, at),
                    loop.smaller(down, smallest),
                ]
            return after

        lowest, nowhere = constant(DOUBLE, -np.inf), constant(I64, 0)
        results = loop.run(args[5], [lowest, nowhere, constant(DOUBLE, np.inf)] * CHAINS, turn)
        for k in range(3):
            loop.out(results[k::3], 6 + k)
        return context.get_dummy_value()

    return types.void(v, may, first, second, types.float64, types.int64, most, where, least), build


@intrinsic
def partner(
    typingctx: Any, v: Any, may: Any, row: Any, diagonal: Any, own: Any, top: Any, least: Any, size: Any, most: Any,
    where: Any,
) -> Any:  # fmt: skip
    """Lane by lane the largest gain (top - v_j)^2 / (own + K_jj - 2 K_ij) of the rows j that may fall.

    `row`, `diagonal` and `most` are of one precision, in which gains are compared; `least` is the least
    curvature. Otherwise as :func:`update`.
    """

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        loop = Loop(context, builder, signature, args)
        values, flags, k_row, k_own = (loop.pointer(k) for k in range(4))
        real = k_row.type.pointee
        own_, top_, least_ = loop.splat(args[4]), loop.splat(args[5]), loop.splat(args[6])
        zero, two, none = (constant(real, x) for x in (0.0, 2.0, -1.0))

        def turn(carried: list[Any]) -> list[Any]:
            after: list[Any] = []
            for chain in range(CHAINS):
                most_, at = carried[2 * chain : 2 * chain + 2]
                difference = loop.narrow(builder.fsub(top_, loop.load(values, chain)), real)
                difference = loop.larger(difference, zero)
                twice = builder.fmul(two, loop.load(k_row, chain), flags=_FUSED)
                curvature = builder.fsub(builder.fadd(own_, loop.load(k_own, chain)), twice, flags=_FUSED)
                gain = builder.fdiv(builder.fmul(difference, difference), loop.larger(curvature, least_))
                gain = builder.select(loop.may(flags, chain, FALL), gain, none)
                after += loop.best(gain, most_, at)
            return after

        results = loop.run(args[7], [none, constant(I64, 0)] * CHAINS, turn)
        for k in range(2):
            loop.out(results[k::2], 8 + k)
        return context.get_dummy_value()

    real = row.dtype
    signature = types.void(v, may, row, diagonal, real, types.float64, real, types.int64, most, where)
    return signature, build
