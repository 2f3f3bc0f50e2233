"""How compiled code evaluates a kernel: through the address of its function, so that it is compiled once for all."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic, overload

import cacore.kernels.exp  # noqa: F401 - what `exp` is in compiled code
from cacore.kernels.registry import distance


@functools.cache
def compiled(row: Callable[..., None], dtype: np.dtype[Any]) -> tuple[int, Any]:
    """Address of the compiled :attr:`KernelKind.row` for this dtype, and what keeps it there."""
    real = numba.from_dtype(dtype)
    array = types.Array(real, 1, "C")
    signature = types.void(array, real, array, real, real, types.int64)
    code = numba.cfunc(signature, cache=True, error_model="numpy", fastmath={"contract"})(row)
    return int(code.address), code


@overload(distance, inline="always")
def _distance(product, a, b):  # type: ignore[no-untyped-def]
    zero, two = (np.float32(0), np.float32(2)) if product == types.float32 else (0.0, 2.0)
    return lambda product, a, b: max(zero, a + b - two * product)


@intrinsic
def _call(typingctx: Any, address: Any, row: Any, a: Any, b: Any, gamma: Any, coef0: Any, degree: Any) -> Any:
    """Call the function at `address`, an int64, see :attr:`KernelKind.row`."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        arguments = list(args[1:])
        for k in (0, 2):  # borrowed: threads must not meet at the counters of these arrays
            array = context.make_array(signature.args[1 + k])(context, builder, arguments[k])
            array.meminfo = context.get_constant_null(types.voidptr)
            arguments[k] = array._getvalue()
        returned = context.get_value_type(signature.return_type)
        function = ir.FunctionType(returned, [argument.type for argument in arguments])
        builder.call(builder.inttoptr(args[0], function.as_pointer()), arguments)
        return context.get_dummy_value()

    real, array = row.dtype, types.Array(row.dtype, 1, "C")
    return types.void(types.int64, array, real, array, real, real, types.int64), build


@numba.njit(cache=True, nogil=True, error_model="numpy")
def finish(row: Any, a: Any, b: Any, kernel: Any) -> None:  # pragma: no cover - compiled
    """Kernel values in place of inner products: of one row, of squared norm `a`, with those of squared norms `b`.

    Compiled code calls it where the products are still in cache; it is compiled once for all kernels.

    Parameters
    ----------
    row : contiguous array of float32 or float64, shape (n,)
    a : number of that type
    b : contiguous array of that type, shape (>= n,)
    kernel : tuple
        From :meth:`cacore.kernels.Kernel.parameters` for that type.
    """
    function, gamma, coef0, degree = kernel
    if function != 0:
        _call(function, row, a, b, gamma, coef0, degree)
