"""The greedy choice: the row with the largest projected gradient (step 1 of Algorithm 14)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.core.types.containers import Tuple
from numba.extending import intrinsic

from cacore.kernels.simd import DOUBLE, STEP, Build, Intrinsic, Loop

if TYPE_CHECKING:
    from numba.core.base import BaseContext
    from numba.core.types import Type
    from numba.core.typing.context import Context
    from numba.core.typing.templates import Signature

    from cacore.arrays import Doubles, Reals

_FUSED = ("contract",)


def _largest(moves: bool) -> Build:
    """Return the code generator of a pass over beta, r, low, high (and column, step if `moves`), and size."""

    def build(context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: Sequence[ir.Value]) -> ir.Value:
        loop = Loop(context, builder, signature, args)
        variables, gradient, lowest, highest = (loop.pointer(k) for k in range(4))
        column, by = (loop.pointer(4), loop.splat(args[5])) if moves else (None, None)

        def turn(carried: list[ir.Value]) -> list[ir.Value]:
            after: list[ir.Value] = []
            for chain in range(loop.chains):
                g = loop.load(gradient, chain)
                if moves:
                    change = builder.fmul(by, loop.cast(loop.load(column, chain), DOUBLE), flags=_FUSED)
                    g = builder.fadd(g, change, flags=_FUSED)
                    loop.store(g, gradient, chain)
                b = loop.load(variables, chain)
                x = loop.larger(builder.fsub(b, g), loop.load(lowest, chain))
                x = loop.smaller(x, loop.load(highest, chain))
                violated = loop.larger(builder.fsub(b, x), builder.fsub(x, b))
                after += loop.best(violated, *carried[2 * chain : 2 * chain + 2])
            return after

        results = loop.run(args[-1], [loop.constant(DOUBLE, -1.0), loop.constant(loop.place, 0)] * loop.chains, turn)
        return context.make_tuple(builder, signature.return_type, loop.winner(results[::2], results[1::2]))

    return build


FOUND = Tuple([types.int64, types.float64])  # row and violation that a search returns


@intrinsic
def _search(typingctx: Context, beta: Type, r: Type, low: Type, high: Type, size: Type) -> Intrinsic:
    """Find the first row with the largest |projected gradient|, and that value; `size` is a multiple of STEP."""
    return FOUND(beta, r, low, high, types.int64), _largest(False)


@intrinsic
def _advance(
    typingctx: Context, beta: Type, r: Type, low: Type, high: Type, column: Type, step: Type, size: Type
) -> Intrinsic:
    """Execute ``r += step * column``, and then search as :func:`_search` does."""
    return FOUND(beta, r, low, high, column, types.float64, types.int64), _largest(True)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def violation(beta: float, r: float, low: float, high: float) -> float:  # pragma: no cover - compiled
    """Violation |alpha - P(alpha - g)| of one row (eq. 4.11), expressed by beta = alpha y and r = y g."""
    return abs(beta - min(max(beta - r, low), high))


@numba.njit(cache=True, nogil=True, error_model="numpy")
def greediest(
    beta: Doubles, r: Doubles, low: Doubles, high: Doubles
) -> tuple[int, float]:  # pragma: no cover - compiled
    """Find the row with the largest |projected gradient|, and that value (-1 and 0 without rows); 32 bytes per row."""
    whole = beta.size // STEP * STEP
    row, best = _search(beta, r, low, high, whole) if whole else (-1, 0.0)
    return _better(beta, r, low, high, whole, row, best)


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def advance(
    beta: Doubles, r: Doubles, low: Doubles, high: Doubles, column: Reals, step: float
) -> tuple[int, float]:  # pragma: no cover - compiled
    """Execute ``r += step * column`` and search as :func:`greediest` does, in one pass."""
    whole = beta.size // STEP * STEP
    row, best = _advance(beta, r, low, high, column, step, whole) if whole else (-1, 0.0)
    for j in range(whole, beta.size):
        r[j] += step * np.float64(column[j])
    return _better(beta, r, low, high, whole, row, best)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _better(
    beta: Doubles, r: Doubles, low: Doubles, high: Doubles, first: int, row: int, best: float
) -> tuple[int, float]:  # pragma: no cover - compiled
    """Return the row with the larger violation: `row`, or one from `first` on."""
    for j in range(first, beta.size):
        v = violation(beta[j], r[j], low[j], high[j])
        if v > best or row < 0:
            row, best = j, v
    return row, best


@numba.njit(cache=True, nogil=True, error_model="numpy")
def optimum(beta: float, r: float, low: float, high: float, diagonal: float) -> float:  # pragma: no cover - compiled
    """Exact minimiser of the objective in one variable (eq. 4.10)."""
    return min(max(beta - r / max(diagonal, 1e-12), low), high)


@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def share(beta: Doubles, r: Doubles, high: Doubles) -> float:  # pragma: no cover - compiled
    """Contribution of these rows to the objective, 1/2 beta'(r - y); the bounds give the sign y."""
    total = 0.0
    for j in range(beta.size):
        total += beta[j] * (r[j] - (1.0 if high[j] > 0.0 else -1.0))
    return 0.5 * total
