"""Vector loops for compiled code: searches and conditional updates that the compiler does not vectorise.

Plain loops took three to five times as long. The loops here are built as LLVM vector code, which LLVM fits to the
machine's vector length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from cacore.machine.clock import check_compiler

if TYPE_CHECKING:
    from numba.core.base import BaseContext
    from numba.core.types import Type
    from numba.core.typing.context import Context
    from numba.core.typing.templates import Signature

Build: TypeAlias = "Callable[[BaseContext, ir.IRBuilder, Signature, Sequence[ir.Value]], ir.Value]"
Intrinsic: TypeAlias = "tuple[Signature, Build]"  # result of a function under numba's `intrinsic`

STEP = 32  # elements per iteration
DOUBLE, SINGLE = ir.DoubleType(), ir.FloatType()

check_compiler()  # estimators load this module before any other that is compiled

_VECTOR = 64  # bytes
_I8, _I32, _I64 = (ir.IntType(bits) for bits in (8, 32, 64))


class Loop:
    """Builder of a loop over arrays, STEP elements per iteration, that carries values between iterations.

    It is made inside the `build` function of a numba intrinsic. Arrays are contiguous, of float32 or float64 (flags:
    uint8). The number of elements is positive and a multiple of STEP. :attr:`k` is the index of an iteration's first
    element.

    Parameters
    ----------
    context, builder, signature, args
        The arguments of numba's `build` function.
    real : DOUBLE or SINGLE
        Precision of the loop.

    Attributes
    ----------
    lanes : int
        Elements per vector.
    chains : int
        Independent vectors per iteration, which hide latency; the argument `chain` of the methods selects one.
    place : LLVM type
        Integer type for element indices, as long as `real`, so that indices fill a vector as well.
    """

    def __init__(
        self, context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: Sequence[ir.Value],
        real: ir.Type = DOUBLE,
    ) -> None:  # fmt: skip
        self.context, self.b, self.kinds, self.args = context, builder, signature.args, args
        self.real, self.lanes = real, _VECTOR // _bytes(real)
        self.chains, self.place = STEP // self.lanes, ir.IntType(8 * _bytes(real))

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
        return self.b.fpext(values, kind) if real == DOUBLE else self.b.fptrunc(values, kind)

    def may(self, pointer: ir.Value, chain: int, flag: np.uint8) -> ir.Value:
        """Mask of this iteration's elements whose entry in an array of flags has `flag` set."""
        both = self.b.and_(self.load(pointer, chain), self.constant(_I8, int(flag)))
        return self.b.icmp_unsigned("!=", both, self.constant(_I8, 0))

    def larger(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """Elementwise maximum."""
        return self.b.select(self.b.fcmp_ordered(">", a, b), a, b)

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

    def smaller(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """Elementwise minimum."""
        return self.b.select(self.b.fcmp_ordered("<", a, b), a, b)

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


def _bytes(real: ir.Type) -> int:
    return {DOUBLE: 8, _I64: 8, _I8: 1}.get(real, 4)


def _prefetch(to_write: bool) -> Callable[..., None]:
    @intrinsic
    def prefetch(typingctx: Context, array: Type, k: Type) -> Intrinsic:
        def build(
            context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: Sequence[ir.Value]
        ) -> ir.Value:
            data = context.make_array(signature.args[0])(context, builder, args[0]).data
            place = builder.bitcast(builder.gep(data, [args[1]]), ir.IntType(8).as_pointer())
            kind = ir.FunctionType(ir.VoidType(), [place.type, _I32, _I32, _I32])
            ask = builder.module.declare_intrinsic("llvm.prefetch", [place.type], kind)
            how = int(to_write), 3, 1  # locality 3: keep in all cache levels; 1: data cache
            builder.call(ask, [place, *(ir.Constant(_I32, number) for number in how)])
            return context.get_dummy_value()

        return types.void(array, types.int64), build

    return prefetch


# ``prefetch(array, k)`` loads the cache line of ``array[k]``; `k` may lie outside the array.
prefetch, prefetch_to_write = _prefetch(False), _prefetch(True)
