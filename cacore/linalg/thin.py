"""Products of a block with a few vectors on its left and a few on its right, in one pass while it is in cache.

BLAS first packs the block, which costs as much as multiplying with nine vectors (measured: 1 ns per number and side;
this code takes 0.1 to 0.3 ns for both sides). With many vectors, which no longer fit in cache, BLAS is faster.
"""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from cacore.arrays import Reals

_MANY = 24  # number of vectors from which on BLAS is faster; more than the nine that its packing costs


def multiply_both(
    T: NDArray[np.floating], V: NDArray[np.floating], U: NDArray[np.floating], from_V: NDArray[np.float64],
    from_U: NDArray[np.float64],
) -> None:  # fmt: skip
    """``right += V T^T`` and ``left += U T``: 4 t m c flops, in the calling thread.

    Parameters
    ----------
    T : ndarray of float32 or float64, shape (m, c)
        Rows contiguous.
    V, U : ndarray of that dtype, shape (t, c) and (t, m), rows contiguous
    from_V, from_U : ndarray of float64, shape (t, m) and (t, c)
        Updated in place. Sums within the block are taken in its dtype, so keep blocks small: about 1,000 terms each.
    """
    if len(V) >= _MANY:
        from_V += V @ T.T
        from_U += U @ T
        return
    part_V, part_U = np.zeros((len(V), len(T)), T.dtype), np.zeros((len(V), T.shape[1]), T.dtype)
    _multiply_rows(T, V, U, part_V, part_U)
    from_V += part_V
    from_U += part_U


def warm_up() -> None:
    """Compile :func:`multiply_both` for both precisions, or load it from numba's cache."""
    for dtype in (np.float32, np.float64):
        T = np.zeros((4, 3), dtype)
        multiply_both(T, T[:3], np.zeros((3, 4), dtype), np.zeros((3, 4)), np.zeros((3, 3)))


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "reassoc"})
def _multiply_rows(T: Reals, V: Reals, U: Reals, from_V: Reals, from_U: Reals) -> None:  # pragma: no cover - compiled
    """:func:`multiply_both` for 2-D arrays of one type, four rows and three vectors at a time."""
    m, t = T.shape[0], V.shape[0]
    for i in range(0, m - m % 4, 4):
        a, b, c, d = T[i], T[i + 1], T[i + 2], T[i + 3]
        for k in range(0, t - t % 3, 3):
            _three(a, b, c, d, V, U, from_V, from_U, i, k)
        for k in range(t - t % 3, t):
            _one_vector(a, b, c, d, V[k], U[k], from_V[k], from_U[k], i)
    for i in range(m - m % 4, m):
        row = T[i]
        for k in range(t):
            v, u, out, total = V[k], U[k, i], from_U[k], row.dtype.type(0)
            for j in range(row.size):
                total += row[j] * v[j]
                out[j] += row[j] * u
            from_V[k, i] += total


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "reassoc"})
def _one_vector(
    a: Reals, b: Reals, c: Reals, d: Reals, v: Reals, u: Reals, from_V: Reals, from_U: Reals, i: int
) -> None:  # pragma: no cover
    """Products of the four rows from `i` on with one vector on either side; 1-D arrays of one type."""
    zero = a.dtype.type(0)
    sa, sb, sc, sd = zero, zero, zero, zero
    p, q, r, s = u[i], u[i + 1], u[i + 2], u[i + 3]
    for j in range(a.size):
        w = v[j]
        sa += a[j] * w
        sb += b[j] * w
        sc += c[j] * w
        sd += d[j] * w
        from_U[j] += (a[j] * p + b[j] * q) + (c[j] * r + d[j] * s)
    from_V[i] += sa
    from_V[i + 1] += sb
    from_V[i + 2] += sc
    from_V[i + 3] += sd


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "reassoc"})
def _three(
    a: Reals, b: Reals, c: Reals, d: Reals, V: Reals, U: Reals, from_V: Reals, from_U: Reals, i: int, k: int
) -> None:  # pragma: no cover - compiled
    """:func:`_one_vector` for the three vectors k, k + 1 and k + 2."""
    zero = a.dtype.type(0)
    sa0, sb0, sc0, sd0 = zero, zero, zero, zero
    sa1, sb1, sc1, sd1 = zero, zero, zero, zero
    sa2, sb2, sc2, sd2 = zero, zero, zero, zero
    v0, v1, v2, l0, l1, l2 = V[k], V[k + 1], V[k + 2], from_U[k], from_U[k + 1], from_U[k + 2]
    u0, u1, u2 = U[k], U[k + 1], U[k + 2]
    p0, q0, r0, s0 = u0[i], u0[i + 1], u0[i + 2], u0[i + 3]
    p1, q1, r1, s1 = u1[i], u1[i + 1], u1[i + 2], u1[i + 3]
    p2, q2, r2, s2 = u2[i], u2[i + 1], u2[i + 2], u2[i + 3]
    for j in range(a.size):
        x, y, z, w = a[j], b[j], c[j], d[j]
        e, f, g = v0[j], v1[j], v2[j]
        sa0 += x * e
        sb0 += y * e
        sc0 += z * e
        sd0 += w * e
        sa1 += x * f
        sb1 += y * f
        sc1 += z * f
        sd1 += w * f
        sa2 += x * g
        sb2 += y * g
        sc2 += z * g
        sd2 += w * g
        l0[j] += (x * p0 + y * q0) + (z * r0 + w * s0)
        l1[j] += (x * p1 + y * q1) + (z * r1 + w * s1)
        l2[j] += (x * p2 + y * q2) + (z * r2 + w * s2)
    from_V[k, i] += sa0
    from_V[k, i + 1] += sb0
    from_V[k, i + 2] += sc0
    from_V[k, i + 3] += sd0
    from_V[k + 1, i] += sa1
    from_V[k + 1, i + 1] += sb1
    from_V[k + 1, i + 2] += sc1
    from_V[k + 1, i + 3] += sd1
    from_V[k + 2, i] += sa2
    from_V[k + 2, i + 1] += sb2
    from_V[k + 2, i + 2] += sc2
    from_V[k + 2, i + 3] += sd2
