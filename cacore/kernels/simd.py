"""Loops of vector instructions for compiled code: searches and conditions that the compiler does not vectorise.

Plain loops took three to five times as long. These build the vector code themselves, for whatever vectors the
machine has.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

LANES, CHAINS = 8, 4  # elements of a vector, and vectors in flight, whose comparisons do not wait for each other
STEP = LANES * CHAINS
DOUBLE, I64 = ir.DoubleType(), ir.IntType(64)

_I8, _I32 = ir.IntType(8), ir.IntType(32)


def constant(kind: Any, value: float) -> Any:
    """A vector of copies."""
    return ir.Constant(ir.VectorType(kind, LANES), [value] * LANES)


class Loop:
    """A loop over STEP elements of arrays at a time, with values carried from one iteration to the next.

    Built inside an intrinsic, from what its `build` function is given. Arrays are contiguous, of float32 or float64
    (flags: uint8); the loop's size is above 0, a multiple of STEP. An iteration takes CHAINS vectors of LANES elements
    of each; `chain` says which of them. The first element of an iteration has the number :attr:`k`.
    """

    def __init__(self, context: Any, builder: Any, signature: Any, args: Any) -> None:
        self.context, self.b, self.kinds, self.args = context, builder, signature.args, args

    def pointer(self, k: int) -> Any:
        """Where array argument `k` begins."""
        return self.context.make_array(self.kinds[k])(self.context, self.b, self.args[k]).data

    def splat(self, scalar: Any) -> Any:
        """A vector of copies."""
        vector = ir.VectorType(scalar.type, LANES)
        one = self.b.insert_element(ir.Constant(vector, ir.Undefined), scalar, ir.Constant(_I32, 0))
        return self.b.shuffle_vector(one, ir.Constant(vector, ir.Undefined), constant(_I32, 0))

    def _at(self, pointer: Any, chain: int, vector: Any) -> Any:
        place = self.b.gep(pointer, [self.b.add(self.k, ir.Constant(I64, chain * LANES))])
        return self.b.bitcast(place, vector.as_pointer())

    def load(self, pointer: Any, chain: int) -> Any:
        """A vector of this iteration's elements."""
        real = pointer.type.pointee
        return self.b.load(self._at(pointer, chain, ir.VectorType(real, LANES)), align=_bytes(real))

    def store(self, values: Any, pointer: Any, chain: int) -> None:
        """Write a vector to this iteration's elements."""
        self.b.store(values, self._at(pointer, chain, values.type), align=_bytes(pointer.type.pointee))

    def double(self, values: Any) -> Any:
        """A vector in double precision."""
        wide = ir.VectorType(DOUBLE, LANES)
        return values if values.type.element == DOUBLE else self.b.fpext(values, wide)

    def narrow(self, values: Any, real: Any) -> Any:
        """A vector of doubles in the precision `real`, an LLVM type."""
        return values if real == DOUBLE else self.b.fptrunc(values, ir.VectorType(real, LANES))

    def may(self, pointer: Any, chain: int, flag: Any) -> Any:
        """A mask of the elements that have this flag, of an array of flags."""
        both = self.b.and_(self.load(pointer, chain), constant(_I8, int(flag)))
        return self.b.icmp_unsigned("!=", both, constant(_I8, 0))

    def larger(self, a: Any, b: Any) -> Any:
        """Elementwise."""
        return self.b.select(self.b.fcmp_ordered(">", a, b), a, b)

    def run(self, size: Any, starts: list[Any], turn: Any) -> list[Any]:
        """Build the loop over `size` elements; the carried values after it.

        They begin as `starts`; ``turn(values)`` builds an iteration and returns those of the next one.
        """
        b = self.b
        before, loop, done = b.block, b.append_basic_block("turn"), b.append_basic_block("done")
        b.branch(loop)
        b.position_at_end(loop)
        self.k = b.phi(I64)
        carried = [b.phi(start.type) for start in starts]
        after = turn(carried)
        following = b.add(self.k, ir.Constant(I64, STEP))
        for phi, start, value in zip(
            [self.k, *carried], [ir.Constant(I64, 0), *starts], [following, *after], strict=True
        ):
            phi.add_incoming(start, before)
            phi.add_incoming(value, loop)
        b.cbranch(b.icmp_signed("<", following, size), loop, done)
        b.position_at_end(done)
        return after

    def smaller(self, a: Any, b: Any) -> Any:
        """Elementwise."""
        return self.b.select(self.b.fcmp_ordered("<", a, b), a, b)

    def best(self, x: Any, most: Any, where: Any) -> tuple[Any, Any]:
        """The larger of `x` and `most`, and the number :attr:`k` of the iteration in which it was met."""
        better = self.b.fcmp_ordered(">", x, most)
        return self.b.select(better, x, most), self.b.select(better, self.splat(self.k), where)

    def out(self, values: list[Any], k: int) -> None:
        """Write the chains' results side by side into array argument `k`."""
        pointer = self.pointer(k)
        for chain, value in enumerate(values):
            place = self.b.gep(pointer, [ir.Constant(I64, chain * LANES)])
            self.b.store(value, self.b.bitcast(place, value.type.as_pointer()), align=_bytes(value.type.element))


def _bytes(real: Any) -> int:
    return {DOUBLE: 8, I64: 8, _I8: 1}.get(real, 4)


def _prefetch(to_write: bool) -> Any:
    @intrinsic
    def prefetch(typingctx: Any, array: Any, k: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            data = context.make_array(signature.args[0])(context, builder, args[0]).data
            place = builder.bitcast(builder.gep(data, [args[1]]), ir.IntType(8).as_pointer())
            kind = ir.FunctionType(ir.VoidType(), [place.type, _I32, _I32, _I32])
            ask = builder.module.declare_intrinsic("llvm.prefetch", [place.type], kind)
            how = int(to_write), 3, 1  # 3: to be kept near, 1: data
            builder.call(ask, [place, *(ir.Constant(_I32, number) for number in how)])
            return context.get_dummy_value()

        return types.void(array, types.int64), build

    return prefetch


# Bring the cache line of ``array[k]``, which may be none of its elements, nearer: ``prefetch(array, k)``.
prefetch, prefetch_to_write = _prefetch(False), _prefetch(True)
