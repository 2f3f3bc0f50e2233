"""The two passes over the gradient of an SMO iteration, as vector instructions.

The compiler vectorises neither a search for the largest element nor the conditions around it; plain loops
took three to five times as long. These build the vector code themselves, for whatever vectors the machine has.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

LANES, CHAINS = 8, 4  # elements of a vector, and vectors in flight, whose comparisons do not wait for each other
STEP = LANES * CHAINS
RISE, FALL = np.uint8(1), np.uint8(2)  # what a row may do

_DOUBLE, _I8, _I32, _I64 = ir.DoubleType(), ir.IntType(8), ir.IntType(32), ir.IntType(64)
_FUSED = ("contract",)


class _Loop:
    """A loop over STEP elements at a time, with values carried from one turn to the next."""

    def __init__(self, context: Any, builder: Any, signature: Any, args: Any) -> None:
        self.context, self.b, self.kinds, self.args = context, builder, signature.args, args

    def pointer(self, k: int) -> Any:
        """Where array argument `k` begins."""
        return self.context.make_array(self.kinds[k])(self.context, self.b, self.args[k]).data

    def splat(self, scalar: Any) -> Any:
        """A vector of copies."""
        vector = ir.VectorType(scalar.type, LANES)
        one = self.b.insert_element(ir.Constant(vector, ir.Undefined), scalar, ir.Constant(_I32, 0))
        return self.b.shuffle_vector(one, ir.Constant(vector, ir.Undefined), _constant(_I32, [0] * LANES))

    def _at(self, pointer: Any, chain: int, vector: Any) -> Any:
        place = self.b.gep(pointer, [self.b.add(self.k, ir.Constant(_I64, chain * LANES))])
        return self.b.bitcast(place, vector.as_pointer())

    def load(self, pointer: Any, chain: int) -> Any:
        """Elements of this turn."""
        real = pointer.type.pointee
        return self.b.load(self._at(pointer, chain, ir.VectorType(real, LANES)), align=_bytes(real))

    def store(self, values: Any, pointer: Any, chain: int) -> None:
        """Elements of this turn."""
        self.b.store(values, self._at(pointer, chain, values.type), align=_bytes(pointer.type.pointee))

    def double(self, values: Any) -> Any:
        """In double precision."""
        wide = ir.VectorType(_DOUBLE, LANES)
        return values if values.type.element == _DOUBLE else self.b.fpext(values, wide)

    def narrow(self, values: Any, real: Any) -> Any:
        """In the precision `real`."""
        return values if real == _DOUBLE else self.b.fptrunc(values, ir.VectorType(real, LANES))

    def may(self, pointer: Any, chain: int, flag: Any) -> Any:
        """Mask of the rows that may do this."""
        both = self.b.and_(self.load(pointer, chain), _constant(_I8, [int(flag)] * LANES))
        return self.b.icmp_unsigned("!=", both, _constant(_I8, [0] * LANES))

    def larger(self, a: Any, b: Any) -> Any:
        """Elementwise."""
        return self.b.select(self.b.fcmp_ordered(">", a, b), a, b)

    def run(self, size: Any, starts: list[Any], turn: Any) -> list[Any]:
        """Call ``turn(values)``, which returns the carried values of the next turn; those of the last."""
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

    def best(self, x: Any, most: Any, where: Any) -> tuple[Any, Any]:
        """The larger of `x` and `most`, and the turn in which it was met."""
        better = self.b.fcmp_ordered(">", x, most)
        return self.b.select(better, x, most), self.b.select(better, self.splat(self.k), where)

    def out(self, values: list[Any], k: int) -> None:
        """Write the chains' results side by side into array argument `k`."""
        pointer = self.pointer(k)
        for chain, value in enumerate(values):
            place = self.b.gep(pointer, [ir.Constant(_I64, chain * LANES)])
            self.b.store(value, self.b.bitcast(place, value.type.as_pointer()), align=_bytes(value.type.element))


@intrinsic
def update(
    typingctx: Any, v: Any, may: Any, first: Any, second: Any, step: Any, size: Any, most: Any, where: Any, least: Any
) -> Any:
    """``v -= step * (first - second)``, and lane by lane the largest v that may rise and the smallest that may fall.

    `size`, above 0, is a multiple of STEP. Of each of the STEP lanes, `most` takes the largest v of a row
    that may rise, `where` the turn's first element, and `least` the smallest v of one that may fall.
    """

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        loop = _Loop(context, builder, signature, args)
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
                up = builder.select(loop.may(flags, chain, RISE), x, _constant(_DOUBLE, [-np.inf] * LANES))
                down = builder.select(loop.may(flags, chain, FALL), x, _constant(_DOUBLE, [np.inf] * LANES))
                after += [
                    *loop.best(up, largest, at),
                    builder.select(builder.fcmp_ordered("<", down, smallest), down, smallest),
                ]
            return after

        lowest, nowhere = _constant(_DOUBLE, [-np.inf] * LANES), _constant(_I64, [0] * LANES)
        results = loop.run(args[5], [lowest, nowhere, _constant(_DOUBLE, [np.inf] * LANES)] * CHAINS, turn)
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
        loop = _Loop(context, builder, signature, args)
        values, flags, k_row, k_own = (loop.pointer(k) for k in range(4))
        real = k_row.type.pointee
        own_, top_, least_ = loop.splat(args[4]), loop.splat(args[5]), loop.splat(args[6])
        zero, two, none = (_constant(real, [x] * LANES) for x in (0.0, 2.0, -1.0))

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

        results = loop.run(args[7], [none, _constant(_I64, [0] * LANES)] * CHAINS, turn)
        for k in range(2):
            loop.out(results[k::2], 8 + k)
        return context.get_dummy_value()

    real = row.dtype
    signature = types.void(v, may, row, diagonal, real, types.float64, real, types.int64, most, where)
    return signature, build


def _constant(kind: Any, values: list[Any]) -> Any:
    return ir.Constant(ir.VectorType(kind, len(values)), values)


def _bytes(real: Any) -> int:
    return {_DOUBLE: 8, _I64: 8, _I8: 1}.get(real, 4)
