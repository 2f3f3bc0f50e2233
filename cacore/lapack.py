"""Cholesky in place, by blocks, through the LAPACK that scipy carries.

scipy's own wrappers copy a block of a larger matrix, and the threaded dpotrf and dsyrk of the OpenBLAS
in scipy's wheel crash from about 16,384 rows on AVX-512 machines; on blocks they are sound. So the
routines are called by address, with a leading dimension, on blocks of the caller's matrix.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK = 1024
UPDATE = 8192  # rows that dsyrk is given at most

_ARGUMENTS = {"potrf": 5, "potrs": 8, "trsm": 11, "syrk": 10, "gemm": 13}


@cache
def _routine(name: str, prefix: str) -> Any:
    from scipy.linalg import cython_blas, cython_lapack

    module = cython_lapack if name.startswith("po") else cython_blas
    capsule = module.__pyx_capi__[prefix + name]
    get_name, get_pointer = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    address = get_pointer(capsule, get_name(capsule))
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * _ARGUMENTS[name])(address)


def _call(name: str, dtype: np.dtype[Any], *args: Any) -> int:
    """Call a LAPACK or BLAS routine; ints are addresses, and a trailing ``info`` is returned."""
    info = ctypes.c_int(0)
    real = ctypes.c_double if dtype == np.float64 else ctypes.c_float
    boxed: list[Any] = []
    for arg in args:
        if isinstance(arg, bytes):
            boxed.append(ctypes.byref(ctypes.c_char(arg)))
        elif isinstance(arg, float):
            boxed.append(ctypes.byref(real(arg)))
        elif isinstance(arg, _Address):
            boxed.append(ctypes.c_void_p(int(arg)))
        else:
            boxed.append(ctypes.byref(ctypes.c_int(arg)))
    if name.startswith("po"):
        boxed.append(ctypes.byref(info))
    _routine(name, "d" if dtype == np.float64 else "s")(*boxed)
    return info.value


class _Address(int):
    """A pointer, told apart from an integer argument."""


def cholesky(A: NDArray[Any]) -> int:
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
    m^3/3 flops, no memory of its own. Right-looking, by blocks of `BLOCK` rows.
    """
    m, dtype = _check(A)
    # A C-ordered lower triangle is, column by column, an upper one: A = U^T U with U = L^T.
    for k in range(0, m, BLOCK):
        b = min(BLOCK, m - k)
        corner = _at(A, k, k)
        info = _call("potrf", dtype, b"U", b, corner, m)
        if info:
            return k + info
        rest = m - k - b
        if rest:
            _call("trsm", dtype, b"L", b"U", b"T", b"N", b, rest, 1.0, corner, m, _at(A, k + b, k), m)
        for j in range(k + b, m, UPDATE):
            s = min(UPDATE, m - j)
            panel = _at(A, j, k)
            _call("syrk", dtype, b"U", b"T", s, b, -1.0, panel, m, 1.0, _at(A, j, j), m)
            below = m - j - s
            if below:
                under = _at(A, j + s, k)
                _call("gemm", dtype, b"T", b"N", s, below, b, -1.0, panel, m, under, m, 1.0, _at(A, j + s, j), m)
    return 0


def cholesky_solve(L: NDArray[Any], B: NDArray[Any]) -> None:
    """Solve ``L L^T x = b`` in place for every row b of `B`, shape (k, m); 2 m^2 flops a row."""
    m, dtype = _check(L)
    if B.dtype != dtype or not B.flags.c_contiguous or B.shape[1:] != (m,):
        raise ValueError("right-hand sides must be C-contiguous rows of the matrix' dtype and order")
    _call("potrs", dtype, b"U", m, len(B), _at(L, 0, 0), m, _at(B, 0, 0), m)


def _check(A: NDArray[Any]) -> tuple[int, np.dtype[Any]]:
    if A.dtype not in (np.float32, np.float64) or not A.flags.c_contiguous or A.shape[0] != A.shape[1]:
        raise ValueError("a square C-contiguous float32 or float64 matrix is needed")
    return len(A), A.dtype


def _at(A: NDArray[Any], i: int, j: int) -> _Address:
    return _Address(A.ctypes.data + i * A.strides[0] + j * A.strides[1])
