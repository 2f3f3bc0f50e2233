"""Blocked in-place Cholesky, and related routines on blocks, through scipy's LAPACK.

Two reasons to call the routines by address, with a leading dimension, on blocks of the caller's matrix: scipy's own
wrappers copy blocks of a larger matrix, and the threaded dpotrf and dsyrk of the OpenBLAS in scipy's wheel crash from
about 16,384 rows on, on AVX-512 machines. On blocks they work.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

from cacore.machine.deadline import poll

# Not measured alone. 1,024 columns make updates limited by arithmetic (2,048 flops per number), and small enough
# blocks for the OpenBLAS that crashes on large ones (see above): UPDATE is half of the size from which on it does.
BLOCK = 1024
UPDATE = 8192  # rows per call of dsyrk at most
INVERSE = 512  # columns of an inverse per block

_BLAS = {"trsm": 11, "syrk": 10, "gemm": 13, "symm": 12, "syr2k": 12}  # routines and their argument counts
_LAPACK = {"potrf": 5, "potri": 5, "potrs": 8, "trtri": 6, "geqrt": 9}


@cache
def _routine(name: str, prefix: str) -> Callable[..., None]:
    from scipy.linalg import cython_blas, cython_lapack

    module = cython_lapack if name in _LAPACK else cython_blas
    capsule = module.__pyx_capi__[prefix + name]
    get_name, get_pointer = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    address = get_pointer(capsule, get_name(capsule))
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * {**_BLAS, **_LAPACK}[name])(address)


def call(name: str, dtype: np.dtype[np.floating], *args: ctypes.c_void_p | bytes | float) -> int:
    """Call a LAPACK or BLAS routine with addresses (:func:`at`), flags and numbers, and return its ``info``."""
    info = ctypes.c_int(0)
    real = ctypes.c_double if dtype == np.float64 else ctypes.c_float
    boxed: list[object] = []
    for arg in args:
        if isinstance(arg, ctypes.c_void_p):
            boxed.append(arg)
        elif isinstance(arg, bytes):
            boxed.append(ctypes.byref(ctypes.c_char(arg)))
        elif isinstance(arg, float):
            boxed.append(ctypes.byref(real(arg)))
        else:
            boxed.append(ctypes.byref(ctypes.c_int(arg)))
    if name in _LAPACK:
        boxed.append(ctypes.byref(info))
    _routine(name, "d" if dtype == np.float64 else "s")(*boxed)
    return info.value


def cholesky(A: NDArray[np.floating]) -> int:
    """Factor ``A = L L^T`` in place in the lower triangle.

    Parameters
    ----------
    A : ndarray of float32 or float64, shape (m, m), C-contiguous
        Symmetric; only its lower triangle is read, and it is overwritten by L. The strict upper
        triangle is neither read nor written.

    Returns
    -------
    int
        0, or the order of the leading minor that is not positive definite.

    Notes
    -----
    m^3/3 flops, no extra memory. Right-looking, by blocks of `BLOCK` rows.
    """
    m, dtype = _check(A)
    # To LAPACK's column-major order, the lower triangle is an upper one: A = U^T U with U = L^T.
    for k in range(0, m, BLOCK):
        poll()
        b = min(BLOCK, m - k)
        corner = at(A, k, k)
        info = call("potrf", dtype, b"U", b, corner, m)
        if info:
            return k + info
        remaining = m - k - b
        if remaining:
            call("trsm", dtype, b"L", b"U", b"T", b"N", b, remaining, 1.0, corner, m, at(A, k + b, k), m)
        for j in range(k + b, m, UPDATE):
            s = min(UPDATE, m - j)
            panel = at(A, j, k)
            call("syrk", dtype, b"U", b"T", s, b, -1.0, panel, m, 1.0, at(A, j, j), m)
            below = m - j - s
            if below:
                under = at(A, j + s, k)
                call("gemm", dtype, b"T", b"N", s, below, b, -1.0, panel, m, under, m, 1.0, at(A, j + s, j), m)
    return 0


def cholesky_solve(L: NDArray[np.floating], B: NDArray[np.floating]) -> None:
    """Solve ``L L^T x = b`` in place for every row b of `B`, shape (k, m); 2 m^2 flops per row."""
    m, dtype = _check(L, B)
    call("potrs", dtype, b"U", m, len(B), at(L), m, at(B), m)


def solve_lower(L: NDArray[np.floating], B: NDArray[np.floating]) -> None:
    """``B <- B L^-T`` in place: solve L x = b for every row b of `B`, shape (k, m); k m^2 flops."""
    m, dtype = _check(L, B)
    call("trsm", dtype, b"L", b"U", b"T", b"N", m, len(B), 1.0, at(L), m, at(B), m)


def add_gram(A: NDArray[np.floating], G: NDArray[np.floating]) -> None:
    """``G += A^T A`` in the lower triangle of `G`, for `A` of shape (k, m): k m^2 flops, and no copy."""
    m, dtype = _check(G)
    if A.dtype != dtype or not A.flags.c_contiguous or A.shape[1:] != (m,):
        raise ValueError("rows must be C-contiguous, of the matrix' dtype and order")
    for j in range(0, m, UPDATE):
        s = min(UPDATE, m - j)
        call("syrk", dtype, b"U", b"N", s, len(A), 1.0, at(A, 0, j), m, 1.0, at(G, j, j), m)
        below = m - j - s
        if below:
            under = at(A, 0, j + s)
            call("gemm", dtype, b"N", b"T", s, below, len(A), 1.0, at(A, 0, j), m, under, m, 1.0, at(G, j + s, j), m)


def add_product(A: NDArray[np.floating], B: NDArray[np.floating], C: NDArray[np.floating]) -> None:
    """``C += A^T B`` for `A`, shape (k, t), and `B`, shape (k, m), all C-contiguous and of one dtype: 2 k t m flops."""
    (k, t), m = A.shape, B.shape[1]
    if {A.dtype, B.dtype} != {C.dtype} or len(B) != k or C.shape != (t, m):
        raise ValueError("A of shape (k, t), B of shape (k, m) and C of shape (t, m), of one dtype, are needed")
    if not (A.flags.c_contiguous and B.flags.c_contiguous and C.flags.c_contiguous):
        raise ValueError("all three must be C-contiguous")
    if k:
        call("gemm", C.dtype, b"N", b"T", m, t, k, 1.0, at(B), m, at(A), t, 1.0, at(C), m)


def inverse(L: NDArray[np.floating]) -> None:
    """``L <- (L L^T)^-1`` in the lower triangle of the factor `L` from :func:`cholesky`: 2/3 m^3 flops, no copy."""
    m, dtype = _check(L)
    call("potri", dtype, b"U", m, at(L), m)


def of_symmetric(A: NDArray[np.floating], B: NDArray[np.floating]) -> NDArray[np.floating]:
    """``A B`` for a symmetric `A`, shape (m, m), of which only the lower triangle is read, and `B`, shape (m, t)."""
    m, dtype = _check(A)
    rows = np.ascontiguousarray(B.T, dtype)
    out = np.empty_like(rows)
    call("symm", dtype, b"L", b"U", m, len(rows), 1.0, at(A), m, at(rows), m, 0.0, at(out), m)
    return out.T


def inverse_diagonal(L: NDArray[np.floating]) -> NDArray[np.float64]:
    """Diagonal of ``(L L^T)^-1``; the factor `L` from :func:`cholesky` is overwritten by its inverse: m^3/3 flops."""
    m, dtype = _check(L)
    call("trtri", dtype, b"U", b"N", m, at(L), m)
    total = np.zeros(m, np.float64)
    for lo in range(0, m, BLOCK):
        rows = np.tril(L[lo : lo + BLOCK], lo)
        total += np.einsum("ij,ij->j", rows, rows, dtype=np.float64)
    return total


def diagonal_of_inverse(L: NDArray[np.floating]) -> NDArray[np.float64]:
    """Diagonal of ``(L L^T)^-1``; the factor `L` from :func:`cholesky` is not changed.

    m^3/3 flops, since column j of the inverse of L is 0 above row j. Memory: `INVERSE` columns.
    """
    m, dtype = _check(L)
    out = np.empty(m)
    for lo in range(0, m, INVERSE):
        k, remaining = min(INVERSE, m - lo), m - lo
        columns = np.eye(k, remaining, dtype=dtype)
        call("trsm", dtype, b"L", b"U", b"T", b"N", remaining, k, 1.0, at(L, lo, lo), m, at(columns), remaining)
        out[lo : lo + k] = np.einsum("ij,ij->i", columns, columns, dtype=np.float64)
    return out


def _check(A: NDArray[np.floating], B: NDArray[np.floating] | None = None) -> tuple[int, np.dtype[np.floating]]:
    """Order and dtype of a matrix; a ValueError if LAPACK cannot take it, or the right-hand sides `B`, in place."""
    if A.dtype not in (np.float32, np.float64) or not A.flags.c_contiguous or A.shape[0] != A.shape[1]:
        raise ValueError("a square C-contiguous float32 or float64 matrix is needed")
    if B is not None and (B.dtype != A.dtype or not B.flags.c_contiguous or B.shape[1:] != A.shape[1:]):
        raise ValueError("right-hand sides must be C-contiguous rows of the matrix's dtype and size")
    return len(A), A.dtype


def at(A: NDArray[np.floating], i: int = 0, j: int = 0) -> ctypes.c_void_p:
    """Address of ``A[i, j]``."""
    return ctypes.c_void_p(A.ctypes.data + i * A.strides[0] + j * A.itemsize)
