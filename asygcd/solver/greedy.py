"""The greedy choice: the row with the largest projected gradient (step 1 of Algorithm 14)."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba.core import types
from numba.core.types.containers import Tuple
from numba.extending import intrinsic

from cacore.kernels.simd import DOUBLE, STEP, Loop

_FUSED = ("contract",)


def _largest(moves: bool) -> Any:
    """How to build a pass over arrays beta, r, low, high (and column, step), and size."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        loop = Loop(context, builder, signature, args)
        variables, gradient, lowest, highest = (loop.pointer(k) for k in range(4))
        column, by = (loop.pointer(4), loop.splat(args[5])) if moves else (None, None)

        def turn(carried: list[Any]) -> list[Any]:
            after: list[Any] = []
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


_FOUND = Tuple([types.int64, types.float64])


@intrinsic
def _search(typingctx: Any, beta: Any, r: Any, low: Any, high: Any, size: Any) -> Any:
    """The row with the largest |projected gradient|, the first of equals, and that; `size` is a multiple of STEP."""
    return _FOUND(beta, r, low, high, types.int64), _largest(False)


@intrinsic
def _advance(typingctx: Any, beta: Any, r: Any, low: Any, high: Any, column: Any, step: Any, size: Any) -> Any:
    """``r += step * column``, then as :func:`_search`."""
    return _FOUND(beta, r, low, high, column, types.float64, types.int64), _largest(True)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def violation(beta: Any, r: Any, low: Any, high: Any) -> Any:  # pragma: no cover - compiled
    """|alpha - P(alpha - g)| of one row (eq. 4.11), the same in beta = alpha y and r = y g."""
    return abs(beta - min(max(beta - r, low), high))


@numba.njit(cache=True, nogil=True, error_model="numpy")
def greediest(beta: Any, r: Any, low: Any, high: Any) -> tuple[Any, Any]:  # pragma: no cover - compiled
    """The row with the largest |projected gradient|, and that; -1 and 0 of no rows. 32 bytes a row are read."""
    whole = beta.size // STEP * STEP
    row, best = _search(beta, r, low, high, whole) if whole else (-1, 0.0)
    return _better(beta, r, low, high, whole, row, best)


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def advance(
    beta: Any, r: Any, low: Any, high: Any, column: Any, step: Any
) -> tuple[Any, Any]:  # pragma: no cover - compiled
    """``r += step * column``, and then as :func:`greediest`, in one pass."""
    whole = beta.size // STEP * STEP
    row, best = _advance(beta, r, low, high, column, step, whole) if whole else (-1, 0.0)
    for j in range(whole, beta.size):
        r[j] += step * np.float64(column[j])
    return _better(beta, r, low, high, whole, row, best)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _better(
    beta: Any, r: Any, low: Any, high: Any, first: Any, row: Any, best: Any
) -> tuple[Any, Any]:  # pragma: no cover - compiled
    """The better one of `row` and those from `first` on."""
    for j in range(first, beta.size):
        v = violation(beta[j], r[j], low[j], high[j])
        if v > best or row < 0:
            row, best = j, v
    return row, best


@numba.njit(cache=True, nogil=True, error_model="numpy")
def optimum(beta: Any, r: Any, low: Any, high: Any, diagonal: Any) -> Any:  # pragma: no cover - compiled
    """Where one variable is best (eq. 4.10): exactly, for any curvature."""
    return min(max(beta - r / max(diagonal, 1e-12), low), high)


@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def share(beta: Any, r: Any, high: Any) -> Any:  # pragma: no cover - compiled
    """What these rows contribute to the objective, 1/2 beta'(r - y); y is in the bounds."""
    total = 0.0
    for j in range(beta.size):
        total += beta[j] * (r[j] - (1.0 if high[j] > 0.0 else -1.0))
    return 0.5 * total
