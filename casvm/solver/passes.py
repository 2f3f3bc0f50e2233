"""The two passes over the rows of an SMO iteration, as vector instructions.

A pass takes STEP elements a turn, each in its lane of the vector registers, and returns one result a lane. What rows
may do is written down as RISE, FALL, both or 0, of type uint8. Where the dual has an epsilon, v is that of a row that
rises; a row at the kink, marked AT_KINK, falls with a v that is larger by `width`. Without one `width` is None, and the
code knows nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba.core import types
from numba.extending import intrinsic

from cacore.kernels.simd import CHAINS, DOUBLE, I64, Loop, constant

RISE, FALL = np.uint8(1), np.uint8(2)  # what a row may do
AT_KINK = np.uint8(4)

_FUSED = ("contract",)


class _Pass(Loop):
    """A loop over rows that may be at the kink."""

    def kink(self, flags: Any, k: int) -> Callable[[Any, int], Any]:
        """A function of a vector of v and its chain, that adds the width, argument `k`, for rows at the kink."""
        if self.kinds[k] == types.none:
            return lambda x, chain: x
        width = self.splat(self.args[k])
        return lambda x, chain: self.b.select(self.may(flags, chain, AT_KINK), self.b.fadd(x, width), x)


@intrinsic
def update(
    typingctx: Any, v: Any, may: Any, first: Any, second: Any, step: Any, width: Any, size: Any, most: Any, turns: Any,
    least: Any,
) -> Any:  # fmt: skip
    """``v -= step * (first - second)``, and lane by lane the largest v that may rise and the smallest that may fall.

    Parameters
    ----------
    v : float64, shape (size,)
        Updated.
    may : uint8, shape (size,)
    first, second : float32 or float64, shape (size,)
        The rows of K of the last pair.
    step : float64
    width : float64 or None
    size : int64
        Above 0, a multiple of STEP.
    most : float64, shape (STEP,)
        Takes the largest v of a row that may rise.
    turns : int64, shape (STEP,)
        Takes the first element of the turn in which that was.
    least : float64, shape (STEP,)
        Takes the smallest v of a row that may fall.
    """

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        loop = _Pass(context, builder, signature, args)
        values, flags, a, b = (loop.pointer(k) for k in range(4))
        by, kink = loop.splat(args[4]), loop.kink(flags, 5)

        def turn(carried: list[Any]) -> list[Any]:
            after = []
            for chain in range(CHAINS):
                largest, at, smallest = carried[3 * chain : 3 * chain + 3]
                difference = builder.fsub(loop.double(loop.load(a, chain)), loop.double(loop.load(b, chain)))
                moved = builder.fmul(by, difference, flags=_FUSED)
                x = builder.fsub(loop.load(values, chain), moved, flags=_FUSED)
                loop.store(x, values, chain)
                up = builder.select(loop.may(flags, chain, RISE), x, constant(DOUBLE, -np.inf))
                down = builder.select(loop.may(flags, chain, FALL), kink(x, chain), constant(DOUBLE, np.inf))
                after += [
                    *loop.best(up, largest, at),
                    loop.smaller(down, smallest),
                ]
            return after

        lowest, nowhere = constant(DOUBLE, -np.inf), constant(I64, 0)
        results = loop.run(args[6], [lowest, nowhere, constant(DOUBLE, np.inf)] * CHAINS, turn)
        for k in range(3):
            loop.out(results[k::3], 7 + k)
        return context.get_dummy_value()

    return types.void(v, may, first, second, types.float64, width, types.int64, most, turns, least), build


@intrinsic
def partner(
    typingctx: Any, v: Any, may: Any, row: Any, diagonal: Any, k_ii: Any, top: Any, width: Any, least: Any, size: Any,
    most: Any, turns: Any,
) -> Any:  # fmt: skip
    """Lane by lane the largest gain (top - v_j)^2 / (K_ii + K_jj - 2 K_ij) of the rows j that may fall.

    Parameters
    ----------
    v : float64, shape (size,)
    may : uint8, shape (size,)
    row, diagonal : float32 or float64, shape (size,)
        K_ij and K_jj; in their type gains are compared.
    k_ii : of their type
        K_ii.
    top : float64
        v_i.
    width : float64 or None
    least : of their type
        Least curvature.
    size : int64
        Above 0, a multiple of STEP.
    most : of their type, shape (STEP,)
        Takes the largest gain, -1 where no row may fall.
    turns : int64, shape (STEP,)
        Takes the first element of the turn in which that was.
    """

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        loop = _Pass(context, builder, signature, args)
        values, flags, k_row, k_jj = (loop.pointer(k) for k in range(4))
        real = k_row.type.pointee
        k_ii_, top_, least_ = loop.splat(args[4]), loop.splat(args[5]), loop.splat(args[7])
        kink = loop.kink(flags, 6)
        zero, two, none = (constant(real, x) for x in (0.0, 2.0, -1.0))

        def turn(carried: list[Any]) -> list[Any]:
            after: list[Any] = []
            for chain in range(CHAINS):
                most_, at = carried[2 * chain : 2 * chain + 2]
                difference = loop.narrow(builder.fsub(top_, kink(loop.load(values, chain), chain)), real)
                difference = loop.larger(difference, zero)
                twice = builder.fmul(two, loop.load(k_row, chain), flags=_FUSED)
                curvature = builder.fsub(builder.fadd(k_ii_, loop.load(k_jj, chain)), twice, flags=_FUSED)
                gain = builder.fdiv(builder.fmul(difference, difference), loop.larger(curvature, least_))
                gain = builder.select(loop.may(flags, chain, FALL), gain, none)
                after += loop.best(gain, most_, at)
            return after

        results = loop.run(args[8], [none, constant(I64, 0)] * CHAINS, turn)
        for k in range(2):
            loop.out(results[k::2], 9 + k)
        return context.get_dummy_value()

    real = row.dtype
    signature = types.void(v, may, row, diagonal, real, types.float64, width, real, types.int64, most, turns)
    return signature, build
