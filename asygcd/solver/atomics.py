"""The solver's primitives that rest on LLVM: atomic operations, arrays behind one pointer, and calls by address.

Threads communicate without locks, by atomic adds, release stores and acquire loads. numba has none of these on the CPU.
With a plain ``x[i] += v`` two threads lose updates, and a compiler or processor may make a counter visible before the
data that it counts. The functions here emit LLVM's atomic instructions.

A :class:`Bundle` passes many arrays to compiled code as one pointer. numba passes a named tuple as seven numbers per
array, and compiles, inlines and counts references for all of them in every function that takes the tuple.

A call by address runs a function that was compiled apart from its caller. Code that depends on the precision, or on how
rows are stored, stays out of its callers: they are compiled once, and the callee is not optimised again as a part of
each of them.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.core.types.containers import StarArgTuple
from numba.core.types.misc import unliteral
from numba.core.typing.templates import AttributeTemplate
from numba.extending import infer_getattr, intrinsic, lower_getattr_generic, register_model, unbox
from numba.np.arrayobj import populate_array

from cacore.kernels.simd import Intrinsic

if TYPE_CHECKING:
    from numba.core.base import BaseContext
    from numba.core.pythonapi import NativeValue
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


_WORD = ir.IntType(64)


class BundleType(types.Type):
    """Type of a :class:`Bundle` for numba: the names and types of its fields, in order."""

    def __init__(self, name: str, fields: tuple[tuple[str, Type], ...]) -> None:
        self.fields, self.places, place = dict(fields), {}, 0
        for field, kind in fields:
            self.places[field] = place
            place += 1 + getattr(kind, "ndim", 0)
        kinds = (f"{kind.dtype}{kind.ndim}d" if isinstance(kind, types.Array) else str(kind) for _, kind in fields)
        super().__init__(f"{name}({' '.join(kinds)})")


class Bundle:
    """The fields of a named tuple, which compiled code reads through one pointer: ``bundle.beta[k]``.

    Parameters
    ----------
    fields : namedtuple
        C-contiguous arrays, which the bundle keeps alive; integers; and other bundles, each of which compiled code sees
        as its address, an int64.

    Notes
    -----
    Arrays from a bundle are not reference-counted. Otherwise the threads would spend their time exchanging the cache
    lines of the counters.
    """

    def __init__(self, fields: Any) -> None:
        words: list[int] = []
        kinds: list[tuple[str, Type]] = []
        for name, value in zip(fields._fields, fields, strict=True):
            if isinstance(value, np.ndarray):
                assert value.flags.carray, name
                words += [value.ctypes.data, *value.shape]
                kinds.append((name, types.Array(numba.from_dtype(value.dtype), value.ndim, "C")))
            else:
                words.append(value.address if isinstance(value, Bundle) else value)
                kinds.append((name, types.int64))
        self.fields, self._words = fields, np.array(words, np.int64)
        self.address: int = self._words.ctypes.data
        self.kind = self._numba_type_ = BundleType(type(fields).__name__, tuple(kinds))


@register_model(BundleType)
class _Model(models.PrimitiveModel):  # type: ignore[misc]
    """The address, as an integer: a caller that has only the address of a bundle passes that."""

    def __init__(self, manager: Any, kind: BundleType) -> None:
        super().__init__(manager, kind, _WORD)


@unbox(BundleType)
def _unbox(kind: BundleType, value: ir.Value, c: Any) -> NativeValue:
    address = c.pyapi.object_getattr_string(value, "address")
    native = c.unbox(types.int64, address)
    c.pyapi.decref(address)
    return native


@infer_getattr
class _Fields(AttributeTemplate):  # type: ignore[misc]
    key = BundleType

    def generic_resolve(self, kind: BundleType, name: str) -> Type | None:
        return kind.fields.get(name)


@lower_getattr_generic(BundleType)
def _field(context: BaseContext, builder: ir.IRBuilder, kind: BundleType, value: ir.Value, name: str) -> ir.Value:
    """Load a field; the compiler may keep it in a register, since addresses and shapes never change."""
    table, field = builder.inttoptr(value, _WORD.as_pointer()), kind.fields[name]

    def word(k: int) -> ir.Value:
        loaded = builder.load(builder.gep(table, [ir.Constant(_WORD, kind.places[name] + k)]))
        loaded.set_metadata("invariant.load", builder.module.add_metadata([]))
        return loaded

    if not isinstance(field, types.Array):
        return word(0)
    array = context.make_array(field)(context, builder)
    item = context.get_abi_sizeof(context.get_data_type(field.dtype))
    shape, step = [word(1 + k) for k in range(field.ndim)], ir.Constant(_WORD, item)
    strides: list[ir.Value] = []
    for size in reversed(shape):
        strides.insert(0, step)
        step = builder.mul(step, size)
    data = builder.inttoptr(word(0), array.data.type)
    populate_array(array, data=data, shape=shape, strides=strides, itemsize=item, meminfo=None)
    return array._getvalue()


@functools.cache
def address(function: Any, result: Type, kinds: tuple[Type, ...]) -> int:
    """Address of `function`, which is under ``njit`` and returns `result`, compiled for arguments of these types."""
    function.compile(kinds)
    compiled = function.overloads[kinds]
    assert compiled.signature.return_type == result, compiled.signature
    return int(compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name))


def caller(result: Type, *kinds: Type) -> Any:
    """Return what calls a function by its :func:`address`: ``call(address, ...)``; exceptions pass through.

    The arguments are converted to `kinds`; without these, they must have the types that the function was compiled for.
    """

    @intrinsic
    def call(typingctx: Context, function: Type, *arguments: Type) -> Intrinsic:
        argument_types = kinds or tuple(unliteral(argument) for argument in arguments)

        def build(
            context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: Sequence[ir.Value]
        ) -> ir.Value:
            convention, values = context.call_conv, cgutils.unpack_tuple(builder, args[1])
            pointer = builder.inttoptr(args[0], convention.get_function_type(result, argument_types).as_pointer())
            status, returned = convention.call_function(builder, pointer, result, argument_types, values)
            with cgutils.if_unlikely(builder, status.is_error):
                convention.return_status_propagate(builder, status)
            return returned

        return result(types.int64, StarArgTuple(argument_types)), build

    return call
