"""Memory and code by address: atomic operations, arrays behind one pointer, and calls of functions compiled apart.

Asy-GCD's threads communicate without locks, by atomic adds, release stores and acquire loads. numba has none of these
on the CPU. With a plain ``x[i] += v`` two threads lose updates, and a compiler or processor may make a counter visible
before the data that it counts. The functions here emit LLVM's atomic instructions.

A :class:`Bundle` passes many arrays to compiled code as one pointer. numba passes a named tuple as seven numbers per
array, and compiles, inlines and counts references for all of them in every function that takes the tuple.

A call by address runs a function that was compiled apart from its caller. Code that depends on the precision, or on how
rows are stored, stays out of its callers: they are compiled once, and the callee is not optimised again as a part of
each of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
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

from cacore.compiled.vectors import PANEL_BYTES, Intrinsic

if TYPE_CHECKING:
    from numba.core.base import BaseContext
    from numba.core.pythonapi import NativeValue
    from numba.core.types import Array, Float, Type
    from numba.core.typing.context import Context
    from numba.core.typing.templates import Signature


_I32, _WORD = ir.IntType(32), ir.IntType(64)

# -- atomic operations on elements of arrays ----------------------------------------------------


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


# -- places in memory and bits of numbers -------------------------------------------------------


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


def _bitcast(source: Type, target: Type, llvm: ir.Type) -> Callable[..., Any]:
    @intrinsic
    def cast(typingctx: Context, x: Type) -> Intrinsic:
        def build(
            context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: Sequence[ir.Value]
        ) -> ir.Value:
            return builder.bitcast(args[0], llvm)

        return target(source), build

    return cast


bits64 = _bitcast(types.float64, types.int64, ir.IntType(64))
float64_of = _bitcast(types.int64, types.float64, ir.DoubleType())
bits32 = _bitcast(types.float32, types.int32, ir.IntType(32))
float32_of = _bitcast(types.int32, types.float32, ir.FloatType())


# -- arrays behind one pointer ------------------------------------------------------------------


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


# -- calls by address ---------------------------------------------------------------------------


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


@intrinsic
def call_kernel(
    typingctx: Context, address: Type, row: Array[Type], a: Type, b: Type, gamma: Type, coef0: Type, degree: Type
) -> Intrinsic:
    """Call the compiled :attr:`KernelKind.row`, or `factor`, at `address`, an int64."""

    def build(context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: Sequence[ir.Value]) -> ir.Value:
        arguments = list(args[1:])
        for k in (0, 2):  # no reference counting: threads would contend for the counters of these arrays
            array = context.make_array(signature.args[1 + k])(context, builder, arguments[k])
            array.meminfo = context.get_constant_null(types.voidptr)
            arguments[k] = array._getvalue()
        returned = context.get_value_type(signature.return_type)
        function = ir.FunctionType(returned, [argument.type for argument in arguments])
        builder.call(builder.inttoptr(args[0], function.as_pointer()), arguments)
        return context.get_dummy_value()

    real, array = row.dtype, types.Array(row.dtype, 1, "C")
    return types.void(types.int64, array, real, array, real, real, types.int64), build


@intrinsic
def multiplied(
    typingctx: Context, address: Type, gamma: Type, coef0: Type, degree: Type, values: Array[Float], columns: Type,
    first: Type, last: Type, data: Type, at: Type, out: Type, to: Type,
) -> Intrinsic:  # fmt: skip
    """``out[to : to + width]`` = product of the factors of values[q] and panel[columns[q]] over first <= q < last.

    The panel begins at index `at` of `data`; the compiled :attr:`KernelKind.factor` is at `address`, an int64. Arrays
    are passed whole, see :func:`cacore.compiled.vectors._sums`.
    """

    def build(context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: Sequence[ir.Value]) -> ir.Value:
        kinds, array = signature.args, types.Array(values.dtype, 1, "C")
        real, size = context.get_value_type(values.dtype), values.dtype.bitwidth // 8
        lanes = PANEL_BYTES // size
        v, c, p, o = (context.make_array(kinds[k])(context, builder, args[k]).data for k in (4, 5, 8, 10))
        p, o = builder.gep(p, [args[9]]), builder.gep(o, [args[11]])
        i64, width = ir.IntType(64), context.get_constant(types.intp, lanes)
        function = ir.FunctionType(
            context.get_value_type(types.void),
            [
                context.get_value_type(kind)
                for kind in (array, values.dtype, array, values.dtype, values.dtype, types.int64)
            ],
        )
        call = builder.inttoptr(args[0], function.as_pointer())

        def array_at(pointer: ir.Value) -> ir.Value:
            view = context.make_array(array)(context, builder)
            step = context.get_constant(types.intp, size)
            populate_array(view, data=pointer, shape=[width], strides=[step], itemsize=step, meminfo=None)
            return view._getvalue()

        with cgutils.for_range(builder, width) as loop:
            builder.store(ir.Constant(real, 1.0), builder.gep(o, [loop.index]))
        row = array_at(o)
        with cgutils.for_range_slice(builder, args[6], args[7], ir.Constant(i64, 1)) as (q, _):
            start = builder.mul(builder.sext(builder.load(builder.gep(c, [q])), i64), ir.Constant(i64, lanes))
            value, panel = builder.load(builder.gep(v, [q])), array_at(builder.gep(p, [start]))
            builder.call(call, [row, value, panel, *args[1:4]])
        return context.get_dummy_value()

    i64, real = types.int64, values.dtype
    return types.void(i64, real, real, i64, values, columns, i64, i64, data, i64, out, i64), build
