"""Communication of threads without locks: atomic adds, release stores and acquire loads.

numba has none of these on the CPU. With a plain ``x[i] += v`` two threads lose updates, and a compiler or processor may
make a counter visible before the data that it counts. The functions here emit LLVM's atomic instructions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from cacore.kernels.simd import Intrinsic

if TYPE_CHECKING:
    from numba.core.base import BaseContext
    from numba.core.types import Type
    from numba.core.typing.context import Context
    from numba.core.typing.templates import Signature

# Yields the rest of the time slice: with more threads than cores, another thread is waiting for it.
give_way = types.ExternalFunction("sched_yield", types.intc())


def _place(context: BaseContext, builder: ir.IRBuilder, kind: Type, array: ir.Value, index: ir.Value) -> ir.Value:
    return builder.gep(context.make_array(kind)(context, builder, array).data, [index])


@intrinsic
def atomic_add(typingctx: Context, array: Type, index: Type, value: Type) -> Intrinsic:
    """Execute ``array[index] += value`` atomically on a contiguous float64 array: no update is lost."""

    def build(context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: Sequence[ir.Value]) -> ir.Value:
        builder.atomic_rmw("fadd", _place(context, builder, signature.args[0], *args[:2]), args[2], "monotonic")
        return context.get_dummy_value()

    return types.void(array, types.int64, types.float64), build


@intrinsic
def publish(typingctx: Context, array: Type, index: Type, value: Type) -> Intrinsic:
    """Store ``array[index] = value`` in a contiguous int64 array.

    A thread that reads the value by :func:`seen` also sees all earlier writes of this thread.
    """

    def build(context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: Sequence[ir.Value]) -> ir.Value:
        builder.store_atomic(args[2], _place(context, builder, signature.args[0], *args[:2]), "release", 8)
        return context.get_dummy_value()

    return types.void(array, types.int64, types.int64), build


@intrinsic
def seen(typingctx: Context, array: Type, index: Type) -> Intrinsic:
    """Read ``array[index]`` of a contiguous int64 array; all writes before its :func:`publish` are visible then."""

    def build(context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: Sequence[ir.Value]) -> ir.Value:
        return builder.load_atomic(_place(context, builder, signature.args[0], *args), "acquire", 8)

    return types.int64(array, types.int64), build
