"""What threads say to each other without locks: atomic adds, and values published and read in order.

numba has none of these on the CPU: a plain ``x[i] += v`` of two threads loses updates, and nothing keeps a
compiler or a processor from showing a counter before what it counts. These build LLVM's own instructions.
"""

from __future__ import annotations

from typing import Any

from numba.core import types
from numba.extending import intrinsic

# The rest of the time slice goes to another thread: with more threads than cores somebody is waiting for it.
give_way = types.ExternalFunction("sched_yield", types.intc())


def _place(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    return builder.gep(context.make_array(kind)(context, builder, array).data, [index])


@intrinsic
def atomic_add(typingctx: Any, array: Any, index: Any, value: Any) -> Any:
    """``array[index] += value`` of a contiguous float64 array, all of it at once: no update is ever lost."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.atomic_rmw("fadd", _place(context, builder, signature.args[0], *args[:2]), args[2], "monotonic")
        return context.get_dummy_value()

    return types.void(array, types.int64, types.float64), build


@intrinsic
def publish(typingctx: Any, array: Any, index: Any, value: Any) -> Any:
    """``array[index] = value`` of a contiguous int64 array; who :func:`seen` it has seen all written before."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store_atomic(args[2], _place(context, builder, signature.args[0], *args[:2]), "release", 8)
        return context.get_dummy_value()

    return types.void(array, types.int64, types.int64), build


@intrinsic
def seen(typingctx: Any, array: Any, index: Any) -> Any:
    """``array[index]`` of a contiguous int64 array, and with it all that was written before it was published."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(_place(context, builder, signature.args[0], *args), "acquire", 8)

    return types.int64(array, types.int64), build


@intrinsic
def borrowed(typingctx: Any, fields: Any) -> Any:
    """A named tuple whose arrays are not counted: their owner, who made the call, keeps them alive.

    Otherwise each call would count every array up and down again, atomically, and the threads would spend their
    time on passing these counters to each other.
    """

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value = args[0]
        for k, kind in enumerate(signature.args[0].types):
            if isinstance(kind, types.Array):
                array = context.make_array(kind)(context, builder, builder.extract_value(value, k))
                array.meminfo, array.parent = (context.get_constant_null(t) for t in (types.voidptr, types.voidptr))
                value = builder.insert_value(value, array._getvalue(), k)
        return value

    return fields(fields), build
